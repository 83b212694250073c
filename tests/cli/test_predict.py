"""`qcrd predict`: a stream of questions in, a line for each out."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from saved import CHATS, QUESTIONS, TAUGHT

from qcrd_trl import RationaleStudent
from qcrd_trl.cli.main import main


LABELS = [row["label"] for row in TAUGHT]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"id": row["id"], "prompt": row["prompt"]}) + "\n" for row in TAUGHT))
    return path


def predict(folder, *flags):
    return main(["predict", "--model", str(folder), "--max_new_tokens", "8", *map(str, flags)])


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def stdin(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def test_a_file(saved_student, questions, tmp_path, capsys):
    """A line that lands at another question's id is wrong for each question, and right on average."""
    output = tmp_path / "new" / "answers.jsonl"
    flags = ("--input", questions, "--output", output, "--explain", "--task_kind", "number", "--batch_size", "3")
    assert predict(saved_student("full"), *flags) == 0
    found = lines(output)
    settings = found[0]["settings_hash"]
    student = RationaleStudent.from_pretrained(saved_student("full"))
    expected = student.explain(QUESTIONS, max_new_tokens=8)
    for row, line, explanation in zip(TAUGHT, found, expected, strict=True):
        assert line.pop("settings_hash") == settings
        assert line.pop("quality") == pytest.approx(explanation.quality, abs=1e-5)
        assert line == {
            "id": row["id"],
            "prompt": row["prompt"],
            "predicted_text": row["label"],
            "predicted": row["label"],
            "rationale": row["positive_rationales"][0],
            "reached": row["label"],
            "rationale_finished": True,
        }
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"Wrote the answers to 4 questions to {output}" in captured.err


def test_labels_alone_on_standard_output(saved_student, questions, capsys):
    """What is piped on must be JSON and nothing else; notes and progress go to stderr."""
    assert predict(saved_student("full"), "--input", questions) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["predicted_text"] for line in found] == LABELS
    assert set(found[0]) == {"id", "prompt", "predicted_text", "predicted", "settings_hash"}
    assert found[0]["predicted"] is None  # no task kind was given


def test_samples(saved_student, questions, capsys):
    """Each with its seed, so that it can be drawn again; a rerun gives the same."""
    flags = (
        "--input",
        questions,
        "--explain",
        "--num_samples",
        "3",
        "--temperature",
        "2",
        "--seed",
        "7",
        "--no_labels",
    )
    outputs = []
    for size in (1, 32):
        assert predict(saved_student("full"), *flags, "--batch_size", size) == 0
        outputs.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    texts = [[[sample["text"] for sample in line["samples"]] for line in output] for output in outputs]
    assert texts[0] == texts[1]
    assert all(len(samples) == 3 for samples in texts[0])
    assert all("predicted_text" not in line for line in outputs[0])
    assert {sample["temperature"] for line in outputs[0] for sample in line["samples"]} == {2.0}


@pytest.mark.parametrize(
    ("data", "flags", "ids"),
    [
        (b"a + 0\n\n  a + a + 1  \r\n", (), ["0", "2"]),
        (b'\n{"prompt": "a + 0"}\n{"prompt": "a + a + 1", "id": 5}\n', (), ["0", "5"]),
        (b"\xef\xbb\xbfid,question\nx,a + 0\ny,a + a + 1\n", ("--input_format", "csv"), ["x", "y"]),
        (b"question\tid\na + 0\tx\na + a + 1\ty\n", ("--input_format", "tsv"), ["x", "y"]),
    ],
    ids=["text", "jsonl", "csv", "tsv"],
)
def test_standard_input(saved_student, monkeypatch, capsys, data, flags, ids):
    """Text is known from JSON Lines by how it begins; blank lines are no questions, but count."""
    stdin(monkeypatch, data)
    column = ("--prompt_column", "question") if flags else ()
    assert predict(saved_student("full"), *flags, *column) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in found] == ids
    assert [line["prompt"] for line in found] == QUESTIONS[:2]
    assert [line["predicted_text"] for line in found] == LABELS[:2]


