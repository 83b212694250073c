"""[`RunReportCallback`]: what a training run logged, beside the student and as pictures."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from .rationale_tables import RationaleTableCallback
from .run_log import PICTURES, RUN_LOG_FILE, RunLog


logger = logging.getLogger(__name__)

PLOTS_FOLDER = "plots"
# What a report says of the recipe.
_SETTINGS = (
    *("preset", "alpha_1", "alpha_2", "alpha_3", "alpha_3_decay", "beta", "margin", "margin_type"),
    *("positive_reduction", "negative_reduction", "quality_weighting", "rationale_source", "max_length"),
    *("negative_source", "num_negatives", "negative_temperature", "negative_lag", "negative_refresh_steps"),
    *("discriminator", "discriminator_loss", "discriminator_learning_rate"),
    *("learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "world_size", "seed"),
)


class RunReportCallback(TrainerCallback):
    """
    Writes what was logged into `output_dir` when training is over, and draws it: `training_log.json`, from which
    `qcrd report OUTPUT_DIR` draws it anew, and `plots/*.png`. What is evaluated after training is added.

    A picture is not worth a trained student: whatever fails here is told in the log, with its traceback and with the command
    that draws the pictures later, and training ends as it would have.

    [`QCRDTrainer`] attaches this callback by itself unless [`QCRDConfig`] says `report_plots=False`. Attach it by hand to
    another [`~transformers.Trainer`].

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer that it is attached to.
        selection (`Mapping`, *optional*):
            What is known of the training set, see [`~qcrd_trl.run_log.RunLog`]; `qcrd train` gives what `qcrd select` wrote.

    Examples:

    ```python
    >>> trainer = QCRDTrainer(model=model, args=QCRDConfig("out"), train_dataset=dataset)
    >>> trainer.train()  # out/training_log.json, out/plots/losses.png, ...
    ```
    """

    def __init__(self, trainer: Trainer, selection: Mapping[str, Any] | None = None):
        self.trainer, self.selection = trainer, selection
        self._scores: dict[str, Any] | None = None
        self._is_over = False
        self._num_entries = 0  # of the log when training was over

    def on_train_begin(self, args, state, control, **kwargs):
        self._is_over = False
        if state.global_step == 0 and args.process_index == 0:
            # Else the report of an earlier run would be taken for that of this one, should it be killed.
            folder = Path(args.output_dir)
            for name in (RUN_LOG_FILE, *(f"{PLOTS_FOLDER}/{name}" for name in PICTURES)):
                (folder / name).unlink(missing_ok=True)

    def on_train_end(self, args, state, control, **kwargs):
        gather = getattr(self.trainer, "gather_score_counts", None)  # a collective
        self._scores, self._is_over = None if gather is None else gather(), True
        self._num_entries = len(state.log_history)
        self._report()

    def on_evaluate(self, args, state, control, **kwargs):
        if self._is_over:
            self._report()

    def _report(self) -> None:
        args = self.trainer.args
        if args.process_index != 0:
            return
        folder = Path(args.output_dir)
        try:
            run = self.run_log()
            run.write(folder)
            if run.log_history:
                from .plots.runs import save_run_plots

                save_run_plots(run, folder / PLOTS_FOLDER, folder.resolve().name)
        except Exception:  # the student is not saved yet
            logger.exception(
                "The report of this run could not be written to %s; training is not affected. `qcrd report %s` draws it later, "
                "from the log or a checkpoint.",
                folder,
                folder,
            )

    def run_log(self) -> RunLog:
        """The run's log as it is now."""
        trainer = self.trainer
        settings = {name: getattr(trainer.args, name) for name in _SETTINGS if hasattr(trainer.args, name)}
        selection = None if self.selection is None else dict(self.selection)
        return RunLog(self._history(), trainer.state.global_step, self._scores, selection, settings)

    def _history(self) -> list[dict[str, Any]]:
        """The trainer's log, in which the best model, evaluated when training is over, stands at the step that it is of."""
        state, args = self.trainer.state, self.trainer.args
        best = state.best_global_step if args.load_best_model_at_end else None
        if best is None or not self._is_over:
            return state.log_history
        history = state.log_history
        after = [{**entry, "step": best} for entry in history[self._num_entries :]]
        return [*history[: self._num_entries], *after]


def report_callbacks(trainer: Trainer) -> list[TrainerCallback]:
    """The callbacks that the arguments of a [`QCRDTrainer`] ask for."""
    args = trainer.args
    callbacks: list[TrainerCallback] = []
    if args.log_rationales:
        callbacks.append(RationaleTableCallback(trainer, args.num_rationales_to_log))
    if args.report_plots:
        callbacks.append(RunReportCallback(trainer))
    return callbacks


def set_selection(trainer: Trainer, selection: Mapping[str, Any]) -> None:
    """Tells the report of a run what is known of its training set."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, RunReportCallback):
            callback.selection = selection
