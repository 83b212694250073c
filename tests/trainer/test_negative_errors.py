"""What cannot work is said before the first step; what breaks in a run leaves its checkpoints good."""

import shutil

import pytest
from datasets import Dataset
from generating import LORA, generating, questions, rationales_scored, scripted, sharp_llama, watch
from running import largest_difference, logged, weights
from tiny import ids, tiny_bart, tiny_gpt2
from transformers import BertConfig, BertForMaskedLM, TrainerCallback

import qcrd_trl.snapshots
from qcrd_trl import SelfAdversarialCallback
from qcrd_trl.data.store import NegativeStore
from qcrd_trl.errors import ConfigError, ModelError, TrainingError


SAVE = {"save_strategy": "steps", "save_steps": 1}


def test_a_model_that_cannot_generate(tmp_path, monkeypatch):
    """Found out at the first refresh, it would cost the time until then."""
    bert = BertForMaskedLM(
        BertConfig(vocab_size=33, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    with pytest.raises(ModelError, match=r"BertForMaskedLM cannot generate negatives.*minority"):
        generating(tmp_path, bert)
    generating(tmp_path, bert, negative_source="minority")
    llama = sharp_llama()
    monkeypatch.setattr(llama, "can_generate", lambda: False)
    with pytest.raises(ModelError, match="LlamaForCausalLM cannot generate"):
        generating(tmp_path, llama, parts=LORA)
    assert not any(tmp_path.iterdir())


class Plugin:
    def __init__(self, zero_stage):
        self.zero_stage = zero_stage


@pytest.mark.parametrize(("stage", "refused"), [(2, False), (3, True)])
def test_weights_that_are_split_up(tmp_path, monkeypatch, stage, refused):
    """A snapshot of a shard is no student; ZeRO-2 keeps the weights whole."""
    trainer = generating(tmp_path, negative_source="none")
    monkeypatch.setattr(type(trainer.accelerator.state), "deepspeed_plugin", Plugin(stage), raising=False)
    if not refused:
        SelfAdversarialCallback(trainer)
        return
    with pytest.raises(ConfigError, match=r"^Negatives .* ZeRO-3 .*minority"):
        SelfAdversarialCallback(trainer)
    monkeypatch.undo()
    trainer.is_fsdp_enabled = True
    with pytest.raises(ConfigError, match="FSDP"):
        SelfAdversarialCallback(trainer)


@pytest.mark.parametrize("preset", ["qcrd", "qcrd_paper"])
def test_a_stream_has_the_negatives_of_its_rows(tmp_path, monkeypatch, caplog, preset):
    """What cannot be asked ahead is refused where it was asked for, and said where a preset only implies it."""
    rows = Dataset.from_list(questions()).to_iterable_dataset()
    with pytest.raises(ConfigError, match="streaming"):
        generating(tmp_path, rows=rows, preset=preset)
    trainer = generating(tmp_path, rows=rows, preset=preset, negative_source=None, max_steps=2)
    assert "streaming" in caplog.text
    scored = rationales_scored(trainer, monkeypatch)
    trainer.train()
    found = {name: side for batch in scored for name, side in batch.items() if "-" in name}
    assert found == {f"q{i} -": [tuple(ids(f"b = {i} c </s>"))] for i in range(4)}
    assert not (tmp_path / "negative_generators").exists()


@pytest.mark.parametrize("given", ["to the trainer", "to evaluate"])
def test_a_held_out_stream_has_all_rationales(tmp_path, monkeypatch, given):
    """Cut to a rationale a question, it would measure something else than a dataset of the same rows."""
    rows = Dataset.from_list(questions())
    parts = {"eval_dataset": rows.to_iterable_dataset()} if given == "to the trainer" else {}
    trainer = generating(tmp_path, preset="qcrd_paper", parts=parts)
    scored = rationales_scored(trainer, monkeypatch)
    metrics = trainer.evaluate(rows.to_iterable_dataset() if given == "to evaluate" else None)
    found = {name: len(side) for batch in scored for name, side in batch.items()}
    assert found == {f"q{i} {side}": i % 2 + 1 if side == "+" else 1 for i in range(8) for side in "+-"}
    assert metrics["eval_loss"] == pytest.approx(trainer.evaluate(rows)["eval_loss"], abs=1e-6)


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_bart])
def test_learned_positions_end_a_negative(tmp_path, make):
    """A sample that runs beyond the last position ends the whole run, whenever the student happens to write that much."""
    places = {"n_positions": 16} if make is tiny_gpt2 else {"max_position_embeddings": 16}
    trainer = generating(
        tmp_path, make(**places), negative_max_new_tokens=40, max_steps=2, per_device_train_batch_size=8
    )
    trainer.train()
    lengths = [len(n.token_ids) for _, n in trainer.negatives]
    assert len(lengths) > 4
    assert 2 < max(lengths) <= 16


