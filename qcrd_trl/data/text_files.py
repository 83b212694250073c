"""Reading rows from text files: JSON Lines, JSON, CSV and TSV, with the file and the line in every error."""

import csv
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import DataError


logger = logging.getLogger(__name__)

# What a file has that a sampler appends to, sample by sample.
APPENDED_COLUMNS = frozenset({"sample_index", "settings_hash"})

_SCAN = json.JSONDecoder().scan_once  # what `json.loads` calls, without its looks at what stands around the value
_SAME_TYPES = frozenset({str, int, type(None)})  # cells of these types are the same, whoever reads the line
_BUFFER = 1 << 18  # bytes; lines of one question stand near each other
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


# A line of JSON Lines that has not been read, so that another process can do that: the key that was found in it, then its
# file, the bytes in front of it and its number, counted from 1. A plain tuple and list: there are millions of them.
LinePlace = tuple[str, list[Any]]


def read_lines_at(places: Iterable[Sequence[Any]], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """
    Reads some columns of the rows at some places.

    Args:
        places (`Iterable[Sequence]`): path, offset and number of each, as in a `LinePlace`.
        names (`Sequence[str]`): the columns.

    Yields:
        `tuple`: The cells, `None` where a row lacks the column.

    Raises:
        DataError: a line is no JSON object; the message names file and line.
    """
    quick = _quick_reader()
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        path_before, end = None, -1
        for path, offset, number in places:
            if path != path_before:
                path_before, end = path, -1
                file = files.get(path)
                if file is None:
                    file = files[path] = stack.enter_context(open(path, "rb", buffering=_BUFFER))
            if offset != end:  # most lines follow the one before
                file.seek(offset)
            line = file.readline()
            end = offset + len(line)
            if quick is not None and line[:1] == b"{":
                try:
                    cells = tuple(map(quick(line).get, names))
                except (ValueError, RecursionError):
                    pass  # such as half of a surrogate pair, or NaN, which `json` reads
                else:
                    if _SAME_TYPES.issuperset(map(type, cells)):
                        yield cells
                        continue
            row = _plain_object(line)
            if row is None:
                place = f"{path}, line {number}"
                row = _mapping(_parse_json(line, place), place)
            yield tuple(map(row.get, names))


def _quick_reader() -> Callable[[bytes], Any] | None:
    """
    What reads JSON in a third of the time, where it is installed. Texts, whole numbers and nulls that it gives are those of
    `json`; it makes floating-point numbers of very long whole ones.
    """
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def suffix(path: Path) -> str:
    """Returns the suffix of a file name in lower case, with its dot."""
    return path.suffix.lower()


def parse_cell(cell: Any, column: str, row: int) -> Any:
    """
    Reads the list or mapping that a cell of a text-only source (CSV) holds as JSON.

    Args:
        cell (`Any`):
            The cell. Text that does not begin like a JSON list or mapping stays text.
        column (`str`):
            Its column, for the message.
        row (`int`):
            Its row, counted from 0, for the message.

    Returns:
        `Any`: The parsed list or mapping, or the cell as it was.

    Raises:
        DataError: the cell begins like a list of texts or of mappings (`["`, `['`, `[{`) but is not JSON.
    """
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        if re.match(r"\s*(\[\s*[\"'{]|\{\s*['\"])", cell):
            raise DataError(
                f"Column {column!r}, row {row} (rows count from 0) looks like a list but is not JSON ({error}). Write "
                f"such cells with `json.dumps`, or use JSONL or Parquet."
            ) from None
        return cell


def has_lone_surrogate(value: Any) -> bool:
    """Whether any text in `value` (lists and mappings included) holds half of a surrogate pair."""
    if isinstance(value, str):
        return not value.isascii() and _LONE_SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(has_lone_surrogate(key) or has_lone_surrogate(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(has_lone_surrogate(item) for item in value)


def open_text_file(
    path: Path, note: Callable[[str], None] = logger.warning
) -> Callable[..., Iterable[dict[str, Any] | LinePlace]]:
    """
    Opens a text file.

    Args:
        path (`Path`): the file.
        note (`Callable[[str], None]`, *optional*): is told, once, of a last line that is left out because it is cut off.

    Returns:
        `Callable[..., Iterable[dict | LinePlace]]`: what reads its rows, each time afresh. Of JSON Lines, whole lines for
        which a function that it is given returns a key, a `LinePlace` with that key takes the place of the row.
    """
    told: list[str] = []

    def note_once(text: str) -> None:
        if not told:
            told.append(text)
            note(text)

    if suffix(path) in (".csv", ".tsv"):
        return lambda key_of=None: _read_csv(path)
    if suffix(path) == ".json" and _first_character(path) == "[":
        rows = _read_json(path)
        return lambda key_of=None: rows
    return lambda key_of=None: _read_lines(
        path, note_once, key_of
    )  # also under the name .json, as many datasets have it


def _first_character(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.read(4096).lstrip()[:1]


def _read_lines(
    path: Path, note: Callable[[str], None], key_of: Callable[[bytes], str | None] | None = None
) -> Iterator[dict[str, Any] | LinePlace]:
    is_appended, name, offset, can_wait = None, str(path), 0, key_of is not None
    with path.open("rb") as file:  # bytes: only a line feed ends a line, U+2028 inside a text does not
        for number, line in enumerate(file, 1):
            # The first row is read, as it tells what kind of file this is.
            if can_wait and is_appended is not None and (key := key_of(line)) is not None and line[-1:] == b"\n":
                yield key, [name, offset, number]
                offset += len(line)
                continue
            offset += len(line)
            row = _plain_object(line)
            if row is None:
                if not line.strip(b"\xef\xbb\xbf \t\r\n"):
                    continue
                place = f"{path}, line {number}"
                try:
                    row = _mapping(_parse_json(line, place), place)
                except DataError:
                    if not is_appended or line.endswith(b"\n"):
                        raise
                    # What a killed sampler was about to write: it is asked for again, and everything before it is whole.
                    note(
                        f"{place}: left out, the last line of this samples file is cut off: its writer was stopped, or "
                        "writes."
                    )
                    return
            if is_appended is None:
                is_appended = row.keys() >= APPENDED_COLUMNS
            yield row


def _plain_object(line: bytes) -> dict[str, Any] | None:
    """The object that a line consists of, from its first byte to its line feed; `None`: it has to be looked at."""
    if line[:1] != b"{":
        return None
    try:
        text = line.decode()
        row, end = _SCAN(text, 0)
    except (ValueError, RecursionError, StopIteration):
        return None
    return row if text[end:] in ("\n", "") else None


def _read_json(path: Path) -> list[dict[str, Any]]:
    return [_mapping(item, f"{path}, item {i}") for i, item in enumerate(_parse_json(path.read_bytes(), str(path)))]


def _parse_json(data: bytes, place: str) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        what = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
        raise DataError(f"{place}: {what} ({error}).") from None


def _mapping(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise DataError(f"{place}: expected an object with one key a column, got {type(item).__name__}.")
    return item


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv_rows(file, str(path), "\t" if suffix(path) == ".tsv" else ",")


def csv_rows(
    file: Iterable[str], name: str, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL
) -> Iterator[dict[str, Any]]:
    """
    Rows of a CSV file whose first line names the columns; an empty cell is null.

    Args:
        file (`Iterable[str]`): the file, decoded, with its line ends as they are.
        name (`str`): what to call the source in messages.
        delimiter (`str`, *optional*, defaults to `","`): what stands between cells.
        quoting (`int`, *optional*, defaults to `csv.QUOTE_MINIMAL`): with `csv.QUOTE_NONE` a quotation mark is a character.

    Raises:
        DataError: naming the line that cannot be read.
    """
    csv.field_size_limit(2**31 - 1)  # the default refuses texts over 128 KiB
    reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = cells
                if len(set(header)) < len(header) or not all(column.strip() for column in header):
                    raise DataError(f"{name}, line 1: a column name is empty or stands twice: {header}.")
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{name}, line {reader.line_num}: {len(cells)} cells, but the header names {len(header)}."
                )
            yield {column: cell or None for column, cell in zip(header, cells, strict=True)}  # an empty cell is null
    except UnicodeDecodeError as error:
        raise DataError(f"{name}, line {reader.line_num + 1} or after: not UTF-8 text ({error}).") from None
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: not valid CSV ({error}).") from None


def json_lines(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    """
    Rows of JSON Lines; blank lines are none.

    Args:
        lines (`Iterable[bytes]`): the lines. As bytes, only a line feed ends one: U+2028 inside a text does not.
        name (`str`): what to call the source in messages.

    Raises:
        DataError: naming the line that is no JSON object.
    """
    for number, line in enumerate(lines, 1):
        if line.strip(b"\xef\xbb\xbf \t\r\n"):
            yield _mapping(_parse_json(line, f"{name}, line {number}"), f"{name}, line {number}")


def text_lines(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """
    Lines of plain text that are not blank, with their numbers, counted from 0.

    Args:
        lines (`Iterable[bytes]`): the lines.
        name (`str`): what to call the source in messages.

    Raises:
        DataError: naming the line that is not UTF-8.
    """
    for number, line in enumerate(lines):
        try:
            text = line.decode("utf-8-sig" if number == 0 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number + 1}: not UTF-8 text ({error}).") from None
        if text:
            yield number, text
