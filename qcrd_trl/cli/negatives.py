"""`qcrd negatives export`: the negatives that a run generated, as a dataset."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import ConfigError, DataError
from ..files import whole_file
from .common import CommandParser


COLUMNS = (
    *("id", "prompt", "negative", "iteration", "snapshot", "seed", "temperature", "quality"),
    *("is_finished", "reaches_label"),
)
DEFAULT_NAME = "negatives.parquet"
FORMATS = (".parquet", ".jsonl", ".json", ".csv")

HELP = """\
usage: qcrd negatives [-h] export OUTPUT_DIR ...

What a run generated as negatives (negative_source self, both or fixed).

commands:
  export  write them to a Parquet, JSON Lines, JSON or CSV file, which `datasets` loads

`qcrd negatives export --help` shows its flags."""


@dataclass
class ExportArguments:
    """
    Arguments of `qcrd negatives export`.

    Args:
        output_dir (`str`):
            `output_dir` of a run, for the negatives of all its iterations, or one of its checkpoints, for those that it
            holds.
        output (`str`, *optional*):
            File to write, in the format that its ending names: one of `FORMATS`. `OUTPUT_DIR/negatives.parquet` if left
            out. A CSV file keeps no types: messages stand there as JSON, and whoever reads it takes the texts `NA` and
            `007` for null and 7.
        iteration (`int`, *optional*):
            Only this iteration.
    """

    output_dir: str = field(metadata={"help": "output_dir of a run (all iterations), or one of its checkpoints."})
    output: str | None = field(
        default=None,
        metadata={"help": f"File to write: {', '.join(FORMATS)}. OUTPUT_DIR/{DEFAULT_NAME} if left out."},
    )
    iteration: int | None = field(default=None, metadata={"help": "Only this iteration; all if left out."})

    def __post_init__(self):
        path = self.path
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"--output {self.output} must end in one of {', '.join(FORMATS)}.")
        if path.is_dir():
            raise ConfigError(f"--output {path} is a folder: give a file.")

    @property
    def path(self) -> Path:
        """The file to write."""
        return (
            Path(self.output_dir, DEFAULT_NAME).expanduser() if self.output is None else Path(self.output).expanduser()
        )


class ExportParser(CommandParser):
    """A [`CommandParser`] that takes the folder without a flag, as `cp` and `ls` do."""

    def add_argument(self, *names: str, **kwargs: Any):
        if "--output_dir" in names:
            names = ("output_dir",)
            kwargs = {"metavar": "OUTPUT_DIR", "type": kwargs["type"], "help": kwargs["help"]}
        return super().add_argument(*names, **kwargs)


def main(argv: Sequence[str]) -> int:
    """
    Runs the sub-command and returns the exit status.

    Args:
        argv (`Sequence[str]`): the sub-command and its arguments.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(HELP)
        return 0
    if name != "export":
        got = f"unknown sub-command {name!r}" if name else "no sub-command"
        raise ConfigError(f"{got}: expected `qcrd negatives export OUTPUT_DIR` (`qcrd negatives --help` tells more).")
    description = "Writes the negatives that a run generated to a file that `datasets` loads."
    (args,) = ExportParser([ExportArguments], prog="qcrd negatives export", description=description).parse(argv[1:])
    table = read_negatives(Path(args.output_dir).expanduser(), args.iteration)
    write_negatives(table, args.path)
    iterations = sorted(set(table.column("iteration").to_pylist()))
    print(f"Wrote {_counted(len(table), 'negative')} of {_named(iterations)} to {args.path}")
    return 0


def read_negatives(folder: Path, iteration: int | None = None) -> pa.Table:
    """
    The negatives that a run or a checkpoint holds.

    Args:
        folder (`Path`): `output_dir` of a run, or a checkpoint.
        iteration (`int`, *optional*): only this iteration.

    Returns:
        `pyarrow.Table`: the columns of `COLUMNS`, a row a negative, iteration after iteration.

    Raises:
        DataError: there are none, or they are damaged.
    """
    from ..data.store import ROWS_NAME, NegativeStore

    stores = _stores(folder)
    if not stores:
        what = "holds no generated negatives" if folder.is_dir() else "is no folder"
        raise DataError(
            f"{folder} {what}. Name the output_dir of a run that was trained with negative_source self, both or fixed, or "
            "one of its checkpoints."
        )
    if iteration is not None and iteration not in stores:
        raise DataError(f"There is no iteration {iteration} in {folder}: it has {_named(list(stores))}.")
    chosen = list(stores) if iteration is None else [iteration]
    tables = []
    for number in chosen:
        NegativeStore.load(stores[number])  # raises if it is damaged
        table = pq.read_table(stores[number] / ROWS_NAME, columns=list(COLUMNS))
        if len(table):  # one without rows does not tell whether its prompts are texts or messages
            tables.append(table.select(COLUMNS).replace_schema_metadata())
    if not tables:
        raise DataError(
            f"{folder} has no negatives of {_named(chosen)}: no sample became one (negatives/kept in the log)."
        )
    return pa.concat_tables(tables)


def write_negatives(table: pa.Table, path: Path) -> None:
    """
    Writes negatives in the format that the file's ending names. The file is whole or as it was before.

    Args:
        table (`pyarrow.Table`): as [`read_negatives`] gives it.
        path (`Path`): the file.
    """
    with whole_file(path) as aside:
        ending = path.suffix.lower()
        if ending == ".parquet":
            pq.write_table(table, aside)
            return
        write: Callable[[Iterator[dict[str, Any]], TextIO], None] = {
            ".jsonl": _write_lines,
            ".json": _write_array,
            ".csv": _write_csv,
        }[ending]
        with aside.open("w", encoding="utf-8", newline="") as file:
            write((row for batch in table.to_batches(1000) for row in batch.to_pylist()), file)


def _stores(folder: Path) -> dict[int, Path]:
    """Folder of each iteration's store, in order."""
    from ..data.store import NEGATIVES_FOLDER, STATE_NAME, NegativeStore

    place = folder / NEGATIVES_FOLDER
    if (place / STATE_NAME).is_file():  # of a checkpoint
        return {NegativeStore.load(place).iteration: place}
    found = (re.fullmatch(r"iteration-(\d{4,})", path.name) for path in (place.iterdir() if place.is_dir() else ()))
    numbers = sorted((int(match.group(1)), match.group()) for match in found if match)
    return {number: place / name for number, name in numbers}


def _write_lines(rows: Iterator[dict[str, Any]], file: TextIO) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_array(rows: Iterator[dict[str, Any]], file: TextIO) -> None:
    for number, row in enumerate(rows):
        file.write((",\n" if number else "[\n") + json.dumps(row, ensure_ascii=False))
    file.write("\n]\n")


def _write_csv(rows: Iterator[dict[str, Any]], file: TextIO) -> None:
    writer = csv.writer(file)  # with its own line ends: with others a lone "\r" would not be quoted
    writer.writerow(COLUMNS)
    for row in rows:
        cells = (row[name] for name in COLUMNS)
        writer.writerow([json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell for cell in cells])


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _named(iterations: Sequence[int]) -> str:
    """`iteration 3`, or `iterations 0 to 3, 5`."""
    runs: list[list[int]] = []
    for number in iterations:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return f"iteration{'' if len(iterations) == 1 else 's'} {', '.join(parts)}"
