"""The file that an evaluation leaves: written whole or not at all, and read again to be compared."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import whole_file
from ..repositories import shown_name
from ..version import __version__
from .outcome import METRICS, EvaluationResult


FORMAT = 1  # of the files
_AGAIN = "Evaluate the student again with this version."


@dataclass(frozen=True)
class Results:
    """
    The results of one evaluation, as read from a file.

    Attributes:
        path (`Path`): the file.
        content (`dict[str, Any]`): what it holds.
        labels (`dict[str, str]`): the label of each question, by its id.
        outcomes (`dict[str, dict[str, bool]]`): for each metric that was measured, the outcome of each question by its id.
    """

    path: Path
    content: dict[str, Any]
    labels: dict[str, str]
    outcomes: dict[str, dict[str, bool]]


def question_set(labels: Iterable[tuple[str, str]]) -> str:
    """What tells a set of questions from another: SHA-256 of the ids and labels, in any order."""
    text = json.dumps(sorted(map(list, labels)))
    return hashlib.sha256(text.encode()).hexdigest()


def results_of(result: EvaluationResult, model: str, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """
    What the file of an evaluation holds.

    Args:
        result ([`EvaluationResult`]): the accuracies and the outcome of every question.
        model (`str`): id or path of the student.
        seed (`int`): seed of the samples.
        settings (`Mapping[str, Any]`): whatever else decides the outcome.
    """
    import torch
    import transformers

    measured = result.to_dict()
    questions = measured.pop("questions")
    return {
        "format": FORMAT,
        "model": shown_name(model),
        **measured,
        "seed": seed,
        "question_set": question_set((question.id, question.label) for question in result.questions),
        "settings": dict(settings),
        "versions": {
            "qcrd_trl": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "questions": questions,
    }


def write_results(path: str | Path, content: Mapping[str, Any]) -> None:
    """Writes results as JSON. The file is whole or not there."""
    with whole_file(Path(path)) as aside:
        aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")


def read_results(path: str | Path) -> Results:
    """
    Reads the results of an evaluation.

    Raises:
        [`DataError`]: the file is not there, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There are no results at {path}: give a file that `qcrd evaluate` wrote.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise DataError(f"{path} is not JSON ({err}): give a file that `qcrd evaluate` wrote.") from err
    if not isinstance(content, dict) or not isinstance(content.get("questions"), list):
        raise DataError(f"{path} does not hold the results of `qcrd evaluate`.")
    if content.get("format") != FORMAT:
        raise DataError(f"{path} has the format {content.get('format')!r}, and {FORMAT} is expected. {_AGAIN}")
    outcomes: dict[str, dict[str, bool]] = {name: {} for name in METRICS if content.get(name) is not None}
    try:
        labels = {question["id"]: question["label"] for question in content["questions"]}
        for question in content["questions"]:
            for name, by_id in outcomes.items():
                by_id[question["id"]] = _outcome(question, name)
        settings = content["settings"]
        whole = question_set(labels.items()) == content["question_set"] and isinstance(settings, dict)
    except (KeyError, TypeError) as err:
        raise DataError(f"{path} is damaged ({type(err).__name__}: {err}). {_AGAIN}") from err
    if not whole or len(labels) != len(content["questions"]) or not labels:
        raise DataError(f"{path} is damaged: its questions are not those that it was written with. {_AGAIN}")
    return Results(path, content, labels, outcomes)


def _outcome(question: Mapping[str, Any], metric: str) -> bool:
    if metric == "agreement":
        return question["predicted"] is not None and question["predicted"] == question["reached"]
    return bool(question[METRICS[metric]])
