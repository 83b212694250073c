"""What a model card says of accuracies: those of the student, and of others on the same questions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import DataError
from .evaluation.outcome import METRICS
from .markdown import code, one_line
from .repositories import is_repo_name
from .statistics import wilson_interval


HELD_OUT = "held-out questions"
_TITLES = {
    "label_accuracy": "label",
    "answer_accuracy": "answer of the rationale",
    "agreement": "agreement of the two",
}
_NAMES = {"label_accuracy": "Label accuracy", "answer_accuracy": "Answer accuracy of the rationale"}


@dataclass
class Measured:
    """
    What one student got right.

    Args:
        name (`str`): the student.
        questions (`int`): of how many questions.
        dataset (`str`): which ones.
        values (`dict[str, float]`): metrics of `METRICS`, in [0, 1].
        intervals (`dict[str, tuple[float, float]]`): their 95 % intervals.
    """

    name: str
    questions: int
    dataset: str
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]


@dataclass
class Accuracies:
    """
    The accuracies of a student, on one set of questions or several, and those of others.

    Args:
        own (`list[Measured]`): the student's.
        others (`list[Measured]`): of baselines.
        differences (`list[str]`): the student against each of them, in words.
    """

    own: list[Measured] = field(default_factory=list)
    others: list[Measured] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def logged_accuracies(log_history: Sequence[Mapping[str, Any]]) -> Accuracies:
    """The accuracies of the last evaluation that a run logged, of each of its held-out sets."""
    latest: dict[str, Mapping[str, Any]] = {}
    for entry in log_history:
        for key in entry:
            match = re.fullmatch(r"(eval(?:_.+)?)_accuracy_questions", key)
            if match and entry[key]:
                latest[match.group(1)] = entry
    own = []
    for prefix, entry in latest.items():
        count = int(entry[f"{prefix}_accuracy_questions"])
        values = {name: entry[f"{prefix}_{name}"] for name in METRICS if entry.get(f"{prefix}_{name}") is not None}
        intervals = {name: wilson_interval(round(value * count), count) for name, value in values.items()}
        own.append(
            Measured("this student", count, prefix.removeprefix("eval").strip("_") or HELD_OUT, values, intervals)
        )
    return Accuracies(own)


def accuracies_of_files(results: str | Path | None, baselines: Mapping[str, str | Path] | None = None) -> Accuracies:
    """
    The accuracies that files of `qcrd evaluate` hold.

    Args:
        results (`str` or `Path`): the student's file.
        baselines (`Mapping[str, str or Path]`, *optional*): the files of others, by name, such as `"label_only"` and `"dss"`. They
            must be of the same questions.

    Raises:
        [`DataError`]: if a file cannot be read, or has other questions than the student's.
    """
    from .evaluation.comparison import compare_results
    from .evaluation.results import read_results

    baselines = dict(baselines or {})
    if results is None:
        raise DataError(
            f"Baselines ({', '.join(baselines)}) need the results of the student beside them: give its file of `qcrd evaluate`."
        )
    own = _measured("this student", read_results(results).content)
    others, differences = [], []
    for name, file in baselines.items():
        others.append(_measured(name, read_results(file).content))
        differences += [
            f"Against {code(name)}, {_TITLES[found.metric]}: {_points(found.difference)} points (95 % interval "
            f"{_points(found.interval[0])} to {_points(found.interval[1])}; {found.test}, p = {found.p_value:.2g})."
            for found in compare_results(file, results).differences
            if found.metric in _NAMES
        ]
    return Accuracies([own], others, differences)


def accuracy_text(accuracies: Accuracies) -> str:
    """The part of a card, as Markdown."""
    if not accuracies.own:
        return "Not measured. `qcrd evaluate` measures it, and `qcrd push --results FILE` puts the figures here."
    metrics = [name for name in METRICS if any(name in measured.values for measured in accuracies.own)]
    rows = [*accuracies.own, *accuracies.others]
    several = len({row.dataset for row in rows}) > 1
    heads = ["", *(["questions of"] if several else []), "questions", *(_TITLES[name] for name in metrics)]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for row in rows:
        name = row.name if row in accuracies.own else code(row.name)
        lines.append(
            _row(
                [
                    name,
                    *([code(row.dataset)] if several else []),
                    str(row.questions),
                    *(_share(row, m) for m in metrics),
                ]
            )
        )
    first = "Accuracy, with its 95 % interval"
    if not several and rows[0].dataset != HELD_OUT:
        first += f", on {code(rows[0].dataset)}"
    told = [f"{first}.", "", *lines]
    if accuracies.differences:
        told += ["", *(f"- {difference}" for difference in accuracies.differences)]
    return "\n".join(told)


def accuracy_results(accuracies: Accuracies) -> list[tuple[str, str, float]]:
    """For the metadata: the dataset's name, the metric's name and its value, of the student alone."""
    return [
        (one_line(row.dataset) or HELD_OUT, _NAMES[name], value)
        for row in accuracies.own
        for name, value in row.values.items()
        if name in _NAMES
    ]


def _measured(name: str, content: Mapping[str, Any]) -> Measured:
    values = {metric: content[metric] for metric in METRICS if content.get(metric) is not None}
    intervals = {metric: tuple(content["intervals"][metric]) for metric in values}
    # A path of the machine that evaluated is known by its last part alone.
    dataset = str(content["settings"].get("dataset") or HELD_OUT)
    dataset = dataset if is_repo_name(dataset) else re.split(r"[/\\]", dataset.rstrip("/\\"))[-1] or HELD_OUT
    return Measured(name, content["counts"]["questions"], dataset, values, intervals)


def _share(row: Measured, metric: str) -> str:
    if metric not in row.values:
        return "-"
    low, high = row.intervals[metric]
    return f"{100 * row.values[metric]:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
