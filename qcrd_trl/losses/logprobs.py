"""Token losses of many rows at once, kept ragged: one entry a supervised token, and the row it belongs to."""

import math
from dataclasses import dataclass

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


# Logits held at a time, in numbers: 48 MiB, and 256 on a GPU, which needs more tokens to fill a matrix product. But with few
# tokens a product takes its time for reading the head: on a CPU 48 of a vocabulary of 262,144 cost 1.4 times what 128 do.
_TILE_NUMBERS = {"cpu": 3 * 2**22, "other": 2**26}
_LEAST_TOKENS = {"cpu": 128, "other": 256}


def tile_tokens(num_tokens: int, vocabulary: int, device: torch.device) -> int:
    """
    How many tokens' logits are best computed at a time (examples/benchmarks/tiles.py measures it).

    Args:
        num_tokens (`int`): tokens in all.
        vocabulary (`int`): logits of a token.
        device (`torch.device`): where they are computed.

    Returns:
        `int`: as many as memory allows, but at least 128 on a CPU and 256 on a GPU; where that is fewer than all, tiles of
        about equal size instead of a small last one.
    """
    kind = "cpu" if device.type == "cpu" else "other"
    most = max(_TILE_NUMBERS[kind] // vocabulary, _LEAST_TOKENS[kind])
    return most if num_tokens <= most else math.ceil(num_tokens / math.ceil(num_tokens / most))


@dataclass(frozen=True)
class LogitForm:
    """
    What a model makes of its last hidden states on the way to logits: `cap * tanh(scale * (states @ weight.T + bias) / cap)`.

    Attributes:
        scale (`float`): factor on the logits (Cohere, Granite).
        softcap (`float` or `None`): bound of the logits (Gemma 2).
        dtype (`torch.dtype` or `None`): type of the matrix products; that of the states if `None`.
    """

    scale: float = 1.0
    softcap: float | None = None
    dtype: torch.dtype | None = None


def states_nll(
    states: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None = None,
    form: LogitForm | None = None,
    predicts: bool = False,
    tile: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Negative log-likelihood of each target token, from the states that predict them, without ever holding all logits.

    Tokens are taken a few at a time, each with the whole vocabulary. With a frozen head the gradient with respect to the
    states, which is that of one token times a number that only comes later, is taken in the same sweep: as many matrix
    products as with full logits. With a trained head the logits are computed once more in the backward pass, of the
    tokens alone whose loss has a gradient; those of a single tile are held instead.

    Args:
        states (`torch.Tensor`): last hidden states, shape `(num_tokens, hidden_size)`.
        weight (`torch.Tensor`): the head's weight, shape `(vocabulary, hidden_size)`.
        targets (`torch.Tensor`): token ids, shape `(num_tokens,)`.
        bias (`torch.Tensor`, *optional*): shape `(vocabulary,)`.
        form ([`LogitForm`], *optional*): scale, cap and type of the logits.
        predicts (`bool`, *optional*, defaults to `False`): whether to find the likeliest tokens too.
        tile (`int`, *optional*): tokens at a time; chosen by device and vocabulary if left out.

    Returns:
        `tuple[torch.Tensor, torch.Tensor | None]`: nats in float32, and the likeliest tokens, both of shape `(num_tokens,)`.
    """
    if states.ndim != 2 or targets.shape != states.shape[:1] or weight.shape[1:] != states.shape[1:]:
        raise ValueError(
            "`states` must be (num_tokens, hidden_size), `weight` (vocabulary, hidden_size) and `targets` (num_tokens,); got "
            f"{tuple(states.shape)}, {tuple(weight.shape)} and {tuple(targets.shape)}."
        )
    if tile is None:
        tile = tile_tokens(len(targets), weight.shape[0], states.device)
    form = LogitForm() if form is None else form
    trains_head = weight.requires_grad or (bias is not None and bias.requires_grad)
    ahead = torch.is_grad_enabled() and states.requires_grad and not trains_head
    holds = torch.is_grad_enabled() and trains_head and len(targets) <= tile
    nll, predicted = _StatesNLL.apply(states, weight, bias, targets, form, predicts, tile, ahead, holds)
    return nll, predicted if predicts else None


def head_logits(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, form: LogitForm | None = None
) -> torch.Tensor:
    """All logits in float32, shape `(num_tokens, vocabulary)`, without gradient; arguments as for [`states_nll`]."""
    with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
        return _Head(weight, bias, form or LogitForm(), states.dtype).logits(states, False)[0]


class _StatesNLL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, weight, bias, targets, form, predicts, tile, ahead, holds):
        nll = torch.empty(targets.shape, dtype=torch.float32, device=states.device)
        predicted = torch.zeros_like(targets)
        slopes = torch.empty_like(states) if ahead else None
        held = None
        with torch.autocast(states.device.type, enabled=False):
            head = _Head(weight, bias, form, states.dtype)
            for start in range(0, len(targets), tile):
                rows = slice(start, start + tile)
                logits, slope = head.logits(states[rows], ahead or holds)
                if predicts:
                    predicted[rows] = logits.argmax(-1)
                logprobs = torch.log_softmax(logits, -1)
                nll[rows] = -logprobs.gather(1, targets[rows, None])[:, 0]
                if ahead:
                    slopes[rows] = head.to_states(_logit_gradient(logprobs, targets[rows], slope))
                elif holds:
                    held = _logit_gradient(logprobs, targets, slope)
        ctx.save_for_backward(slopes, *(() if ahead else (states, weight, bias, targets, held)))
        ctx.settings = (form, tile)
        ctx.mark_non_differentiable(predicted)
        return nll, predicted

    @staticmethod
    def backward(ctx, gradient, _):
        slopes, *rest = ctx.saved_tensors
        if slopes is not None:
            return ((slopes.float() * gradient[:, None]).to(slopes.dtype), *([None] * 8))
        (states, weight, bias, targets, held), (form, tile) = rest, ctx.settings
        to_states, to_weight, to_bias = ctx.needs_input_grad[:3]
        d_states = torch.zeros_like(states) if to_states else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        with torch.autocast(states.device.type, enabled=False):
            head = _Head(weight, bias, form, states.dtype)
            # Rationales that were not picked have a gradient of 0: nothing of theirs is computed again.
            for rows in gradient.nonzero()[:, 0].split(tile):
                chosen = states[rows]
                if held is None:
                    logits, slope = head.logits(chosen, True)
                    d_logits = _logit_gradient(torch.log_softmax(logits, -1), targets[rows], slope)
                else:
                    d_logits = held[rows]
                d_logits.mul_(gradient[rows, None])
                if to_states:
                    d_states[rows] = head.to_states(d_logits).to(states.dtype)
                if to_weight:
                    head.add_to_weight(d_weight, d_logits, chosen)
                if to_bias:
                    d_bias += d_logits.sum(0)
        d_weight = None if d_weight is None else d_weight.to(weight.dtype)
        return d_states, d_weight, None if d_bias is None else d_bias.to(bias.dtype), *([None] * 6)


class _Head:
    """The matrix products of one sweep; the weight is cast once."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, form: LogitForm, dtype: torch.dtype):
        self.dtype = form.dtype or dtype
        self.weight, self.bias, self.form = weight.to(self.dtype), bias, form

    def logits(self, states: torch.Tensor, with_slope: bool) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Logits in float32, shape `(tokens, vocabulary)`, and their derivative by those of the bare head."""
        logits = torch.mm(states.to(self.dtype), self.weight.t()).float()
        if self.bias is not None:
            logits += self.bias
        slope, cap = self.form.scale, self.form.softcap
        if slope != 1.0:
            logits *= slope
        if cap is not None:
            logits = logits.div_(cap).tanh_()
            slope = (1 - logits * logits).mul_(slope) if with_slope else None
            logits.mul_(cap)
        return logits, slope

    def to_states(self, d_logits: torch.Tensor) -> torch.Tensor:
        return torch.mm(d_logits.to(self.dtype), self.weight)

    def add_to_weight(self, total: torch.Tensor, d_logits: torch.Tensor, states: torch.Tensor) -> None:
        if self.dtype == torch.float32:
            total.addmm_(d_logits.t(), states.float())
        else:
            total += torch.mm(d_logits.t().to(self.dtype), states.to(self.dtype))


def _logit_gradient(logprobs: torch.Tensor, targets: torch.Tensor, slope: torch.Tensor | float) -> torch.Tensor:
    """Gradient of each token's loss by the logits of the bare head, in place of the log-probabilities."""
    gradient = logprobs.exp_()
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    return gradient.mul_(slope) if torch.is_tensor(slope) or slope != 1.0 else gradient
