"""Reading what a user has: JSONL, JSON, CSV, TSV, Parquet, a folder of such files, a saved dataset, or a Hub name.

[`load_rows`] gives plain Python rows, one at a time, exactly as they stand in the source (lone surrogates, mixed types
and nulls included), so that whoever uses them can count and name what is wrong. [`load_dataset_from`] gives a
[`~datasets.Dataset`].
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .text_files import LinePlace, has_lone_surrogate, open_text_file, parse_cell, suffix


if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
RATIONALE_COLUMNS = ("positive_rationales", "negative_rationales")
PEEK = 1000  # rows that the columns of a long file are taken from
REPORT_FILE = "report.json"  # what `qcrd select` writes beside its data: not data

_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")


class Rows:
    """
    The rows of a source, as dictionaries. Every iteration reads the source afresh, one row at a time.

    Args:
        name (`str`):
            What to call the source in messages.
        read (`Callable[[], Iterable[dict]]`):
            Opens the source and gives its rows.
        column_names (`list[str]`, *optional*):
            The columns that at least one row has. Counted from the rows when left out.
        num_rows (`int`, *optional*):
            How many rows there are. `None` with `column_names` given: unknown, because the source is a stream.
        text_cells (`bool`, *optional*, defaults to `False`):
            Whether every cell is text (CSV), so that a list or a mapping can only be there as JSON.
        peek (`int`, *optional*):
            Count the columns from the first so many rows, and the rows not at all if there are more. [`~Rows.has_column`]
            looks at the rest where it has to.
        has_lines (`bool`, *optional*, defaults to `False`):
            Whether `read` takes the function that [`~Rows.lines`] is given.
    """

    def __init__(
        self,
        name: str,
        read: Callable[..., Iterable[dict[str, Any]]],
        column_names: list[str] | None = None,
        num_rows: int | None = None,
        text_cells: bool = False,
        peek: int | None = None,
        has_lines: bool = False,
    ):
        self.name = name
        self._read = read
        self._has_lines = has_lines
        self.text_cells = text_cells
        self.column_names = column_names
        self.num_rows = num_rows
        self._is_counted = True
        if column_names is None:  # one pass over everything: a broken last line is found before any work is done
            self._count(peek)

    def _count(self, peek: int | None = None) -> None:
        columns: dict[str, None] = {}
        self.num_rows, self._is_counted = 0, True
        for row in self._read():
            if self.num_rows == peek:
                self.num_rows, self._is_counted = None, False
                break
            self.num_rows += 1
            columns.update(dict.fromkeys(row))
        self.column_names = list(columns)

    def has_column(self, name: str) -> bool:
        """Whether at least one row has this column."""
        if name not in self.column_names and not self._is_counted:
            self._count()
        return name in self.column_names

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read())

    def lines(self, key_of: Callable[[bytes], str | None]) -> Iterator[dict[str, Any] | LinePlace]:
        """
        The rows, but of lines of JSON Lines only the place, where a key is all that is needed of them for now.

        Args:
            key_of (`Callable[[bytes], str | None]`): gives the key of a line; `None`: it has to be read.

        Yields:
            `dict` or `qcrd_trl.data.text_files.LinePlace`, which is a tuple.
        """
        return iter(self._read(key_of) if self._has_lines else self._read())

    def __len__(self) -> int:
        if self.num_rows is None:
            raise TypeError(f"{self.name} is a stream: its number of rows is unknown.")
        return self.num_rows


def load_rows(
    source: str | Path,
    split: str | None = None,
    config_name: str | None = None,
    streaming: bool = False,
    peek: int | None = None,
    note: Callable[[str], None] = logger.warning,
) -> Rows:
    """
    Opens a source as plain rows.

    Args:
        source (`str` or `Path`):
            A data file (JSONL, JSON, CSV, TSV, Parquet), a folder of such files, a folder written by `save_to_disk`,
            or the name of a dataset on the Hub. A path that exists is never taken for a Hub name.
        split (`str`, *optional*):
            The split. Left out: the only one there is, or else `train`. The split of a file is its name's beginning
            (`validation.jsonl`, `train-00000-of-00002.parquet`).
        config_name (`str`, *optional*):
            The configuration of a Hub dataset.
        streaming (`bool`, *optional*, defaults to `False`):
            Whether a Hub dataset is streamed rather than downloaded. Files are always read row by row.
        peek (`int`, *optional*):
            For text files, as in [`Rows`].
        note (`Callable[[str], None]`, *optional*):
            Is told of what is left out of a text file; a warning in the log if left out.

    Returns:
        [`Rows`]: The rows as they stand in the source; `ClassLabel` columns as their names.

    Raises:
        DataError: nothing is there, or it cannot be read; the message names the file and the line.
    """
    found = open_source(source, split, config_name, streaming, peek, note)
    return found if isinstance(found, Rows) else rows_of_dataset(found, str(source))


def load_dataset_from(
    source: str | Path,
    split: str | None = None,
    config_name: str | None = None,
    list_columns: Sequence[str] = RATIONALE_COLUMNS,
) -> "Dataset":
    """
    Loads a source as a [`~datasets.Dataset`], which is what a trainer takes.

    A `Dataset` cannot hold a lone surrogate: rows that have one are left out, and a warning says how many and which.

    Args:
        source (`str` or `Path`):
            As in [`load_rows`].
        split (`str`, *optional*):
            As in [`load_rows`].
        config_name (`str`, *optional*):
            As in [`load_rows`].
        list_columns (`Sequence[str]`, *optional*, defaults to `("positive_rationales", "negative_rationales")`):
            Columns whose cells are lists, written as JSON where the source is a CSV file.

    Returns:
        [`~datasets.Dataset`]: The rows that could be held, with every column that at least one row has.

    Raises:
        DataError: as in [`load_rows`], and where a column mixes types.
    """
    import datasets

    found = open_source(source, split, config_name)
    if not isinstance(found, Rows):
        return found
    columns: dict[str, list[Any]] = {name: [] for name in found.column_names}
    left_out = []
    for index, row in enumerate(found):
        if has_lone_surrogate(row):
            left_out.append(index)
            continue
        for name, cells in columns.items():
            cell = row.get(name)
            cells.append(parse_cell(cell, name, index) if found.text_cells and name in list_columns else cell)
    if left_out:
        logger.warning(
            "%s: left out %d of %d rows that hold a lone surrogate, which no dataset can store (%s).",
            *(found.name, len(left_out), len(found), _enumerate_rows(left_out)),
        )
    if len(left_out) == len(found):
        raise DataError(f"{found.name}: none of its {len(found)} rows can be stored in a dataset.")
    try:
        return datasets.Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError) as error:  # pyarrow's errors are ValueErrors and TypeErrors
        raise DataError(_describe_mixture(found, columns) or f"{found.name}: {error}") from error


# Finding the source


def open_source(
    source: str | Path,
    split: str | None,
    config_name: str | None,
    streaming: bool = False,
    peek: int | None = None,
    note: Callable[[str], None] = logger.warning,
) -> "Rows | Dataset":
    """Opens a source as it is: `Rows` for text files, a (streamed) dataset for what is one. Args as in [`load_rows`]."""
    path = Path(source).expanduser()
    if not path.exists():
        return _from_hub(str(source), split, config_name, streaming)
    if config_name is not None:
        raise DataError(f"{source} is a local path and has no configuration {config_name!r}: leave it out.")
    if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
        return _from_disk(path, split)
    files = _data_files(path, split)
    if suffix(files[0]) == ".parquet":
        return _from_parquet(files)
    rows = [open_text_file(file, note) for file in files]
    name = str(source) if len(files) > 1 else str(files[0])
    text_cells = suffix(files[0]) in (".csv", ".tsv")
    found = Rows(
        name,
        lambda key_of=None: (row for read in rows for row in read(key_of)),
        text_cells=text_cells,
        peek=peek,
        has_lines=True,
    )
    if found.num_rows == 0:
        raise DataError(f"{name} has no rows.")
    return found


def _data_files(path: Path, split: str | None) -> list[Path]:
    if path.is_file():
        if suffix(path) not in DATA_SUFFIXES:
            raise DataError(f"{path} is no data file: expected one of {', '.join(DATA_SUFFIXES)}.")
        if split is not None and split not in ("train", _split_of(path)):
            raise DataError(f"{path} is one file and has no split {split!r}: leave the split out, or name its file.")
        return [path]
    folders = [path, path / "data"]
    files = next((found for folder in folders if folder.is_dir() and (found := _files_in(folder))), None)
    if not files:
        raise DataError(f"{path} holds no data file: expected one of {', '.join(DATA_SUFFIXES)}, or a saved dataset.")
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file), []).append(file)
    chosen = splits[_choose_split(str(path), list(splits), split)]
    if len({suffix(file) for file in chosen}) > 1:
        raise DataError(f"{path} holds several files for one split: {', '.join(f.name for f in chosen)}. Name one.")
    return chosen


def _files_in(folder: Path) -> list[Path]:
    files = sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and suffix(file) in DATA_SUFFIXES and file.name != REPORT_FILE and file.name[0] not in "._"
    )
    return [file for file in files if suffix(file) != ".json"] or files  # a .json beside data files describes them


def _split_of(file: Path) -> str:
    return re.sub(r"-\d{5}-of-\d{5}$", "", file.stem)


def _choose_split(name: str, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    wanted = split or "train"
    if wanted not in splits:
        missing = "several splits and no split was named" if split is None else f"no split {split!r}"
        raise DataError(f"{name} has {missing}. The splits are: {', '.join(splits)}.")
    return wanted


def _from_disk(path: Path, split: str | None) -> "Dataset":
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"{path} looks like a saved dataset but is empty or cannot be read: {error}") from error
    if isinstance(loaded, dict):
        loaded = loaded[_choose_split(str(path), list(loaded), split)]
    elif split is not None and split not in ("train", str(loaded.split)):
        raise DataError(f"{path} is one saved dataset and has no split {split!r}: leave the split out.")
    return _not_empty(loaded, str(path))


def _from_parquet(files: list[Path]) -> "Dataset":
    import datasets
    import pyarrow.parquet

    num_rows = 0
    for file in files:
        try:
            num_rows += pyarrow.parquet.read_metadata(file).num_rows
        except ValueError as error:  # pyarrow's ArrowInvalid
            raise DataError(f"{file} cannot be read as Parquet: {error}") from error
    if not num_rows:
        raise DataError(f"{', '.join(str(file) for file in files)} has no rows.")
    return datasets.Dataset.from_parquet([str(file) for file in files])


def _from_hub(name: str, split: str | None, config_name: str | None, streaming: bool) -> "Dataset":
    if not _HUB_NAME.fullmatch(name) or suffix(Path(name)) in DATA_SUFFIXES:
        raise DataError(f"{name} does not exist.")
    import datasets

    try:
        loaded = datasets.load_dataset(name, config_name, split=split, streaming=streaming)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name} is no path that exists, and the Hub gave no dataset of this name: {reason}"
        ) from error
    if isinstance(loaded, dict):
        loaded = loaded[_choose_split(name, list(loaded), split)]
    return loaded if streaming else _not_empty(loaded, name)


def _not_empty(dataset: "Dataset", name: str) -> "Dataset":
    if not len(dataset):
        raise DataError(f"{name} has no rows.")
    return dataset


def rows_of_dataset(dataset: "Dataset", name: str) -> Rows:
    """The rows of a [`~datasets.Dataset`] or a stream of one, `ClassLabel` columns as their names; `name` is for messages."""
    from datasets import ClassLabel

    features = dataset.features or {}
    labels = {column: feature for column, feature in features.items() if isinstance(feature, ClassLabel)}

    def read() -> Iterator[dict[str, Any]]:
        for row in dataset:
            for column, feature in labels.items():  # -1 is how the Hub marks "no label"
                row[column] = None if row[column] is None or row[column] < 0 else feature.int2str(row[column])
            yield row

    columns = dataset.column_names or list(next(iter(read()), {}))
    return Rows(name, read, columns, len(dataset) if hasattr(dataset, "__len__") else None)


# Messages


def _enumerate_rows(rows: list[int]) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return f"row{'s' if len(rows) > 1 else ''} {shown}{', ...' if len(rows) > 5 else ''}, counted from 0"


def _describe_mixture(rows: Rows, columns: dict[str, list[Any]]) -> str | None:
    """Names the first column whose cells are of several types, and the first row that differs."""
    for name, cells in columns.items():
        filled = [(row, type(cell).__name__) for row, cell in enumerate(cells) if cell is not None]
        odd = next(((row, kind) for row, kind in filled if kind != filled[0][1]), None)
        if odd is not None:
            return (
                f"{rows.name}: column {name!r} mixes types: {filled[0][1]} in row {filled[0][0]}, {odd[1]} in row "
                f"{odd[0]} (rows count from 0). Write one type."
            )
    return None
