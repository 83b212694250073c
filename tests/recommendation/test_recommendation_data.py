"""The folder of leave-one-out data, and the rows that come of it."""

import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.files import UNFINISHED
from qcrd_trl.recommendation import folder as writing
from qcrd_trl.recommendation.folder import eval_rows, is_data_folder, load_data, save_data, train_rows
from qcrd_trl.recommendation.leave_one_out import make_data


# Items 0 to 5; of "ann" 3 is the test target and 2 the validation target; "bob" has one event to train on.
PARTS = {
    "user_ids": ["ann", "bob"],
    "sequences": [[0, 4, 1, 2, 3], [5, 4, 0]],
    "item_ids": ["10", "11", "12", "13", "14", "x\u2028😀"],
    "titles": ["Emma", None, 'A "B"', "C", "D", "E"],
    "candidates": {"validation": [[2, 5], [1, 4]], "test": [[5, 3], [0, 2]]},
    "settings": {"max_history": 2},
    "timestamps": [[1, 2, 3, 4, 5], [1, 1, 2]],
    "counts": {"interactions": 8},
}


def data(**changed):
    return make_data(**{**PARTS, **changed})


def assert_equal(one, other):
    for name in ("user_ids", "item_ids", "titles", "settings", "fingerprint", "counts"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("sequences", "timestamps"):
        for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    for split in ("validation", "test"):
        np.testing.assert_array_equal(one.candidates[split], other.candidates[split])
        assert one.candidates[split].dtype == other.candidates[split].dtype == np.int32


def test_saved_and_loaded(tmp_path):
    """What is loaded must be what was prepared, to the last id."""
    save_data(data(), tmp_path / "data")
    loaded = load_data(tmp_path / "data")
    assert_equal(loaded, data())
    assert (loaded.num_users, loaded.num_items) == (2, 6)
    about = json.loads((tmp_path / "data" / "data.json").read_text())
    assert (about["format"], about["kind"]) == (1, "c2kd_data")
    assert set(about["versions"]) == {"qcrd_trl", "numpy", "pyarrow"}
    table = pq.read_table(tmp_path / "data" / "sequences.parquet")
    assert table.schema.field("items").type.value_type == pa.int32()
    assert table.schema.field("timestamps").type.value_type == pa.int64()


def test_other_forms_of_times(tmp_path):
    """Fractions of a second cut off would be ties; one user's whole seconds beside them must not change the fingerprint."""
    mixed = data(timestamps=[np.array([1.25, 2, 3, 4, 5]), np.array([1, 1, 2])])
    save_data(mixed, tmp_path / "mixed")
    assert_equal(load_data(tmp_path / "mixed"), mixed)
    assert mixed.timestamps[1].dtype == np.float64
    save_data(data(timestamps=None), tmp_path / "none")
    assert load_data(tmp_path / "none").timestamps is None


def test_fingerprint():
    """Runs on different data that claimed to be the same would be compared; a note in the settings makes no other data."""
    own = data().fingerprint
    assert len(own) == 64
    assert data(settings={"seed": 5}, counts={}).fingerprint == own
    changes = [
        {"user_ids": ["ann", "bo"]},
        {"sequences": [[4, 0, 1, 2, 3], [5, 4, 0]]},
        {"item_ids": ["9", *PARTS["item_ids"][1:]]},
        {"titles": ["Emma", "", *PARTS["titles"][2:]]},
        {"candidates": {**PARTS["candidates"], "test": [[3, 5], [0, 2]]}},
        {"timestamps": [[1, 2, 3, 4, 6], [1, 1, 2]]},
        {"timestamps": None},
    ]
    assert len({own, *(data(**change).fingerprint for change in changes)}) == 8


def test_history_and_target():
    """One place off, and a model is asked for what it is shown."""
    found = data()
    assert found.history(0, "test").tolist() == [0, 4, 1, 2]
    assert found.history(0, "validation").tolist() == found.history(0, "train").tolist() == [0, 4, 1]
    assert (found.target(0, "test"), found.target(0, "validation"), found.target(1, "test")) == (3, 2, 0)
    with pytest.raises(ConfigError, match="split must be one of validation, test, got 'train'"):
        found.target(0, "train")
    with pytest.raises(ConfigError, match="split must be one of train, validation, test, got 'dev'"):
        found.history(0, "dev")


def test_training_rows_hold_no_target():
    """A training row that reached to a target would train on the test."""
    assert train_rows(data(), 5).to_list() == [{"user_id": "ann", "items": [0, 4, 1]}]
    assert train_rows(data(), 1)["items"][:] == [[4, 1]]
    assert train_rows(data())["items"][:] == [[0, 4, 1]]  # max_history 2 of the settings: three items are two targets
    assert train_rows(data(settings={}))["items"][:] == [[0, 4, 1]]
    assert str(train_rows(data()).features["items"].feature.dtype) == "int32"
    with pytest.raises(DataError, match=r"No user has two training events.*needs four events"):
        train_rows(data(**only_bob()))


def test_windows_hold_every_training_event():
    """Events before the last window would never be trained on; one in two windows would be a target twice."""
    events = list(range(10))  # the last two are held out
    long = {"sequences": [events, [5, 4, 0]], "item_ids": [str(item) for item in events], "titles": [None] * 10}
    long |= {"candidates": {"validation": [[8], [4]], "test": [[9], [0]]}, "timestamps": None}
    found = train_rows(data(**long), 3, windows="all")
    assert found["items"][:] == [[4, 5, 6, 7], [1, 2, 3, 4], [0, 1]]
    assert found["user_id"][:] == ["ann"] * 3
    assert sorted(item for items in found["items"] for item in items[1:]) == events[1:8]
    assert train_rows(data(**long), 3)["items"][:] == [[4, 5, 6, 7]]
    assert train_rows(data(**long), 7, windows="all")["items"][:] == [events[:8]]  # no row of an event alone
    with pytest.raises(ConfigError, match="Unknown windows 'each': expected one of last, all"):
        train_rows(data(**long), 3, windows="each")


def only_bob():
    return {
        "user_ids": ["bob"],
        "sequences": [[5, 4, 0]],
        "timestamps": None,
        "candidates": {split: rows[1:] for split, rows in PARTS["candidates"].items()},
    }


def test_rows_to_predict():
    """Every user, in the users' order, the target last: what ranks and candidates are matched with by place."""
    assert eval_rows(data(), "test", 3).to_list() == [
        {"user_id": "ann", "items": [4, 1, 2, 3]},
        {"user_id": "bob", "items": [5, 4, 0]},
    ]
    assert eval_rows(data(), "validation")["items"][:] == [[4, 1, 2], [5, 4]]
    with pytest.raises(ConfigError, match="split must be"):
        eval_rows(data(), "train")
    with pytest.raises(ConfigError, match="max_history must be at least 1, got 0"):
        eval_rows(data(), "test", 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user_ids": ["ann"]}, "1 users and 2 sequences"),
        ({"user_ids": [], "sequences": []}, "0 users"),
        ({"user_ids": ["ann", "ann"]}, "stands twice"),
        ({"item_ids": ["1"] * 6}, "stands twice"),
        ({"titles": ["a"]}, "6 items and 1 titles"),
        ({"sequences": [[0, 4, 1, 2, 3], [4, 0]]}, "a sequence of 2 items"),
        ({"sequences": [[0, 4, 1, 2, 6], [5, 4, 0]]}, "not in 0 to 5"),
        ({"sequences": [[-1, 4, 1, 2, 3], [5, 4, 0]]}, "not in 0 to 5"),
        ({"timestamps": [[1, 2, 3, 4, 5], [1, 2]]}, "other numbers of times"),
        ({"candidates": {"test": [[5, 3], [0, 2]]}}, "candidates of test, not of"),
        ({"candidates": {**PARTS["candidates"], "test": [[5, 3]]}}, "test candidates of shape"),
        ({"candidates": {**PARTS["candidates"], "test": [[6, 3], [0, 2]]}}, "test candidates of shape"),
        ({"candidates": {**PARTS["candidates"], "test": [[5, 4], [0, 2]]}}, "test candidates without the target"),
        ({"candidates": {**PARTS["candidates"], "validation": [[2, 2], [1, 4]]}}, "or with it twice"),
    ],
)
def test_parts_that_do_not_fit(changed, message):
    """An index out of range reads another item, or crashes deep in a model."""
    with pytest.raises(DataError, match=message):
        data(**changed)


