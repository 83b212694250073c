"""Interactions and titles that are datasets of a Hub, read by the real client of `datasets`."""

import datasets
import datasets.config
import pytest
from hub_server import READER
from huggingface_hub import HfApi

from qcrd_trl.data.sources import load_rows
from qcrd_trl.errors import DataError
from qcrd_trl.recommendation.interactions import read_interactions, read_items


EVENTS = {"user_id": ["a", "b", "a"], "item_id": ["x", "x", "y"], "timestamp": [3, 1, 2]}


@pytest.fixture
def hub(tmp_path, hub_server, monkeypatch):
    """Sends tables to the Hub on loopback: `send(name, table, **files)`."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub_server.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    api = HfApi(endpoint=hub_server.url)

    def send(name: str, tables: dict[str, dict], private: bool = False) -> None:
        api.create_repo(name, repo_type="dataset", private=private)
        for path, table in tables.items():
            datasets.Dataset.from_dict(table).to_parquet(tmp_path / "sent.parquet")
            api.upload_file(
                path_or_fileobj=tmp_path / "sent.parquet", path_in_repo=path, repo_id=name, repo_type="dataset"
            )

    return send


def test_interactions_and_titles(hub):
    """What a path is that does not exist is a name of the Hub; a split must be the one that was asked for."""
    hub(
        "me/events",
        {
            "data/train-00000-of-00001.parquet": EVENTS,
            "data/test-00000-of-00001.parquet": {"user_id": ["c"], "item_id": ["z"], "timestamp": [9]},
        },
    )
    found = read_interactions("me/events", split="train")
    assert (found.user_ids, found.item_ids, found.timestamps.tolist()) == (["a", "b"], ["x", "y"], [3, 1, 2])
    assert found.name == "me/events"
    assert read_interactions("me/events", split="test").user_ids == ["c"]
    hub("me/titles", {"items.parquet": {"item_id": ["x", "y"], "title": ["An X", "A Y"]}})
    items = read_items("me/titles", split="train")
    assert (items.item_ids, items.titles, items.name) == (["x", "y"], ["An X", "A Y"], "me/titles")


def test_rows_of_questions(hub):
    """The training sets of QCRD are read by the same code."""
    hub("me/questions", {"train.parquet": {"prompt": ["1 + 1?"], "label": ["2"]}})
    assert list(load_rows("me/questions", split="train")) == [{"prompt": "1 + 1?", "label": "2"}]


def test_what_the_hub_refuses(hub, monkeypatch):
    """A private dataset and a name that is wrong end in one line that says so, and not in a traceback."""
    hub("me/private", {"train.parquet": EVENTS}, private=True)
    with monkeypatch.context() as other:
        other.setenv("HF_TOKEN", READER)
        for name in ("me/private", "me/nothing"):
            message = rf"{name} is no path that exists, and the Hub gave no dataset of this name"
            with pytest.raises(DataError, match=message):
                read_interactions(name, split="train")
    assert len(read_interactions("me/private", split="train").users) == 3
