"""What `qcrd select` writes: a training set in Parquet, put in place only once it is whole."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import ConfigError, DataError


TRAIN_FILE = "train.parquet"
_ROWS_A_WRITE = 1000
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_TEXTS = pa.list_(pa.string())


def check_output(output: Path, overwrite: bool) -> None:
    """Raises a [`ConfigError`] if the folder cannot be written to, or holds something that was not to be replaced."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output_dir {output} is a file: name a folder.")
    if not overwrite and output.is_dir() and any(path.name[0] != "." for path in output.iterdir()):
        raise ConfigError(f"output_dir {output} is not empty: name a new one, or pass --overwrite_output_dir.")


@contextlib.contextmanager
def staging_folder(output: Path) -> Iterator[Path]:
    """A folder on the same disk as `output`, from which finished files are renamed; gone afterwards, whatever happens."""
    existing = next(path for path in (output, *output.absolute().parents) if path.is_dir())
    folder = Path(tempfile.mkdtemp(prefix=".qcrd-select-", dir=existing))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class TrainingSetWriter:
    """
    Writes rows to Parquet, so many at a time, with the same types whatever the first rows hold.

    Args:
        path (`Path`): the file.
        with_scores (`bool`, *optional*, defaults to `False`): whether rows have `positive_scores` and `negative_scores`.
    """

    def __init__(self, path: Path, with_scores: bool = False):
        self._path = path
        self._with_scores = with_scores
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[dict[str, Any]] = []
        self._prompt_type: type | None = None

    def __enter__(self) -> "TrainingSetWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None and (self._rows or self._writer is None):
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def write(self, row: dict[str, Any], source_row: int) -> None:
        """Writes a row; the number of the source row it comes from is for the message if it does not fit the others."""
        kind = type(row["prompt"])
        self._prompt_type = self._prompt_type or kind
        if kind is not self._prompt_type:
            raise DataError(
                f"Row {source_row} (rows count from 0): its prompt is {'a text' if kind is str else 'a list of messages'}"
                f", unlike the prompts before it. Write all of them in one form."
            )
        self._rows.append(row)
        if len(self._rows) >= _ROWS_A_WRITE:
            self._flush()

    def _flush(self) -> None:
        fields = {
            "id": pa.string(),
            "prompt": _MESSAGES if self._prompt_type is list else pa.string(),
            "label": pa.string(),
            "positive_rationales": _TEXTS,
            "negative_rationales": _TEXTS,
            "raw_rationale": pa.string(),
        }
        if self._with_scores:
            fields |= dict.fromkeys(("positive_scores", "negative_scores"), pa.list_(pa.float64()))
        schema = pa.schema(fields)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=schema))
        self._rows = []
