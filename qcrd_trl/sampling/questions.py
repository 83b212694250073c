"""From the rows of a samples file to questions with their samples, whatever layout the file has.

Two layouts are understood. Wide: one row a question, the samples column a list of texts or of mappings with a `text` (and
perhaps a `status`). Long: one row a sample, the samples column a text (and perhaps columns `status` and `sample_index`);
rows with the same id, or without an id column the same prompt, belong together.
"""

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


def read_questions(rows: Rows, columns: Columns) -> tuple[Iterator[Question], int | None]:
    """
    Reads questions with their samples.

    A wide source is read row by row; a long one is held in memory, because the samples of a question may stand anywhere.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]):
            The source.
        columns ([`Columns`]):
            Where to find what.

    Returns:
        `tuple[Iterator[Question], int | None]`: The questions, and how many there are (`None`: unknown).

    Raises:
        DataError: a column is missing, a cell is of a wrong type, or an id stands twice; raised here or while iterating.
    """
    _check_columns(rows, columns, ("prompt", "samples", "label", "id", "choices"))
    cells = (_cell(row, columns.samples, i, rows) for i, row in enumerate(rows))
    first = next((cell for cell in cells if cell is not None), None)
    if isinstance(first, str):
        groups = _group(rows, columns)
        return iter(groups), len(groups)
    return _read_wide(rows, columns), rows.num_rows


def read_labelled(rows: Rows, columns: Columns) -> Iterator[Question]:
    """
    Reads questions without their samples, row by row. Args as in [`read_questions`]; a row whose id is null is numbered.

    Raises:
        DataError: a column is missing, a cell is of a wrong type, or an id stands twice; raised while iterating.
    """
    _check_columns(rows, columns, ("prompt", "label", "id", "choices"))
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        named = columns.id is not None and row.get(columns.id) is not None
        key = _id(row, columns.id if named else None, index)
        if key in seen:
            raise DataError(
                f"Rows {seen[key]} and {index} (rows count from 0) have the same id {key!r}. Make the ids unique, or name "
                "another column with --id_column."
            )
        seen[key] = index
        yield _question(row, columns, index, key, (), rows)


def prompt_problem(prompt: str | list[dict[str, str]] | None) -> str | None:
    """Says why no student can be asked this: `"null"`, `"blank"` or `"lone_surrogate"`; `None` where it can."""
    if prompt is None:
        return "null"
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    if not any(text.strip() for text in texts):
        return "blank"
    return "lone_surrogate" if has_lone_surrogate(prompt) else None


def _check_columns(rows: Rows, columns: Columns, names: Sequence[str]) -> None:
    for name in names:
        column = getattr(columns, name)
        if column is not None and column not in rows.column_names:
            raise DataError(
                f"{rows.name} has no column {column!r} for the {name}; its columns are: {', '.join(rows.column_names)}. "
                f"Name the right one with --{name}_column."
            )


# Layouts


def _read_wide(rows: Rows, columns: Columns) -> Iterator[Question]:
    first_row: dict[str, int] = {}
    for index, row in enumerate(rows):
        key = _id(row, columns.id, index)
        if key in first_row:
            raise DataError(_duplicates(rows, columns.id))
        first_row[key] = index
        cell = _cell(row, columns.samples, index, rows)
        if cell is not None and not isinstance(cell, list | tuple):
            raise _wrong_type(columns.samples, index, "a list of texts, or of mappings with a text", cell, "samples")
        samples = tuple(_sample(item, columns.samples, index) for item in cell or ())
        yield _question(row, columns, index, key, samples, rows)


def _group(rows: Rows, columns: Columns) -> list[Question]:
    questions: dict[str, Question] = {}
    drawn: dict[str, list[tuple[float, Sample]]] = {}
    for index, row in enumerate(rows):
        cell = row.get(columns.samples)
        if isinstance(cell, list | tuple | dict):
            raise _wrong_type(columns.samples, index, "one text a row, as in the rows before", cell, "samples")
        key = _id(row, columns.id, index) if columns.id else json.dumps(row.get(columns.prompt), sort_keys=True)
        question = _question(row, columns, index, key if columns.id else str(len(questions)), (), rows)
        earlier = questions.setdefault(key, question)
        for name in ("prompt", "label"):
            if getattr(question, name) != getattr(earlier, name):
                raise DataError(
                    f"Rows {earlier.row} and {index} (rows count from 0) have the same id {key!r} but not the same "
                    f"{name}: {getattr(earlier, name)!r} and {getattr(question, name)!r}. Give each question its own id."
                )
        position = _position(row.get("sample_index"), index)
        sample = _sample({"text": cell, "status": row.get("status")}, columns.samples, index)
        drawn.setdefault(key, []).append((position, sample))
    return [
        Question(
            q.row, q.id, q.prompt, q.label, tuple(s for _, s in sorted(drawn[key], key=lambda d: d[0])), q.choices
        )
        for key, q in questions.items()
    ]


