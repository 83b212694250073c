"""What the cells of a samples file mean: prompt, label, id, samples and options, with the row in every error."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from string import ascii_uppercase
from typing import Any

from ..data.sources import Rows
from ..data.text_files import has_lone_surrogate, parse_cell
from ..errors import DataError
from ..records import Question, Sample


@dataclass(frozen=True)
class Columns:
    """
    The columns that a question is read from.

    Args:
        prompt (`str`, *optional*, defaults to `"prompt"`):
            The question: a text, or a list of messages with `role` and `content`.
        label (`str` or `None`, *optional*, defaults to `"label"`):
            The gold answer; `None`: there is none.
        samples (`str`, *optional*, defaults to `"rationales"`):
            The samples, wide or long.
        id (`str` or `None`, *optional*, defaults to `"id"`):
            A key that is unique; `None`: the row number is the key.
        choices (`str` or `None`, *optional*):
            Options: a mapping from letter to text, a list of texts (lettered A, B, ...), or
            `{"label": [...], "text": [...]}`.
    """

    prompt: str = "prompt"
    label: str | None = "label"
    samples: str = "rationales"
    id: str | None = "id"
    choices: str | None = None


def check_columns(rows: Rows, columns: Columns, names: Sequence[str]) -> None:
    """Raises a [`DataError`] that names the first of some columns that is not there."""
    for name in names:
        column = getattr(columns, name)
        if column is not None and not rows.has_column(column):
            raise DataError(
                f"{rows.name} has no column {column!r} for the {name}; its columns are: {', '.join(rows.column_names)}. "
                f"Name the right one with --{name}_column."
            )


def read_labelled(rows: Rows, columns: Columns) -> Iterator[Question]:
    """
    Reads questions without their samples, row by row; a row whose id is null is numbered.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]):
            The source.
        columns ([`Columns`]):
            Where to find what; `samples` is not read.

    Raises:
        DataError: a column is missing, a cell is of a wrong type, or an id stands twice; raised while iterating.
    """
    check_columns(rows, columns, ("prompt", "label", "id", "choices"))
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        named = columns.id is not None and row.get(columns.id) is not None
        key = read_id(row, columns.id if named else None, index)
        if key in seen:
            raise DataError(
                f"Rows {seen[key]} and {index} (rows count from 0) have the same id {key!r}. Make the ids unique, or name "
                "another column with --id_column."
            )
        seen[key] = index
        yield read_question(row, columns, index, key, (), rows.text_cells)


def prompt_problem(prompt: str | list[dict[str, str]] | None) -> str | None:
    """Says why no student can be asked this: `"null"`, `"blank"` or `"lone_surrogate"`; `None` where it can."""
    if prompt is None:
        return "null"
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    if not any(text.strip() for text in texts):
        return "blank"
    return "lone_surrogate" if has_lone_surrogate(prompt) else None


def read_position(sample_index: Any, row: int) -> float:
    """The place of a sample among those of its question; without an index it comes last."""
    if sample_index is None:
        return math.inf
    try:
        return float(sample_index)
    except (TypeError, ValueError):
        raise wrong_type("sample_index", row, "a number", sample_index) from None


def read_question(
    row: Mapping[str, Any], columns: Columns, index: int, key: str, samples: tuple[Sample, ...], text_cells: bool
) -> Question:
    """Reads the cells of a row that say what the question is; its id and its samples are given."""
    prompt = _prompt(row.get(columns.prompt), columns.prompt, index, text_cells)
    label = None if columns.label is None else _label(row.get(columns.label), columns.label, index)
    choices = None
    if columns.choices is not None:
        choices = read_choices(read_cell(row, columns.choices, index, text_cells), columns.choices, index)
    return Question(index, key, prompt, label, samples, choices)


# Cells


def read_cell(row: Mapping[str, Any], column: str, index: int, text_cells: bool) -> Any:
    """Returns a cell that may hold a list or a mapping, read from its JSON where every cell is text."""
    cell = row.get(column)
    return parse_cell(cell, column, index) if text_cells else cell


def wrong_type(column: str, row: int, expected: str, got: Any, flag: str | None = None) -> DataError:
    """The error of a cell that holds something else than it should."""
    remedy = f" Name another column with --{flag}_column, or convert this one." if flag else ""
    return DataError(
        f"Column {column!r}, row {row} (rows count from 0): expected {expected}, got {type(got).__name__} "
        f"{_shorten(got)}.{remedy}"
    )


def _shorten(value: Any, limit: int = 60) -> str:
    text = ascii(value)
    return text if len(text) <= limit else text[:limit] + "..."


def read_id(row: Mapping[str, Any], column: str | None, index: int) -> str:
    """The key of a row: its id as a text, or its number where there is no such column."""
    if column is None:
        return str(index)
    key = row.get(column)
    if not isinstance(key, str | int) or isinstance(key, bool) or key == "" or has_lone_surrogate(key):
        raise wrong_type(column, index, "a text or a whole number that identifies the row", key, "id")
    return str(key)


def _prompt(cell: Any, column: str, index: int, text_cells: bool) -> str | list[dict[str, str]] | None:
    if text_cells and isinstance(cell, str) and cell.startswith("[{"):
        with suppress(ValueError, RecursionError):  # a question may begin like JSON and be none
            cell = json.loads(cell)
    if cell is None or isinstance(cell, str):
        return cell
    if not isinstance(cell, list | tuple) or not all(isinstance(message, dict) for message in cell):
        raise wrong_type(column, index, "a text or a list of messages", cell, "prompt")
    messages = []
    for message in cell:
        filled = {key: value for key, value in message.items() if value is not None}
        if set(filled) != {"role", "content"} or not all(isinstance(value, str) for value in filled.values()):
            raise wrong_type(column, index, 'messages with a text "role" and a text "content", nothing else', message)
        messages.append({"role": filled["role"], "content": filled["content"]})
    return messages


def _label(cell: Any, column: str, index: int) -> str | None:
    """Returns the label in the user's own words; a number that is not text gets the plain form of its value."""
    if cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if isinstance(cell, float) and math.isfinite(cell):
        return str(int(cell)) if cell.is_integer() else f"{Decimal(repr(cell)):f}"
    raise wrong_type(column, index, "a text or a number", cell, "label")