def test_folders_that_cannot_be_read(tmp_path):
    """Data changed by hand gives other numbers under the same fingerprint."""
    with pytest.raises(DataError, match=r"holds no recommendation data .* with `qcrd c2kd prepare"):
        load_data(tmp_path / "none")
    for name in (
        "sequences.parquet",
        "items.parquet",
        "candidates.parquet",
        "format",
        "content",
        "users",
        "nulls",
        "key",
    ):
        path = tmp_path / "data"
        save_data(data(), path)
        if name in ("format", "key"):
            about = json.loads((path / "data.json").read_text())
            about["format" if name == "format" else "fingerprint"] = 2
            if name == "key":
                del about["counts"]
            (path / "data.json").write_text(json.dumps(about))
            message = "its format is 2, and this version reads 1" if name == "format" else "counts"
        elif name == "content":
            table = pq.read_table(path / "items.parquet").to_pylist()
            table[0]["title"] = "Emma."
            pq.write_table(pa.Table.from_pylist(table), path / "items.parquet")
            message = "its content is not what was written"
        elif name in ("users", "nulls"):
            table = pq.read_table(path / "candidates.parquet").to_pylist()
            table[1] |= {"user_id": "bo"} if name == "users" else {"test": None}
            pq.write_table(pa.Table.from_pylist(table), path / "candidates.parquet")
            message = "candidates are those of other users" if name == "users" else "it holds nulls"
        else:
            (path / name).write_bytes(b"cut off")
            message = r"cannot be used .*prepare it again"
        with pytest.raises(DataError, match=message):
            load_data(path)


