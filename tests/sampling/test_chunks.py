"""Chunks of questions: from memory or from the disk, whole or in shards, the same questions."""

import random

import pytest

from qcrd_trl.data.shards import check_shard, shard_of
from qcrd_trl.data.sources import Rows
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.sampling import chunks as chunks_module
from qcrd_trl.sampling.chunks import Chunks, Part
from qcrd_trl.sampling.questions import Columns


def long_rows(questions=50, samples=4, seed=0, settings=None):
    rows = [
        {"id": f"q{q}", "prompt": f"p{q}", "label": str(q), "text": f"t{q}-{s}", "sample_index": s}
        for q in range(questions)
        for s in range(samples)
    ]
    for row in rows:
        if settings:
            row["settings_hash"] = settings
    random.Random(seed).shuffle(rows)
    return rows


def of(rows, part=None, folder=None, size=7, **columns):
    columns = {"samples": "text", **columns}
    return Chunks(Rows("rows", lambda: rows), Columns(**columns), part, folder, size)


def questions_of(chunks):
    return [question for chunk in chunks for question in chunk.questions()]


@pytest.mark.parametrize("has_ids", [True, False])
def test_spilled_rows_are_those_in_memory(tmp_path, monkeypatch, has_ids):
    """Samples far apart meet again: lost ones would change votes, in large files only."""
    rows = long_rows()
    if not has_ids:
        rows = [{**row, "prompt": row["prompt"] * 50} for row in rows]
    id = "id" if has_ids else None
    expected = questions_of(of(rows, id=id))
    assert len(expected) == 50
    monkeypatch.setattr(chunks_module, "_ROWS_IN_MEMORY", 9)
    spilled = of(rows, folder=tmp_path, id=id)
    assert len(list(tmp_path.iterdir())) == spilled.num_chunks == 8
    assert questions_of(spilled) == expected
    assert [q.row for q in expected] == sorted(q.row for q in expected)
    for question in expected:
        number = question.label
        assert [sample.text for sample in question.samples] == [f"t{number}-{s}" for s in range(4)]


def test_wide_chunks_stream():
    """A wide source is read no further than it is asked for."""
    read = []

    def rows():
        for i in range(30):
            read.append(i)
            yield {"id": i, "prompt": "p", "label": "1", "rationales": ["a"]}

    source = Rows("rows", rows, ["id", "prompt", "label", "rationales"], 30)
    made = Chunks(source, Columns(), size=10)
    assert (made.num_questions, made.num_chunks) == (30, 3)
    read.clear()
    first = next(iter(made))
    assert (len(first.questions()), len(read)) == (10, 10)


def test_shards_share_out_the_questions():
    """A question in two shards, or in none, would be sampled twice or lost."""
    wide = [{"id": f"q{i}", "prompt": "p", "label": "1", "rationales": ["a"]} for i in range(40)]
    for rows, columns in ((long_rows(40), {}), (wide, {"samples": "rationales"}), (long_rows(40), {"id": None})):
        whole = questions_of(of(rows, **columns))
        parts = [questions_of(of(rows, Part(3, shard), **columns)) for shard in range(3)]
        assert all(parts)
        assert sorted((q for part in parts for q in part), key=lambda q: q.row) == whole
        for shard, part in enumerate(parts):
            assert {shard_of(question.id, 3) for question in part} == {shard}


def test_shard_of_is_pinned():
    """Shards of a file sampled last year must be those of today. SHA-256 of "a" begins ca978112ca1bbdca."""
    assert shard_of("a", 1000) == 0xCA978112CA1BBDCA % 1000
    check_shard(3, 2)
    for wrong in ((0, 0), (3, 3), (3, -1)):
        with pytest.raises(ConfigError, match="shard"):
            check_shard(*wrong)


def test_settings_are_not_mixed():
    """Samples at two temperatures would vote together as if one teacher had drawn them."""
    rows = long_rows(3, 2, settings="aaaa") + long_rows(3, 1, settings="bbbb")
    with pytest.raises(DataError, match=r"2 settings.*aaaa \(6 rows\), bbbb \(3 rows\).*--settings_hash"):
        of(rows)
    assert [len(q.samples) for q in questions_of(of(rows, Part(settings_hash="bbbb")))] == [1, 1, 1]
    with pytest.raises(DataError, match=r"no samples of the settings cccc. It has: aaaa"):
        of(rows, Part(settings_hash="cccc"))
    with pytest.raises(DataError, match="no column 'settings_hash'"):
        of(long_rows(), Part(settings_hash="aaaa"))
    with pytest.raises(DataError, match="one row a question"):
        of([{"id": 1, "prompt": "p", "label": "1", "text": ["a"]}], Part(settings_hash="aaaa"))


def test_a_sample_stands_once():
    """A file joined with itself would give every sample two votes; two runs joined would mix what they number alike."""
    rows = long_rows(3, 2, settings="aaaa")
    assert questions_of(of(rows + rows)) == questions_of(of(rows))
    other = {**rows[1], "text": "another"}
    with pytest.raises(DataError, match=rf"Rows 1 and 6 .* both sample {rows[1]['sample_index']} .* but differ"):
        questions_of(of([*rows, other]))


def test_column_beyond_those_peeked_at():
    """A column that begins late in the file is there all the same."""
    rows = [{"id": i, "prompt": "p", "rationales": ["a"], **({"label": "1"} if i > 5 else {})} for i in range(9)]
    source = Rows("rows", lambda: rows, peek=3)
    assert (source.num_rows, "label" in source.column_names) == (None, False)
    assert len(questions_of(Chunks(source, Columns()))) == 9
    assert source.num_rows == 9
    with pytest.raises(DataError, match="no column 'gold'"):
        Chunks(Rows("rows", lambda: rows, peek=3), Columns(label="gold"))
