"""Many requests at once behind a plain iterator: a bounded map in an event loop of its own, and a gate that slows all."""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar


Item = TypeVar("Item")
Result = TypeVar("Result")


class LoopThread:
    """
    An event loop in a thread of its own, so that it also runs where the caller has a loop already (a notebook). Used as a
    context: leaving it cancels every task and ends the thread.
    """

    def __enter__(self) -> "LoopThread":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="qcrd-teacher", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_others())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def run(self, work: Awaitable[Result]) -> Result:
        """Returns what a coroutine gives, or raises what it raises."""

        async def awaited() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def map(
        self, work: Callable[[Item, Callable[[Result], None]], Awaitable[None]], items: Iterable[Item], limit: int
    ) -> Iterator[tuple[Item, Result]]:
        """
        Does something with every item, with at most `limit` of them at once.

        Args:
            work (`Callable`): `work(item, give)` runs in the loop's thread, and calls `give(result)` for each result, as
                soon as it has it.
            items (`Iterable[Item]`): drawn in the caller's thread, one whenever there is room.
            limit (`int`): largest number of items that are drawn and not finished.

        Yields:
            `(item, result)`, in the order in which they are given. Closing the iterator cancels the rest.

        Raises:
            What `work` or `items` raised; the rest is cancelled then.
        """
        given: SimpleQueue[Callable[[], tuple[Item, Result] | None]] = SimpleQueue()

        async def one(item: Item) -> None:
            try:
                await work(item, lambda result: given.put(lambda: (item, result)))
            except BaseException as error:
                given.put(partial(_raise, error))  # in the caller's thread
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                given.put(lambda: None)

        source, is_drawn, running = iter(items), False, 0
        try:
            while True:
                if not is_drawn and running < limit:
                    try:
                        item = next(source)
                    except StopIteration:
                        is_drawn = True
                    else:
                        asyncio.run_coroutine_threadsafe(one(item), self._loop)
                        running += 1
                    if given.empty():
                        continue
                if not running:
                    return
                found = given.get()()
                if found is None:
                    running -= 1
                else:
                    yield found
        finally:
            self.run(_cancel_others())


def _raise(error: BaseException) -> None:
    raise error


async def _cancel_others() -> None:
    """Cancels every other task of the loop and waits until they are gone."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Gate:
    """
    Decides when an attempt may start, and how many run at once; used in one event loop.

    The first attempt goes alone: it finds out what the server takes. Then up to `limit` run at once. A server that limits
    the rate (status 429) halves that number, and each success lets it grow by 1 / number, one more for a round of
    successes: congestion control as networks have it, so that a strict limit costs few refused attempts. A server that
    says how long to wait closes the gate for all.

    Args:
        limit (`int`): largest number of attempts at once.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.width = 1.0
        self.active = 0
        self._is_probing = True
        self._opens_at = 0.0
        self._narrowed_at = 0.0
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap

    def number(self) -> int:
        """The number of a request, by which its attempts take their turns."""
        return next(self._numbers)

    async def enter(self, number: int) -> float:
        """
        Waits for the turn of an attempt. Returns the time on the loop's clock.

        The oldest request goes first, also in its retries. At a strict limit all but the first of a round are refused: in
        any other order the same one may be refused each time.

        Args:
            number (`int`): of the request, from [`Gate.number`].
        """
        loop = asyncio.get_running_loop()
        ticket = loop.create_future()
        heapq.heappush(self._waiting, (number, next(self._numbers), ticket))
        self._admit()
        try:
            await ticket  # whoever hands it out counts it
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.leave()
            raise
        return loop.time()

    def leave(self) -> None:
        """An attempt is over."""
        self.active -= 1
        self._admit()

    def learned(self) -> None:
        """The first attempt is over, and what the server does not take is known: the others may go."""
        if self._is_probing:
            self._is_probing = False
            self.width = float(self.limit)
            self._admit()

    def widen(self) -> None:
        """An attempt succeeded."""
        self.learned()
        self.width = min(self.width + 1 / self.width, float(self.limit))

    def narrow(self, started: float) -> None:
        """An attempt that started at `started` was told to slow down. Attempts of one time count once."""
        self.learned()
        if started >= self._narrowed_at:
            self.width = max(self.width / 2, 1.0)
            self._narrowed_at = asyncio.get_running_loop().time()

    def close_for(self, seconds: float) -> bool:
        """No attempt starts for that long. Returns whether the gate was open."""
        loop = asyncio.get_running_loop()
        was_open, opens_at = not self._opens_at, loop.time() + seconds
        if opens_at > self._opens_at:
            self._opens_at = opens_at
            loop.call_at(opens_at, self._open, opens_at)
        return was_open

    def _open(self, at: float) -> None:
        if at == self._opens_at:  # else it was closed for longer meanwhile
            self._opens_at = 0.0
            self._admit()

    def _has_room(self) -> bool:
        return self.active < int(self.width) and not self._opens_at

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            ticket = heapq.heappop(self._waiting)[-1]
            if not ticket.done():
                self.active += 1
                ticket.set_result(None)
