"""Intervals and p values, against what can be worked out by hand."""

import math

import numpy as np
import pytest

from qcrd_trl.errors import DataError
from qcrd_trl.statistics import bootstrap_interval, mcnemar_p, paired_bootstrap, sign_flip_p, wilson_interval


Z = 1.959964  # of a standard normal variable, 2.5 % lie above it


@pytest.mark.parametrize(
    ("successes", "trials", "expected"),
    [
        # Centre (5 + Z^2 / 2) / (10 + Z^2) = 6.9207 / 13.8415 = 0.5; half a width of
        # Z / (10 + Z^2) * sqrt(5 * 5 / 10 + Z^2 / 4) = 0.14160 * sqrt(2.5 + 0.96037) = 0.26341.
        (5, 10, (0.23659, 0.76341)),
        # From 0 to Z^2 / (n + Z^2) = 3.8415 / 13.8415.
        (0, 10, (0.0, 0.27753)),
        (10, 10, (0.72247, 1.0)),
        # (1 + 1.9207) / 4.8415 = 0.60327; Z / 4.8415 * sqrt(0 + 0.96037) = 0.39673.
        (1, 1, (0.20654, 1.0)),
    ],
)
def test_wilson_by_hand(successes, trials, expected):
    """An interval of no width at 0 or 1, as the plain formula gives, would claim certainty from few questions."""
    assert wilson_interval(successes, trials) == pytest.approx(expected, abs=1e-5)


def test_wilson_narrows_with_the_root_of_the_questions():
    """Of a hundredfold number of questions, a tenth of the width, as far as Z^2 does not count."""
    low, high = wilson_interval(5_000, 10_000)
    assert high - low == pytest.approx(2 * Z * math.sqrt(0.25 / 10_000), rel=1e-3)


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [
        (1, 5, 2 * (1 + 6) / 2**6),
        (5, 1, 2 * (1 + 6) / 2**6),
        (0, 8, 2 * 1 / 2**8),
        (2, 10, 2 * (1 + 12 + 66) / 2**12),
        (3, 3, 1.0),
        (0, 1, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_by_hand(only_first, only_second, expected):
    """The chi-squared form is far off for the few questions in which two students differ."""
    assert mcnemar_p(only_first, only_second) == pytest.approx(expected)


def test_the_sign_flip_test_is_mcnemars_of_right_and_wrong():
    """Two tests of one hypothesis that disagree would let anybody choose the better p."""
    first = [1] + [0] * 5 + [1] * 4 + [0] * 3
    second = [0] + [1] * 5 + [1] * 4 + [0] * 3
    assert sign_flip_p(first, second) == pytest.approx(mcnemar_p(1, 5))


def test_the_sign_flip_test_of_means_by_hand():
    """Differences 0.5, 0.5 and 1 add up to 2 or -2 in 2 of the 8 ways to choose their signs."""
    assert sign_flip_p([0.0, 0.5, 0.0, 0.3], [0.5, 1.0, 1.0, 0.3]) == pytest.approx(2 / 8)
    assert sign_flip_p([0.5, 1.0], [0.5, 1.0]) == 1.0


def test_a_single_difference_says_nothing():
    """It is as large whichever way it is exchanged; SciPy refuses it, and a comparison of two seeds ended in a traceback."""
    assert sign_flip_p([0.0, 0.5, 0.3], [1.0, 0.5, 0.3]) == mcnemar_p(0, 1) == 1.0


def test_the_sign_flip_test_of_many_questions_is_near_to_the_exact_one():
    """Above 13 differences the exact number of ways is sampled: 9,999 of them err by about 0.004."""
    first, second = np.array([1] * 9 + [0] * 21), np.array([0] * 9 + [1] * 21)
    assert sign_flip_p(first, second) == pytest.approx(mcnemar_p(9, 21), abs=0.012)
    assert sign_flip_p(first, second, seed=1) == sign_flip_p(first, second, seed=1)


def test_the_bootstrap_is_near_to_the_normal_interval():
    """20 gained, 10 lost, 70 alike: mean 0.1, variance 0.3 - 0.01, so 0.1 plus or minus 1.96 * sqrt(0.29 / 100)."""
    first = [0] * 20 + [1] * 10 + [1] * 40 + [0] * 30
    second = [1] * 20 + [0] * 10 + [1] * 40 + [0] * 30
    half = Z * math.sqrt(0.29 / 100)
    assert paired_bootstrap(first, second) == pytest.approx((0.1 - half, 0.1 + half), abs=0.012)
    mirrored = paired_bootstrap(second, first)
    assert mirrored == pytest.approx((-0.1 - half, -0.1 + half), abs=0.012)


def test_the_same_seed_gives_the_same_interval():
    """A published interval must come out again."""
    rng = np.random.default_rng(0)
    first, second = rng.random(80), rng.random(80)
    assert paired_bootstrap(first, second, 3) == paired_bootstrap(first, second, 3)
    assert paired_bootstrap(first, second, 3) != paired_bootstrap(first, second, 4)


def test_pairs_narrow_the_interval():
    """Questions that are hard for both say nothing of the difference: resampled apart they would drown it."""
    first = np.array([1] * 50 + [0] * 50)
    second = first.copy()
    second[50:60] = 1
    low, high = paired_bootstrap(first, second)
    assert low > 0  # 10 gained and none lost
    apart = [end for values in (first, second) for end in bootstrap_interval(values)]
    assert high - low < 0.7 * (apart[1] - apart[0])


def test_the_interval_covers_what_it_should():
    """Of 100 samples whose true difference is 0.3 - 0.1 = 0.2, about 95 intervals hold it."""
    rng = np.random.default_rng(0)
    covered = 0
    for number in range(100):
        drawn = rng.choice([1.0, -1.0, 0.0], size=60, p=[0.3, 0.1, 0.6])
        low, high = bootstrap_interval(drawn, seed=number)
        covered += low <= 0.2 <= high
    assert 90 <= covered <= 99


@pytest.mark.parametrize("values", [[0.0] * 5, [1.0] * 5, [0.25], [-1.0, -1.0]])
def test_values_that_are_all_equal(values):
    """SciPy warns and gives NaN there, which JSON has no word for."""
    assert bootstrap_interval(values) == (values[0], values[0])


def test_lists_of_different_lengths():
    """Paired by position, the rest would be left out in silence."""
    with pytest.raises(DataError, match="got 2 and 3"):
        paired_bootstrap([0, 1], [0, 1, 1])
