"""Ranks of targets among all items: by hand, against a loop, and the same however the work is cut up."""

import math

import numpy as np
import pytest
import torch
from tensors import LargestTensor

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.ranking import candidate_ranks, target_ranks, target_ranks_from_scores


CHUNKS = [(1, 1000), (3, 7), (5, 64), (64, 13), (1000, 1000)]


def problem(users=23, items=101, width=17, seed=0):
    """States, weights and targets of which nothing is tied but by chance."""
    draws = torch.Generator().manual_seed(seed)
    return (
        torch.randn(users, width, generator=draws),
        torch.randn(items, width, generator=draws),
        torch.randint(items, (users,), generator=draws),
    )


def by_loop(states, weight, targets, bias=None, history=None):
    """The definition, a user at a time, each score the exact sum rounded once."""
    ranks = []
    for user, target in enumerate(targets.tolist()):
        scores = []
        for item in range(len(weight)):
            products = (states[user].double() * weight[item].double()).tolist()
            scores.append(math.fsum([*products, 0.0 if bias is None else float(bias[item])]))
        left_out = set() if history is None else set(map(int, history[user])) - {target}
        rank = 1
        for item, score in enumerate(scores):
            if item not in left_out and item != target:
                rank += score > scores[target] or (score == scores[target] and item < target)
        ranks.append(rank if math.isfinite(scores[target]) else 0)
    return ranks


def histories(users, items, seed=0):
    """Up to nine items a user, some twice, of one user none."""
    draws = np.random.default_rng(seed)
    return [draws.integers(items, size=size) for size in [0, *draws.integers(1, 10, size=users - 1)]]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_loop_over_users_gives_the_same(masked, biased):
    """An index that is off by one, or a bias that is left out, shifts every metric and still looks like one."""
    states, weight, targets = problem()
    bias = torch.randn(len(weight), generator=torch.Generator().manual_seed(1)) if biased else None
    history = histories(len(states), len(weight)) if masked else None
    ranks = target_ranks(states, weight, targets, bias, history, user_chunk=4, item_chunk=9)
    assert ranks.tolist() == by_loop(states, weight, targets, bias, history)
    scores = states.double() @ weight.double().T + (0 if bias is None else bias)
    assert target_ranks_from_scores(scores, targets, history).tolist() == ranks.tolist()
    assert ranks.dtype == torch.long
    assert len(set(ranks.tolist())) > 10


def test_ties_go_to_the_smaller_index():
    """Ties counted for the target, or against it, move the popularity baseline by a fifth: many items are equally popular."""
    scores = torch.tensor([[1.0, 2.0, 2.0, 3.0, 2.0]])
    assert [int(target_ranks_from_scores(scores, [t])) for t in range(5)] == [5, 2, 3, 1, 4]
    states, weight = torch.tensor([[1.0]]), scores.T
    assert [int(target_ranks(states, weight, [t])) for t in range(5)] == [5, 2, 3, 1, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
def test_chunks_change_no_rank_where_items_are_the_same(dtype, biased):
    """
    A matrix product gives equal rows other last bits in tiles of other shapes: ties would break at random, and the same model
    would be measured differently on another machine.
    """
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(12, 67, generator=draws)
    which = torch.randint(12, (203,), generator=draws)  # some 17 copies of each row, all over the place
    weight = rows[which].to(dtype)
    bias = torch.randn(12, generator=draws)[which] if biased else None
    states = torch.randn(9, 67, generator=draws).to(dtype)
    targets = torch.randint(203, (9,), generator=draws)
    expected = by_loop(states, weight, targets, bias)
    for chunks in CHUNKS:
        assert target_ranks(states, weight, targets, bias, None, *chunks).tolist() == expected, chunks


def test_sums_that_are_equal_only_in_exact_arithmetic_are_ties():
    """Items whose products are the same in another order tie; which is above must not depend on how a library sums."""
    draws = torch.Generator().manual_seed(0)
    row = torch.randn(64, generator=draws)
    weight = torch.stack([row[torch.randperm(64, generator=draws)] for _ in range(50)])
    states, targets = torch.full((1, 64), 1.1), torch.tensor([20])
    assert len(set((states @ weight.T)[0].tolist())) > 1, "float32 shows no difference: the test says nothing"
    for chunks in CHUNKS:
        assert target_ranks(states, weight, targets, None, None, *chunks).tolist() == [21]
    # A difference in the last place of one of 64 numbers is one all the same.
    weight[49, 0] = torch.nextafter(weight[49, 0], torch.tensor(9.0))
    assert target_ranks(states, weight, targets).tolist() == [22]


def test_an_item_of_huge_weights_costs_no_time(monkeypatch):
    """By a bound for all items, everything would be near to the target then, and compared number by number for hours."""
    states, weight, targets = problem(users=7)
    weight[13] *= 1e30
    expected, exact = by_loop(states, weight, targets), []
    monkeypatch.setattr("qcrd_trl.recommendation.ranking.math.fsum", lambda numbers: exact.append(numbers))
    for chunks in CHUNKS:
        assert target_ranks(states, weight, targets, None, None, *chunks).tolist() == expected
    assert exact == []


def test_a_collapsed_model_ranks_by_index():
    """States of zeros tie all items. The rank is then the index; a rank of 1 would be a model that knows everything."""
    _, weight, _ = problem(items=101)
    targets = torch.tensor([0, 50, 100])
    for chunks in CHUNKS:
        assert target_ranks(torch.zeros(3, 17), weight, targets, None, None, *chunks).tolist() == [1, 51, 101]


def test_scores_that_are_not_finite():
    """NaN compares as false: a model that broke would have its target at rank 1 for every user."""
    inf, nan = math.inf, math.nan
    scores = torch.tensor(
        [[0.0, 1.0, nan, 2.0], [nan, 1.0, 2.0, 3.0], [inf, 1.0, 2.0, -inf], [inf, 1.0, 2.0, 3.0], [nan] * 4]
    )
    targets = [1, 0, 1, 0, 2]
    expected = [
        2,
        0,
        3,
        0,
        0,
    ]  # above 1.0 is 2.0 alone; the target is NaN; inf and 2.0; the target is inf; all are NaN
    assert target_ranks_from_scores(scores, targets).tolist() == expected
    for row, target, rank in zip(scores, targets, expected, strict=True):
        for chunks in CHUNKS:
            assert target_ranks(torch.ones(1, 1), row[:, None], [target], None, None, *chunks).tolist() == [rank]
    _, weight, _ = problem()
    for value in (nan, inf, -inf):
        states = torch.ones(2, 17)
        states[0, 3] = value
        ranks = target_ranks(states, weight, [4, 4])
        assert ranks[0] == 0
        assert ranks[1] > 0


def test_the_history_takes_no_part_but_the_target_does():
    """A repeated item is target and history both: masked, it could never be found; and no other may stay in."""
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0]] * 3)
    history = [[0, 1, 1], [0, 3], []]
    assert target_ranks_from_scores(scores, [3, 3, 3], history).tolist() == [2, 3, 4]
    assert scores.tolist() == [[5.0, 4.0, 3.0, 2.0]] * 3, "the caller's scores were changed"
    for chunks in CHUNKS:
        ranks = target_ranks(torch.ones(3, 1), scores[0][:, None], [3, 3, 3], None, history, *chunks)
        assert ranks.tolist() == [2, 3, 4]


