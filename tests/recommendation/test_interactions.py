"""Interactions and items of every source, and every way in which one can be wrong."""

import json
from datetime import datetime

import datasets
import numpy as np
import pytest

from qcrd_trl.errors import DataError
from qcrd_trl.recommendation.columns import source_name
from qcrd_trl.recommendation.interactions import read_interactions, read_items


EVENTS = [("u1", "10", 5, 3.5), ("u2", "9", 7, 1.0), ("u1", "10", 6, 4.0)]  # user, item, timestamp, rating
COLUMNS = ("user_id", "item_id", "timestamp", "rating")
TITLES = [("9", "Emma"), ("10", '"A" B, c')]


def rows_of(found):
    """The events with their ids put back."""
    users, items = (
        [ids[i] for i in codes] for ids, codes in ((found.user_ids, found.users), (found.item_ids, found.items))
    )
    return list(zip(users, items, found.timestamps.tolist(), found.ratings.tolist(), strict=True))


def write_source(folder, kind):
    rows = [dict(zip(COLUMNS, event, strict=True)) for event in EVENTS]
    path = folder / f"events.{kind}"
    if kind == "inter":
        head = "user_id:token\titem_id:token\ttimestamp:float\trating:float"
        path.write_text("\n".join([head, *("\t".join(map(str, event)) for event in EVENTS)]) + "\n")
    elif kind == "atomic_folder":
        path.mkdir()
        (path / "x.item").write_text("item_id:token\n1\n")
        write_source(path, "inter")
    elif kind in ("csv", "tsv"):
        comma = "," if kind == "csv" else "\t"
        path.write_text("\n".join([comma.join(COLUMNS), *(comma.join(map(str, event)) for event in EVENTS)]))
    elif kind == "jsonl":
        rows[1]["item_id"] = 9  # a number and a text for the same kind of id
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif kind == "folder":
        path.mkdir()
        datasets.Dataset.from_list(rows).to_parquet(path / "train-00000-of-00001.parquet")
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("kind", ["inter", "atomic_folder", "csv", "tsv", "jsonl", "parquet", "folder", "saved"])
def test_every_source_gives_the_same_events(tmp_path, kind):
    """A format whose ids or times came out otherwise would train on other sequences, with nothing to see."""
    found = read_interactions(write_source(tmp_path, kind))
    assert rows_of(found) == EVENTS
    assert found.timestamps.dtype == np.int64
    assert found.users.dtype == np.int32
    assert found.name == f"events.{kind}"  # not where it lies on this machine


def test_hub_dataset(monkeypatch):
    """Offline there is no Hub; the columns that are not needed must not be read either way."""
    data = datasets.Dataset.from_list([dict(zip(COLUMNS, event, strict=True)) | {"x": None} for event in EVENTS])
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or data)
    found = read_interactions("some/events", split="test", config_name="plain")
    assert rows_of(found) == EVENTS
    assert found.name == source_name("some/events") == "some/events"
    assert asked == [(("some/events", "plain"), {"split": "test", "streaming": False})]


@pytest.mark.parametrize(
    "head", ["userId,movieId,time,Rating", "user,item,timestamp:float,overall", "UID,iid,Timestamp,stars"]
)
def test_columns_are_found_by_their_names(tmp_path, head):
    """Each of these is what some public dataset calls them."""
    (tmp_path / "x.csv").write_text(f"{head}\n1,2,3,4\n")
    assert rows_of(read_interactions(tmp_path / "x.csv")) == [("1", "2", 3, 4.0)]


def test_columns_that_are_named(tmp_path):
    """A flag that lost against a column's usual name would read the wrong ids."""
    (tmp_path / "x.csv").write_text("user,who:token,item,what,timestamp,when\n1,2,3,4,5,6\n")
    found = read_interactions(tmp_path / "x.csv", user_column="who", item_column="what", timestamp_column="when")
    assert (found.user_ids, found.item_ids, found.timestamps.tolist(), found.ratings) == (["2"], ["4"], [6], None)
    with pytest.raises(DataError, match=r"no column 'whoo' \(--user_column\). Its columns: 'user', 'who:token'"):
        read_interactions(tmp_path / "x.csv", user_column="whoo")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("who,what,timestamp", r"no column for user, item. Its columns: 'who', .* with --user_column, --item_column"),
        ("user,item,when", "no column for timestamp"),
        ("user,user_id,item", r"'user' and 'user_id' could each be the user. Choose with --user_column"),
    ],
)
def test_missing_and_ambiguous_columns(tmp_path, head, message):
    """The first column that fits, taken in silence, may be another one's."""
    (tmp_path / "x.csv").write_text(f"{head}\n1,2,3\n")
    with pytest.raises(DataError, match=message):
        read_interactions(tmp_path / "x.csv")


