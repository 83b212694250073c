"""From what a student wrote to what it got right."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..answers import format_answer, parse_label
from ..errors import DataError
from ..records import Question
from ..sampling.self_consistency import select_rationales
from ..statistics import wilson_interval


TaskKind = str | Callable[[str], Hashable | None]

TASKS = ("label", "rationale")
# Each accuracy, and the outcome of a question that it is the share of.
METRICS = {"label_accuracy": "label_correct", "answer_accuracy": "answer_correct", "agreement": "agrees"}


class Written(NamedTuple):
    """A text of the student's, and whether the student ended it itself."""

    text: str
    is_finished: bool


@dataclass
class QuestionSamples:
    """
    All that a student wrote for one question, where it was asked more than once. A task that it was not asked has `None`.

    Attributes:
        predicted_texts (`list[str]`): completions under the label prefix.
        label_votes (`dict[str, int]`): the answers read from them and how many reach each, most frequent first.
        label_tie (`bool`): whether two answers share the highest count, so that none is predicted.
        rationales (`list[str]`): completions under the rationale prefix.
        answer_votes (`dict[str, int]`): the answers that they reach.
        answer_tie (`bool`): whether two of these share the highest count, so that none is reached.
        unfinished_rationales (`int`): rationales that the limit of tokens ended.
    """

    predicted_texts: list[str] | None = None
    label_votes: dict[str, int] | None = None
    label_tie: bool | None = None
    rationales: list[str] | None = None
    answer_votes: dict[str, int] | None = None
    answer_tie: bool | None = None
    unfinished_rationales: int | None = None


@dataclass
class QuestionResult:
    """
    What a student made of one question. What belongs to a task that it was not asked is `None`.

    Attributes:
        id (`str`): the question's key.
        label (`str`): the gold label.
        predicted_text (`str`): completion under the label prefix; of several, the first that predicts the winning answer.
        predicted (`str` or `None`): the answer read from it; of several, the one with the most votes, `None` in a tie.
        label_correct (`bool`): whether it equals the label.
        rationale (`str`): completion under the rationale prefix; of several, the first that reaches the winning answer.
        reached (`str` or `None`): the answer that it reaches; of several, the one with the most votes, `None` in a tie.
        answer_correct (`bool`): whether that equals the label.
        rationale_finished (`bool`): whether the student ended this rationale itself.
        samples ([`QuestionSamples`] or `None`): all that it wrote, where it was asked more than once.
    """

    id: str
    label: str
    predicted_text: str | None
    predicted: str | None
    label_correct: bool | None
    rationale: str | None
    reached: str | None
    answer_correct: bool | None
    rationale_finished: bool | None
    samples: QuestionSamples | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether the prediction is what the rationale reaches; `None` where only one of them was asked for."""
        if self.label_correct is None or self.answer_correct is None:
            return None
        return self.predicted is not None and self.predicted == self.reached


@dataclass
class EvaluationResult:
    """
    Accuracies of a student, with the outcome of every question. What belongs to a task that it was not asked is `None`.

    Attributes:
        label_accuracy (`float` or `None`): share of the questions whose label is predicted, in [0, 1].
        answer_accuracy (`float` or `None`): share of the questions whose rationale reaches the label, in [0, 1].
        agreement (`float` or `None`): share of the questions whose prediction equals what the rationale reaches.
        intervals (`dict[str, tuple[float, float]]`): the 95 % interval of each of these (Wilson).
        counts (`dict[str, int]`): `questions`, `label_correct`, `answer_correct`, `agrees`, `no_predicted_answer`,
            `no_reached_answer`, `unfinished_rationales`, and `skipped` (rows without a prompt or a label); of several
            samples a question also `label_ties` and `answer_ties`, which count as no answer.
        questions (`list[QuestionResult]`): each question's outcome.
    """

    label_accuracy: float | None
    answer_accuracy: float | None
    agreement: float | None
    intervals: dict[str, tuple[float, float]]
    counts: dict[str, int]
    questions: list[QuestionResult]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain types, for JSON."""
        return asdict(self)