def test_only_useless_samples_are_said(tmp_path, monkeypatch, caplog):
    """The run goes on without negatives, at a plausible loss: somebody must hear of it."""
    trainer = generating(tmp_path, per_device_train_batch_size=8, max_steps=1)
    scripted(trainer, {f"q{i}": ["</s>"] for i in range(8)}, monkeypatch)
    trainer.train()
    assert "None of 8 sampled rationales became a negative" in caplog.text
    [entry] = logged(trainer)
    assert entry["loss/negative"] == 0
    assert entry["loss/positive"] > 0


def test_an_error_of_sampling_is_told_as_it_is(tmp_path, monkeypatch):
    """Taken for a full disk, whatever fails in a model's own code would send its user to clear the wrong place."""
    trainer = generating(tmp_path)
    monkeypatch.setattr(trainer.model, "generate", lambda **inputs: raises(ConnectionError("no such server")))
    with pytest.raises(ConnectionError, match="no such server"):
        trainer.train()


# ---- In the middle of a run ----


class At(TrainerCallback):
    """Does something once at a step: at its end, or after its checkpoint."""

    def __init__(self, event, step, action):
        self.step, self.action = step, action
        setattr(self, event, self.act)

    def act(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.step = None
            self.action()


def raises(error):
    raise error


def run(folder, adapter=True, at=None, resume=None):
    """Four steps with a lag of two and a checkpoint at each; `at` is an event, its step and what to do."""
    trainer = started(folder, adapter, at)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def started(folder, adapter=True, at=None):
    """The trainer of [`run`], before it trains."""
    parts = {"callbacks": [At(*at)] if at else []} | (LORA if adapter else {})
    return generating(folder, parts=parts, negative_lag=2, **SAVE)


def check_resumes(folder, whole, adapter=True, resume=True):
    """Resumed from its newest checkpoint, the run is the one that nothing happened to."""
    resumed = run(folder, adapter, resume=resume)
    assert resumed.state.global_step == whole.state.global_step == 4
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0
    assert logged(resumed) == logged(whole)
    assert dict(resumed.negatives) == dict(whole.negatives)
    assert not list(folder.rglob("_unfinished*"))


def replaced(path, content):
    path.unlink()
    path.write_bytes(content)


def as_model(folder, file):
    """A snapshot that says that it holds whole weights."""
    file.rename(folder / "model.safetensors")
    state = folder / "snapshot.json"
    replaced(state, state.read_bytes().replace(b'"adapter"', b'"model"'))


# What is done to the snapshot of iteration 0, given its folder, its weights' path and another run's folder.
DAMAGES = {
    "other content": (lambda folder, file, other: replaced(file, file.read_bytes()[:-1] + b"x"), "damaged"),
    "cut": (lambda folder, file, other: replaced(file, file.read_bytes()[:100]), "damaged"),
    "written over": (lambda folder, file, other: file.write_bytes(file.read_bytes()[:100]), "damaged"),
    "weights lost": (lambda folder, file, other: file.unlink(), "damaged"),
    "state lost": (lambda folder, file, other: replaced(folder / "snapshot.json", b"{"), "damaged"),
    "of another base": (
        lambda folder, file, other: (shutil.rmtree(folder), shutil.copytree(other, folder)), "another base",
    ),
    "of another kind": (lambda folder, file, other: as_model(folder, file), "weights of a whole model"),
    "all lost": (lambda folder, file, other: shutil.rmtree(folder.parent), "are gone"),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing happened to: with an adapter and without."""
    return {adapter: run(tmp_path_factory.mktemp("whole"), adapter) for adapter in (True, False)}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A snapshot of iteration 0 on another base."""
    folder = tmp_path_factory.mktemp("other")
    generating(folder, sharp_llama(seed=1), parts=LORA, max_steps=1).train()
    return folder / "negative_generators" / "iteration-0000"


@pytest.mark.parametrize(
    ("damage", "adapter"), [*((damage, True) for damage in DAMAGES), ("other content", False), ("all lost", False)]
)
def test_a_damaged_snapshot_is_refused_and_the_checkpoints_are_good(tmp_path, whole, elsewhere, damage, adapter):
    """Generated from in part, or from another base, negatives would be of no student of this run."""
    act, message = DAMAGES[damage]
    folder = tmp_path / "negative_generators" / "iteration-0000"
    file = folder / ("adapter_model.safetensors" if adapter else "model.safetensors")
    with pytest.raises(ModelError, match=message):
        run(tmp_path, adapter, at=("on_save", 2, lambda: act(folder, file, elsewhere)))
    assert not list(tmp_path.rglob("_unfinished*"))
    check_resumes(tmp_path, whole[adapter], adapter)


@pytest.mark.parametrize("adapter", [True, False])
def test_a_damaged_snapshot_gets_into_no_checkpoint(tmp_path, whole, adapter):
    """The newest checkpoint would be one that no run can go on from, and the last good one may go for it."""
    file = tmp_path / "negative_generators" / "iteration-0000" / ("adapter_" * adapter + "model.safetensors")
    with pytest.raises(ModelError, match="damaged"):
        run(tmp_path, adapter, at=("on_step_end", 2, lambda: replaced(file, b"")))
    assert [path.name for path in tmp_path.glob("*checkpoint*")] == ["checkpoint-1"]
    check_resumes(tmp_path, whole[adapter], adapter)


@pytest.mark.parametrize("what", ["snapshot", "store"])
def test_a_full_disk_leaves_the_checkpoints_good(tmp_path, monkeypatch, whole, what):
    """Half a snapshot that is taken for one, or an error that names no remedy, and the run is lost."""

    def full():
        error = OSError(28, "No space left on device")
        if what == "snapshot":
            monkeypatch.setattr(qcrd_trl.snapshots, "fingerprint", lambda model: raises(error))
        else:
            monkeypatch.setattr(NegativeStore, "save", lambda store, folder: raises(error))

    with pytest.raises(TrainingError, match=r"No space left.*resume from the newest"):
        run(tmp_path, at=("on_save", 2, full))
    monkeypatch.undo()
    assert not list(tmp_path.rglob("_unfinished*"))
    check_resumes(tmp_path, whole[True])


@pytest.mark.parametrize("resume", [None, True])
def test_a_run_after_ctrl_c(tmp_path, whole, resume):
    """Interrupted in a notebook and started again on the same trainer: nothing of the first run may be left in it."""
    trainer = started(tmp_path, at=("on_step_end", 3, lambda: raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 3
    there = watch(trainer, lambda state: list(trainer.negatives))
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == 4
    if resume:
        assert len(there) == 2
        assert largest_difference(weights(trainer.model), weights(whole[True].model)) == 0
        assert dict(trainer.negatives) == dict(whole[True].negatives)
    else:
        assert len(there) == 4
        # What was scored before belongs to texts that are gone.
        assert all(n.quality is None for negatives in there for _, n in negatives)