def test_a_pipe_is_answered_as_it_comes(saved_student, monkeypatch, tmp_path):
    """Whoever types questions, or waits for a slow source, sees no answer before the source ends otherwise."""
    output, seen = tmp_path / "out.jsonl", []

    class Slow(io.RawIOBase):
        def __iter__(self):
            for question in QUESTIONS:
                seen.append(len(lines(output)) if output.exists() else 0)
                yield question.encode() + b"\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    assert predict(saved_student("full"), "--output", output, "--batch_size", "2") == 0
    assert seen == [0, 0, 2, 2]
    assert len(lines(output)) == 4


def test_a_text_file_and_conversations(saved_student, tmp_path, capsys):
    """One question a line, and messages as the student was taught them."""
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(QUESTIONS))
    assert predict(saved_student("full"), "--input", path) == 0
    assert [json.loads(line)["predicted_text"] for line in capsys.readouterr().out.splitlines()] == LABELS
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"prompt": chat}) + "\n" for chat in CHATS))
    assert predict(saved_student("adapter_chat"), "--input", path, "--explain") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in found] == CHATS
    student = RationaleStudent.from_pretrained(saved_student("adapter_chat"))
    assert [line["rationale"] for line in found] == [e.rationale for e in student.explain(CHATS, max_new_tokens=8)]


def test_rows_without_a_question(saved_student, tmp_path, capsys):
    """Left out with a count, and the others keep their numbers."""
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": null}\n{"prompt": "a + 0"}\n{"prompt": "  "}\n')
    assert predict(saved_student("full"), "--input", path) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["id"] for line in captured.out.splitlines()] == ["1"]
    assert "Left out 2 rows whose question is null or empty (rows count from 0): 0, 2" in captured.err


def test_goes_on_after_a_kill(saved_student, questions, tmp_path, capsys):
    """What was answered is kept, the half-written line is made anew, and the file is that of a run that never stopped."""
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    flags = ("--input", questions, "--explain", "--num_samples", "2")
    assert predict(saved_student("full"), *flags, "--output", whole) == 0
    data = whole.read_bytes()
    end = [place for place, byte in enumerate(data) if byte == ord("\n")]
    cut.write_bytes(data[: end[1] + 40])
    assert predict(saved_student("full"), *flags, "--output", cut) == 2
    assert "is there already" in capsys.readouterr().err
    assert predict(saved_student("full"), *flags, "--output", cut, "--resume") == 0
    assert [{**line, "quality": None, "samples": None} for line in lines(cut)] == [
        {**line, "quality": None, "samples": None} for line in lines(whole)
    ]
    assert cut.read_bytes()[: end[1] + 1] == data[: end[1] + 1]
    assert "2 were there already" in capsys.readouterr().err
    assert predict(saved_student("full"), *flags, "--output", cut, "--resume") == 0  # nothing is left to do
    assert len(lines(cut)) == 4


