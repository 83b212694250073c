"""A user's dataset to the tokenized one: what is checked up front, and what is counted."""

import logging

import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from tiny import chat_tokenizer, ids, ragged_rows, word_tokenizer

from qcrd_trl import DataCollatorForQCRD, StudentFormat
from qcrd_trl.data.dataset import check_columns, prepare_dataset
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.errors import DataError


COLUMNS = {
    *("question_index", "id", "predict_prompt_ids", "label_ids", "explain_prompt_ids"),
    *("positive_ids", "negative_ids", "length"),
}


def prepare(dataset, tokenizer=None, name="train_dataset", num_proc=None, **kwargs):
    row_tokenizer = RowTokenizer(tokenizer or word_tokenizer(), kwargs.pop("form", StudentFormat()), **kwargs)
    return prepare_dataset(dataset, row_tokenizer, name, num_proc)


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def logged(caplog):
    return " ".join(record.getMessage() for record in caplog.records if record.name.startswith("qcrd_trl"))


def test_rows_and_columns(caplog):
    """Extra columns must not get in the way, and each row must keep its own rationales."""
    rows = ragged_rows(8)
    with caplog.at_level(logging.INFO, "qcrd_trl"):
        prepared = prepare(Dataset.from_list(rows))
    assert set(prepared.column_names) == COLUMNS
    assert prepared["question_index"] == list(range(8))
    assert prepared["id"] == [row["id"] for row in rows]
    for row, made in zip(rows, prepared, strict=True):
        assert made["positive_ids"] == [ids(f"{text} </s>") for text in row["positive_rationales"]]
        assert made["negative_ids"] == [ids(f"{text} </s>") for text in row["negative_rationales"]]
        assert made["label_ids"] == ids(f"{row['label']} </s>")
    # Every third of 8 rows (0, 3, 6) has no positive.
    assert "5 of 8 questions have a positive rationale" in logged(caplog)


@pytest.mark.parametrize("kind", ["generator", "to_iterable"])
def test_streaming(kind):
    """Streaming datasets have no length and may not know their columns; negatives must still reach the collator."""
    rows = ragged_rows(6)
    dataset = stream(rows) if kind == "generator" else Dataset.from_list(rows).to_iterable_dataset()
    prepared = prepare(dataset)
    assert isinstance(prepared, IterableDataset)
    streamed = list(prepared)
    assert [set(row) for row in streamed] == [COLUMNS] * 6
    assert streamed == list(prepare(Dataset.from_list(rows)))
    batch = DataCollatorForQCRD(0)(streamed)
    assert (~batch["rationale_is_positive"]).sum() == sum(len(row["negative_rationales"]) for row in rows) == 9


def test_streaming_drops_unusable_rows():
    """A lone surrogate fits in no Arrow table, so it comes by streaming: the row goes, the index of the others stays."""
    rows = [
        {"prompt": "a", "label": "1", "positive_rationales": ["b \ud83d", "c"], "meta": {"x": 1}},
        {"prompt": "\ud83d", "label": "1", "positive_rationales": ["b"], "meta": None},
        {"prompt": "a", "label": None, "positive_rationales": [], "meta": None},
        {"prompt": "d", "label": None, "positive_rationales": ["e"], "meta": None},
    ]
    streamed = list(prepare(stream(rows)))
    assert [row["question_index"] for row in streamed] == [0, 3]
    assert streamed[0]["positive_ids"] == [ids("c </s>")]


def test_streaming_errors_name_the_row():
    """The error comes in the middle of a run: without the row there is nothing to look for."""
    rows = [*ragged_rows(2), {**ragged_rows(1)[0], "label": 7}]
    with pytest.raises(DataError, match="Row 2: column 'label'"):
        list(prepare(stream(rows)))


def test_dropped_rows_are_counted(caplog):
    """Rows that vanish without a word make a training set of another size than the user believes."""
    good = {"prompt": "a", "label": "1", "positive_rationales": ["b"], "negative_rationales": None}
    rows = [
        good,
        {**good, "prompt": None},
        {**good, "prompt": " "},
        {**good, "label": None, "positive_rationales": [None]},
        {**good, "positive_rationales": ["b", "b ", ""], "negative_rationales": ["b\n", "c", "c"]},
    ]
    with caplog.at_level(logging.INFO, "qcrd_trl"):
        prepared = prepare(Dataset.from_list(rows), name="eval_dataset")
    assert prepared["question_index"] == [0, 4]
    assert prepared[1]["positive_ids"] == [ids("b </s>")]
    assert prepared[1]["negative_ids"] == [ids("c </s>")]
    text = logged(caplog)
    assert "eval_dataset: " in text
    for count in (
        "2 rows dropped: prompt null",
        "1 rows dropped: neither a label nor a rationale",
        "2 rationales dropped: null, empty",
        "2 rationales dropped: equal to another",
        "1 negatives dropped: equal to a positive",
    ):
        assert count in text
    assert "cut at max_length" not in text
    assert "2 of 5 questions have a positive rationale" in text


def test_a_clean_dataset_gives_no_warning(caplog):
    """A warning at every start is not read when it matters."""
    with caplog.at_level(logging.WARNING, "qcrd_trl"):
        prepare(Dataset.from_list(ragged_rows(4)))
    assert logged(caplog) == ""


def test_no_positive_at_all():
    """The run would train on labels alone and be reported as distillation."""
    rows = [{"prompt": "a", "label": "1", "positive_rationales": [], "negative_rationales": ["b"]}] * 4
    with pytest.raises(DataError, match=r"train_dataset: 0 of 4 questions .*positive_rationales.*label_only"):
        prepare(Dataset.from_list(rows))
    assert len(prepare(Dataset.from_list(rows), rationales=False)) == 4


