"""Is one student better than another, on the questions that both were asked."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..statistics import bootstrap_interval, mcnemar_p, paired_bootstrap, sign_flip_p, wilson_interval
from .outcome import METRICS
from .results import FORMAT, Results, read_results


logger = logging.getLogger(__name__)

MCNEMAR, SIGN_FLIP = "McNemar, exact", "paired permutation"

# By which rule an answer is read: results that differ in it say nothing of each other.
_RULES = ("task_kind", "task_callable")
# How the student was asked: a difference may come from these instead of the student.
_ASKED = ("num_samples", "temperature", "label_max_new_tokens", "max_new_tokens", "dtype")


@dataclass
class Run:
    """
    One student: the results of one evaluation, or of several training seeds.

    Attributes:
        models (`list[str]`): name of each model evaluated.
        files (`list[str]`): name of each file.
        accuracies (`dict[str, float]`): each metric that all files have, in [0, 1]: of several seeds, the mean.
        intervals (`dict[str, tuple[float, float]]`): their 95 % intervals: Wilson's of one seed; of several, the bootstrap
            over questions.
    """

    models: list[str]
    files: list[str]
    accuracies: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Difference:
    """
    By how much a run is better than the first in one metric.

    Attributes:
        run (`int`): number of the run, counted from 0; the first is 0.
        metric (`str`): `"label_accuracy"`, `"answer_accuracy"` or `"agreement"`.
        difference (`float`): the run's value less the first's, in [-1, 1].
        interval (`tuple[float, float]`): its 95 % interval by the paired bootstrap over questions. Where all questions
            differ alike, as when none does, it has no width.
        p_value (`float`): two-sided, of the hypothesis that there is no difference.
        test (`str`): `"McNemar, exact"` of one seed each, `"paired permutation"` of several.
        only_first (`int` or `None`): questions that only the first gets right; `None` of several seeds.
        only_run (`int` or `None`): questions that only this run gets right; `None` of several seeds.
    """

    run: int
    metric: str
    difference: float
    interval: tuple[float, float]
    p_value: float
    test: str
    only_first: int | None
    only_run: int | None


@dataclass
class Comparison:
    """
    Several students on the same questions.

    Attributes:
        questions (`int`): how many questions.
        question_set (`str`): what tells them from others, see [`~qcrd_trl.evaluation.results.question_set`].
        seed (`int`): seed of the resamples.
        runs (`list[Run]`): the students.
        differences (`list[Difference]`): each later run against the first, metric by metric.
        notes (`list[str]`): what to keep in mind.
    """

    questions: int
    question_set: str
    seed: int
    runs: list[Run]
    differences: list[Difference]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain types, for JSON."""
        return {"format": FORMAT, "comparison": True, **asdict(self)}


def compare_results(
    first: str | Path | Sequence[str | Path],
    *others: str | Path | Sequence[str | Path],
    seed: int = 0,
    allow_settings: bool = False,
) -> Comparison:
    """
    Compares the results of two students or more, question by question, each later one with the first.

    Args:
        first (`str` or `Path`, or sequence of them):
            A file that `qcrd evaluate` wrote; several are one student trained with several seeds, whose outcomes are
            averaged question by question.
        others:
            The same for each further student.
        seed (`int`, *optional*, defaults to `0`):
            Of the resamples.
        allow_settings (`bool`, *optional*, defaults to `False`):
            Whether to compare results of other samples, temperatures, limits of length or precisions, with a note, instead
            of raising an error.

    Returns:
        [`Comparison`]

    Raises:
        [`DataError`]: a file cannot be read, or the questions are not the same, naming those that differ.
        [`ConfigError`]: answers were read by other rules, the students were asked in other ways, or no metric is common to
            all.

    Example:

    ```python
    >>> from qcrd_trl.evaluation import compare_results
    >>> comparison = compare_results(["dss-1.json", "dss-2.json"], ["qcrd-1.json", "qcrd-2.json"])
    >>> comparison.differences[0].interval
    ```
    """
    if not others:
        raise ConfigError("A comparison needs two results or more.")
    groups = [[read_results(path) for path in _files(group)] for group in (first, *others)]
    everything = [results for group in groups for results in group]
    notes = _repeated(everything)
    for results in everything[1:]:
        _check_questions(everything[0], results)
        _check_settings(everything[0], results, _RULES, "Evaluate both in one way.")
    for group in groups:
        for results in group[1:]:
            _check_settings(group[0], results, _ASKED, "Seeds that are averaged must be measured in one way.")
    for group in groups[1:]:
        if not allow_settings:
            _check_settings(
                groups[0][0],
                group[0],
                _ASKED,
                "Pass --allow_settings (in Python, allow_settings=True) to compare them all the same.",
            )
        notes += _other_settings(groups[0][0], group[0], _ASKED)
    ids = sorted(everything[0].labels)
    metrics = [name for name in METRICS if all(name in results.outcomes for results in everything)]
    for name in METRICS:
        without = [_name(results) for results in everything if name not in results.outcomes]
        if 0 < len(without) < len(everything):
            notes.append(f"{name} is left out: it was not measured in {', '.join(without)}.")
    if not metrics:
        raise ConfigError(f"The results have no metric in common. {' '.join(notes)}".strip())
    values = [{name: _values(group, name, ids) for name in metrics} for group in groups]
    return Comparison(
        questions=len(ids),
        question_set=everything[0].content["question_set"],
        seed=seed,
        runs=[_run(group, means, seed) for group, means in zip(groups, values, strict=True)],
        differences=[
            _difference(number, name, values, groups, seed) for number in range(1, len(groups)) for name in metrics
        ],
        notes=notes,
    )


