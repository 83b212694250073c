"""Prompts of several lengths in one tensor."""

from collections.abc import Sequence

import torch


def pad_prompts(prompts: Sequence[Sequence[int]], pad_token_id: int, left: bool) -> dict[str, torch.Tensor]:
    """Token ids of several lengths to `input_ids` and `attention_mask`, each of shape `(prompts, longest)`."""
    width = max(len(ids) for ids in prompts)
    input_ids = torch.full((len(prompts), width), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompts):
        place = slice(width - len(ids), width) if left else slice(0, len(ids))
        input_ids[row, place] = torch.tensor(list(ids), dtype=torch.long)
        attention_mask[row, place] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}
