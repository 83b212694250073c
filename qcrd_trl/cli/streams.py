"""Questions that come in as a stream, and results that go out as one: files, standard input and output."""

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from ..data.sources import load_rows
from ..data.text_files import csv_rows, json_lines, parse_cell, suffix, text_lines
from ..errors import ConfigError, DataError


STREAM = "-"  # standard input or output
FORMATS = ("auto", "jsonl", "csv", "tsv", "text")
TEXT_SUFFIXES = (".txt", ".text")


class RowStream:
    """
    Rows of a file, a folder, a Hub dataset or standard input, read as they come.

    Args:
        source (`str`):
            `-` for standard input, a file with one question a line (`.txt`), or whatever `qcrd select` reads.
        form (`str`, *optional*, defaults to `"auto"`):
            One of `FORMATS`. `"auto"`: what a file's ending says; standard input is JSON Lines if it begins with `{`, and else
            one question a line.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            The column that a line of plain text is put into.

    Attributes:
        name (`str`): what to call it in messages.
        count (`int` or `None`): how many rows there are, where that is known before.

    Raises:
        DataError: there is nothing of this name; what cannot be read is told while iterating.
    """

    def __init__(self, source: str, form: str = "auto", prompt_column: str = "prompt"):
        self._form, self._column, self.count = form, prompt_column, None
        self.is_standard = source == STREAM
        self.name = "standard input" if self.is_standard else source
        self.text_cells = form in ("csv", "tsv")
        self._path = None if self.is_standard else Path(source).expanduser()
        self._rows = None
        if self._path is not None and form == "auto" and suffix(self._path) not in TEXT_SUFFIXES:
            self._rows = load_rows(source)
            self.text_cells, self.count = self._rows.text_cells, self._rows.num_rows
        elif self._path is not None and not self._path.is_file():
            raise DataError(f"{source} is no file. Its format was given or follows from its name, so it must be one.")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._rows is not None:
            yield from self._rows
        elif self._path is not None:
            with self._path.open("rb") as file:
                yield from self._read(file, "text" if self._form == "auto" else self._form)
        else:
            yield from self._read(getattr(sys.stdin, "buffer", sys.stdin), self._form)

    def _read(self, file: Iterable[bytes], form: str) -> Iterator[dict[str, Any]]:
        if form in ("csv", "tsv"):
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            try:
                yield from csv_rows(text, self.name, "\t" if form == "tsv" else ",")
            finally:
                text.detach()  # whoever opened it closes it
            return
        lines = iter(file)
        if form == "auto":
            lines, form = _guessed(lines)
        if form == "jsonl":
            yield from json_lines(lines, self.name)
            return
        for number, text in text_lines(lines, self.name):
            yield {"id": str(number), self._column: text}


def cell_of(row: dict[str, Any], column: str, index: int, stream: RowStream, flag: str) -> Any:
    """A row's cell, read from its JSON where every cell is text; a missing column is an error that names the flag."""
    if column not in row:
        columns = ", ".join(map(repr, row)) or "none"
        raise DataError(
            f"{stream.name}, row {index} (rows count from 0) has no column {column!r}; its columns are: {columns}. Name the "
            f"right one with --{flag}."
        )
    return parse_cell(row[column], column, index) if stream.text_cells else row[column]


def id_of(row: dict[str, Any], column: str, index: int) -> str:
    """A row's key, or its number where it has none."""
    key = row.get(column)
    return str(index if key is None else key)


def in_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items, of which the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class LineWriter:
    """
    Writes results as JSON Lines, each on the disk before the next batch begins.

    Args:
        file (`TextIO`): what to write to.
    """

    def __init__(self, file: TextIO):
        self._file = file
        # Other encodings would need escapes that JSON does not know.
        self._ascii = (getattr(file, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"

    def write(self, results: Iterable[dict[str, Any]]) -> None:
        """Writes a line for each result."""
        for result in results:
            self._file.write(json.dumps(result, ensure_ascii=self._ascii) + "\n")
        self._file.flush()
        if self._file is not sys.stdout:
            os.fsync(self._file.fileno())


@contextmanager
def open_output(output: str, resume: bool = False) -> Iterator[LineWriter]:
    """Opens `-` (standard output) or a file, which `resume` adds to."""
    if output == STREAM:
        yield LineWriter(sys.stdout)
        return
    path = Path(output).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if resume else "w", encoding="utf-8", newline="\n") as file:
        yield LineWriter(file)


def check_output(output: str, overwrite: bool, resume: bool = False) -> None:
    """
    Tells what would be lost or could not be written, before any work is done.

    Raises:
        ConfigError: the file is there and neither to be replaced nor to be added to, or it is a folder.
    """
    if output == STREAM:
        if resume:
            raise ConfigError("--resume goes on with a file: name one with --output.")
        return
    path = Path(output).expanduser()
    if overwrite and resume:
        raise ConfigError("--resume and --overwrite_output exclude each other.")
    if path.is_dir():
        raise ConfigError(f"--output {output} is a folder: give a file.")
    if path.exists() and path.stat().st_size and not overwrite and not resume:
        raise ConfigError(f"--output {output} is there already: give --overwrite_output or another file.")


def finished_results(output: str) -> list[dict[str, Any]]:
    """
    The results that a file holds. A last line that a kill left half-written is cut off.

    Raises:
        DataError: naming a line that is no result.
    """
    path = Path(output).expanduser()
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    results = list(json_lines(whole.splitlines(keepends=True), str(path)))
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
            os.fsync(file.fileno())
    return results


def at_least_one(args: Any, names: Sequence[str]) -> None:
    """Raises a [`ConfigError`] for the first of some flags whose number is below 1."""
    for name in names:
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(args, name)}.")


def _guessed(lines: Iterator[bytes]) -> tuple[Iterator[bytes], str]:
    seen = []
    for line in lines:
        seen.append(line)
        start = line.removeprefix(b"\xef\xbb\xbf").strip()[:1]
        if start:
            return _chained(seen, lines), "jsonl" if start == b"{" else "text"
    return iter(seen), "text"


def _chained(seen: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from seen
    yield from rest
