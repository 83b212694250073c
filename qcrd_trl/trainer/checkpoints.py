"""Checkpoints that are whole or not there, and that hold what a run needs to go on exactly as it was."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import transformers.trainer
from torch import nn
from transformers import Trainer

from ..errors import TrainingError
from ..files import UNFINISHED, is_disk_error, put_in_place, remove_unfinished
from .meter import Meter


class CheckpointPart(Protocol):
    """Something that a checkpoint holds beside the model, its optimizer and the random state."""

    def save_checkpoint(self, folder: Path) -> None:
        """Writes itself into a checkpoint. Called on every process."""

    def load_checkpoint(self, folder: Path) -> None:
        """Takes over what a checkpoint holds. Called on every process, before the first step of a resumed run."""


class ResumableTrainer(Trainer):
    """
    A [`~transformers.Trainer`] whose checkpoints take their names only once they are whole, and hold further parts.

    Attributes:
        checkpoint_parts (`list[CheckpointPart]`): what a checkpoint holds beside what the base class saves.
    """

    def __init__(self, *args, **kwargs):
        self.checkpoint_parts: list[CheckpointPart] = []
        self._aside: Path | None = None
        super().__init__(*args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        aside = run_dir / f"{UNFINISHED}checkpoints"
        if self.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._aside = aside
        try:
            super()._save_checkpoint(model, trial)
            # Each process has written its random state: only now is the folder complete.
            self.accelerator.wait_for_everyone()
            self._name_best_checkpoint(aside / name, run_dir / name)
            if self.args.should_save:
                put_in_place(aside / name, run_dir / name)
        except Exception as err:
            if not is_disk_error(err):
                raise
            raise TrainingError(_cannot_write(run_dir, name, err)) from err
        finally:
            self._aside = None
            if self.args.should_save:
                shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(run_dir / name))
        if self.args.should_save:
            self._rotate(run_dir)

    def _run_epoch(self, *args, **kwargs):
        # Resumed after its last step, in the middle of an epoch, a run would make one more.
        if self.state.global_step >= self.state.max_steps:
            # As after the last step of the run that was not stopped.
            self._load_rng_state(kwargs.get("resume_from_checkpoint"))
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _name_best_checkpoint(self, written: Path, final: Path) -> None:
        if self.state.best_model_checkpoint != str(written):
            return
        self.state.best_model_checkpoint = str(final)
        if self.args.should_save:
            self.state.save_to_json(str(written / transformers.trainer.TRAINER_STATE_NAME))

    def _rotate(self, run_dir: Path) -> None:
        """As the base class, but a checkpoint loses its name before its files, and age goes by the step, not the clock."""
        limit = self.args.save_total_limit
        remove_unfinished(run_dir)
        if not limit or limit <= 0:
            return
        found = [path for path in run_dir.glob("checkpoint-*") if path.name[11:].isdigit()]
        found.sort(key=lambda path: int(path.name[11:]))
        kept = {run_dir / f"checkpoint-{self.state.global_step}"}
        if self.state.best_model_checkpoint is not None:
            kept.add(Path(self.state.best_model_checkpoint))
        surplus = len(found) - max(limit, len(kept))
        for path in [path for path in found if path not in kept][: max(surplus, 0)]:
            aside = path.with_name(f"{UNFINISHED}removed-{path.name}")
            os.replace(path, aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        for part in self.checkpoint_parts:
            part.save_checkpoint(Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            for part in self.checkpoint_parts:
                part.load_checkpoint(Path(checkpoint))


class MeterPart:
    """
    What was logged in part only when a checkpoint is written, so that the next log entry of a resumed run is that of the
    run that was never stopped.

    Args:
        meters (`dict[str, Meter]`): the meters, by name.
        process_index (`int`): this process, each of which has sums of its own.
    """

    def __init__(self, meters: dict[str, Meter], process_index: int):
        self.meters, self._name = meters, f"meters_{process_index}.json"

    def save_checkpoint(self, folder: Path) -> None:
        """Writes the sums of this process."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: meter.state() for name, meter in self.meters.items()}
        (folder / self._name).write_text(json.dumps(state) + "\n", encoding="utf-8")

    def load_checkpoint(self, folder: Path) -> None:
        """Takes the sums over; a checkpoint of fewer processes, or of an earlier version, has none."""
        if (folder / self._name).is_file():
            state = json.loads((folder / self._name).read_text(encoding="utf-8"))
            for name, meter in self.meters.items():
                meter.load_state(state.get(name, {}))


def _cannot_write(run_dir: Path, name: str, err: Exception) -> str:
    whole = [path.name for path in run_dir.glob("checkpoint-*") if path.name[11:].isdigit()]
    whole = sorted(whole, key=lambda name: int(name[11:]))
    newest = f"The newest whole checkpoint is {whole[-1]}." if whole else "There is no earlier checkpoint."
    return f"{name} could not be written to {str(run_dir)!r}: {err}. {newest} Make room, and resume from it."