def _files(group: str | Path | Sequence[str | Path]) -> list[Path]:
    files = [Path(group)] if isinstance(group, (str, Path)) else [Path(path) for path in group]
    if not files:
        raise ConfigError("A student to compare needs one file or more, got none.")
    return files


def _repeated(everything: list[Results]) -> list[str]:
    paths = [results.path.resolve() for results in everything]
    twice = [path for number, path in enumerate(paths) if paths.index(path) < number]
    notes = [f"{path.name} is given more than once: it does not count as further evidence." for path in twice]
    for note in notes:
        logger.warning(note)
    return notes


def _check_questions(one: Results, other: Results) -> None:
    if one.content["question_set"] == other.content["question_set"]:
        return
    parts = []
    for results, others in ((one, other), (other, one)):
        missing = sorted(set(results.labels) - set(others.labels))
        if missing:
            parts.append(f"only {results.path} has {_listed(missing)}")
    relabelled = sorted(key for key in set(one.labels) & set(other.labels) if one.labels[key] != other.labels[key])
    if relabelled:
        key = relabelled[0]
        shown = f"{one.labels[key]!r} and {other.labels[key]!r} for {key!r}"
        parts.append(f"the labels differ of {_listed(relabelled)} ({shown})")
    raise DataError(
        f"{one.path} and {other.path} are of different questions: {'; '.join(parts)}. Evaluate both on one dataset."
    )


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"{len(ids)} question{'s' if len(ids) > 1 else ''} ({', '.join(map(repr, ids[:5]))}{more})"


def _check_settings(one: Results, other: Results, names: Sequence[str], remedy: str) -> None:
    differ = _other_settings(one, other, names)
    if differ:
        raise ConfigError(f"{one.path} and {other.path} were not measured alike: {' '.join(differ)} {remedy}")


def _other_settings(one: Results, other: Results, names: Sequence[str]) -> list[str]:
    here, there = one.content["settings"], other.content["settings"]
    return [
        f"{name} is {here.get(name)!r} for {_name(one)} and {there.get(name)!r} for {_name(other)}."
        for name in names
        if here.get(name) != there.get(name)
    ]


def _name(results: Results) -> str:
    """Without the folder, which is nobody else's business: notes are a part of what is written."""
    return f"{results.content['model']} ({results.path.name})"


def _values(group: list[Results], metric: str, ids: list[str]) -> np.ndarray:
    """Mean over seeds of each question's outcome, shape `(questions,)`."""
    return np.mean([[results.outcomes[metric][key] for key in ids] for results in group], axis=0)


def _run(group: list[Results], means: dict[str, np.ndarray], seed: int) -> Run:
    run = Run([results.content["model"] for results in group], [results.path.name for results in group])
    for name, values in means.items():
        run.accuracies[name] = float(values.mean())
        if len(group) == 1:
            run.intervals[name] = wilson_interval(int(values.sum()), len(values))
        else:
            run.intervals[name] = bootstrap_interval(values, seed)
    return run


def _difference(
    number: int, metric: str, values: list[dict[str, np.ndarray]], groups: list[list[Results]], seed: int
) -> Difference:
    first, other = values[0][metric], values[number][metric]
    only_first = only_other = None
    if len(groups[0]) == len(groups[number]) == 1:
        only_first, only_other = int((first > other).sum()), int((other > first).sum())
        p_value = mcnemar_p(only_first, only_other)
    else:
        p_value = sign_flip_p(first, other, seed)
    return Difference(
        run=number,
        metric=metric,
        difference=float((other - first).mean()),
        interval=paired_bootstrap(first, other, seed),
        p_value=p_value,
        test=SIGN_FLIP if only_first is None else MCNEMAR,
        only_first=only_first,
        only_run=only_other,
    )
