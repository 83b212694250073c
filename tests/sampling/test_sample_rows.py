"""Samples one by one from long and wide rows."""

import json

import pytest

from qcrd_trl.data.sources import Rows
from qcrd_trl.errors import DataError
from qcrd_trl.sampling.questions import find_columns
from qcrd_trl.sampling.sample_rows import samples_of_rows


def read(rows, text_cells=False, **columns):
    source = Rows("rows.jsonl", lambda: rows, text_cells=text_cells)
    found = samples_of_rows(source, find_columns(source, "number", **columns))
    return [(question.id, question.label, sample and sample["text"]) for question, sample in found]


def test_columns_are_found():
    """What `qcrd sample` writes and what a user has are read without a flag."""
    assert read([{"id": "a", "text": "x", "label": 1}]) == [("a", "1", "x")]
    assert read([{"id": 7, "rationales": ["x", {"text": "y"}]}]) == [("7", None, "x"), ("7", None, "y")]
    assert read([{"k": "a", "s": ["x"], "g": "2"}], id="k", samples="s", label="g") == [("a", "2", "x")]


def test_rows_before_the_first_text():
    """A file that begins with failed samples is long all the same; a question without samples is a question."""
    failed = {"id": "a", "text": None, "sample_index": 0}
    assert read([failed, {"id": "a", "text": "x"}]) == [("a", None, None), ("a", None, "x")]
    assert read([{"id": "a", "text": None}, {"id": "b", "text": "x"}]) == [("a", None, None), ("b", None, "x")]
    assert read([{"id": "a", "rationales": None}, {"id": "b", "rationales": ["x"]}]) == [
        ("a", None, None),
        ("b", None, "x"),
    ]
    assert read([{"id": "a", "rationales": []}, {"id": "b", "rationales": None}]) == [
        ("a", None, None),
        ("b", None, None),
    ]


def test_without_ids():
    """Single texts belong together by their prompt; counted one by one every vote would be unanimous."""
    rows = [{"prompt": prompt, "text": "x"} for prompt in ("p", "q", "p")]
    ids = [key for key, _, _ in read(rows)]
    assert ids[0] == ids[2] != ids[1]
    assert [key for key, _, _ in read([{"prompt": "p", "rationales": ["x"]}] * 2)] == ["0", "1"]


def test_cells_of_text():
    """In a CSV file a list is JSON."""
    assert read([{"id": "a", "rationales": json.dumps(["x", "y"])}], text_cells=True) == [
        ("a", None, "x"),
        ("a", None, "y"),
    ]


@pytest.mark.parametrize("label", [None, "", " ", float("nan")])
def test_no_label(label):
    """What stands for "no label" in CSV and Parquet must not be a label."""
    assert read([{"id": "a", "text": "x", "label": label}]) == [("a", None, "x")]


@pytest.mark.parametrize(("label", "text"), [(18, "18"), (18.0, "18"), (0.1, "0.1"), (" B ", " B ")])
def test_labels_that_are_numbers(label, text):
    """A column of numbers is floats as soon as one is missing: the text 18.0 is no class and no letter."""
    assert read([{"id": "a", "text": "x", "label": label}]) == [("a", text, "x")]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([{"id": "a", "answers": ["x"]}], {}, "no column 'rationales' for the samples; .*: id, answers"),
        ([{"id": "a", "text": "x"}], {"label": "gold"}, "no column 'gold' for the label; .* --label_column"),
        ([{"id": "a", "text": "x"}], {"samples": "s"}, "no column 's' for the samples"),
        ([{"id": "a", "text": "x"}, {"id": "b", "text": ["y"]}], {}, r"Column 'text', row 1 .*one text a row.*list"),
        ([{"id": "a", "rationales": 3}], {}, r"Column 'rationales', row 0 .*a list of texts.*int 3"),
        ([{"id": "a", "rationales": [{"t": "x"}]}], {}, 'a "text"'),
        ([{"id": "a", "rationales": ["x"]}, {"id": "a", "rationales": ["y"]}], {}, "row 1 .*'a' has stood"),
        ([{"id": None, "text": "x"}], {}, "identifies the row, got NoneType"),
        ([{"id": "a", "text": "x", "label": ["3"]}], {}, r"Column 'label', row 0 .*a text or a number"),
        ([{"id": "a", "text": "x", "label": True}], {}, r"a text or a number, got bool"),
        ([{"id": 1.5, "text": "x"}], {}, "identifies the row, got float"),
    ],
)
def test_wrong_rows(rows, columns, message):
    """The message names the row, what is wrong with it, and the flag."""
    with pytest.raises(DataError, match=message):
        read(rows, **columns)
