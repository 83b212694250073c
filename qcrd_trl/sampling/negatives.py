"""Low-quality rationales from a snapshot of the student: sampled, compared with the positives, checked, counted."""

import hashlib
import time
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..answers import answers_equal, extract_answer, parse_label
from ..data.prompts import Prompt
from ..data.tokenize import draw, fold_white_space
from ..errors import DataError
from ..records import Negative
from .generate import Completion, generate_completions
from .questions import read_choices


TaskKind = str | Callable[[str], Hashable | None]
NEGATIVE_SEED = 3  # tells these draws from the others of a run


@dataclass(frozen=True)
class NegativeQuestion:
    """
    A question that negatives are sampled for.

    Attributes:
        id (`str`): its key.
        prompt_ids (`Sequence[int]`): the question under the rationale prefix, as token ids.
        positives (`frozenset[str]`): its positive rationales, white space folded.
        label (`Hashable`, *optional*): its answer as [`~qcrd_trl.answers.parse_label`] reads it, where negatives that
            reach it are to be known.
        choices (`Mapping[str, str]`, *optional*): letter to option text, for multiple-choice questions.
        prompt (`str` or `list[dict]`, *optional*): the question as the user has it.
    """

    id: str
    prompt_ids: Sequence[int]
    positives: frozenset[str] = frozenset()
    label: Hashable | None = None
    choices: Mapping[str, str] | None = None
    prompt: Prompt | None = None


@dataclass(frozen=True)
class NegativeSettings:
    """
    How negatives are sampled.

    Args:
        num_negatives (`int`, *optional*, defaults to `1`): samples a question (QCRD: 1).
        temperature (`float`, *optional*, defaults to `1.5`): sampling temperature (QCRD: 1.5).
        max_new_tokens (`int`, *optional*, defaults to `256`): largest number of tokens of a sample.
        max_length (`int`, *optional*): largest number of tokens of prompt and sample together, or of the sample in an
            encoder-decoder student.
        batch_size (`int`, *optional*, defaults to `64`): samples at a time.
        task_kind (`str` or `Callable`, *optional*): how an answer is read from a text.
        correct (`str`, *optional*, defaults to `"keep"`): what becomes of samples whose answer is the label: `"keep"`
            (not looked at), `"mark"` (kept, and marked) or `"drop"`.
        seed (`int`, *optional*, defaults to `0`): seed of the run.
    """

    num_negatives: int = 1
    temperature: float = 1.5
    max_new_tokens: int = 256
    max_length: int | None = None
    batch_size: int = 64
    task_kind: TaskKind | None = None
    correct: str = "keep"
    seed: int = 0


