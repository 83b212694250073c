"""Many-to-one reductions, the margin and eq. 3, on numbers derived here."""

import pytest
import torch

from qcrd_trl.losses import (
    REDUCTIONS,
    SIDE_REDUCTIONS,
    clip_to_margin,
    contrastive_loss,
    reduce_negatives,
    reduce_positives,
    reduction_weights,
    side_reductions,
)


# Two questions. Losses of the first: positives 2, 1, 4; negatives 2.5, 1, 5. The second has one of each.
POSITIVE = [[2.0, 1.0, 4.0], [3.0, 0.0, 0.0]]
POSITIVE_SCORE = [[0.5, 0.25, 0.25], [0.8, 0.0, 0.0]]
NEGATIVE = [[2.5, 1.0, 5.0], [0.5, 0.0, 0.0]]
NEGATIVE_SCORE = [[0.5, 0.8, 0.7], [0.4, 0.0, 0.0]]
MASK = [[True, True, True], [True, False, False]]


def tensors(values, grad=True):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def sampled(*columns):
    return torch.tensor(columns)


def test_names_of_reductions():
    """A swapped pair would train max_min under the name min_max, with a plausible loss."""
    assert [side_reductions(name) for name in REDUCTIONS] == [
        ("min", "max"),
        ("max", "min"),
        ("sampling", "sampling"),
        ("mean", "mean"),
        ("weighted_mean", "weighted_mean"),
    ]
    with pytest.raises(ValueError, match=r"minmax.*min_max"):
        side_reductions("minmax")


