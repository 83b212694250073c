"""Where a run is killed: each function has a trainer's process end at one exact point. `from kill_points import ...`."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

import qcrd_trl.snapshots
from qcrd_trl import QCRDTrainer
from qcrd_trl.files import UNFINISHED, sha256
from qcrd_trl.models import base_model
from qcrd_trl.snapshots import SNAPSHOTS_FOLDER, Snapshots


def kill(*args: Any, **kwargs: Any) -> None:
    """Ends this process as `kill -9` does: nothing of it runs any more."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_step(trainer: QCRDTrainer, at: int = 5) -> None:
    """In the middle of an iteration, with the first micro-batch's gradient pending."""
    step = trainer.training_step

    def killing(*args, **kwargs):
        loss = step(*args, **kwargs)
        return kill() if trainer.state.global_step == at else loss

    trainer.training_step = killing


def in_the_first_iteration(trainer: QCRDTrainer) -> None:
    """Before there is a checkpoint."""
    in_a_step(trainer, at=1)


def in_generation(trainer: QCRDTrainer) -> None:
    """At the third token of the second batch, when the snapshot's weights are in the student's place."""
    generate, calls = trainer.model.generate, []

    def counted(*args, **kwargs):
        calls.append(trainer.state.global_step)
        if calls.count(6) == 2:
            tokens = []
            base_model(trainer.model).register_forward_pre_hook(
                lambda *_: kill() if len(tokens) == 2 else tokens.append(0)
            )
        return generate(*args, **kwargs)

    trainer.model.generate = counted


def in_a_snapshot(trainer: QCRDTrainer) -> None:
    """When the weights of snapshot 3 are written and what describes them is not."""
    name = f"{UNFINISHED}iteration-0003"
    qcrd_trl.snapshots.sha256 = lambda path: kill() if path.parent.name == name else sha256(path)


def after_pruning(trainer: QCRDTrainer) -> None:
    """When snapshot 3 is there and snapshot 0, which the newest checkpoint needs, is not."""
    keep = Snapshots.keep

    def killing(self, iterations):
        keep(self, iterations)
        if trainer.state.global_step == 6:
            kill()

    Snapshots.keep = killing


def in_the_history(trainer: QCRDTrainer) -> None:
    """When the store of iteration 2 in `output_dir` is about to be written anew, and the old one is out of its place."""
    _at_rename(f"{UNFINISHED}old-iteration-0002", after=True)


def after_a_refresh(trainer: QCRDTrainer) -> None:
    """When iteration 3 has its negatives, before any checkpoint knows of it."""

    class Kill(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 6:
                kill()

    trainer.add_callback(Kill())


def after_the_model(trainer: QCRDTrainer) -> None:
    """When checkpoint-6 has the model alone."""
    save = trainer._save_optimizer_and_scheduler
    trainer._save_optimizer_and_scheduler = lambda folder: kill() if "point-6" in str(folder) else save(folder)


def after_the_optimizer(trainer: QCRDTrainer) -> None:
    """When checkpoint-6 has the student's optimizer, and not that of the discriminator."""
    save = trainer.discriminator_update.save_checkpoint
    trainer.discriminator_update.save_checkpoint = lambda to: kill() if "point-6" in str(to) else save(to)


def among_the_parts(trainer: QCRDTrainer) -> None:
    """When checkpoint-6 has the negatives, and no snapshots."""
    copy_to = Snapshots.copy_to
    Snapshots.copy_to = lambda self, to: kill() if "point-6" in str(to) else copy_to(self, to)


def before_the_name(trainer: QCRDTrainer) -> None:
    """When checkpoint-6 is complete, under another name."""
    _at_rename("checkpoint-6", after=False)


def after_the_name(trainer: QCRDTrainer) -> None:
    """When checkpoint-6 has its name, and the run has not been told."""
    _at_rename("checkpoint-6", after=True)


def in_the_rotation(trainer: QCRDTrainer) -> None:
    """When checkpoint-3 has lost three files."""
    _in_removal(Path(trainer.args.output_dir), "checkpoint-3", files=3)


def in_pruning(trainer: QCRDTrainer) -> None:
    """When snapshot 0 has lost one file."""
    _in_removal(Path(trainer.args.output_dir) / SNAPSHOTS_FOLDER, "iteration-0000", files=1)


def at_the_end(trainer: QCRDTrainer) -> None:
    """When the last checkpoint is written, and the last store in `output_dir` is not."""

    class Kill(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            kill()

    trainer.callback_handler.callbacks.insert(0, Kill())


def in_resuming(trainer: QCRDTrainer) -> None:
    """When a resumed run has removed the snapshots it found, and one of the checkpoint's is in their place."""
    _at_rename("iteration-0000", after=True)


def _at_rename(name: str, after: bool) -> None:
    replace = os.replace

    def watched(source, target, **kwargs):
        if Path(target).name == name and not after:
            kill()
        replace(source, target, **kwargs)
        if Path(target).name == name:
            kill()

    os.replace = watched


def _in_removal(folder: Path, name: str, files: int) -> None:
    rmtree, unlink, removed = shutil.rmtree, os.unlink, []

    def counted(*args, **kwargs):
        removed.append(args)
        unlink(*args, **kwargs)
        if len(removed) == files:
            kill()

    def watched(path, *args, **kwargs):
        if Path(path).parent == folder and Path(path).name.endswith(name):
            os.unlink = counted
        rmtree(path, *args, **kwargs)

    shutil.rmtree = watched
