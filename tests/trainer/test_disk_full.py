"""A disk that fills up while a run writes: one clear error, the last checkpoint whole, nothing half-written left."""

import errno
import importlib
import os
import resource
import stat
import sys
from pathlib import Path

import pytest
import torch
from killing import broken, differences, forked, look, run, start, without_clocks
from running import lora, trainer_of, weights
from safetensors import SafetensorError
from tiny import ragged_rows, tiny_llama

import qcrd_trl.snapshots
from qcrd_trl.data.store import NegativeStore
from qcrd_trl.errors import TrainingError
from qcrd_trl.files import UNFINISHED, whole_folder


FULL = OSError(errno.ENOSPC, "No space left on device")
# As safetensors and torch tell it on a disk that is full; torch in one of two ways.
OF_SAFETENSORS = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
OF_TORCH = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")
OF_TORCH_TOO = RuntimeError(
    "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0"
)

# Checkpoints follow steps 2 and 4; iterations begin at steps 0 and 3.
SHAPE = {
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "negative_source": "self",
    "negative_lag": 1,
    "negative_refresh_steps": 3,
    "negative_max_new_tokens": 4,
    "per_device_train_batch_size": 2,
    "optim": "adamw_torch",
    "learning_rate": 0.01,
}

# name: (what fails, how, after which step, whether the student has an adapter)
FAULTS = {
    "a snapshot of an adapter": ("peft.peft_model.safe_save_file", OF_SAFETENSORS, 3, True),
    "a snapshot of all weights": ("qcrd_trl.snapshots.save_file", OF_SAFETENSORS, 3, False),
    "the store of an iteration": ("pyarrow.parquet.write_table", FULL, 3, True),
    "a checkpoint's adapter": ("peft.peft_model.safe_save_file", OF_SAFETENSORS, 4, True),
    "a checkpoint's optimizer": ("torch.save", OF_TORCH, 4, False),
    "a checkpoint's optimizer, told otherwise": ("torch.save", OF_TORCH_TOO, 4, True),
    "a checkpoint's sums": ("pathlib.Path.write_text", FULL, 4, True),
    "a checkpoint's store": ("pyarrow.parquet.write_table", FULL, 4, True),
    "a checkpoint's state": ("transformers.trainer_callback.TrainerState.save_to_json", FULL, 4, True),
    "a flush to the disk": ("os.fsync", FULL, 4, True),
    "a copy of an adapter": ("shutil.copy2", FULL, 4, True),
    "a copy where there are no links": ("shutil.copy2", FULL, 4, False),
}


def trainer_for(folder, adapter=True, **overrides):
    torch.manual_seed(3)
    parts = {"peft_config": lora(lora_dropout=0.2)} if adapter else None
    model = tiny_llama(attention_dropout=0.2)
    return trainer_of(folder, model, ragged_rows(), parts=parts, **{**SHAPE, **overrides})


def fail(monkeypatch, trainer, target, error, step):
    """Makes a function raise from a step on; `os.fsync` for files, which every file system can flush."""
    owner, name = target.rsplit(".", 1)
    try:
        owner = importlib.import_module(owner)
    except ModuleNotFoundError:
        module, kind = owner.rsplit(".", 1)
        owner = getattr(importlib.import_module(module), kind)
    works = getattr(owner, name)

    def failing(*args, **kwargs):
        is_meant = name != "fsync" or stat.S_ISREG(os.fstat(args[0]).st_mode)
        if trainer.state.global_step >= step and is_meant:
            raise error
        return works(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    if name == "copy2":
        monkeypatch.setattr(
            os, "link", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(errno.EPERM, "no links"))
        )


