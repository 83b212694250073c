"""The columns of interactions and items, whatever file, folder or Hub dataset they stand in, as Arrow columns."""

import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from ..data.sources import Rows, open_source
from ..data.text_files import csv_rows, suffix
from ..errors import DataError


ATOMIC_SUFFIXES = {"interactions": ".inter", "items": ".item"}  # RecBole's
_ATOMIC_TYPES = ("token", "token_seq", "float", "float_seq")
_CHUNK = 100_000  # rows that are held as Python objects at a time


@dataclass(frozen=True)
class Role:
    """
    What a column is to be.

    Args:
        name (`str`): such as `"user"`; the flag that names the column is `--user_column`.
        names (`tuple[str, ...]`): what it is usually called, in small letters without underscores.
        column (`str`, *optional*): what it is called here. Found by `names` if left out.
        is_required (`bool`, *optional*, defaults to `True`): whether there has to be one.
        is_number (`bool`, *optional*, defaults to `False`): whether it holds numbers or times, rather than ids or texts.
    """

    name: str
    names: tuple[str, ...]
    column: str | None = None
    is_required: bool = True
    is_number: bool = False


def source_name(source: str | Path) -> str:
    """What a source is called in files that are written: a local path by its last part only, a Hub name whole."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else str(source)


def read_columns(
    source: str | Path, kind: str, roles: Sequence[Role], split: str | None = None, config_name: str | None = None
) -> dict[str, pa.ChunkedArray]:
    """
    Reads the columns that are needed, and no others.

    Args:
        source (`str` or `Path`):
            A file (CSV, TSV, JSONL, JSON, Parquet, RecBole's `.inter` or `.item`), a folder of such files or of a saved
            dataset, or the name of a Hub dataset.
        kind (`str`):
            `"interactions"` or `"items"`: which atomic file of a folder it is.
        roles (`Sequence[Role]`):
            The columns.
        split (`str`, *optional*):
            Split of the source.
        config_name (`str`, *optional*):
            Configuration of a Hub dataset.

    Returns:
        `dict[str, pyarrow.ChunkedArray]`: columns by the names of their roles. From a text file all are strings; from
        Parquet or a dataset they have the type that they have there.

    Raises:
        DataError: the source cannot be read, or a column is missing or ambiguous.
    """
    opened = _open(source, kind, split, config_name)
    if isinstance(opened, Rows):
        if opened.num_rows == 0:
            raise DataError(f"{opened.name} has no rows.")
        names = _find_columns(opened.name, opened.column_names, roles)
        columns = _columns_of_rows(opened, names, roles)
    else:
        names = _find_columns(str(source), opened.column_names, roles)
        # `dict.fromkeys`: one column may serve two roles.
        table = opened.select_columns(list(dict.fromkeys(names.values()))).with_format("arrow")[:]
        columns = {role: table.column(name) for role, name in names.items()}
    return columns


def _open(source: str | Path, kind: str, split: str | None, config_name: str | None):
    path = Path(source).expanduser()
    wanted = ATOMIC_SUFFIXES[kind]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if suffix(file) == wanted)
        if len(files) > 1:
            raise DataError(f"{path} holds several {wanted} files: {', '.join(f.name for f in files)}. Name one.")
        path = files[0] if files else path
    if not (path.is_file() and suffix(path) in ATOMIC_SUFFIXES.values()):
        return open_source(source, split, config_name, peek=_CHUNK)
    if split is not None or config_name is not None:
        raise DataError(f"{path} is one file and has no split or configuration: leave them out.")
    return Rows(str(path), lambda: _atomic_rows(path), peek=_CHUNK)


def _atomic_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:  # RecBole quotes nothing
        yield from csv_rows(file, str(path), "\t", csv.QUOTE_NONE)


def _find_columns(source: str, columns: Sequence[str], roles: Sequence[Role]) -> dict[str, str]:
    """The column of each role that has one."""
    shown = ", ".join(map(repr, columns))
    found, missing = {}, []
    for role in roles:
        if role.column is not None:
            matches = [name for name in columns if role.column in (name, _plain_name(name))]
            if not matches:
                raise DataError(
                    f"{source} has no column {role.column!r} (--{role.name}_column). Its columns: {shown}."
                )
        else:
            matches = [name for name in columns if _simple(name) in role.names]
        if len(matches) > 1:
            raise DataError(
                f"{source}: {' and '.join(map(repr, matches))} could each be the {role.name}. Choose with "
                f"--{role.name}_column."
            )
        if matches:
            found[role.name] = matches[0]
        elif role.is_required:
            missing.append(role.name)
    if missing:
        flags = ", ".join(f"--{name}_column" for name in missing)
        raise DataError(
            f"{source} has no column for {', '.join(missing)}. Its columns: {shown}. Name what they are called with "
            f"{flags}."
        )
    return found


def _plain_name(name: str) -> str:
    """A column's name without the type that RecBole writes behind it."""
    plain, colon, kind = name.rpartition(":")
    return plain if colon and kind in _ATOMIC_TYPES else name


def _simple(name: str) -> str:
    return _plain_name(name).casefold().replace("_", "").replace(" ", "").replace("-", "")


def _columns_of_rows(rows: Rows, names: dict[str, str], roles: Sequence[Role]) -> dict[str, pa.ChunkedArray]:
    numbers = {role.name for role in roles if role.is_number}
    chunks: dict[str, list[pa.Array]] = {role: [] for role in names}
    held: dict[str, list[Any]] = {role: [] for role in names}

    def flush() -> None:
        for role, cells in held.items():
            chunks[role].append(_text_array(cells, role in numbers))
            cells.clear()

    pairs = [(held[role], name) for role, name in names.items()]
    for number, row in enumerate(_shown(rows), 1):
        for cells, name in pairs:
            cells.append(row.get(name))
        if number % _CHUNK == 0:
            flush()
    flush()
    return {role: pa.chunked_array(parts, pa.string()) for role, parts in chunks.items()}


def _shown(rows: Rows) -> Iterable[dict[str, Any]]:
    name = Path(rows.name).name
    return tqdm(rows, name, rows.num_rows, leave=False, file=sys.stderr, disable=None, unit=" rows", delay=2)


def _text_array(cells: list[Any], is_number: bool) -> pa.Array:
    if not set(map(type, cells)) <= {str, type(None)}:
        cells = [_text(cell, is_number) for cell in cells]
    try:
        return pa.array(cells, pa.string())
    except UnicodeEncodeError:  # a lone surrogate, which no table can hold: as good as missing
        return pa.array([None if cell is None else _encodable(cell) for cell in cells], pa.string())


def _text(cell: Any, is_number: bool) -> str | None:
    """A JSON value as text; `None` for what is no id. Numbers keep every digit."""
    if cell is None or isinstance(cell, str):
        return cell
    if is_number:
        return str(cell)
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if isinstance(cell, float) and math.isfinite(cell) and cell.is_integer():
        return str(int(cell))
    return None


def _encodable(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text
