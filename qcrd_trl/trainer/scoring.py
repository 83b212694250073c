"""The student's loss on rows of prompt and completion: forward passes whose head sees the supervised tokens alone."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..errors import ModelError
from ..losses import mean_per_row, token_nll
from .head import StudentHead


@dataclass
class RowScores:
    """
    What forward passes tell of each row.

    Attributes:
        nll (`torch.Tensor`): mean token loss of each row's completion, nats, with gradient, shape `(rows,)`.
        num_tokens (`torch.Tensor`): supervised tokens of each row, shape `(rows,)`.
        states (`torch.Tensor`): detached last hidden states that predict them, shape `(tokens, hidden_size)`.
        row (`torch.Tensor`): row of each supervised token, shape `(tokens,)`.
        predicted (`torch.Tensor` or `None`): likeliest token at each of them, shape `(tokens,)`, where asked for.
        anchor (`torch.Tensor`): 0 with a graph that reaches the whole model, so that every process has gradients.
        pooled (`torch.Tensor` or `None`): what the discriminator makes of each row's states, shape `(rows, hidden_size)`;
            set by who has one, and all that it needs.
    """

    nll: torch.Tensor
    num_tokens: torch.Tensor
    states: torch.Tensor
    row: torch.Tensor
    predicted: torch.Tensor | None
    anchor: torch.Tensor
    pooled: torch.Tensor | None = None


@dataclass
class ForwardPass:
    """
    What one forward pass is given.

    Attributes:
        inputs (`dict[str, Any]`): arguments of the student.
        supervised (`torch.Tensor`): positions whose states predict a token, boolean, shape `(rows, length)`.
        targets (`torch.Tensor`): the tokens they predict, shape `(tokens,)`.
        row (`torch.Tensor`): row that each of them belongs to, as the caller numbers rows, shape `(tokens,)`.
        encoded (`torch.Tensor` or `None`): row of the encoder's output that each row of the decoder reads, where the
            encoder is run once for several.
    """

    inputs: dict[str, Any]
    supervised: torch.Tensor
    targets: torch.Tensor
    row: torch.Tensor
    encoded: torch.Tensor | None = None


def flat_pass(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
    row: torch.Tensor | None = None,
) -> ForwardPass:
    """
    A pass with one row for each prompt and completion.

    Args:
        input_ids (`torch.Tensor`):
            Shape `(rows, length)`, at least one row; the encoder's input if there is one.
        attention_mask (`torch.Tensor`):
            Same shape.
        labels (`torch.Tensor`):
            Completions, -100 elsewhere. Decoder-only: same shape, aligned with `input_ids`. Encoder-decoder: of any
            width.
        decoder (`nn.Module`, *optional*):
            The model that makes decoder inputs from labels; given for encoder-decoder students.
        row (`torch.Tensor`, *optional*):
            The caller's number of each row, shape `(rows,)`; 0, 1, ... if left out.
    """
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if decoder is None:
        supervised = torch.zeros_like(labels, dtype=torch.bool)
        supervised[:, :-1] = labels[:, 1:] != -100  # position t predicts t + 1
        targets = labels[:, 1:][supervised[:, :-1]]
    else:
        supervised = labels != -100
        targets = labels[supervised]
        inputs["decoder_input_ids"] = decoder.prepare_decoder_input_ids_from_labels(labels=labels)
    of_token = supervised.nonzero()[:, 0]
    return ForwardPass(inputs, supervised, targets, of_token if row is None else row[of_token])


def blank_pass(decoder: nn.Module | None, device: torch.device) -> ForwardPass:
    """A pass without a supervised token: every process has to make the same number of passes."""
    blank = torch.ones(1, 2, dtype=torch.long, device=device)
    return flat_pass(blank, blank, torch.full_like(blank, -100), decoder)


def score_passes(
    model: nn.Module,
    head: StudentHead | nn.Module,
    passes: Sequence[ForwardPass],
    num_rows: int,
    decoder: nn.Module | None = None,
    predicts: bool = True,
) -> RowScores:
    """
    l(f(x), r) of every row.

    Args:
        model (`nn.Module`):
            The student, as wrapped for training.
        head ([`StudentHead`] or `nn.Module`):
            Its language-modelling head. It is given the states of supervised tokens only, and whatever the model does to
            its logits (scaling, soft-capping, a bias) applies to those: no row of logits is computed for a prompt.
        passes (`Sequence[ForwardPass]`):
            What is scored, at least one pass.
        num_rows (`int`):
            Number of rows of all passes together.
        decoder (`nn.Module`, *optional*):
            The student without wrappers, if it is an encoder-decoder.
        predicts (`bool`, *optional*, defaults to `True`):
            Whether to find the likeliest tokens.

    Returns:
        [`RowScores`]: with `states`, `row` and `predicted` in the order of the passes.
    """
    head = head if isinstance(head, StudentHead) else StudentHead(head)
    return score_of_parts(passes, [run_pass(model, head, one, decoder, predicts) for one in passes], num_rows)


def score_of_parts(passes: Sequence[ForwardPass], parts: Sequence["PassScores"], num_rows: int) -> RowScores:
    """The scores of rows from what each pass gave, at least one."""
    row = torch.cat([one.row for one in passes])
    return RowScores(
        nll=mean_per_row(torch.cat([part.nll for part in parts]), row, num_rows),
        num_tokens=torch.bincount(row, minlength=num_rows),
        states=torch.cat([part.states for part in parts]),
        row=row,
        predicted=None if parts[0].predicted is None else torch.cat([part.predicted for part in parts]),
        anchor=sum(part.anchor for part in parts),
    )


def score_rows(
    model: nn.Module,
    head: StudentHead | nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
    predicts: bool = True,
) -> RowScores:
    """[`score_passes`] of one [`flat_pass`]."""
    one = flat_pass(input_ids, attention_mask, labels, decoder)
    return score_passes(model, head, [one], labels.shape[0], decoder, predicts)


def score_rows_by_length(
    model: nn.Module,
    head: StudentHead | nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
    num_chunks: int = 1,
) -> RowScores:
    """
    [`score_rows`] in `num_chunks` forward passes over rows of like length. There may be no row, and `states`, `row` and
    `predicted` are ordered by pass.
    """
    passes = flat_passes(input_ids, attention_mask, labels, decoder, num_chunks)
    return score_passes(model, head, passes, labels.shape[0], decoder)


def flat_passes(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
    num_passes: int = 1,
) -> list[ForwardPass]:
    """
    Flat rows in `num_passes` passes over rows of like length, each cut to its own width.

    Rationales of a question differ in length by far more than questions do: one long one would pad all others of its
    batch. The number of passes is fixed, also where there are fewer rows (or none), because every process has to make
    the same number of them. Arguments are those of [`flat_pass`].
    """
    is_separate = decoder is not None
    lengths = attention_mask.sum(1) + ((labels != -100).sum(1) if is_separate else 0)
    passes = []
    for chunk in by_length(lengths, num_passes):
        if len(chunk) == 0:
            passes.append(blank_pass(decoder, labels.device))
            continue
        mask, label = trimmed(attention_mask[chunk], attention_mask[chunk] != 0), labels[chunk]
        label = trimmed(label, label != -100) if is_separate else label[:, : mask.shape[1]]
        passes.append(flat_pass(input_ids[chunk][:, : mask.shape[1]], mask, label, decoder, chunk))
    return passes


def by_length(lengths: torch.Tensor, num_passes: int) -> list[torch.Tensor]:
    """
    Indices of units of like length for each of a fixed number of passes, some of which may be empty.

    Units are sorted, and cut where the passes, each as wide as its longest unit, are smallest in all: a few long ones then
    have a pass to themselves.
    """
    order = lengths.argsort(stable=True)
    width = lengths[order].double().cpu()
    place = torch.arange(len(width) + 1)
    # size[i, j]: of a pass with units i to j - 1. best[j]: of the passes so far, with the units before j.
    size = (place[None, :] - place[:, None]) * torch.cat([width.new_zeros(1), width])[None, :]
    size = size.masked_fill(place[None, :] < place[:, None], float("inf"))
    best, starts = size[0], []
    for _ in range(num_passes - 1):
        best, start = (best[:, None] + size).min(0)
        starts.append(start)
    cuts = [len(width)]
    for start in reversed(starts):
        cuts.append(int(start[cuts[-1]]))
    return list(order.tensor_split(torch.tensor(cuts[:0:-1], dtype=torch.long)))


def trimmed(tensor: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Rows cut to the width that the longest uses, at least 1; `used` is of the same shape, on the left of each row."""
    return tensor[:, : max(int(used.sum(1).max()), 1)]


