"""Candidates for each user's targets: the target among items that the user never met, the same in every evaluation."""

import hashlib
import sys
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from ..errors import ConfigError, DataError


SPLITS = ("validation", "test")


def draw_candidates(
    user_ids: Sequence[str], sequences: Sequence[np.ndarray], num_items: int, num_candidates: int = 20, seed: int = 0
) -> dict[str, np.ndarray]:
    """
    Draws the candidates of every user.

    Those of a user depend on the seed, the user's id and the split alone (and on which items there are), so neither on the
    other users nor on their order. The others than the target are drawn without replacement, all alike, from the items that
    the user has met in no split; then all are shuffled, the target with them.

    Args:
        user_ids (`Sequence[str]`):
            The users' ids.
        sequences (`Sequence[numpy.ndarray]`):
            Items of each user, in order; the last is the test target, the one before it the validation target.
        num_items (`int`):
            How many items there are.
        num_candidates (`int`, *optional*, defaults to `20`):
            Candidates of each user and split, the target among them.
        seed (`int`, *optional*, defaults to `0`):
            Seed.

    Returns:
        `dict[str, numpy.ndarray]`: of `"validation"` and `"test"` item indices, int32, of shape `(users, num_candidates)`.

    Raises:
        DataError: a user has met too many items.
    """
    if num_candidates < 2:
        raise ConfigError(f"num_candidates must be at least 2 (the target and another), got {num_candidates}.")
    drawn = {split: np.empty((len(user_ids), num_candidates), np.int32) for split in SPLITS}
    users = tqdm(user_ids, "candidates", leave=False, file=sys.stderr, disable=None, unit=" users", delay=2)
    for user, (user_id, items) in enumerate(zip(users, sequences, strict=True)):
        met = np.unique(items)
        if num_items - len(met) < num_candidates - 1:
            raise DataError(
                f"User {user_id!r} has met {len(met)} of {num_items} items: {num_items - len(met)} others are too few for "
                f"{num_candidates} candidates, of which one is the target. Choose fewer candidates (2 at least), or give items that "
                "nobody met, too."
            )
        for split, target in zip(SPLITS, (items[-2], items[-1]), strict=True):
            drawn[split][user] = draw_beside(seed, user_id, split, int(target), met, num_items, num_candidates)
    return drawn


def draw_beside(
    seed: int, user_id: str, split: str, target: int, met: np.ndarray, num_items: int, number: int
) -> list[int]:
    """
    A target among `number - 1` items that a user never met, in a shuffled order: a function of `seed`, `user_id` and `split` (which
    names the target).

    Args:
        seed (`int`): seed.
        user_id (`str`): the user's id.
        split (`str`): name of what is drawn for.
        target (`int`): the item among the others.
        met (`numpy.ndarray`): all items that the user met, sorted, each once; `num_items - len(met)` is at least `number - 1`.
        num_items (`int`): how many items there are.
        number (`int`): items wanted, the target included.
    """
    # The bit generator's raw numbers are the same in every version of NumPy; what `Generator` makes of them may change.
    digest = hashlib.sha256(f"{seed}\0{split}\0{user_id}".encode()).digest()
    source = np.random.PCG64(int.from_bytes(digest, "big"))
    others = num_items - len(met)
    if others < 4 * number:  # few to choose from: put them all into a random order
        unmet = np.setdiff1d(np.arange(num_items), met, assume_unique=True)
        chosen = unmet[np.argsort(source.random_raw(others), kind="stable")[: number - 1]].tolist()
    else:
        # The n-th of the items that were not met: n plus the number of met items before it.
        gaps = met - np.arange(len(met))
        places: dict[int, None] = {}
        while len(places) < number - 1:
            places.update(dict.fromkeys((source.random_raw(number) % np.uint64(others)).tolist()))
        first = np.fromiter(places, np.int64, len(places))[: number - 1]
        chosen = (first + np.searchsorted(gaps, first, side="right")).tolist()
    every = [target, *chosen]
    return [every[place] for place in np.argsort(source.random_raw(number), kind="stable")]
