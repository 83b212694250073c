"""The folder that `qcrd c2kd prepare` writes: sequences, items and candidates, and the rows that models train on and answer."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import ConfigError, DataError
from ..files import whole_folder
from ..version import __version__
from .candidates import SPLITS
from .leave_one_out import MAX_HISTORY, TRAIN_WINDOWS, RecommendationData, check_split, make_data


if TYPE_CHECKING:
    from datasets import Dataset


DATA_FILE = "data.json"
SEQUENCES_FILE, ITEMS_FILE, CANDIDATES_FILE = "sequences.parquet", "items.parquet", "candidates.parquet"
_FORMAT, _KIND = 1, "c2kd_data"


def save_data(data: RecommendationData, folder: str | Path) -> None:
    """
    Writes data into a folder, which is whole or not there. Data that lies there already is replaced.

    Args:
        data (`RecommendationData`): the data.
        folder (`str` or `Path`): the folder.

    Raises:
        ConfigError: the folder holds something else.
    """
    folder = check_output_folder(folder)
    sequences = {"user_id": pa.array(data.user_ids, pa.string()), "items": _lists(data.sequences, np.int32)}
    if data.timestamps is not None:
        sequences["timestamps"] = _lists(data.timestamps, data.timestamps[0].dtype)
    items = {
        "item": pa.array(range(data.num_items), pa.int32()),
        "item_id": pa.array(data.item_ids, pa.string()),
        "title": pa.array(data.titles, pa.string()),
    }
    candidates = {"user_id": sequences["user_id"], **{s: _lists(list(data.candidates[s]), np.int32) for s in SPLITS}}
    with whole_folder(folder) as aside:
        tables = {SEQUENCES_FILE: sequences, ITEMS_FILE: items, CANDIDATES_FILE: candidates}
        for name, columns in tables.items():
            pq.write_table(pa.table(columns), aside / name)
        about = {
            "format": _FORMAT,
            "kind": _KIND,
            "fingerprint": data.fingerprint,
            "settings": data.settings,
            "counts": data.counts,
            "versions": {"qcrd_trl": __version__, **{name: version(name) for name in ("numpy", "pyarrow")}},
        }
        text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False)
        (aside / DATA_FILE).write_text(text + "\n", encoding="utf-8")


def load_data(folder: str | Path) -> RecommendationData:
    """
    Reads what [`save_data`] wrote.

    Args:
        folder (`str` or `Path`): the folder.

    Returns:
        [`RecommendationData`]: the data.

    Raises:
        DataError: there is none, or it is damaged.

    Example:

    ```python
    >>> data = load_data("ml-100k-data")
    >>> data.num_users, data.num_items, data.target(0, "test")
    (943, 1682, 101)
    ```
    """
    folder = Path(folder).expanduser()
    if not is_data_folder(folder):
        raise DataError(
            f"{folder} holds no recommendation data (no {DATA_FILE} of this kind): write some with `qcrd c2kd prepare "
            f"--interactions FILE --items FILE --output_dir {folder}`."
        )
    try:
        about = json.loads((folder / DATA_FILE).read_text(encoding="utf-8"))
        if about["format"] != _FORMAT:
            raise ValueError(f"its format is {about['format']!r}, and this version reads {_FORMAT}")
        tables = [pq.read_table(folder / name) for name in (SEQUENCES_FILE, ITEMS_FILE, CANDIDATES_FILE)]
        sequences, items, candidates = tables
        if candidates["user_id"] != sequences["user_id"]:
            raise ValueError("its candidates are those of other users")
        data = make_data(
            sequences["user_id"].to_pylist(),
            _arrays(sequences["items"]),
            items["item_id"].to_pylist(),
            items["title"].to_pylist(),
            {split: np.array(_arrays(candidates[split])) for split in SPLITS},
            about["settings"],
            _arrays(sequences["timestamps"]) if "timestamps" in sequences.column_names else None,
            about["counts"],
        )
        if data.fingerprint != about["fingerprint"]:
            raise ValueError("its content is not what was written")
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(
            f"The recommendation data in {folder} cannot be used ({' '.join(str(error).split())}): prepare it again."
        ) from error
    return data


def is_data_folder(folder: str | Path) -> bool:
    """Whether a folder holds what [`save_data`] writes, of whatever version."""
    try:
        about = json.loads((Path(folder) / DATA_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("kind") == _KIND


def check_output_folder(folder: str | Path) -> Path:
    """The folder to write, unless it holds something that nobody asked to replace."""
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not is_data_folder(folder):
        raise ConfigError(f"{folder} holds something else than recommendation data: name another folder.")
    return folder


def train_rows(data: RecommendationData, max_history: int | None = None, windows: str = "last") -> "Dataset":
    """
    Rows to train on, each of at most `max_history + 1` training events of a user. Every item but the first is a target of
    what stands before it in the row. A user with a single training event has no target, and no row.

    Args:
        data (`RecommendationData`): the data.
        max_history (`int`, *optional*): largest number of events that anything is predicted from. That of the data's settings
            if left out, else 50.
        windows (`str`, *optional*, defaults to `"last"`): `"last"`: one row a user, of the latest events (as SASRec trains).
            `"all"`: as many as it takes to hold all events, counted from the latest; a row begins with the event that the one
            before it ends with, so that each event but a user's first is a target once.

    Returns:
        [`~datasets.Dataset`]: with the columns `user_id` (string) and `items` (list of int32). The rows of a user stand together,
        the latest first.
    """
    number = _max_history(data, max_history)
    if windows not in TRAIN_WINDOWS:
        raise ConfigError(f"Unknown windows {windows!r}: expected one of {', '.join(TRAIN_WINDOWS)}.")
    rows = []
    for user, key in enumerate(data.user_ids):
        items = data.history(user, "train")
        ends = range(len(items), 1, -number)
        rows += [(key, items[max(0, end - number - 1) : end]) for end in (ends if windows == "all" else ends[:1])]
    return _dataset(rows)


def eval_rows(data: RecommendationData, split: str, max_history: int | None = None) -> "Dataset":
    """
    Rows to predict: of each user, in the users' order, the last `max_history` events before the target, and the target as
    the last item.

    Args:
        data (`RecommendationData`): the data.
        split (`str`): `"validation"` or `"test"`.
        max_history (`int`, *optional*): as in [`train_rows`].

    Returns:
        [`~datasets.Dataset`]: with the columns `user_id` (string) and `items` (list of int32).
    """
    check_split(split)
    number, end = _max_history(data, max_history), None if split == "test" else -1
    return _dataset(
        [(key, items[:end][-number - 1 :]) for key, items in zip(data.user_ids, data.sequences, strict=True)]
    )


def _max_history(data: RecommendationData, given: int | None) -> int:
    number = data.settings.get("max_history") or MAX_HISTORY if given is None else given
    if number < 1:
        raise ConfigError(f"max_history must be at least 1, got {number}.")
    return number


def _dataset(rows: list[tuple[str, np.ndarray]]) -> "Dataset":
    from datasets import Dataset, Features, List, Value

    if not rows:
        raise DataError(
            "No user has two training events: there is nothing to train on. Give longer sequences: a user needs four events."
        )
    features = Features({"user_id": Value("string"), "items": List(Value("int32"))})
    return Dataset.from_dict({"user_id": [r[0] for r in rows], "items": [r[1] for r in rows]}, features)


def _lists(arrays: Sequence[np.ndarray], kind) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in arrays])]).astype(np.int32)
    values = np.concatenate(arrays) if len(arrays) else np.zeros(0)
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(kind)))


def _arrays(column: pa.ChunkedArray) -> list[np.ndarray]:
    lists = column.combine_chunks()
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise ValueError("it holds nulls")
    offsets = lists.offsets.to_numpy()
    return np.split(values.to_numpy(), offsets[1:-1] - offsets[0])