@dataclass
class PassScores:
    """
    What one pass tells of its supervised tokens; for the names see [`RowScores`]. `cache` has its keys and values under the
    name that the student takes them by, which has changed in transformers, or nothing.
    """

    nll: torch.Tensor
    states: torch.Tensor
    predicted: torch.Tensor | None
    anchor: torch.Tensor
    cache: dict[str, Any] = field(default_factory=dict)


def run_pass(
    model: nn.Module,
    head: StudentHead,
    one: ForwardPass,
    decoder: nn.Module | None = None,
    predicts: bool = False,
) -> PassScores:
    """One forward pass; arguments are those of [`score_passes`]."""
    with _only_supervised(head, one.supervised) as captured, _encoding_once(decoder, one.encoded):
        outputs = model(**{"use_cache": False, **one.inputs})
    logits = outputs.logits
    if captured.states is None:
        raise ModelError(
            f"The forward pass of {type(model).__name__} does not call its output embeddings "
            f"({type(head.module).__name__}), so rationales cannot be scored with it."
        )
    logits = logits.reshape(-1, logits.shape[-1])
    anchor = logits[:1].float().sum() * 0
    states = captured.states[: len(one.targets)]
    if head.form is None:
        logits = logits[: len(one.targets)]
        values = token_nll(logits, one.targets)
        predicted = logits.detach().argmax(-1) if predicts else None
    else:
        values, predicted = head.nll(states, one.targets, captured.dtype, predicts)
    names = ("cache", "past_key_values") if one.inputs.get("use_cache") else ()
    cache = {name: outputs[name] for name in names if name in outputs.keys()}  # noqa: SIM118 (a mapping of its own kind)
    return PassScores(values, states.detach(), predicted, anchor, cache)


