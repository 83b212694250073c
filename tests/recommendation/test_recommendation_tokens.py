"""Rows to ids: what is predicted, what is left out, and what is refused."""

import logging

import pytest
from datasets import Dataset
from recommended import small_data
from tiny import BOS, EOS, bos_tokenizer, byte_tokenizer, chat_tokenizer, ids, pad_is_eos_tokenizer, word_tokenizer

from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import generative_rows
from qcrd_trl.recommendation.tokens import tokenize_rows


N = -100
# Words of the tiny tokenizers as titles.
WORDS = ["a", "b", "c", "d", "e", "f", "g", "1 2", "3", "4", "5", "6"]
FORM = RecommendationPrompt(prompt="so {history} + {candidates} =", separator=" ")


def items(*rows, **arguments):
    return tokenize_rows(Dataset.from_dict({"items": list(rows)}), "item_head", num_items=10, **arguments)


def texts(tokenizer, form=FORM, split="validation", **arguments):
    """u0 of the small data in words: history a b c d, candidates 6 e 5, target e."""
    rows = generative_rows(small_data(WORDS), split, form=form, users=[0])
    return tokenize_rows(rows, "generative", tokenizer, **arguments)


def test_item_rows():
    """A label that is shifted here and in the model is learned two steps ahead."""
    rows = items([3, 1, 4], [9, 0])
    assert rows.column_names == ["input_ids", "labels", "row_index", "length"]
    assert rows["input_ids"] == [[3, 1, 4], [9, 0]]
    assert rows["labels"] == [[N, 1, 4], [N, 0]]
    assert (rows["row_index"], rows["length"]) == ([0, 1], [3, 2])
    assert items([3, 1, 4], [9, 0], train_positions="last")["labels"] == [[N, N, 4], [N, 0]]


def test_item_rows_are_cut_and_dropped_with_counts(caplog):
    """Rows that shrink or vanish silently are another training set than the one that was asked for."""
    with caplog.at_level(logging.WARNING):
        rows = items([1, 2, 3, 4, 5], [7], [6, 7, 8], [], max_history=2)
    assert rows["input_ids"] == [[3, 4, 5], [6, 7, 8]]
    assert rows["labels"] == [[N, 4, 5], [N, 7, 8]]
    assert rows["row_index"] == [0, 2]
    assert caplog.messages == [
        "train_dataset: 2 rows dropped: fewer than two items, so that nothing precedes a target, 1 rows lost their oldest "
        "history, to fit, 2 history items left out of them."
    ]
    with pytest.raises(DataError, match="none of its 1 rows can be used"):
        items([1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 10], r"row 1: item 10 is not one of the 10 items \(0 to 9\)"),
        ([-1, 1], "item -1"),
    ],
)
def test_items_out_of_range(row, message):
    """Index `num_items` is the padding row: it trains without an error."""
    with pytest.raises(DataError, match=message):
        items([0, 1], row)


@pytest.mark.parametrize("rows", [["a", "b"], [[0.5, 1.0], [1.0, 2.0]], [None, [1, 2]]])
def test_items_of_a_wrong_type(rows):
    """Item ids as texts are no indices, and a float would be cut to one."""
    with pytest.raises(DataError, match="row 0: column 'items' must hold a list of item indices"):
        tokenize_rows(Dataset.from_dict({"items": rows}), "item_head", num_items=10)


def test_plain_text():
    """Prompt 10 tokens, answer 2: only the answer and its end are predicted; with pad = EOS as well."""
    for tokenizer in (word_tokenizer(), pad_is_eos_tokenizer()):
        [row] = texts(tokenizer)
        assert row["input_ids"] == ids("so a b c d + 6 e 5 = e </s>")
        assert row["labels"] == [N] * 10 + [*ids("e"), EOS]
        assert row["length"] == 12
    batch = DataCollatorForC2KD(EOS, pad_to_multiple_of=16)([row])
    assert batch["labels"][0].tolist() == [N] * 10 + [*ids("e"), EOS] + [N] * 4


def test_one_bos():
    """Two BOS tokens, from the template and from the tokenizer, are a beginning that no model has seen."""
    [row] = texts(bos_tokenizer())
    assert row["input_ids"] == [BOS, *ids("so a b c d + 6 e 5 = e </s>")]
    chat = RecommendationPrompt(prompt=FORM.prompt, separator=" ", chat=True)
    [row] = texts(chat_tokenizer(), chat)
    assert row["input_ids"] == [BOS, *ids("<|user|> so a b c d + 6 e 5 = </s> <|assistant|> e </s>")]
    assert row["labels"][-2:] == [*ids("e"), EOS]
    assert set(row["labels"][:-2]) == {N}
    with pytest.raises(ModelError, match="no chat template"):
        texts(word_tokenizer(), chat)


