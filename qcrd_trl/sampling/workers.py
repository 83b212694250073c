"""Work shared out among processes, its results in the order of the jobs, with a bounded number of them under way."""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any

from ..errors import QCRDError


def usable_cores() -> int:
    """How many cores this process may use, which in a container or under a scheduler are not all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    function: Callable[[Any], Any], jobs: Iterable[Any], num_workers: int | None = None, few: int = 2
) -> Iterator[Any]:
    """
    Maps a function over jobs in several processes.

    The results come in the order of the jobs, so that they do not depend on the number of processes, and neither does
    which error is raised: that of the first job that has one. Closing the iterator, as Ctrl-C does, ends the processes.

    Args:
        function (`Callable`):
            What is done; it can be pickled, as its results.
        jobs (`Iterable`):
            What it is done to. Jobs are drawn as processes become free, some ahead.
        num_workers (`int`, *optional*):
            Number of processes; 1: this one. As many as there are usable cores if left out, or this one for `few` jobs,
            which are done before a process has started.
        few (`int`, *optional*, defaults to 2):
            How many jobs are few.

    Yields:
        What the function gave for each job.

    Raises:
        QCRDError: a process ended without an answer; else whatever the function raised.
    """
    jobs = iter(jobs)
    if num_workers is None:
        num_workers = usable_cores()
        first = list(islice(jobs, few + 1))
        if len(first) <= few:
            num_workers = 1
        jobs = chain(first, jobs)
    if num_workers == 1:
        yield from map(function, jobs)
        return
    # A fresh interpreter: a fork would copy the threads' locks of whatever this process has loaded.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start)
    waiting: deque = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(function, job))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise QCRDError(
            "A worker process ended without an answer, perhaps killed for want of memory. Try fewer with --num_workers, "
            "or --num_workers 1 to see what happens in one process."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start() -> None:
    # A job makes many objects that live as long as it does, and no cycles: to look for cycles among them is time lost.
    gc.freeze()
    gc.set_threshold(100_000)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal: the main one ends the rest
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A main process that is killed outright ends nobody; its workers would wait for jobs for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
