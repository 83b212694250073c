"""A user's dataset to the tokenized one that the trainer reads, checked before anything is trained."""

import logging
from collections.abc import Mapping
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, Value

from ..errors import DataError
from .tokenize import COUNTERS, RowTokenizer


logger = logging.getLogger(__name__)

AnyDataset = Dataset | IterableDataset


def prepare_dataset(
    dataset: AnyDataset, tokenize: RowTokenizer, name: str = "train_dataset", num_proc: int | None = None
) -> AnyDataset:
    """
    Checks and tokenizes a dataset.

    Args:
        dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Columns `prompt`, `label`, `positive_rationales`, and optionally `negative_rationales`, `raw_rationale` and
            `id`. Other columns are ignored.
        tokenize ([`RowTokenizer`]):
            What turns a row into ids.
        name (`str`, *optional*, defaults to `"train_dataset"`):
            What error messages call it.
        num_proc (`int`, *optional*):
            Number of processes that tokenize.

    Returns:
        The tokenized dataset, of the same kind. What was left out is logged with counts; a streaming dataset is
        checked as it is read.

    Raises:
        [`DataError`]: no dataset, a missing column, a wrong type, no row at all, or none that teaches anything.
    """
    check_columns(dataset, tokenize.rationales, name)
    if isinstance(dataset, IterableDataset):
        columns = dataset.column_names or list(_first_row(dataset, name))
        mapped = dataset.map(tokenize, with_indices=True, remove_columns=columns)
        mapped = mapped.filter(_is_kept)
        return mapped.remove_columns([f"n_{counter}" for counter in COUNTERS])
    mapped = dataset.map(
        tokenize,
        with_indices=True,
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc=f"Tokenizing {name}",
    )
    if mapped.features["id"].dtype != "string":  # `map` keeps a column's type, and makes texts numbers again
        mapped = mapped.cast_column("id", Value("string"))
    counts = {counter: sum(mapped[f"n_{counter}"]) for counter in COUNTERS}
    dropped = counts["no_prompt"] + counts["nothing_to_learn"]
    kept = mapped.filter(_is_kept, desc=f"Filtering {name}") if dropped else mapped
    report = ", ".join(f"{count} {COUNTERS[counter]}" for counter, count in counts.items() if count)
    if report:
        logger.warning("%s: %s.", name, report)
    if len(kept) == 0:
        raise DataError(f"{name}: none of its {len(dataset)} rows can be used ({report}).")
    if tokenize.rationales:
        _check_rationales(kept, len(dataset), name)
    return kept.remove_columns([f"n_{counter}" for counter in COUNTERS])


def check_columns(dataset: Any, rationales: bool, name: str = "train_dataset") -> None:
    """Raises a [`DataError`] that names what is wrong with a dataset's kind, size or columns."""
    if isinstance(dataset, (DatasetDict, IterableDatasetDict, Mapping)):
        raise DataError(f"{name} is a dictionary of splits ({', '.join(map(str, dataset))}). Pass one of them.")
    if not isinstance(dataset, (Dataset, IterableDataset)):
        raise DataError(
            f"{name} must be a `datasets.Dataset` or `datasets.IterableDataset`, got {type(dataset).__name__}. A list "
            "of rows becomes one by `Dataset.from_list(rows)`."
        )
    if isinstance(dataset, Dataset) and len(dataset) == 0:
        raise DataError(f"{name} is empty: it has 0 rows.")
    columns = dataset.column_names or list(_first_row(dataset, name))
    needed = ["prompt"] + (["positive_rationales"] if rationales else ["label"])
    if rationales and "positive_rationales" not in columns and "raw_rationale" in columns:
        needed.remove("positive_rationales")
    missing = [column for column in needed if column not in columns]
    if missing:
        raise DataError(
            f"{name} has no column {', '.join(map(repr, missing))}; its columns are {', '.join(map(repr, columns))}. "
            "Rename the columns with `dataset.rename_columns`, or make the training set with `qcrd select`."
        )


def _first_row(dataset: IterableDataset, name: str) -> Mapping[str, Any]:
    for row in dataset:
        return row
    raise DataError(f"{name} is empty: it has 0 rows.")


def _is_kept(row: Mapping[str, Any]) -> bool:
    return not (row["n_no_prompt"] or row["n_nothing_to_learn"])


def _check_rationales(kept: Dataset, rows: int, name: str) -> None:
    with_positive = sum(len(ids) > 0 for ids in kept["positive_ids"])
    if with_positive == 0:
        raise DataError(
            f"{name}: 0 of {rows} questions have a positive rationale, so there is no reasoning to learn from. Check "
            "the column 'positive_rationales', the task kind and the label source of the selection, or train with "
            '`preset="label_only"`.'
        )
    logger.info("%s: %d of %d questions have a positive rationale.", name, with_positive, rows)