def _position(sample_index: Any, row: int) -> float:
    if sample_index is None:
        return math.inf
    try:
        return float(sample_index)
    except (TypeError, ValueError):
        raise _wrong_type("sample_index", row, "a number", sample_index) from None


def _question(
    row: Mapping[str, Any], columns: Columns, index: int, key: str, samples: tuple[Sample, ...], rows: Rows
) -> Question:
    prompt = _prompt(row.get(columns.prompt), columns.prompt, index, rows.text_cells)
    label = None if columns.label is None else _label(row.get(columns.label), columns.label, index)
    choices = None
    if columns.choices is not None:
        choices = read_choices(_cell(row, columns.choices, index, rows), columns.choices, index)
    return Question(index, key, prompt, label, samples, choices)


# Cells


def _cell(row: Mapping[str, Any], column: str, index: int, rows: Rows) -> Any:
    """Returns a cell that may hold a list or a mapping, read from its JSON where every cell is text."""
    cell = row.get(column)
    return parse_cell(cell, column, index) if rows.text_cells else cell


def _wrong_type(column: str, row: int, expected: str, got: Any, flag: str | None = None) -> DataError:
    remedy = f" Name another column with --{flag}_column, or convert this one." if flag else ""
    return DataError(
        f"Column {column!r}, row {row} (rows count from 0): expected {expected}, got {type(got).__name__} "
        f"{_shorten(got)}.{remedy}"
    )


def _shorten(value: Any, limit: int = 60) -> str:
    text = ascii(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _id(row: Mapping[str, Any], column: str | None, index: int) -> str:
    if column is None:
        return str(index)
    key = row.get(column)
    if not isinstance(key, str | int) or isinstance(key, bool) or key == "" or has_lone_surrogate(key):
        raise _wrong_type(column, index, "a text or a whole number that identifies the row", key, "id")
    return str(key)


def _duplicates(rows: Rows, column: str | None) -> str:
    seen: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        seen.setdefault(_id(row, column, index), []).append(index)
    twice = {key: places for key, places in seen.items() if len(places) > 1}
    shown = "; ".join(f"{key!r} in rows {', '.join(map(str, places[:5]))}" for key, places in list(twice.items())[:5])
    more = f"; and {len(twice) - 5} more" if len(twice) > 5 else ""
    return (
        f"Column {column!r}: {len(twice)} id{'s stand' if len(twice) > 1 else ' stands'} more than once (rows count from "
        f"0): {shown}{more}. Make them unique, or name another column with --id_column."
    )


def _prompt(cell: Any, column: str, index: int, text_cells: bool) -> str | list[dict[str, str]] | None:
    if text_cells and isinstance(cell, str) and cell.startswith("[{"):
        with suppress(ValueError, RecursionError):  # a question may begin like JSON and be none
            cell = json.loads(cell)
    if cell is None or isinstance(cell, str):
        return cell
    if not isinstance(cell, list | tuple) or not all(isinstance(message, dict) for message in cell):
        raise _wrong_type(column, index, "a text or a list of messages", cell, "prompt")
    messages = []
    for message in cell:
        filled = {key: value for key, value in message.items() if value is not None}
        if set(filled) != {"role", "content"} or not all(isinstance(value, str) for value in filled.values()):
            raise _wrong_type(column, index, 'messages with a text "role" and a text "content", nothing else', message)
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
    raise _wrong_type(column, index, "a text or a number", cell, "label")


def _sample(item: Any, column: str, index: int) -> Sample:
    if not isinstance(item, dict):
        return Sample(item)
    if "text" not in item:
        raise _wrong_type(column, index, 'each sample to be a text or a mapping with a "text"', item, "samples")
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
        raise _wrong_type(column, row, expected, cell, "choices")
    letters = {letter.upper() for letter, _ in pairs}
    if len(letters) < len(pairs) or not letters <= set(ascii_uppercase):
        raise _wrong_type(column, row, "the letters A to Z, each once", cell, "choices")
    return dict(pairs)