def read_sample(item: Any, column: str, index: int) -> Sample:
    """One sample: a text, or a mapping with a `text` and perhaps a `status`."""
    if not isinstance(item, dict):
        return Sample(item)
    if "text" not in item:
        raise wrong_type(column, index, 'each sample to be a text or a mapping with a "text"', item, "samples")
    status = item.get("status")
    return Sample(item["text"], "ok" if status is None else str(status))


def read_choices(cell: Any, column: str = "choices", row: int = 0) -> dict[str, str] | None:
    """
    Reads the options of a multiple-choice question.

    Args:
        cell (`Any`):
            A mapping from letter to text, a list of texts (lettered A, B, ...), `{"label": [...], "text": [...]}`, or a
            list of `{"label": ..., "text": ...}`; `None` for no options.
        column (`str`, *optional*, defaults to `"choices"`):
            Its column, for the message.
        row (`int`, *optional*, defaults to 0):
            Its row, counted from 0, for the message.

    Returns:
        `dict[str, str]` or `None`: Letter to option text.

    Raises:
        DataError: the cell is none of these, or a letter stands twice.
    """
    if cell is None:
        return None
    pairs: Sequence[tuple[Any, Any]] | None = None
    if isinstance(cell, dict) and isinstance(cell.get("label"), list) and isinstance(cell.get("text"), list):
        if len(cell["label"]) == len(cell["text"]):
            pairs = list(zip(cell["label"], cell["text"], strict=True))
    elif isinstance(cell, dict):
        pairs = [(letter, text) for letter, text in cell.items() if text is not None]  # Arrow fills in absent letters
    elif isinstance(cell, list) and all(isinstance(item, dict) for item in cell):
        pairs = [(item.get("label"), item.get("text")) for item in cell]
    elif isinstance(cell, list) and len(cell) <= len(ascii_uppercase):
        pairs = list(zip(ascii_uppercase, cell, strict=False))
    expected = 'a mapping from letter to text, a list of texts, or {"label": [...], "text": [...]}'
    if not pairs or not all(isinstance(letter, str) and isinstance(text, str) for letter, text in pairs):
        raise wrong_type(column, row, expected, cell, "choices")
    letters = {letter.upper() for letter, _ in pairs}
    if len(letters) < len(pairs) or not letters <= set(ascii_uppercase):
        raise wrong_type(column, row, "the letters A to Z, each once", cell, "choices")
    return dict(pairs)
