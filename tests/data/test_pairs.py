"""A question and a rationale as one input of an encoder."""

import pytest
import torch
from encoders import encoder_ids, pair_tokenizer
from tiny import word_tokenizer

from qcrd_trl.data.pairs import PairTokenizer
from qcrd_trl.errors import ConfigError, ModelError


def pairs_of(kind="bert", max_length=64):
    return PairTokenizer(pair_tokenizer(kind), max_length)


def test_batch_by_hand():
    """A mask that is off by one, or that has the question in it, gives scores of something else than the rationale."""
    pairs = pairs_of()
    batch = pairs.batch([(encoder_ids("a + 1"), encoder_ids("is 2")), (encoder_ids("b"), encoder_ids("so c ."))])
    assert batch["input_ids"].tolist() == [
        encoder_ids("[CLS] a + 1 [SEP] is 2 [SEP]"),
        encoder_ids("[CLS] b [SEP] so c . [SEP] <pad>"),
    ]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 7 + [0]]
    assert batch["token_type_ids"].tolist() == [[0] * 5 + [1] * 3, [0] * 3 + [1] * 4 + [0]]
    assert batch["rationale_mask"].int().tolist() == [[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0, 0]]
    assert batch["rationale_mask"].dtype == torch.bool


def test_t5_has_no_token_types():
    """T5 would refuse an argument that it does not know."""
    batch = pairs_of("t5").batch([(encoder_ids("a"), encoder_ids("b c"))])
    assert batch.keys() == {"input_ids", "attention_mask", "rationale_mask"}
    assert batch["input_ids"].tolist() == [encoder_ids("a </s> b c </s>")]
    assert batch["rationale_mask"].int().tolist() == [[0, 0, 1, 1, 0]]


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_equals_the_tokenizer(kind):
    """Another form of a pair than the one that the encoder was pretrained with costs accuracy and says nothing."""
    pairs, tokenizer = pairs_of(kind), pair_tokenizer(kind)
    for question, rationale in (("a + 1", "is 2 so 2"), ("b", "c"), ("a b c d", ".")):
        mine = pairs.batch([(pairs.question_ids(question), pairs.ids(rationale))])
        theirs = tokenizer(question, rationale)
        for name, values in theirs.items():
            assert mine[name].tolist() == [values], name
        owners = theirs.sequence_ids(0)
        assert mine["rationale_mask"].tolist() == [[owner == 1 for owner in owners]]


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (9, "[CLS] a + 1 [SEP] b c d [SEP]"),
        (8, "[CLS] + 1 [SEP] b c d [SEP]"),
        (6, "[CLS] [SEP] b c d [SEP]"),
        (5, "[CLS] [SEP] b c [SEP]"),
        (4, "[CLS] [SEP] b [SEP]"),
    ],
)
def test_too_long_pairs(max_length, expected):
    """Cut at its end as one text, a long question would leave nothing of the rationale that is to be scored."""
    batch = pairs_of(max_length=max_length).batch([(encoder_ids("a + 1"), encoder_ids("b c d"))])
    assert batch["input_ids"].tolist() == [encoder_ids(expected)]
    assert batch["rationale_mask"].sum() == min(max_length - 3, 3)


def test_conversations():
    """A role's name, or Python's brackets, would be read as words of the question."""
    messages = [{"role": "system", "content": "a b"}, {"role": "user", "content": "c + 1"}]
    assert pairs_of().question_ids(messages) == encoder_ids("a b c + 1")


def test_an_empty_batch_and_an_empty_rationale():
    """A batch without a rationale comes up in training, and a text may have no token of the encoder's."""
    pairs = pairs_of()
    assert pairs.batch([])["input_ids"].shape == (0, 1)
    batch = pairs.batch([(encoder_ids("a"), [])])
    assert batch["input_ids"].tolist() == [encoder_ids("[CLS] a [SEP] [SEP]")]
    assert not batch["rationale_mask"].any()


def test_no_room():
    """It would score every rationale alike."""
    with pytest.raises(ConfigError, match="max_length=3 leaves no room"):
        pairs_of(max_length=3)


def test_a_slow_tokenizer():
    """It does not tell whose a token is."""

    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match="fast tokenizer"):
        PairTokenizer(Slow(), 64)


def test_a_tokenizer_without_padding():
    """Padding with a made-up id would be one of the vocabulary's words."""
    assert PairTokenizer(word_tokenizer(pad=None), 64).pad_token_id == 1  # its eos token
    with pytest.raises(ModelError, match="neither a pad token nor an eos token"):
        PairTokenizer(word_tokenizer(pad=None, eos=None), 64)
