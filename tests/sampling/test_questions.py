"""Reading questions from rows of either layout."""

import pytest

from qcrd_trl.data.sources import Rows
from qcrd_trl.errors import DataError
from qcrd_trl.records import Sample
from qcrd_trl.sampling.chunks import read_questions
from qcrd_trl.sampling.questions import Columns, prompt_problem, read_choices


def questions_of(rows, text_cells=False, **columns):
    columns.setdefault("id", "id" if any("id" in row for row in rows) else None)
    questions, total = read_questions(Rows("rows", lambda: rows, text_cells=text_cells), Columns(**columns))
    questions = list(questions)
    assert total == len(questions)
    return questions


def test_wide_layout():
    """A row without the key must read as null, not shift the samples of its neighbours."""
    rows = [
        {"id": 7, "prompt": "p", "label": 32, "rationales": ["a", None, {"text": "b", "status": "truncated"}]},
        {"id": "x", "prompt": "q"},
    ]
    first, second = questions_of(rows)
    assert (first.id, first.prompt, first.label) == ("7", "p", "32")
    assert first.samples == (Sample("a"), Sample(None), Sample("b", "truncated"))
    assert (second.row, second.label, second.samples) == (1, None, ())


def test_long_layout_groups_rows_and_orders_samples():
    """Concurrent requests finish in any order: ungrouped, every sample would be a question with one vote."""
    rows = [
        {"id": "a", "prompt": "p", "label": "1", "rationales": "a1", "sample_index": 1, "status": "ok"},
        {"id": "b", "prompt": "q", "label": "2", "rationales": "b0", "sample_index": 0, "status": "ok"},
        {"id": "a", "prompt": "p", "label": "1", "rationales": "a0", "sample_index": 0, "status": "ok"},
        {"id": "a", "prompt": "p", "label": "1", "rationales": None, "sample_index": 2, "status": "empty"},
    ]
    first, second = questions_of(rows)
    assert (first.id, first.samples) == ("a", (Sample("a0"), Sample("a1"), Sample(None, "empty")))
    assert (second.id, second.samples) == ("b", (Sample("b0"),))


def test_long_layout_without_ids_groups_by_prompt():
    """The row number as the id would take a question apart."""
    rows = [{"prompt": "p", "label": "1", "rationales": text} for text in ("a", "b")]
    (question,) = questions_of(rows)
    assert (question.id, [sample.text for sample in question.samples]) == ("0", ["a", "b"])


def test_long_layout_with_two_labels_for_one_id():
    """Keeping the first label would call right samples wrong."""
    rows = [{"id": "a", "prompt": "p", "label": label, "rationales": "t"} for label in ("1", "2")]
    with pytest.raises(DataError, match=r"Rows 0 and 1 .* not the same label: '1' and '2'"):
        questions_of(rows)


def test_csv_cells_hold_lists_as_json():
    """The text '["a", "b"]' as one sample would train on brackets and quotes."""
    row = {"prompt": '[{"role": "user", "content": "p"}]', "label": "B", "rationales": '["a", "b"]', "o": '["x", "y"]'}
    (question,) = questions_of([row], text_cells=True, choices="o")
    assert question.prompt == [{"role": "user", "content": "p"}]
    assert [sample.text for sample in question.samples] == ["a", "b"]
    assert question.choices == {"A": "x", "B": "y"}
    with pytest.raises(DataError, match=r"'rationales', row 0 .* not JSON"):
        questions_of([{"prompt": "p", "label": "1", "rationales": "['a', 'b']"}], text_cells=True)


def test_csv_prompt_that_only_begins_like_json_stays_text():
    """Questions about code begin with brackets."""
    rows = [{"prompt": '["a"][0] is?', "label": "a", "rationales": "It is a."}]
    assert questions_of(rows, text_cells=True)[0].prompt == '["a"][0] is?'


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, None),
        ("  ", None),
        (float("nan"), None),
        (18, "18"),
        (18.0, "18"),
        (1e-7, "0.0000001"),
        (" 18 ", " 18 "),
    ],
)
def test_labels(cell, expected):
    """A null label must never become the text "None" or "nan", which every sample would then contradict."""
    (question,) = questions_of([{"prompt": "p", "label": cell, "rationales": ["a"]}])
    assert question.label == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": 3, "label": "1", "rationales": []}, "'prompt', row 1 .* got int 3"),
        ({"prompt": [{"role": "user"}], "label": "1", "rationales": []}, "'prompt', row 1"),
        ({"prompt": "p", "label": ["1"], "rationales": []}, "'label', row 1 .* got list"),
        ({"prompt": "p", "label": True, "rationales": []}, "'label', row 1 .* got bool"),
        ({"prompt": "p", "label": "1", "rationales": 4}, "'rationales', row 1 .* --samples_column"),
        ({"prompt": "p", "label": "1", "rationales": "text"}, "'rationales', row 1 .* got str"),
        ({"prompt": "p", "label": "1", "rationales": [{"answer": "x"}]}, "'rationales', row 1 .*\"text\""),
    ],
)
def test_wrong_types_name_column_and_row(row, message):
    """Without column and row, one bad line among 100,000 is a day's search."""
    with pytest.raises(DataError, match=message):
        questions_of([{"prompt": "p", "label": "1", "rationales": ["a"]}, row])


def test_missing_column_names_what_there_is():
    """A typing error in a flag must not read as "all rows are null"."""
    with pytest.raises(
        DataError, match=r"no column 'answer' for the label; .*: prompt, label, rationales\. .*--label_column"
    ):
        questions_of([{"prompt": "p", "label": "1", "rationales": []}], label="answer")


def test_duplicate_and_missing_ids():
    """Two rows under one id would share their negatives later on."""
    rows = [{"id": key, "prompt": "p", "label": "1", "rationales": ["a"]} for key in ("a", "b", "a", 5, "5")]
    with pytest.raises(DataError, match=r"2 ids stand more than once .*: 'a' in rows 0, 2; '5' in rows 3, 4"):
        questions_of(rows)
    with pytest.raises(DataError, match=r"'id', row 1 .* got NoneType None"):
        questions_of([rows[0], {**rows[1], "id": None}])


def test_choices():
    """A dictionary column that went through Arrow has every letter of every row, the absent ones null."""
    expected = {"A": "x", "B": "y"}
    for cell in (
        {"A": "x", "B": "y", "C": None},
        ["x", "y"],
        {"label": ["A", "B"], "text": ["x", "y"]},
        [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
    ):
        assert read_choices(cell) == expected
    assert read_choices(None) is None
    for wrong in (3, [], {"label": ["A"], "text": []}, {"A": "x", "a": "y"}, {"1": "x"}, [1, 2]):
        with pytest.raises(DataError, match="'options', row 4"):
            read_choices(wrong, "options", 4)


def test_prompt_problem():
    """A prompt that is null or half an emoji must be counted, not crash a tokenizer later."""
    assert prompt_problem("p 😀") is None
    assert prompt_problem(None) == "null"
    assert prompt_problem([{"role": "user", "content": "  "}]) == "blank"
    assert prompt_problem([{"role": "user", "content": "\ud83d"}]) == "lone_surrogate"
