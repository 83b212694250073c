"""Numbers that say how good scores and answers are."""

from collections.abc import Sequence

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
