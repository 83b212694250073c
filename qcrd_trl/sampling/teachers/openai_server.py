"""A teacher behind an OpenAI-compatible server: vLLM, TGI, llama.cpp, Ollama, `transformers serve`, or hosted."""

import difflib
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import openai

from ...errors import ConfigError, TeacherError
from .base import SamplingSettings, Teacher, TeacherCompletion, TeacherRequest, TeacherStats
from .concurrency import Gate, LoopThread
from .openai_asking import Asker
from .openai_policy import Dialect, RetryPolicy
from .server_errors import ServerFault, redact


logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_CHECK_RETRIES = 3
_PLACEHOLDER_KEY = "none"


class OpenAITeacher(Teacher):
    """
    Samples from any server that speaks OpenAI's protocol.

    Requests run at the same time, up to `max_concurrency`. All samples of a question are asked for in one request where
    the server can do that (`n`), else each by its own. Timeouts, lost connections, answers that are not whole, and the
    statuses 408, 409, 425, 429 and 5xx are tried again ([`RetryPolicy`]); a request that stays without an answer, or is
    longer than the model's context, gives samples of status `failed`. Only the text that the model says to the user is
    kept, not what a reasoning server gives beside it.

    One request takes one seed: with `n` samples it is the first one's.

    Args:
        model (`str`):
            Name of the model, as the server has it.
        base_url (`str`, *optional*):
            Address of the server, such as `http://localhost:8000/v1`. Defaults to `OPENAI_BASE_URL`, or else OpenAI's.
        max_concurrency (`int`, *optional*, defaults to `16`):
            Largest number of requests at once.
        timeout (`float`, *optional*, defaults to `120.0`):
            Seconds for one attempt, from its start to the last byte, the time in the server's queue included.
        max_retries (`int`, *optional*, defaults to `8`):
            Retries of a request after its first attempt.
        chat (`bool`, *optional*, defaults to `True`):
            Whether prompts are messages for `/chat/completions`, or texts for `/completions`.
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`):
            Environment variable that has the key. It is read when requests are sent, and kept nowhere. Without it, a
            server of your own gets a placeholder.
        retry_policy ([`RetryPolicy`], *optional*):
            How long to wait between retries, and when to give up. Its `max_retries` is replaced by the argument above.

    Raises:
        [`ConfigError`]: an argument that cannot work.
        [`TeacherError`]: OpenAI's own server without a key.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        max_concurrency: int = 16,
        timeout: float = 120.0,
        max_retries: int = 8,
        chat: bool = True,
        api_key_env: str = "OPENAI_API_KEY",
        retry_policy: RetryPolicy | None = None,
    ):
        if not isinstance(model, str) or not model.strip():
            raise ConfigError(f"`model` must be the teacher's name on the server, got {model!r}.")
        for name, value, least in (("max_concurrency", max_concurrency, 1), ("max_retries", max_retries, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ConfigError(f"`timeout` must be a number of seconds above 0, got {timeout!r}.")
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        if base_url is not None:
            _check_url(base_url, os.environ.get(api_key_env))
        self.name = model
        self.base_url = base_url
        self.max_concurrency = max_concurrency
        self.timeout = float(timeout)
        self.chat = chat
        self.api_key_env = api_key_env
        self.retry_policy = replace(retry_policy or RetryPolicy(), max_retries=max_retries)
        self.stats = TeacherStats()
        self._takes = Dialect()
        key = self._key()
        if key is None and base_url is None:
            raise TeacherError(
                f"The environment variable {api_key_env} is not set, and OpenAI's server wants a key. Put the key there, "
                f"name the variable that has it (`api_key_env`), or give the address of your own server (`base_url`)."
            )
        if key is not None and base_url is not None and _is_open(base_url):
            logger.warning(
                "%s is not encrypted and not on this machine: the key in %s can be read on the way.",
                base_url,
                api_key_env,
            )

    def settings(self) -> dict[str, Any]:
        return {"backend": "openai", "model": self.name, "chat": self.chat}

    def check(self) -> None:
        """
        Asks for the server's list of models. A model that is not in it, or a server without a list, is asked for a few
        tokens: some servers answer to more names than they list.

        Raises:
            [`TeacherError`]: no connection, no permission, or no such model, with the names that are nearest to it.
        """
        policy = replace(self.retry_policy, max_retries=min(self.retry_policy.max_retries, _CHECK_RETRIES))
        with self._asker(policy, TeacherStats()) as (loop, asker):
            names = _result(loop, asker, asker.models())
            if names is not None and self.name in names:
                return
            prompt = [{"role": "user", "content": "Hello"}] if self.chat else "Hello"
            how = SamplingSettings(temperature=1.0, max_new_tokens=16)
            said = None
            try:
                completions: list[TeacherCompletion] = []
                loop.run(asker.answer(TeacherRequest("", prompt, (0,), (0,)), completions.extend, how))
                if completions[0].status == "failed":
                    said = f"The teacher at {asker.url} does not answer to {self.name!r}: {completions[0].error}."
            except TeacherError as error:
                said = str(error)
        if said is not None:
            raise TeacherError(f"{said}{_nearest(self.name, names)}")
        if names is not None:
            logger.warning(
                "The teacher at %s does not list the model %r, but answers to the name. Some servers answer to every name "
                "with the model that they have.%s",
                asker.url,
                self.name,
                _nearest(self.name, names),
            )

    def sample(
        self, requests: Iterable[TeacherRequest], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        """
        As [`Teacher.sample`] says. Where each sample is asked for by a request of its own, each comes by itself, in any order,
        as soon as it is there.
        """
        with self._asker(self.retry_policy, self.stats) as (loop, asker):
            yield from loop.map(partial(asker.answer, how=how), self._fitting(requests), self.max_concurrency)

    def _fitting(self, requests: Iterable[TeacherRequest]) -> Iterator[TeacherRequest]:
        for request in requests:
            if isinstance(request.prompt, str) == self.chat:
                got, expected = ("a text", "messages") if self.chat else ("messages", "a text")
                raise ConfigError(
                    f"The prompt of {request.id!r} is {got}, expected {expected}, as chat={self.chat}. Use the template of "
                    f"the other kind, or chat={not self.chat}."
                )
            yield request

    @contextmanager
    def _asker(self, policy: RetryPolicy, stats: TeacherStats) -> Iterator[tuple[LoopThread, Asker]]:
        key = self._key()
        client = openai.AsyncOpenAI(
            api_key=_PLACEHOLDER_KEY if key is None else key,
            base_url=self.base_url,
            timeout=openai.Timeout(self.timeout, connect=min(self.timeout, _CONNECT_SECONDS)),
            max_retries=0,
        )
        asker = Asker(
            client=client,
            model=self.name,
            chat=self.chat,
            timeout=self.timeout,
            policy=policy,
            gate=Gate(self.max_concurrency),
            takes=self._takes,
            stats=stats,
            secret=key,
            key_name=self.api_key_env,
        )
        with LoopThread() as loop:
            try:
                yield loop, asker
            finally:
                loop.run(client.close())

    def _key(self) -> str | None:
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            return None
        if not key.isascii() or not key.isprintable() or " " in key:
            # The HTTP library would quote the whole header in its error.
            raise ConfigError(
                f"The environment variable {self.api_key_env} holds characters that no key has (spaces, line breaks or "
                f"letters beyond ASCII). Set it to the key alone."
            )
        return key


def _result(loop: LoopThread, asker: Asker, work: Any) -> Any:
    try:
        return loop.run(work)
    except ServerFault as error:
        fault = error
    raise TeacherError(asker.explain(fault))


def _check_url(url: str, secret: str | None) -> None:
    """Raises a [`ConfigError`] for an address that no server has, without quoting what may be a secret in it."""
    if "@" in url:
        raise ConfigError(
            "`base_url` has a user name or password in it (an @), which would end up in logs and files. Leave them out, "
            "and put a key into an environment variable (`api_key_env`)."
        )
    if "?" in url or "#" in url:
        raise ConfigError(
            f"`base_url` has a query or fragment (behind {redact(re.split('[?#]', url)[0], secret)}), which may hold a "
            f"secret and would end up in logs. Leave it out, and put a key into an environment variable (`api_key_env`)."
        )
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"`base_url` must be an address such as http://localhost:8000/v1, got {redact(url, secret)!r}."
        )


def _is_open(url: str) -> bool:
    """Whether what is sent there leaves this machine unencrypted."""
    parts = urlsplit(url)
    try:
        return parts.scheme == "http" and not ip_address(parts.hostname).is_loopback
    except ValueError:
        return parts.scheme == "http" and parts.hostname != "localhost"


def _nearest(model: str, names: list[str] | None) -> str:
    if not names:
        return "" if names is None else " It lists no models."
    # "smollm2" is near to "HuggingFaceTB/SmolLM2-135M": the whole name counts, and so does what stands after the owner.
    short = {name.rpartition("/")[2].lower(): name for name in names} | {name.lower(): name for name in names}
    near = difflib.get_close_matches(model.rpartition("/")[2].lower(), short, n=5, cutoff=0.4)
    near += [name for name in short if model.lower() in name]
    found = list(dict.fromkeys(short[name] for name in near))[:5]
    if found:
        return f" The nearest of its {len(names)} models: {', '.join(map(repr, found))}."
    return f" Its models: {', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''}."
