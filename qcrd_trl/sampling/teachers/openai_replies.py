"""From the body of an answer of an OpenAI-compatible server to completions; no field of it is taken on trust."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import status_of
from .server_errors import ServerFault, fault_of, redact, shorten


_SHORTEST_KEY = 16


@dataclass(frozen=True)
class Choice:
    """
    One text of an answer.

    Attributes:
        text (`str` or `None`): as it came.
        finish_reason (`str` or `None`): the server's word for why it ended.
        status (`str`): one of `records.SAMPLE_STATUSES`.
    """

    text: str | None
    finish_reason: str | None
    status: str


def read_reply(body: bytes, secret: str | None = None) -> tuple[list[Choice], dict[str, int]]:
    """
    Reads the answer to a request for completions.

    Only what the model says to the user is its text. What reasoning servers give beside it (`reasoning_content`,
    `reasoning`) is left out: a student cannot learn from a text that is not part of the answer, and it has no place in the
    record.

    Args:
        body (`bytes`): the answer, status 200.
        secret (`str`, *optional*): the key, kept out of error texts.

    Returns:
        `tuple[list[Choice], dict[str, int]]`: the texts, and `prompt_tokens` and `completion_tokens` where both are given.

    Raises:
        [`ServerFault`]: the body is no such answer (cut off, an HTML page, no choices), or carries an error.
    """
    try:
        reply = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        start = shorten(redact(body[:4000].decode("utf-8", errors="replace"), secret))
        fault = ServerFault("transient", f"the answer is not JSON ({type(error).__name__}): {start!r}", 200)
    else:
        if isinstance(reply, dict) and reply.get("error") and not reply.get("choices"):
            # Gateways send the status of the server behind them in the body.
            code = reply["error"].get("code") if isinstance(reply["error"], dict) else None
            is_status = isinstance(code, int) and 400 <= code < 600
            raise fault_of(code if is_status else 500, {}, body, secret)
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if isinstance(choices, list) and choices and all(isinstance(choice, dict) for choice in choices):
            return [_read_choice(choice, secret) for choice in choices], _read_usage(reply.get("usage"))
        fault = ServerFault("transient", "the answer has no choices", 200)
    raise fault


def _read_choice(choice: dict[str, Any], secret: str | None) -> Choice:
    reason = choice.get("finish_reason")
    reason = None if reason is None else _without(str(reason), secret)
    if reason in ("error", "abort"):
        raise ServerFault("transient", f"the server gave up on the answer (finish_reason {reason!r})", 200)
    refusal = None
    if "message" in choice:
        message = choice["message"] if isinstance(choice["message"], dict) else {"content": 0}
        text, refusal = message.get("content"), message.get("refusal")
        if isinstance(text, list):  # parts, some of which may be thoughts
            parts = [part for part in text if isinstance(part, dict) and part.get("type") in ("text", "output_text")]
            text = "".join(str(part.get("text") or "") for part in parts)
    else:
        text = choice.get("text", 0)
    if text is not None and not isinstance(text, str):
        raise ServerFault("transient", "the answer has a choice without text", 200)
    if text is not None:
        text = _without(text, secret)
    return Choice(text, reason, "filtered" if refusal else status_of(text, reason))


def _without(text: str, secret: str | None) -> str:
    """
    What goes into a record, as it came but for the key, which a proxy may give back in the place of an answer. What is too
    short for a real key ("EMPTY", "none") may be a word of the answer.
    """
    return text.replace(secret, "***") if secret and len(secret) >= _SHORTEST_KEY else text


def _read_usage(usage: Any) -> dict[str, int]:
    names = ("prompt_tokens", "completion_tokens")
    if not isinstance(usage, dict) or not all(isinstance(usage.get(name), int) for name in names):
        return {}
    return {name: usage[name] for name in names}


def share_usage(usage: dict[str, int], texts: Sequence[str | None]) -> list[dict[str, int]]:
    """
    Shares the tokens of a request among its texts: the prompt's to the first, the completions' in proportion to the
    number of characters, since servers give only their sum. All numbers are whole and add up to the sum.

    Args:
        usage (`dict[str, int]`): of the request; may be empty.
        texts (`Sequence[str | None]`): at least one.

    Returns:
        `list[dict[str, int]]`: one for each text; empty ones if `usage` is.
    """
    if not usage:
        return [{} for _ in texts]
    lengths = [len(text or "") for text in texts]
    lengths = lengths if any(lengths) else [1] * len(texts)
    ends = [usage["completion_tokens"] * sum(lengths[: i + 1]) // sum(lengths) for i in range(len(texts))]
    starts = [0, *ends[:-1]]
    return [
        {"prompt_tokens": usage["prompt_tokens"] if i == 0 else 0, "completion_tokens": end - start}
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
