"""Which users are evaluated, and what tells them and the items that are ranked from others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .outcome import item_set, user_set


if TYPE_CHECKING:
    from .leave_one_out import RecommendationData


SPLITS = ("validation", "test")


def selected_users(data: "RecommendationData", split: str, users: Sequence[int] | None = None) -> list[int]:
    """
    Indices of the users to evaluate; all if left out.

    Raises:
        [`ConfigError`]: an unknown split, a user who does not exist or stands twice, or no user.
    """
    if split not in SPLITS:
        raise ConfigError(f"`split` must be 'validation' or 'test', got {split!r}.")
    count = len(data.user_ids)
    chosen = list(range(count)) if users is None else [int(user) for user in users]
    outside = [user for user in chosen if not 0 <= user < count]
    if outside:
        raise ConfigError(f"User {outside[0]} does not exist: expected an index of 0 to {count - 1}.")
    if len(set(chosen)) != len(chosen) or not chosen:
        raise ConfigError(
            f"Expected users to evaluate, each once, got {len(chosen)}, {len(set(chosen))} of them different."
        )
    return chosen


def sets_of(data: "RecommendationData", split: str, users: Sequence[int], candidates: bool) -> dict[str, str]:
    """`user_set` and `item_set` of an evaluation."""
    targets = [data.item_ids[data.target(user, split)] for user in users]
    return {
        "user_set": user_set([data.user_ids[user] for user in users], targets),
        "item_set": item_set(data.item_ids, data.candidates[split][list(users)] if candidates else None),
    }
