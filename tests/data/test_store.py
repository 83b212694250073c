"""The store of generated negatives: what is read back is what was written, or an error."""

import json
import os

import pyarrow.parquet as pq
import pytest

from qcrd_trl.data.store import NegativeStore
from qcrd_trl.errors import DataError
from qcrd_trl.records import Negative


def negative(text="a is 3", **fields):
    """A negative whose fields all differ from what a reader would make up."""
    values = {"token_ids": (9, 16, 22, 1), "iteration": 7, "snapshot": 2, "seed": 2**62 - 1}
    values |= {"temperature": 1.5, "is_finished": True}
    return Negative(text=text, **{**values, **fields})


NEGATIVES = {
    "q1": [
        negative("a is 3", reaches_label=True, quality=0.1),
        negative("b\n  größer 😀", token_ids=(9,), is_finished=False, reaches_label=False),
    ],
    "q0": [negative("", token_ids=(), temperature=0.8, quality=0.0)],
    "no": [],
}
TEXTS = {"q1": "a + 1", "q0": "a + 0", "no": "a + 2", "other": "b"}
MESSAGES = {
    "q1": [{"role": "system", "content": "be so"}, {"role": "user", "content": "a + 1"}],
    "q0": [{"role": "user", "content": "a + 0"}],
    "no": [{"role": "user", "content": "a"}],
}


def stored(negatives=NEGATIVES, prompts=TEXTS, iteration=7):
    store = NegativeStore()
    store.replace(iteration, negatives, prompts)
    return store


def test_what_is_in_it():
    """A question without negatives must read as having none, not stop the batch that it is in."""
    store = stored()
    assert len(store) == 3
    assert [(key, n.text) for key, n in store] == [("q1", "a is 3"), ("q1", "b\n  größer 😀"), ("q0", "")]
    assert store.get("q1") == tuple(NEGATIVES["q1"])
    assert store.get("no") == store.get("never seen") == ()
    assert store.iteration == 7
    store.replace(8, {"q0": [negative("new")]})
    assert (store.iteration, len(store), store.get("q1")) == (8, 1, ())  # those of the last iteration are gone
    store.clear()
    assert (store.iteration, len(store), list(store)) == (None, 0, [])


@pytest.mark.parametrize("prompts", [TEXTS, MESSAGES, None], ids=["text", "messages", "none"])
def test_it_is_read_back_as_it_was(tmp_path, prompts):
    """A resumed run learns from what is read back: a field lost or rounded bends it, unseen."""
    store = stored(prompts=prompts)
    store.save(tmp_path / "negatives")
    loaded = NegativeStore.load(tmp_path / "negatives")
    assert list(loaded) == list(store)
    assert [type(value) for _, n in loaded for value in vars(n).values()] == [
        type(value) for _, n in store for value in vars(n).values()
    ]
    assert loaded.iteration == 7
    rows = pq.read_table(tmp_path / "negatives" / "negatives.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["q1", "q1", "q0"]
    assert [row["prompt"] for row in rows] == [prompts and prompts[row["id"]] for row in rows]
    assert rows[0] == {
        **{"id": "q1", "prompt": prompts and prompts["q1"], "negative": "a is 3", "token_ids": [9, 16, 22, 1]},
        **{"iteration": 7, "snapshot": 2, "seed": 2**62 - 1, "temperature": 1.5, "is_finished": True},
        **{"reaches_label": True, "quality": 0.1},
    }
    loaded.save(tmp_path / "again")
    assert pq.read_table(tmp_path / "again" / "negatives.parquet").to_pylist() == rows


def test_messages_keep_what_every_message_has(tmp_path):
    """Further keys of one message would change the column's type, and saving would fail after hours of training."""
    messages = {"q0": [{"role": "user", "content": "a", "name": "b"}], "q1": None}
    store = stored({"q0": [negative()], "q1": [negative()]}, messages)
    store.save(tmp_path / "negatives")
    rows = pq.read_table(tmp_path / "negatives" / "negatives.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": "a"}], None]


@pytest.mark.parametrize("iteration", [None, 0])
def test_an_empty_store(tmp_path, iteration):
    """An iteration that kept no negative is no error, and is not sampled anew when a run is resumed."""
    store = stored({"q0": []}, iteration=iteration)
    store.save(tmp_path / "negatives")
    loaded = NegativeStore.load(tmp_path / "negatives")
    assert (len(loaded), loaded.iteration) == (0, iteration)
    assert pq.read_table(tmp_path / "negatives" / "negatives.parquet").column_names[:3] == ["id", "prompt", "negative"]


