"""A row to token ids: what is kept, what is dropped under which count, what is refused."""

from collections import Counter

import pytest
from tiny import (
    EOS,
    bos_tokenizer,
    byte_tokenizer,
    chat_tokenizer,
    ids,
    pad_is_eos_tokenizer,
    t5_tokenizer,
    word_tokenizer,
)

from qcrd_trl import DataCollatorForQCRD, StudentFormat
from qcrd_trl.data.tokenize import COUNTERS, RowTokenizer, draw, fold_white_space
from qcrd_trl.errors import DataError


def tokenize(row, index=0, tokenizer=None, form=None, **kwargs):
    return RowTokenizer(tokenizer or word_tokenizer(), form or StudentFormat(), **kwargs)(row, index)


def row(**changes):
    return {
        "prompt": "a + 1",
        "label": "7",
        "positive_rationales": ["b is 7"],
        "negative_rationales": ["c is 8", "c is 9"],
        **changes,
    }


def counts(out):
    return {name: out[f"n_{name}"] for name in COUNTERS if out[f"n_{name}"]}


def test_a_whole_row():
    """A rationale under the label's prefix, or a label under the rationale's, swaps the two tasks."""
    assert tokenize(row(id="q7", meta=3), index=5) == {
        "question_index": 5,
        "id": "q7",
        "predict_prompt_ids": ids("<Predict> a + 1"),
        "label_ids": ids("7 </s>"),
        "explain_prompt_ids": ids("<Explain> a + 1"),
        "positive_ids": [ids("b is 7 </s>")],
        "negative_ids": [ids("c is 8 </s>"), ids("c is 9 </s>")],
        "length": 8,  # 4 of the prompt, 4 of a rationale
        **{f"n_{name}": 0 for name in COUNTERS},
    }
    assert tokenize(row(), index=5)["id"] == "5"
    assert tokenize(row(id=12), index=5)["id"] == "12"