def check_label(question: Question, task_kind: TaskKind, column: str | None) -> None:
    """Raises a [`DataError`] that names the row whose label cannot be read as the task kind."""
    try:
        parse_label(question.label, task_kind, question.choices)
    except DataError as err:
        raise DataError(f"Row {question.row}, column {column!r}: {err}") from err


def outcome_of(
    questions: Sequence[Question], written: dict[str, list[list[Written]]], task_kind: TaskKind, skipped: int = 0
) -> EvaluationResult:
    """
    What a student got right.

    Args:
        questions (`Sequence[Question]`): the questions, with a label each.
        written (`dict[str, list[list[Written]]]`): for each task of `TASKS` that was asked, what the student wrote for each
            question, one text or more.
        task_kind (`str` or `Callable`): how an answer is read from a text.
        skipped (`int`, *optional*, defaults to `0`): rows that are not among the questions.
    """
    nothing = [None] * len(questions)
    results = [
        _judge(*row, task_kind)
        for row in zip(questions, written.get("label", nothing), written.get("rationale", nothing), strict=True)
    ]
    counts = {"questions": len(results)}
    for key in METRICS.values():
        outcomes = [getattr(result, key) for result in results]
        if None not in outcomes:
            counts[key] = sum(outcomes)
    if "label" in written:
        counts["no_predicted_answer"] = sum(result.predicted is None for result in results)
    if "rationale" in written:
        counts["no_reached_answer"] = sum(result.reached is None for result in results)
        counts["unfinished_rationales"] = sum(not text.is_finished for texts in written["rationale"] for text in texts)
    for task, key in zip(TASKS, ("label_tie", "answer_tie"), strict=True):
        if task in written and results[0].samples is not None:
            counts[f"{key}s"] = sum(getattr(result.samples, key) for result in results)
    counts["skipped"] = skipped
    total = len(results)
    shares = {name: counts[key] / total if key in counts else None for name, key in METRICS.items()}
    intervals = {name: wilson_interval(counts[key], total) for name, key in METRICS.items() if key in counts}
    return EvaluationResult(**shares, intervals=intervals, counts=counts, questions=results)


def _judge(
    question: Question, predicted: list[Written] | None, rationales: list[Written] | None, task_kind: TaskKind
) -> QuestionResult:
    label, answer = _Vote(question, predicted, task_kind), _Vote(question, rationales, task_kind)
    samples = None
    if max(len(texts or ()) for texts in (predicted, rationales)) > 1:
        samples = QuestionSamples(
            label.texts,
            label.votes,
            label.tie,
            answer.texts,
            answer.votes,
            answer.tie,
            None if rationales is None else sum(not text.is_finished for text in rationales),
        )
    return QuestionResult(
        id=question.id,
        label=_shown(parse_label(question.label, task_kind, question.choices)),
        predicted_text=label.text,
        predicted=label.winner,
        label_correct=label.is_correct,
        rationale=answer.text,
        reached=answer.winner,
        answer_correct=answer.is_correct,
        rationale_finished=answer.is_finished,
        samples=samples,
    )


class _Vote:
    """What the texts of a task decide, by the vote of self-consistency: the most frequent answer, none in a tie."""

    def __init__(self, question: Question, written: list[Written] | None, task_kind: TaskKind):
        self.texts = self.votes = self.tie = self.winner = self.is_correct = self.text = self.is_finished = None
        if written is None:
            return
        self.texts = [text for text, _ in written]
        selection = select_rationales(
            self.texts,
            task_kind=task_kind,
            label=question.label,
            choices=question.choices,
            label_source="majority",
        )
        self.votes, self.tie, self.winner = dict(selection.votes), selection.tie, selection.majority
        self.is_correct = bool(selection.majority_is_gold)
        shown = self.texts.index(selection.positives[0]) if selection.positives else 0
        self.text, self.is_finished = written[shown]


def _shown(answer: Any) -> str:
    """An answer as text; what a user's own function returns may be neither a number nor a text."""
    try:
        return format_answer(answer)
    except TypeError:
        return str(answer)