def test_bad_rows_are_counted_and_named(tmp_path):
    """A row left out in silence, or a time read as 0, moves the last event of its user: another target."""
    lines = ["a,1,10", ",2,11", "b, ,12", "b,3,", "b,4,soon", "b,5,nan", "c,6,inf", "c,7,13.5"]
    (tmp_path / "x.csv").write_text("user,item,timestamp\n" + "\n".join(lines))
    with pytest.raises(DataError) as error:
        read_interactions(tmp_path / "x.csv")
    assert (
        "of 8 rows, 1 without a user (row 1); 1 without an item (row 2); 4 whose timestamp is neither a finite number nor, as "
        "all others, a date (rows 3: None, 4: 'soon', 5: 'nan', 6: 'inf') (rows count from 0). Mend"
    ) in str(error.value)


def test_more_bad_rows_than_are_shown(tmp_path):
    """A million bad rows must not be one message of a million numbers."""
    (tmp_path / "x.csv").write_text("user,item,timestamp\n" + "a,,1\n" * 9)
    with pytest.raises(DataError, match=r"9 without an item \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        read_interactions(tmp_path / "x.csv")


def test_json_cells_that_are_no_ids(tmp_path):
    """`true`, a list or 1.5 made into text would be an item of its own."""
    ids = [True, ["1"], 1.5, float("nan"), None, "\ud83d", 2.0, "3"]
    lines = [json.dumps({"user": "u", "item": one, "timestamp": 1}) for one in ids]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"of 8 rows, 6 without an item \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        read_interactions(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text("\n".join(lines[-2:]))
    assert read_interactions(tmp_path / "x.jsonl").item_ids == ["2", "3"]


def test_ids_of_parquet(tmp_path):
    """Whole numbers become floats where a cell is empty; "196.0" would be no item of the item file."""
    table = {"user": [1.0, 2.0], "item": [3, 4], "timestamp": [1, 2]}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "x.parquet")
    found = read_interactions(tmp_path / "x.parquet")
    assert (found.user_ids, found.item_ids) == (["1", "2"], ["3", "4"])
    datasets.Dataset.from_dict({**table, "user": [1.0, None]}).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(DataError, match=r"1 without a user \(row 1\)"):
        read_interactions(tmp_path / "y.parquet")
    datasets.Dataset.from_dict({**table, "item": [[1], [2]]}).to_parquet(tmp_path / "z.parquet")
    with pytest.raises(DataError, match="its item ids are no texts and no whole numbers but list"):
        read_interactions(tmp_path / "z.parquet")


def test_white_space_is_no_part_of_an_id(tmp_path):
    """`a, b` after a comma would be another item than `b`, and one such id makes all of them sort as text."""
    (tmp_path / "x.csv").write_text("user,item,timestamp\n1, 2,3\n 1,2 ,4\n")
    found = read_interactions(tmp_path / "x.csv")
    assert (found.user_ids, found.item_ids, found.items.tolist()) == (["1"], ["2"], [0, 0])


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["1700000000000000001", "1700000000000000002"], [1700000000000000001, 1700000000000000002]),
        (["8.5", "8.25e1"], [8.5, 82.5]),
        (["1e9", "7"], [1e9, 7.0]),
        # 1970-01-02 and 1970-01-01T00:00:01: microseconds of a day and of a second
        (["1970-01-02", "1970-01-01 00:00:01"], [86_400_000_000, 1_000_000]),
        (["1970-01-02T00:00:00Z", "1970-01-02T00:00:00+01:00"], [86_400_000_000, 82_800_000_000]),
    ],
)
def test_times(tmp_path, times, expected):
    """As floats, nanoseconds apart would be ties; dates sorted as text need not be in order."""
    (tmp_path / "x.csv").write_text("user,item,timestamp\n" + "".join(f"1,2,{one}\n" for one in times))
    found = read_interactions(tmp_path / "x.csv").timestamps
    assert found.tolist() == expected
    assert found.dtype == (np.int64 if isinstance(expected[0], int) else np.float64)


def test_one_bad_date_among_dates(tmp_path):
    """The message must name the one that is wrong, not those that are right."""
    (tmp_path / "x.csv").write_text("user,item,timestamp\n1,2,2020-01-02\n1,2,2020-01-03\n1,3,2020-13-01\n1,4,5\n")
    with pytest.raises(DataError, match=r"2 whose timestamp .* \(rows 2: '2020-13-01', 3: '5'\)"):
        read_interactions(tmp_path / "x.csv")


