"""Losses of the discriminator and the quality weights it gives (QCRD, Wang et al., EMNLP 2025, eq. 1, 2, 6, 7)."""

import torch


QUALITY_WEIGHTINGS = ("none", "printed", "normalized")
DISCRIMINATOR_LOSSES = ("ratio", "binary")


def ratio_loss(
    positive: torch.Tensor, positive_mask: torch.Tensor, negative: torch.Tensor, negative_mask: torch.Tensor
) -> torch.Tensor:
    """
    L_D of eq. 2 as printed: -log( sum_j exp(s_j^pos) / sum_j exp(s_j^neg) ), for each question.

    The sum over the negatives alone stands in the denominator, so the value depends on m and k, and may be < 0; it is
    bounded because scores lie in (0, 1).

    Args:
        positive (`torch.Tensor`): scores of the positives in (0, 1), shape `(questions, positives)`.
        positive_mask (`torch.Tensor`): which entries exist, boolean, same shape.
        negative (`torch.Tensor`): scores of the negatives in (0, 1), shape `(questions, negatives)`.
        negative_mask (`torch.Tensor`): which entries exist, boolean, same shape.

    Returns:
        `torch.Tensor`: shape `(questions,)`; exactly 0, without gradient, where a question lacks either side.
    """
    both = positive_mask.any(1) & negative_mask.any(1)
    lifted = [
        # Filled with the lowest finite number, not -inf: the logsumexp of an empty row would have a NaN gradient.
        torch.logsumexp(scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 2), dim=1)
        if scores.shape[1]
        else scores.sum(1)  # no column at all
        for scores, mask in ((positive, positive_mask), (negative, negative_mask))
    ]
    return torch.where(both, lifted[1] - lifted[0], torch.zeros_like(lifted[0]))


def binary_loss(
    positive: torch.Tensor, positive_mask: torch.Tensor, negative: torch.Tensor, negative_mask: torch.Tensor
) -> torch.Tensor:
    """
    Binary cross-entropy in place of eq. 2: the mean of -log s over positives and that of -log(1 - s) over negatives,
    averaged, so that both sides weigh the same whatever m and k are.

    Args and return value are those of [`ratio_loss`]; the value is non-negative.
    """
    both = positive_mask.any(1) & negative_mask.any(1)
    tiny = torch.finfo(positive.dtype).eps

    def side(scores, mask):
        losses = torch.where(mask, -scores.clamp(min=tiny).log(), torch.zeros_like(scores))
        return losses.sum(1) / mask.sum(1).clamp(min=1)

    loss = (side(positive, positive_mask) + side(1 - negative, negative_mask)) / 2
    return torch.where(both, loss, torch.zeros_like(loss))


def discriminator_loss(kind: str, *scores_and_masks: torch.Tensor) -> torch.Tensor:
    """L_D of each question: [`ratio_loss`] for `kind="ratio"`, [`binary_loss`] for `kind="binary"`."""
    if kind not in DISCRIMINATOR_LOSSES:
        raise ValueError(f"Unknown discriminator loss {kind!r}: expected one of {', '.join(DISCRIMINATOR_LOSSES)}.")
    return (ratio_loss if kind == "ratio" else binary_loss)(*scores_and_masks)


def quality_weights(
    score: torch.Tensor, present: torch.Tensor, weighting: str, mean: torch.Tensor | None = None
) -> torch.Tensor | None:
    """
    Weight of each question's rationale loss.

    Args:
        score (`torch.Tensor`):
            s^pos for positives (eq. 6), 1 - s^neg for negatives (eq. 7), shape `(questions,)`.
        present (`torch.Tensor`):
            Which questions have a rationale on this side, boolean, same shape.
        weighting (`str`):
            `"none"`: no weights. `"printed"`: the score itself, as in the paper, which also shrinks the loss as the
            discriminator's scores fall. `"normalized"`: the score divided by its mean over the questions with one,
            so that the weights only tell rationales apart.
        mean (`torch.Tensor`, *optional*):
            The mean to divide by, where the batch is a part of a larger one. Taken from `score` if left out.

    Returns:
        `torch.Tensor` or `None`: shape `(questions,)`, without gradient.
    """
    if weighting == "none":
        return None
    score = score.detach()
    if weighting == "printed":
        return score
    if weighting != "normalized":
        raise ValueError(f"Unknown quality weighting {weighting!r}: expected {', '.join(QUALITY_WEIGHTINGS)}.")
    if mean is None:
        mean = torch.where(present, score, torch.zeros_like(score)).sum() / present.sum().clamp(min=1)
    return score / mean.clamp(min=torch.finfo(score.dtype).eps)
