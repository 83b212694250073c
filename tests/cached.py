"""Tiny teachers of item-head and generative mode, rows for them, and their caches. `from cached import ...`."""

from pathlib import Path

import torch
from datasets import Dataset
from tiny import tiny_llama, word_tokenizer

from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.item_model import ItemHeadConfig, ItemHeadModel
from qcrd_trl.recommendation.teacher_cache import CachedTeacher, build_cache
from qcrd_trl.recommendation.teacher_states import LiveTeacher
from qcrd_trl.recommendation.tokens import tokenize_rows


NUM_ITEMS, WIDTH, LAYERS = 12, 16, 4


def item_teacher(seed: int = 0, **overrides) -> ItemHeadModel:
    """A random item-head teacher of 4 layers, width 16, 12 items."""
    backbone = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **overrides,
    }
    torch.manual_seed(seed)
    return ItemHeadModel(ItemHeadConfig(backbone, num_items=NUM_ITEMS))


def text_teacher(seed: int = 0, **overrides):
    """A random causal language model of 4 layers, width 16, for the words of `tiny`."""
    return tiny_llama(seed, num_hidden_layers=LAYERS, **overrides)


def item_rows(count: int = 8, lengths: tuple[int, ...] = (3, 7, 5, 4)) -> list[dict]:
    """Sequences of items of different lengths, each row another."""
    draws = torch.Generator().manual_seed(1)
    return [
        {"items": torch.randint(0, NUM_ITEMS, (lengths[i % len(lengths)],), generator=draws).tolist()}
        for i in range(count)
    ]


def text_rows(count: int = 8) -> list[dict]:
    """Prompts and titles of different lengths."""
    return [{"prompt": "a b" + " c" * (i % 4), "completion": f"d {i}" + " e" * (i % 3)} for i in range(count)]


def tokenized(rows: list[dict], mode: str = "item_head", **options) -> Dataset:
    """Rows as a trainer tokenizes them."""
    given = {"num_items": NUM_ITEMS} if mode == "item_head" else {"tokenizer": word_tokenizer()}
    return tokenize_rows(Dataset.from_list(rows), mode, **given, **options)


def collator(mode: str = "item_head") -> DataCollatorForC2KD:
    """The collator of a mode."""
    return DataCollatorForC2KD(NUM_ITEMS if mode == "item_head" else 0)


def cached(folder: Path, live: LiveTeacher, rows: Dataset, mode: str = "item_head", **options) -> CachedTeacher:
    """The cache of a teacher, built and opened."""
    build_cache(live, rows, collator(mode), folder, progress=False, **options)
    return CachedTeacher(folder)
