"""Generated negatives with two processes on one machine. Run by torchrun, this file is their script."""

import copy
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from killing import SAVED, TESTS, broken, content, differences, without_clocks
from running import FAMILIES, largest_difference, lora, trainer_of, weights
from tiny import ragged_rows
from transformers import TrainerCallback

import qcrd_trl.snapshots
from qcrd_trl.files import UNFINISHED


pytestmark = pytest.mark.slow  # two processes that import everything anew
LIMIT_S = 60  # of waiting for the other process, far below the half hour that is the default

GENERATED = {"negative_source": "self", "negative_max_new_tokens": 6, "negative_batch_size": 3, "negative_lag": 1}
SAVING = {"save_strategy": "steps", "save_steps": 2, "negative_refresh_steps": 3, "logging_steps": 3}
# name: (family, adapter, arguments)
CASES = {
    "adapter": ("llama", lora(init_lora_weights=False), {"max_steps": 3, "negative_refresh_steps": 1}),
    "whole": ("t5", None, {"max_steps": 3, "negative_refresh_steps": 2, "num_negatives": 2}),
    "saving": ("llama", lora(init_lora_weights=False), {"max_steps": 4, **SAVING}),
    "saving_t5": ("t5", None, {"max_steps": 4, **SAVING, "negative_source": "both"}),
}
# The same, but with dropout, so that each process draws: (stopped after a step and resumed, or not).
DROPPED = {"gradient_accumulation_steps": 2, "optim": "adamw_torch", "learning_rate": 0.01}


