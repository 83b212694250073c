"""Numbers that say how good scores and answers are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


def auc(positive: Sequence[float], negative: Sequence[float]) -> float | None:
    """
    Area under the ROC curve: the chance that a random positive scores above a random negative, ties counting a half.

    Args:
        positive (`Sequence[float]`): scores of what should score high.
        negative (`Sequence[float]`): scores of what should score low.

    Returns:
        `float` or `None`: in [0, 1]; `None` where either side is empty.
    """
    if len(positive) == 0 or len(negative) == 0:
        return None
    m = len(positive)
    wins = float(rankdata([*positive, *negative])[:m].sum()) - m * (m + 1) / 2
    return wins / (m * len(negative))


@dataclass(frozen=True)
class ReliabilityBin:
    """
    What became of the scores in `[low, high)`; the last bin holds 1 too.

    Attributes:
        low (`float`): lowest score.
        high (`float`): where the next bin begins.
        weight (`float`): share of all weight that lies in it.
        mean_score (`float` or `None`): what was foretold; `None` in an empty bin.
        share_positive (`float` or `None`): what came of it: the share of positives.
    """

    low: float
    high: float
    weight: float
    mean_score: float | None
    share_positive: float | None


def brier_score(scores: Sequence[float], labels: Sequence[bool], weights: Sequence[float] | None = None) -> float:
    """
    Mean squared difference of score and truth (Brier, 1950): 0 is perfect, 0.25 what a constant 0.5 gets.

    Args:
        scores (`Sequence[float]`): scores in [0, 1], at least one.
        labels (`Sequence[bool]`): which of them are positives.
        weights (`Sequence[float]`, *optional*): weight of each; 1 if left out.

    Raises:
        `ValueError`: if there is no score, lengths differ, or a score lies outside [0, 1].
    """
    score, label, weight = _checked(scores, labels, weights)
    return float((weight * (score - label) ** 2).sum())


def reliability_bins(
    scores: Sequence[float], labels: Sequence[bool], num_bins: int = 10, weights: Sequence[float] | None = None
) -> list[ReliabilityBin]:
    """
    A reliability diagram in numbers: scores in bins of equal width, what each foretold and what came of it.

    Args:
        scores, labels, weights: as for [`brier_score`].
        num_bins (`int`, *optional*, defaults to `10`): number of bins.

    Raises:
        `ValueError`: as [`brier_score`] does.
    """
    score, label, weight = _checked(scores, labels, weights)
    place = np.minimum((score * num_bins).astype(int), num_bins - 1)
    bins = []
    for number in range(num_bins):
        here = place == number
        total = float(weight[here].sum())
        means = [float((weight * values)[here].sum() / total) if total else None for values in (score, label)]
        bins.append(ReliabilityBin(number / num_bins, (number + 1) / num_bins, total, *means))
    return bins


def expected_calibration_error(
    scores: Sequence[float], labels: Sequence[bool], num_bins: int = 10, weights: Sequence[float] | None = None
) -> float:
    """
    Mean over the bins of [`reliability_bins`], by their weight, of |mean score - share of positives| (Naeini et al., 2015):
    0 is perfect. Args and errors are those of [`reliability_bins`].
    """
    bins = reliability_bins(scores, labels, num_bins, weights)
    return sum(b.weight * abs(b.mean_score - b.share_positive) for b in bins if b.weight)


def _checked(scores, labels, weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    score, label = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    weight = np.ones_like(score) if weights is None else np.asarray(weights, dtype=float)
    if not len(score) or not len(score) == len(label) == len(weight):
        raise ValueError(f"Expected a label and a weight a score, got {len(score)}, {len(label)} and {len(weight)}.")
    if not ((score >= 0) & (score <= 1)).all():
        raise ValueError("Scores must lie in [0, 1].")
    return score, label, weight / weight.sum()
