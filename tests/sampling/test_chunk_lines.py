"""Samples files whose lines the main process does not read: the same questions as if it did."""

import json

import pytest

from qcrd_trl.data.sources import Rows, load_rows
from qcrd_trl.errors import DataError
from qcrd_trl.records import TeacherSample
from qcrd_trl.sampling import chunks as chunks_module
from qcrd_trl.sampling.chunks import Chunks, Part
from qcrd_trl.sampling.questions import Columns


COLUMNS = Columns(samples="text", choices=None)
HASH = "0123456789abcdef"


def line_of(id, index, text="t", **more):
    sample = TeacherSample(id, f"asks {id}", index, text, "stop", "ok", "m", 0.7, 1, HASH, {}, "1")
    return json.dumps({**vars(sample), **more}, ensure_ascii=False)


def write(path, lines, end="\n"):
    path.write_bytes(("\n".join(lines) + end).encode())
    return path


def read(path, part=None, folder=None, notes=None):
    rows = load_rows(path, note=(lambda text: None) if notes is None else notes.append)
    made = Chunks(rows, COLUMNS, part, folder, size=3)
    return made, [question for chunk in made for question in chunk.questions()]


def read_whole(path, part=None):
    """The same, each line read at once."""
    rows = load_rows(path, note=lambda text: None)
    whole = Rows(rows.name, lambda: iter(rows), rows.column_names)
    return [question for chunk in Chunks(whole, COLUMNS, part, size=3) for question in chunk.questions()]


def lines(count=11):
    texts = ['says "id": "x"', "ends\nhere", "é ÷ 😀", '"settings_hash": "none"', "\\", "{"]
    return [line_of(f"q{q}", s, f"{texts[(q + s) % 6]} {q}-{s}") for s in range(3) for q in range(count)]


@pytest.mark.parametrize("part", [None, Part(settings_hash=HASH), Part(num_shards=2, shard_index=1)])
@pytest.mark.parametrize("in_memory", [20_000, 4])
def test_questions_are_those_of_lines_read_at_once(tmp_path, monkeypatch, part, in_memory):
    """A sample that met the wrong question, or none, would change its vote."""
    monkeypatch.setattr(chunks_module, "_ROWS_IN_MEMORY", in_memory)
    path = write(tmp_path / "samples.jsonl", ["", *lines(), "  "])
    (tmp_path / "waiting").mkdir()
    made, questions = read(path, part, tmp_path / "waiting")
    blocks = [block for chunk in made for block in chunk._waiting_rows()]
    places = [row for block in blocks for row in block if type(row[2]) is list]
    assert len(places) >= 3 * len(questions) - 1 > 9  # all but the first row of the file
    assert questions == read_whole(path, part)
    assert [sample.text[-3:] for sample in questions[0].samples] == [f"{questions[0].id[1:]}-{s}" for s in range(3)]


def test_lines_in_other_forms_are_read_at_once(tmp_path):
    """An id that is escaped, a number, or not in front, and a value with its own `id`, name the same questions as elsewhere."""
    odd = [
        line_of('q"0', 0),
        json.dumps({"text": "late", **json.loads(line_of("q1", 3))}),
        json.dumps({"id": 7, **{k: v for k, v in json.loads(line_of("x", 0)).items() if k != "id"}}),
        line_of("q2", 3).replace('"id": ', '"id":', 1),
        line_of("é1", 0, choices={"id": "of another"}),
        json.dumps(json.loads(line_of("é1", 1))),
    ]
    path = write(tmp_path / "samples.jsonl", lines(4) + odd)
    made, questions = read(path)
    assert questions == read_whole(path)
    assert [question.id for question in questions] == ["q0", "q1", "q2", "q3", 'q"0', "7", "é1"]
    kinds = [type(row[2]) is list for chunk in made for row in chunk.rows]
    assert 0 < kinds.count(False) < len(kinds)


def test_files_of_a_folder(tmp_path):
    """The samples of a question may stand in several files, each with its own lines."""
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "train-00000-of-00002.jsonl", lines()[:17])
    write(tmp_path / "parts" / "train-00001-of-00002.jsonl", lines()[17:])
    _, questions = read(tmp_path / "parts")
    assert len(questions) == 11
    assert questions == read_whole(tmp_path / "parts")


def test_cut_off_line_is_left_out(tmp_path):
    """What a sampler is about to write is no error, though its id can be read."""
    path = write(tmp_path / "samples.jsonl", [*lines(2), line_of("q0", 9)[:-20]], end="")
    notes = []
    _, questions = read(path, notes=notes)
    assert [len(question.samples) for question in questions] == [3, 3]
    (note,) = notes
    assert "line 7: left out" in note
    assert questions == read_whole(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (line_of("q0", 9)[:-1], r"samples.jsonl, line 7: not valid JSON"),
        (
            line_of("q0", 9)[:-1] + ', "id": "q1"}',
            r"samples.jsonl, line 7: 'id' or 'settings_hash' stands there twice",
        ),
        (line_of("q0", 9)[:-1] + ', "settings_hash": "b"}', r"line 7: 'id' or 'settings_hash' stands there twice"),
    ],
)
def test_line_that_is_not_what_it_seemed(tmp_path, bad, message):
    """A line that belongs elsewhere by the time that it is read would vote in the wrong question."""
    path = write(tmp_path / "samples.jsonl", [*lines(2), bad, line_of("q1", 9)])
    with pytest.raises(DataError, match=message):
        read(path)


def test_samples_of_several_settings_are_told_apart(tmp_path):
    """A line of other settings that was taken for one of the first would vote."""
    other = line_of("q0", 0, settings_hash="f" * 16)
    path = write(tmp_path / "samples.jsonl", [*lines(2), other])
    with pytest.raises(DataError, match=f"{HASH} .6 rows., {'f' * 16} .1 rows."):
        read(path)
    _, questions = read(path, Part(settings_hash="f" * 16))
    assert [(question.id, len(question.samples)) for question in questions] == [("q0", 1)]