def test_zero_of_counts_the_dropped_rows_too():
    """0 of 3 where the file has 4 rows sends the user to look for the fourth."""
    rows = [{"prompt": p, "label": "1", "positive_rationales": [None]} for p in ("a", "b", None, "c")]
    with pytest.raises(DataError, match="0 of 4 questions"):
        prepare(Dataset.from_list(rows))


def test_no_usable_row():
    """An empty dataset behind the filter ends in an error of the sampler's that names nothing."""
    rows = [{"prompt": "a", "label": None}, {"prompt": None, "label": "1"}]
    with pytest.raises(DataError, match=r"none of its 2 rows can be used \(1 rows dropped.*1 rows dropped"):
        prepare(Dataset.from_list(rows), rationales=False)


def test_negatives_column_may_be_absent():
    """k = 0 for every question: no negative, and no error."""
    rows = [{"prompt": "a", "label": "1", "positive_rationales": ["b", "c"]}] * 2
    prepared = prepare(Dataset.from_list(rows))
    assert prepared["negative_ids"] == [[], []]
    batch = DataCollatorForQCRD(0)(list(prepared))
    assert batch["rationale_is_positive"].tolist() == [True] * 4


def test_first_row_without_rationales():
    """Arrow takes the type of a column from what it sees first: an empty list, or null."""
    for first in ([], None, [None]):
        rows = [{"prompt": "a", "label": "1", "positive_rationales": value} for value in (first, ["b"], ["c", None])]
        assert prepare(Dataset.from_list(rows))["positive_ids"] == [[], [ids("b </s>")], [ids("c </s>")]]


def test_conversational_dataset():
    """Arrow gives messages back as dictionaries in a list; the template needs them as they were."""
    rows = [
        {
            "prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": f"b {i}"}],
            "label": str(i),
            "positive_rationales": ["c"],
        }
        for i in range(2)
    ]
    for dataset in (Dataset.from_list(rows), stream(rows)):
        made = list(prepare(dataset, chat_tokenizer()))
        assert [row["explain_prompt_ids"] for row in made] == [
            ids(f"<s> <|system|> a </s> <|user|> <Explain> b {i} </s> <|assistant|>") for i in range(2)
        ]
        assert made[1]["label_ids"] == ids("1 </s>")


def test_raw_source_needs_no_positives_column():
    """A dataset of raw samples is all that distilling step-by-step needs."""
    rows = [{"prompt": "a", "label": "1", "raw_rationale": "b"}, {"prompt": "a", "label": "1", "raw_rationale": None}]
    assert prepare(Dataset.from_list(rows), source="raw")["positive_ids"] == [[ids("b </s>")], []]


def test_processes_do_not_change_the_result():
    """The draw of a raw sample and the index of a row must not depend on the shard that a process gets."""
    dataset = Dataset.from_list(ragged_rows(8))
    alone = prepare(dataset, source="raw", seed=5)
    assert prepare(dataset, source="raw", seed=5, num_proc=2).to_list() == alone.to_list()
    assert sum(len(texts) for texts in alone["positive_ids"]) >= 6


@pytest.mark.parametrize("make", [Dataset.from_list, stream])
@pytest.mark.parametrize(
    ("missing", "rationales", "text"),
    [
        ("prompt", True, "no column 'prompt'; its columns are 'label'"),
        ("positive_rationales", True, "no column 'positive_rationales'.*rename_columns"),
        ("prompt", False, "no column 'prompt'"),
        ("label", False, "no column 'label'"),
    ],
)
def test_missing_columns(make, missing, rationales, text):
    """With `question` in place of `prompt` every row would be dropped as one without a prompt."""
    rows = [{k: v for k, v in row.items() if k != missing} for row in ragged_rows(2)]
    with pytest.raises(DataError, match=text):
        prepare(make(rows), rationales=rationales)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (DatasetDict({"train": Dataset.from_list(ragged_rows(2))}), "train_dataset is a dictionary of splits .train."),
        ({"a": Dataset.from_list(ragged_rows(2)), "b": None}, "dictionary of splits .a, b."),
        (ragged_rows(2), r"got list.*Dataset\.from_list"),
        ("rows.jsonl", "got str"),
        (Dataset.from_list([]), "is empty: it has 0 rows"),
        (Dataset.from_dict({"prompt": [], "label": [], "positive_rationales": []}), "is empty"),
        (stream([]), "is empty"),
    ],
)
def test_not_a_dataset(dataset, text):
    """The base class would fail with an AttributeError, or train for no step at all and say nothing."""
    with pytest.raises(DataError, match=text):
        check_columns(dataset, True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"label": 7}, "Row 1: column 'label' must hold a text or null, got int 7"),
        ({"positive_rationales": "b"}, "Row 0: column 'positive_rationales' must hold a list"),
        ({"prompt": 3}, "Row 0: column 'prompt'"),
    ],
)
def test_wrong_types_are_found_up_front(changes, text):
    """Found at step 900 of 1000, a wrong cell costs the run."""
    rows = ragged_rows(3)
    if "label" in changes:
        rows = [{**row, "label": None} for row in rows]
        rows[1] |= changes
    else:
        rows = [{**row, **changes} for row in rows]
    with pytest.raises(DataError, match=text):
        prepare(Dataset.from_list(rows))


def test_the_callers_dataset_is_not_changed():
    """Presets are compared on one dataset: what one run takes away the next does not have."""
    dataset = Dataset.from_list(ragged_rows(4))
    before = (dataset.column_names, dataset.to_list())
    prepare(dataset)
    assert (dataset.column_names, dataset.to_list()) == before