def unfinished(folder):
    return sorted(path.name for path in folder.rglob(f"{UNFINISHED}*"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_full_disk_costs_no_more_than_the_steps_since_the_checkpoint(tmp_path, monkeypatch, name):
    """A file cut short under a checkpoint's name, or half-written folders that keep the disk full, cost the run."""
    target, error, step, adapter = FAULTS[name]
    folder = tmp_path / "run"
    trainer = trainer_for(folder, adapter)
    with monkeypatch.context() as patch:
        fail(patch, trainer, target, error, step)
        with pytest.raises(TrainingError) as raised:
            trainer.train()
    assert trainer.state.global_step == step
    message = str(raised.value)
    assert repr(str(folder)) in message
    assert str(error) in message
    assert "checkpoint-2" in message or "The checkpoints there are whole" in message
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    assert broken(folder / "checkpoint-2") is None
    assert unfinished(folder) == []

    whole, resumed = trainer_for(tmp_path / "whole", adapter), trainer_for(folder, adapter)
    whole.train()
    resumed.train(resume_from_checkpoint=True)
    assert len(resumed.negatives) > 0
    assert differences(weights(resumed.model), weights(whole.model)) == []
    assert differences(weights(resumed.discriminator), weights(whole.discriminator)) == []
    assert [vars(n) for _, n in resumed.negatives] == [vars(n) for _, n in whole.negatives]
    assert differences(without_clocks(resumed.state.log_history), without_clocks(whole.state.log_history)) == []


def test_a_disk_that_is_full_from_the_start_is_told(tmp_path, monkeypatch):
    """Told to resume from a checkpoint that there is not, the user looks for it."""
    trainer = trainer_for(tmp_path, adapter=False)
    fail(monkeypatch, trainer, "torch.save", OF_TORCH_TOO, 2)
    with pytest.raises(TrainingError, match=r"(?s)checkpoint-2 could not be written.*no earlier checkpoint"):
        trainer.train()
    assert list(tmp_path.glob("checkpoint-*")) == []
    assert unfinished(tmp_path) == []


def test_the_checkpoint_that_is_named_is_the_one_that_a_resume_takes(tmp_path, monkeypatch):
    """A folder that was copied or looked into later is not a newer checkpoint."""
    trainer = trainer_for(tmp_path, save_steps=1)
    fail(monkeypatch, trainer, "torch.save", OF_TORCH_TOO, 4)
    stamp = trainer.callback_handler.on_step_end

    def touched(args, state, control):
        if state.global_step == 4:
            os.utime(tmp_path / "checkpoint-1", (2e9, 2e9))
        return stamp(args, state, control)

    trainer.callback_handler.on_step_end = touched
    with pytest.raises(TrainingError, match="checkpoint-3"):
        trainer.train()


def test_an_error_that_is_not_the_disks_is_left_as_it_is(tmp_path, monkeypatch):
    """Every fault in saving told as a full disk hides the fault."""
    trainer = trainer_for(tmp_path)
    fail(monkeypatch, trainer, "torch.save", ZeroDivisionError("a fault"), 4)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert unfinished(tmp_path) == []


def test_a_folder_is_as_it_was_when_its_successor_cannot_be_named(tmp_path, monkeypatch):
    """Moved out of its place for a folder that never came, what was whole is not found again."""
    place, replace = tmp_path / "store", os.replace
    with whole_folder(place) as aside:
        (aside / "file").write_text("old", encoding="utf-8")

    def failing(source, target):
        if Path(target) == place and (Path(source) / "file").read_text(encoding="utf-8") == "new":
            raise FULL
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"), whole_folder(place) as aside:
        (aside / "file").write_text("new", encoding="utf-8")
    assert (place / "file").read_text(encoding="utf-8") == "old"
    assert unfinished(tmp_path) == []


# ---- A limit that the system itself enforces ----

SIZE = 2048  # less than any weights, optimizer or table here


def limit_files(size: int | None) -> None:
    """Largest size of a file that this process may write; writing on fails as on a full disk."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def limited(owner, name, trainer):
    """Lets no large file be written from the first call of a function after step 6 on."""
    works = getattr(owner, name)

    def limiting(*args, **kwargs):
        if trainer.state.global_step == 6:
            limit_files(SIZE)
        return works(*args, **kwargs)

    setattr(owner, name, limiting)


LIMITED = {
    "store": lambda trainer: limited(NegativeStore, "save", trainer),
    "snapshot": lambda trainer: limited(qcrd_trl.snapshots.Snapshots, "save", trainer),
    "model": lambda trainer: limited(trainer, "_save_checkpoint", trainer),
    "optimizer": lambda trainer: limited(trainer, "_save_optimizer_and_scheduler", trainer),
}


def run_limited(folder: Path, name: str) -> dict:
    try:
        return {"result": run("full", folder, LIMITED[name])}
    except TrainingError as err:
        return {"error": str(err)}
    finally:
        limit_files(None)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limited")
    ended = start(__file__, folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return torch.load(folder / "results.pt", weights_only=False), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_of_the_system_is_met_alike(told, name):
    """Errors made up in a test are not those that the libraries raise."""
    results, stderr = told
    assert results[name]["codes"] == [0, 0], stderr[-4000:]
    newest = "checkpoint-6" if name == "snapshot" else "checkpoint-3"
    assert "could not be written" in results[name]["error"]
    assert newest in results[name]["error"] or "The checkpoints there are whole" in results[name]["error"]
    found = results[name]["found"]
    assert (found["broken"], found["newest"], found["unfinished"]) == ({}, newest, [])
    assert differences(results["whole"], results[name]["result"]) == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, results = Path(sys.argv[1]), {}
    file = place / "told.pt"
    assert forked(lambda: run("full", place / "whole"), file) == 0
    results["whole"] = torch.load(file, weights_only=False)
    for name in LIMITED:
        out = place / name
        codes = [forked(lambda out=out, name=name: run_limited(out, name), file)]
        results[name] = torch.load(file, weights_only=False) if codes == [0] else {}
        forked(lambda out=out: look(out), file)
        results[name]["found"] = torch.load(file, weights_only=False)
        codes.append(forked(lambda out=out: run("full", out), file))
        results[name] |= {"codes": codes, "result": torch.load(file, weights_only=False)}
    torch.save(results, place / "results.pt")
