"""Asking an OpenAI-compatible server for the samples of one question: attempts, retries, and what the server takes."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import tenacity

from ...errors import TeacherError
from .base import SamplingSettings, TeacherCompletion, TeacherRequest, TeacherStats
from .concurrency import Gate
from .openai_policy import Dialect, RetryPolicy
from .openai_replies import Choice, read_reply, share_usage
from .server_errors import ServerFault, fault_of, redact, shorten


logger = logging.getLogger(__name__)

_WORTH_TELLING = 30.0
_EQUAL_QUESTIONS = 10
_STOPS = ("parameter", "key", "model", "address", "credit", "wait")


class Asker:
    """
    Asks one server for samples, in one event loop.

    Args:
        client (`openai.AsyncOpenAI`): without retries of its own.
        model (`str`): as the server names it.
        chat (`bool`): whether `/chat/completions` is asked, or `/completions`.
        timeout (`float`): seconds for an attempt, up to the last byte.
        policy ([`RetryPolicy`]): when to try again.
        gate ([`Gate`]): shared by all attempts.
        takes ([`Dialect`]): what the server is known to take; updated.
        stats ([`TeacherStats`]): updated.
        secret (`str`, *optional*): the key.
        key_name (`str`): the environment variable that it is from.
    """

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        model: str,
        chat: bool,
        timeout: float,
        policy: RetryPolicy,
        gate: Gate,
        takes: Dialect,
        stats: TeacherStats,
        secret: str | None,
        key_name: str,
    ):
        self.client = client
        self.model = model
        self.chat = chat
        self.timeout = timeout
        self.policy = policy
        self.gate = gate
        self.takes = takes
        self.stats = stats
        self.secret = secret
        self.key_name = key_name
        self.url = str(client.base_url).rstrip("/")
        self._has_answered = False
        self._unanswered = 0
        self._equal = 0

    async def answer(
        self, request: TeacherRequest, give: Callable[[list[TeacherCompletion]], Any], how: SamplingSettings
    ) -> None:
        """
        Asks for all samples of a request. What the server gives too few of is asked for again.

        Args:
            request ([`TeacherRequest`]): the question.
            give (`Callable`): takes the completions of each reply as soon as it is there, so that none is lost if the run
                is killed while others are on their way.
            how ([`SamplingSettings`]): how to sample.

        Raises:
            [`TeacherError`]: what stops the run.
        """
        wanted = list(zip(request.sample_indices, request.seeds, strict=True))
        done: list[TeacherCompletion] = []
        faults: list[ServerFault] = []

        async def ask(group: list[tuple[int, int]]) -> None:
            completions, fault = await self._ask(request.prompt, group, how)
            give(completions)
            done.extend(completions)
            faults.extend([] if fault is None else [fault])

        while wanted:
            # Groups of one wait for their turns at the gate, as all requests do.
            await asyncio.gather(*map(ask, [wanted] if self.takes.many else [[one] for one in wanted]))
            answered = {completion.sample_index for completion in done}
            wanted = [one for one in wanted if one[0] not in answered]
        self._watch(faults, done, how)

    async def _ask(
        self, prompt: Any, wanted: list[tuple[int, int]], how: SamplingSettings
    ) -> tuple[list[TeacherCompletion], ServerFault | None]:
        """Completions of the first one or more of the samples wanted, and why there are none."""
        try:
            choices, usage, seed = await self._with_retries(self._sample, prompt, wanted, how)
        except ServerFault as error:
            fault = error
        else:
            shares = share_usage(usage, [choice.text for choice in choices])
            return [
                TeacherCompletion(index, c.text, c.finish_reason, c.status, seed if i == 0 else None, share)
                for i, ((index, _), c, share) in enumerate(zip(wanted, choices, shares, strict=False))
            ], None
        if fault.kind in _STOPS:
            raise TeacherError(self.explain(fault, how))
        status, reason = ("filtered", "content_filter") if fault.kind == "filtered" else ("failed", None)
        tries = f" ({self.policy.max_retries + 1} attempts)" if fault.kind == "transient" else ""
        self.stats.errors += len(wanted) if status == "failed" else 0
        return [
            TeacherCompletion(index, None, reason, status, seed, error=fault.message + tries) for index, seed in wanted
        ], fault

    async def _with_retries(self, attempt: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        def count(state: tenacity.RetryCallState) -> None:
            self.stats.retries += 1

        number = self.gate.number()
        while True:
            try:
                return await self.policy.retrying(count)(attempt, *args, number)
            except ServerFault as fault:
                if fault.kind != "adapted":
                    raise

    async def _sample(
        self, prompt: Any, wanted: list[tuple[int, int]], how: SamplingSettings, number: int
    ) -> tuple[list[Choice], dict[str, int], int | None]:
        """One attempt at a request for samples."""
        create = self.client.chat.completions if self.chat else self.client.completions
        sent: dict[str, Any] = {}

        def send() -> Awaitable[Any]:
            # Written when its turn has come: what other attempts found out about the server is known by then.
            sent.update(self._parameters(prompt, wanted, how))
            return create.with_raw_response.create(**sent)

        def read(body: bytes) -> tuple[list[Choice], dict[str, int]]:
            choices, usage = read_reply(body, self.secret)
            if sent.get("n", 1) > 1 and len(choices) == 1:
                self.takes.one_by_one(f"gives 1 sample where n = {sent['n']} are asked for")
            return choices, usage

        choices, usage = await self._attempt(send, read, sent, number)
        self._has_answered, self._unanswered = True, 0
        self.stats.prompt_tokens += usage.get("prompt_tokens", 0)
        self.stats.completion_tokens += usage.get("completion_tokens", 0)
        return choices, usage, sent.get("seed")

    def _parameters(self, prompt: Any, wanted: list[tuple[int, int]], how: SamplingSettings) -> dict[str, Any]:
        sent = {"model": self.model, ("messages" if self.chat else "prompt"): prompt}
        # `top_p` is sent at 1 too: some servers fall back on the model's own default, which is another distribution.
        sent |= {"temperature": how.temperature, "top_p": how.top_p, self.takes.limit: how.max_new_tokens}
        sent |= {"seed": wanted[0][1]}
        if how.stop:
            sent["stop"] = list(how.stop)
        if self.takes.many and len(wanted) > 1:
            sent["n"] = len(wanted)
        return {name: value for name, value in sent.items() if self.takes.sends(name, value)}

    async def _attempt(
        self, send: Callable[[], Awaitable[Any]], read: Callable[[bytes], Any], sent: dict[str, Any], number: int
    ) -> Any:
        """Sends a request once, when its turn has come, and reads the answer. Raises only [`ServerFault`]."""
        started = await self.gate.enter(number)
        fault = None
        try:
            # The client's own timeout starts anew with every byte.
            response = await asyncio.wait_for(send(), self.timeout)
            result = read(response.http_response.content)
            self.gate.widen()
            return result
        except ServerFault as error:
            fault = error
        except (asyncio.TimeoutError, openai.APITimeoutError):
            fault = ServerFault("transient", f"no whole answer within {self.timeout:g} s")
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            said = shorten(redact(str(cause), self.secret))
            fault = ServerFault("transient", f"no connection: {type(cause).__name__}{': ' if said else ''}{said}")
        except openai.APIStatusError as error:
            fault = fault_of(error.status_code, error.response.headers, error.response.content, self.secret)
        finally:
            self.gate.leave()
        # Raised here, where no error of the client is in its context: a server may have quoted the key in that one.
        raise self._heed(fault, sent, started)

    def _heed(self, fault: ServerFault, sent: dict[str, Any], started: float) -> ServerFault:
        """Slows all attempts where the server asks for it, and adapts to what it refuses."""
        if fault.kind == "parameter":
            if self.takes.adapt(fault, sent):
                fault.kind = "adapted"
                return fault
            if fault.parameter not in sent:
                fault.kind = "refused"
        if fault.kind not in _STOPS:
            self.gate.learned()
        if fault.status == 429 and fault.kind == "transient":
            self.gate.narrow(started)
        if fault.wait is not None and fault.wait > self.policy.longest_asked:
            fault.kind = "wait"
        elif fault.wait and fault.status in (429, 503):
            fault.is_held = True
            was_open = self.gate.close_for(fault.wait)
            if was_open and fault.wait >= _WORTH_TELLING:
                logger.warning("The teacher asks to wait %.0f s: %s", fault.wait, fault.message)
        return fault

    def _watch(self, faults: list[ServerFault], done: list[TeacherCompletion], how: SamplingSettings) -> None:
        """Stops the run where no question is answered any more, and warns where the teacher does not sample."""
        # A server that refuses from the first request on refuses the way it is asked; later, it is the question.
        last = [f for f in faults if f.kind == "transient" or (f.kind == "refused" and not self._has_answered)][-1:]
        if last and all(completion.status == "failed" for completion in done):
            self._unanswered += 1
            if self._unanswered >= self.policy.stop_after:
                raise TeacherError(
                    f"The teacher at {self.url} has not answered any of {self._unanswered} questions in a row, each "
                    f"tried as often as it may be (the last: {last[0].message}). Look whether the server runs and what "
                    f"its log says, then run again: what is finished is not asked again."
                )
        texts = [completion.text for completion in done if completion.status in ("ok", "truncated")]
        if self._equal < 0 or len(texts) < 2 or not how.temperature:
            return
        self._equal = self._equal + 1 if len(set(texts)) == 1 else -1
        if self._equal == _EQUAL_QUESTIONS:
            self._equal = -1
            logger.warning(
                "All samples of each of %d questions are equal at temperature %g: does the teacher sample? Some servers "
                "ignore the temperature unless the model's generation_config.json has do_sample.",
                _EQUAL_QUESTIONS,
                how.temperature,
            )

    async def models(self) -> list[str] | None:
        """
        Names that the server lists, or `None` where it has no list.

        Raises:
            [`ServerFault`]: it cannot be reached or refuses the key.
        """

        def send() -> Awaitable[Any]:
            return self.client.models.with_raw_response.list()

        try:
            return await self._with_retries(self._attempt, send, _model_names, {})
        except ServerFault as fault:
            if fault.kind in ("address", "model", "refused", "parameter") or fault.status in (200, 501):
                return None
            raise

    def explain(self, fault: ServerFault, how: SamplingSettings | None = None) -> str:
        """The error text for what stops a run, with its remedy."""
        where = f"The teacher at {self.url}"
        if fault.kind == "key":
            if self.secret is None:
                return (
                    f"{where} wants a key ({fault.message}), and the environment variable {self.key_name} is not set. "
                    f"Put the key there, or name the variable that has it (`api_key_env`)."
                )
            return (
                f"{where} refuses the key in the environment variable {self.key_name} ({fault.message}). Put a key there "
                f"that may use {self.model!r}, or name the variable that has it (`api_key_env`)."
            )
        if fault.kind == "model":
            return (
                f"{where} does not know the model {self.model!r} ({fault.message}). Give the name that the server has."
            )
        if fault.kind == "address":
            path = "chat/completions" if self.chat else "completions"
            return (
                f"There is nothing at {self.url}/{path} ({fault.message}). The base URL of most servers ends in /v1, as "
                f"in http://localhost:8000/v1. A server may also have only one of chat and plain completions."
            )
        if fault.kind == "credit":
            return f"{where} says that the account has no credit left ({fault.message}). Top it up, then run again."
        if fault.kind == "wait":
            return (
                f"{where} asks to wait {fault.wait:.0f} s, longer than {self.policy.longest_asked:.0f} s ({fault.message}). "
                f"Run again then: what is finished is not asked again."
            )
        if fault.kind == "parameter" and how is not None:
            value = {
                "temperature": how.temperature,
                "top_p": how.top_p,
                "stop": list(how.stop),
                **dict.fromkeys(("max_tokens", "max_completion_tokens"), how.max_new_tokens),
            }.get(fault.parameter)
            return (
                f"{where} refuses `{fault.parameter}` = {value} for the model {self.model!r} ({fault.message}). Choose a value "
                f"that the model takes."
            )
        return f"{where} does not answer ({fault.message}). Look whether the server runs and whether the base URL is right."


def _model_names(body: bytes) -> list[str]:
    try:
        return [str(model["id"]) for model in json.loads(body.decode("utf-8"))["data"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        pass
    raise ServerFault("refused", "the answer is not a list of models", 200)