def test_row_and_collator_with_pad_equal_to_eos():
    """From text to labels: the EOS after the answer is supervised, the EOS of the padding is not."""
    out = tokenize(row(prompt="a"), tokenizer=pad_is_eos_tokenizer())
    batch = DataCollatorForQCRD(pad_token_id=EOS, pad_to_multiple_of=6)([out])
    assert batch["input_ids"].tolist() == [[*ids("<Predict> a 7 </s>"), EOS, EOS]]
    assert batch["labels"].tolist() == [[-100, -100, *ids("7 </s>"), -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("tokenizer", "prompt"),
    [
        (bos_tokenizer(), "a + 1"),
        (chat_tokenizer(), [{"role": "user", "content": "a + 1"}]),
        (bos_tokenizer(), "<s> a + 1"),
    ],
    ids=["tokenizer", "template_and_tokenizer", "prompt_text"],
)
def test_one_bos_in_every_sequence(tokenizer, prompt):
    """Two BOS tokens, or one in the middle, are nothing the student has seen; the loss hides it."""
    batch = DataCollatorForQCRD(tokenizer.pad_token_id)([tokenize(row(prompt=prompt), tokenizer=tokenizer)])
    sequences = [*batch["input_ids"].tolist(), *batch["rationale_input_ids"].tolist()]
    assert len(sequences) == 4
    for sequence in sequences:
        assert sequence.count(tokenizer.bos_token_id) == 1
        assert sequence[0] == tokenizer.bos_token_id


def test_encoder_decoder():
    """The completion of an encoder-decoder student has the whole length to itself."""
    form = StudentFormat(is_encoder_decoder=True, max_length=5)
    out = tokenize(row(positive_rationales=["b is 7 so 7 ."]), tokenizer=t5_tokenizer(), form=form)
    assert out["predict_prompt_ids"] == ids("<Predict> a + 1 </s>")
    assert out["explain_prompt_ids"] == ids("<Explain> a + 1 </s>")
    assert out["label_ids"] == ids("7 </s>")
    assert out["positive_ids"] == [ids("b is 7 so 7")]
    assert out["negative_ids"][0] == ids("c is 8 </s>")
    assert counts(out) == {"truncated": 1}


# ---- Lengths ----


def test_rationales_are_cut_at_max_length():
    """A rationale cut to nothing gives 0/0; one that is not cut at all gives a batch beyond the student's positions."""
    short, long = "7 7", " ".join("8" * 29)  # with EOS: 3 and 30 tokens
    out = tokenize(
        row(label=None, positive_rationales=[short], negative_rationales=[long]), form=StudentFormat(max_length=10)
    )
    assert len(out["explain_prompt_ids"]) == 4
    assert out["positive_ids"] == [ids("7 7 </s>")]
    assert out["negative_ids"] == [ids("8 8 8 8 8 8")]
    assert counts(out) == {"truncated": 1}
    assert out["length"] == 10


@pytest.mark.parametrize("changes", [{}, {"label": None}, {"positive_rationales": [], "negative_rationales": []}])
@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_a_prompt_beyond_max_length_is_refused(is_encoder_decoder, changes):
    """40 tokens of prompt in 16 leave no token to learn: a loss of 0 or NaN for that row, for the whole run."""
    form = StudentFormat(max_length=16, is_encoder_decoder=is_encoder_decoder)
    long = " ".join("b" * 39)
    with pytest.raises(DataError, match=r"Row 3: column 'prompt' has 40 tokens.*max_length=16.*Raise `max_length`"):
        tokenize(row(prompt=long, **changes), index=3, form=form)


def test_room_of_one_token():
    """At the limit itself one token of the rationale is learned; one token less is an error, not a loss of nothing."""
    one = row(label=None, positive_rationales=["b"], negative_rationales=[])
    out = tokenize(one, form=StudentFormat(max_length=5))
    assert out["positive_ids"] == [ids("b")]
    assert counts(out) == {"truncated": 1}
    out = tokenize(one, form=StudentFormat(max_length=6))
    assert out["positive_ids"] == [ids("b </s>")]
    assert counts(out) == {}
    with pytest.raises(DataError, match="no room"):
        tokenize(row(label=None), form=StudentFormat(max_length=4))


def test_a_label_is_never_cut():
    """`1 2` cut to `1` is another answer."""
    assert tokenize(row(label="1 2"), form=StudentFormat(max_length=7))["label_ids"] == ids("1 2 </s>")
    with pytest.raises(DataError, match=r"Row 0: the label has 3 tokens.*max_length=6.*Raise"):
        tokenize(row(label="1 2"), form=StudentFormat(max_length=6))


# ---- What is dropped, and counted ----


@pytest.mark.parametrize(
    ("column", "kept", "name"),
    [("positive_rationales", 1, "positive_ids"), ("negative_rationales", 2, "negative_ids")],
)
@pytest.mark.parametrize(
    ("bad", "counter"),
    [(None, "empty"), ("", "empty"), (" \n\t", "empty"), ("\ud83d", "not_utf8"), ("a \udc00", "not_utf8")],
)
def test_unusable_rationales(column, kept, name, bad, counter):
    """`str(None)` would teach the word "None"; half an emoji stops the tokenizer with an error that names no row."""
    good = row()[column]
    out = tokenize(row(**{column: [*good[:1], bad, *good[1:]]}))
    assert out[name] == tokenize(row())[name]
    assert len(out[name]) == kept
    assert counts(out) == {counter: 1}


@pytest.mark.parametrize(
    ("texts", "counter"),
    [(["b is 7", "b is 7"], {"duplicate": 1}), (["b is 7", " b  is\n7 ", "b is 7"], {"duplicate": 2})],
)
def test_duplicates(texts, counter):
    """A positive that stands there twice weighs twice in the mean and in the draw."""
    out = tokenize(row(positive_rationales=texts))
    assert out["positive_ids"] == [ids("b is 7 </s>")]
    assert counts(out) == counter


def test_negative_equal_to_a_positive():
    """The same text pulled up and pushed down at once; the contrast must then be the positive part alone."""
    out = tokenize(row(positive_rationales=["b is 7"], negative_rationales=["b  is 7\n", "\tb is 7"]))
    assert out["negative_ids"] == []
    assert out["positive_ids"] == [ids("b is 7 </s>")]
    assert counts(out) == {"equal_to_positive": 2}


def test_every_other_text_is_kept_as_it_is():
    """White space inside a text is the teacher's; emoji and very long texts are texts."""
    tokenizer = byte_tokenizer()
    texts = ["  1 😀\n\n= é  ", "9 " * 20_000, "\u2028 ok \x00", "None of them"]
    out = tokenize(row(positive_rationales=texts, negative_rationales=[]), tokenizer=tokenizer)
    assert [tokenizer.decode(i[:-1]) for i in out["positive_ids"]] == texts
    assert all(i[-1] == EOS for i in out["positive_ids"])
    assert counts(out) == {}


@pytest.mark.parametrize("label", [None, "", "  "])
def test_no_label(label):
    """Trained on an empty label the student learns to answer nothing; on "None", to say so."""
    out = tokenize(row(label=label))
    assert out["label_ids"] == []
    assert len(out["positive_ids"]) == 1
    assert counts(out) == {}
    assert tokenize({"prompt": "a", "positive_rationales": ["b"]})["label_ids"] == []


def test_label_alone():
    """Rows without rationales are for the label task, not to be dropped."""
    for bare in ({}, {"positive_rationales": None}, {"positive_rationales": []}, {"positive_rationales": [None]}):
        out = tokenize({"prompt": "a + 1", "label": "7", **bare})
        assert out["label_ids"] == ids("7 </s>")
        assert out["positive_ids"] == out["negative_ids"] == []
        assert "nothing_to_learn" not in counts(out)


def test_row_without_anything_to_learn():
    """It would count as a question in the mean of the loss, and thin it out."""
    out = tokenize({"prompt": "a + 1", "label": None, "positive_rationales": [""]})
    assert counts(out) == {"nothing_to_learn": 1, "empty": 1}
    out = tokenize({"prompt": "a", "label": "\ud83d", "positive_rationales": None})
    assert counts(out) == {"nothing_to_learn": 1, "not_utf8": 1}


@pytest.mark.parametrize("prompt", [None, "", " ", "\ud83d", [], [{"role": "user", "content": ""}]])
def test_row_without_a_prompt(prompt):
    """The student would learn to answer the prefix."""
    out = tokenize(row(prompt=prompt), tokenizer=chat_tokenizer())
    assert counts(out) == {"no_prompt": 1}
    assert out["label_ids"] == out["positive_ids"] == []


def test_none_is_in_no_batch():
    """The vocabulary here knows the word, so that a null turned into text would be seen."""
    tokenizer = word_tokenizer()
    rows = [row(label=None), row(positive_rationales=[None, "b"]), {"prompt": "a", "label": "7"}, row(id=None)]
    outs = [tokenize(r, i, tokenizer) for i, r in enumerate(rows)]
    batch = DataCollatorForQCRD(tokenizer.pad_token_id)(outs)
    text = " ".join(tokenizer.batch_decode([*batch["input_ids"], *batch["rationale_input_ids"]]))
    assert "b is 7" in text
    assert "None" not in text
    assert [out["id"] for out in outs] == ["0", "1", "2", "3"]


# ---- What is refused ----


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": 5}, "column 'prompt' must hold a text or a list of messages, got int 5"),
        ({"prompt": ["a"]}, "column 'prompt' must be a text or a list of messages"),
        ({"prompt": [{"role": "user"}]}, "column 'prompt' must be a text or a list of messages"),
        ({"prompt": [{"role": "user", "content": None}]}, "column 'prompt'.*'content'"),
        ({"prompt": [{"role": "system", "content": "a"}]}, "column 'prompt'.*role 'user'"),
        ({"prompt": [{"content": "a"}]}, "column 'prompt'.*'user'"),
        ({"label": 7}, "column 'label' must hold a text or null, got int 7"),
        ({"label": ["7"]}, "column 'label'.*got list"),
        ({"positive_rationales": "b is 7"}, "column 'positive_rationales' must hold a list of texts, got str"),
        ({"positive_rationales": [7]}, "column 'positive_rationales'.*got int 7"),
        ({"positive_rationales": {"a": "b"}}, "column 'positive_rationales'.*got dict"),
        ({"negative_rationales": b"b"}, "column 'negative_rationales'.*got bytes"),
        ({"negative_rationales": [["b"]]}, "column 'negative_rationales'.*got list"),
    ],
)
def test_wrong_types(changes, text):
    """A text where a list belongs would be taken letter by letter; an error without the row cannot be mended."""
    with pytest.raises(DataError, match=f"Row 12: {text}"):
        tokenize(row(**changes), index=12, tokenizer=chat_tokenizer())


