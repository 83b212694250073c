"""Samples one by one from long and wide rows."""

import json

import pytest

from qcrd_trl.errors import DataError
from qcrd_trl.sampling.sample_rows import SampleColumns, read_sample_lines, samples_of_rows


def read(rows, text_cells=False, **columns):
    found = samples_of_rows(rows, SampleColumns(**columns), "rows.jsonl", text_cells)
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
        ([{"id": "a", "answers": ["x"]}], {}, "no column 'rationales' or 'text' for the samples; .*: id, answers"),
        ([{"id": "a", "text": "x"}], {"label": "gold"}, "no column 'gold' for the label; .* --label_column"),
        ([{"id": "a", "text": "x"}], {"samples": "s"}, "no column 's' for the samples"),
        ([{"id": "a", "text": "x"}, {"id": "b", "text": ["y"]}], {}, r"column 'text', row 1 .*one text a row.*list"),
        ([{"id": "a", "rationales": 3}], {}, r"column 'rationales', row 0 .*a list of texts.*int 3"),
        ([{"id": "a", "rationales": [{"t": "x"}]}], {}, 'a "text"'),
        ([{"id": "a", "rationales": ["x"]}, {"id": "a", "rationales": ["y"]}], {}, "row 1 .*'a' has stood"),
        ([{"id": None, "text": "x"}], {}, "identifies the question, got NoneType"),
        ([{"id": "a", "text": "x", "label": ["3"]}], {}, r"column 'label', row 0 .*a text or a number"),
        ([{"id": "a", "text": "x", "label": True}], {}, r"a text or a number as label, got bool"),
        ([{"id": 1.5, "text": "x"}], {}, "identifies the question, got float"),
    ],
)
def test_wrong_rows(rows, columns, message):
    """The message names the row, what is wrong with it, and the flag."""
    with pytest.raises(DataError, match=message):
        read(rows, **columns)


def test_a_torn_last_line_is_left_out(tmp_path):
    """A file that a sampler still writes, or that a kill ended, would else have no report at all."""
    path = tmp_path / "samples.jsonl"
    line = json.dumps({"id": "a", "text": "1 \u2028 é"}, ensure_ascii=False) + "\n"
    for torn in (line[:-5].encode(), line.encode()[: line.encode().index("é".encode()) + 1], b"12"):
        notes = []
        path.write_bytes(line.encode() * 2 + b"\n" + torn)
        rows = list(read_sample_lines(path, notes.append))
        assert [row["id"] for row, _ in rows] == ["a", "a"]
        assert sum(size for _, size in rows) == 2 * len(line.encode())
        assert len(notes) == 1
        assert notes[0].startswith("line 4, the last one, is torn")
    notes = []
    path.write_bytes(line.encode() * 2 + line.encode().rstrip(b"\n"))  # whole, only without its line feed
    assert len(list(read_sample_lines(path, notes.append))) == 3
    assert notes == []


@pytest.mark.parametrize("torn", [b'{"id": "a", "te\n', b"12\n", b"\xff\n"])
def test_a_broken_line_is_an_error(tmp_path, torn):
    """Lines left out in the middle would be samples that vanish."""
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"id": "a", "text": "1"}\n' + torn + b'{"id": "a", "text": "1"}\n')
    with pytest.raises(DataError, match=r"samples.jsonl, line 2: (not|expected)"):
        list(read_sample_lines(path, pytest.fail))
