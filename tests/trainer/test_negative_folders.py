"""What a run with generated negatives writes: beside the student, in checkpoints, and to the Hub."""

import shutil
from pathlib import Path

import pytest
import transformers.trainer
from datasets import Dataset
from generating import LORA, generating, kept_snapshots, questions, refreshes, sharp_llama
from huggingface_hub.utils import filter_repo_objects
from peft import AutoPeftModelForCausalLM
from running import largest_difference, weights
from transformers import AutoModelForCausalLM

from qcrd_trl.data.store import NegativeStore
from qcrd_trl.errors import HubError


SAVE = {"save_strategy": "steps", "save_steps": 2}
STUDENT = {
    True: ["README.md", "adapter_config.json", "adapter_model.safetensors"],
    False: ["config.json", "generation_config.json", "model.safetensors"],
}
BESIDE = ["qcrd_format.json", "tokenizer.json", "tokenizer_config.json", "training_args.bin"]
RESUMING = ["optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json", "meters_0.json"]
DISCRIMINATOR = ["config.json", "model.safetensors"]


def names(folder):
    """Files and folders that lie in a folder."""
    paths = list(folder.iterdir())
    return sorted(p.name for p in paths if p.is_file()), sorted(p.name for p in paths if p.is_dir())


@pytest.mark.parametrize("adapter", [True, False])
def test_a_students_folder_holds_the_student(tmp_path, adapter):
    """Who loads the folder would get a snapshot, or the discriminator's weights, in place of what was trained."""
    trainer = generating(tmp_path / "run", parts=LORA if adapter else None, **SAVE)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    whole = sorted({*STUDENT[adapter], *BESIDE, "README.md"})
    assert names(tmp_path / "saved") == (whole, ["discriminator"])
    assert names(tmp_path / "saved" / "discriminator") == (DISCRIMINATOR, [])
    trainer.save_model()
    assert names(tmp_path / "run") == (
        whole,
        ["checkpoint-2", "checkpoint-4", "discriminator", "negative_generators", "negatives"],
    )
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert names(checkpoint) == (
        sorted(STUDENT[adapter] + BESIDE + RESUMING), ["discriminator", "negative_generators", "negatives"],
    )  # fmt: skip
    assert names(checkpoint / "negatives") == (["negatives.parquet", "state.json"], [])
    assert kept_snapshots(checkpoint) == kept_snapshots(tmp_path / "run") == [2, 3]
    assert kept_snapshots(tmp_path / "run" / "checkpoint-2") == [0, 1]
    assert names(checkpoint / "negative_generators" / "iteration-0003")[0] == sorted(
        [*(STUDENT[True] if adapter else ["config.json", "model.safetensors"]), "snapshot.json"]
    )
    assert dict(NegativeStore.load(checkpoint / "negatives")) == dict(trainer.negatives)
    assert names(tmp_path / "run" / "negatives")[1] == [f"iteration-000{i}" for i in range(4)]
    assert not list(tmp_path.rglob("_unfinished*"))
    if not adapter:
        loaded = AutoModelForCausalLM.from_pretrained(checkpoint)
        assert largest_difference(weights(loaded), weights(trainer.model)) == 0


def test_a_checkpoint_loads_as_an_adapter(tmp_path):
    """PEFT's own classes must find the student at the root, whatever adapters lie below it."""
    sharp_llama().save_pretrained(tmp_path / "base")
    trainer = generating(tmp_path / "run", str(tmp_path / "base"), parts=LORA, **SAVE)
    trainer.train()
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-4")
    assert largest_difference(weights(loaded), weights(trainer.model)) == 0
    snapshot = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run" / "negative_generators" / "iteration-0003")
    assert largest_difference(weights(snapshot), weights(trainer.model)) > 0


