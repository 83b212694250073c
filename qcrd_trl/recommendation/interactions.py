"""Interactions (user, item, time, rating) and item titles, read and checked: what cannot be used is counted and named."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DataError
from .columns import Role, read_columns, source_name


USER_NAMES = ("userid", "user", "uid")
ITEM_NAMES = ("itemid", "item", "iid", "movieid", "asin", "parentasin")
TIMESTAMP_NAMES = ("timestamp", "time", "unixtime", "datetime")
RATING_NAMES = ("rating", "overall", "stars")
TITLE_NAMES = ("title", "movietitle", "itemtitle", "name")


@dataclass(frozen=True)
class Interactions:
    """
    Events, in the order of their source.

    Args:
        users (`numpy.ndarray` of shape `(num_events,)`, int32):
            Who, as places in `user_ids`.
        items (`numpy.ndarray` of shape `(num_events,)`, int32):
            Which item, as places in `item_ids`.
        timestamps (`numpy.ndarray`, int64 or float64):
            When, in the source's unit; dates and times in microseconds since 1970.
        ratings (`numpy.ndarray`, float64, *optional*):
            How it was rated, not a number where it was not.
        user_ids (`list[str]`):
            The users, each once, in any order.
        item_ids (`list[str]`):
            The items, each once, in any order.
        name (`str`):
            What the source is called.
    """

    users: np.ndarray
    items: np.ndarray
    timestamps: np.ndarray
    ratings: np.ndarray | None
    user_ids: list[str]
    item_ids: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.timestamps)


@dataclass(frozen=True)
class Items:
    """
    Items that can be recommended.

    Args:
        item_ids (`list[str]`): their ids, each once.
        titles (`list[str or None]`): their titles; `None` where there is none.
        name (`str`): what the source is called.
    """

    item_ids: list[str]
    titles: list[str | None]
    name: str


def read_interactions(
    source: str | Path,
    user_column: str | None = None,
    item_column: str | None = None,
    timestamp_column: str | None = None,
    rating_column: str | None = None,
    split: str | None = None,
    config_name: str | None = None,
) -> Interactions:
    """
    Reads interactions. White space around an id does not belong to it.

    Args:
        source (`str` or `Path`):
            As in [`~recommendation.columns.read_columns`].
        user_column (`str`, *optional*):
            Column of the user. Found by its name if left out (`user_id`, `user`, ...), and so are the others.
        item_column (`str`, *optional*):
            Column of the item (`item_id`, `item`, `movie_id`, ...).
        timestamp_column (`str`, *optional*):
            Column of the time (`timestamp`, `time`, ...): numbers, or dates and times as ISO 8601 writes them.
        rating_column (`str`, *optional*):
            Column of the rating (`rating`, ...), if there is one.
        split (`str`, *optional*):
            Split of the source.
        config_name (`str`, *optional*):
            Configuration of a Hub dataset.

    Raises:
        DataError: a column is missing, or rows have no user, no item, or no time that can be ordered; with counts.
    """
    roles = [
        Role("user", USER_NAMES, user_column),
        Role("item", ITEM_NAMES, item_column),
        Role("timestamp", TIMESTAMP_NAMES, timestamp_column, is_number=True),
        Role("rating", RATING_NAMES, rating_column, is_required=False, is_number=True),
    ]
    columns = read_columns(source, "interactions", roles, split, config_name)
    users, items = _ids(columns["user"], "user", str(source)), _ids(columns["item"], "item", str(source))
    timestamps, is_time = _numbers(columns["timestamp"], with_dates=True)
    problems = [
        _problem("without a user", pc.is_null(users)),
        _problem("without an item", pc.is_null(items)),
        _problem(
            "whose timestamp is neither a finite number nor, as all others, a date", ~is_time, columns["timestamp"]
        ),
    ]
    if any(problems):
        raise DataError(
            f"{source}: of {len(users)} rows, {'; '.join(filter(None, problems))} (rows count from 0). Mend these rows or "
            "take them out."
        )
    ratings = _numbers(columns["rating"])[0].astype(np.float64) if "rating" in columns else None
    (users, user_ids), (items, item_ids) = map(_codes, (users, items))
    return Interactions(users, items, timestamps, ratings, user_ids, item_ids, source_name(source))


def read_items(
    source: str | Path,
    item_column: str | None = None,
    title_column: str | None = None,
    split: str | None = None,
    config_name: str | None = None,
) -> Items:
    """
    Reads items and their titles.

    Args:
        source (`str` or `Path`): as in [`~recommendation.columns.read_columns`].
        item_column (`str`, *optional*): column of the id, found by its name if left out.
        title_column (`str`, *optional*): column of the title (`title`, `movie_title`, ...).
        split (`str`, *optional*): split of the source.
        config_name (`str`, *optional*): configuration of a Hub dataset.

    Raises:
        DataError: a column is missing, rows have no id, or an id has two titles; with counts.
    """
    roles = [Role("item", ITEM_NAMES, item_column), Role("title", TITLE_NAMES, title_column)]
    columns = read_columns(source, "items", roles, split, config_name)
    ids = _ids(columns["item"], "item", str(source))
    if problem := _problem("without an item", pc.is_null(ids)):
        raise DataError(f"{source}: of {len(ids)} rows, {problem} (rows count from 0). Mend these rows.")
    texts = columns["title"]
    if not _is_text(texts.type):
        raise DataError(f"{source}: its titles are no texts but {texts.type}. Choose with --title_column.")
    titles: dict[str, str | None] = {}
    clashes: dict[str, None] = {}
    for key, title in zip(ids.to_pylist(), _stripped(texts).to_pylist(), strict=True):
        if titles.setdefault(key, title) != title:
            clashes[key] = None
    if clashes:
        raise DataError(
            f"{source}: {len(clashes)} of {len(titles)} items have two different titles ({_first(list(clashes))}). Leave one "
            "row an item."
        )
    return Items(list(titles), list(titles.values()), source_name(source))


def _ids(column: pa.ChunkedArray, role: str, source: str) -> pa.ChunkedArray:
    """Ids as texts without white space around them; null where there is none."""
    kind = column.type
    if pa.types.is_floating(kind):  # what whole numbers become in a table that has empty cells
        values = column.to_numpy()
        whole = np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2**53)
        column = pa.chunked_array([pa.array(np.where(whole, values, 0).astype(np.int64), mask=~whole)])
    elif not (_is_text(kind) or pa.types.is_integer(kind)):
        raise DataError(f"{source}: its {role} ids are no texts and no whole numbers but {kind}.")
    return _stripped(column)


def _codes(ids: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    encoded = pc.dictionary_encode(ids).unify_dictionaries()
    codes = [np.asarray(chunk.indices) for chunk in encoded.chunks]
    return np.concatenate(codes).astype(np.int32), encoded.chunk(0).dictionary.to_pylist()


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _stripped(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _numbers(column: pa.ChunkedArray, with_dates: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """
    A column as numbers, and which of its rows are finite numbers. Whole numbers stay whole: as floats, times of different
    nanoseconds would become equal.
    """
    kind = column.type
    if _is_text(kind):
        return _numbers_of_text(_stripped(column), with_dates)
    if with_dates and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return _checked(
            pc.cast(pc.cast(column, pa.timestamp("us", getattr(kind, "tz", None)), safe=False), pa.int64())
        )
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_uint64(kind):
        return _checked(pc.cast(column, pa.float64(), safe=False))
    if pa.types.is_integer(kind):
        return _checked(pc.cast(column, pa.int64()))
    return np.zeros(len(column)), np.zeros(len(column), bool)


def _numbers_of_text(text: pa.ChunkedArray, with_dates: bool) -> tuple[np.ndarray, np.ndarray]:
    kinds = [pa.int64(), pa.float64(), *((pa.timestamp("us"), pa.timestamp("us", "UTC")) if with_dates else ())]
    for kind in kinds:
        try:
            values = pc.cast(text, kind)
        except pa.ArrowInvalid:
            continue
        return _checked(pc.cast(values, pa.int64()) if pa.types.is_timestamp(kind) else values)
    # Some rows are wrong: those that cannot be read as most can.
    texts = text.to_pylist()
    values = np.array([_number(one, float) for one in texts])
    dates = np.array([_number(one, datetime.fromisoformat) for one in texts if with_dates])
    is_number, is_date = np.isfinite(values), np.isfinite(dates)
    return values, is_date if is_date.sum() > is_number.sum() else is_number


def _checked(values: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    if pa.types.is_integer(values.type):
        return pc.fill_null(values, 0).to_numpy(), pc.is_valid(values).to_numpy()
    numbers = values.to_numpy()  # a null becomes not a number
    return numbers, np.isfinite(numbers)


def _number(text: str | None, read: Callable[[str], object]) -> float:
    try:
        value = read(text) if text is not None else math.nan
    except ValueError:
        return math.nan
    return value if isinstance(value, float) else 0.0


def _problem(what: str, is_bad: pa.ChunkedArray | np.ndarray, column: pa.ChunkedArray | None = None) -> str | None:
    """Counts the rows that are bad, and names the first ones, with what they hold."""
    rows = np.flatnonzero(np.asarray(is_bad)).tolist()
    if not rows:
        return None
    shown = rows if column is None else [f"{row}: {column[row].as_py()!r}" for row in rows[:6]]
    return f"{len(rows)} {what} ({'row' if len(rows) == 1 else 'rows'} {_first(shown)})"


def _first(values: Sequence) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
