"""What ranks are worth: hit rate, normalised discounted cumulative gain and mean reciprocal rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError


MISS = 0  # the rank of a target whose score is not finite: it counts nothing, at any k
KS = (1, 5, 10, 20)


def user_metrics(ranks: Any, ks: Sequence[int] = KS) -> dict[str, np.ndarray]:
    """
    What each user adds to each metric. With one target a user, the ideal gain is 1.

    Args:
        ranks (`Sequence[int]` or array or tensor on the CPU, of shape `(U,)`): rank of each user's target, counted from 1;
            0 is a miss.
        ks (`Sequence[int]`, *optional*, defaults to `(1, 5, 10, 20)`): where lists end, each at least 1.

    Returns:
        `dict[str, np.ndarray]`: of shape `(U,)`, in [0, 1]: for each k `"hr@k"`, 1 where the rank is at most k, and
        `"ndcg@k"`, 1 / log2(rank + 1) there; and `"mrr"`, 1 / rank.

    Raises:
        [`ConfigError`]: a k is not a positive whole number, or stands twice.
        [`DataError`]: a rank is negative or no whole number.
    """
    check_ks(ks)
    ranks = np.asarray(ranks)
    if ranks.ndim != 1 or not (np.issubdtype(ranks.dtype, np.integer) or ranks.size == 0) or (ranks < 0).any():
        raise DataError(
            f"Ranks must be whole numbers from 0 (a miss), one a user, got {ranks.dtype} of shape {ranks.shape}."
        )
    found = ranks != MISS
    at_least_one = np.where(found, ranks, 1).astype(float)
    gain = 1 / np.log2(at_least_one + 1)
    values = {}
    for k in ks:
        hit = found & (ranks <= k)
        values[f"hr@{k}"] = hit.astype(float)
        values[f"ndcg@{k}"] = np.where(hit, gain, 0.0)
    values["mrr"] = np.where(found, 1 / at_least_one, 0.0)
    return values


def metrics_of(ranks: Any, ks: Sequence[int] = KS) -> dict[str, float]:
    """
    HR@k, NDCG@k and MRR: means over users of [`user_metrics`], which tells arguments and errors.

    Raises:
        [`DataError`]: there is no rank at all, too.

    Example:

    ```python
    >>> from qcrd_trl.recommendation.ranking_metrics import metrics_of
    >>> metrics_of([1, 2, 11], ks=(10,))["ndcg@10"]  # (1 + 0.63093 + 0) / 3
    0.5436432511904858
    ```
    """
    values = user_metrics(ranks, ks)
    if len(values["mrr"]) == 0:
        raise DataError("There is no rank to measure: 0 users were evaluated.")
    return {name: float(of_users.mean()) for name, of_users in values.items()}


def check_ks(ks: Sequence[int]) -> None:
    """Refuses list lengths that are no metric's."""
    whole = all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) and k >= 1 for k in ks)
    if not whole or len(set(ks)) != len(ks) or not len(ks):
        raise ConfigError(f"ks must be positive whole numbers, each once, such as 1 5 10 20; got {list(ks)}.")
