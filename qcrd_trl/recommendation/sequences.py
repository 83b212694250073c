"""From interactions to one sequence of items a user, in an order that no order of rows can change."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import ConfigError, DataError
from .interactions import Interactions, Items


MIN_LENGTH = 3  # one event to train on, a validation target and a test target
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")

Duplicates = Literal["error", "drop", "keep"]


@dataclass(frozen=True)
class Sequences:
    """
    What every user met, in order.

    Args:
        user_ids (`list[str]`):
            The users, in the order of their ids.
        sequences (`list[numpy.ndarray]`, int32):
            Items of each, as indices, ordered by (time, item).
        timestamps (`list[numpy.ndarray]`, int64 or float64):
            Their times.
        item_ids (`list[str]`):
            The items, in the order of their ids: item `i` is `item_ids[i]`.
        titles (`list[str or None]`):
            Their titles.
        counts (`dict[str, int or str]`):
            What was read, left out and kept.
    """

    user_ids: list[str]
    sequences: list[np.ndarray]
    timestamps: list[np.ndarray]
    item_ids: list[str]
    titles: list[str | None]
    counts: dict[str, int | str]


def sort_ids(ids: Sequence[str]) -> tuple[list[str], Literal["numbers", "text"]]:
    """
    Sorts ids: as numbers if each is a whole number (of at most 18 digits), else as text, by code points.

    Args:
        ids (`Sequence[str]`): ids, each once.

    Returns:
        `tuple[list[str], str]`: the ids in order, and `"numbers"` or `"text"`.

    Example:

    ```python
    >>> sort_ids(["10", "9"])
    (['9', '10'], 'numbers')
    >>> sort_ids(["10", "9", "b1"])
    (['10', '9', 'b1'], 'text')
    ```
    """
    if all(map(_WHOLE_NUMBER.fullmatch, ids)):
        return sorted(ids, key=lambda one: (int(one), one)), "numbers"
    return sorted(ids), "text"


def build_sequences(
    interactions: Interactions,
    items: Items | None = None,
    min_length: int = 5,
    min_rating: float | None = None,
    duplicates: Duplicates = "error",
) -> Sequences:
    """
    Orders every user's events by (time, item), an item by its place among the sorted ids ([`sort_ids`]).

    An item that a user meets again stays. The items are those of `items` and those that only interactions have, whatever is
    left out of the interactions afterwards.

    Args:
        interactions (`Interactions`):
            The events.
        items (`Items`, *optional*):
            Items and titles. Those of the interactions, without titles, if left out.
        min_length (`int`, *optional*, defaults to `5`):
            Users with fewer events are left out; at least 3.
        min_rating (`float`, *optional*):
            Events rated lower are left out first.
        duplicates (`str`, *optional*, defaults to `"error"`):
            What becomes of events that are equal in user, item and time: `"error"`, `"drop"` (one of them stays) or
            `"keep"`.

    Returns:
        [`Sequences`]: the sequences, with counts of what was left out.

    Raises:
        DataError: there are duplicates, events without a rating where one counts, no item of both sources, or no user left.

    Example:

    ```python
    >>> sequences = build_sequences(read_interactions("ml-100k.inter"), read_items("ml-100k.item"))
    >>> len(sequences.sequences), len(sequences.item_ids)
    (943, 1682)
    ```
    """
    if min_length < MIN_LENGTH:
        raise ConfigError(
            f"min_length must be at least {MIN_LENGTH} (one event to train on, a validation target and a test target), got "
            f"{min_length}."
        )
    if duplicates not in ("error", "drop", "keep"):
        raise ConfigError(f"duplicates must be 'error', 'drop' or 'keep', got {duplicates!r}.")
    titles = dict(zip(items.item_ids, items.titles, strict=True)) if items else {}
    user_ids, user_order = sort_ids(interactions.user_ids)
    unlisted = [one for one in interactions.item_ids if one not in titles]
    if items and len(unlisted) == len(interactions.item_ids):
        raise DataError(
            f"None of the {len(unlisted)} items of {interactions.name} (such as {unlisted[0]!r}) stands in {items.name}, whose "
            f"items are such as {items.item_ids[0]!r}. Ids must be the same text in both: choose the columns that hold them."
        )
    item_ids, item_order = sort_ids([*titles, *unlisted])
    counts: dict[str, int | str] = {
        "interactions": len(interactions),
        "users_read": len(user_ids),
        "items": len(item_ids),
        "item_order": item_order,
        "user_order": user_order,
        "items_only_in_interactions": len(unlisted) if items else 0,
        "items_without_title": sum(not titles.get(one) for one in item_ids),
    }

    users = _ranks(interactions.user_ids, user_ids)[interactions.users]
    events = _ranks(interactions.item_ids, item_ids)[interactions.items]
    times = interactions.timestamps
    if min_rating is not None:
        keep = _rated(interactions, min_rating)
        counts["events_rated_too_low"] = int((~keep).sum())
        users, events, times = users[keep], events[keep], times[keep]
    order = np.lexsort((events, times, users))
    users, events, times = users[order], events[order], times[order]
    keep = ~_repeats(interactions, users, events, times, user_ids, item_ids, duplicates)
    counts["duplicates_left_out"] = int((~keep).sum())
    users, events, times = users[keep], events[keep], times[keep]

    lengths = np.bincount(users, minlength=len(user_ids))
    is_long = lengths >= min_length
    keep = is_long[users]
    counts["users_too_short"] = int((~is_long).sum())
    counts["events_of_short_users"] = int((~keep).sum())
    if not is_long.any():
        rated = "" if min_rating is None else f" rated {min_rating:g} or more"
        raise DataError(
            f"{interactions.name}: none of {len(user_ids)} users has {min_length} events{rated} (the longest has "
            f"{max(lengths, default=0)}). Lower min_length{' or min_rating' if rated else ''}, or give more interactions."
        )
    bounds = np.cumsum(lengths[is_long])[:-1]
    sequences = np.split(events[keep].astype(np.int32), bounds)
    timestamps = np.split(times[keep], bounds)
    counts |= {
        "users": len(sequences),
        "events": int(keep.sum()),
        "training_events": int(keep.sum()) - 2 * len(sequences),
        "repeated_items": int(keep.sum()) - len(np.unique(users[keep] * len(item_ids) + events[keep])),
        "items_never_met": len(item_ids) - len(np.unique(events[keep])),
        "users_with_tied_targets": sum(bool(one[-1] == one[-2]) for one in timestamps),
    }
    kept = [user_ids[user] for user in np.flatnonzero(is_long)]
    return Sequences(kept, sequences, timestamps, item_ids, [titles.get(one) for one in item_ids], counts)


def _ranks(ids: list[str], ordered: list[str]) -> np.ndarray:
    """The place of each id in the order."""
    places = {one: place for place, one in enumerate(ordered)}
    return np.array([places[one] for one in ids], np.int64)


def _rated(interactions: Interactions, min_rating: float) -> np.ndarray:
    ratings = interactions.ratings
    if ratings is None:
        raise DataError(
            f"{interactions.name} has no ratings, so that min_rating {min_rating} cannot be asked of them."
        )
    missing = np.flatnonzero(~np.isfinite(ratings))
    if len(missing):
        raise DataError(
            f"{interactions.name}: {len(missing)} of {len(ratings)} events have no rating that is a finite number (the first "
            f"in row {missing[0]}, counted from 0), and min_rating {min_rating} asks for one."
        )
    return ratings >= min_rating


def _repeats(interactions, users, events, times, user_ids, item_ids, duplicates: Duplicates) -> np.ndarray:
    """Which of the sorted events equal the one before them."""
    same = np.zeros(len(users), bool)
    if duplicates == "keep":
        return same
    same[1:] = (users[1:] == users[:-1]) & (events[1:] == events[:-1]) & (times[1:] == times[:-1])
    if same.any() and duplicates == "error":
        first = int(np.flatnonzero(same)[0])
        raise DataError(
            f"{interactions.name}: {int(same.sum())} of {len(interactions)} events stand twice with the same user, item and "
            f"time (such as user {user_ids[users[first]]!r}, item {item_ids[events[first]]!r}, time {times[first]}). Choose "
            "duplicates: 'drop' leaves one of each, 'keep' counts them all."
        )
    return same
