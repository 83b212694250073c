"""The negatives that a run generated, as a table."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError


COLUMNS = (
    *("id", "prompt", "negative", "iteration", "snapshot", "seed", "temperature", "quality"),
    *("is_finished", "reaches_label"),
)


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
    from .store import ROWS_NAME, NegativeStore  # `qcrd negatives --help` does not wait for it

    stores = _stores(folder)
    if not stores:
        what = "holds no generated negatives" if folder.is_dir() else "is no folder"
        raise DataError(
            f"{folder} {what}. Name the output_dir of a run that was trained with negative_source self, both or fixed, or "
            "one of its checkpoints."
        )
    if iteration is not None and iteration not in stores:
        raise DataError(f"There is no iteration {iteration} in {folder}: it has {named_iterations(list(stores))}.")
    chosen = list(stores) if iteration is None else [iteration]
    tables = []
    for number in chosen:
        NegativeStore.load(stores[number])  # raises if it is damaged
        table = pq.read_table(stores[number] / ROWS_NAME, columns=list(COLUMNS))
        if len(table):  # one without rows does not tell whether its prompts are texts or messages
            tables.append(table.select(COLUMNS).replace_schema_metadata())
    if not tables:
        raise DataError(
            f"{folder} has no negatives of {named_iterations(chosen)}: no sample became one (negatives/kept in the log)."
        )
    return pa.concat_tables(tables)


def named_iterations(iterations: Sequence[int]) -> str:
    """`iteration 3`, or `iterations 0 to 3, 5`."""
    runs: list[list[int]] = []
    for number in iterations:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return f"iteration{'' if len(iterations) == 1 else 's'} {', '.join(parts)}"


def _stores(folder: Path) -> dict[int, Path]:
    """Folder of each iteration's store, in order."""
    from .store import NEGATIVES_FOLDER, STATE_NAME, NegativeStore

    place = folder / NEGATIVES_FOLDER
    if (place / STATE_NAME).is_file():  # of a checkpoint
        return {NegativeStore.load(place).iteration: place}
    found = (re.fullmatch(r"iteration-(\d{4,})", path.name) for path in (place.iterdir() if place.is_dir() else ()))
    numbers = sorted((int(match.group(1)), match.group()) for match in found if match)
    return {number: place / name for number, name in numbers}