def test_old_checkpoints_go_and_the_others_stay_whole(tmp_path):
    """Space that is shared by snapshots and checkpoints must not go with the first of them that is removed."""
    trainer = generating(tmp_path, parts=LORA, save_total_limit=1, max_steps=6, **SAVE)
    trainer.train()
    assert names(tmp_path)[1] == ["checkpoint-6", "negative_generators", "negatives"]
    shutil.rmtree(tmp_path / "negative_generators")
    shutil.rmtree(tmp_path / "negatives")
    resumed = generating(tmp_path, parts=LORA, max_steps=7, **SAVE)
    resumed.train(resume_from_checkpoint=True)
    assert refreshes(resumed) == [*((i, i, max(i - 1, 0)) for i in range(6)), (6, 6, 5)]
    assert kept_snapshots(tmp_path) == [5, 6]


def test_the_best_checkpoint_is_a_real_folder(tmp_path):
    """Its path is noted while it is written: the name of a folder that is gone would be loaded, or kept for ever."""
    trainer = generating(
        tmp_path, parts={**LORA, "eval_dataset": Dataset.from_list(questions(4))}, save_total_limit=1,
        load_best_model_at_end=True, eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_loss/label",
        greater_is_better=True, learning_rate=0.003, save_strategy="steps", save_steps=1,
    )  # fmt: skip
    trainer.train()
    losses = [entry["eval_loss/label"] for entry in trainer.state.log_history if "eval_loss/label" in entry]
    best = max(range(4), key=losses.__getitem__) + 1  # the worst of a falling loss
    assert best < 4
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {f"checkpoint-{best}"}
    loaded = generating(tmp_path / "other", parts=LORA)
    loaded._load_from_checkpoint(str(tmp_path / f"checkpoint-{best}"))
    assert largest_difference(weights(loaded.model), weights(trainer.model)) == 0
    assert not list(tmp_path.rglob("_unfinished*"))


def test_checkpoints_of_the_model_alone(tmp_path):
    """Who wants no optimizer in a checkpoint wants no six snapshots in it either."""
    trainer = generating(tmp_path, parts=LORA, save_only_model=True, **SAVE)
    trainer.train()
    assert names(tmp_path / "checkpoint-4") == (
        sorted(STUDENT[True] + BESIDE + ["trainer_state.json"]), ["discriminator"],
    )  # fmt: skip
    assert kept_snapshots(tmp_path) == [2, 3]
    assert not list(tmp_path.rglob("_unfinished*"))


def test_a_run_starts_without_what_an_earlier_one_left(tmp_path, caplog):
    """A snapshot of another run under the same name would generate the negatives of this one."""
    generating(tmp_path, parts=LORA, negative_lag=5, max_steps=6).train()
    assert kept_snapshots(tmp_path) == [*range(6)]
    (tmp_path / "negative_generators" / "_unfinished-iteration-0006").mkdir()
    (tmp_path / "negatives" / "_unfinished-iteration-0006").mkdir()
    assert "removed" not in caplog.text
    trainer = generating(tmp_path, parts=LORA, negative_refresh_steps=2, max_steps=4, learning_rate=0.01)
    trainer.train()
    assert f"6 snapshots of an earlier run are removed from {tmp_path / 'negative_generators'}" in caplog.text
    assert kept_snapshots(tmp_path) == [0, 1]
    assert names(tmp_path / "negatives")[1] == ["iteration-0000", "iteration-0001"]
    fresh = generating(tmp_path / "fresh", parts=LORA, negative_refresh_steps=2, max_steps=4, learning_rate=0.01)
    fresh.train()
    assert dict(trainer.negatives) == dict(fresh.negatives)
    assert len(fresh.negatives) > 0


# ---- The Hub ----


class Hub:
    """Notes which files an upload would send, as paths in the repository."""

    def __init__(self):
        self.uploads = []

    def create_repo(self, name, **kwargs):
        return type("Url", (), {"repo_id": f"me/{name}"})

    def upload_folder(self, folder_path, path_in_repo=None, ignore_patterns=None, run_as_future=False, **kwargs):
        root = Path(folder_path)
        files = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        kept = filter_repo_objects(files, ignore_patterns=ignore_patterns)
        self.uploads.append((path_in_repo, set(kept)))
        return Future()


