"""What may be chosen about generated negatives, and how long an iteration is."""

import math

import pytest

from qcrd_trl.errors import ConfigError
from qcrd_trl.negative_options import check_negative_options, iteration_steps


GOOD = {
    "num_negatives": 1,
    "temperature": 1.5,
    "lag": 5,
    "refresh_steps": None,
    "max_new_tokens": 256,
    "batch_size": 64,
    "correct": "keep",
    "task_kind": None,
}
NOT_COUNTS = [0, -1, True, False, 1.5, 1.0, math.nan, math.inf, "5", None]
NOT_TEMPERATURES = [0, 0.0, -1, True, math.nan, math.inf, -math.inf, "5", None]
NOT_STEPS = [0, 0.0, -1, -0.5, True, 1.5, math.nan, math.inf, "5"]
BAD = [
    *((name, value) for name in ("num_negatives", "lag", "max_new_tokens", "batch_size") for value in NOT_COUNTS),
    *(("temperature", value) for value in NOT_TEMPERATURES),
    *(("refresh_steps", value) for value in NOT_STEPS),
    *(("correct", value) for value in ("Drop", "", None, True)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_named(name, value):
    """Found only at the first refresh, a bad value costs all that was trained until then; True counts as 1 unseen."""
    for prefix in ("negative_", ""):
        with pytest.raises(ConfigError) as raised:
            check_negative_options(**{**GOOD, "task_kind": "number", name: value}, prefix=prefix)
        written = name if name == "num_negatives" else prefix + name
        begins = "Unknown correct_negatives" if name == "correct" else f"{written} must be"
        assert str(raised.value).startswith(begins)
        assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_negatives": 3, "lag": 1, "max_new_tokens": 1, "batch_size": 1},
        {"temperature": 1},
        {"temperature": 1e-3},
        {"refresh_steps": 1},
        {"refresh_steps": 40},
        {"refresh_steps": 40.0},  # as YAML and command lines may give it
        {"refresh_steps": 0.25},
        {"correct": "mark", "task_kind": "choice"},
        {"correct": "drop", "task_kind": len},
        {"correct": "keep", "task_kind": "number"},
    ],
)
def test_good_values_pass(change):
    """A check that refuses what the documentation allows stops a run for nothing."""
    check_negative_options(**{**GOOD, **change})


@pytest.mark.parametrize("correct", ["mark", "drop"])
def test_a_filter_needs_a_way_to_read_answers(correct):
    """Without one no negative would ever count as right, and the filter would seem to find none."""
    with pytest.raises(ConfigError, match=rf"correct_negatives='{correct}' needs `task_kind`"):
        check_negative_options(**{**GOOD, "correct": correct})


@pytest.mark.parametrize(
    ("refresh_steps", "per_epoch", "expected"),
    [
        (None, 7, 7),
        (None, 1, 1),
        (None, None, None),
        (1, 7, 1),
        (3, 7, 3),
        (3.0, 7, 3),
        (20, 7, 20),  # longer than an epoch
        (3, None, 3),
        (0.5, None, None),
        (0.5, 8, 4),
        (0.25, 10, 2),  # 2.5, to the even
        (0.3, 10, 3),
        (0.33, 10, 3),  # 3.3
        (0.9, 2, 2),  # 1.8
        (0.01, 10, 1),  # 0.1, but never none
        (0.99, 1, 1),
    ],
)
def test_steps_of_an_iteration(refresh_steps, per_epoch, expected):
    """One step more or less shifts every refresh, and with it what each resumed run learns from."""
    steps = iteration_steps(refresh_steps, per_epoch)
    assert steps == expected
    assert steps is None or type(steps) is int
