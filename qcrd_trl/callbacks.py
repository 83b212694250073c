"""[`SelfAdversarialCallback`]: the student's own past generates the negatives while it trains."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer, TrainerCallback

from .callback_setup import base_of, check_generator, questions_to_ask, row_ids
from .data.prompts import StudentFormat
from .data.store import NEGATIVES_FOLDER, NegativeStore
from .data.upcoming import steps_per_epoch, upcoming_rows
from .errors import ConfigError, ModelError, TrainingError
from .files import is_disk_error, remove_unfinished
from .models import keep_cpu_gradients, prepare_tokenizer
from .negative_options import check_negative_options, iteration_steps
from .processes import by_one, together
from .sampling.negatives import NegativeQuestion, NegativeReport, NegativeSampler, NegativeSettings
from .snapshots import SNAPSHOTS_FOLDER, Snapshots


logger = logging.getLogger(__name__)

GENERATORS = ("self", "fixed")


class SelfAdversarialCallback(TrainerCallback):
    """
    Samples negatives from the student as it was some iterations ago (QCRD, Wang et al., EMNLP 2025, section 3.2).

    At the start of each iteration the trained weights are saved as a snapshot, `output_dir/negative_generators/
    iteration-NNNN`: a plain PEFT adapter, or all weights of a student without one. The snapshot of `lag` iterations ago is
    put in place on the same base, samples `num_negatives` rationales a question, and the student's own weights are put
    back: there is no second model, and the base is neither copied nor merged. What is sampled depends on the seed and the
    iteration alone, and a run that is killed at any moment goes on from its newest checkpoint as if it had not been.

    [`QCRDTrainer`] attaches this callback by itself where [`QCRDConfig`] asks for generated negatives. Attach it by hand to
    another [`~transformers.Trainer`], whose loss then reads `callback.store`.

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer that it is attached to.
        questions ([`~datasets.Dataset`], *optional*):
            Rows with `prompt`, `positive_rationales`, and optionally `id`, `label` and the options of a choice. The
            training set of a [`QCRDTrainer`] if left out. If the training set has the same column `id`, only those that the
            iteration will use are asked; otherwise all are.
        source (`str`, *optional*, defaults to `"self"`):
            `"self"`: the snapshot of `lag` iterations ago; `"fixed"`: always the student as it was before training.
        num_negatives (`int`, *optional*, defaults to `1`):
            Samples a question (paper: 1).
        temperature (`float`, *optional*, defaults to `1.5`):
            Sampling temperature (paper: 1.5).
        lag (`int`, *optional*, defaults to `5`):
            Iterations between the snapshot and the student that learns from it (paper: j = 5), at least 1. The earliest
            snapshot is used until there are so many.
        refresh_steps (`float`, *optional*):
            Length of an iteration: optimizer steps if 1 or more, the fraction of an epoch if less. An epoch if left out;
            the paper does not say.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a sample.
        max_length (`int`, *optional*):
            Largest number of tokens of prompt and sample together, or of the sample in an encoder-decoder student.
        batch_size (`int`, *optional*, defaults to `64`):
            Samples at a time, on each process.
        task_kind (`str` or `Callable`, *optional*):
            How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours.
        correct (`str`, *optional*, defaults to `"keep"`):
            What becomes of a sample whose answer is the label: `"keep"` (not looked at), `"mark"` (kept, and marked in the
            store) or `"drop"`. The last two need `task_kind`.
        choices_column (`str`, *optional*):
            Column with the options of a choice.
        student_format ([`StudentFormat`], *optional*):
            How questions are put to the student. That of a [`QCRDTrainer`] if left out.

    Attributes:
        store ([`~qcrd_trl.data.store.NegativeStore`]): the negatives of the current iteration, by question.

    Raises:
        [`ConfigError`], [`ModelError`], [`DataError`]: before training, for what cannot work.

    Examples:

    ```python
    >>> trainer = QCRDTrainer(model=model, args=QCRDConfig("out", negative_source="none"), train_dataset=dataset)
    >>> trainer.add_callback(SelfAdversarialCallback(trainer, temperature=0.8, lag=1, task_kind="number", correct="drop"))
    ```
    """

    def __init__(
        self,
        trainer: Trainer,
        questions: Dataset | None = None,
        source: str = "self",
        num_negatives: int = 1,
        temperature: float = 1.5,
        lag: int = 5,
        refresh_steps: float | None = None,
        max_new_tokens: int = 256,
        max_length: int | None = None,
        batch_size: int = 64,
        task_kind: str | Callable | None = None,
        correct: str = "keep",
        choices_column: str | None = None,
        student_format: StudentFormat | None = None,
    ):
        check_negative_options(
            num_negatives, temperature, lag, refresh_steps, max_new_tokens, batch_size, correct, task_kind, prefix=""
        )
        if source not in GENERATORS:
            raise ConfigError(f"Unknown source {source!r}: expected one of {', '.join(GENERATORS)}.")
        if self._of(trainer):
            raise ConfigError(_TWICE)
        check_generator(trainer)
        # Before anything is evaluated: some CPUs repack 4-bit weights at the first forward pass without gradient.
        keep_cpu_gradients(base_of(trainer))
        if trainer.processing_class is None:
            raise ConfigError("The trainer has no tokenizer to generate with: pass `processing_class`.")
        prepare_tokenizer(trainer.processing_class)
        self.trainer, self.source, self.lag, self.refresh_steps = trainer, source, lag, refresh_steps
        self.settings = NegativeSettings(
            num_negatives=num_negatives,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            max_length=max_length,
            batch_size=batch_size,
            task_kind=task_kind,
            correct=correct,
            seed=trainer.args.seed,
        )
        own = getattr(trainer, "negatives", None)
        self.store: NegativeStore = NegativeStore() if own is None else own
        self.snapshots = Snapshots(Path(trainer.args.output_dir) / SNAPSHOTS_FOLDER)
        self._every: int | None = None
        self._is_resumed = False
        self._questions = questions_to_ask(trainer, questions, student_format, self.settings, choices_column)
        self._row_ids = row_ids(trainer, self._questions, questions)
        if hasattr(trainer, "checkpoint_parts"):
            trainer.checkpoint_parts.append(self)
        else:
            _join_checkpoints(trainer, self)

    @staticmethod
    def _of(trainer: Trainer) -> list["SelfAdversarialCallback"]:
        return [one for one in trainer.callback_handler.callbacks if isinstance(one, SelfAdversarialCallback)]

    # ---- When ----

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if len(self._of(self.trainer)) > 1:
            raise ConfigError(_TWICE)
        per_epoch = steps_per_epoch(train_dataloader, args.gradient_accumulation_steps)
        self._every = iteration_steps(self.refresh_steps, per_epoch)
        if self._every is None:
            raise ConfigError(
                "The training data have no length, so an iteration cannot be a part of an epoch: give `refresh_steps` as a "
                "number of steps."
            )
        if not self._is_resumed:
            self._together(self._start_anew)
        self._is_resumed = False  # what was loaded serves one run

    def on_step_begin(self, args, state, control, train_dataloader=None, **kwargs):
        iteration = state.global_step // self._every
        # A run that is to go on after its last step has asked the questions up to that one only.
        if iteration != self.store.iteration or state.global_step >= self.store.until:
            self._refresh(iteration, state, train_dataloader)

    def on_train_end(self, args, state, control, **kwargs):
        self._write_store()

    # ---- What ----

    def _refresh(self, iteration: int, state: Any, dataloader: Any) -> None:
        started = time.perf_counter()
        self._write_store()  # with the scores that the last iteration's negatives got
        goes_on = iteration == self.store.iteration
        snapshot = self._written(lambda: self._generator(iteration, state.global_step, saves=not goes_on))
        steps = min(self._every - state.global_step % self._every, max(state.max_steps - state.global_step, 1))
        questions = self._chosen(state.global_step, steps, dataloader)
        trainer, accelerator = self.trainer, self.trainer.accelerator
        sampler = NegativeSampler(base_of(trainer), trainer.processing_class, self.settings)
        share = (accelerator.process_index, accelerator.num_processes)
        shows = not trainer.args.disable_tqdm and accelerator.is_local_main_process

        def sample():
            with self.snapshots.activated(sampler.model, snapshot), accelerator.autocast():
                return sampler.sample(questions, iteration, snapshot, share, shows)

        kept, report = self._together(sample)
        shares = gather_object([(kept, report)]) if share[1] > 1 else [(kept, report)]
        negatives, report = sampler.collect(questions, shares)
        prompts, until = {question.id: question.prompt for question in questions}, state.global_step + steps
        if goes_on:
            self.store.extend(negatives, prompts, until)
        else:
            self.store.replace(iteration, negatives, prompts, until)
        self._write_store()
        self._log(report, iteration, snapshot, time.perf_counter() - started)

    def _generator(self, iteration: int, step: int, saves: bool) -> int:
        """The snapshot to sample from, once this iteration's is saved; called on the process that saves."""
        model = base_of(self.trainer)
        there = [number for number in self.snapshots.iterations() if number <= iteration]
        if iteration > 0 and (not there or (self.source == "fixed" and there[0] != 0)):
            raise ModelError(
                f"The snapshots that are to generate negatives are gone from {str(self.snapshots.folder)!r}. Resume from a "
                "checkpoint, which has its own copies."
            )
        if saves and (self.source == "self" or not there):
            self.snapshots.save(model, iteration, step)
            there = sorted({*there, iteration})
        if self.source == "fixed":
            return there[0]
        kept = there[-(self.lag + 1) :]
        self.snapshots.keep(set(kept))
        return max([number for number in kept if number <= iteration - self.lag], default=kept[0])

    def _chosen(self, step: int, steps: int, dataloader: Any) -> list[NegativeQuestion]:
        args = self.trainer.args
        rows = None
        if self._row_ids is not None and not args.ignore_data_skip:  # else the epoch begins anew when a run is resumed
            rows = upcoming_rows(dataloader, step, steps, args.gradient_accumulation_steps, args.world_size)
        chosen = self._questions
        if rows is not None:
            ids = {self._row_ids[row] for row in rows}
            chosen = [question for question in self._questions if question.id in ids]
        # The loss compares a negative with a positive.
        return [question for question in chosen if question.positives]

    def _log(self, report: NegativeReport, iteration: int, snapshot: int, seconds: float) -> None:
        logs = {**report.to_logs(), "negatives/seconds": seconds}
        logs |= {"negatives/iteration": iteration, "negatives/snapshot": snapshot}
        if self.settings.correct == "keep":
            del logs["negatives/correct"]
        if report.sampled and not report.kept:
            logger.warning("None of %d sampled rationales became a negative: %s", report.sampled, report)
        self.trainer.log(logs)

    def _written(self, work: Callable[[], Any]) -> Any:
        """Does something on the process that saves, gives its result on every process, and tells of a full disk."""
        try:
            return by_one(self.trainer.accelerator, work, self.trainer.args.should_save)
        except Exception as err:
            if not is_disk_error(err):
                raise
            raise TrainingError(
                f"The negatives could not be written to {self.trainer.args.output_dir!r}: {err}. The checkpoints there are "
                "whole: make room, and resume from the newest."
            ) from err

    def _together(self, work: Callable[[], Any]) -> Any:
        return together(self.trainer.accelerator, work)

    # ---- Saved and found again ----

    def _start_anew(self) -> None:
        if self.trainer.args.should_save:
            found = self.snapshots.iterations()
            if found:
                logger.warning(
                    "%d snapshots of an earlier run are removed from %s.", len(found), self.snapshots.folder
                )
            self.snapshots.keep(set())
            _clear_history(self._history)
        self.store.clear()

    @property
    def _history(self) -> Path:
        return Path(self.trainer.args.output_dir) / NEGATIVES_FOLDER

    def _write_store(self) -> None:
        """Writes the store as it is into `output_dir`, where `qcrd negatives export` finds it."""
        if self.store.iteration is None:
            return
        self._gather_scores()
        self._written(self._save_history)

    def _save_history(self) -> None:
        self.store.save(self._history / f"iteration-{self.store.iteration:04d}")

    def _gather_scores(self) -> None:
        gather = getattr(self.trainer, "gather_negative_scores", None)
        if gather is not None:
            gather()

    def save_checkpoint(self, folder: Path) -> None:
        """Puts the store and the snapshots into a checkpoint; called on every process."""
        if self not in self._of(self.trainer):
            return  # it was removed from the trainer
        self._gather_scores()

        def save():
            if self.store.iteration is not None:
                self.store.save(folder / NEGATIVES_FOLDER)
            self.snapshots.copy_to(folder / SNAPSHOTS_FOLDER)

        self._written(save)

    def load_checkpoint(self, folder: Path) -> None:
        """Takes the store and the snapshots of a checkpoint in place of those here; called on every process."""
        if self not in self._of(self.trainer):
            return

        def load():
            if not Snapshots(folder / SNAPSHOTS_FOLDER).iterations():
                raise ModelError(
                    f"{str(folder)!r} has no snapshots of the student: it was written without generated negatives, or "
                    "pushed without them. Start anew, or resume with the `negative_source` that it was trained with."
                )
            stored = NegativeStore.load(folder / NEGATIVES_FOLDER)
            if self.trainer.args.should_save:
                self.snapshots.copy_from(folder / SNAPSHOTS_FOLDER)
                _clear_history(self._history, after=stored.iteration)
            return stored

        self.store.take(self._together(load))
        self._is_resumed = True


_TWICE = (
    "The trainer has a SelfAdversarialCallback already. Set its options in QCRDConfig, or switch it off there by "
    'negative_source="none" or "minority".'
)


def _join_checkpoints(trainer: Trainer, callback: SelfAdversarialCallback) -> None:
    """Lets a trainer that knows nothing of it save and load the callback with its optimizer."""
    save, load = trainer._save_optimizer_and_scheduler, trainer._load_optimizer_and_scheduler

    def save_all(output_dir):
        save(output_dir)
        callback.save_checkpoint(Path(output_dir))

    def load_all(checkpoint):
        load(checkpoint)
        if checkpoint is not None:
            callback.load_checkpoint(Path(checkpoint))

    trainer._save_optimizer_and_scheduler, trainer._load_optimizer_and_scheduler = save_all, load_all


def _clear_history(folder: Path, after: int = -1) -> None:
    """Removes the stores of later iterations than `after`: of a run that was killed, or of an earlier one."""
    remove_unfinished(folder)
    for path in folder.glob("iteration-*") if folder.is_dir() else ():
        if path.name[10:].isdigit() and int(path.name[10:]) > after:
            shutil.rmtree(path)
