"""
Rationales scored without a graph on a cache of their question's prompt.

A shared row with a mask of its own compares each token with all others of the row. Where no gradient is needed, keys and
values of the prompt are kept as in generation, and each rationale is a row that attends to them and to itself: nothing is
compared in vain, rationales are padded to their like alone, and a window is the architecture's own.
"""

import copy
from typing import Any

import torch
from torch import nn

from .head import StudentHead
from .scoring import ForwardPass, RowScores, by_length, run_pass, score_of_parts


@torch.no_grad()
def score_on_cache(
    model: nn.Module,
    head: StudentHead,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    question: torch.Tensor,
    num_passes: int = 1,
) -> RowScores | None:
    """
    Scores of flat rows, whose prompts are read once a question.

    Args:
        model (`nn.Module`): a decoder-only student. It is run a number of times that depends on the rows, so it must not be
            wrapped for several processes.
        head ([`StudentHead`]): its head.
        input_ids (`torch.Tensor`): prompts with completions, padded on the right, shape `(N, L)`, at least one row.
        attention_mask (`torch.Tensor`): same shape.
        labels (`torch.Tensor`): same shape, -100 where there is no completion.
        question (`torch.Tensor`): question of each row, any numbers, shape `(N,)`. Rows of one have equal prompts.
        num_passes (`int`, *optional*, defaults to `1`): passes over rationales of like length.

    Returns:
        [`RowScores`] or `None`: without a graph; `None` if the student keeps no cache of the whole prompt.
    """
    _, question = question.unique(return_inverse=True)
    completion = (labels != -100).sum(1)
    start = attention_mask.sum(1) - completion - 1  # tokens of the prompt without its last
    first = start.new_zeros(int(question.max()) + 1).scatter(
        0, question, torch.arange(len(start), device=start.device)
    )
    cache, known = {}, attention_mask[:, :0]
    if int(start.max()) > 0:
        # On the left: then a window that is counted in columns is one of positions.
        width = int(start.max())
        column = torch.arange(width, device=start.device)[None] - (width - start[first])[:, None]
        known, column = (column >= 0).long(), column.clamp(min=0)
        prefix = ForwardPass(
            inputs={
                "input_ids": input_ids[first[:, None], column],
                "attention_mask": known,
                "position_ids": column,
                "use_cache": True,
            },
            supervised=torch.zeros_like(known, dtype=torch.bool),
            targets=first[:0],
            row=first[:0],
        )
        cache = run_pass(model, head, prefix).cache
        # Under gradient checkpointing some versions keep none.
        if not cache or any(kept is None or kept.get_seq_length() != width for kept in cache.values()):
            return None
    passes, parts = [], []
    for chunk in by_length(completion, num_passes):
        if len(chunk) == 0:
            continue
        within = torch.arange(int(completion[chunk].max()), device=chunk.device)[None]
        supervised = within < completion[chunk, None]
        column = torch.where(supervised, within + start[chunk, None], 0)
        row = chunk[:, None].expand_as(column)
        mask = torch.cat([known[question[chunk]] if cache else known[chunk], supervised.long()], 1)
        inputs: dict[str, Any] = {
            "input_ids": input_ids[row, column],
            "attention_mask": mask,
            "position_ids": column,
        }
        for name, kept in cache.items():
            inputs.update({name: _of_rows(kept, question[chunk]), "use_cache": True})
        targets = labels[row[supervised], column[supervised] + 1]
        passes.append(ForwardPass(inputs, supervised, targets, row[supervised]))
        parts.append(run_pass(model, head, passes[-1]))
    return score_of_parts(passes, parts, len(start))


def _of_rows(cache: Any, rows: torch.Tensor) -> Any:
    """A cache with the entries of some rows, which leaves the given one as it is."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen
