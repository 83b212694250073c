"""The samples of a file one by one, long or wide, without holding the file: what a report counts."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..data.text_files import parse_cell
from ..errors import DataError
from .questions import read_choices


@dataclass(frozen=True)
class SampleColumns:
    """
    The columns that samples are read from. One that is left out has its default name, and may be absent.

    Args:
        prompt (`str`, *optional*): the question; `prompt`.
        label (`str`, *optional*): the gold answer; `label`.
        samples (`str`, *optional*): the samples; `rationales`, or else `text`.
        id (`str`, *optional*): the question's key; `id`. Without one, rows of single texts belong together by their
            prompt, and rows of lists by nothing.
        choices (`str`, *optional*): the options of a multiple-choice question; `choices`.
    """

    prompt: str | None = None
    label: str | None = None
    samples: str | None = None
    id: str | None = None
    choices: str | None = None


@dataclass(frozen=True)
class AskedQuestion:
    """
    A question as a row has it.

    Attributes:
        row (`int`): the row's number, counted from 0.
        id (`str`): its key.
        prompt (`Any`): the question; `None` where the row has none.
        label (`str` or `None`): the gold answer; `None` where there is none.
        choices (`Callable[[], Mapping[str, str] | None]`): reads its options, letter to text.
    """

    row: int
    id: str
    prompt: Any
    label: str | None
    choices: Callable[[], Mapping[str, str] | None]


def read_sample_lines(path: Path, note: Callable[[str], None]) -> Iterator[tuple[dict[str, Any], int]]:
    """
    Reads a JSON Lines file that may still be written to.

    Args:
        path (`Path`): the file.
        note (`Callable[[str], None]`): is told of a last line that is torn, which is left out.

    Yields:
        `tuple[dict, int]`: a row, and the bytes that its line has.

    Raises:
        DataError: a line other than a torn last one is no JSON object; the message names it.
    """
    with path.open("rb") as file:  # bytes: only a line feed ends a line, U+2028 inside a text does not
        for number, line in enumerate(file, 1):
            if not line.strip(b"\xef\xbb\xbf \t\r\n"):
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
                problem = None if isinstance(row, dict) else f"expected an object, got {type(row).__name__}"
            except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
                what = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
                problem = f"{what} ({error})"
            if problem is None:
                yield row, len(line)
            elif line.endswith(b"\n"):
                raise DataError(f"{path}, line {number}: {problem}.")
            else:
                note(f"line {number}, the last one, is torn and left out: its writer was stopped, or still writes.")


def samples_of_rows(
    rows: Iterable[Mapping[str, Any]], columns: SampleColumns, name: str, text_cells: bool = False
) -> Iterator[tuple[AskedQuestion, Mapping[str, Any] | None]]:
    """
    The samples of rows, one after the other, whatever layout they have.

    Args:
        rows (`Iterable[Mapping]`): the rows, each read once.
        columns ([`SampleColumns`]): where to find what.
        name (`str`): what to call the source in messages.
        text_cells (`bool`, *optional*, defaults to `False`): whether lists and mappings stand in cells as JSON (CSV).

    Yields:
        `tuple[AskedQuestion, Mapping | None]`: a question and one sample of it: a mapping with `text`, and the other keys of
        [`~qcrd_trl.records.TeacherSample`] where they are there. `None` for a question without samples.

    Raises:
        DataError: a column is missing, a cell is of a wrong type, or an id stands twice where a row is a question.
    """
    reader = _Reader(columns, name, text_cells)
    waiting: list[tuple[int, Mapping[str, Any]]] = []  # rows without samples before the layout is known
    is_long = None
    for index, row in enumerate(rows):
        reader.meet(row)
        waiting.append((index, row))
        if is_long is None:
            is_long = reader.is_long(row)
        if is_long is None:
            continue
        for number, ready in waiting:
            yield from reader.long(ready, number) if is_long else reader.wide(ready, number)
        waiting.clear()
    for number, row in waiting:  # none of them had a sample
        yield from reader.wide(row, number)
    reader.finish()


class _Reader:
    def __init__(self, columns: SampleColumns, name: str, text_cells: bool):
        self._named = columns
        self._name = name
        self._text_cells = text_cells
        self._samples = columns.samples
        self._columns = {part: getattr(columns, part) or part for part in ("prompt", "label", "id", "choices")}
        # columns that were asked for by name must be somewhere
        self._missing = {part for part in (*self._columns, "samples") if getattr(columns, part) is not None}
        self._present: dict[str, None] = {}
        self._ids: set[str] = set()

    def meet(self, row: Mapping[str, Any]) -> None:
        if self._samples is None:
            self._samples = next((column for column in ("rationales", "text") if column in row), None)
        if self._samples is None or self._missing:
            self._present.update(dict.fromkeys(row))
            self._missing -= {part for part in self._missing if getattr(self._named, part) in row}
        if self._samples is None:
            raise self._no_column("samples", "rationales' or 'text")

    def finish(self) -> None:
        for part in sorted(self._missing):
            raise self._no_column(part, getattr(self._named, part))

    def _no_column(self, part: str, column: str) -> DataError:
        return DataError(
            f"{self._name} has no column '{column}' for the {part}; its columns are: {', '.join(self._present)}. "
            f"Name the right one with --{part}_column."
        )

    def is_long(self, row: Mapping[str, Any]) -> bool | None:
        """Whether a row is one sample; `None` where this row does not say."""
        cell = self._cell(row, self._samples, 0)
        if cell is None:
            return True if "sample_index" in row else None
        return isinstance(cell, str)

    def long(self, row: Mapping[str, Any], index: int) -> Iterator[tuple[AskedQuestion, Mapping[str, Any]]]:
        text = row.get(self._samples)
        if isinstance(text, list | tuple | dict):
            raise self._wrong_type(self._samples, index, "one text a row, as in the rows before", text)
        key = self._id(row, index)
        if key is None:
            prompt = json.dumps(row.get(self._columns["prompt"]), sort_keys=True)
            key = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        yield self._question(row, index, key), {**row, "text": text}

    def wide(self, row: Mapping[str, Any], index: int) -> Iterator[tuple[AskedQuestion, Mapping[str, Any] | None]]:
        key = self._id(row, index)
        key = str(index) if key is None else key
        if key in self._ids:
            raise DataError(
                f"{self._name}, row {index} (rows count from 0): the id {key!r} has stood in a row before. Make ids unique, "
                f"or name another column with --id_column."
            )
        self._ids.add(key)
        question = self._question(row, index, key)
        cell = self._cell(row, self._samples, index)
        if cell is not None and not isinstance(cell, list | tuple):
            raise self._wrong_type(self._samples, index, "a list of texts, or of mappings with a text", cell)
        if not cell:
            yield question, None
        for item in cell or ():
            if isinstance(item, dict) and "text" not in item:
                raise self._wrong_type(self._samples, index, 'each sample to be a text or to have a "text"', item)
            yield question, (item if isinstance(item, dict) else {"text": item})

    def _question(self, row: Mapping[str, Any], index: int, key: str) -> AskedQuestion:
        label = self._label(row, index)
        column = self._columns["choices"]
        return AskedQuestion(
            index,
            key,
            row.get(self._columns["prompt"]),
            label,
            lambda: read_choices(self._cell(row, column, index), column, index),
        )

    def _label(self, row: Mapping[str, Any], index: int) -> str | None:
        """The label in the user's own words; a number that is not text gets the plain form of its value."""
        label = row.get(self._columns["label"])
        if label is None or (isinstance(label, str) and not label.strip()):
            return None
        if isinstance(label, str):
            return label
        if isinstance(label, int) and not isinstance(label, bool):
            return str(label)
        if isinstance(label, float) and math.isnan(label):
            return None
        if isinstance(label, float) and math.isfinite(label):
            return str(int(label)) if label.is_integer() else f"{Decimal(repr(label)):f}"
        raise self._wrong_type(self._columns["label"], index, "a text or a number as label", label)

    def _id(self, row: Mapping[str, Any], index: int) -> str | None:
        column = self._columns["id"]
        if column not in row and self._named.id is None:
            return None
        key = row.get(column)
        if not isinstance(key, str | int) or isinstance(key, bool) or key == "":
            raise self._wrong_type(column, index, "a text or a whole number that identifies the question", key)
        return str(key)

    def _cell(self, row: Mapping[str, Any], column: str, index: int) -> Any:
        cell = row.get(column)
        return parse_cell(cell, column, index) if self._text_cells else cell

    def _wrong_type(self, column: str, row: int, expected: str, got: Any) -> DataError:
        shown = ascii(got)
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
        return DataError(
            f"{self._name}, column {column!r}, row {row} (rows count from 0): expected {expected}, got "
            f"{type(got).__name__} {shown}. Name the right columns with --samples_column, --id_column and --label_column."
        )
