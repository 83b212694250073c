"""Token losses of many rows at once, kept ragged: one entry a supervised token, and the row it belongs to."""

import torch
import torch.nn.functional as F


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Negative log-likelihood of each target token, computed in float32.

    Args:
        logits (`torch.Tensor`):
            Scores before the softmax, shape `(num_tokens, vocabulary)`, any floating type.
        targets (`torch.Tensor`):
            Token ids, shape `(num_tokens,)`.

    Returns:
        `torch.Tensor`: shape `(num_tokens,)`, in nats, non-negative.
    """
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"`logits` must be (num_tokens, vocabulary) and `targets` (num_tokens,); got {tuple(logits.shape)} and "
            f"{tuple(targets.shape)}."
        )
    return F.cross_entropy(logits.float(), targets, reduction="none")


def mean_per_row(values: torch.Tensor, row: torch.Tensor, num_rows: int) -> torch.Tensor:
    """
    Mean of the values of each row: l(f(x), r) of QCRD when the values are token losses (Wang et al., 2025, section 3).

    Args:
        values (`torch.Tensor`):
            One number a token, shape `(num_tokens,)`.
        row (`torch.Tensor`):
            Row of each token, integers in `[0, num_rows)`, shape `(num_tokens,)`.
        num_rows (`int`):
            Number of rows. A row without a token gets 0, never 0/0.

    Returns:
        `torch.Tensor`: shape `(num_rows,)`.
    """
    total = values.new_zeros(num_rows).index_add(0, row, values)
    count = values.new_zeros(num_rows).index_add(0, row, torch.ones_like(values))
    return total / count.clamp(min=1)
