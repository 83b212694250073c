"""
What a run of C2KD saves, and that a resumed run is the run that was never stopped, also when it was killed. Run by Python, this file
is the driver of the latter: it imports everything once and forks a process for each run.
"""

import json
import random
import sys
from pathlib import Path

import kill_points as at
import numpy as np
import pytest
import torch
from c2kd_runs import NUM_ITEMS, c2kd_config, c2kd_trainer, item_model, item_rows
from datasets import Dataset
from killing import differences, forked, start, without_clocks
from running import largest_difference, lora, moved, weights
from safetensors.torch import load_file
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.files import UNFINISHED
from qcrd_trl.recommendation.loading import load_recommender
from qcrd_trl.trainer.c2kd_heads import HEADS_FILE


ADAMW = {"optim": "adamw_torch", "learning_rate": 0.01, "lr_scheduler_type": "linear"}
SHAPE = {
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 1,
    "logging_steps": 4,  # a log entry is in the middle of two checkpoints
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 1.0,
    **ADAMW,
}


class StopAfter(TrainerCallback):
    """Ends a run early, with its schedule planned for all steps, as a kill would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps


def build(folder, adapter=False, **overrides):
    """A run with dropout on both sides of a checkpoint, and heads in the optimizer."""
    student = item_model(attention_dropout=0.3)
    parts = {"eval_dataset": Dataset.from_list(item_rows(9, 4))}
    if adapter:
        student.save_pretrained(folder.parent / "base")
        student = str(folder.parent / "base")
        parts["peft_config"] = lora(lora_dropout=0.2)
    torch.manual_seed(3)
    return c2kd_trainer(folder, student, item_rows(14), parts, **{**SHAPE, **overrides})


def state_of(trainer):
    """All that a run came to."""
    folder = Path(trainer.args.output_dir)
    return {
        "student": weights(trainer.model),
        "heads": weights(trainer.heads),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "router": trainer.router_shares(),
        "logs": without_clocks(trainer.state.log_history),
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "unfinished": sorted(path.name for path in folder.rglob(f"{UNFINISHED}*")),
        "random": [torch.get_rng_state(), random.getstate(), list(np.random.get_state())],
    }


@pytest.mark.parametrize(
    ("method", "adapter"),
    [("c2kd", False), ("c2kd", True), ("feature_kd", False), ("blockwise", False), ("none", False)],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, method, adapter):
    """Heads, their moments or the router's counts that start anew at each restart bend the run, unseen."""
    results = []
    for name, stop in (("whole", None), ("stopped", 3), ("stopped", None)):
        trainer = build(tmp_path / name, adapter, method=method, save_steps=3)
        if stop is not None:
            trainer.add_callback(StopAfter(stop))
        trainer.train(resume_from_checkpoint=True if len(results) == 2 else None)
        results.append(state_of(trainer))
    whole, stopped, resumed = results
    assert moved(stopped["student"], whole["student"])
    assert differences(whole, resumed) == []
    has_heads = method != "none"
    # What decays and what does not, of the student and of the heads; only those of blocks have norms and biases.
    assert len(whole["optimizer"]["param_groups"]) == 2 + has_heads + (method == "blockwise")
    assert bool(whole["heads"]) == has_heads
    if has_heads:
        assert moved(stopped["heads"], whole["heads"])
    # 6 steps: one entry at step 4 of which the first 3 were before the stop, and the last of the run.
    assert [entry["step"] for entry in whole["logs"]] == [4, 6]
    assert "loss/task" in whole["logs"][0]
    assert bool(whole["router"]) == (method == "c2kd")


def test_the_router_is_counted_over_the_whole_run(tmp_path):
    """Counts of the time after the restart alone would be drawn as those of the run."""
    trainer = build(tmp_path / "run", logging_steps=1, save_steps=3)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "router/layer_2" in entry]
    rows = [4, 4, 4, 2, 4, 4]  # of 14, in steps of 4: the last of an epoch has 2
    assert len(entries) == 6
    for layer, share in trainer.router_shares().items():
        counted = sum(entry[f"router/layer_{layer}"] * n for entry, n in zip(entries, rows, strict=True))
        assert share == pytest.approx(counted / sum(rows))
    assert sum(trainer.router_shares().values()) == pytest.approx(1.0)
    meters = json.loads((tmp_path / "run" / "checkpoint-6" / "meters_0.json").read_text(encoding="utf-8"))
    assert meters["run"]["router/layer_2"][1] == sum(rows)


def test_the_best_checkpoint_brings_its_heads(tmp_path):
    """A student of step 2 with the projection of step 6 would be trained on as a pair that never was."""
    trainer = build(
        tmp_path / "run",
        logging_steps=2,
        save_total_limit=None,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_ndcg@10",
    )
    scores = iter((0.2, 0.5, 0.1))  # the second is the best
    measure = trainer._metrics_of
    trainer._metrics_of = lambda evaluated: {**measure(evaluated), "ndcg@10": next(scores)}
    trainer.train()
    best = tmp_path / "run" / "checkpoint-4"
    assert trainer.state.best_model_checkpoint == str(best)
    assert trainer.state.best_metric == 0.5
    last = tmp_path / "run" / "checkpoint-6"
    assert largest_difference(weights(trainer.heads), load_file(best / HEADS_FILE)) == 0
    assert largest_difference(load_file(last / HEADS_FILE), load_file(best / HEADS_FILE)) > 0
    assert largest_difference(weights(trainer.model), load_file(best / "model.safetensors")) == 0


