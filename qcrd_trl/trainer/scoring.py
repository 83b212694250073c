"""The student's loss on rows of prompt and completion: a forward pass whose head sees the supervised tokens alone."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import ModelError
from ..losses import mean_per_row, token_nll


@dataclass
class RowScores:
    """
    What a forward pass tells of each row.

    Attributes:
        nll (`torch.Tensor`): mean token loss of each row's completion, nats, with gradient, shape `(rows,)`.
        num_tokens (`torch.Tensor`): supervised tokens of each row, shape `(rows,)`.
        states (`torch.Tensor`): detached last hidden states that predict them, shape `(tokens, hidden_size)`.
        row (`torch.Tensor`): row of each supervised token, shape `(tokens,)`.
        predicted (`torch.Tensor`): likeliest token at each of them, shape `(tokens,)`.
        anchor (`torch.Tensor`): 0 with a graph that reaches the whole model, so that every process has gradients.
    """

    nll: torch.Tensor
    num_tokens: torch.Tensor
    states: torch.Tensor
    row: torch.Tensor
    predicted: torch.Tensor
    anchor: torch.Tensor


def score_rows(
    model: nn.Module,
    head: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
) -> RowScores:
    """
    l(f(x), r) of every row.

    Args:
        model (`nn.Module`):
            The student, as wrapped for training.
        head (`nn.Module`):
            Its language-modelling head. It is given the states of supervised tokens only, and whatever the model does to
            its logits (scaling, soft-capping, a bias) applies to those: no row of logits is computed for a prompt.
        input_ids (`torch.Tensor`):
            Shape `(rows, length)`, at least one row; the encoder's input if there is one.
        attention_mask (`torch.Tensor`):
            Same shape.
        labels (`torch.Tensor`):
            Completions, -100 elsewhere. Decoder-only: same shape, aligned with `input_ids`. Encoder-decoder: of any
            width.
        decoder (`nn.Module`, *optional*):
            The model that makes decoder inputs from labels; given for encoder-decoder students.

    Returns:
        [`RowScores`]
    """
    if decoder is None:
        supervised = torch.zeros_like(labels, dtype=torch.bool)
        supervised[:, :-1] = labels[:, 1:] != -100  # position t predicts t + 1
        targets = labels[:, 1:][supervised[:, :-1]]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    else:
        supervised = labels != -100
        targets = labels[supervised]
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "decoder_input_ids": decoder.prepare_decoder_input_ids_from_labels(labels=labels),
        }
    row = supervised.nonzero()[:, 0]
    num_rows = labels.shape[0]
    with _only_supervised(head, supervised) as captured:
        logits = model(**inputs, use_cache=False).logits
    if "states" not in captured:
        raise ModelError(
            f"The forward pass of {type(model).__name__} does not call its output embeddings ({type(head).__name__}), so "
            "rationales cannot be scored with it."
        )
    logits = logits.reshape(-1, logits.shape[-1])
    anchor = logits[:1].float().sum() * 0
    logits = logits[: len(targets)]
    values = token_nll(logits, targets)
    return RowScores(
        nll=mean_per_row(values, row, num_rows),
        num_tokens=torch.bincount(row, minlength=num_rows),
        states=captured["states"][: len(targets)].detach(),
        row=row,
        predicted=logits.detach().argmax(-1),
        anchor=anchor,
    )


def score_rows_by_length(
    model: nn.Module,
    head: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    decoder: nn.Module | None = None,
    num_chunks: int = 1,
) -> RowScores:
    """
    [`score_rows`] in `num_chunks` forward passes over rows of like length, each cut to its own width.

    Rationales of a question differ in length by far more than questions do: one long one would pad all others of its
    batch. The number of passes is fixed, also where there are fewer rows (or none), because every process has to make
    the same number of them. Args and return value are those of [`score_rows`], except that there may be no row and that
    `states`, `row` and `predicted` are ordered by pass.
    """
    is_separate = decoder is not None
    lengths = attention_mask.sum(1) + ((labels != -100).sum(1) if is_separate else 0)
    chunks = lengths.argsort(stable=True).tensor_split(num_chunks)
    parts = []
    for chunk in chunks:
        if len(chunk) == 0:
            # Nothing to score in this pass: one row without a supervised token, of which no result is kept.
            blank = torch.ones(1, 2, dtype=torch.long, device=input_ids.device)
            scored = score_rows(model, head, blank, blank, torch.full_like(blank, -100), decoder)
            scored.nll, scored.num_tokens = scored.nll[:0], scored.num_tokens[:0]
        else:
            mask, label = _trimmed(attention_mask[chunk], attention_mask[chunk] != 0), labels[chunk]
            label = _trimmed(label, label != -100) if is_separate else label[:, : mask.shape[1]]
            scored = score_rows(model, head, input_ids[chunk][:, : mask.shape[1]], mask, label, decoder)
            scored.row = chunk[scored.row]
        parts.append(scored)
    place = torch.cat(chunks).argsort()  # from sorted order back to that of the rows
    return RowScores(
        nll=torch.cat([part.nll for part in parts])[place],
        num_tokens=torch.cat([part.num_tokens for part in parts])[place],
        states=torch.cat([part.states for part in parts]),
        row=torch.cat([part.row for part in parts]),
        predicted=torch.cat([part.predicted for part in parts]),
        anchor=sum(part.anchor for part in parts),
    )


def _trimmed(tensor: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    return tensor[:, : max(int(used.sum(1).max()), 1)]


@contextmanager
def _only_supervised(head: nn.Module, supervised: torch.Tensor):
    captured = {}

    def gather(module, args, kwargs):
        states = args[0] if args else kwargs.pop("input")
        chosen = states[supervised]
        if len(chosen) == 0:  # nothing to predict: one state keeps the graph and the shapes alive
            chosen = states[:1, 0]
        captured["states"] = chosen
        return (chosen.unsqueeze(0), *args[1:]), kwargs

    handle = head.register_forward_pre_hook(gather, with_kwargs=True)
    try:
        yield captured
    finally:
        handle.remove()