class Future:
    """An upload that is done."""

    def is_done(self):
        return True

    done = is_done

    def cancelled(self):
        return False

    def exception(self):
        return None


@pytest.fixture
def hub(monkeypatch):
    """A Hub in memory."""
    if not hasattr(transformers.trainer, "hf_api"):
        pytest.skip("this version of transformers uploads otherwise")
    hub = Hub()
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda: hub)
    return hub


@pytest.mark.parametrize("generators", [False, True])
def test_a_push_has_the_student_and_what_was_asked_for(tmp_path, hub, generators):
    """Half a gigabyte of snapshots, or texts that a student made up, published by a call that said nothing of it."""
    trainer = generating(tmp_path, parts=LORA, save_negative_generators=generators, **SAVE)
    trainer.train()
    (tmp_path / "_unfinished-checkpoints").mkdir()
    (tmp_path / "_unfinished-checkpoints" / "x").touch()
    half = tmp_path / "negative_generators" / "_unfinished-iteration-0004"
    half.mkdir()
    (half / "adapter_model.safetensors").touch()
    patched = transformers.trainer.hf_api
    trainer.push_to_hub()
    assert transformers.trainer.hf_api is patched
    [(place, sent)] = hub.uploads
    assert place is None
    snapshots = {
        f"negative_generators/iteration-000{i}/{name}"
        for i in (2, 3)
        for name in [*STUDENT[True][1:], "snapshot.json"]
    }
    student = {*STUDENT[True], *BESIDE, *(f"discriminator/{name}" for name in DISCRIMINATOR)} - {"training_args.bin"}
    assert sent == student | (snapshots if generators else set())


@pytest.mark.parametrize("generators", [False, True])
def test_pushes_in_training(tmp_path, hub, generators):
    """The checkpoint on the Hub is either whole, to be resumed from, or the student's alone; never a part of the rest."""
    trainer = generating(
        tmp_path, parts=LORA, save_negative_generators=generators, push_to_hub=True, hub_strategy="checkpoint",
        hub_model_id="me/run", **SAVE,
    )  # fmt: skip
    patched = transformers.trainer.hf_api
    trainer.train()
    assert transformers.trainer.hf_api is patched
    assert [place for place, _ in hub.uploads] == [None, "last-checkpoint"] * 2 + [None] * (len(hub.uploads) - 4)
    for number, (place, sent) in enumerate(hub.uploads):
        assert any(name.startswith("adapter_model") for name in sent)
        assert not any("checkpoint" in name or "_unfinished" in name for name in sent)
        has = {name.split("/")[0] for name in sent} & {"negative_generators", "negatives", "optimizer.pt"}
        if place is None:
            assert has == ({"negative_generators"} if generators else set())
        else:
            assert has == ({"negative_generators", "negatives", "optimizer.pt"} if generators else {"optimizer.pt"})
            folder = tmp_path / f"checkpoint-{2 * (number // 2 + 1)}"
            there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            there -= {name for name in there if name.endswith(("README.md", "training_args.bin"))}
            assert sent == {name for name in there if generators or not name.startswith("negative")}
            assert len(there) > 15


def test_a_failed_push_leaves_nothing_patched(tmp_path, hub, monkeypatch):
    """Another trainer of the same process would leave out files of its own, unseen."""

    def fails(**kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(hub, "upload_folder", fails)
    trainer = generating(tmp_path, parts=LORA, max_steps=1)
    trainer.train()
    patched = transformers.trainer.hf_api
    with pytest.raises(HubError, match="Check the network") as caught:
        trainer.push_to_hub()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert transformers.trainer.hf_api is patched
