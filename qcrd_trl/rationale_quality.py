"""How well a discriminator tells good rationales from bad ones, on questions that it was not trained on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .answers import answers_equal, extract_answer, parse_label
from .data.draws import draw
from .data.prompts import is_conversational
from .diversity import distinct_n, mean_pairwise_similarity
from .errors import ConfigError, DataError, ModelError
from .metrics import auc, brier_score, expected_calibration_error, reliability_bins
from .run_log import SCORE_BINS
from .sampling.questions import read_choices


if TYPE_CHECKING:
    from .student import RationaleStudent

QUESTION_SEED = 7  # tells this draw from those of training
TEMPERATURES = (1.5, 2.0)  # the paper's for negatives, and a higher one
POSITIVE, NEGATIVE = "teacher_positive", "teacher_negative"


@dataclass(frozen=True)
class ScoredRationale:
    """
    A rationale with its score.

    Attributes:
        id (`str`): key of its question.
        source (`str`): who wrote it: `teacher_positive`, `teacher_negative`, or `student_TEMPERATURE`.
        text (`str`): the rationale.
        score (`float` or `None`): the discriminator's, in (0, 1); `None` for one without text.
        reaches_label (`bool` or `None`): whether its answer is the label; `None` if no task kind was given, or the question has
            no label.
    """

    id: str
    source: str
    text: str
    score: float | None
    reaches_label: bool | None = None


@dataclass
class QualityReport:
    """
    Rationales of some questions with the discriminator's scores, and what the scores are worth.

    Attributes:
        rationales (`list[ScoredRationale]`): each rationale.
        num_questions (`int`): questions that they belong to.
        settings (`dict`): what was asked for.
        question_set (`str`): sha256 of the questions' ids and texts, by which two reports can be compared.
    """

    rationales: list[ScoredRationale]
    num_questions: int
    settings: dict[str, Any]
    question_set: str

    def scores(self, source: str) -> list[float]:
        """Scores of the rationales of a source that have one."""
        return [one.score for one in self.rationales if one.source == source and one.score is not None]

    @property
    def sources(self) -> list[str]:
        """Who wrote rationales: the teacher, and the student at each temperature."""
        return list(dict.fromkeys(one.source for one in self.rationales))

    def as_dict(self) -> dict[str, Any]:
        """
        The report as plain types, for JSON.

        Returns:
            `dict`: `sources` (of each its counts, mean, quantiles and histogram), `against` (positives against each other
            source: `auc`, `expected_calibration_error`, `brier_score`, `reliability`), `diversity` (of the positives of a
            question), `rationales`, `settings`, `question_set`.
        """
        return {
            "format": 1,
            "kind": "rationale_quality",
            "questions": self.num_questions,
            "sources": {source: self._source(source) for source in self.sources},
            "against": {source: self._against(source) for source in self.sources if source != POSITIVE},
            "diversity": self._diversity(),
            "settings": self.settings,
            "question_set": self.question_set,
            "rationales": [asdict(one) for one in self.rationales],
        }

    def _source(self, source: str) -> dict[str, Any]:
        mine, scores = [one for one in self.rationales if one.source == source], self.scores(source)
        told = [one.reaches_label for one in mine if one.reaches_label is not None]
        return {
            "rationales": len(mine),
            "scored": len(scores),
            "mean": float(np.mean(scores)) if scores else None,
            "quantiles": _quantiles(scores),
            "reach_the_label": sum(told) / len(told) if told else None,
            "histogram": np.histogram(scores, bins=SCORE_BINS, range=(0, 1))[0].tolist(),
        }

    def _against(self, source: str) -> dict[str, Any]:
        good, bad = self.scores(POSITIVE), self.scores(source)
        wrong = [
            one.score
            for one in self.rationales
            if one.source == source and one.score is not None and one.reaches_label is False
        ]
        out = {"auc": auc(good, bad), "auc_of_wrong_ones": auc(good, wrong)}
        if not good or not bad:
            return {**out, "expected_calibration_error": None, "brier_score": None, "reliability": []}
        # One half each: else the numbers would tell how many samples were drawn.
        scores, labels = [*good, *bad], [True] * len(good) + [False] * len(bad)
        weights = [0.5 / len(good)] * len(good) + [0.5 / len(bad)] * len(bad)
        return {
            **out,
            "expected_calibration_error": expected_calibration_error(scores, labels, weights=weights),
            "brier_score": brier_score(scores, labels, weights),
            "reliability": [asdict(one) for one in reliability_bins(scores, labels, weights=weights)],
        }

    def _diversity(self) -> dict[str, Any]:
        texts: dict[str, list[str]] = {}
        for one in self.rationales:
            if one.source == POSITIVE:
                texts.setdefault(one.id, []).append(one.text)
        several = [mine for mine in texts.values() if len(mine) > 1]
        found = {
            "distinct_1": [distinct_n(mine, 1) for mine in several],
            "distinct_2": [distinct_n(mine, 2) for mine in several],
            "pairwise_similarity": [mean_pairwise_similarity(mine) for mine in several],
        }
        known = {name: [value for value in values if value is not None] for name, values in found.items()}
        return {
            "questions_with_several_positives": len(several),
            **{name: float(np.mean(values)) if values else None for name, values in known.items()},
        }


def rationale_quality(
    student: "RationaleStudent",
    dataset: Sequence[Mapping[str, Any]],
    temperatures: Sequence[float] = TEMPERATURES,
    num_samples: int = 1,
    num_questions: int | None = None,
    seed: int = 0,
    prompt_column: str = "prompt",
    label_column: str = "label",
    choices_column: str | None = None,
    batch_size: int = 32,
    max_new_tokens: int = 256,
    progress: bool = False,
) -> QualityReport:
    """
    Scores a teacher's positives and negatives and a student's own samples with the student's discriminator.

    Scores are those that training computes: of the same tokens, by the same states. On questions that were trained on they
    say little; hold some out.

    Args:
        student ([`RationaleStudent`]):
            The student, with its discriminator. If it has a task kind, it is told apart which samples reach the label: a
            student's sample at a high temperature may well be right, and then is no negative.
        dataset ([`~datasets.Dataset`] or sequence of mappings):
            Held-out questions with `positive_rationales`, and optionally `negative_rationales`, as `qcrd select` writes them.
            Rows without a positive are left out.
        temperatures (`Sequence[float]`, *optional*, defaults to `(1.5, 2.0)`):
            Temperatures at which the student is sampled, as a source of its own each. None: the teacher's rationales alone.
        num_samples (`int`, *optional*, defaults to `1`):
            Samples of a question at each temperature.
        num_questions (`int`, *optional*):
            Only so many questions, drawn by the seed.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples and of the questions.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the labels, which may be missing.
        choices_column (`str`, *optional*):
            Column with the options of a choice.
        batch_size (`int`, *optional*, defaults to `32`):
            Rationales at a time.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a sample.
        progress (`bool`, *optional*, defaults to `False`):
            Whether to show progress bars.

    Returns:
        [`QualityReport`]

    Raises:
        [`ModelError`]: the student has no discriminator, or was not taught rationales.
        [`ConfigError`]: a number cannot work.
        [`DataError`]: a column is missing, or a row cannot be used; the message names it.
    """
    if student.discriminator is None:
        raise ModelError(
            "There is no discriminator to score rationales with: the student was trained without one (discriminator='none', or "
            "a preset that has none), or it was not loaded."
        )
    if any(not temperature > 0 for temperature in temperatures) or len(set(temperatures)) < len(temperatures):
        raise ConfigError(f"temperatures must be different numbers above 0, got {list(temperatures)}.")
    if num_questions is not None and num_questions < 1:
        raise ConfigError(f"num_questions must be at least 1, got {num_questions}.")
    rows = _rows(dataset, student.task_kind, (prompt_column, label_column, choices_column), num_questions, seed)
    found: list[ScoredRationale] = []
    for source, column in ((POSITIVE, "positive_rationales"), (NEGATIVE, "negative_rationales")):
        pairs = [(row, text) for row in rows for text in row[column]]
        scores = student.score([row["prompt"] for row, _ in pairs], [text for _, text in pairs], batch_size)
        found += [
            _scored(row, source, text, score, student.task_kind)
            for (row, text), score in zip(pairs, scores, strict=True)
        ]
    for temperature in temperatures:
        explained = student.explain(
            [row["prompt"] for row in rows], num_samples, temperature, seed, None, batch_size, max_new_tokens, progress
        )
        found += [
            _scored(row, f"student_{temperature:g}", sample.text, sample.quality, student.task_kind)
            for row, explanation in zip(rows, explained, strict=True)
            for sample in explanation.samples
        ]
    settings = {
        "temperatures": list(temperatures),
        "num_samples": num_samples,
        "num_questions": num_questions,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "task_kind": student.task_kind if isinstance(student.task_kind, str) else None,
    }
    return QualityReport(found, len(rows), settings, _question_set(rows))


def _rows(dataset, task_kind, columns, num_questions, seed) -> list[dict[str, Any]]:
    prompt_column, label_column, choices_column = columns
    names = getattr(dataset, "column_names", None) or (list(dataset[0]) if len(dataset) else [])
    for column in (prompt_column, "positive_rationales", *([choices_column] if choices_column else [])):
        if column not in names:
            raise DataError(
                f"There is no column {column!r} to measure rationales by; the columns are {', '.join(map(repr, names))}."
            )
    rows, without = [], 0
    for index, row in enumerate(dataset):
        texts = {name: _texts(row.get(name), name, index) for name in ("positive_rationales", "negative_rationales")}
        if row[prompt_column] is None or not texts["positive_rationales"]:
            without += 1
            continue
        choices = read_choices(row[choices_column], choices_column, index) if choices_column else None
        label = row.get(label_column)
        if task_kind is not None and label is not None:
            try:
                label = parse_label(label, task_kind, choices)
            except DataError as err:
                raise DataError(f"Row {index}, column {label_column!r}: {err}") from err
        key = str(index if row.get("id") is None else row["id"])
        rows.append({"id": key, "prompt": row[prompt_column], "label": label, "choices": choices, **texts})
    if not rows:
        raise DataError(f"0 of {without} rows have a question with a positive rationale: there is nothing to measure.")
    if num_questions is not None and num_questions < len(rows):
        left, chosen = list(range(len(rows))), []
        for number in range(num_questions):
            chosen.append(left.pop(draw(len(left), seed, number, QUESTION_SEED)))
        rows = [rows[place] for place in sorted(chosen)]
    return rows


def _quantiles(scores: Sequence[float]) -> dict[str, float] | None:
    ranks = (5, 25, 50, 75, 95)
    return dict(zip(map(str, ranks), np.percentile(scores, ranks).tolist(), strict=True)) if scores else None


def _texts(cell: Any, column: str, index: int) -> list[str]:
    if cell is None:
        return []
    if isinstance(cell, str) or not all(isinstance(text, str) for text in cell):
        raise DataError(f"Row {index}: column {column!r} must hold a list of texts, got {cell!r:.80}.")
    return [text for text in cell if text.strip()]


def _scored(row: Mapping[str, Any], source: str, text: str, score: float | None, kind: Any) -> ScoredRationale:
    reaches = None
    if kind is not None and row["label"] is not None:
        reaches = answers_equal(extract_answer(text, kind, row["choices"]), row["label"], kind)
    return ScoredRationale(row["id"], source, text, score, reaches)


def _question_set(rows: Sequence[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        prompt = [dict(message) for message in row["prompt"]] if is_conversational(row["prompt"]) else row["prompt"]
        digest.update(json.dumps([row["id"], prompt], ensure_ascii=True, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
