"""Pure tensor functions: nothing here knows a model, a tokenizer or a trainer."""

from .contrast import (
    MARGIN_TYPES,
    REDUCTIONS,
    SIDE_REDUCTIONS,
    ReducedRationales,
    clip_to_margin,
    contrastive_loss,
    reduce_negatives,
    reduce_positives,
    reduction_weights,
    side_reductions,
)
from .logprobs import LogitForm, head_logits, mean_per_row, states_nll, token_nll
from .quality import (
    DISCRIMINATOR_LOSSES,
    QUALITY_WEIGHTINGS,
    binary_loss,
    discriminator_loss,
    quality_weights,
    ratio_loss,
)


__all__ = [
    "DISCRIMINATOR_LOSSES",
    "MARGIN_TYPES",
    "QUALITY_WEIGHTINGS",
    "REDUCTIONS",
    "SIDE_REDUCTIONS",
    "LogitForm",
    "ReducedRationales",
    "binary_loss",
    "clip_to_margin",
    "contrastive_loss",
    "discriminator_loss",
    "head_logits",
    "mean_per_row",
    "quality_weights",
    "ratio_loss",
    "reduce_negatives",
    "reduce_positives",
    "reduction_weights",
    "side_reductions",
    "states_nll",
    "token_nll",
]