def test_quality_is_noted_beside_the_right_negative(tmp_path):
    """A score beside another text shows the reader of the store that the discriminator errs where it does not."""
    store = stored()
    store.set_quality({("q1", 1): 0.25, ("q0", 0): 0.75})
    assert [n.quality for n in store.get("q1")] == [0.1, 0.25]
    assert [n.text for n in store.get("q1")] == ["a is 3", "b\n  größer 😀"]
    assert [n.quality for n in store.get("q0")] == [0.75]
    assert NEGATIVES["q1"][1].quality is None  # a record is never changed
    store.set_quality({("q1", 1): 0.5})
    store.save(tmp_path / "negatives")
    assert [n.quality for _, n in NegativeStore.load(tmp_path / "negatives")] == [0.1, 0.5, 0.75]


def test_it_becomes_another_and_stays_the_same_object(tmp_path):
    """Whoever reads the store holds the object: one that is replaced would be read no more."""
    mine, other = stored({"q5": [negative("old")]}, {"q5": "a + 5"}, iteration=1), stored(prompts=MESSAGES)
    mine.take(other)
    other.clear()
    assert list(mine) == list(stored())
    assert mine.iteration == 7
    mine.save(tmp_path / "negatives")
    rows = pq.read_table(tmp_path / "negatives" / "negatives.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == [MESSAGES[key] for key in ("q1", "q1", "q0")]


def test_a_save_is_replaced_whole(tmp_path, monkeypatch):
    """A failure in the middle of the second save must leave the first, and success nothing of it."""
    folder = tmp_path / "run" / "negatives"
    stored().save(folder)
    (folder / "of-an-earlier-version").write_text("x", encoding="utf-8")
    smaller = stored({"q0": [negative("new")]}, iteration=8)

    def fails(*args, **kwargs):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", fails)
        with pytest.raises(OSError, match="no space"):
            smaller.save(folder)
    assert list(NegativeStore.load(folder)) == list(stored())
    smaller.save(folder)
    assert [n.text for _, n in NegativeStore.load(folder)] == ["new"]
    assert sorted(os.listdir(folder)) == ["negatives.parquet", "state.json"]
    assert os.listdir(folder.parent) == ["negatives"]


def _table(change):
    def damage(folder):
        file = folder / "negatives.parquet"
        pq.write_table(change(pq.read_table(file)), file)

    return damage


def _bytes(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES = {
    "no-rows": lambda folder: (folder / "negatives.parquet").unlink(),
    "rows-cut": _bytes("negatives.parquet", lambda data: data[: len(data) // 2]),
    "rows-empty": _bytes("negatives.parquet", lambda data: b""),
    "rows-fewer": _table(lambda table: table.slice(1)),
    "rows-without-text": _table(lambda table: table.drop_columns(["negative"])),
    "rows-without-id": _table(lambda table: table.drop_columns(["id"])),
    "rows-with-more": _table(lambda table: table.append_column("more", table["seed"])),
    # One letter of one text: the file still reads, and the negative is another.
    "rows-letter": _bytes("negatives.parquet", lambda data: data.replace(b"a is 3", b"a is 4")),
    "state-empty": _bytes("state.json", lambda data: b""),
    "state-cut": _bytes("state.json", lambda data: data[:12]),
    "state-list": _bytes("state.json", lambda data: b"[]"),
    "state-null": _bytes("state.json", lambda data: b"null"),
    "state-not-utf8": _bytes("state.json", lambda data: b"\xff\xfe"),
    "state-without-iteration": _bytes("state.json", lambda data: b'{"negatives": 3}'),
    "no-state": lambda folder: (folder / "state.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_refused(tmp_path, damage):
    """Fewer negatives, or none, train on at a plausible loss: the run is no longer the one that was stopped."""
    folder = tmp_path / "checkpoint-3" / "negatives"
    stored().save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    DAMAGES[damage](folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} != before
    with pytest.raises(DataError, match=r"store of negatives in '.*checkpoint-3.*negatives'"):
        NegativeStore.load(folder)


def test_no_store(tmp_path):
    """A checkpoint of a run without generated negatives has none: it must be said, with the place that was looked at."""
    with pytest.raises(DataError, match=r"no store of negatives in '.*nowhere'"):
        NegativeStore.load(tmp_path / "nowhere")


def test_the_state_counts_its_rows(tmp_path):
    """The count is what tells a half-read store from a whole one."""
    stored().save(tmp_path / "negatives")
    state = json.loads((tmp_path / "negatives" / "state.json").read_text(encoding="utf-8"))
    assert {"iteration": 7, "negatives": 3}.items() <= state.items()