def test_times_of_parquet(tmp_path):
    """Types that a table has for times."""
    table = {"user": ["a", "a"], "item": ["b", "c"]}
    kinds = {
        "times": ([datetime(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 1)], [86_400_000_000, 1_000_000]),
        "floats": ([1.5, 2.0], [1.5, 2.0]),
        "texts": (["3", "4"], [3, 4]),
    }
    for name, (cells, expected) in kinds.items():
        datasets.Dataset.from_dict({**table, "timestamp": cells}).to_parquet(tmp_path / f"{name}.parquet")
        assert read_interactions(tmp_path / f"{name}.parquet").timestamps.tolist() == expected, name
    for name, cells in {"none": [1, None], "nan": [1.0, float("nan")], "bool": [True, False]}.items():
        datasets.Dataset.from_dict({**table, "timestamp": cells}).to_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match="whose timestamp is neither a finite number"):
            read_interactions(tmp_path / f"{name}.parquet")


def test_more_rows_than_are_held_at_a_time(tmp_path, monkeypatch):
    """A chunk lost or read twice would be thousands of events."""
    monkeypatch.setattr("qcrd_trl.recommendation.columns._CHUNK", 3)
    for number in (3, 7, 9):
        (tmp_path / "x.csv").write_text(
            "user,item,timestamp\n" + "".join(f"u{i % 4},{i},{100 - i}\n" for i in range(number))
        )
        found = read_interactions(tmp_path / "x.csv")
        assert [found.item_ids[i] for i in found.items] == [str(i) for i in range(number)]
        assert [found.user_ids[i] for i in found.users] == [f"u{i % 4}" for i in range(number)]
        assert found.timestamps.tolist() == [100 - i for i in range(number)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.inter", "", "has no rows"),
        ("x.inter", "user:token\titem:token\ttimestamp:float\n", "has no rows"),
        ("x.inter", "user:token\titem:token\ttimestamp:float\n1\t2\n", "line 2: 2 cells, but the header names 3"),
        ("x.csv", "user,item,timestamp\n", "has no rows"),
        ("x.jsonl", '{"user": 1', "line 1: not valid JSON"),
        ("x.parquet", "no parquet", "cannot be read as Parquet"),
        ("x.dat", "1::2::3", "is no data file"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    """Named with the line, as everywhere."""
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_interactions(tmp_path / name)


def test_folders_and_splits(tmp_path):
    """Two files, and which of them was read is anybody's guess."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.inter").write_text("user:token\titem:token\ttimestamp:float\n1\t2\t3\n")
    with pytest.raises(DataError, match=r"holds several \.inter files: a\.inter, b\.inter"):
        read_interactions(tmp_path)
    with pytest.raises(DataError, match="has no split"):
        read_interactions(tmp_path / "a.inter", split="train")
    with pytest.raises(DataError, match="does not exist"):
        read_interactions(tmp_path / "c.inter")


def test_items_of_every_source(tmp_path):
    """In RecBole's files a quotation mark is a character; read as CSV it would swallow the next title."""
    lines = ["item_id:token\tmovie_title:token_seq\tclass:token_seq", *(f"{i}\t{title}\tDrama" for i, title in TITLES)]
    (tmp_path / "x.item").write_text("\n".join(lines) + "\n")
    (tmp_path / "x.csv").write_text('item,title\n9,Emma\n10,"""A"" B, c"\n')
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"item": int(i), "title": t}) for i, t in TITLES))
    datasets.Dataset.from_dict({"movieId": [9, 10], "name": [t for _, t in TITLES]}).to_parquet(tmp_path / "x.parquet")
    for name in ("x.item", "x.csv", "x.jsonl", "x.parquet"):
        found = read_items(tmp_path / name)
        assert list(zip(found.item_ids, found.titles, strict=True)) == TITLES, name


def test_titles(tmp_path):
    """An empty title is none: as text it would be a candidate that nobody can name."""
    (tmp_path / "x.csv").write_text("item,title\n1,\n2,  \n3, Emma \n3,Emma\n")
    found = read_items(tmp_path / "x.csv")
    assert (found.item_ids, found.titles) == (["1", "2", "3"], [None, None, "Emma"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("item,title\n1,a\n1,b\n2,c\n", r"1 of 2 items have two different titles \(1\)"),
        ("item,title\n,a\n1,b\n", r"of 2 rows, 1 without an item \(row 0\)"),
        ("item,label\n1,a\n", "no column for title"),
        ("title\na\n", "no column for item"),
    ],
)
def test_bad_items(tmp_path, content, message):
    """With two titles an item would be called by whichever stands last."""
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        read_items(tmp_path / "x.csv")


def test_titles_that_are_numbers(tmp_path):
    """A column of years taken for titles."""
    datasets.Dataset.from_dict({"item": [1], "title": [1999]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="its titles are no texts but int64"):
        read_items(tmp_path / "x.parquet")