class StopAfter(TrainerCallback):
    """Ends a run early, with its schedule planned for all steps, as a kill would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps


def trainer_for(name: str, folder: Path, processes: int, dropout: float = 0.0, **overrides):
    family, adapter, shape = CASES[name]
    make, tokenizer = FAMILIES[family]
    torch.manual_seed(0)
    adapter = copy.deepcopy(adapter)
    if adapter is not None:
        adapter.lora_dropout = dropout
    return trainer_of(
        folder,
        make(**{"dropout_rate" if family == "t5" else "attention_dropout": dropout}),
        ragged_rows(16),
        tokenizer(),
        {"peft_config": adapter},
        **{**GENERATED, **shape, "per_device_train_batch_size": 8 // processes, "ddp_timeout": LIMIT_S, **overrides},
    )


def run(name, folder, processes, until=None, resume=None, **overrides) -> dict:
    """Trains a case; what it came to, on this process."""
    trainer = trainer_for(name, folder, processes, **overrides)
    if until is not None:
        trainer.add_callback(StopAfter(until))
    trainer.train(resume_from_checkpoint=resume)
    files = [file for part in SAVED for file in sorted((folder / part).rglob("*")) if file.is_file()]
    return {
        "world_size": trainer.args.world_size,
        "step": trainer.state.global_step,
        "weights": weights(trainer.model),
        "discriminator": weights(trainer.discriminator),
        "store": [(key, dict(vars(negative))) for key, negative in trainer.negatives],
        "iteration": [trainer.iteration, trainer.negatives.iteration],
        "logs": without_clocks(trainer.state.log_history),
        "files": {str(file.relative_to(folder)): content(file) for file in files if file.name != "README.md"},
    }


# ---- What goes wrong on one process ----


def fails_in_generation(trainer, rank) -> None:
    """Process 1, in the second iteration."""
    generate = trainer.model.generate

    def failing(*args, **kwargs):
        if rank == 1 and trainer.state.global_step == 1:
            raise RuntimeError("no memory is left here")
        return generate(*args, **kwargs)

    trainer.model.generate = failing


def fails_in_a_snapshot(trainer, rank) -> None:
    """Process 0, which alone writes, in the second iteration."""
    sha256 = qcrd_trl.snapshots.sha256

    def failing(path):
        if trainer.state.global_step == 1 and UNFINISHED in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return sha256(path)

    qcrd_trl.snapshots.sha256 = failing


def error_of(arm, folder: Path, rank: int) -> dict:
    trainer = trainer_for("adapter", folder, 2)
    before = weights(trainer.model)
    arm(trainer, rank)
    sha256 = qcrd_trl.snapshots.sha256
    try:
        trainer.train()
    except Exception as err:
        moved = largest_difference(before, weights(trainer.model))
        return {"error": f"{type(err).__name__}: {err}", "moved": moved, "step": trainer.state.global_step}
    finally:
        qcrd_trl.snapshots.sha256 = sha256
    return {}


ERRORS = {arm.__name__: arm for arm in (fails_in_generation, fails_in_a_snapshot)}


# ---- Both processes ----


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Where two processes ran, and what each of them came to."""
    folder = tmp_path_factory.mktemp("distributed")
    for name in ("saving", "saving_t5"):
        run(name, folder / f"{name}_by_one", 1, until=2)
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*command, __file__, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def texts(result):
    return [(key, {k: v for k, v in negative.items() if k != "quality"}) for key, negative in result["store"]]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(tmp_path, both, name):
    """Questions that nobody asks, or that both ask, and stores that differ, still make a run with a plausible loss."""
    one, (first, second) = run(name, tmp_path, 1), (told[name] for told in both[1])
    assert (one["world_size"], first["world_size"], second["world_size"]) == (1, 2, 2)
    assert first["iteration"] == second["iteration"] == one["iteration"]
    assert len(first["store"]) > 2
    assert any(negative["quality"] is not None for _, negative in first["store"])
    assert differences(first["store"], second["store"]) == []
    assert differences(texts(first), texts(one)) == []
    for mine, theirs in zip(one["store"], first["store"], strict=True):
        assert mine[1]["quality"] == pytest.approx(theirs[1]["quality"], abs=1e-5)
    assert differences(first["weights"], second["weights"]) == []
    assert largest_difference(one["weights"], first["weights"]) < 2e-6
    # Adam divides a gradient by its own size: where it is near 0, rounding moves a weight by up to the rate.
    assert largest_difference(one["discriminator"], first["discriminator"]) < 1e-5
    assert differences(first["discriminator"], second["discriminator"]) == []
    assert len(first["logs"]) >= 4
    for mine, theirs in zip(one["logs"], first["logs"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("name", ["saving", "saving_t5"])
def test_two_processes_resume_exactly(both, name):
    """Each has draws and sums of its own, which one checkpoint must give back to each."""
    folder, told = both
    for rank in (0, 1):
        whole, resumed = told[rank][f"{name}, never stopped"], told[rank][f"{name}, resumed"]
        assert told[rank][f"{name}, stopped"]["step"] == 2
        assert resumed["step"] == 4
        assert len(whole["store"]) > 4
        assert differences(whole, resumed) == []
        # Dropout has drawn: else the process's random state would not matter.
        assert largest_difference(whole["weights"], told[rank][name]["weights"]) > 1e-4
    checkpoint = folder / f"{name}, resumed" / "checkpoint-4"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert {path.name for path in checkpoint.glob("meters*")} == {"meters_0.json", "meters_1.json"}


@pytest.mark.parametrize("name", ["saving", "saving_t5"])
def test_the_number_of_processes_may_change(tmp_path, both, name):
    """A process that has no file in the checkpoint goes on without one; what is learned stays the same."""
    folder, told = both
    whole = run(name, tmp_path / "whole", 1)
    grown = [told[rank][f"{name}, by one, resumed by two"] for rank in (0, 1)]
    shrunk = run(name, folder / f"{name}, stopped", 1, resume=True)
    for result in (*grown, shrunk):
        assert result["step"] == 4
        assert differences(texts(result), texts(whole)) == []
        assert largest_difference(result["weights"], whole["weights"]) < 2e-6
    assert broken(folder / f"{name}_by_one" / "checkpoint-2") is None


def test_an_error_in_the_generation_of_one_process_ends_both(both):
    """The other would wait for it, half an hour by default, on a machine that is paid for."""
    first, second = (told["fails_in_generation"] for told in both[1])
    assert first["error"] == "TrainingError: Process 1 failed: RuntimeError: no memory is left here"
    assert second["error"] == "RuntimeError: no memory is left here"
    assert first["step"] == second["step"] == 1
    assert first["moved"] == second["moved"] > 0  # by the first step, after which the weights were put back


def test_a_disk_that_is_full_for_one_process_ends_both(both):
    """Only one process writes, and only it meets the error."""
    folder, (first, second) = both[0], (told["fails_in_a_snapshot"] for told in both[1])
    assert first["error"].startswith("TrainingError: The negatives could not be written")
    assert second["error"].startswith("TrainingError: Process 0 failed")
    assert all("No space left on device" in told["error"] for told in (first, second))
    assert list((folder / "fails_in_a_snapshot").rglob(f"{UNFINISHED}*")) == []


if __name__ == "__main__":
    where, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    results = {name: run(name, where / name, 2) for name in CASES}
    for name in ("saving", "saving_t5"):
        shape = {**DROPPED, "dropout": 0.3}
        results[f"{name}, never stopped"] = run(name, where / f"{name}, never stopped", 2, **shape)
        results[f"{name}, stopped"] = run(name, where / f"{name}, resumed", 2, until=2, **shape)
        results[f"{name}, resumed"] = run(name, where / f"{name}, resumed", 2, resume=True, **shape)
        run(name, where / f"{name}, stopped", 2, until=2)
        results[f"{name}, by one, resumed by two"] = run(name, where / f"{name}_by_one", 2, resume=True)
    results |= {name: error_of(arm, where / name, rank) for name, arm in ERRORS.items()}
    torch.save(results, where / f"{rank}.pt")
    torch.distributed.destroy_process_group()
