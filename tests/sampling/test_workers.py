"""Several processes: results in order, errors whole, nothing left running."""

import os
import time

import pytest

from qcrd_trl.errors import DataError, QCRDError
from qcrd_trl.sampling.workers import map_in_order, usable_cores


def _square(number):
    time.sleep(0.05 * (number % 3 == 0))
    return number**2, os.getpid()


def _fail(number):
    if number >= 3:
        raise DataError(f"row {number}")
    return number


def _die(number):
    os._exit(7)


def test_order_and_processes():
    """Results that came as they were done would shuffle the training set differently in every run."""
    alone = list(map_in_order(_square, range(12), 1))
    shared = list(map_in_order(_square, range(12), 2))
    assert [value for value, _ in shared] == [value for value, _ in alone] == [n**2 for n in range(12)]
    assert {pid for _, pid in alone} == {os.getpid()}
    assert os.getpid() not in {pid for _, pid in shared}
    assert [value for value, _ in map_in_order(_square, range(2))] == [0, 1]
    assert usable_cores() >= 1


def test_jobs_are_drawn_as_they_are_needed():
    """A million rows drawn at once would fill the memory."""
    drawn = []

    def jobs():
        for number in range(100):
            drawn.append(number)
            yield number

    results = map_in_order(_square, jobs(), 2)
    next(results)
    assert len(drawn) <= 6
    results.close()


def test_error_of_the_first_job_that_has_one():
    """Which error is shown must not depend on which process was quicker."""
    got = []
    with pytest.raises(DataError, match=r"^row 3$"):
        got.extend(map_in_order(_fail, range(10), 2))
    assert got == [0, 1, 2]


def test_killed_worker():
    """A process that the kernel ended for want of memory must not hang the command, nor pass for the end of the rows."""
    with pytest.raises(QCRDError, match=r"ended without an answer.*--num_workers"):
        list(map_in_order(_die, range(3), 2))
