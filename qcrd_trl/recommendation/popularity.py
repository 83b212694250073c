"""The baseline that needs no model: the most popular items, the same for every user."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError
from .outcome import RecommendationResult
from .ranking_metrics import KS, check_ks
from .selection import selected_users, sets_of


if TYPE_CHECKING:
    from .leave_one_out import RecommendationData


def popularity(data: "RecommendationData") -> np.ndarray:
    """
    Events of each item in the training parts of all users, shape `(num_items,)`. Targets of validation and test are not
    counted, and a repeated event counts each time.
    """
    counts = np.zeros(data.num_items, dtype=np.int64)
    for user in range(len(data.user_ids)):
        np.add.at(counts, data.history(user, "train"), 1)
    return counts


def evaluate_popularity(
    data: "RecommendationData",
    split: str = "test",
    mask_history: bool = False,
    candidates: bool = False,
    ks: Sequence[int] = KS,
    users: Sequence[int] | None = None,
) -> RecommendationResult:
    """
    Ranks every user's target by popularity: by the number of training events, equally popular items by their index.

    Args:
        data ([`RecommendationData`]): the data.
        split (`str`, *optional*, defaults to `"test"`): `"validation"` or `"test"`.
        mask_history (`bool`, *optional*, defaults to `False`): whether the items that a user met before the target take no
            part. The target does in any case.
        candidates (`bool`, *optional*, defaults to `False`): whether only each user's candidates are ranked.
        ks (`Sequence[int]`, *optional*): where lists end.
        users (`Sequence[int]`, *optional*): indices of users; all if left out. Popularity is counted over all users.

    Returns:
        [`RecommendationResult`]

    Raises:
        [`ConfigError`]: an unknown split, a user twice, or candidates with a mask: no candidate was met before.
    """
    if candidates and mask_history:
        raise ConfigError("No candidate is in its user's history: leave mask_history out, or candidates.")
    check_ks(ks)
    users = selected_users(data, split, users)
    order = np.lexsort((np.arange(data.num_items), -popularity(data)))
    place = np.empty(data.num_items, dtype=np.int64)
    place[order] = np.arange(data.num_items)  # all items stand in one line, without ties
    ranks = np.empty(len(users), dtype=np.int64)
    for number, user in enumerate(users):
        target = place[data.target(user, split)]
        if candidates:
            ranks[number] = 1 + (place[data.candidates[split][user]] < target).sum()
            continue
        ranks[number] = 1 + target
        if mask_history:
            ranks[number] -= (place[np.unique(data.history(user, split))] < target).sum()
    return RecommendationResult(
        task_mode=None,
        split=split,
        ranking="candidates" if candidates else "full",
        history_masked=mask_history,
        **sets_of(data, split, users, candidates),
        ranks=ranks,
        ks=tuple(ks),
        counts={"users": len(users), "items": data.num_items},
    )
