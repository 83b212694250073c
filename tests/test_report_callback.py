"""What a run leaves beside the student: its log and its pictures, and what happens when they cannot be written."""

import json
import logging

import pytest
import torch
from datasets import Dataset
from running import largest_difference, trainer_of, weights
from tiny import ragged_rows
from transformers import Trainer, TrainingArguments

from qcrd_trl.report_callback import RunReportCallback, set_selection
from qcrd_trl.run_log import SOURCES, read_run


def pictures(folder):
    return sorted(path.name for path in folder.glob("plots/*"))


def run(folder, **overrides):
    trainer = trainer_of(folder, report_plots=True, **{"negative_source": "both", "max_steps": 2, **overrides})
    trainer.train()
    return trainer


def test_a_run_reports_itself(tmp_path):
    """A run without checkpoints would leave nothing to draw from; what is evaluated later belongs to it too."""
    trainer = run(tmp_path, negative_max_new_tokens=4)
    log = read_run(tmp_path)
    assert log.source == "training_log.json"
    assert log.global_step == 2
    assert [entry["step"] for entry in log.log_history if "loss" in entry] == [1, 2]
    assert log.settings["preset"] == "qcrd"
    assert log.settings["negative_source"] == "both"
    assert pictures(tmp_path) == ["losses.png", "quality.png"]
    # The last epoch is one step over all 8 questions: 0, 1, 2, 0, ... positives, of which one is drawn, and one negative of
    # the larger ones by the store or the rows. No score is lost, and each stands under its author.
    counts = {source: sum(log.scores["counts"][source]) for source in SOURCES}
    assert log.scores["iteration"] == 1
    assert counts["teacher_positive"] == 5  # questions 1, 2, 4, 5, 7 have positives
    assert counts["teacher_negative"] == sum((i + 1) % 4 for i in range(8))
    assert counts["student_sample"] == len(trainer.negatives) > 0
    before = (tmp_path / "plots" / "losses.png").read_bytes()
    trainer.eval_dataset = trainer._tokenize(Dataset.from_list(ragged_rows()), "eval_dataset", trainer.processing_class, trainer.args)  # fmt: skip
    trainer.evaluate()
    assert any("eval_loss" in entry for entry in read_run(tmp_path).log_history)
    assert (tmp_path / "plots" / "losses.png").read_bytes() != before


def test_the_run_is_the_same_without(tmp_path):
    """A report must not change what it reports."""
    one, other = run(tmp_path / "a", negative_source="minority"), trainer_of(tmp_path / "b", max_steps=2)
    other.train()
    assert largest_difference(weights(one.model), weights(other.model)) == 0
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").glob("*.json"))


def test_an_error_in_drawing_is_told_and_training_ends(tmp_path, monkeypatch, caplog):
    """Hours of training lost to a picture, before the student is saved; or a report that is missing without a word."""
    import qcrd_trl.plots.runs as runs

    def broken(*args):
        raise ValueError("no such colour")

    monkeypatch.setattr(runs, "save_run_plots", broken)
    with caplog.at_level(logging.ERROR):
        trainer = run(tmp_path, negative_source="minority", max_steps=1)
    assert trainer.state.global_step == 1
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "no such colour" in record.exc_text
    assert f"qcrd report {tmp_path}" in record.message
    assert read_run(tmp_path).global_step == 1  # the log was written before


def test_a_full_disk_does_not_lose_the_student(tmp_path, monkeypatch, caplog):
    """The log is small, but a full disk is full."""
    import qcrd_trl.run_log as run_log

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_log, "whole_file", full)
    with caplog.at_level(logging.ERROR):
        trainer = run(tmp_path, negative_source="minority", max_steps=1)
    assert trainer.state.global_step == 1
    assert "No space left" in caplog.text


def test_a_stale_report_is_removed(tmp_path):
    """A run that is killed would else be reported by the log and the pictures of the run before it."""
    (tmp_path / "plots").mkdir()
    for name in ("training_log.json", "plots/accuracy.png", "plots/mine.png"):
        (tmp_path / name).write_text("old")
    run(tmp_path, negative_source="minority", max_steps=1)
    assert json.loads((tmp_path / "training_log.json").read_text())["global_step"] == 1
    assert pictures(tmp_path) == ["losses.png", "mine.png", "quality.png"]


def test_the_training_set_is_noted(tmp_path):
    """Votes and agreement are known when training begins, and nobody may find the folder later."""
    trainer = trainer_of(tmp_path, report_plots=True, preset="label_only", negative_source=None)
    selection = {"report": {"rows": {"out": 1}}, "shares": [0] * 10}
    set_selection(trainer, selection)
    (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, RunReportCallback))
    assert callback.run_log().selection == selection
    assert callback.run_log().scores is None


def test_another_trainer(tmp_path):
    """By hand, on a trainer that knows of no discriminator."""
    model = torch.nn.Linear(2, 1)

    class Plain(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(inputs["x"]).pow(2).mean()

    args = TrainingArguments(
        str(tmp_path), max_steps=2, logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    rows = Dataset.from_list([{"x": [1.0, 2.0]}] * 8).with_format("torch")
    trainer = Plain(model=model, args=args, train_dataset=rows)
    trainer.add_callback(RunReportCallback(trainer))
    trainer.train()
    assert pictures(tmp_path) == ["losses.png"]
    assert read_run(tmp_path).settings["learning_rate"] == args.learning_rate


def test_a_killed_run_is_reported_from_its_checkpoint(tmp_path):
    """When a run is killed, its log is wanted most; the scores are in its checkpoint too."""

    class Killed(Exception):
        pass

    trainer = trainer_of(
        tmp_path, report_plots=True, max_steps=4, save_strategy="steps", save_steps=2, per_device_train_batch_size=3
    )
    step = trainer.training_step

    def killing(*args, **kwargs):
        if trainer.state.global_step == 3:
            raise Killed
        return step(*args, **kwargs)

    trainer.training_step = killing
    with pytest.raises(Killed):
        trainer.train()
    log = read_run(tmp_path)
    assert (log.source, log.global_step) == ("checkpoint-2/trainer_state.json", 2)
    assert sum(log.scores["counts"]["teacher_positive"]) > 0
    more = {"report_plots": True, "max_steps": 4, "per_device_train_batch_size": 3}  # three steps an iteration
    again = trainer_of(tmp_path, save_strategy="steps", save_steps=2, **more)
    again.train(resume_from_checkpoint=True)
    resumed = read_run(tmp_path)
    assert (resumed.source, resumed.global_step) == ("training_log.json", 4)
    assert [entry["step"] for entry in resumed.log_history if "loss" in entry] == [1, 2, 3, 4]
    whole = trainer_of(tmp_path / "whole", **more)
    whole.train()
    assert resumed.scores == read_run(tmp_path / "whole").scores
