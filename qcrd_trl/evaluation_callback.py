"""[`AccuracyCallback`]: accuracies by generation at every evaluation of a training run."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback

from .callback_setup import base_of, check_can_generate
from .data.prompts import StudentFormat
from .errors import ConfigError, DataError
from .evaluation.asking import EvaluationSettings, ask, collect, questions_of
from .evaluation.outcome import METRICS, EvaluationResult, outcome_of
from .models import is_encoder_decoder, keep_cpu_gradients, prepare_tokenizer
from .processes import together
from .records import Question
from .sampling.questions import Columns


class AccuracyCallback(TrainerCallback):
    """
    Asks the student every held-out question whenever the trainer evaluates, as [`evaluate_student`] does, and adds what it
    got right to the metrics: `eval_label_accuracy`, `eval_answer_accuracy` and `eval_agreement`. They are logged with the
    others, and may be the `metric_for_best_model`, with `load_best_model_at_end` and
    [`~transformers.EarlyStoppingCallback`].

    Only texts are kept, never logits. Several processes share the questions, and all get the same metrics. Random state,
    modes and weights are left as they were: a run is the same with it and without.

    [`QCRDTrainer`] attaches this callback by itself where [`QCRDConfig`] says `eval_accuracy=True`. Attach it by hand for
    other questions, a task kind of your own, or the vote of several samples; or to another [`~transformers.Trainer`].

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer that it is attached to. It evaluates on its `eval_dataset`, which it must have.
        task_kind (`str` or `Callable`):
            How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours.
        questions ([`~datasets.Dataset`], *optional*):
            Rows with `prompt`, `label`, and optionally `id` and the options of a choice, that are asked at every
            evaluation. If left out, the rows that a [`QCRDTrainer`] evaluates on: of several sets, each under its name.
        choices_column (`str`, *optional*):
            Column with the options of a choice.
        max_questions (`int`, *optional*):
            Only the first so many rows of a set.
        batch_size (`int`, *optional*):
            Texts generated at a time, on each process. `per_device_eval_batch_size` if left out.
        label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a predicted label.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.
        tasks (`Sequence[str]`, *optional*):
            `"label"`, `"rationale"` or both. Those that the student is taught if left out.
        num_samples (`int`, *optional*, defaults to `1`):
            Texts a question and task, of which the most frequent answer counts.
        temperature (`float`, *optional*):
            Sampling temperature. If left out, one text is greedy and several are sampled at 0.7.
        student_format ([`StudentFormat`], *optional*):
            How questions are put to the student. That of a [`QCRDTrainer`] if left out.

    Attributes:
        results (`dict[str, EvaluationResult]`): the latest outcome of every question, by the prefix of the metrics
            (`"eval"`; of several sets, `"eval_NAME"`), on every process the same.

    Raises:
        [`ConfigError`], [`ModelError`], [`DataError`]: before training, for what cannot work.

    Examples:

    ```python
    >>> trainer = QCRDTrainer(model=model, args=args, train_dataset=train, eval_dataset=validation)
    >>> trainer.add_callback(AccuracyCallback(trainer, "number", num_samples=5))
    ```
    """

    def __init__(
        self,
        trainer: Trainer,
        task_kind: str | Callable,
        questions: Dataset | None = None,
        choices_column: str | None = None,
        max_questions: int | None = None,
        batch_size: int | None = None,
        label_max_new_tokens: int = 32,
        max_new_tokens: int = 256,
        tasks: Sequence[str] | None = None,
        num_samples: int = 1,
        temperature: float | None = None,
        student_format: StudentFormat | None = None,
    ):
        args = trainer.args
        if any(isinstance(one, AccuracyCallback) for one in trainer.callback_handler.callbacks):
            raise ConfigError(
                "The trainer has an AccuracyCallback already: leave `eval_accuracy` out of QCRDConfig to attach your own."
            )
        if max_questions is not None and max_questions < 1:
            raise ConfigError(f"max_questions must be at least 1, got {max_questions}.")
        without = "`eval_accuracy=False`"
        check_can_generate(trainer, "answers", without, f"{without} and `qcrd evaluate` on the checkpoints")
        if trainer.processing_class is None:
            raise ConfigError("The trainer has no tokenizer to generate with: pass `processing_class`.")
        prepare_tokenizer(trainer.processing_class)
        # Before anything is evaluated: some CPUs repack 4-bit weights at the first forward pass without gradient.
        keep_cpu_gradients(base_of(trainer))
        self.trainer = trainer
        self.settings = EvaluationSettings(
            task_kind,
            tasks,
            num_samples,
            temperature,
            args.seed,
            args.per_device_eval_batch_size if batch_size is None else batch_size,
            label_max_new_tokens,
            max_new_tokens,
        )
        form = student_format or getattr(trainer, "student_format", None)
        self.student_format = form or StudentFormat(is_encoder_decoder=is_encoder_decoder(base_of(trainer)))
        self.settings.tasks_of(self.student_format)
        self.columns = Columns(choices=choices_column)
        self.max_questions = max_questions
        self.results: dict[str, EvaluationResult] = {}
        self._given = questions
        self._read: list[tuple[Any, list[Question], int]] = []
        is_ours = hasattr(trainer, "evaluation_parts")
        held = getattr(trainer, "eval_questions", None) if questions is None else questions
        if questions is None and not is_ours:
            raise ConfigError(
                f"A {type(trainer).__name__} keeps no questions as texts: pass `questions=`, a dataset with the columns "
                "'prompt' and 'label'."
            )
        if questions is not None and isinstance(trainer.eval_dataset, dict):
            remedy = "leave `questions` out, and each set is asked under its name" if is_ours else "give it one set"
            raise ConfigError(f"The trainer has several sets in `eval_dataset`, and `questions` is one: {remedy}.")
        for name, rows in held.items() if isinstance(held, dict) else [(None, held)]:
            if rows is not None:
                self._read.append(
                    (rows, *self._questions(rows, f"eval_dataset[{name!r}]" if name else "eval_dataset"))
                )
        if is_ours:
            trainer.evaluation_parts.append(self)
        elif isinstance(trainer.eval_dataset, dict):
            raise ConfigError(
                "The trainer has several sets in `eval_dataset`, and `questions` is one: give it one set."
            )
        else:
            _join_evaluations(trainer, self)

    def measure(self, rows: Dataset | IterableDataset | None, metric_key_prefix: str) -> dict[str, float]:
        """
        What the student gets right now. A collective: called on every process.

        Args:
            rows ([`~datasets.Dataset`], *optional*): the rows evaluated on; those given to the callback come first.
            metric_key_prefix (`str`): what the names of the metrics begin with.

        Returns:
            `dict[str, float]`: the accuracies in [0, 1], `accuracy_questions` (how many questions they are of) and
            `accuracy_runtime` in seconds; the same on every process but for the last. Empty if there is nothing to ask.
        """
        rows = rows if self._given is None else self._given
        if rows is None or self not in self.trainer.callback_handler.callbacks:
            return {}
        started, trainer = time.perf_counter(), self.trainer
        accelerator = trainer.accelerator
        shows = not trainer.args.disable_tqdm and accelerator.is_local_main_process
        share = (accelerator.process_index, accelerator.num_processes)

        def asked():
            questions, skipped = self._questions(rows)
            with accelerator.autocast():
                student, form = base_of(trainer), self.student_format
                answers = ask(student, trainer.processing_class, questions, self.settings, form, share, shows)
            return questions, skipped, answers

        questions, skipped, answers = together(accelerator, asked)
        answers = collect(gather_object([answers]) if share[1] > 1 else [answers])
        result = outcome_of(questions, answers, self.settings.task_kind, skipped)
        self.results[metric_key_prefix] = result
        metrics = {name: getattr(result, name) for name in METRICS if getattr(result, name) is not None}
        metrics |= {"accuracy_questions": len(questions), "accuracy_runtime": time.perf_counter() - started}
        return {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}

    def _questions(self, rows: Any, name: str = "The dataset evaluated on") -> tuple[list[Question], int]:
        for known, questions, skipped in self._read:
            if known is rows:
                return questions, skipped
        try:
            return questions_of(rows, self.settings.task_kind, self.columns, name, self.max_questions)
        except DataError as err:
            raise DataError(f"{name} cannot be asked for accuracies: {err}") from err


def _join_evaluations(trainer: Trainer, callback: AccuracyCallback) -> None:
    """Lets a trainer that knows nothing of it log the callback's metrics with its own, where it evaluates."""
    loop = trainer.evaluation_loop

    def with_accuracies(*args, metric_key_prefix: str = "eval", **kwargs):
        output = loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if metric_key_prefix == "eval":  # not that of `predict`
            output.metrics.update(callback.measure(None, metric_key_prefix))
        return output

    trainer.evaluation_loop = with_accuracies