def test_candidates_rank_as_the_full_ranking_of_them():
    """A rank by place in the shuffled list would give ties to whoever stands first in it."""
    states, weight, targets = problem()
    weight[40:80] = weight[:40]
    draws = np.random.default_rng(0)
    candidates = np.stack([draws.choice(101, 20, replace=False) for _ in targets])
    for row, target in zip(candidates, targets.tolist(), strict=True):
        if target not in row:
            row[draws.integers(20)] = target
    others = [np.setdiff1d(np.arange(101), row) for row in candidates]
    expected = by_loop(states, weight, targets, None, others)
    for chunk in (1, 6, 100):
        assert candidate_ranks(states, weight, candidates, targets, None, chunk).tolist() == expected
    bias = torch.randn(101)
    biased = by_loop(states, weight, targets, bias, others)
    assert candidate_ranks(states, weight, candidates, targets, bias).tolist() == biased
    candidates[7] = (targets[7] + 1) % 101
    with pytest.raises(DataError, match="target of user 7 is not among"):
        candidate_ranks(states, weight, candidates, targets)


@pytest.mark.parametrize("tied", [False, True])
def test_memory_is_bounded_by_the_tile(tied):
    """All scores of 100,000 users and as many items take 80 GB: a copy of them would be found only there."""
    users, items, width = 100, 500, 2
    states, weight, targets = problem(users, items, width)
    weight = torch.zeros_like(weight) if tied else weight
    with LargestTensor() as largest:
        ranks = target_ranks(states, weight, targets, None, histories(users, items), user_chunk=32, item_chunk=50)
    # States, targets and weights are what was given; all scores would be 50,000.
    assert largest.size == max(32 * 50, states.numel(), weight.numel()) == 1600
    assert len(ranks) == users


def test_autocast_and_gradients_leave_ranks_alone():
    """Under autocast a product of float32 is made in bfloat16, where half of all items tie."""
    states, weight, targets = problem()
    expected = by_loop(states, weight, targets)
    weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        assert target_ranks(states, weight, targets).tolist() == expected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"user_states": torch.zeros(3, 5)}, DataError, r"\(3, 5\) and \(6, 4\)"),
        ({"user_states": torch.zeros(3, 4, dtype=torch.float64)}, DataError, r"states are torch.float64.*\.float\(\)"),
        ({"item_weight": torch.zeros(0, 4)}, DataError, r"\(0, 4\)"),
        ({"targets": [0, 1]}, DataError, "Expected 3 targets"),
        ({"targets": [0, 1, 6]}, DataError, "target 6 does not exist: expected an index of 0 to 5"),
        ({"targets": [0, -1, 2]}, DataError, "target -1 does not exist"),
        ({"targets": [0.0, 1.0, 2.0]}, DataError, "torch.float32"),
        ({"bias": torch.zeros(4)}, DataError, r"bias of shape \(6,\), got \(4,\)"),
        ({"history": [[1], [2]]}, DataError, "history of 3 users, got 2"),
        ({"history": [[1], [2], [6]]}, DataError, "Item 6 of a history does not exist: expected 0 to 5"),
        ({"user_chunk": 0}, ConfigError, "user_chunk must be at least 1, got 0"),
        ({"item_chunk": -1}, ConfigError, "item_chunk must be at least 1, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, message):
    """A negative index counts from the end in torch: a wrong target, with a plausible rank."""
    given = {"user_states": torch.zeros(3, 4), "item_weight": torch.zeros(6, 4), "targets": [0, 1, 2]}
    assert target_ranks(**given).tolist() == [1, 2, 3]
    with pytest.raises(error, match=message):
        target_ranks(**{**given, **change})


def test_no_users_have_no_ranks():
    """An empty share of a process is not an error, and a score tensor without a row is not a reduction's."""
    assert target_ranks(torch.zeros(0, 4), torch.zeros(6, 4), torch.zeros(0, dtype=torch.long)).tolist() == []
    assert target_ranks_from_scores(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)).tolist() == []
    with pytest.raises(DataError, match="Expected scores of shape"):
        target_ranks_from_scores(torch.zeros(3), [0, 1, 2])
