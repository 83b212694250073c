"""Losses of the discriminator (eq. 2) and the weights that its scores give."""

import math
import random

import pytest
import torch

from qcrd_trl.losses import DISCRIMINATOR_LOSSES, binary_loss, discriminator_loss, quality_weights, ratio_loss


# Questions with 2 and 2, 1 and 2, 2 and 0, 0 and 1 rationales: the last two lack a side.
POSITIVE, POSITIVE_COUNT = [[0.8, 0.6], [0.5, 0.0], [0.7, 0.9], [0.0, 0.0]], [2, 1, 2, 0]
NEGATIVE, NEGATIVE_COUNT = [[0.3, 0.4], [0.2, 0.9], [0.0, 0.0], [0.4, 0.0]], [2, 2, 0, 1]


def sides(fill=0.0, dtype=torch.float64):
    """Scores and masks of both sides, `fill` where there is no rationale."""
    made = []
    for rows, counts in ((POSITIVE, POSITIVE_COUNT), (NEGATIVE, NEGATIVE_COUNT)):
        mask = torch.tensor([[j < count for j in range(2)] for count in counts])
        scores = torch.tensor(rows, dtype=dtype).masked_fill(~mask, fill).requires_grad_()
        made += [scores, mask]
    return made


def test_ratio_by_hand():
    """With the positives left in, or out of, the wrong sum the loss would fall as negatives score higher."""
    positive, positive_mask, negative, negative_mask = sides()
    loss = ratio_loss(positive, positive_mask, negative, negative_mask)
    e = math.exp
    expected = [
        -math.log((e(0.8) + e(0.6)) / (e(0.3) + e(0.4))),
        -math.log(e(0.5) / (e(0.2) + e(0.9))),
        0.0,
        0.0,
    ]
    assert loss.tolist() == pytest.approx(expected, rel=1e-12)
    assert expected[0] < 0 < expected[1]  # as printed, the value is no cross-entropy: its sign depends on m and k
    loss.sum().backward()
    # d/ds of -log sum exp is minus the softmax over the positives, that of the denominator plus the softmax.
    low, high = e(0.6) / (e(0.8) + e(0.6)), e(0.8) / (e(0.8) + e(0.6))
    torch.testing.assert_close(
        positive.grad, torch.tensor([[-high, -low], [-1, 0], [0, 0], [0, 0]], dtype=torch.float64)
    )
    first, second = e(0.3) / (e(0.3) + e(0.4)), e(0.2) / (e(0.2) + e(0.9))
    torch.testing.assert_close(
        negative.grad,
        torch.tensor([[first, 1 - first], [second, 1 - second], [0, 0], [0, 0]], dtype=torch.float64),
    )


def test_binary_by_hand():
    """A plain mean over rationales would let the more frequent side decide; labels swapped would invert every score."""
    positive, positive_mask, negative, negative_mask = sides()
    loss = binary_loss(positive, positive_mask, negative, negative_mask)
    log = math.log
    expected = [
        ((-log(0.8) - log(0.6)) / 2 + (-log(0.7) - log(0.6)) / 2) / 2,
        (-log(0.5) + (-log(0.8) - log(0.1)) / 2) / 2,
        0.0,
        0.0,
    ]
    assert loss.tolist() == pytest.approx(expected, rel=1e-12)
    loss.sum().backward()
    # -1 / (4 s) where the side has two, -1 / (2 s) where it has one; 1 / (4 (1 - s)) for negatives.
    torch.testing.assert_close(
        positive.grad, torch.tensor([[-1 / 3.2, -1 / 2.4], [-1, 0], [0, 0], [0, 0]], dtype=torch.float64)
    )
    torch.testing.assert_close(
        negative.grad, torch.tensor([[1 / 2.8, 1 / 2.4], [1 / 3.2, 1 / 0.4], [0, 0], [0, 0]], dtype=torch.float64)
    )


def loop(kind, positive, negative):
    if not positive or not negative:
        return 0.0
    if kind == "ratio":
        return -math.log(sum(map(math.exp, positive)) / sum(map(math.exp, negative)))
    gains = [-sum(map(math.log, positive)) / len(positive), -sum(math.log(1 - s) for s in negative) / len(negative)]
    return sum(gains) / 2