# ---- Label-only and raw ----


def test_without_the_rationale_task():
    """Label-only training must not need, read or check rationales."""
    out = tokenize({**row(), "positive_rationales": 5}, rationales=False)
    assert out["label_ids"] == ids("7 </s>")
    assert out["explain_prompt_ids"] == out["positive_ids"] == out["negative_ids"] == []
    assert counts(tokenize(row(label=None), rationales=False)) == {"nothing_to_learn": 1}


def test_raw_column():
    """Distilling step-by-step takes the first sample, also a wrong one: filtered, the baseline would be too good."""
    out = tokenize(row(raw_rationale="d is 5"), source="raw")
    assert out["positive_ids"] == [ids("d is 5 </s>")]
    assert out["negative_ids"] == []
    assert tokenize(row(raw_rationale="d is 5"))["positive_ids"] == [ids("b is 7 </s>")]
    with pytest.raises(DataError, match="Row 0: column 'raw_rationale'"):
        tokenize(row(raw_rationale=5), source="raw")


@pytest.mark.parametrize(("raw", "counter"), [("  ", "empty"), ("\ud83d", "not_utf8")])
def test_raw_column_that_is_unusable(raw, counter):
    """Dropped without a count, the baseline would train on fewer rationales than its report says."""
    out = tokenize(row(raw_rationale=raw), source="raw")
    assert out["positive_ids"] == []
    assert counts(out) == {counter: 1}


