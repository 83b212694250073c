"""The gate that all attempts pass, and the map in a loop of its own."""

import asyncio
import threading

import pytest

from qcrd_trl.sampling.teachers.concurrency import Gate, LoopThread


def test_the_first_goes_alone():
    """What the server does not take is found out by one request, not by sixteen."""

    async def work():
        gate, order = Gate(3), []

        async def attempt(name):
            await gate.enter(gate.number())
            order.append(f"{name} in")
            await asyncio.sleep(0)
            if name == 0:
                assert gate.active == 1
                gate.learned()
            gate.leave()
            order.append(f"{name} out")

        await asyncio.gather(*(attempt(name) for name in range(4)))
        assert order[0] == "0 in"
        assert order.index("0 out") < order.index("1 in")
        assert gate.active == 0

    asyncio.run(work())


def test_width_by_hand():
    """Halved once for all attempts of one time, and one more for a round of successes."""

    async def work():
        gate, now = Gate(8), asyncio.get_running_loop().time()
        gate.learned()
        assert gate.width == 8
        gate.narrow(now)
        assert gate.width == 4
        gate.narrow(now - 1)  # on its way before the limit was met
        assert gate.width == 4
        gate.widen()
        assert gate.width == 4.25
        gate.widen()
        assert gate.width == pytest.approx(4.25 + 1 / 4.25)
        for _ in range(100):
            gate.widen()
        assert gate.width == 8
        for _ in range(9):
            gate.narrow(asyncio.get_running_loop().time())
        assert gate.width == 1

    asyncio.run(work())


def test_a_closed_gate_opens_by_itself():
    """A gate that opened a moment too early, and did not look again, would hold a run for ever."""

    async def work():
        gate, loop = Gate(2), asyncio.get_running_loop()
        start = loop.time()
        assert gate.close_for(0.05)
        assert not gate.close_for(0.15)
        assert not gate.close_for(0.01)  # the longer wait stays
        await asyncio.wait_for(gate.enter(gate.number()), 5)
        assert loop.time() - start >= 0.149
        gate.leave()
        await asyncio.wait_for(gate.enter(gate.number()), 5)

    asyncio.run(work())


def test_the_oldest_goes_first():
    """A retry behind all new requests is refused again at a strict limit, each time."""

    async def work():
        gate, order = Gate(1), []
        first = gate.number()
        await gate.enter(first)

        async def attempt(number):
            await gate.enter(number)
            order.append(number)
            gate.leave()

        tasks = [asyncio.ensure_future(attempt(gate.number())) for _ in range(3)]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(attempt(first)))
        await asyncio.sleep(0)
        gate.leave()
        await asyncio.gather(*tasks)
        assert order == sorted(order)
        assert order[0] == first
        assert len(order) == 4

    asyncio.run(work())


def test_a_cancelled_wait_takes_no_place():
    """Each place lost to a cancelled attempt makes the run slower, until nothing moves."""

    async def work():
        gate = Gate(1)
        await gate.enter(gate.number())
        waits = asyncio.ensure_future(gate.enter(gate.number()))
        granted = asyncio.ensure_future(gate.enter(gate.number()))
        await asyncio.sleep(0)
        waits.cancel()
        gate.leave()  # to `granted`, which is cancelled before it runs on
        granted.cancel()
        await asyncio.gather(waits, granted, return_exceptions=True)
        assert gate.active == 0
        await asyncio.wait_for(gate.enter(gate.number()), 5)

    asyncio.run(work())


def test_map_gives_all_parts_and_draws_in_the_callers_thread():
    here = threading.get_ident()

    def items():
        for item in range(20):
            assert threading.get_ident() == here
            yield item

    async def work(item, give):
        assert threading.get_ident() != here
        for part in range(item % 3):
            await asyncio.sleep(0.001)
            give(part)

    with LoopThread() as loop:
        found = list(loop.map(work, items(), 4))
    assert sorted(found) == [(item, part) for item in range(20) for part in range(item % 3)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_error_of_the_work_is_raised_here(error):
    """An error that stays in the other thread leaves the caller waiting for ever."""

    async def work(item, give):
        if item == 3:
            raise error("stop")
        await asyncio.sleep(30)

    with LoopThread() as loop:
        thread = loop._thread
        with pytest.raises(error):
            list(loop.map(work, range(100), 8))
        assert loop.run(asyncio.sleep(0, "alive")) == "alive"
    assert not thread.is_alive()
