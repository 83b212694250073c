"""HR, NDCG and MRR by hand."""

import numpy as np
import pytest
import torch

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.ranking_metrics import metrics_of, user_metrics


@pytest.mark.parametrize(
    ("rank", "ndcg"), [(1, 1.0), (2, 0.63093), (5, 0.386853), (10, 0.289065), (11, 0.0), (0, 0.0)]
)
def test_ndcg_at_ten(rank, ndcg):
    """A logarithm of another base, or a list that ends a place early, gives numbers of the same size."""
    assert metrics_of([rank])["ndcg@10"] == pytest.approx(ndcg, abs=1e-6)


def test_all_metrics_by_hand():
    """Ranks 1, 2, 6, 20, 21 and a miss: each k takes in one more, and the miss is in every mean."""
    found = metrics_of([1, 2, 6, 20, 21, 0])
    expected = {
        "hr@1": 1 / 6,
        "ndcg@1": 1 / 6,
        "hr@5": 2 / 6,
        "ndcg@5": (1 + 0.6309298) / 6,
        "hr@10": 3 / 6,
        "ndcg@10": (1 + 0.6309298 + 0.3562072) / 6,  # 1 / log2(7)
        "hr@20": 4 / 6,
        "ndcg@20": (1 + 0.6309298 + 0.3562072 + 0.2276702) / 6,  # 1 / log2(21)
        "mrr": (1 + 1 / 2 + 1 / 6 + 1 / 20 + 1 / 21) / 6,
    }
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-6)


def test_ranks_of_any_kind():
    """A tensor's ranks and a list's are the same numbers; the values are those of users, in order."""
    expected = user_metrics([1, 0, 3], ks=(2,))
    assert {name: list(values) for name, values in expected.items()} == {
        "hr@2": [1, 0, 0],
        "ndcg@2": [1, 0, 0],
        "mrr": [1, 0, pytest.approx(1 / 3)],
    }
    for ranks in (torch.tensor([1, 0, 3]), np.array([1, 0, 3], np.int32)):
        assert all((user_metrics(ranks, ks=(2,))[name] == values).all() for name, values in expected.items())


@pytest.mark.parametrize("ks", [(), (0,), (5, 5), (1.5,), (True,)])
def test_lists_of_no_length_are_refused(ks):
    """NDCG@0 would be 0 for every model."""
    with pytest.raises(ConfigError, match="ks must be positive whole numbers"):
        metrics_of([1], ks=ks)


@pytest.mark.parametrize("ranks", [[-1], [1.0], [[1]]])
def test_what_is_no_rank_is_refused(ranks):
    """Ranks counted from 0 would make misses of the best."""
    with pytest.raises(DataError, match="Ranks must be whole numbers"):
        metrics_of(ranks)


def test_no_rank_has_no_metric():
    """NaN in a results file would be found by whoever reads it."""
    with pytest.raises(DataError, match="0 users were evaluated"):
        metrics_of([])
