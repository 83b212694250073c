"""Candidates: fixed by seed, user and split, and never an item that the user knows."""

import hashlib

import numpy as np
import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.candidates import draw_candidates


NUM_ITEMS = 200


def users(number=30):
    draw = np.random.default_rng(0)
    return [f"u{i}" for i in range(number)], [draw.integers(0, NUM_ITEMS, draw.integers(3, 60)) for _ in range(number)]


def by_user(ids, drawn):
    return {(key, split): drawn[split][i].tolist() for i, key in enumerate(ids) for split in drawn}


@pytest.mark.parametrize("num_candidates", [2, 20, 60])
def test_the_target_among_items_never_met(num_candidates):
    """A candidate that the user has met, the other split's target above all, is no wrong answer."""
    ids, sequences = users()
    drawn = draw_candidates(ids, sequences, NUM_ITEMS, num_candidates)
    assert list(drawn) == ["validation", "test"]
    for split, end in (("validation", -2), ("test", -1)):
        assert drawn[split].shape == (30, num_candidates)
        assert drawn[split].dtype == np.int32
        for row, items in zip(drawn[split].tolist(), sequences, strict=True):
            assert len(set(row)) == num_candidates
            assert set(row) & set(items.tolist()) == {items[end]}
            assert min(row) >= 0
            assert max(row) < NUM_ITEMS


def test_other_users_do_not_matter():
    """Candidates drawn from one stream would all change with the first user left out, and no two results compare."""
    ids, sequences = users()
    drawn = by_user(ids, draw_candidates(ids, sequences, NUM_ITEMS))
    order = np.random.default_rng(1).permutation(30)[:17]
    some = [ids[i] for i in order]
    again = by_user(some, draw_candidates(some, [sequences[i] for i in order], NUM_ITEMS))
    assert again == {key: drawn[key] for key in again}
    assert len(again) == 34


def test_seed_user_and_split_matter():
    """One list for all would have the same easy or hard candidates everywhere."""
    same = [np.array([1, 2, 3])] * 2
    drawn = draw_candidates(["a", "b"], same, NUM_ITEMS)
    lists = [drawn["test"][0], drawn["test"][1], drawn["validation"][0]]
    lists.append(draw_candidates(["a"], same[:1], NUM_ITEMS, seed=1)["test"][0])
    assert len({tuple(one.tolist()) for one in lists}) == 4


def test_all_alike():
    """
    Each place holds the target equally often, and each item not met is drawn equally often: 4000 draws of 9 among 90 are
    400 each, with a standard deviation of 19; 4000 targets over 10 places are 400 each, with one of 19 too.
    """
    ids, met = [str(i) for i in range(4000)], np.arange(0, 100, 10)
    drawn = draw_candidates(ids, [met] * 4000, 100, num_candidates=10)["test"]
    counts = np.bincount(drawn.ravel(), minlength=100)
    assert (counts[met[:-1]] == 0).all()
    assert counts[90] == 4000
    others = np.delete(counts, met)
    assert others.sum() == 36_000
    assert abs(others - 400).max() < 5 * 19
    assert abs(np.bincount((drawn == 90).argmax(1), minlength=10) - 400).max() < 5 * 19


def test_by_hand():
    """Pinned to raw numbers of the generator, which no version of NumPy changes: results of other years must compare."""
    items, num_items, number = np.array([4, 2, 7]), 100, 3
    source = np.random.PCG64(int.from_bytes(hashlib.sha256(b"5\0test\0ann").digest(), "big"))
    unmet = [item for item in range(num_items) if item not in (2, 4, 7)]
    raw = source.random_raw(3).tolist()  # as many as there are candidates; the first two are used
    assert len({value % 97 for value in raw}) == 3
    every = [7, unmet[raw[0] % 97], unmet[raw[1] % 97]]
    order = sorted(range(3), key=source.random_raw(3).tolist().__getitem__)
    drawn = draw_candidates(["ann"], [items], num_items, number, seed=5)["test"]
    assert drawn.tolist() == [[every[place] for place in order]]


def test_every_other_item():
    """With nothing to choose from, a draw with replacement would never end."""
    drawn = draw_candidates(["a"], [np.array([0, 5, 9])], 10, num_candidates=8)
    assert sorted(drawn["test"][0].tolist()) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert sorted(drawn["validation"][0].tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(DataError, match="User 'a' has met 3 of 10 items: 7 others are too few for 9 candidates"):
        draw_candidates(["a"], [np.array([0, 5, 9])], 10, num_candidates=9)
    with pytest.raises(ConfigError, match="at least 2"):
        draw_candidates(["a"], [np.array([0, 5, 9])], 10, num_candidates=1)
