"""`qcrd report` of a training run: tables, pictures and figures."""

import json

import pytest
from datasets import Dataset

from qcrd_trl.cli import main as cli
from qcrd_trl.run_log import SCORE_BINS, SOURCES, RunLog


HISTORY = [
    {"step": 1, "epoch": 0.5, "loss": 2.0, "loss/positive": 3.0, "negatives/beyond_margin": 0.5},
    {"step": 2, "epoch": 1.0, "loss": 1.0, "loss/positive": 2.5, "negatives/beyond_margin": 0.75},
    {"step": 2, "epoch": 1.0, "eval_loss": 1.5, "eval_label_accuracy": 0.5, "eval_accuracy_questions": 10},
]
SELECTION = {
    "rows": {"in": 2, "out": 2, "dropped": {}, "with_positive": 2, "with_negative": 1, "yield": 1.0},
    "samples": {"total": 4},
    "agreement": {"mean_majority_share_of_votes": 0.75},
    "gold": {"questions": 0, "majority_equals_gold": None, "share_of_samples": None},
    "positives_per_question": {"1": 1, "2": 1},
    "negatives_per_question": {"0": 1, "1": 1},
    "settings": {"input": "/somewhere/samples.jsonl"},
}


@pytest.fixture
def folder(tmp_path):
    counts = {source: [0] * (SCORE_BINS - 1) + [place] for place, source in enumerate(SOURCES)}
    RunLog(HISTORY, 2, {"iteration": 1, "counts": counts}, settings={"preset": "qcrd"}).write(tmp_path / "my-run")
    return tmp_path / "my-run"


@pytest.fixture
def selection(tmp_path):
    """A folder as `qcrd select` writes it."""
    path = tmp_path / "selected"
    path.mkdir()
    (path / "report.json").write_text(json.dumps(SELECTION))
    rows = [{"positive_rationales": ["a"], "negative_rationales": ["b"]}]
    rows.append({"positive_rationales": ["a", "b"], "negative_rationales": []})
    Dataset.from_list(rows).to_parquet(path / "train.parquet")
    return path


def run(capsys, *argv, status=0):
    assert cli.main(["report", *map(str, argv)]) == status
    return capsys.readouterr()


def shown(out):
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_command(folder, selection, tmp_path, capsys):
    """The run, the scores and the accuracies from one line; the training set by its folder."""
    out = run(capsys, folder, "--selection", selection, "--json", tmp_path / "run.json").out
    assert "my-run: 2 optimizer steps, 1.00 epochs, preset qcrd" in out.replace("\n", " ")
    table = shown(out)
    assert table["loss"] == ["2", "1", "1", "2"]
    assert table["loss/positive"] == ["3", "2.5", "2.5", "3"]
    assert table["student samples"] == ["2", "0.99", "100.0 %"]
    assert "teacher positives" not in table  # none was scored
    assert table["2"] == ["50.0 [23.7, 76.3]"]
    assert all(len(line) <= 80 for line in out.splitlines() if "│" in line)
    assert sorted(path.name for path in folder.glob("plots/*")) == [
        "accuracy.png", "losses.png", "quality.png", "selection.png"
    ]  # fmt: skip
    report = json.loads((tmp_path / "run.json").read_text())
    assert (report["kind"], report["global_step"], report["settings"]) == ("run", 2, {"preset": "qcrd"})
    assert report["log_history"] == HISTORY
    assert report["selection"]["shares"] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]  # 1 of 2, 2 of 2
    assert "/somewhere" not in json.dumps(report["selection"])


def test_another_folder_for_the_pictures(folder, tmp_path, capsys):
    """A run on a disk that one may only read."""
    run(capsys, folder, "--output_dir", tmp_path / "mine")
    assert (tmp_path / "mine" / "losses.png").is_file()
    assert not (folder / "plots").exists()


def test_a_checkpoint(folder, capsys):
    """`checkpoint-7` itself, or the run whose newest checkpoint it is."""
    place = folder / "checkpoint-7"
    place.mkdir()
    (place / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 7, "loss": 0.5}], "global_step": 7})
    )
    for source in (folder, place):
        out = run(capsys, source).out.replace("\n", " ")
        assert "7 optimizer steps" in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task_kind", "number"], "is a training run: leave out --task_kind"),
        (["--selection", "nowhere"], "nowhere is no training set that `qcrd select` wrote"),
    ],
)
def test_wrong_flags(folder, capsys, flags, said):
    """A flag that does nothing would be believed."""
    assert said in run(capsys, folder, *flags, status=2).err


def test_selection_goes_with_a_run(tmp_path, selection, capsys):
    """For samples it would be read by nobody."""
    (tmp_path / "s.jsonl").write_text('{"prompt": "a", "text": "So 3."}\n')
    error = run(capsys, tmp_path / "s.jsonl", "--task_kind", "number", "--selection", selection, status=2).err
    assert "--selection goes with a training run" in error
    assert "leave out --selection" in run(capsys, selection, "--selection", selection, status=2).err
