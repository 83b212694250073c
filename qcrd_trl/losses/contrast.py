"""The many-to-one contrastive loss of QCRD (Wang et al., EMNLP 2025, eq. 3 to 7).

Rationales of a batch are laid out as `(questions, rationales)` with a mask, as questions have different numbers of
them. A reduction is expressed as weights over a question's rationales that sum to one and carry no gradient: one-hot
for min, max and sampling, 1/m for the mean. The reduced loss is then a weighted sum, whose gradient reaches exactly
the rationales that the equation lets it reach.
"""

from dataclasses import dataclass

import torch


REDUCTIONS = ("min_max", "max_min", "sampling", "mean", "weighted_mean")
MARGIN_TYPES = ("absolute", "relative")

# (positives, negatives) of each many-to-one reduction that the paper compares.
_PAIRS = {
    "min_max": ("min", "max"),
    "max_min": ("max", "min"),
    "sampling": ("sampling", "sampling"),
    "mean": ("mean", "mean"),
    "weighted_mean": ("weighted_mean", "weighted_mean"),
}
SIDE_REDUCTIONS = ("min", "max", "sampling", "mean", "weighted_mean")


def side_reductions(reduction: str) -> tuple[str, str]:
    """The reduction of the positives and that of the negatives which a many-to-one `reduction` stands for."""
    if reduction not in _PAIRS:
        raise ValueError(f"Unknown reduction {reduction!r}: expected one of {', '.join(REDUCTIONS)}.")
    return _PAIRS[reduction]


