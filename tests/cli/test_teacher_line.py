"""From questions to a training set through a server: `qcrd sample`, `qcrd select` and `qcrd report`, one after the other."""

import pytest
from datasets import load_dataset
from teacher_line import QUESTIONS, Adder, sample, serving, write_questions

from qcrd_trl.cli import main as cli


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "questions.jsonl")


def test_from_questions_to_a_training_set(questions, tmp_path, capsys):
    """Each command passes its own tests on files made by hand: the fields that one writes are those that the next reads."""
    samples, selected = tmp_path / "samples.jsonl", tmp_path / "selected"
    with Adder() as server:
        assert sample(questions, server, samples) == 0
        assert len(server.seen) == 6  # five samples a request
        assert sample(questions, server, samples) == 0
        assert len(server.seen) == 6  # nothing is asked again
    assert len(samples.read_text().splitlines()) == 30
    assert cli.main(["select", "--samples", str(samples), "--task_kind", "number", "--output_dir", str(selected)]) == 0
    rows = load_dataset("parquet", data_files=str(selected / "train.parquet"), split="train")
    rows = sorted(rows, key=lambda row: row["id"])  # the file has them as the answers came
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(6)]
    first = rows[0]
    assert (first["prompt"], first["label"]) == (QUESTIONS[0]["prompt"], "2")
    # Three right ones and one wrong one; the truncated one has no vote. The marks of the template are no part of a rationale.
    assert first["positive_rationales"] == [f"Way {number}: 0 and 2 make 2." for number in range(3)]
    assert first["negative_rationales"] == ["Way 3: 0 and 2 make 0."]
    capsys.readouterr()
    figures = tmp_path / "figures.json"
    assert cli.main(["report", str(samples), "--output_dir", str(tmp_path / "pictures"), "--json", str(figures)]) == 0
    assert "truncated" in capsys.readouterr().out
    assert list((tmp_path / "pictures").glob("**/*.png"))
    assert cli.main(["report", str(selected)]) == 0


def test_shards_give_the_same(questions, tmp_path):
    """Machines that share the questions out would each sample, and select, something else than one machine does."""
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    with Adder() as server:
        assert sample(questions, server, whole) == 0
        for index in range(2):
            part = tmp_path / f"part-{index}.jsonl"
            assert sample(questions, server, part, "--num_shards", "2", "--shard_index", str(index)) == 0
            assert 0 < len(part.read_text().splitlines()) < 30
    parts.write_text("".join((tmp_path / f"part-{index}.jsonl").read_text() for index in range(2)))
    assert sorted(parts.read_text().splitlines()) == sorted(whole.read_text().splitlines())
    for name, path in (("one", whole), ("two", parts)):
        argv = ["select", "--samples", str(path), "--task_kind", "number", "--output_dir", str(tmp_path / name)]
        assert cli.main(argv) == 0
    one, two = (
        load_dataset("parquet", data_files=str(tmp_path / name / "train.parquet"), split="train").to_list()
        for name in ("one", "two")
    )
    assert sorted(one, key=lambda row: row["id"]) == sorted(two, key=lambda row: row["id"])


def test_a_wrong_key_and_a_server_that_is_gone(questions, tmp_path, capsys, monkeypatch):
    """A run that nobody watches must end with a status and a line that says why, and with nothing written."""
    monkeypatch.setenv("OPENAI_API_KEY", serving.KEY)
    samples = tmp_path / "samples.jsonl"
    refusal = serving.error_reply(401, f"Incorrect API key provided: {serving.KEY}")
    with Adder(refusal) as server:
        server.models = refusal
        assert sample(questions, server, samples) == 2
    error = capsys.readouterr().err
    assert "401" in error
    assert serving.KEY not in error
    assert sample(questions, server, samples) == 2
    assert server.url in capsys.readouterr().err
    assert not samples.exists()
