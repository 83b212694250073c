"""Leave-one-out data: every user's events, of which the last two are targets, with items and candidates."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from .candidates import SPLITS
from .sequences import MIN_LENGTH


TRAIN_WINDOWS = ("last", "all")
MAX_HISTORY = 50  # events that anything is predicted from, where nothing else is said


@dataclass(frozen=True)
class RecommendationData:
    """
    Leave-one-out data: of every user the last event is the test target, the one before it the validation target, and the
    rest is for training.

    Made by [`make_data`], which checks it, or read by [`~recommendation.folder.load_data`].

    Args:
        user_ids (`list[str]`):
            The users' ids.
        sequences (`list[numpy.ndarray]`):
            Items of each user, all of them, in order, as indices (int32).
        item_ids (`list[str]`):
            Id of each item.
        titles (`list[str or None]`):
            Title of each item; `None` where there is none.
        candidates (`dict[str, numpy.ndarray]`):
            Of `"validation"` and `"test"` the candidates of each user, int32, of shape `(users, num_candidates)`, the target
            among them.
        settings (`dict`):
            How it was made; `max_history` is the default of its rows.
        fingerprint (`str`):
            SHA-256 of all of it but the settings.
        timestamps (`list[numpy.ndarray]`, *optional*):
            Times of the events.
        counts (`dict`, *optional*):
            What was read, left out and kept.
    """

    user_ids: list[str]
    sequences: list[np.ndarray]
    item_ids: list[str]
    titles: list[str | None]
    candidates: dict[str, np.ndarray]
    settings: dict[str, Any]
    fingerprint: str
    timestamps: list[np.ndarray] | None = None
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def num_users(self) -> int:
        """How many users there are."""
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        """How many items there are, whether anybody met them or not."""
        return len(self.item_ids)

    def history(self, user: int, split: str) -> np.ndarray:
        """
        What a user met before the target, all of it.

        Args:
            user (`int`): place of the user.
            split (`str`): `"validation"`, `"test"`, or `"train"` for the events that models train on (the same as of
                `"validation"`).
        """
        check_split(split, "train")
        return self.sequences[user][: -1 if split == "test" else -2]

    def target(self, user: int, split: str) -> int:
        """
        The item that is to be predicted of a user.

        Args:
            user (`int`): place of the user.
            split (`str`): `"validation"` or `"test"`; training has no single target.
        """
        check_split(split)
        return int(self.sequences[user][-1 if split == "test" else -2])


def make_data(
    user_ids: Sequence[str],
    sequences: Sequence[Sequence[int] | np.ndarray],
    item_ids: Sequence[str],
    titles: Sequence[str | None],
    candidates: dict[str, np.ndarray],
    settings: dict[str, Any] | None = None,
    timestamps: Sequence[np.ndarray] | None = None,
    counts: dict[str, Any] | None = None,
) -> RecommendationData:
    """
    Puts data together, checks it and takes its fingerprint. Args as in [`RecommendationData`].

    Raises:
        DataError: the parts do not fit each other.
    """
    arrays = [np.asarray(one, np.int32) for one in sequences]
    drawn = {split: np.asarray(candidates[split], np.int32) for split in SPLITS if split in candidates}
    times = None
    if timestamps is not None:
        kind = np.result_type(np.int64, *{np.asarray(one).dtype for one in timestamps})
        times = [np.asarray(one, kind) for one in timestamps]
    wrong = _inconsistency(user_ids, arrays, item_ids, titles, drawn, times)
    if wrong:
        raise DataError(f"Recommendation data does not fit together: {wrong}.")
    fingerprint = _fingerprint(user_ids, arrays, item_ids, titles, drawn, times)
    return RecommendationData(
        *(list(user_ids), arrays, list(item_ids), list(titles), drawn, dict(settings or {}), fingerprint),
        timestamps=times,
        counts=dict(counts or {}),
    )


def check_split(split: str, *more: str) -> None:
    """Raises a [`ConfigError`] unless a split is one that has a target, or one of `more`."""
    if split not in (*more, *SPLITS):
        raise ConfigError(f"split must be one of {', '.join((*more, *SPLITS))}, got {split!r}.")


def _inconsistency(user_ids, sequences, item_ids, titles, candidates, timestamps) -> str | None:
    """What is wrong, if anything is: a wrong index would be read as another item without a word."""
    number = len(item_ids)
    if len(sequences) != len(user_ids) or not user_ids:
        return f"{len(user_ids)} users and {len(sequences)} sequences"
    if len(set(user_ids)) < len(user_ids) or len(set(item_ids)) < number:
        return "a user or an item stands twice"
    if len(titles) != number:
        return f"{number} items and {len(titles)} titles"
    shortest = min(map(len, sequences))
    if shortest < MIN_LENGTH:
        return f"a sequence of {shortest} items, and leave-one-out needs {MIN_LENGTH}"
    if min(one.min() for one in sequences) < 0 or max(one.max() for one in sequences) >= number:
        return f"an item index that is not in 0 to {number - 1}"
    if timestamps is not None and list(map(len, timestamps)) != list(map(len, sequences)):
        return "other numbers of times than of items"
    if set(candidates) != set(SPLITS):
        return f"candidates of {', '.join(candidates) or 'no split'}, not of {' and '.join(SPLITS)}"
    for split, end in zip(SPLITS, (-2, -1), strict=True):
        drawn = candidates[split]
        if drawn.ndim != 2 or len(drawn) != len(user_ids) or drawn.min() < 0 or drawn.max() >= number:
            return f"{split} candidates of shape {drawn.shape} for {len(user_ids)} users and {number} items"
        targets = np.array([one[end] for one in sequences])
        if not ((drawn == targets[:, None]).sum(1) == 1).all():
            return f"{split} candidates without the target, or with it twice"
    return None


def _fingerprint(user_ids, sequences, item_ids, titles, candidates, timestamps) -> str:
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for texts in (user_ids, item_ids, titles):
        add(json.dumps(list(texts)).encode())
    for arrays in (sequences, timestamps, *(candidates[split] for split in SPLITS)):
        add(b"none" if arrays is None else json.dumps([len(one) for one in arrays]).encode())
        for one in arrays if arrays is not None else ():
            digest.update(str(one.dtype).encode())
            digest.update(np.ascontiguousarray(one).astype(one.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()