def reduction_weights(
    values: torch.Tensor,
    mask: torch.Tensor,
    how: str,
    quality: torch.Tensor | None = None,
    sampled: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Weights that reduce the rationales of a question to one number.

    Args:
        values (`torch.Tensor`):
            What is reduced, shape `(questions, rationales)`: losses of positives, margin-clipped losses of negatives.
        mask (`torch.Tensor`):
            Which entries exist, boolean, same shape.
        how (`str`):
            `"min"`, `"max"`, `"mean"`, `"sampling"` or `"weighted_mean"`. Ties of min and max go to the first.
        quality (`torch.Tensor`, *optional*):
            Non-negative weights before normalisation, same shape; needed by `"weighted_mean"`. A question whose
            weights are all 0 falls back on the plain mean.
        sampled (`torch.Tensor`, *optional*):
            Column drawn for each question, shape `(questions,)`; needed by `"sampling"`. A column that does not exist
            stands for a question without rationales.

    Returns:
        `torch.Tensor`: same shape, no gradient, each row sums to 1, or to 0 where the question has no rationale.
    """
    if values.shape != mask.shape:
        raise ValueError(f"`values` {tuple(values.shape)} and `mask` {tuple(mask.shape)} must have one shape.")
    values, present = values.detach(), mask.to(values.dtype)
    if values.shape[1] == 0:
        return present
    if how in ("min", "max"):
        fill = float("inf") if how == "min" else float("-inf")
        filled = values.masked_fill(~mask, fill)
        best = filled.argmin(1) if how == "min" else filled.argmax(1)
        return torch.zeros_like(present).scatter(1, best[:, None], 1.0) * present
    if how == "sampling":
        if sampled is None:
            raise ValueError("The reduction 'sampling' needs `sampled`, the column drawn for each question.")
        columns = torch.arange(mask.shape[1], device=mask.device)
        return (columns[None, :] == sampled[:, None]).to(values.dtype) * present
    if how == "mean":
        weights = present
    elif how == "weighted_mean":
        if quality is None:
            raise ValueError("The reduction 'weighted_mean' needs `quality`, a weight for each rationale.")
        weights = torch.where(mask, quality.detach().to(values.dtype), present)
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, present)
    else:
        raise ValueError(f"Unknown reduction {how!r}: expected one of {', '.join(SIDE_REDUCTIONS)}.")
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)


def clip_to_margin(
    nll: torch.Tensor, margin: float, margin_type: str = "absolute", reference: torch.Tensor | None = None
) -> torch.Tensor:
    """
    l' = min(l - delta, 0) of eq. 7: a negative that is improbable already has no gradient.

    Args:
        nll (`torch.Tensor`):
            Mean token loss of the negatives, nats, shape `(questions, negatives)`.
        margin (`float`):
            delta, nats per token.
        margin_type (`str`, *optional*, defaults to `"absolute"`):
            `"absolute"`: the threshold is delta, as printed. `"relative"`: the threshold is the loss of the question's
            own positive plus delta, so that it neither depends on the vocabulary nor on how well the task is learned.
        reference (`torch.Tensor`, *optional*):
            Loss of each question's reduced positive, shape `(questions,)`; needed by `"relative"`. It carries no
            gradient from here.

    Returns:
        `torch.Tensor`: same shape as `nll`, at most 0.
    """
    if margin_type == "absolute":
        threshold = margin
    elif margin_type == "relative":
        if reference is None:
            raise ValueError("A relative margin needs `reference`, the loss of each question's positive.")
        threshold = reference.detach()[:, None] + margin
    else:
        raise ValueError(f"Unknown margin_type {margin_type!r}: expected one of {', '.join(MARGIN_TYPES)}.")
    clipped = nll - threshold
    return torch.where(clipped >= 0, torch.zeros_like(clipped), clipped)


@dataclass
class ReducedRationales:
    """
    One side of the contrast, reduced to a number a question. Each tensor has shape `(questions,)`.

    Attributes:
        value (`torch.Tensor`): reduced loss, with gradient: l of the positives, l' of the negatives.
        nll (`torch.Tensor`): the same before the margin, without gradient.
        score (`torch.Tensor`): discriminator's score of what was picked, without gradient; 1 where there is none.
        present (`torch.Tensor`): whether the question has a rationale on this side, boolean.
        active (`torch.Tensor`): share of what was picked that lies within the margin, so that it has a gradient.
    """

    value: torch.Tensor
    nll: torch.Tensor
    score: torch.Tensor
    present: torch.Tensor
    active: torch.Tensor


def reduce_positives(
    nll: torch.Tensor,
    mask: torch.Tensor,
    how: str = "min",
    scores: torch.Tensor | None = None,
    sampled: torch.Tensor | None = None,
) -> ReducedRationales:
    """
    Many positives to one loss: min_j l(f(x), r_j) of eq. 4, or another reduction.

    Args:
        nll (`torch.Tensor`): mean token loss of the positives, nats, shape `(questions, positives)`.
        mask (`torch.Tensor`): which entries exist, boolean, same shape.
        how (`str`, *optional*, defaults to `"min"`): see [`reduction_weights`]. `"weighted_mean"` weights by score.
        scores (`torch.Tensor`, *optional*): discriminator's scores in (0, 1), same shape.
        sampled (`torch.Tensor`, *optional*): column drawn for each question, shape `(questions,)`.
    """
    weights = reduction_weights(nll, mask, how, quality=scores, sampled=sampled)
    return _reduce(nll, nll, weights, mask, scores, torch.ones_like(nll))


def reduce_negatives(
    nll: torch.Tensor,
    mask: torch.Tensor,
    how: str = "max",
    scores: torch.Tensor | None = None,
    sampled: torch.Tensor | None = None,
    margin: float = 3.0,
    margin_type: str = "absolute",
    positives: ReducedRationales | None = None,
) -> ReducedRationales:
    """
    Many negatives to one loss: max_j min(l(f(x), r_j) - delta, 0) of eq. 5 and 7, or another reduction.

    Under a relative margin a question without a positive has nothing to be relative to: its negatives are left out.

    Args:
        nll (`torch.Tensor`): mean token loss of the negatives, nats, shape `(questions, negatives)`.
        mask (`torch.Tensor`): which entries exist, boolean, same shape.
        how (`str`, *optional*, defaults to `"max"`): see [`reduction_weights`]. `"weighted_mean"`: by 1 - score.
        scores (`torch.Tensor`, *optional*): discriminator's scores in (0, 1), same shape.
        sampled (`torch.Tensor`, *optional*): column drawn for each question, shape `(questions,)`.
        margin (`float`, *optional*, defaults to `3.0`): delta, nats per token (the paper's value).
        margin_type (`str`, *optional*, defaults to `"absolute"`): see [`clip_to_margin`].
        positives ([`ReducedRationales`], *optional*): the reduced positives, needed by a relative margin.
    """
    if margin_type == "relative" and positives is not None:
        mask = mask & positives.present[:, None]
    clipped = clip_to_margin(nll, margin, margin_type, None if positives is None else positives.nll)
    quality = None if scores is None else 1 - scores
    weights = reduction_weights(clipped, mask, how, quality=quality, sampled=sampled)
    return _reduce(clipped, nll, weights, mask, scores, (clipped < 0).to(nll.dtype))


def _reduce(values, nll, weights, mask, scores, active) -> ReducedRationales:
    # `where` before the sum: a padded entry may hold anything, and 0 * inf is not 0.
    def total(tensor):
        return torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device)).mul(weights).sum(1)

    present = mask.any(1)
    score = torch.ones_like(present, dtype=values.dtype)
    if scores is not None:
        score = torch.where(present, total(scores.detach().to(values.dtype)), score)
    return ReducedRationales(total(values), total(nll.detach()), score, present, total(active))


def contrastive_loss(
    positives: ReducedRationales,
    negatives: ReducedRationales,
    beta: float,
    positive_weight: torch.Tensor | None = None,
    negative_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    L_cl of one question, eq. 3: w_pos l(f(x), S_pos) - beta w_neg l(f(x), S_neg).

    Args:
        positives ([`ReducedRationales`]): the positives of each question.
        negatives ([`ReducedRationales`]): the negatives of each question.
        beta (`float`): weight of the negatives (0.2 in the paper).
        positive_weight (`torch.Tensor`, *optional*): quality weight, shape `(questions,)`: s^pos in eq. 6.
        negative_weight (`torch.Tensor`, *optional*): quality weight, shape `(questions,)`: 1 - s^neg in eq. 7.

    Returns:
        `tuple[torch.Tensor, torch.Tensor, torch.Tensor]`: the loss, its positive part w_pos l and its negative part
        w_neg l' (at most 0), each of shape `(questions,)`. A side that a question lacks contributes exactly 0.
    """
    positive, negative = positives.value, negatives.value
    if positive_weight is not None:
        positive = positive * positive_weight.detach()
    if negative_weight is not None:
        negative = negative * negative_weight.detach()
    return positive - beta * negative, positive, negative