@pytest.mark.parametrize(
    ("max_length", "kept", "dropped"),
    [(12, "a b c d", 0), (11, "b c d", 1), (10, "c d", 2), (9, "d", 3), (8, "", 4)],
)
@pytest.mark.parametrize("chat", [False, True])
def test_the_oldest_history_goes_first(max_length, kept, dropped, chat, caplog):
    """A prompt cut at its end loses the candidates and the question; a cut target teaches a title that there is not."""
    form = RecommendationPrompt(prompt=FORM.prompt, separator=" ", chat=chat)
    before, after = ("<s> <|user|> so", "= </s> <|assistant|> e </s>") if chat else ("so", "= e </s>")
    with caplog.at_level(logging.WARNING):
        [row] = texts(chat_tokenizer() if chat else word_tokenizer(), form, max_length=max_length + 4 * chat)
    assert row["input_ids"] == ids(f"{before} {kept} + 6 e 5 {after}")
    assert [label for label in row["labels"] if label != N] == ids("e </s>")
    assert (f"1 rows lost their oldest history, to fit, {dropped} history items left out" in caplog.text) is (
        dropped > 0
    )


def test_history_of_many_titles_is_cut_to_what_fits():
    """The search for what fits must find the longest history that does, not any."""
    sequences = [[i % 9 for i in range(50)]]
    for width in (60, 61, 75, 100):
        data = small_data(sequences=sequences)
        rows = generative_rows(data, "test", max_history=48, form=FORM)
        tokenizer = byte_tokenizer()
        [row] = tokenize_rows(rows, "generative", tokenizer, max_length=width)
        assert row["length"] <= width
        kept = tokenizer.decode(row["input_ids"]).split("+")[0].split("so ")[1].split(" title ")
        assert row["length"] + len(" title 1") > width, "another title would have fitted"
        assert len(kept) < 48


def test_a_prompt_that_does_not_fit_without_history():
    """Found in the middle of the run, it costs the run; the message says by how much."""
    message = "validation, row 0: the prompt has 6 tokens without its history and its target 2, which do not fit in max_length=7"
    with pytest.raises(DataError, match=message):
        texts(word_tokenizer(), max_length=7, name="validation")


def own(prompt, completion="b"):
    return Dataset.from_list([{"prompt": prompt, "completion": completion}])


def test_rows_of_a_users_own():
    """Without the columns that say where the history stands nothing can be left out of it, and nothing is."""
    [row] = tokenize_rows(own("a a a ="), "generative", word_tokenizer(), max_length=6)
    assert row["input_ids"] == ids("a a a = b </s>")
    message = "has 4 tokens and its target 2, which do not fit in max_length=5. Its history cannot be shortened"
    with pytest.raises(DataError, match=message):
        tokenize_rows(own("a a a ="), "generative", word_tokenizer(), max_length=5)


@pytest.mark.parametrize(
    ("prompt", "completion", "message"),
    [
        (" ", "b", "column 'prompt' must hold a text"),
        (None, "b", "column 'prompt' must hold a text"),
        ([{"role": "user", "content": None}], "b", "each with a text as 'content'"),
        ([{"role": "assistant", "content": "a"}], "b", "must end with the user's turn"),
        ("a", " ", "column 'completion' must hold the target's title"),
        ("a", None, "column 'completion' must hold the target's title"),
        ("a", 3, "column 'completion' must hold the target's title"),
    ],
)
def test_bad_rows(prompt, completion, message):
    """An empty target teaches to end at once."""
    with pytest.raises(DataError, match=f"train_dataset, row 0.*{message}"):
        tokenize_rows(own(prompt, completion), "generative", word_tokenizer())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task_mode": "items"}, "must be one of 'item_head', 'generative', got 'items'"),
        ({"task_mode": "item_head"}, "needs `num_items`"),
        ({"task_mode": "generative"}, "needs the tokenizer"),
        ({"task_mode": "item_head", "num_items": 3, "train_positions": "first"}, "'all', 'last', got 'first'"),
    ],
)
def test_bad_arguments(arguments, message):
    """What does not fit together is said before a row is read."""
    with pytest.raises(ConfigError, match=message):
        tokenize_rows(own("a"), **arguments)


def test_bad_datasets():
    """Rows of the other task mode are the likeliest mistake."""
    with pytest.raises(DataError, match=r"no column 'items'; its columns are 'prompt', 'completion'.*other task mode"):
        tokenize_rows(own("a"), "item_head", num_items=3)
    with pytest.raises(DataError, match="eval is empty"):
        tokenize_rows(own("a").select([]), "generative", word_tokenizer(), name="eval")
    with pytest.raises(DataError, match="got list"):
        tokenize_rows([{"items": [1, 2]}], "item_head", num_items=3)