@dataclass
class _Captured:
    states: torch.Tensor | None = None
    dtype: torch.dtype | None = None


@contextmanager
def _only_supervised(head: StudentHead, supervised: torch.Tensor):
    """Gives the head the supervised states alone; one of them where their losses are computed in tiles afterwards."""
    captured = _Captured()

    def gather(module, args, kwargs):
        states = args[0] if args else kwargs.pop("input")
        chosen = states[supervised]
        if len(chosen) == 0:  # nothing to predict: one state keeps the graph and the shapes alive
            chosen = states[:1, 0]
        captured.states, device = chosen, chosen.device.type
        captured.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return ((chosen if head.form is None else chosen[:1]).unsqueeze(0), *args[1:]), kwargs

    handle = head.module.register_forward_pre_hook(gather, with_kwargs=True)
    try:
        yield captured
    finally:
        handle.remove()


@contextmanager
def _encoding_once(decoder: nn.Module | None, encoded: torch.Tensor | None):
    """Within an encoder-decoder's forward pass, repeats what the encoder says of a question for each of its rationales."""
    if encoded is None:
        yield
        return

    def repeat(module, args, output):
        output["last_hidden_state"] = output["last_hidden_state"][encoded]
        return output

    def repeat_mask(module, args, kwargs):
        return args, {**kwargs, "encoder_attention_mask": kwargs["encoder_attention_mask"][encoded]}

    handles = [
        decoder.get_encoder().register_forward_hook(repeat),
        decoder.get_decoder().register_forward_pre_hook(repeat_mask, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