@pytest.mark.parametrize(
    ("how", "value", "score", "grad"),
    [
        ("min", 1.0, 0.25, [0, 1, 0]),
        ("max", 4.0, 0.25, [0, 0, 1]),
        ("sampling", 2.0, 0.5, [1, 0, 0]),  # column 0 is drawn
        ("mean", 7 / 3, 1 / 3, [1 / 3] * 3),  # (2 + 1 + 4) / 3
        # Weights 0.5, 0.25, 0.25 sum to 1: 1 + 0.25 + 1 = 2.25; score 0.25 + 0.0625 + 0.0625.
        ("weighted_mean", 2.25, 0.375, [0.5, 0.25, 0.25]),
    ],
)
def test_positives_by_hand(how, value, score, grad):
    """A reduction whose gradient reached the wrong rationale would teach it at the right loss."""
    nll = tensors(POSITIVE)
    reduced = reduce_positives(nll, torch.tensor(MASK), how, tensors(POSITIVE_SCORE, False), sampled(0, 0))
    torch.testing.assert_close(reduced.value, torch.tensor([value, 3.0], dtype=torch.float64))
    torch.testing.assert_close(reduced.score, torch.tensor([score, 0.8], dtype=torch.float64))
    torch.testing.assert_close(reduced.nll, reduced.value.detach())
    assert reduced.present.tolist() == [True, True]
    assert reduced.active.tolist() == [pytest.approx(1.0), 1.0]
    reduced.value.sum().backward()
    torch.testing.assert_close(nll.grad, torch.tensor([grad, [1, 0, 0]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("how", "value", "nll_value", "score", "active", "grad"),
    [
        # delta 3: l' = -0.5, -2, 0 (5 is beyond the margin). The largest is 0: no gradient at all, as printed.
        ("max", 0.0, 5.0, 0.7, 0.0, [0, 0, 0]),
        ("min", -2.0, 1.0, 0.8, 1.0, [0, 1, 0]),
        ("sampling", -0.5, 2.5, 0.5, 1.0, [1, 0, 0]),
        ("mean", -2.5 / 3, 8.5 / 3, 2 / 3, 2 / 3, [1 / 3, 1 / 3, 0]),
        # 1 - s = 0.5, 0.2, 0.3 sum to 1: -0.25 - 0.4; nll 1.25 + 0.2 + 1.5; score 0.25 + 0.16 + 0.21; active 0.7.
        ("weighted_mean", -0.65, 2.95, 0.62, 0.7, [0.5, 0.2, 0]),
    ],
)
def test_negatives_by_hand(how, value, nll_value, score, active, grad):
    """A margin applied after the reduction, or weights by s in place of 1 - s, would push the wrong negatives."""
    nll = tensors(NEGATIVE)
    scores = tensors(NEGATIVE_SCORE, False)
    reduced = reduce_negatives(nll, torch.tensor(MASK), how, scores, sampled(0, 0), margin=3.0)
    torch.testing.assert_close(reduced.value, torch.tensor([value, -2.5], dtype=torch.float64))
    torch.testing.assert_close(reduced.nll, torch.tensor([nll_value, 0.5], dtype=torch.float64))
    torch.testing.assert_close(reduced.score, torch.tensor([score, 0.4], dtype=torch.float64))
    torch.testing.assert_close(reduced.active, torch.tensor([active, 1.0], dtype=torch.float64))
    reduced.value.sum().backward()
    torch.testing.assert_close(nll.grad, torch.tensor([grad, [1, 0, 0]], dtype=torch.float64))


def test_max_over_clipped_losses_within_the_margin():
    """With every negative within the margin the most probable of the l' is -0.5 of 2.5, and it alone has a gradient."""
    nll = tensors([[2.5, 1.0, 2.0]])
    reduced = reduce_negatives(nll, torch.ones(1, 3, dtype=torch.bool), "max", margin=3.0)
    reduced.value.sum().backward()
    assert reduced.value.tolist() == [-0.5]
    assert nll.grad.tolist() == [[1, 0, 0]]


def test_contrast_by_hand():
    """A wrong sign or place of beta would make negatives likelier while the loss falls."""
    mask = torch.tensor(MASK)
    pos, neg = tensors(POSITIVE), tensors(NEGATIVE)
    positives = reduce_positives(pos, mask, "min", tensors(POSITIVE_SCORE, False))
    negatives = reduce_negatives(neg, mask, "min", tensors(NEGATIVE_SCORE, False), margin=3.0)
    loss, positive, negative = contrastive_loss(positives, negatives, 0.2)
    # 1 - 0.2 * -2 = 1.4 and 3 - 0.2 * -2.5 = 3.5
    torch.testing.assert_close(loss, torch.tensor([1.4, 3.5], dtype=torch.float64))
    assert (positive.tolist(), negative.tolist()) == ([1.0, 3.0], [-2.0, -2.5])
    weighted, positive, negative = contrastive_loss(positives, negatives, 0.2, positives.score, 1 - negatives.score)
    # s^pos = 0.25, 0.8; 1 - s^neg = 0.2, 0.6: 0.25 + 0.2 * 0.4 and 2.4 + 0.2 * 1.5
    torch.testing.assert_close(positive, torch.tensor([0.25, 2.4], dtype=torch.float64))
    torch.testing.assert_close(negative, torch.tensor([-0.4, -1.5], dtype=torch.float64))
    torch.testing.assert_close(weighted, torch.tensor([0.33, 2.7], dtype=torch.float64))
    weighted.sum().backward()
    torch.testing.assert_close(pos.grad, torch.tensor([[0, 0.25, 0], [0.8, 0, 0]], dtype=torch.float64))
    # -beta (1 - s^neg): descent raises the loss of the negatives.
    torch.testing.assert_close(neg.grad, torch.tensor([[0, -0.04, 0], [-0.12, 0, 0]], dtype=torch.float64))


def test_weights_of_quality_carry_no_gradient():
    """A student that could lower its loss by moving the discriminator's scores would do that and learn nothing."""
    mask = torch.tensor(MASK)
    pos, score = tensors(POSITIVE), tensors(POSITIVE_SCORE)
    positives = reduce_positives(pos, mask, "weighted_mean", score)
    negatives = reduce_negatives(tensors(NEGATIVE), mask, "weighted_mean", score)
    for reduced in (positives, negatives):
        assert reduced.value.requires_grad
        assert not any(t.requires_grad for t in (reduced.score, reduced.nll, reduced.active))
    weight = tensors([0.5, 2.0])
    contrastive_loss(positives, negatives, 0.2, weight, weight)[0].sum().backward()
    assert pos.grad.abs().sum() > 0
    assert score.grad is None
    assert weight.grad is None


@pytest.mark.parametrize("how", SIDE_REDUCTIONS)
@pytest.mark.parametrize("width", [0, 2])
def test_a_missing_side_is_exactly_zero(how, width):
    """Questions without negatives must get the positive part and nothing else; without positives, no 0/0."""
    pos, absent = tensors([[2.0], [3.0]]), tensors([[9.0] * width] * 2)
    scores = tensors([[0.5], [0.5]], False)
    there, nowhere = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, width, dtype=torch.bool)
    drawn = sampled(0, 0)
    positives = reduce_positives(pos, there, how, scores, drawn)
    none = reduce_negatives(absent, nowhere, how, absent.detach(), drawn, margin=3.0)
    loss, positive, negative = contrastive_loss(positives, none, 0.2, positives.score, 1 - none.score)
    assert loss.tolist() == positive.tolist() == [1.0, 1.5]
    assert negative.tolist() == [0, 0]
    assert not none.present.any()
    empty = reduce_positives(absent, nowhere, how, absent.detach(), drawn)
    assert (empty.value.tolist(), empty.score.tolist(), empty.active.tolist()) == ([0, 0], [1, 1], [0, 0])
    assert not empty.present.any()
    (loss.sum() + empty.value.sum()).backward()
    assert pos.grad.tolist() == [[0.5], [0.5]]
    assert absent.grad is None or not absent.grad.any()


@pytest.mark.parametrize("padding", [float("inf"), float("-inf"), float("nan"), 1e300])
@pytest.mark.parametrize("how", SIDE_REDUCTIONS)
def test_padding_may_hold_anything(how, padding):
    """0 * inf is NaN: one padded column would turn the whole loss, or the weights of its row, into something else."""
    mask = torch.tensor([[True, True, False], [False, False, False]])

    def both_sides(fill):
        nll = tensors([[2.0, 1.0, fill], [fill] * 3])
        scores = tensors([[0.75, 0.25, fill], [fill] * 3], False)
        drawn = sampled(1, 0)
        positives = reduce_positives(nll, mask, how, scores, drawn)
        negatives = reduce_negatives(nll, mask, how, scores, drawn, 0.5, "relative", positives)
        (positives.value - 0.3 * negatives.value).sum().backward()
        sides = [positives, negatives]
        return [nll.grad, *(t for s in sides for t in (s.value, s.nll, s.score, s.present, s.active))]

    expected = both_sides(0.0)
    assert expected[0][0].abs().sum() > 0
    for got, wanted in zip(both_sides(padding), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_relative_margin_by_hand():
    """The threshold is the reduced positive's loss plus delta; were it to carry gradient, negatives would undo it."""
    mask = torch.tensor([[True, True], [True, False]])
    pos, neg = tensors([[2.0, 1.0], [3.0, 0.0]]), tensors([[1.4, 1.2], [4.0, 0.0]])
    positives = reduce_positives(pos, mask, "min")
    negatives = reduce_negatives(neg, mask, "max", margin=0.5, margin_type="relative", positives=positives)
    # thresholds 1 + 0.5 and 3 + 0.5: l' = -0.1, -0.3 and 0 (4.0 is beyond)
    torch.testing.assert_close(negatives.value, torch.tensor([-0.1, 0.0], dtype=torch.float64))
    assert negatives.active.tolist() == [1, 0]
    negatives.value.sum().backward()
    assert pos.grad is None
    assert neg.grad.tolist() == [[1, 0], [0, 0]]
    reference = tensors([1.0, 3.0])
    clip_to_margin(neg, 0.5, "relative", reference).sum().backward()
    assert reference.grad is None


def test_relative_margin_without_a_positive():
    """Negatives of a question without a positive have no threshold: measured from 0 they would be pushed for nothing."""
    neg = tensors([[0.2], [0.2]])
    mask = torch.tensor([[True], [False]])
    positives = reduce_positives(tensors([[1.0], [7.0]]), mask)
    negatives = reduce_negatives(
        neg, torch.ones(2, 1, dtype=torch.bool), margin=0.5, margin_type="relative", positives=positives
    )
    negatives.value.sum().backward()
    assert negatives.present.tolist() == [True, False]
    assert negatives.value.tolist() == [pytest.approx(-1.3), 0]
    assert neg.grad.tolist() == [[1], [0]]


def test_margin_gradient():
    """Beyond delta there is no gradient, at delta neither: that is where the share beyond the margin begins to count."""
    nll = tensors([[2.9, 3.0, 3.1]])
    clipped = clip_to_margin(nll, 3.0)
    clipped.sum().backward()
    torch.testing.assert_close(clipped, torch.tensor([[-0.1, 0, 0]], dtype=torch.float64))
    assert nll.grad.tolist() == [[1, 0, 0]]


def test_ties_go_to_the_first():
    """A tie split by chance would make a resumed run differ from the run that was never stopped."""
    values = tensors([[2.0, 1.0, 1.0, 2.0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    assert reduction_weights(values, mask, "min").tolist() == [[0, 1, 0, 0]]
    assert reduction_weights(values, mask, "max").tolist() == [[1, 0, 0, 0]]
    assert reduction_weights(values, torch.tensor([[False, False, True, True]]), "min").tolist() == [[0, 0, 1, 0]]


def test_weighted_mean_without_weight_is_the_mean():
    """Scores that are all 0 (a saturated discriminator) would divide 0 by 0."""
    zero = torch.zeros(1, 2, dtype=torch.float64)
    weights = reduction_weights(tensors([[2.0, 4.0]]), torch.ones(1, 2, dtype=torch.bool), "weighted_mean", zero)
    assert weights.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda v, m: reduction_weights(v, m[:, :1], "min"), "one shape"),
        (lambda v, m: reduction_weights(v, m, "median"), "median.*expected one of min"),
        (lambda v, m: reduction_weights(v, m, "sampling"), "needs `sampled`"),
        (lambda v, m: reduction_weights(v, m, "weighted_mean"), "needs `quality`"),
        (lambda v, m: clip_to_margin(v, 3.0, "relative"), "needs `reference`"),
        (lambda v, m: clip_to_margin(v, 3.0, "soft"), "soft.*absolute"),
    ],
)
def test_errors_say_what_is_missing(call, text):
    """An unknown name that fell through to a default would run another method under the user's name for it."""
    with pytest.raises(ValueError, match=text):
        call(tensors([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool))
