"""`qcrd negatives export`: the negatives that a run generated, as a dataset."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..data.generated import COLUMNS, named_iterations, read_negatives
from ..errors import ConfigError
from ..files import whole_file
from .common import CommandParser


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
    print(f"Wrote {_counted(len(table), 'negative')} of {named_iterations(iterations)} to {args.path}")
    return 0


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
