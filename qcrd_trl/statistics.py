"""How far a measured accuracy, or a difference of two, can be trusted. Computed by SciPy."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest, bootstrap, permutation_test

from .errors import DataError


LEVEL = 0.95  # of every interval
RESAMPLES = 9999
_CELLS = 4_000_000  # numbers that are held at a time while resampling


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """
    95 % interval of a share of independent questions (Wilson, 1927), by [`scipy.stats.binomtest`].

    Args:
        successes (`int`): questions that came out right.
        trials (`int`): all questions, at least 1.

    Returns:
        `tuple[float, float]`: its ends, in [0, 1]. It has a width at 0 and at 1 too.

    Example:

    ```python
    >>> from qcrd_trl.statistics import wilson_interval
    >>> [round(end, 3) for end in wilson_interval(5, 10)]
    [0.237, 0.763]
    ```
    """
    interval = binomtest(successes, trials).proportion_ci(confidence_level=LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def mcnemar_p(only_first: int, only_second: int) -> float:
    """
    p value of McNemar's exact test: how likely so uneven a split of the questions that just one of two students answers
    rightly is if both are equally good.

    Args:
        only_first (`int`): questions that the first alone answers rightly.
        only_second (`int`): questions that the second alone answers rightly.

    Returns:
        `float`: two-sided, in (0, 1]; 1 where there is no such question.
    """
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """
    95 % interval of the mean over questions, by the percentile bootstrap of [`scipy.stats.bootstrap`].

    Args:
        values (`Sequence[float]`): one a question, at least one: a mean over seeds, or the difference of two students.
        seed (`int`, *optional*, defaults to `0`): of the resamples.

    Returns:
        `tuple[float, float]`: its ends. Of values that are all equal, that value twice: the data say nothing of a width.
    """
    values = np.asarray(values, dtype=float)
    if (values == values[0]).all():
        return float(values[0]), float(values[0])
    interval = bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _CELLS // len(values)),
        vectorized=True,
        confidence_level=LEVEL,
        # BCa corrects for skewness, of which a mean of many bounded values has next to none, and needs a pass over all
        # questions for each of them.
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def paired_bootstrap(first: Sequence[float], second: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """
    95 % interval of the mean difference `second - first` over the questions that both were asked: whole questions are
    drawn, so what makes one hard for both cancels.

    Args:
        first (`Sequence[float]`): a value a question.
        second (`Sequence[float]`): the other's, of the same questions in the same order.
        seed (`int`, *optional*, defaults to `0`): of the resamples.

    Returns:
        `tuple[float, float]`: as [`bootstrap_interval`].
    """
    return bootstrap_interval(_differences(first, second), seed)


def sign_flip_p(first: Sequence[float], second: Sequence[float], seed: int = 0) -> float:
    """
    p value of the paired permutation test of [`scipy.stats.permutation_test`]: how likely so large a mean difference is if
    each question's two values are exchanged at random. Of values 0 and 1 it is McNemar's exact test, up to the error of
    9,999 resamples; it also serves means over seeds.

    Args:
        first (`Sequence[float]`): a value a question.
        second (`Sequence[float]`): the other's, of the same questions in the same order.
        seed (`int`, *optional*, defaults to `0`): of the resamples.

    Returns:
        `float`: two-sided, in (0, 1]; 1 where no question or just one has a difference.
    """
    differences = _differences(first, second)
    differences = differences[differences != 0]  # exchanging equal values changes nothing
    if len(differences) < 2:  # a single one is as large whichever way it is exchanged, and SciPy wants two
        return 1.0
    test = permutation_test(
        (differences, np.zeros_like(differences)),
        lambda one, other, axis: np.mean(one - other, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _CELLS // len(differences)),
        random_state=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _differences(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if first.shape != second.shape:
        raise DataError(f"A comparison by question needs as many values of each, got {len(first)} and {len(second)}.")
    return second - first
