"""The batch, row by row."""

import pytest
import torch

from qcrd_trl import DataCollatorForQCRD


FEATURES = [
    {
        "question_index": 7,
        "predict_prompt_ids": [5, 6],
        "label_ids": [7, 2],
        "explain_prompt_ids": [4, 6],
        "positive_ids": [[8, 2], [8, 8, 2]],
        "negative_ids": [[3, 2]],
    },
    {
        "question_index": 3,
        "predict_prompt_ids": [5, 9, 9],
        "label_ids": [7, 7, 2],
        "explain_prompt_ids": [4, 9, 9],
        "positive_ids": [],
        "negative_ids": [[3, 3, 2]],
    },
    {
        "question_index": 4,
        "predict_prompt_ids": [5],
        "label_ids": [],
        "explain_prompt_ids": [4],
        "positive_ids": [[8, 2]],
        "negative_ids": [],
    },
]
NAMES = {
    *("question_index", "input_ids", "attention_mask", "labels", "rationale_input_ids", "rationale_attention_mask"),
    *("rationale_labels", "rationale_question", "rationale_is_positive"),
}


def with_no(names):
    return [{**feature, **{name: [] for name in names}} for feature in FEATURES]


def test_pad_is_eos():
    """Labels masked by id in place of position lose the EOS: the student never learns to stop."""
    feature = {**FEATURES[0], "positive_ids": [], "negative_ids": []}
    batch = DataCollatorForQCRD(pad_token_id=2, pad_to_multiple_of=6)([feature])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 2, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 7, 2, -100, -100]]


def test_decoder_only_batch():
    """A rationale beside the wrong question, or on the wrong side, is trained at a plausible loss."""
    batch = DataCollatorForQCRD(pad_token_id=0)(FEATURES)
    assert set(batch) == NAMES
    assert all(tensor.dtype == torch.long for name, tensor in batch.items() if name != "rationale_is_positive")
    n = -100
    assert batch["question_index"].tolist() == [7, 3, 4]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 2, 0, 0], [5, 9, 9, 7, 7, 2], [5, 0, 0, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6, [1, 0, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[n, n, 7, 2, n, n], [n, n, n, 7, 7, 2], [n] * 6]
    assert batch["rationale_input_ids"].tolist() == [
        [4, 6, 8, 2, 0, 0],
        [4, 6, 8, 8, 2, 0],
        [4, 6, 3, 2, 0, 0],
        [4, 9, 9, 3, 3, 2],
        [4, 8, 2, 0, 0, 0],
    ]
    assert batch["rationale_attention_mask"].tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
    ]
    assert batch["rationale_labels"].tolist() == [
        [n, n, 8, 2, n, n],
        [n, n, 8, 8, 2, n],
        [n, n, 3, 2, n, n],
        [n, n, n, 3, 3, 2],
        [n, 8, 2, n, n, n],
    ]
    assert batch["rationale_question"].tolist() == [0, 0, 0, 1, 2]
    assert batch["rationale_is_positive"].dtype == torch.bool
    assert batch["rationale_is_positive"].tolist() == [True, True, False, False, True]


def test_encoder_decoder_batch():
    """Completions in the encoder's input would show the student the answer that it is asked for."""
    batch = DataCollatorForQCRD(pad_token_id=0, is_encoder_decoder=True)(FEATURES)
    n = -100
    assert set(batch) == NAMES
    assert batch["input_ids"].tolist() == [[5, 6, 0], [5, 9, 9], [5, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 2, n], [7, 7, 2], [n, n, n]]
    assert batch["rationale_input_ids"].tolist() == [[4, 6, 0], [4, 6, 0], [4, 6, 0], [4, 9, 9], [4, 0, 0]]
    assert batch["rationale_attention_mask"].tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert batch["rationale_labels"].tolist() == [[8, 2, n], [8, 8, 2], [3, 2, n], [3, 3, 2], [8, 2, n]]
    assert batch["rationale_question"].tolist() == [0, 0, 0, 1, 2]
    assert batch["rationale_is_positive"].tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_no_label_in_the_whole_batch(is_encoder_decoder):
    """A tensor of width 0 stops the forward pass at the first batch without labels."""
    batch = DataCollatorForQCRD(0, is_encoder_decoder)(with_no(["label_ids"]))
    assert batch["input_ids"].tolist() == [[5, 6, 0], [5, 9, 9], [5, 0, 0]]
    assert batch["labels"].tolist() == [[-100] * (1 if is_encoder_decoder else 3)] * 3
    assert len(batch["rationale_question"]) == 5


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_no_rationale_in_the_whole_batch(is_encoder_decoder):
    """Empty tensors of another type or rank than usual fail only at the batch that has them."""
    batch = DataCollatorForQCRD(0, is_encoder_decoder)(with_no(["positive_ids", "negative_ids"]))
    assert set(batch) == NAMES
    for name in ("rationale_input_ids", "rationale_attention_mask", "rationale_labels"):
        assert batch[name].shape == (0, 1)
        assert batch[name].dtype == torch.long
    assert batch["rationale_question"].shape == batch["rationale_is_positive"].shape == (0,)
    assert batch["rationale_question"].dtype == torch.long
    assert batch["rationale_is_positive"].dtype == torch.bool


@pytest.mark.parametrize(("multiple", "width"), [(None, 6), (1, 6), (4, 8), (6, 6), (8, 8)])
def test_pad_to_multiple_of(multiple, width):
    """A width rounded down would cut the longest row, and with it the end of its completion."""
    batch = DataCollatorForQCRD(0, pad_to_multiple_of=multiple)(FEATURES)
    for name in ("input_ids", "attention_mask", "labels"):
        assert batch[name].shape == (3, width)
        assert batch[f"rationale_{name}"].shape == (5, width)
    assert batch["labels"][1, :6].tolist() == [-100, -100, -100, 7, 7, 2]
    assert not batch["attention_mask"][:, 6:].any()
    assert (batch["labels"][:, 6:] == -100).all()


def test_features_are_not_changed():
    """A dataset in memory is collated at every epoch: what is changed once is wrong from then on."""
    before = str(FEATURES)
    DataCollatorForQCRD(0)(FEATURES)
    assert str(FEATURES) == before
