"""`qcrd evaluate --compare`: a table, a file, and errors in one line."""

import json

import pytest
from evaluated import FIRST, SECOND, saved

from qcrd_trl.cli.main import main


def compare(*flags):
    return main(["evaluate", "--compare", *map(str, flags)])


def test_prints_a_table_and_writes_json(tmp_path, capsys):
    """The table is what is read: what is a difference, of what sign, and whether it is one at all."""
    one, other = saved(tmp_path / "1.json", FIRST, SECOND), saved(tmp_path / "2.json", SECOND, SECOND)
    output = tmp_path / "new" / "compared.json"
    assert compare(one, other, "--output", output) == 0
    out = capsys.readouterr().out
    for part in ("10 questions", "30.0 %", "70.0 %", "+40.0", "0.219", "McNemar's exact test"):
        assert part in out, part
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["comparison"] is True
    assert content["differences"][0]["difference"] == pytest.approx(0.4)
    assert [path.name for path in output.parent.iterdir()] == ["compared.json"]


def test_seeds_are_joined_by_commas(tmp_path, capsys):
    """Read as one name, two seeds are no file; read as two students, they are compared with each other."""
    paths = [saved(tmp_path / f"{n}.json", right) for n, right in enumerate((FIRST, SECOND, SECOND, SECOND))]
    assert compare(f"{paths[0]},{paths[1]}", f"{paths[2]},{paths[3]}", "--output", tmp_path / "c.json") == 0
    content = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [run["files"] for run in content["runs"]] == [["0.json", "1.json"], ["2.json", "3.json"]]
    assert content["differences"][0]["difference"] == pytest.approx(0.2)
    out = capsys.readouterr().out
    assert "paired permutation test" in out
    assert "run 1: " in out
    assert "0.json and 1 more\n" in out
    first, second = out.split("Differences from run 1 in points")
    assert "│ 2   │" in first
    assert "+20.0" in second
    assert "│ 1   │" not in second
    assert max(len(line) for line in out.splitlines() if line[:1] == "│") <= 80


def test_a_file_whose_name_has_a_comma(tmp_path):
    """It is there: whoever named it so means it."""
    saved(tmp_path / "lr=1,5.json", FIRST)
    assert compare(tmp_path / "lr=1,5.json", saved(tmp_path / "2.json", SECOND)) == 0


def test_settings_are_allowed_on_request(tmp_path, capsys):
    """With a note, so that nobody takes the difference for the student's alone."""
    one, other = saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND, num_samples=8)
    assert compare(one, other) == 2
    assert "Pass --allow_settings" in capsys.readouterr().err
    assert compare(one, other, "--allow_settings") == 0
    assert "Note: num_samples is 1 for" in capsys.readouterr().out


def test_the_seed_is_that_of_the_resamples(tmp_path):
    """A published interval is found again by the seed in the file."""
    rows = [FIRST * 4, SECOND * 4]
    files = [saved(tmp_path / f"{n}.json", right) for n, right in enumerate(rows)]
    found = []
    for seed in (0, 0, 5):
        assert compare(*files, "--seed", seed, "--output", tmp_path / "c.json") == 0
        found.append(json.loads((tmp_path / "c.json").read_text(encoding="utf-8")))
    assert found[0] == found[1]
    assert found[2]["seed"] == 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["1.json"], "--compare needs two results or more, got 1"),
        (["1.json", "3.json"], "There are no results at 3.json"),
        (["1.json", "2.json", "--model", "x"], "leave --model out, or --compare"),
        (["1.json", "2.json", "--task_kind", "number"], "leave --task_kind out, or --compare"),
        (["1.json", "other.json"], "1.json and other.json are of different questions: only 1.json has 9 questions"),
        (["1.json", "2.json", "--output", "."], "is a folder: give a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_compared_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, message):
    """And leaves no file that somebody takes for a result."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "1.json", FIRST)
    saved(tmp_path / "2.json", SECOND)
    saved(tmp_path / "other.json", [1])
    assert compare(*flags, *([] if "--output" in flags else ["--output", "c.json"])) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("qcrd evaluate: error: ")
    assert message in lines[0]
    assert not (tmp_path / "c.json").exists()
