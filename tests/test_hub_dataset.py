"""The training set and the negatives of a run, as a dataset of the Hub."""

import pytest
from datasets import Dataset, load_dataset
from generating import LORA, generating, questions
from hub_server import Fault
from huggingface_hub import snapshot_download
from running import config

from qcrd_trl.errors import ConfigError, DataError, HubError
from qcrd_trl.hub_dataset import push_run_dataset


def test_a_run_sends_its_dataset(tmp_path, hub_server):
    """Who trains again from the repository must have the same rows, and never the negatives in their place."""
    trainer = generating(tmp_path / "run", parts=LORA, max_steps=2, hub_model_id="me/run", hub_dataset_id="me/set")
    trainer.train()
    trainer.push_to_hub()
    assert not any(name.startswith("negative") for name in hub_server.files("me/run"))
    sent = hub_server.files("me/set", "dataset")
    assert set(sent) == {".gitattributes", "README.md", "training_set/train.parquet", "negatives/train.parquet"}
    assert hub_server.rejected == []
    here = snapshot_download("me/set", repo_type="dataset")
    rows = load_dataset(here, split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.to_list() == questions()
    negatives = load_dataset(here, "negatives", split="train", cache_dir=str(tmp_path / "cache"))
    newest = {row["negative"] for row in negatives if row["iteration"] == max(negatives["iteration"])}
    assert newest == {negative.text for _, negative in trainer.negatives}
    assert newest


def test_without_a_wish_nothing_goes(tmp_path, hub_server):
    """A teacher's texts may not be published unasked."""
    trainer = generating(tmp_path / "run", parts=LORA, max_steps=1, hub_model_id="me/run")
    trainer.train()
    trainer.push_to_hub()
    assert [kind for kind, _ in hub_server.repos] == ["model"]


def test_what_cannot_be_sent(tmp_path, hub_server):
    """An empty dataset would look like one that was lost."""
    stream = Dataset.from_list(questions()).to_iterable_dataset()
    with pytest.raises(DataError, match="the training set is a stream"):
        push_run_dataset("me/set", stream, tmp_path, "qcrd")
    assert not hub_server.repos
    hub_server.faults.append(Fault("/commit/", 500))
    with pytest.raises(HubError, match=r"Could not upload the training set \('me/set'\)\. The Hub answered 500"):
        push_run_dataset("me/set", Dataset.from_list(questions()), tmp_path, "qcrd")
    with pytest.raises(ConfigError, match="`hub_dataset_id` must be the name of a repository"):
        config(tmp_path, hub_dataset_id="/home/me/set")
