"""How good a student is: does it predict the label, and does its rationale reach it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from .answers import answers_equal, extract_answer, format_answer, parse_label
from .data.prompts import StudentFormat, prompt_ids
from .errors import DataError
from .models import is_encoder_decoder, prepare_tokenizer
from .sampling.generate import Completion, generate_completions
from .sampling.questions import read_choices


TaskKind = str | Callable[[str], Hashable | None]


@dataclass
class QuestionResult:
    """
    What a student made of one question.

    Attributes:
        id (`str`): the question's key.
        label (`str`): the gold label.
        predicted_text (`str`): completion under the label prefix.
        predicted (`str` or `None`): the answer read from it.
        label_correct (`bool`): whether it equals the label.
        rationale (`str`): completion under the rationale prefix.
        reached (`str` or `None`): the answer that it reaches.
        answer_correct (`bool`): whether that equals the label.
        rationale_finished (`bool`): whether the student ended its rationale itself.
    """

    id: str
    label: str
    predicted_text: str
    predicted: str | None
    label_correct: bool
    rationale: str
    reached: str | None
    answer_correct: bool
    rationale_finished: bool


@dataclass
class EvaluationResult:
    """
    Accuracies of a student, with the outcome of every question.

    Attributes:
        label_accuracy (`float`): share of the questions whose label is predicted, in [0, 1].
        answer_accuracy (`float`): share of the questions whose rationale reaches the label, in [0, 1].
        agreement (`float`): share of the questions whose prediction equals what the rationale reaches.
        counts (`dict[str, int]`): `questions`, `label_correct`, `answer_correct`, `no_predicted_answer`,
            `no_reached_answer`, `unfinished_rationales`, and `skipped` (rows without a label).
        questions (`list[QuestionResult]`): each question's outcome.
    """

    label_accuracy: float
    answer_accuracy: float
    agreement: float
    counts: dict[str, int]
    questions: list[QuestionResult]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain types, for JSON."""
        return asdict(self)


def evaluate_student(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Sequence[Mapping[str, Any]],
    task_kind: TaskKind,
    student_format: StudentFormat | None = None,
    prompt_column: str = "prompt",
    label_column: str = "label",
    choices_column: str | None = None,
    batch_size: int = 32,
    label_max_new_tokens: int = 32,
    max_new_tokens: int = 256,
    progress: bool = True,
) -> EvaluationResult:
    """
    Asks a student every question twice, greedily: for the label and for a rationale.

    Args:
        model (`nn.Module`):
            The student. Its mode is restored.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset ([`~datasets.Dataset`] or sequence of mappings):
            Questions with their labels. Rows whose label is null are skipped, with a count.
        task_kind (`str` or `Callable`):
            How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours.
        student_format ([`StudentFormat`], *optional*):
            The prefixes that the student was taught; the default ones if left out.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the labels.
        choices_column (`str`, *optional*):
            Column with the options of a choice: a mapping of letters, or a list of texts.
        batch_size (`int`, *optional*, defaults to `32`):
            Questions at a time.
        label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a predicted label.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show progress bars.

    Returns:
        [`EvaluationResult`]

    Raises:
        [`DataError`]: naming the column, or the row whose label cannot be read as the task kind.
    """
    form = student_format or StudentFormat(is_encoder_decoder=is_encoder_decoder(model))
    prepare_tokenizer(tokenizer)
    rows, skipped = _rows(dataset, task_kind, prompt_column, label_column, choices_column)
    texts = {}
    for prefix, limit in ((form.predict_prefix, label_max_new_tokens), (form.explain_prefix, max_new_tokens)):
        prompts = [prompt_ids(row.prompt, prefix, tokenizer, form) for row in rows]
        what = f"Asking {prefix or 'without a prefix'}"
        texts[prefix] = generate_completions(model, tokenizer, prompts, limit, batch_size, what, progress)
    results = [
        _result(row, predicted, rationale, task_kind)
        for row, predicted, rationale in zip(rows, texts[form.predict_prefix], texts[form.explain_prefix], strict=True)
    ]
    count = len(results)
    counts = {
        "questions": count,
        "label_correct": sum(r.label_correct for r in results),
        "answer_correct": sum(r.answer_correct for r in results),
        "no_predicted_answer": sum(r.predicted is None for r in results),
        "no_reached_answer": sum(r.reached is None for r in results),
        "unfinished_rationales": sum(not r.rationale_finished for r in results),
        "skipped": skipped,
    }
    return EvaluationResult(
        label_accuracy=counts["label_correct"] / count,
        answer_accuracy=counts["answer_correct"] / count,
        agreement=sum(r.predicted is not None and r.predicted == r.reached for r in results) / count,
        counts=counts,
        questions=results,
    )


@dataclass
class _Row:
    id: str
    prompt: Any
    label: Hashable
    choices: Mapping[str, str] | None


def _rows(dataset, task_kind, prompt_column, label_column, choices_column) -> tuple[list[_Row], int]:
    columns = getattr(dataset, "column_names", None) or (list(dataset[0]) if len(dataset) else [])
    for column in (prompt_column, label_column, choices_column):
        if column is not None and column not in columns:
            raise DataError(
                f"There is no column {column!r} to evaluate on; the columns are {', '.join(map(repr, columns))}."
            )
    rows, skipped = [], 0
    for index, row in enumerate(dataset):
        if row[label_column] is None or row[prompt_column] is None:
            skipped += 1
            continue
        choices = read_choices(row[choices_column], choices_column, index) if choices_column else None
        try:
            label = parse_label(row[label_column], task_kind, choices)
        except DataError as err:
            raise DataError(f"Row {index}, column {label_column!r}: {err}") from err
        rows.append(_Row(str(index if row.get("id") is None else row["id"]), row[prompt_column], label, choices))
    if not rows:
        raise DataError(f"0 of {skipped} rows have a prompt and a label to evaluate on.")
    return rows, skipped


def _result(row: _Row, predicted: Completion, rationale: Completion, task_kind: TaskKind) -> QuestionResult:
    answers = [extract_answer(completion.text, task_kind, row.choices) for completion in (predicted, rationale)]
    correct = [answers_equal(answer, row.label, task_kind) for answer in answers]
    shown = [None if answer is None else format_answer(answer) for answer in answers]
    return QuestionResult(
        id=row.id,
        label=format_answer(row.label),
        predicted_text=predicted.text,
        predicted=shown[0],
        label_correct=correct[0],
        rationale=rationale.text,
        reached=shown[1],
        answer_correct=correct[1],
        rationale_finished=rationale.is_finished,
    )
