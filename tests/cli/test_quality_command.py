"""`qcrd quality` from a saved student and a file to figures, pictures and a table."""

import json

import pytest
from saved import TAUGHT

from qcrd_trl.cli.main import main


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TAUGHT))
    return path


def test_command(tmp_path, saved_student, data, capsys):
    """What is written must name what was measured, and no path of this machine."""
    out = tmp_path / "out" / "quality.json"
    argv = ["quality", "--model", str(saved_student("adapter")), "--dataset", str(data), "--output", str(out)]
    argv += ["--temperatures", "1.5", "--task_kind", "number", "--max_new_tokens", "4", "--seed", "3"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "teacher positives" in shown
    assert "student samples, T = 1.5" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if "│" in line)
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "quality.json", "quality_density.png", "quality_reliability.png"
    ]  # fmt: skip
    report = json.loads(out.read_text())
    assert (report["model"], report["questions"], report["arguments"]["dataset"]) == ("student", 4, "held.jsonl")
    assert report["settings"]["seed"] == 3
    assert report["sources"]["teacher_positive"]["reach_the_label"] == 1.0
    assert report["versions"]["torch"]
    assert str(tmp_path) not in out.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num_samples", "0"], "--num_samples must be at least 1, got 0"),
        (["--task_kind", "sum"], "Unknown task_kind 'sum'"),
        (["--task_kind", "number", "--task_callable", "a:b"], "not both"),
        (["--output", "."], "is a folder"),
        (
            ["--output", "/dev/null/q.json"],
            "/dev/null/q.json cannot be written",
        ),  # before the samples, which take long
    ],
)
def test_wrong_flags(tmp_path, data, capsys, flags, said):
    """Told before the student is loaded: here there is none."""
    argv = ["quality", "--model", str(tmp_path / "none"), "--dataset", str(data), "--output", str(tmp_path / "q.json")]
    assert main([*argv, *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