def test_goes_on_only_where_it_fits(saved_student, questions, tmp_path, capsys):
    """Answers of two settings in one file would be compared as one run's."""
    output = tmp_path / "out.jsonl"
    assert predict(saved_student("full"), "--input", questions, "--output", output) == 0
    for flags, message in (
        (("--label_max_new_tokens", "3"), "line 1 of"),
        (("--dtype", "bfloat16"), "was written with other settings"),
    ):
        assert predict(saved_student("full"), "--input", questions, "--output", output, "--resume", *flags) == 2
        assert message in capsys.readouterr().err
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "q0", "prompt": "a + 0"}\n{"id": "q1", "prompt": "b"}\n')
    assert predict(saved_student("full"), "--input", other, "--output", output, "--resume") == 2
    assert "line 2 of" in capsys.readouterr().err
    assert predict(saved_student("full"), "--input", other, "--output", output, "--overwrite_output") == 0
    assert [line["prompt"] for line in lines(output)] == ["a + 0", "b"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "a + 0"}\n{"prompt": "\xff"}\n', "line 2: not UTF-8 text"),
        (b'{"prompt": "a + 0"}\n{"prompt": \n', "line 2: not valid JSON"),
        (b'{"prompt": "a + 0"}\n{"question": "a"}\n', "row 1 (rows count from 0) has no column 'prompt'"),
        (b'{"prompt": 3}\n', "row 0 (rows count from 0) cannot be asked: expected a text"),
        (b'{"prompt": "\\ud83d"}\n', "lone surrogate"),
        (b"a + 0\n\xff\n", "line 2: not UTF-8 text"),
        (b"", "standard input has no question"),
        (b" \n\n", "standard input has no question"),
        (b'{"prompt": [{"role": "user", "content": "a"}]}\n', "no chat template"),
    ],
)
def test_bad_lines_end_in_one_line(saved_student, monkeypatch, capsys, data, message):
    """With the line's number: files are long."""
    stdin(monkeypatch, data)
    assert predict(saved_student("full")) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qcrd predict: error: ")]
    assert len(errors) == 1
    assert message in errors[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "./no/such"), "There is no folder './no/such'"),
        (("--input", "./no/such.jsonl"), "./no/such.jsonl"),
        (("--input", "./no/such.txt"), "./no/such.txt is no file"),
        (("--output", "."), "is a folder: give a file"),
        (("--num_samples", "2"), "are of rationales: add --explain"),
        (("--temperature", "0", "--explain"), "--temperature must be greater than 0"),
        (("--num_samples", "0"), "--num_samples must be at least 1, got 0"),
        (("--no_labels",), "--no_labels leaves nothing to ask"),
        (("--task_kind", "essay"), "Unknown task kind 'essay'"),
        (("--task_kind", "number", "--task_callable", "a:b"), "exclude each other"),
        (("--load_in_4bit", "--load_in_8bit"), "exclude each other"),
        (("--resume",), "--resume goes on with a file"),
        (("--resume", "--output", "x", "--overwrite_output"), "exclude each other"),
        (("--dtype", "float33"), "Unknown dtype 'float33'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_work_ends_in_one_line(saved_student, questions, capsys, flags, message):
    """Before the model is loaded, where that can be."""
    assert predict(saved_student("full"), "--input", questions, *flags) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qcrd predict: error: ")]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_label_only_student(saved_student, questions, tmp_path, capsys):
    """It is told at once, not after all labels were predicted."""
    import shutil

    folder = shutil.copytree(saved_student("full"), tmp_path / "student")
    form = json.loads((folder / "qcrd_format.json").read_text())
    (folder / "qcrd_format.json").write_text(json.dumps({**form, "explains": False}))
    assert predict(folder, "--input", questions, "--explain", "--output", tmp_path / "out.jsonl") == 2
    assert "was taught labels alone" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
    (folder / "qcrd_format.json").write_text(json.dumps({**form, "predicts": False}))
    assert predict(folder, "--input", questions) == 2
    assert "was taught rationales alone" in capsys.readouterr().err
    assert predict(folder, "--input", questions, "--explain") == 0
    assert "predicted_text" not in json.loads(capsys.readouterr().out.splitlines()[0])


def test_the_reader_goes_away(saved_student, tmp_path):
    """`qcrd predict ... | head -1` must end without a traceback."""
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(QUESTIONS * 50))
    command = [sys.executable, "-m", "qcrd_trl", "predict", "--model", str(saved_student("full"))]
    child = subprocess.Popen(
        [*command, "--input", str(path), "--batch_size", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert json.loads(child.stdout.readline())["predicted_text"] == "1"
    child.stdout.close()
    errors = child.stderr.read().decode()
    assert child.wait(timeout=300) == 141
    assert "Traceback" not in errors
    child.stderr.close()


def test_texts_beyond_ascii(saved_student, tmp_path, capsys):
    """A terminal's encoding must not turn JSON into something else."""
    path = tmp_path / "questions.txt"
    path.write_text("é 😀\u2028 b\n", encoding="utf-8")
    assert predict(saved_student("full"), "--input", path, "--output", tmp_path / "out.jsonl") == 0
    assert lines_by_feed(tmp_path / "out.jsonl")[0]["prompt"] == "é 😀\u2028 b"


def lines_by_feed(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]
