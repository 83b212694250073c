"""`qcrd score`: pairs of question and rationale in, a line with its quality for each out."""

import io
import json
import shutil
import sys
import types

import pytest
from saved import QUESTIONS, TAUGHT

from qcrd_trl import RationaleStudent
from qcrd_trl.cli.main import main


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"id": row["id"], "prompt": row["prompt"], "rationale": row["positive_rationales"][0], **row} for row in TAUGHT
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(model, pairs, *flags):
    return main(["score", "--model", str(model), "--pairs", str(pairs), *map(str, flags)])


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("place", ["", "discriminator"])
def test_the_student_of_a_discriminator(saved_student, pairs, capsys, place):
    """Its discriminator reads its own states, so that it is found beside a discriminator's folder too."""
    assert score(saved_student("full") / place, pairs) == 0
    found = lines(capsys.readouterr().out)
    student = RationaleStudent.from_pretrained(saved_student("full"))
    expected = student.score(QUESTIONS, [row["positive_rationales"][0] for row in TAUGHT])
    assert [line["quality"] for line in found] == pytest.approx(expected, abs=1e-6)
    assert [(line["id"], line["prompt"], line["rationale"]) for line in found] == [
        (row["id"], row["prompt"], row["positive_rationales"][0]) for row in TAUGHT
    ]
    assert len(set(expected)) == 4


def test_a_list_of_rationales(saved_student, pairs, tmp_path, capsys):
    """A training set holds several a question: each has a line, known by its place."""
    output = tmp_path / "scores.jsonl"
    flags = ("--rationale_column", "negative_rationales", "--output", output, "--batch_size", "3")
    assert score(saved_student("adapter"), pairs, *flags) == 0
    found = lines(output.read_text())
    assert [(line["id"], line["rationale_index"], line["rationale"]) for line in found] == [
        (row["id"], place, text) for row in TAUGHT for place, text in enumerate(row["negative_rationales"])
    ]
    student = RationaleStudent.from_pretrained(saved_student("adapter"))
    expected = student.score([line["prompt"] for line in found], [line["rationale"] for line in found])
    assert [line["quality"] for line in found] == pytest.approx(expected, abs=1e-6)
    assert f"Wrote the quality of 8 rationales to {output}" in capsys.readouterr().err
    assert score(saved_student("adapter"), pairs, *flags) == 2
    assert "is there already" in capsys.readouterr().err
    assert score(saved_student("adapter"), pairs, *flags, "--overwrite_output") == 0


def test_csv_and_what_is_left_out(saved_student, tmp_path, capsys):
    """Rows without a text are counted, and the others keep their numbers."""
    path = tmp_path / "pairs.csv"
    path.write_text('prompt,rationale\na + 0,0 + 1 = 1\na + 0,\n,b\na + 0,"[""b c"", ""d""]"\n')
    assert score(saved_student("full"), path) == 0
    captured = capsys.readouterr()
    assert [(line["id"], line["rationale"]) for line in lines(captured.out)] == [
        ("0", "0 + 1 = 1"),
        ("3", "b c"),
        ("3", "d"),
    ]
    assert "Left out 2 rows without a question or a rationale (rows count from 0): 1, 2" in captured.err


def test_what_predict_writes(saved_student, pairs, tmp_path, capsys, monkeypatch):
    """The two commands make a pipe."""
    flags = ("--input", pairs, "--explain", "--max_new_tokens", "8")
    assert main(["predict", "--model", str(saved_student("full")), *map(str, flags)]) == 0
    predicted = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(predicted.encode())))
    assert score(saved_student("full"), "-") == 0
    found = lines(capsys.readouterr().out)
    assert [line["quality"] for line in found] == pytest.approx(
        [line["quality"] for line in lines(predicted)], abs=1e-5
    )


def test_an_encoder_of_its_own(tmp_path, pairs, capsys, monkeypatch):
    """It needs no student: its folder alone is enough."""

    class Scorer:
        @classmethod
        def from_pretrained(cls, path):
            return cls()

        def to(self, device):
            return self

        def score(self, prompts, rationales, batch_size):
            return [1 / (1 + len(text)) for text in rationales]

    module = types.ModuleType("qcrd_trl.rationale_scorer")
    module.RationaleScorer = Scorer
    monkeypatch.setitem(sys.modules, "qcrd_trl.rationale_scorer", module)
    (tmp_path / "config.json").write_text('{"kind": "encoder"}')
    assert score(tmp_path, pairs) == 0
    assert [line["quality"] for line in lines(capsys.readouterr().out)] == [1 / 10] * 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"prompt": "a", "rationale": 3}\n', "row 0 (rows count from 0): column 'rationale' must hold a text"),
        (
            '{"prompt": "a"}\n',
            "has no column 'rationale'; its columns are: 'prompt'. Name the right one with --rationale_column",
        ),
        ('{"rationale": "a"}\n', "has no column 'prompt'"),
        ('{"prompt": 3, "rationale": "a"}\n', "row 0 (rows count from 0) cannot be asked: expected a text"),
        ('{"prompt": "a", "rationale": "\\ud83d"}\n', "lone surrogate"),
        ('{"prompt": "a", "rationale": [null, " "]}\n', "has no question with a rationale"),
        ('{"prompt": "a", "rationale": "b"}\n{', "line 2: not valid JSON"),
        ("", "has no rows"),
    ],
)
def test_bad_pairs_end_in_one_line(saved_student, tmp_path, capsys, rows, message):
    """With the row's number."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(rows)
    assert score(saved_student("full"), path) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qcrd score: error: ")]
    assert len(errors) == 1
    assert message in errors[0]


def test_what_cannot_score(saved_student, pairs, tmp_path, capsys):
    """A score of another model's states is a number between 0 and 1, too."""
    alone = shutil.copytree(saved_student("full") / "discriminator", tmp_path / "discriminator")
    without = shutil.copytree(saved_student("full"), tmp_path / "student")
    shutil.rmtree(without / "discriminator")
    damaged = shutil.copytree(saved_student("full"), tmp_path / "damaged")
    (damaged / "discriminator" / "model.safetensors").write_bytes(b"x" * 20)
    (tmp_path / "empty").mkdir()
    for model, message in (
        (alone, "reads the hidden states of the student that it was trained with, which is not beside it"),
        (without, "has no discriminator"),
        (damaged, "is damaged"),
        ("./no/such", "There is no folder"),
        (tmp_path / "empty", "No discriminator"),
        (tmp_path, "No student"),  # the folder around a discriminator that was copied alone
    ):
        assert score(model, pairs) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qcrd score: error: ")]
        assert len(errors) == 1
        assert message in errors[0], errors
    assert score(saved_student("full"), pairs, "--batch_size", "0") == 2
    assert "--batch_size must be at least 1" in capsys.readouterr().err
    assert score(saved_student("full"), pairs, "--rationale_column", "prompt") == 2
    assert "both name 'prompt'" in capsys.readouterr().err