@pytest.mark.parametrize("adapter", [False, True])
def test_what_is_exported_is_the_student_alone(tmp_path, adapter):
    """With heads, teacher or filters inside, the small model would be a large one, or not load."""
    trainer = build(tmp_path / "run", adapter)
    trainer.train()
    trainer.save_model()
    names = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert HEADS_FILE not in names
    stored = load_file(tmp_path / "run" / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    assert stored
    assert not any(part in name for name in stored for part in ("projection", "filter", "adapters", "teacher"))
    assert (tmp_path / "run" / "checkpoint-6" / HEADS_FILE).is_file()
    loaded = load_recommender(tmp_path / "run")
    items = torch.tensor([[1, 4, 2, 7]])
    scores = loaded(items).logits
    assert torch.equal(scores, trainer.model.eval()(items).logits)
    assert (scores - item_model()(items).logits).abs().max() > 1e-3


def test_heads_of_another_recipe_are_refused(tmp_path):
    """A projection that starts anew at full weight would undo what was learned."""
    build(tmp_path / "run", max_steps=2).train()
    other = build(tmp_path / "run", method="feature_kd", max_steps=4)
    with pytest.raises((ModelError, ValueError), match=r"of another recipe|doesn't match"):
        other.train(resume_from_checkpoint=True)
    (tmp_path / "run" / "checkpoint-2" / HEADS_FILE).write_bytes(b"damaged")
    with pytest.raises(ModelError, match="missing or damaged"):
        build(tmp_path / "run", max_steps=4).train(resume_from_checkpoint=True)


def test_weights_alone_cannot_bring_back_the_heads(tmp_path):
    """The run would end with an error hours later, after its last step."""
    best = {
        "save_only_model": True,
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "save_strategy": "steps",
    }
    for method in ("c2kd", "feature_kd", "blockwise"):
        with pytest.raises(ConfigError, match="save_only_model"):
            c2kd_config(tmp_path, method=method, **best)
    assert not c2kd_config(tmp_path, method="logit_kd", **best).trains_heads


# ---- Killed ----


def before_the_heads(trainer):
    """When checkpoint-4 has the optimizer, and no heads."""
    save = trainer._heads.save_checkpoint
    trainer._heads.save_checkpoint = lambda folder: at.kill() if "point-4" in str(folder) else save(folder)


def in_a_step(trainer):
    """With the gradient of a first micro-batch pending, in the student and in the heads."""
    at.in_a_step(trainer, at=3)


def before_the_name(trainer):
    """When checkpoint-4 is complete, under another name."""
    at._at_rename("checkpoint-4", after=False)


def after_the_name(trainer):
    """When checkpoint-4 has its name, and the run has not been told."""
    at._at_rename("checkpoint-4", after=True)


def in_the_rotation(trainer):
    """When checkpoint-2 has lost three files."""
    at._in_removal(Path(trainer.args.output_dir), "checkpoint-2", files=3)


POINTS = {
    point.__name__: point
    for point in (in_a_step, before_the_heads, before_the_name, after_the_name, in_the_rotation, at.at_the_end)
}
# Newest checkpoint that each leaves.
LEFT = {
    "in_a_step": 2,
    "before_the_heads": 2,
    "before_the_name": 2,
    "after_the_name": 4,
    "in_the_rotation": 4,
    "at_the_end": 6,
}


def run(folder, point=None):
    """Trains from the newest checkpoint, if there is one, to the end or to where the process is killed."""
    trainer = build(folder)
    if point is not None:
        point(trainer)
    trainer.train(resume_from_checkpoint=bool(folder.is_dir() and get_last_checkpoint(folder)))
    return state_of(trainer)


def play(folder):
    """Every scenario: how its processes ended, what was left, and what the last came to."""
    results = {}
    for name, point in {"": None, **POINTS}.items():
        place, file = folder / f"run_{name}", folder / "told.pt"
        code = None if point is None else forked(lambda place=place, point=point: run(place, point), file)
        left = get_last_checkpoint(place) if place.is_dir() else None
        assert forked(lambda place=place: run(place), file) == 0
        results[name] = {
            "code": code,
            "left": left and Path(left).name,
            "result": torch.load(file, weights_only=False),
        }
    return results


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c2kd_killed")
    ended = start(__file__, folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.slow  # 13 runs, in processes of their own
@pytest.mark.parametrize("name", POINTS)
def test_a_killed_run_goes_on_as_if_it_was_not(played, name):
    """Between any two files a checkpoint is half a checkpoint, from which a run goes on plausibly and wrongly."""
    whole, killed = played[""], played[name]
    assert whole["code"] is None
    assert killed["code"] == -9
    assert killed["left"] == f"checkpoint-{LEFT[name]}"
    assert differences(whole["result"], killed["result"]) == []
    assert whole["result"]["unfinished"] == []
    assert whole["result"]["checkpoints"] == ["checkpoint-6"]


@pytest.mark.parametrize("other", [{"size": 12}, {"layers": 3}, {"num_items": 9}])
def test_a_checkpoint_of_another_model_is_refused(tmp_path, other):
    """The base class warns of layers that one side lacks, and trains on with what was drawn."""
    c2kd_trainer(tmp_path, item_model(8, 2), method="none", max_steps=1, save_strategy="steps", save_steps=1).train()
    size, layers = other.get("size", 8), other.get("layers", 2)
    model = item_model(size, layers, num_items=other.get("num_items", NUM_ITEMS))
    rows = [{"items": [one % 9 for one in row["items"]]} for row in item_rows()]
    trainer = c2kd_trainer(tmp_path, model, rows=rows, method="none", max_steps=2)
    with pytest.raises(ModelError, match=r"is of another model: of its weights .* Resume with the model and data"):
        trainer.train(resume_from_checkpoint=True)
    checkpoint = tmp_path / "checkpoint-1" / "model.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ModelError, match="is damaged"):
        trainer.train(resume_from_checkpoint=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1])
    torch.save(play(where), where / "results.pt")
