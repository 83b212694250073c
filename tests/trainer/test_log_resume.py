"""What a resumed run logs where a checkpoint falls between two log entries."""

import json

import pytest
import torch
from datasets import Dataset
from killing import differences, without_clocks
from running import logged, lora, trainer_of
from tiny import ragged_rows, tiny_llama
from transformers import TrainerCallback


# Entries after steps 3 and 6, checkpoints after 2, 4 and 6: checkpoint-4 has one step of the entry at 6.
SHAPE = {
    "max_steps": 7,
    "logging_steps": 3,
    "save_strategy": "steps",
    "save_steps": 2,
    "per_device_train_batch_size": 2,
    "optim": "adamw_torch",
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
}


class StopAfter(TrainerCallback):
    """Ends a run early, with its schedule planned for all steps, as a kill would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps


def run(folder, until=None, resume=None, parts=None, **overrides):
    torch.manual_seed(3)
    trainer = trainer_of(
        folder,
        tiny_llama(attention_dropout=0.3),
        ragged_rows(14),
        parts={"peft_config": lora(lora_dropout=0.2), **(parts or {})},
        **{**SHAPE, **overrides},
    )
    if until is not None:
        trainer.add_callback(StopAfter(until))
    trainer.output = trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses_of(trainer):
    return [entry["loss"] for entry in logged(trainer)]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"negative_source": "self", "negative_refresh_steps": 2, "negative_max_new_tokens": 4},
        {"eval_strategy": "steps", "eval_steps": 1},
    ],
    ids=["plain", "accumulated", "generated", "evaluated"],
)
def test_an_entry_that_spans_a_checkpoint_is_that_of_the_whole_run(tmp_path, shape):
    """A mean over the steps since the resume, under the name of all of them, bends a curve where nothing happened."""
    parts = {"eval_dataset": Dataset.from_list(ragged_rows(4))} if "eval_steps" in shape else None
    whole = run(tmp_path / "whole", parts=parts, **shape)
    run(tmp_path / "run", until=4, parts=parts, **shape)
    resumed = run(tmp_path / "run", resume=True, parts=parts, **shape)
    assert [entry["step"] for entry in logged(whole)] == [3, 6]
    assert "train_loss" in whole.state.log_history[-1]
    mine, theirs = without_clocks(resumed.state.log_history), without_clocks(whole.state.log_history)
    assert differences(mine, theirs) == []


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_entry_is_the_mean_of_its_steps(tmp_path, accumulation):
    """Two runs that both log nonsense would agree."""
    shape = {"gradient_accumulation_steps": accumulation, "save_strategy": "no"}
    each = losses_of(run(tmp_path / "each", **{**shape, "logging_steps": 1}))
    assert len(each) == 7
    assert len(set(each)) == 7
    whole = run(tmp_path / "whole", **shape)
    assert losses_of(whole) == pytest.approx([sum(each[:3]) / 3, sum(each[3:6]) / 3], rel=1e-6)
    assert whole.state.log_history[-1]["train_loss"] == pytest.approx(sum(each) / 7, rel=1e-6)


def test_what_is_returned_is_what_is_logged(tmp_path):
    """The base class returns the mean since the resume, beside metrics that hold the mean of the run."""
    whole = run(tmp_path / "whole")
    run(tmp_path / "run", until=4)
    resumed = run(tmp_path / "run", resume=True)
    expected = whole.state.log_history[-1]["train_loss"]
    assert expected > 1
    assert resumed.output.metrics["train_loss"] == whole.output.metrics["train_loss"] == expected
    assert resumed.output.training_loss == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_without_sums_is_resumed(tmp_path):
    """A process that had no part in the checkpoint starts its sums anew; it must neither fail nor take another's."""
    each = losses_of(run(tmp_path / "each", logging_steps=1, save_strategy="no"))
    run(tmp_path / "run", until=4)
    (tmp_path / "run" / "checkpoint-4" / "meters_0.json").rename(tmp_path / "run" / "checkpoint-4" / "meters_1.json")
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.state.global_step == 7
    # Step 4, before the checkpoint, is lost to both.
    assert losses_of(resumed)[1] == pytest.approx((each[4] + each[5]) / 2, rel=1e-6)
    assert resumed.state.log_history[-1]["train_loss"] == pytest.approx(sum(each[4:]) / 3, rel=1e-6)


def test_sums_of_an_earlier_version_are_taken_by_name(tmp_path):
    """A quantity that is logged since then must not end a resume, nor stand in another's place."""
    run(tmp_path / "run", until=4)
    file = tmp_path / "run" / "checkpoint-4" / "meters_0.json"
    sums = json.loads(file.read_text(encoding="utf-8"))
    assert sums["train"].pop("alpha_3")
    file.write_text(json.dumps({"train": dict(reversed(sums["train"].items())), "later": {}}), encoding="utf-8")
    whole, resumed = run(tmp_path / "whole"), run(tmp_path / "run", resume=True)
    assert differences(logged(resumed), logged(whole)) == []  # alpha_3 is the same at each step
    assert resumed.state.log_history[-1]["train_loss"] != whole.state.log_history[-1]["train_loss"]


def test_a_run_that_starts_anew_has_no_sums_of_the_last(tmp_path):
    """The same trainer, trained twice, would log a mean of both runs."""
    each = losses_of(run(tmp_path / "each", logging_steps=1, save_strategy="no", max_steps=4))
    trainer = run(tmp_path / "run", until=2, max_steps=4)
    before = trainer.state.log_history[-1]["train_loss"]
    assert before == pytest.approx((each[0] + each[1]) / 2, rel=1e-6)
    trainer.callback_handler.callbacks[-1].steps = 99
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert losses_of(trainer) == pytest.approx([sum(each[:3]) / 3], rel=1e-6)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(sum(each) / 4, rel=1e-6)
