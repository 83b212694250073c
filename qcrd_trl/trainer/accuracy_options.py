"""Arguments of the accuracies that are measured while a student trains."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .checks import at_least_one


@dataclass
class AccuracyOptions:
    """
    The part of [`QCRDConfig`] that says whether, and how, the student's answers are measured at each evaluation;
    its docstring tells what each is.
    """

    eval_accuracy: bool = field(
        default=False,
        metadata={"help": "Measure label and answer accuracy by generation at each evaluation; needs --task_kind."},
    )
    eval_max_questions: int | None = field(
        default=None, metadata={"help": "Only the first so many rows of each held-out set are asked."}
    )
    eval_label_max_new_tokens: int = field(
        default=32, metadata={"help": "Largest number of tokens of a label predicted in evaluation."}
    )
    eval_max_new_tokens: int = field(
        default=256, metadata={"help": "Largest number of tokens of a rationale written in evaluation."}
    )

    def accuracy_options(self) -> dict[str, Any]:
        """The options of [`AccuracyCallback`] that these arguments ask for."""
        return {
            "task_kind": self.task_kind,
            "choices_column": self.choices_column,
            "max_questions": self.eval_max_questions,
            "label_max_new_tokens": self.eval_label_max_new_tokens,
            "max_new_tokens": self.eval_max_new_tokens,
        }

    def check_accuracy(self) -> None:
        """Raises a [`ConfigError`] for what cannot work."""
        for name in ("eval_label_max_new_tokens", "eval_max_new_tokens"):
            at_least_one(name, getattr(self, name))
        if self.eval_max_questions is not None:
            at_least_one("eval_max_questions", self.eval_max_questions)
        if not self.eval_accuracy:
            return
        if self.task_kind is None:
            raise ConfigError(
                "eval_accuracy=True needs `task_kind`: without it no answer is read from what the student says. Set it to "
                "'number', 'choice', 'nli' or 'text'."
            )
        best = self.metric_for_best_model or ""
        for task, weight, names in (
            ("label", "alpha_1", ("label_accuracy", "agreement")),
            ("rationale", "alpha_2", ("answer_accuracy", "agreement")),
        ):
            if getattr(self, weight) == 0 and best.endswith(names):
                raise ConfigError(
                    f"metric_for_best_model={best!r} is never measured: {weight} is 0, so the student is not taught the "
                    f"{task} task. Choose the metric of the other task, or set the weight above 0."
                )
