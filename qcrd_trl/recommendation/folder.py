"""The folder that `qcrd c2kd prepare` writes: sequences, items and candidates, and the rows that models train on and answer."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import ConfigError, DataError
from ..files import whole_folder
from ..version import __version__
from .candidates import SPLITS
from .sequences import MIN_LENGTH


if TYPE_CHECKING:
    from datasets import Dataset


DATA_FILE = "data.json"
SEQUENCES_FILE, ITEMS_FILE, CANDIDATES_FILE = "sequences.parquet", "items.parquet", "candidates.parquet"
MAX_HISTORY = 50
_FORMAT, _KIND = 1, "c2kd_data"


@dataclass(frozen=True)
class RecommendationData:
    """
    Leave-one-out data: of every user the last event is the test target, the one before it the validation target, and the
    rest is for training.

    Made by [`make_data`], which checks it, or read by [`load_data`].

    Args:
        user_ids (`list[str]`):
            The users' ids.
        sequences (`list[numpy.ndarray]`):
            Items of each user, all of them, in order, as indices (int32).
        item_ids (`list[str]`):
            Id of each item.
        titles (`list[str or None]`):
            Title of each item; `None` where there is none.
        candidates (`dict[str, numpy.ndarray]`):
            Of `"validation"` and `"test"` the candidates of each user, int32, of shape `(users, num_candidates)`, the target
            among them.
        settings (`dict`):
            How it was made; `max_history` is the default of [`train_rows`] and [`eval_rows`].
        fingerprint (`str`):
            SHA-256 of all of it but the settings.
        timestamps (`list[numpy.ndarray]`, *optional*):
            Times of the events.
        counts (`dict`, *optional*):
            What was read, left out and kept.
    """

    user_ids: list[str]
    sequences: list[np.ndarray]
    item_ids: list[str]
    titles: list[str | None]
    candidates: dict[str, np.ndarray]
    settings: dict[str, Any]
    fingerprint: str
    timestamps: list[np.ndarray] | None = None
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def num_users(self) -> int:
        """How many users there are."""
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        """How many items there are, whether anybody met them or not."""
        return len(self.item_ids)

    def history(self, user: int, split: str) -> np.ndarray:
        """
        What a user met before the target, all of it.

        Args:
            user (`int`): place of the user.
            split (`str`): `"validation"`, `"test"`, or `"train"` for the events that models train on (the same as of
                `"validation"`).
        """
        _check_split(split, "train")
        return self.sequences[user][: -1 if split == "test" else -2]

    def target(self, user: int, split: str) -> int:
        """
        The item that is to be predicted of a user.

        Args:
            user (`int`): place of the user.
            split (`str`): `"validation"` or `"test"`; training has no single target.
        """
        _check_split(split)
        return int(self.sequences[user][-1 if split == "test" else -2])


def make_data(
    user_ids: Sequence[str],
    sequences: Sequence[Sequence[int] | np.ndarray],
    item_ids: Sequence[str],
    titles: Sequence[str | None],
    candidates: dict[str, np.ndarray],
    settings: dict[str, Any] | None = None,
    timestamps: Sequence[np.ndarray] | None = None,
    counts: dict[str, Any] | None = None,
) -> RecommendationData:
    """
    Puts data together, checks it and takes its fingerprint. Args as in [`RecommendationData`].

    Raises:
        DataError: the parts do not fit each other.
    """
    arrays = [np.asarray(one, np.int32) for one in sequences]
    drawn = {split: np.asarray(candidates[split], np.int32) for split in SPLITS if split in candidates}
    times = None
    if timestamps is not None:
        kind = np.result_type(np.int64, *{np.asarray(one).dtype for one in timestamps})
        times = [np.asarray(one, kind) for one in timestamps]
    wrong = _inconsistency(user_ids, arrays, item_ids, titles, drawn, times)
    if wrong:
        raise DataError(f"Recommendation data does not fit together: {wrong}.")
    fingerprint = _fingerprint(user_ids, arrays, item_ids, titles, drawn, times)
    return RecommendationData(
        *(list(user_ids), arrays, list(item_ids), list(titles), drawn, dict(settings or {}), fingerprint),
        timestamps=times,
        counts=dict(counts or {}),
    )


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


def train_rows(data: RecommendationData, max_history: int | None = None) -> "Dataset":
    """
    Rows to train on: of each user the last `max_history + 1` training events. Every item but the first is a target of what
    stands before it. A user with a single training event has no target, and no row.

    Args:
        data (`RecommendationData`): the data.
        max_history (`int`, *optional*): largest number of events that anything is predicted from. That of the data's settings
            if left out, else 50.

    Returns:
        [`~datasets.Dataset`]: with the columns `user_id` (string) and `items` (list of int32).
    """
    number = _max_history(data, max_history)
    histories = [data.history(user, "train") for user in range(data.num_users)]
    return _dataset(
        [(key, items[-number - 1 :]) for key, items in zip(data.user_ids, histories, strict=True) if len(items) > 1]
    )


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
    _check_split(split)
    number, end = _max_history(data, max_history), None if split == "test" else -1
    return _dataset(
        [(key, items[:end][-number - 1 :]) for key, items in zip(data.user_ids, data.sequences, strict=True)]
    )


def _check_split(split: str, *more: str) -> None:
    if split not in (*more, *SPLITS):
        raise ConfigError(f"split must be one of {', '.join((*more, *SPLITS))}, got {split!r}.")


def _max_history(data: RecommendationData, given: int | None) -> int:
    number = data.settings.get("max_history") or MAX_HISTORY if given is None else given
    if number < 1:
        raise ConfigError(f"max_history must be at least 1, got {number}.")
    return number


def _dataset(rows: list[tuple[str, np.ndarray]]) -> "Dataset":
    from datasets import Dataset, Features, List, Value

    if not rows:
        raise DataError("No user has two training events: there is nothing to train on. Raise min_length.")
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


def _inconsistency(user_ids, sequences, item_ids, titles, candidates, timestamps) -> str | None:
    """What is wrong, if anything is: a wrong index would be read as another item without a word."""
    number = len(item_ids)
    if len(sequences) != len(user_ids) or not user_ids:
        return f"{len(user_ids)} users and {len(sequences)} sequences"
    if len(set(user_ids)) < len(user_ids) or len(set(item_ids)) < number:
        return "a user or an item stands twice"
    if len(titles) != number:
        return f"{number} items and {len(titles)} titles"
    shortest = min(map(len, sequences))
    if shortest < MIN_LENGTH:
        return f"a sequence of {shortest} items, and leave-one-out needs {MIN_LENGTH}"
    if min(one.min() for one in sequences) < 0 or max(one.max() for one in sequences) >= number:
        return f"an item index that is not in 0 to {number - 1}"
    if timestamps is not None and list(map(len, timestamps)) != list(map(len, sequences)):
        return "other numbers of times than of items"
    if set(candidates) != set(SPLITS):
        return f"candidates of {', '.join(candidates) or 'no split'}, not of {' and '.join(SPLITS)}"
    for split, end in zip(SPLITS, (-2, -1), strict=True):
        drawn = candidates[split]
        if drawn.ndim != 2 or len(drawn) != len(user_ids) or drawn.min() < 0 or drawn.max() >= number:
            return f"{split} candidates of shape {drawn.shape} for {len(user_ids)} users and {number} items"
        targets = np.array([one[end] for one in sequences])
        if not ((drawn == targets[:, None]).sum(1) == 1).all():
            return f"{split} candidates without the target, or with it twice"
    return None


def _fingerprint(user_ids, sequences, item_ids, titles, candidates, timestamps) -> str:
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for texts in (user_ids, item_ids, titles):
        add(json.dumps(list(texts)).encode())
    for arrays in (sequences, timestamps, *(candidates[split] for split in SPLITS)):
        add(b"none" if arrays is None else json.dumps([len(one) for one in arrays]).encode())
        for one in arrays if arrays is not None else ():
            digest.update(str(one.dtype).encode())
            digest.update(np.ascontiguousarray(one).astype(one.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()