@dataclass
class NegativeReport:
    """
    Counts of one refresh; those of several processes add up.

    Attributes:
        sampled (`int`): samples.
        kept (`int`): of them, those that became negatives.
        equal_to_positive (`int`): left out because they are a positive of the question, up to white space.
        empty (`int`): left out because they have no text.
        duplicate (`int`): left out because they equal another negative of the question.
        correct (`int`): samples whose answer is the label, where that was asked.
        cut (`int`): samples ended by the limit of new tokens.
        tokens (`int`): tokens sampled.
        seconds (`float`): time spent on sampling; of several processes, the longest.
    """

    sampled: int = 0
    kept: int = 0
    equal_to_positive: int = 0
    empty: int = 0
    duplicate: int = 0
    correct: int = 0
    cut: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "NegativeReport") -> "NegativeReport":
        names = [name for name in vars(self) if name != "seconds"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return NegativeReport(**sums, seconds=max(self.seconds, other.seconds))

    def to_logs(self, prefix: str = "negatives/") -> dict[str, float]:
        """What is logged: shares of the samples, their mean length in tokens, the time of sampling and the speed."""
        samples = max(self.sampled, 1)
        shares = ("kept", "equal_to_positive", "empty", "duplicate", "correct", "cut")
        logs = {name: getattr(self, name) / samples for name in shares}
        logs |= {"sampled": self.sampled, "mean_length": self.tokens / samples, "seconds": self.seconds}
        logs["tokens_per_second"] = self.tokens / self.seconds if self.seconds > 0 else 0.0
        return {prefix + name: value for name, value in logs.items()}


@dataclass
class NegativeSampler:
    """
    Samples the negatives of an iteration.

    What is sampled for a question is a function of the weights, the question, the settings and the iteration: not of the
    random state, nor of the questions beside it, nor of how many processes share the work (but for the rounding of sums,
    which depends on the batch).

    Args:
        model (`nn.Module`): the student, with the snapshot's weights in place.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        settings ([`NegativeSettings`], *optional*): how.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    settings: NegativeSettings = field(default_factory=NegativeSettings)

    def sample(
        self,
        questions: Sequence[NegativeQuestion],
        iteration: int,
        snapshot: int,
        share: tuple[int, int] = (0, 1),
        progress: bool = True,
    ) -> tuple[list[tuple[int, Negative]], NegativeReport]:
        """
        Samples for one process's share of the questions.

        Args:
            questions (`Sequence[NegativeQuestion]`): all questions of the iteration, on every process the same.
            iteration (`int`): the iteration that the negatives are for.
            snapshot (`int`): the iteration that the snapshot was taken at.
            share (`tuple[int, int]`, *optional*, defaults to `(0, 1)`): `(process, processes)`.
            progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

        Returns:
            `tuple`: `(place among all samples, negative)` of each sample that is kept, and the counts.
            [`collect`] makes the negatives of each question of the shares of all processes.
        """
        started, how = time.perf_counter(), self.settings
        prompts = [question.prompt_ids for question in questions for _ in range(how.num_negatives)]
        seeds = [self._seed(iteration, q.id, number) for q in questions for number in range(how.num_negatives)]
        completions = generate_completions(
            self.model,
            self.tokenizer,
            prompts,
            how.max_new_tokens,
            how.batch_size,
            desc=f"Negatives of iteration {iteration} (snapshot {snapshot})",
            progress=progress,
            temperature=how.temperature,
            seeds=seeds,
            share=share,
            max_length=how.max_length,
        )
        report, kept = NegativeReport(), []
        for place, completion in enumerate(completions):
            if completion is None:
                continue
            question = questions[place // how.num_negatives]
            report.sampled += 1
            report.tokens += completion.num_tokens
            report.cut += not completion.is_finished
            correct = self._is_correct(completion, question)
            report.correct += bool(correct)
            key = fold_white_space(completion.text)
            if not key:
                report.empty += 1
            elif key in question.positives:
                report.equal_to_positive += 1
            elif not (correct and how.correct == "drop"):
                kept.append(
                    (
                        place,
                        Negative(
                            text=completion.text,
                            token_ids=completion.token_ids,
                            iteration=iteration,
                            snapshot=snapshot,
                            seed=seeds[place],
                            temperature=how.temperature,
                            is_finished=completion.is_finished,
                            reaches_label=correct,
                        ),
                    )
                )
        report.seconds = time.perf_counter() - started
        return kept, report

    def collect(
        self,
        questions: Sequence[NegativeQuestion],
        shares: Sequence[tuple[list[tuple[int, Negative]], NegativeReport]],
    ) -> tuple[dict[str, list[Negative]], NegativeReport]:
        """Negatives by question, each text once, and the counts, of what [`sample`] gave on every process."""
        report = sum((part for _, part in shares), NegativeReport())
        negatives: dict[str, list[Negative]] = {}
        seen: dict[str, set[str]] = {}
        for place, negative in sorted((item for kept, _ in shares for item in kept), key=lambda item: item[0]):
            key, text = questions[place // self.settings.num_negatives].id, fold_white_space(negative.text)
            if text in seen.setdefault(key, set()):
                report.duplicate += 1
                continue
            seen[key].add(text)
            negatives.setdefault(key, []).append(negative)
            report.kept += 1
        return negatives, report

    def _seed(self, iteration: int, question: str, number: int) -> int:
        key = int.from_bytes(hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        return draw(1 << 62, self.settings.seed, iteration, key, number, NEGATIVE_SEED)

    def _is_correct(self, completion: Completion, question: NegativeQuestion) -> bool | None:
        kind = self.settings.task_kind
        if self.settings.correct == "keep" or kind is None or question.label is None:
            return None
        return answers_equal(extract_answer(completion.text, kind, question.choices), question.label, kind)


def negative_questions(
    tokenized: Dataset,
    rows: Dataset | None,
    tokenizer: PreTrainedTokenizerBase,
    task_kind: TaskKind | None = None,
    choices_column: str | None = None,
) -> list[NegativeQuestion]:
    """
    The questions of a tokenized dataset.

    Args:
        tokenized ([`~datasets.Dataset`]): as [`~qcrd_trl.data.dataset.prepare_dataset`] makes it.
        rows ([`~datasets.Dataset`], *optional*): the dataset that it was made of; its labels and options are read where
            `task_kind` is given.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the positives, as it will the negatives.
        task_kind (`str` or `Callable`, *optional*): how labels are read.
        choices_column (`str`, *optional*): the column with the options of a choice.

    Raises:
        [`DataError`]: two questions with one id, or a label or options that cannot be read, naming the row.
    """
    prompts = rows["prompt"] if rows is not None else None
    labels = _labels(rows, task_kind, choices_column) if task_kind is not None and rows is not None else None
    seen: dict[str, int] = {}
    questions = []
    for row in tokenized.select_columns(["question_index", "id", "explain_prompt_ids", "positive_ids"]):
        key, index = row["id"], row["question_index"]
        if key in seen:
            raise DataError(
                f"Rows {seen[key]} and {index} have the same id {key!r}, by which negatives are kept. Make the column 'id' "
                "unique, or remove it: the rows are then numbered."
            )
        seen[key] = index
        label, choices = (None, None) if labels is None else labels[index]
        texts = tokenizer.batch_decode(row["positive_ids"], skip_special_tokens=True) if row["positive_ids"] else []
        positives = frozenset(fold_white_space(text) for text in texts)
        prompt = None if prompts is None else prompts[index]
        ids = array("i", row["explain_prompt_ids"])  # a list of Python's integers takes nine times the memory
        questions.append(NegativeQuestion(key, ids, positives, label, choices, prompt))
    return questions


def _labels(rows: Dataset, kind: TaskKind, choices_column: str | None) -> list[tuple[Hashable | None, Any]]:
    for column in ("label", choices_column):
        if column is not None and column not in rows.column_names:
            raise DataError(
                f"There is no column {column!r} to tell by which negatives are right; the columns are "
                f"{', '.join(map(repr, rows.column_names))}."
            )
    options = rows[choices_column] if choices_column else [None] * len(rows)
    out = []
    for index, (label, given) in enumerate(zip(rows["label"], options, strict=True)):
        choices = None if given is None else read_choices(given, choices_column, index)
        try:
            out.append((None if label is None else parse_label(label, kind, choices), choices))
        except DataError as err:
            raise DataError(f"Row {index}, column 'label': {err}") from err
    return out
