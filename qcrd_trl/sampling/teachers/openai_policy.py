"""When a request to a server is tried again, and how a server is asked that does not take every parameter."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tenacity

from .server_errors import ServerFault


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """
    When a request is tried again, and when a run is given up.

    The n-th retry waits `first * 2**(n - 1)` seconds, at most `longest`, and up to `jitter` more, by chance. Where the
    server says how long to wait, it waits just that, and with status 429 or 503 all others do too.

    Args:
        max_retries (`int`, *optional*, defaults to `8`): retries of a request after its first attempt.
        first (`float`, *optional*, defaults to `1.0`): seconds before the first retry.
        longest (`float`, *optional*, defaults to `60.0`): largest of these waits in seconds.
        jitter (`float`, *optional*, defaults to `1.0`): seconds.
        longest_asked (`float`, *optional*, defaults to `600.0`): a server that asks to wait for longer stops the run, so
            that nobody waits for hours without knowing.
        stop_after (`int`, *optional*, defaults to `5`): questions in a row without any answer that stop the run.
    """

    max_retries: int = 8
    first: float = 1.0
    longest: float = 60.0
    jitter: float = 1.0
    longest_asked: float = 600.0
    stop_after: int = 5

    def retrying(self, before_sleep: Callable[[tenacity.RetryCallState], None]) -> tenacity.AsyncRetrying:
        backoff = tenacity.wait_exponential_jitter(initial=self.first, max=self.longest, jitter=self.jitter)

        def wait(state: tenacity.RetryCallState) -> float:
            fault = state.outcome.exception()
            # What the server asks all to wait is waited at the gate, where the oldest request goes first.
            return 0.0 if fault.is_held else fault.wait or backoff(state)

        return tenacity.AsyncRetrying(
            sleep=asyncio.sleep,
            stop=tenacity.stop_after_attempt(self.max_retries + 1),
            wait=wait,
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServerFault) and e.kind == "transient"),
            before_sleep=before_sleep,
            reraise=True,
        )


@dataclass
class Dialect:
    """
    What the server takes, as far as it is known. It is found out once, by what the server refuses, and said once.

    Attributes:
        many (`bool`): several samples in one request (`n`).
        limit (`str`): name of the largest number of new tokens.
        dropped (`set[str]`): parameters that are not sent any more.
    """

    many: bool = True
    limit: str = "max_tokens"
    dropped: set[str] = field(default_factory=set)

    def sends(self, name: str, value: Any) -> bool:
        """Whether a parameter is sent: a refused one is left out only where it asks for nothing by that value."""
        return name not in self.dropped or (name != "seed" and not _is_default(name, value))

    def one_by_one(self, why: str) -> None:
        if self.many:
            self.many = False
            logger.warning(
                "The teacher %s: each sample is asked for by a request of its own, and the prompt's tokens are used "
                "for each of them.",
                why,
            )

    def adapt(self, fault: ServerFault, sent: dict[str, Any]) -> bool:
        """Whether the request can be sent in another way, without changing what it asks for."""
        name = fault.parameter
        if name not in sent:
            return False
        if name == "n":
            self.one_by_one(f"refuses n = {sent['n']}")
            return True
        if name == "max_tokens" and "messages" in sent:
            if not re.search(
                "max_completion_tokens|unsupported|not supported|unrecognized|unknown", fault.message, re.I
            ):
                return False  # the number is refused, not the name
            self.limit = "max_completion_tokens"
            return True
        if name == "seed":
            if name not in self.dropped:
                logger.warning("The teacher refuses `seed`: its samples cannot be drawn again. (%s)", fault.message)
        elif not _is_default(name, sent[name]):
            return False
        self.dropped.add(name)
        return True


def _is_default(name: str, value: Any) -> bool:
    """Whether a server samples the same without the parameter."""
    return name in ("temperature", "top_p") and value == 1.0
