"""What the error answers of OpenAI-compatible servers mean, read from their real bodies, and kept free of secrets."""

import json
import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote


# Shorter pieces of a key are not looked for: they would be found in ordinary words.
_PIECE = 8
_LONGEST = 300

# Each of these is asked for by the backend, so a server may refuse it by name.
PARAMETERS = ("max_completion_tokens", "max_tokens", "temperature", "top_p", "seed", "stop", "n")

# vLLM, OpenAI: "maximum context length"; llama.cpp: "exceeds the available context size"; TGI: "`inputs` tokens +
# `max_new_tokens` must be <= 4096"; Gemini: "input token count (..) exceeds"; Anthropic: "prompt is too long".
_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|(prompt|input) is too long|too large for model|"
    r"too many (input |prompt )?tokens|token count.{0,40}exceed|tokens \+ `?max_new_tokens|must have less than \d+ tokens",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content[ _-]?(filter|policy|management)|responsibleaipolicy|moderation|flagged|safety system", re.IGNORECASE
)
# Not "quota" alone: some servers call a limit per minute so, and that one passes.
_NO_CREDIT = re.compile(r"insufficient[ _](quota|credit|balance|funds)", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model.{0,80}(not found|not exist|not available)|not a valid model|(unknown|invalid|no such|not find|not found).{0,20}model|"
    r"server is pinned to|model_not_found",
    re.IGNORECASE | re.DOTALL,
)
# `n` is a letter: it is named by quotes, or by what servers without it say.
_NAMED = {
    name: re.compile(rf"(?<![\w.]){name}(?!\w)", re.IGNORECASE) for name in PARAMETERS if name not in ("n", "stop")
}
_NAMED["stop"] = re.compile(r"['\"`]stop['\"`]|\bstop (sequence|string|word)", re.IGNORECASE)
_NAMED["n"] = re.compile(
    r"['\"`]n['\"`]|\bn (must|should|value|is|>|=)|\bn ?= ?\d|\bbest_of\b|one completion choice|\bn_cmpl\b|num_return_sequences"
)


class ServerFault(Exception):
    """
    An attempt that gave no answer.

    Args:
        kind (`str`):
            `transient`: worth another attempt. `refused`: this request will never be answered. `overflow`: so too,
            because it is longer than the model's context. `filtered`: a filter of the server kept the question from
            the model. `parameter`: the server does not take `parameter`; `adapted`: the next attempt will do without
            it. `key`, `model`, `address`, `credit`, `wait`: every other request would fail as well.
        message (`str`):
            What the server said, short and without secrets.
        status (`int`, *optional*):
            HTTP status; `None` where there was no answer.
        wait (`float`, *optional*):
            Seconds that the server asks to wait.
        parameter (`str`, *optional*):
            One of `PARAMETERS`.

    Attributes:
        is_held (`bool`): whether the gate lets nobody through for as long as the server asks to wait.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        status: int | None = None,
        wait: float | None = None,
        parameter: str | None = None,
    ):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.wait = wait
        self.parameter = parameter
        self.is_held = False


def redact(text: str, secret: str | None) -> str:
    """
    Returns a text without a secret: no run of 8 of its characters is left, as servers quote keys shortened, and none of
    anything that follows the word Bearer.
    """
    hidden = [False] * len(text)
    for form in {secret, quote(secret, safe="")} if secret else ():
        size = min(_PIECE, len(form))
        for piece in {form[start : start + size] for start in range(len(form) - size + 1)}:
            start = text.find(piece)
            while start >= 0:
                hidden[start : start + size] = [True] * size
                start = text.find(piece, start + 1)
    shown = "".join("\0" if is_hidden else letter for letter, is_hidden in zip(text, hidden, strict=True))
    return re.sub(r"(Bearer\s+)[^\s\"',}]+", r"\1***", re.sub("\0+", "***", shown), flags=re.IGNORECASE)


def shorten(text: str) -> str:
    """Returns a text on one line, at most 300 characters long."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """
    Seconds that an answer asks to wait, by `retry-after-ms` or `Retry-After` (seconds or a date, which is read against
    the server's own clock where the answer has a `Date`); `None` where it does not ask, or not legibly.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    then, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    if then is None:
        return None
    return max(then - (time.time() if now is None else now), 0.0)


def _date(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def fault_of(status: int, headers: Mapping[str, str], body: bytes, secret: str | None = None) -> ServerFault:
    """
    What an answer with an error status means.

    Args:
        status (`int`): HTTP status, or the `code` of an error that came with status 200.
        headers (`Mapping[str, str]`): headers of the answer.
        body (`bytes`): body of the answer.
        secret (`str`, *optional*): the key, which some servers quote.

    Returns:
        [`ServerFault`]: not raised.
    """
    text = body.decode("utf-8", errors="replace")
    said, code, named = _read(text)
    message = f"HTTP {status}: {shorten(redact(said, secret))}" if said.strip() else f"HTTP {status}"
    wait = seconds_to_wait(headers)
    everything = f"{code} {said}"

    if status in (401, 407):
        return ServerFault("key", message, status)
    if status == 402 or (status in (400, 403, 429) and _NO_CREDIT.search(everything)):
        return ServerFault("credit", message, status)
    if status in (408, 409, 425, 429) or (status >= 500 and not _OVERFLOW.search(everything)):
        return ServerFault("transient", message, status, wait)
    if status in (400, 403, 422) and _FILTERED.search(everything):
        return ServerFault("filtered", message, status)
    if status == 403:
        return ServerFault("key", message, status)
    if status == 413 or _OVERFLOW.search(everything):
        return ServerFault("overflow", message, status)
    if status in (404, 405, 410):
        return ServerFault("model" if re.search("model", everything, re.IGNORECASE) else "address", message, status)
    if named not in PARAMETERS and (named == "model" or _NO_MODEL.search(everything)):
        return ServerFault("model", message, status)
    # What is refused comes first, before what the server takes instead.
    places = [(found.start(), name) for name in PARAMETERS if (found := _NAMED[name].search(said))]
    if named in PARAMETERS or places:
        return ServerFault("parameter", message, status, parameter=named if named in PARAMETERS else min(places)[1])
    return ServerFault("refused", message, status)


def _read(text: str) -> tuple[str, str, str | None]:
    """Message, code and named parameter of an error body in any of the forms that servers have."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text, "", None
    if isinstance(body, list) and body and isinstance(body[0], dict) and "error" in body[0]:
        body = body[0]
    error = body
    if isinstance(body, dict):
        error = next((body[name] for name in ("error", "detail", "message") if body.get(name)), body)
    if isinstance(error, dict):
        said = error.get("message") or error.get("msg") or json.dumps(error, ensure_ascii=False)
        code = f"{error.get('code') or ''} {error.get('type') or ''}"
        named = error.get("param")
        return str(said), code, named if isinstance(named, str) else None
    if isinstance(error, list) and error and isinstance(error[0], dict):  # the validation errors of FastAPI
        said = "; ".join(f"{'.'.join(map(str, entry.get('loc') or ()))}: {entry.get('msg')}" for entry in error)
        place = error[0].get("loc") or ()
        return said, str(error[0].get("type") or ""), str(place[-1]) if place else None
    return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False), "", None