@pytest.mark.parametrize("kind", DISCRIMINATOR_LOSSES)
def test_equals_the_loop(kind):
    """Ragged sides of other widths than each other: a mask of one side applied to both would go unseen in a square."""
    rng = random.Random(0)
    counts = [(0, 0), (3, 0), (0, 5), *((rng.randint(1, 3), rng.randint(1, 5)) for _ in range(12))]
    rows = [
        ([rng.uniform(0.01, 0.99) for _ in range(m)], [rng.uniform(0.01, 0.99) for _ in range(k)]) for m, k in counts
    ]
    made = []
    for side, width in ((0, 3), (1, 5)):
        scores = [row[side] + [0.0] * (width - len(row[side])) for row in rows]
        mask = [[j < len(row[side]) for j in range(width)] for row in rows]
        made += [torch.tensor(scores, dtype=torch.float64, requires_grad=True), torch.tensor(mask)]
    loss = discriminator_loss(kind, *made)
    assert loss.tolist() == pytest.approx([loop(kind, *row) for row in rows], abs=1e-12)
    loss.sum().backward()
    eps = 1e-6
    for side, scores in ((0, made[0]), (1, made[2])):
        for i, row in enumerate(rows):
            for j in range(len(row[side])):
                ends = []
                for change in (eps, -eps):
                    moved = [list(row[0]), list(row[1])]
                    moved[side][j] += change
                    ends.append(loop(kind, *moved))
                assert scores.grad[i, j].item() == pytest.approx((ends[0] - ends[1]) / (2 * eps), abs=1e-6)
            assert not scores.grad[i, len(row[side]) :].any()


@pytest.mark.parametrize("padding", [1e9, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", DISCRIMINATOR_LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_may_hold_anything(kind, padding, dtype):
    """A NaN from an entry that does not exist would reach every weight of the discriminator in one step."""
    results = []
    for fill in (0.0, padding):
        made = sides(fill, dtype)
        loss = discriminator_loss(kind, *made)
        loss.sum().backward()
        results.append((loss, made[0].grad, made[2].grad))
    assert all(tensor.any() for tensor in results[0])
    for got, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("padding", [0.0, float("nan")])
@pytest.mark.parametrize("width", [0, 2])
@pytest.mark.parametrize("kind", DISCRIMINATOR_LOSSES)
def test_no_question_with_both_sides(kind, width, padding):
    """A batch without a negative is usual at first: it must teach nothing, and must still be differentiable."""
    positive = torch.full((3, 2), 0.5, requires_grad=True)
    negative = torch.full((3, width), padding, requires_grad=True)
    nowhere = torch.zeros(3, width, dtype=torch.bool)
    loss = discriminator_loss(kind, positive, torch.ones(3, 2, dtype=torch.bool), negative, nowhere)
    assert loss.tolist() == [0, 0, 0]
    loss.sum().backward()
    assert positive.grad is None or not positive.grad.any()
    assert negative.grad is None or not negative.grad.any()


def test_binary_of_saturated_scores_is_finite():
    """A score that rounds to 1 in float32 gives log 0: the loss would be infinite, and NaN a step later."""
    one = torch.ones(1, 1, requires_grad=True)
    there = torch.ones(1, 1, dtype=torch.bool)
    loss = binary_loss(1 - one, there, one, there)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-math.log(torch.finfo(torch.float32).eps), rel=1e-6)
    assert torch.isfinite(one.grad).all()


def test_unknown_loss():
    """A misspelt name must not fall through to the other loss."""
    with pytest.raises(ValueError, match=r"bce.*expected one of ratio, binary"):
        discriminator_loss("bce", *sides())


SCORE, PRESENT = [0.2, 0.6, 1.0], [True, True, False]


def test_quality_weights_by_hand():
    """Normalised over the third question too, which has no rationale, the weights of the two would not average 1."""
    score, present = torch.tensor(SCORE, dtype=torch.float64, requires_grad=True), torch.tensor(PRESENT)
    assert quality_weights(score, present, "none") is None
    assert quality_weights(score, present, "printed").tolist() == SCORE
    weights = quality_weights(score, present, "normalized")
    assert weights[:2].tolist() == pytest.approx([0.5, 1.5])  # divided by (0.2 + 0.6) / 2
    assert weights[:2].mean().item() == pytest.approx(1.0, abs=1e-15)
    assert not weights.requires_grad
    assert not quality_weights(score, present, "printed").requires_grad


def test_quality_weights_of_a_part_of_the_batch():
    """A micro-batch that took its own mean would weight a question by its neighbours."""
    weights = quality_weights(torch.tensor([0.2]), torch.tensor([True]), "normalized", mean=torch.tensor(0.4))
    assert weights.tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("scores", [[1.0, 1.0], [0.0, 0.0]])
def test_quality_weights_where_nobody_has_a_rationale(scores):
    """The mean of nothing is 0/0."""
    weights = quality_weights(torch.tensor(scores), torch.tensor([False, False]), "normalized")
    assert torch.isfinite(weights).all()


def test_unknown_weighting():
    """A misspelt name must not mean no weights."""
    with pytest.raises(ValueError, match=r"normalised.*none, printed, normalized"):
        quality_weights(torch.tensor([0.5]), torch.tensor([True]), "normalised")