def splitmix64(state):
    """SplitMix64's output for one state (Steele et al., 2014), with Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def chained(count, *key):
    state = 0
    for part in key:
        state = splitmix64(state ^ (part % 2**64))
    return state % count


def test_splitmix64_is_splitmix64():
    """The published first output for seed 0, so that the oracle of the next test is not made of the same mistake."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF


def test_draw_is_splitmix64_of_its_key():
    """A draw that changed with the version would make old runs irreproducible, with all tests of equality passing."""
    for key in [(0, 0), (42, 7), (42, 8), (1, 2, 3, 4), (-1, 5), (2**63, 2**40, 9)]:
        for count in (1, 2, 5, 1000):
            assert draw(count, *key) == chained(count, *key), (count, key)
    assert len({draw(2**60, *key) for key in [(1, 2), (2, 1), (0, 3), (3, 0), (3,)]}) == 5


def test_draw_is_uniform():
    """A draw that favours the first sample would be the majority's first text again and again."""
    for key in ((lambda i: (0, i)), (lambda i: (i, 0)), (lambda i: (42, i, 3, 1)), (lambda i: (42, 3, i, 1))):
        seen = Counter(draw(5, *key(i)) for i in range(5000))
        # Expected 1000 each; the standard deviation of one count is sqrt(5000 * 0.2 * 0.8) = 28.
        assert all(abs(seen[j] - 1000) < 5 * 28.3 for j in range(5)), seen


def test_raw_fallback_is_a_function_of_seed_and_index():
    """A stream of random numbers would give another baseline with another number of processes."""
    texts = [*row()["positive_rationales"], *row()["negative_rationales"]]
    seen = set()
    for index in range(20):
        out = tokenize(row(), index, source="raw", seed=3)
        assert out["positive_ids"] == [ids(f"{texts[chained(3, 3, index)]} </s>")]
        assert out["negative_ids"] == []
        assert out == tokenize(row(), index, source="raw", seed=3)
        seen.add(str(out["positive_ids"]))
    assert len(seen) == 3
    others = [tokenize(row(), index, source="raw", seed=4)["positive_ids"] for index in range(20)]
    assert others != [tokenize(row(), index, source="raw", seed=3)["positive_ids"] for index in range(20)]
    assert tokenize({"prompt": "a", "label": "7"}, source="raw")["positive_ids"] == []


def test_fold_white_space():
    """The identity of a rationale: two texts that differ in more are two rationales."""
    assert fold_white_space(" a\n\tb  c\u00a0") == "a b c"
    assert fold_white_space("a b") != fold_white_space("ab")
