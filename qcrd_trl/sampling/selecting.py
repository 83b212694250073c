"""The selection of a chunk of questions: what one worker does, without torch and without files of its own."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, DataError, QCRDError
from ..records import Question
from .chunks import Chunk
from .questions import prompt_problem
from .report import SelectionReport
from .self_consistency import select_rationales, text_problem


@dataclass(frozen=True)
class SelectionSettings:
    """
    How questions are selected, as plain values that another process can be given.

    Args:
        task_kind (`str` or `None`): one of [`~qcrd_trl.answers.TASK_KINDS`].
        task_callable (`str` or `None`): `module:function` in its place.
        label_source (`str`): as in [`~sampling.self_consistency.select_rationales`], like those below.
        label_column (`str` or `None`): what messages call the column of the label.
        max_samples (`int` or `None`): use only the first so many samples of a question.
        min_agreement (`float` or `None`): share of the samples that must reach the label.
        near_duplicates (`float`): likeness from which a text is left out.
        parse_completions (`bool` or `None`): whether explanation and answer are told apart; `None`: where marks say so.
    """

    task_kind: str | None
    task_callable: str | None = None
    label_source: str = "gold"
    label_column: str | None = "label"
    max_samples: int | None = None
    min_agreement: float | None = None
    near_duplicates: float = 1.0
    parse_completions: bool | None = False


@dataclass
class Selected:
    """
    What became of a chunk.

    Attributes:
        rows (`list[tuple[int, dict]]`): rows of the training set, each with the number of the source row it comes from.
        report ([`~sampling.report.SelectionReport`]): the counts.
        num_questions (`int`): questions looked at.
    """

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    report: SelectionReport = field(default_factory=lambda: SelectionReport("gold"))
    num_questions: int = 0


def select_chunk(settings: SelectionSettings, chunk: Chunk) -> Selected:
    """
    Selects the rationales of a chunk of questions.

    Args:
        settings ([`SelectionSettings`]): how.
        chunk ([`~sampling.chunks.Chunk`]): the questions.

    Returns:
        [`Selected`]: The rows and the counts, the same in whichever process.

    Raises:
        ConfigError: the function of `task_callable` cannot be imported.
        DataError: a cell is of a wrong type, a label cannot be read, or the user's function failed; the row is named.
    """
    task_kind = settings.task_kind if settings.task_callable is None else load_callable(settings.task_callable)
    done = Selected(report=SelectionReport(settings.label_source))
    for question in chunk.questions():
        done.num_questions += 1
        try:
            row = _select_one(question, settings, task_kind, done.report)
        except QCRDError:
            raise
        except Exception as error:
            what = "reading its answers" if settings.task_callable is None else f"{settings.task_callable}"
            text = f"Row {question.row} (rows count from 0): {what} failed by {type(error).__name__}: {error}"
            # A user's function is the user's to mend; anything else is a fault of this package and shows its traceback.
            raise (RuntimeError(text) if settings.task_callable is None else DataError(text)) from error
        if row is not None:
            done.rows.append((question.row, row))
    return done


def _select_one(
    question: Question, settings: SelectionSettings, task_kind: Any, report: SelectionReport
) -> dict[str, Any] | None:
    """Returns the row for the training set, or `None` for a question that is left out; counts either in the report."""
    problem = prompt_problem(question.prompt)
    if problem:
        return report.drop("prompt", problem)
    label_problem = text_problem(question.label)
    if label_problem and (settings.label_source == "gold" or label_problem == "lone_surrogate"):
        return report.drop("label", label_problem)
    try:
        selection = select_rationales(
            question.samples[: settings.max_samples],
            task_kind=task_kind,
            label=question.label,
            choices=question.choices,
            label_source=settings.label_source,
            min_agreement=settings.min_agreement,
            near_duplicates=settings.near_duplicates,
            parse_completions=settings.parse_completions,
        )
    except DataError as error:
        column = settings.label_column
        raise DataError(f"Column {column!r}, row {question.row} (rows count from 0): {error}") from error
    if not report.add(selection):
        return None
    return {
        "id": question.id,
        "prompt": question.prompt,
        "label": selection.label,
        "positive_rationales": list(selection.positives),
        "negative_rationales": list(selection.negatives),
        "raw_rationale": selection.raw,
    }


def load_callable(name: str) -> Callable[[str], Any]:
    """
    Imports a function given as `module:function`; modules of the working directory are found too.

    Args:
        name (`str`):
            The name.

    Returns:
        `Callable`: The function.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"task_callable must be module:function, got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"task_callable {name!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigError(f"task_callable {name!r} is a {type(function).__name__}, not a function.")
    return function
