"""
Rationales that share their question's prompt: the prompt is read once for all of them.

A decoder-only student gets one row a question,

    [prompt without its last token] [last token, r_1 without its last] [last token, r_2 without its last] ...

in which each segment sees the prompt and itself, and counts its positions from the prompt's end. Each position of a segment
then predicts one token, as in a row of its own. An encoder-decoder student encodes the question once, and its decoder has a
row a rationale.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .scoring import ForwardPass, blank_pass, by_length, flat_pass, trimmed


@dataclass(frozen=True)
class MaskForm:
    """
    The attention masks that an architecture takes.

    Attributes:
        window (`int` or `None`): width of its sliding windows.
        by_layer (`bool`): whether it takes a mask for each kind of layer, as models whose layers differ do.
        width (`int` or `None`): size of its hidden states, which tells how long a row is worth sharing; without it a
            question's rationales are always in one row.
    """

    window: int | None = None
    by_layer: bool = False
    width: int | None = None


@dataclass
class SharedRows:
    """
    Where each token of shared rows comes from, for B questions with rows of length L.

    Attributes:
        source (`torch.Tensor`): flat row that each token is copied from, shape `(B, L)`.
        position (`torch.Tensor`): its column there, which is also its position, shape `(B, L)`; 0 in padding.
        segment (`torch.Tensor`): 0 in the prompt, 1, 2, ... in the rationales, -1 in padding, shape `(B, L)`.
    """

    source: torch.Tensor
    position: torch.Tensor
    segment: torch.Tensor


def share_prompts(prompt: torch.Tensor, completion: torch.Tensor, question: torch.Tensor) -> SharedRows:
    """
    Lays flat rows of prompt and completion out as shared rows, one a question, in the order of the questions' first rows.

    Args:
        prompt (`torch.Tensor`): tokens of each flat row's prompt, at least 1, equal within a question, shape `(N,)`.
        completion (`torch.Tensor`): tokens of its completion, shape `(N,)`.
        question (`torch.Tensor`): question of each row, 0 to B - 1, each at least once, shape `(N,)`.
    """
    order = question.argsort(stable=True)
    owner = question[order]
    count = torch.bincount(question)
    first = count.cumsum(0) - count  # place of a question's first row in `order`
    head = order[first]
    # Segments of the whole pass: a prompt before the rationales of each question.
    rank = torch.arange(len(order), device=question.device) - first[owner] + 1
    place = torch.cat([torch.arange(len(count), device=question.device) + first, rank + owner + first[owner]])
    source = torch.cat([head, order])
    segment = torch.cat([torch.zeros_like(head), rank])
    row = torch.cat([torch.arange(len(count), device=question.device), owner])
    start = torch.cat([torch.zeros_like(head), prompt[order] - 1])
    length = torch.cat([prompt[head] - 1, completion[order]])
    by_place = place.argsort()
    source, segment, row, start, length = (t[by_place] for t in (source, segment, row, start, length))
    # Their tokens.
    of = torch.repeat_interleave(torch.arange(len(length), device=length.device), length)
    within = torch.arange(len(of), device=length.device) - (length.cumsum(0) - length)[of]
    total = torch.zeros_like(count).index_add(0, row, length)
    column = torch.arange(len(of), device=length.device) - (total.cumsum(0) - total)[row[of]]
    shape = (len(count), max(int(total.max()), 1))
    out = [length.new_full(shape, fill) for fill in (0, 0, -1)]
    for table, values in zip(out, (source[of], start[of] + within, segment[of]), strict=True):
        table[row[of], column] = values
    return SharedRows(*out)


def segment_mask(
    segment: torch.Tensor, position: torch.Tensor, dtype: torch.dtype, window: int | None = None
) -> torch.Tensor:
    """
    Additive attention mask in which each segment sees the prompt and itself, up to each token's own place.

    Args:
        segment (`torch.Tensor`): 0 in the prompt, 1, 2, ... in the segments, -1 in padding, shape `(B, L)`.
        position (`torch.Tensor`): position of each token, shape `(B, L)`.
        dtype (`torch.dtype`): that of the attention.
        window (`int`, *optional*): tokens that a position sees, itself included.

    Returns:
        `torch.Tensor`: shape `(B, 1, L, L)`, 0 where attended to and the lowest finite number elsewhere. The diagonal is
        always open: a softmax over nothing would be NaN.
    """
    to, of = segment[:, :, None], segment[:, None, :]
    index = torch.arange(segment.shape[1], device=segment.device)
    open_ = ((of == 0) | (of == to)) & (index[:, None] >= index[None, :])
    if window is not None:
        open_ &= position[:, :, None] - position[:, None, :] < window
    open_ |= index[:, None] == index[None, :]
    mask = torch.zeros(open_.shape, dtype=dtype, device=segment.device)
    return mask.masked_fill_(~open_, torch.finfo(dtype).min)[:, None]


def shared_passes(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    question: torch.Tensor,
    form: MaskForm,
    dtype: torch.dtype,
    decoder: nn.Module | None = None,
    num_passes: int = 1,
) -> list[ForwardPass]:
    """
    Flat rows as `num_passes` passes in which questions of like length share their prompts.

    Args:
        input_ids (`torch.Tensor`): prompts with completions, padded on the right, shape `(N, L)`; prompts alone for an
            encoder-decoder. Rows of one question have equal prompts.
        attention_mask (`torch.Tensor`): same shape.
        labels (`torch.Tensor`): completions, -100 elsewhere; as for [`flat_pass`].
        question (`torch.Tensor`): question of each row, any numbers, shape `(N,)`.
        form ([`MaskForm`]): the masks of a decoder-only student.
        dtype (`torch.dtype`): type of its attention.
        decoder (`nn.Module`, *optional*): the student without wrappers, if it is an encoder-decoder.
        num_passes (`int`, *optional*, defaults to `1`): number of passes, whatever the number of rows.

    Returns:
        `list[ForwardPass]`: their `row` counts the flat rows.
    """
    if len(question) == 0:
        return [blank_pass(decoder, labels.device) for _ in range(num_passes)]
    _, question = question.unique(return_inverse=True)
    completion = (labels != -100).sum(1)
    prompt = attention_mask.sum(1) - (0 if decoder is not None else completion)
    if decoder is None and form.width is not None:
        question = split_long(prompt, completion, question, form.width)
    units = int(question.max()) + 1
    if decoder is None:
        size = torch.zeros(units, dtype=torch.long, device=question.device).index_add(0, question, completion)
    else:  # a row of the decoder is as wide as the longest of its pass
        size = torch.zeros(units, dtype=torch.long, device=question.device)
        size = size.scatter_reduce(0, question, completion, "amax")
    size = size + _of_units(prompt, question, units)
    passes = []
    for chunk in by_length(size, num_passes):
        if len(chunk) == 0:
            passes.append(blank_pass(decoder, labels.device))
            continue
        place = torch.full((units,), -1, device=question.device).index_put((chunk,), _count(chunk))
        rows = (place[question] >= 0).nonzero()[:, 0]
        parts = (input_ids[rows], attention_mask[rows], labels[rows], place[question[rows]], rows)
        if decoder is None:
            passes.append(_shared_rows(*parts, prompt[rows], completion[rows], form, dtype))
        else:
            passes.append(_encoded_once(*parts, decoder))
    return passes


def split_long(prompt: torch.Tensor, completion: torch.Tensor, question: torch.Tensor, width: int) -> torch.Tensor:
    """
    Questions with many rationales as several with the same prompt.

    In a shared row each token is compared with all others, though it attends to the prompt and its own segment only. A layer
    of width d has about 12 d^2 weights, 24 d^2 operations a token, against 4 d for each token that it is compared with. So
    a prompt of P tokens is worth 6 d P comparisons, and with S tokens of rationales in each row, a question's cost is least
    where S^2 = P (6 d + P).

    Args:
        prompt (`torch.Tensor`): tokens of each flat row's prompt, shape `(N,)`.
        completion (`torch.Tensor`): tokens of its completion, shape `(N,)`.
        question (`torch.Tensor`): question of each row, shape `(N,)`.
        width (`int`): size of the hidden states.

    Returns:
        `torch.Tensor`: question of each row, counted anew, shape `(N,)`.
    """
    total = completion.new_zeros(int(question.max()) + 1).index_add(0, question, completion)[question]
    best = (prompt * (6.0 * width + prompt)).sqrt()
    order = question.argsort(stable=True)
    count = torch.bincount(question)
    rows = torch.minimum((total / best).round().clamp(min=1), count[question])  # of each question
    rank = torch.empty_like(order)
    rank[order] = _count(order) - (count.cumsum(0) - count)[question[order]]
    part = (rank * rows / count[question]).floor().long()
    return (question * len(order) + part).unique(return_inverse=True)[1]


def _shared_rows(input_ids, attention_mask, labels, question, rows, prompt, completion, form, dtype) -> ForwardPass:
    shared = share_prompts(prompt, completion, question)
    supervised = shared.segment > 0
    masks: Any = segment_mask(shared.segment, shared.position, dtype, None if form.by_layer else form.window)
    if form.by_layer:
        windowed = segment_mask(shared.segment, shared.position, dtype, form.window)
        masks = {"full_attention": masks, "sliding_attention": windowed}
    source = shared.source[supervised]
    return ForwardPass(
        inputs={
            "input_ids": input_ids[shared.source, shared.position],
            "attention_mask": masks,
            "position_ids": shared.position,
        },
        supervised=supervised,
        targets=labels[source, shared.position[supervised] + 1],
        row=rows[source],
    )


def _encoded_once(input_ids, attention_mask, labels, question, rows, decoder) -> ForwardPass:
    units = int(question.max()) + 1
    first = _of_units(_count(rows), question, units)
    mask = trimmed(attention_mask[first], attention_mask[first] != 0)
    one = flat_pass(input_ids[first][:, : mask.shape[1]], mask, trimmed(labels, labels != -100), decoder, rows)
    one.encoded = question
    return one


def _count(tensor: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(tensor), device=tensor.device)


def _of_units(values: torch.Tensor, question: torch.Tensor, units: int) -> torch.Tensor:
    """The value of one row of each question."""
    return values.new_zeros(units).scatter(0, question, values)
