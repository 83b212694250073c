"""The batch of both task modes, value by value."""

import hashlib
import struct

import pytest
import torch

from qcrd_trl.errors import ConfigError
from qcrd_trl.recommendation.collator import DataCollatorForC2KD, row_key


N = -100
ROWS = [
    {"row_index": 4, "input_ids": [5, 6, 7, 8, 2], "labels": [N, N, N, 8, 2]},  # a prompt of 3, an answer of 2
    {"row_index": 1, "input_ids": [5, 9, 2], "labels": [N, 9, 2]},
]


def test_batch():
    """Labels masked by id rather than by place lose the EOS where it pads: the model never learns to stop."""
    batch = DataCollatorForC2KD(pad_token_id=2)(ROWS)
    assert set(batch) == {"input_ids", "attention_mask", "labels", "row_index", "keys"}
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 2], [5, 9, 2, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[N, N, N, 8, 2], [N, 9, 2, N, N]]
    assert batch["row_index"].tolist() == [4, 1]
    assert all(batch[name].dtype == torch.long for name in ("input_ids", "attention_mask", "labels", "row_index"))


def test_position_rule():
    """A shift by one distils each position towards the teacher's state at another one, at a plausible loss."""
    labels = DataCollatorForC2KD(0)(ROWS)["labels"]
    predicting = [(row[1:] != N).nonzero().flatten().tolist() for row in labels]
    assert predicting == [[2, 3], [0, 1]]  # prompt 3, answer 2: positions {2, 3}


def test_padding_on_the_left():
    """The same rows, the same keys, and every label still beside its own token."""
    right, left = DataCollatorForC2KD(0)(ROWS), DataCollatorForC2KD(0, padding_side="left")(ROWS)
    assert left["input_ids"].tolist() == [[5, 6, 7, 8, 2], [0, 0, 5, 9, 2]]
    assert left["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert left["labels"].tolist() == [[N, N, N, 8, 2], [N, N, N, 9, 2]]
    assert left["keys"] == right["keys"]
    with pytest.raises(ConfigError, match="got 'middle'"):
        DataCollatorForC2KD(0, padding_side="middle")


def test_widths_are_rounded_up():
    """A width rounded down cuts the target."""
    batch = DataCollatorForC2KD(0, pad_to_multiple_of=4)(ROWS)
    assert batch["labels"].tolist() == [[N, N, N, 8, 2, N, N, N], [N, 9, 2, N, N, N, N, N]]


def test_keys():
    """A key that leaves something out gives a row the teacher's states of another one."""
    expected = hashlib.sha256(struct.pack("<6q", 5, 9, 2, -100, 9, 2)).hexdigest()
    assert row_key([5, 9, 2], [N, 9, 2]) == expected
    batch = DataCollatorForC2KD(0)(ROWS)
    assert batch["keys"][1] == expected
    # Beside other rows, in another order, at another place of the dataset.
    assert DataCollatorForC2KD(7, pad_to_multiple_of=8)([{**ROWS[1], "row_index": 9}])["keys"] == [expected]
    others = [([5, 9, 3], [N, 9, 3]), ([5, 9, 2], [N, N, 2]), ([9, 5, 2], [N, 9, 2]), ([5, 9], [N, 9])]
    assert len({expected, *(row_key(*other) for other in others)}) == 5


def test_rows_are_not_changed():
    """A dataset in memory is collated at every epoch: what is changed once is wrong from then on."""
    before = str(ROWS)
    DataCollatorForC2KD(0)(ROWS)
    assert str(ROWS) == before
