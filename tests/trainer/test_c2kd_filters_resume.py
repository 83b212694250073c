"""Filters whose training is stopped, or killed, and resumed: the run that was never stopped, bit for bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cached import item_rows
from datasets import Dataset
from filtering import filter_trainer
from running import logged, weights
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from qcrd_trl.errors import ModelError
from qcrd_trl.files import UNFINISHED


# Two micro-batches of 2 rows a step, 3 steps an epoch with a shorter last one; logs that straddle the checkpoints.
SHAPE = {
    "max_steps": 7,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "optim": "adamw_torch",
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 3,
    "save_total_limit": 2,
}


class Stop(TrainerCallback):
    """Ends a run after a step, by raising or by SIGKILL."""

    def __init__(self, step: int, kills: bool = False):
        self.step, self.kills = step, kills

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt


def made(folder: Path, callbacks=(), **overrides):
    cache = {"teacher_cache": str(folder.parent / "cache")}
    parts = {"callbacks": list(callbacks), "eval_dataset": Dataset.from_list(item_rows(3))}
    return filter_trainer(folder, rows=item_rows(11), parts=parts, **{**SHAPE, **cache, **overrides})


def result(trainer) -> dict:
    return {
        "weights": weights(trainer.model),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "logs": logged(trainer),
    }


def assert_same(one: dict, other: dict) -> None:
    assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
    assert one["weights"].keys() == other["weights"].keys()
    for key, state in one["optimizer"]["state"].items():
        assert all(torch.equal(value, other["optimizer"]["state"][key][name]) for name, value in state.items())
    assert one["schedule"] == other["schedule"]
    assert one["logs"] == other["logs"]
    assert len(one["logs"]) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    trainer = made(tmp_path_factory.mktemp("whole") / "run")
    trainer.train()
    return result(trainer)


@pytest.mark.parametrize("step", [3, 5, 6])
def test_stopped_and_resumed(tmp_path, whole, step):
    """Meters, order of rows and moments of Adam that start anew give filters that are as good and not the same."""
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "run", [Stop(step)]).train()
    newest = f"checkpoint-{(step - 1) // 2 * 2}"
    assert Path(get_last_checkpoint(tmp_path / "run")).name == newest
    trainer = made(tmp_path / "run")
    trainer.train(resume_from_checkpoint=True)
    assert_same(whole, result(trainer))


def test_killed_and_resumed(tmp_path, whole):
    """SIGKILL, and another process that goes on from what lies there, the cache included."""
    script = Path(__file__)
    tests = script.resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    trainer = made(tmp_path / "run")
    trainer.train(resume_from_checkpoint=True)
    assert_same(whole, result(trainer))
    assert not list((tmp_path / "run").rglob(f"{UNFINISHED}*"))


def test_the_best_filters_are_loaded_in_the_end(tmp_path):
    """The weights of the last step under the best one's name."""
    shape = {"eval_strategy": "steps", "eval_steps": 2, "learning_rate": 3.0, "max_grad_norm": 0.0, "max_steps": 6}
    trainer = made(
        tmp_path / "run",
        **shape,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
    )
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    best = min(losses, key=losses.get)
    assert sorted(losses) == [2, 4, 6]
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[best], abs=1e-6)


def test_a_checkpoint_of_other_filters_is_refused(tmp_path):
    """The base class loads what fits of a checkpoint and leaves the rest at its random start."""
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "run", [Stop(3)]).train()
    with pytest.raises(ModelError, match=r"holds other layer filters than this run's: form 'mlp', now 'linear'"):
        made(tmp_path / "run", filter_form="linear").train(resume_from_checkpoint=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    made(Path(sys.argv[1]), [Stop(5, kills=True)]).train()
