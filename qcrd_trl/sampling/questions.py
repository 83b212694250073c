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
from ..data.text_files import APPENDED_COLUMNS, has_lone_surrogate, parse_cell
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


def find_columns(
    rows: Rows,
    task_kind: str | None,
    *,
    prompt: str | None = None,
    label: str | None = None,
    samples: str | None = None,
    id: str | None = None,
    choices: str | None = None,
    needs_label: bool = False,
) -> Columns:
    """
    The columns of a samples file. Those that are left out, or named as they are by default, may be absent.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]):
            The file.
        task_kind (`str` or `None`):
            The options matter to `"choice"` only; of another kind their column is looked into if it is named.
        prompt (`str`, *optional*):
            `prompt` if left out.
        label (`str`, *optional*):
            `label` if left out.
        samples (`str`, *optional*):
            `rationales`, or else `text`, if left out.
        id (`str`, *optional*):
            `id` if left out.
        choices (`str`, *optional*):
            `choices` if left out.
        needs_label (`bool`, *optional*, defaults to `False`):
            Whether a column of labels that is absent is an error of [`check_columns`].

    Returns:
        [`Columns`]: Where to find what; `None` for what is not there.
    """

    def found(part: str, named: str | None) -> str | None:
        name = named or part
        return None if name == part and not rows.has_column(part) else name

    if samples is None:
        samples = "text" if "rationales" not in rows.column_names and "text" in rows.column_names else "rationales"
    return Columns(
        prompt=prompt or "prompt",
        label=label or "label" if needs_label else found("label", label),
        samples=samples,
        id=found("id", id),
        choices=found("choices", choices) if task_kind == "choice" else choices,
    )


def check_columns(
    rows: Rows,
    columns: Columns,
    names: Sequence[str] = ("prompt", "samples", "label", "id", "choices"),
    needs_prompt: bool = True,
) -> None:
    """Raises a [`DataError`] that names the flag where a column is not there."""
    for name in names:
        column = getattr(columns, name)
        if column is None or (name == column == "prompt" and not needs_prompt) or rows.has_column(column):
            continue
        raise DataError(
            f"{rows.name} has no column {column!r} for the {name}; its columns are: {', '.join(rows.column_names)}. "
            f"Name the right one with --{name}_column."
        )


def is_samples_file(rows: Rows) -> bool:
    """Whether a source has the columns by which files of `qcrd sample` are known."""
    return set(rows.column_names) >= APPENDED_COLUMNS


def is_long(rows: Rows, columns: Columns) -> bool:
    """Whether a row is one sample, rather than a question with a list of them: the first cell that is not null tells."""
    cells = (read_cell(row, columns.samples, index, rows.text_cells) for index, row in enumerate(rows))
    first = next((cell for cell in cells if cell is not None), None)
    return isinstance(first, str) or (first is None and not APPENDED_COLUMNS.isdisjoint(rows.column_names))


def check_same(question: Question, earlier: Question) -> None:
    """Raises a [`DataError`] where two rows give one id to different questions."""
    for name in ("prompt", "label"):
        if getattr(question, name) != getattr(earlier, name):
            raise DataError(
                f"Rows {earlier.row} and {question.row} (rows count from 0) have the same id {question.id!r} but not the "
                f"same {name}: {getattr(earlier, name)!r} and {getattr(question, name)!r}. Give each question its own id."
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


def question_key(row: Mapping[str, Any], columns: Columns, index: int) -> str:
    """What the rows of one question have in common where a row is a sample: their id, or else their prompt."""
    if columns.id is not None:
        return read_id(row, columns.id, index)
    return json.dumps(row.get(columns.prompt), sort_keys=True)


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


def read_samples(cell: Any, column: str, index: int) -> Sequence[Any]:
    """The samples of a row that is a question: texts, or mappings with a `text`."""
    if cell is not None and not isinstance(cell, list | tuple):
        raise wrong_type(column, index, "a list of texts, or of mappings with a text", cell, "samples")
    return cell or ()


def check_single(cell: Any, column: str, index: int) -> None:
    """Raises a [`DataError`] where a row that should be one sample holds several."""
    if isinstance(cell, list | tuple | dict):
        raise wrong_type(column, index, "one text a row, as in the rows before", cell, "samples")


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
