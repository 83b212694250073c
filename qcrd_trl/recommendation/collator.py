"""Tokenized rows of either task mode to padded tensors, with the key that a teacher cache finds each row by."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError


def row_key(input_ids: Sequence[int], labels: Sequence[int]) -> str:
    """
    The identity of a row for the teacher cache: SHA-256 (hexadecimal) of its ids and labels as little-endian 64-bit integers.
    Padding is no part of it, so that it is the same in every batch.
    """
    content = np.asarray([list(input_ids), list(labels)], dtype="<i8")
    return hashlib.sha256(content.tobytes()).hexdigest()


@dataclass
class DataCollatorForC2KD:
    """
    Pads a batch of rows as `tokenize_rows` makes them, the same way in item-head and in generative mode.

    Args:
        pad_token_id (`int`):
            Id that fills the inputs: `num_items` in item-head mode, the tokenizer's in generative mode. It may be the EOS
            id: masks and labels are set by position, never by id.
        padding_side (`str`, *optional*, defaults to `"right"`):
            `"right"` or `"left"`.
        pad_to_multiple_of (`int`, *optional*):
            Widths are rounded up to a multiple of this.

    Returns:
        `dict` with B rows of at most T tokens:
        - `input_ids`, `attention_mask`, `labels` `(B, T)`: the labels are not shifted (position t predicts label t + 1) and
          -100 where nothing is to be predicted.
        - `row_index` `(B,)`: position of the row in the dataset.
        - `keys` (`list[str]`): [`row_key`] of each row.

    Raises:
        [`ConfigError`]: `padding_side` is neither of the two.

    Examples:

    ```python
    >>> from qcrd_trl.recommendation.collator import DataCollatorForC2KD

    >>> rows = [{"row_index": 4, "input_ids": [5, 6, 7, 8, 2], "labels": [-100, -100, -100, 8, 2]},
    ...         {"row_index": 1, "input_ids": [5, 9, 2], "labels": [-100, 9, 2]}]
    >>> batch = DataCollatorForC2KD(pad_token_id=2)(rows)
    >>> batch["input_ids"]
    tensor([[5, 6, 7, 8, 2],
            [5, 9, 2, 2, 2]])
    >>> batch["labels"]
    tensor([[-100, -100, -100,    8,    2],
            [-100,    9,    2, -100, -100]])
    ```
    """

    pad_token_id: int
    padding_side: str = "right"
    pad_to_multiple_of: int | None = None

    def __post_init__(self):
        if self.padding_side not in ("right", "left"):
            raise ConfigError(f"`padding_side` must be 'right' or 'left', got {self.padding_side!r}.")

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        inputs = [feature["input_ids"] for feature in features]
        labels = [feature["labels"] for feature in features]
        return {
            "input_ids": self._stack(inputs, self.pad_token_id),
            "attention_mask": self._stack([[1] * len(ids) for ids in inputs], 0),
            "labels": self._stack(labels, -100),
            "row_index": torch.tensor([int(feature["row_index"]) for feature in features], dtype=torch.long),
            "keys": [row_key(ids, wanted) for ids, wanted in zip(inputs, labels, strict=True)],
        }

    def _stack(self, rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return stack_rows(rows, fill, self.padding_side == "left", self.pad_to_multiple_of)


def stack_rows(
    rows: Sequence[Sequence[int]], fill: int, left: bool = False, multiple_of: int | None = None
) -> torch.Tensor:
    """Rows of several lengths as one integer tensor `(rows, longest)`, filled up on the right or on the left."""
    width = max(len(row) for row in rows)
    if multiple_of:
        width = -(-width // multiple_of) * multiple_of
    stacked = torch.full((len(rows), width), fill, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        stacked[number, place] = torch.tensor(list(row), dtype=torch.long)
    return stacked
