"""Eq. 3 to 7 against a slow loop over plain Python floats, values and gradients, on random ragged batches."""

import itertools
import random

import pytest
import torch

from qcrd_trl.losses import (
    MARGIN_TYPES,
    QUALITY_WEIGHTINGS,
    REDUCTIONS,
    contrastive_loss,
    quality_weights,
    reduce_negatives,
    reduce_positives,
    side_reductions,
)


BETA, MARGIN = 0.3, {"absolute": 2.5, "relative": 0.4}
PADDING = 1e9  # what stands in entries that do not exist


def random_batch(seed):
    """Losses and scores of each question's rationales; the first four cover every case of a missing side."""
    rng = random.Random(seed)
    counts = [(0, 0), (2, 0), (0, 3), (1, 1)] + [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(6)]
    batch = []
    for m, k in counts:
        sides = []
        for count in (m, k):
            sides.append([rng.uniform(0.2, 4.0) for _ in range(count)])
            sides.append([rng.uniform(0.05, 0.95) for _ in range(count)])
        drawn = [rng.randrange(count) if count else 0 for count in (m, k)]
        batch.append((*sides, drawn))
    return batch


def shares(values, how, weights, drawn):
    """How much of each rationale is in the reduced one."""
    indices = range(len(values))
    if how == "mean":
        return [1 / len(values) for _ in indices]
    if how == "weighted_mean":
        return [weight / sum(weights) for weight in weights]
    extreme = {"min": min, "max": max}.get(how)
    chosen = extreme(indices, key=lambda j: values[j]) if extreme else drawn  # the first of equals
    return [float(j == chosen) for j in indices]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def reduce_question(question, reduction, margin_type, threshold=None):
    """`(l, s^pos, l', 1 - s^neg)` of one question, and the threshold of its margin; None for a side that is absent."""
    positive, positive_score, negative, negative_score, drawn = question
    how_positive, how_negative = side_reductions(reduction)
    pos = neg = None
    if positive:
        share = shares(positive, how_positive, positive_score, drawn[0])
        pos = (dot(share, positive), dot(share, positive_score))
    if threshold is None:
        threshold = MARGIN[margin_type] + (pos[0] if margin_type == "relative" and pos else 0)
    if negative and (pos or margin_type == "absolute"):
        clipped = [min(loss - threshold, 0) for loss in negative]
        quality = [1 - score for score in negative_score]
        share = shares(clipped, how_negative, quality, drawn[1])
        neg = (dot(share, clipped), dot(share, quality))
    return pos, neg, threshold


def loop_weights(sides, weighting):
    """Weight of each question: 1, its quality, or its quality over the mean of the questions with that side."""
    qualities = [side[1] for side in sides if side]
    if weighting == "none":
        return [1.0 for _ in sides]
    mean = sum(qualities) / len(qualities) if weighting == "normalized" else 1.0
    return [side[1] / mean if side else 0.0 for side in sides]


def loop_loss(batch, reduction, margin_type, weighting, thresholds=None, weights=None):
    """Eq. 3 summed over questions. `thresholds` and `weights` hold fixed what carries no gradient."""
    thresholds = thresholds or [None] * len(batch)
    reduced = [
        reduce_question(question, reduction, margin_type, threshold)
        for question, threshold in zip(batch, thresholds, strict=True)
    ]
    positives, negatives = [r[0] for r in reduced], [r[1] for r in reduced]
    if weights is None:
        weights = [loop_weights(positives, weighting), loop_weights(negatives, weighting)]
    losses = [
        (w_pos * pos[0] if pos else 0.0) - BETA * (w_neg * neg[0] if neg else 0.0)
        for pos, neg, w_pos, w_neg in zip(positives, negatives, *weights, strict=True)
    ]
    return losses, [r[2] for r in reduced], weights


def loop_gradient(batch, side, reduction, margin_type, weighting, eps=1e-6):
    """Central differences of the summed loss by every loss of a side (0: positives, 2: negatives)."""
    _, thresholds, weights = loop_loss(batch, reduction, margin_type, weighting)

    def total(i, j, change):
        moved = [list(question) for question in batch]
        moved[i][side] = [v + change * (n == j) for n, v in enumerate(moved[i][side])]
        return sum(loop_loss(moved, reduction, margin_type, weighting, thresholds, weights)[0])

    return [
        [(total(i, j, eps) - total(i, j, -eps)) / (2 * eps) for j in range(len(question[side]))]
        for i, question in enumerate(batch)
    ]


def table(rows, fill):
    width = max(map(len, rows))
    values = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.float64)
    mask = torch.tensor([[j < len(row) for j in range(width)] for row in rows])
    return values, mask


def package_loss(batch, reduction, margin_type, weighting):
    pos, pos_mask = table([question[0] for question in batch], PADDING)
    neg, neg_mask = table([question[2] for question in batch], PADDING)
    pos_score, neg_score = (table([question[n] for question in batch], 0.0)[0] for n in (1, 3))
    pos.requires_grad_()
    neg.requires_grad_()
    drawn = [torch.tensor([question[4][n] for question in batch]) for n in (0, 1)]
    how_positive, how_negative = side_reductions(reduction)
    positives = reduce_positives(pos, pos_mask, how_positive, pos_score, drawn[0])
    negatives = reduce_negatives(
        neg, neg_mask, how_negative, neg_score, drawn[1], MARGIN[margin_type], margin_type, positives
    )
    weights = (
        quality_weights(positives.score, positives.present, weighting),
        quality_weights(1 - negatives.score, negatives.present, weighting),
    )
    loss = contrastive_loss(positives, negatives, BETA, *weights)[0]
    loss.sum().backward()
    return loss.tolist(), pos.grad.tolist(), neg.grad.tolist()


@pytest.mark.parametrize(
    ("reduction", "margin_type", "weighting"), list(itertools.product(REDUCTIONS, MARGIN_TYPES, QUALITY_WEIGHTINGS))
)
def test_equals_the_loop(reduction, margin_type, weighting):
    """A vectorised reduction can be wrong only where m and k are ragged, or only in its gradient, and still train."""
    pushed = beyond = 0
    for seed in range(3):
        batch = random_batch(seed)
        losses, pos_grad, neg_grad = package_loss(batch, reduction, margin_type, weighting)
        assert losses == pytest.approx(loop_loss(batch, reduction, margin_type, weighting)[0], abs=1e-12)
        for side, grads in ((0, pos_grad), (2, neg_grad)):
            for got, wanted in zip(grads, loop_gradient(batch, side, reduction, margin_type, weighting), strict=True):
                assert got[: len(wanted)] == pytest.approx(wanted, abs=1e-8)
                assert not any(got[len(wanted) :])
        flat = [value for row in neg_grad for value in row]
        pushed += sum(value < 0 for value in flat)
        assert not any(value > 0 for value in flat)
        beyond += sum(loss == 0 for loss in losses)
    assert pushed > 0
    assert beyond >= 3  # the question without any rationale, once a seed
