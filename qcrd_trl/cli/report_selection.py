"""What `qcrd select` says of a training set, read back."""

import json
from pathlib import Path
from typing import Any

from ..data.sources import REPORT_FILE
from ..errors import DataError
from .select import TRAIN_FILE


# What a picture needs. The rest of the file names paths, and is left where it is.
_FIGURES = ("rows", "samples", "agreement", "gold", "positives_per_question", "negatives_per_question")


def is_selection(folder: Path) -> bool:
    """Whether `qcrd select` wrote a folder."""
    return (folder / REPORT_FILE).is_file() and (folder / TRAIN_FILE).is_file()


def read_selection(folder: Path) -> tuple[dict[str, Any], list[int]]:
    """
    Reads the report of a training set.

    Args:
        folder (`Path`): what `qcrd select` wrote.

    Returns:
        `tuple[dict, list[int]]`: the figures of `report.json`, and the questions by the share of positives among their
        rationales, in ten equal bins; those without a rationale are left out.

    Raises:
        DataError: a file is damaged, or something else.
    """
    try:
        report = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        missing = set(_FIGURES) - set(report)
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder / REPORT_FILE} cannot be read: {error}") from error
    if missing:
        raise DataError(
            f"{folder / REPORT_FILE} is no report of `qcrd select`: it has no {', '.join(sorted(missing))}."
        )
    return report, _shares_of_positives(folder / TRAIN_FILE)


def selection_of(folder: Path) -> dict[str, Any]:
    """
    What the log of a run keeps of its training set, see [`~qcrd_trl.run_log.RunLog`].

    Raises:
        DataError: as [`read_selection`], or the folder is no training set.
    """
    if not is_selection(folder):
        raise DataError(
            f"{folder} is no training set that `qcrd select` wrote: expected {TRAIN_FILE} and {REPORT_FILE}."
        )
    report, shares = read_selection(folder)
    return {"report": {name: report[name] for name in _FIGURES}, "shares": shares}


def _shares_of_positives(path: Path) -> list[int]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    bins = [0] * 10
    try:
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(columns=["positive_rationales", "negative_rationales"]):
            sizes = [pc.fill_null(pc.list_value_length(column), 0).to_pylist() for column in batch.columns]
            for m, k in zip(*sizes, strict=True):
                if m + k:
                    bins[min(9, 10 * m // (m + k))] += 1
    except ValueError as error:  # pyarrow's errors, and a column that is missing
        raise DataError(f"{path} cannot be read as a training set: {error}") from error
    return bins
