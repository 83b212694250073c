"""The popularity baseline, by hand and on ml-100k."""

import numpy as np
import pytest
import torch

from qcrd_trl.errors import ConfigError
from qcrd_trl.recommendation.interactions import read_interactions, read_items
from qcrd_trl.recommendation.leave_one_out import make_data
from qcrd_trl.recommendation.popularity import evaluate_popularity, popularity
from qcrd_trl.recommendation.preparing import prepare
from qcrd_trl.recommendation.ranking import target_ranks_from_scores


# Training parts: 0 0 1, 1 2, 1 3 2. So item 1 has 3 events, 0 and 2 have two, 3 has one, 4 and 5 have none.
SEQUENCES = [[0, 0, 1, 3, 2], [1, 2, 0, 4], [1, 3, 2, 0, 1]]


def data_of(sequences, num_items=6):
    """Users of these sequences, each with three candidates."""
    candidates = {}
    for split, end in (("validation", -2), ("test", -1)):
        lists = []
        for sequence in sequences:
            others = [item for item in range(num_items) if item not in sequence]
            lists.append([others[0], sequence[end], others[1]])
        candidates[split] = np.array(lists)
    ids = [f"u{number}" for number in range(len(sequences))]
    items = [f"i{number}" for number in range(num_items)]
    return make_data(ids, sequences, items, [None] * num_items, candidates)


def test_counts_are_of_training_events():
    """Counted with the targets, the baseline would know the answers; it is better on ml-100k by just 0.00003 then."""
    assert popularity(data_of(SEQUENCES)).tolist() == [2, 3, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("split", "masked", "expected"),
    [
        # In line: 1, 0, 2, 3, 4, 5.
        ("test", False, [3, 5, 1]),
        # Without 0 1 3, without 1 2 0; the third user's target was met before, and takes part: without 3 2 0.
        ("test", True, [1, 2, 1]),
        ("validation", False, [4, 2, 2]),
        # Without 0 1; without 1 2; without 1 3 2.
        ("validation", True, [2, 1, 1]),
    ],
)
def test_ranks_by_hand(split, masked, expected):
    """The history of a test target that left the validation target in would give 0.048780 on ml-100k, not 0.049841."""
    result = evaluate_popularity(data_of(SEQUENCES), split, masked)
    assert result.ranks.tolist() == expected
    assert (result.split, result.ranking, result.history_masked) == (split, "full", masked)


def test_a_ranking_of_scores_gives_the_same():
    """The line that all users share is a short cut; a tie or a mask that it treats in another way would not be seen."""
    draws = np.random.default_rng(0)
    data = data_of([draws.integers(30, size=size).tolist() for size in range(4, 24)], num_items=60)
    scores = torch.tensor(popularity(data), dtype=torch.float32).expand(20, -1)
    for split in ("validation", "test"):
        targets = [data.target(user, split) for user in range(20)]
        history = [data.history(user, split) for user in range(20)]
        for masked in (None, history):
            expected = target_ranks_from_scores(scores, targets, masked).tolist()
            assert evaluate_popularity(data, split, masked is not None).ranks.tolist() == expected
        others = [np.setdiff1d(np.arange(60), data.candidates[split][user]) for user in range(20)]
        expected = target_ranks_from_scores(scores, targets, others).tolist()
        assert evaluate_popularity(data, split, candidates=True).ranks.tolist() == expected


def test_some_users():
    """Popularity stays that of everybody; a set of users has its own mark, in its order."""
    data = data_of(SEQUENCES)
    assert evaluate_popularity(data, users=[2, 0]).ranks.tolist() == [1, 3]
    marks = [evaluate_popularity(data, users=users).user_set for users in (None, [0, 1, 2], [2, 0], [0, 2])]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train"}, "must be 'validation' or 'test', got 'train'"),
        ({"users": [3]}, "User 3 does not exist: expected an index of 0 to 2"),
        ({"users": [1, 1]}, "each once, got 2, 1 of them different"),
        ({"users": []}, "each once, got 0"),
        ({"ks": (0,)}, "ks must be positive"),
        ({"mask_history": True, "candidates": True}, "leave mask_history out, or candidates"),
    ],
)
def test_what_cannot_be_evaluated(settings, message):
    """A user counted twice would narrow every interval."""
    with pytest.raises(ConfigError, match=message):
        evaluate_popularity(data_of(SEQUENCES), **settings)


@pytest.fixture(scope="module")
def movielens(shared_dir):
    folder = shared_dir / "data" / "ml-100k"
    if not (folder / "ml-100k.inter").is_file():
        pytest.skip(f"no ml-100k at {folder}")
    return prepare(read_interactions(str(folder / "ml-100k.inter")), read_items(str(folder / "ml-100k.item")))


@pytest.mark.parametrize(("masked", "hr", "ndcg"), [(False, 0.028632, 0.012115), (True, 0.049841, 0.025440)])
def test_known_numbers_of_movielens(movielens, masked, hr, ndcg):
    """Known from elsewhere to six places: order, ties, split, counts and mask all have to be right."""
    metrics = evaluate_popularity(movielens, mask_history=masked).metrics
    assert metrics["hr@10"] == pytest.approx(hr, abs=5e-7)
    assert metrics["ndcg@10"] == pytest.approx(ndcg, abs=5e-7)
