"""What is logged reaches the trackers that `report_to` names, read back from what they wrote, offline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from running import trainer_of
from tiny import ragged_rows


EXPECTED = {
    *("train/loss", "train/loss/label", "train/loss/positive", "train/loss/negative", "train/loss/discriminator"),
    *("train/negatives/beyond_margin", "train/negatives/kept", "train/quality/positive", "train/alpha_3"),
    *("eval/loss", "eval/nll/positive", "eval/discriminator_auc"),
    *("eval/label_accuracy", "eval/answer_accuracy", "eval/accuracy_questions"),
}


def run(folder, report_to, **overrides):
    arguments = {
        "negative_source": "self", "negative_max_new_tokens": 4, "max_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
        "log_rationales": True, "num_rationales_to_log": 2, "eval_accuracy": True, "task_kind": "number",
    }  # fmt: skip
    trainer = trainer_of(
        folder,
        parts={"eval_dataset": Dataset.from_list(ragged_rows())},
        report_to=report_to,
        **{**arguments, **overrides},
    )
    trainer.train()
    return trainer


def test_tensorboard(tmp_path, monkeypatch):
    """A part that no tracker shows is a part that nobody watches."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = run(tmp_path / "out", ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    missing = EXPECTED - set(events.Tags()["scalars"])
    assert not missing
    logged = {entry["step"]: entry["loss/positive"] for entry in trainer.state.log_history if "loss/positive" in entry}
    found = {event.step: event.value for event in events.Scalars("train/loss/positive")}
    assert found == pytest.approx(logged)
    assert sorted(found) == [1, 2]
    texts = events.Tensors("rationales/text_summary")
    assert [event.step for event in texts] == [0, 1]  # an epoch is one step
    table = texts[1].tensor_proto.string_val[0].decode()
    assert table.startswith("| step | question | source | rationale | quality |")
    assert "| student sample |" in table


_CHILD = """
import json, sys
sys.path.insert(0, sys.argv[2])
from test_trackers import run
run(sys.argv[1], ["trackio"], trackio_static_space_id=False)
from trackio.sqlite_storage import SQLiteStorage as storage
(project,) = storage.get_projects()
(name,) = storage.get_runs(project)
print(json.dumps(storage.get_logs(project, name), default=str))
"""


def test_trackio(tmp_path):
    """In a process of its own: trackio takes its folder from the environment when it is imported, and starts threads."""
    pytest.importorskip("trackio")
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path / "out"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=tmp_path,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    logs = json.loads(child.stdout.strip().splitlines()[-1])
    missing = EXPECTED - {name for entry in logs for name in entry}
    assert not missing
    tables = [entry["rationales"] for entry in logs if "rationales" in entry]
    assert len(tables) == 2
    assert "student sample" in json.dumps(tables[1])
    assert {"step", "question", "source", "rationale", "quality"} <= set(tables[0]["_value"][0])
