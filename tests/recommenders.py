"""Tiny recommenders of every family, and batches for them. `from recommenders import ...`."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from qcrd_trl.recommendation.item_model import ItemHeadConfig, ItemHeadModel


NUM_ITEMS = 9
PAD_ITEM = NUM_ITEMS
IGNORED = -100

_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
# By model_type: rotary and learned positions, sliding windows shorter than the test's rows, norms of queries and keys.
BACKBONES = {
    "llama": _SIZES,
    "qwen3": _SIZES,
    "mistral": {**_SIZES, "sliding_window": 3},
    "gemma3_text": {**_SIZES, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    "gpt2": {
        **{"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64, "initializer_range": 0.2},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    },
}
# Language models whose logits are not just the head's: a cap, and a factor.
CAPPED = {
    "gemma2": {
        **_SIZES,
        **{"sliding_window": 3, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8},
    },
    "granite": {**_SIZES, "logits_scaling": 4.0},
}


def backbone(kind: str = "llama", **overrides: Any) -> dict[str, Any]:
    """A backbone's configuration as a user writes it."""
    return {"model_type": kind, **{**BACKBONES, **CAPPED}[kind], **overrides}


def item_model(kind: str = "llama", seed: int = 0, backbone_settings=None, **settings: Any) -> ItemHeadModel:
    """An item-head model with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = ItemHeadConfig(backbone(kind, **(backbone_settings or {})), num_items=NUM_ITEMS, **settings)
    return ItemHeadModel(config).eval()


def language_model(kind: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A causal language model with random weights and 40 tokens, in evaluation mode."""
    settings = {
        "vocab_size": 40,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        **backbone(kind, **overrides),
    }
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()


def batch_of(rows: list[list[int]], pad: int = PAD_ITEM, left: bool = False, extra: int = 0, prompt: int = 1) -> dict:
    """
    Rows padded to the longest and `extra` more. Labels are the ids after the first `prompt`, not shifted.

        >>> batch_of([[1, 2], [3]])["input_ids"].tolist()
        [[1, 2], [3, 9]]
    """
    length = max(len(row) for row in rows) + extra

    def padded(rows, value):
        return torch.tensor(
            [[value] * (length - len(row)) + row if left else row + [value] * (length - len(row)) for row in rows]
        )

    return {
        "input_ids": padded(rows, pad),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        "labels": padded([[IGNORED] * prompt + row[prompt:] for row in rows], IGNORED),
    }