def test_only_data_is_replaced(tmp_path):
    """`--output_dir ~` must not end with a home that holds four files."""
    path = tmp_path / "data"
    save_data(data(), path)
    save_data(data(titles=["Z", *PARTS["titles"][1:]]), path)
    assert load_data(path).titles[0] == "Z"
    assert [file.name for file in tmp_path.iterdir()] == ["data"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("Dear")
    with pytest.raises(ConfigError, match="holds something else than recommendation data"):
        save_data(data(), tmp_path / "letters")
    with pytest.raises(ConfigError, match="is a file"):
        save_data(data(), tmp_path / "letters" / "a.txt")
    assert (tmp_path / "letters" / "a.txt").read_text() == "Dear"
    assert not is_data_folder(tmp_path / "letters")
    save_data(data(), tmp_path / "new" / "deep")  # and an empty one is filled
    shutil.rmtree(tmp_path / "new" / "deep")
    (tmp_path / "new" / "deep").mkdir()
    save_data(data(), tmp_path / "new" / "deep")
    assert is_data_folder(tmp_path / "new" / "deep")


def test_a_failed_write_leaves_the_old_data(tmp_path, monkeypatch):
    """A full disk in the middle must cost neither the data that was there nor leave half of the new."""
    path = tmp_path / "data"
    save_data(data(), path)
    written = []

    write = pq.write_table

    def write_table(table, file):
        written.append(file)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        write(table, file)

    monkeypatch.setattr(writing.pq, "write_table", write_table)
    with pytest.raises(OSError, match="No space left"):
        save_data(data(settings={"max_history": 9}), path)
    assert len(written) == 3
    assert load_data(path).settings == {"max_history": 2}
    assert not list(tmp_path.glob(f"{UNFINISHED}*"))


def test_frozen():
    """A field set anew would no longer be what the fingerprint says."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        data().fingerprint = ""
