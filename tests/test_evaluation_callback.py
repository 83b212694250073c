"""Accuracies by generation inside training: metrics like any other, and a training that is left as it was."""

import json
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from generating import generating, questions, sharp_llama
from running import FAMILIES, largest_difference, lora, trainer_of, weights
from tiny import ids, tiny_llama, word_tokenizer
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

import qcrd_trl.evaluation_callback as module
from qcrd_trl import AccuracyCallback, QCRDConfig, QCRDTrainer, evaluate_student
from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.evaluation.outcome import Written


NAMES = ("eval_label_accuracy", "eval_answer_accuracy", "eval_agreement", "eval_accuracy_questions")
ASKING = {"eval_accuracy": True, "task_kind": "number", "eval_max_new_tokens": 6, "eval_label_max_new_tokens": 4}
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}


def held_out(count=6):
    return Dataset.from_list([{"prompt": f"b + {i}", "label": str(i), "id": f"h{i}"} for i in range(count)])


def asked(folder, model=None, rows=None, eval_rows=None, parts=None, **overrides):
    """A trainer that asks six held-out questions at each evaluation."""
    parts = {"eval_dataset": held_out() if eval_rows is None else eval_rows, **(parts or {})}
    model = sharp_llama() if model is None else model
    return trainer_of(folder, model, questions() if rows is None else rows, parts=parts, **{**ASKING, **overrides})


def callback_of(trainer) -> AccuracyCallback:
    (found,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, AccuracyCallback)]
    return found


def accuracies(metrics):
    return {name: metrics[name] for name in NAMES if name in metrics}


def entries(trainer):
    """What was logged of each evaluation, less what the clock says."""
    clocks = ("runtime", "per_second", "preparation_time")
    return [
        {name: value for name, value in entry.items() if not any(clock in name for clock in clocks)}
        for entry in trainer.state.log_history
        if "eval_loss" in entry
    ]


def scripted(monkeypatch, rights):
    """Makes the student answer so many of the held-out questions rightly at each evaluation, in turn."""
    left = list(rights)

    def ask(model, tokenizer, questions, settings, form, share, progress):
        right = left.pop(0)
        texts = [[Written(one.label if i < right else "none", True)] for i, one in enumerate(questions)]
        return {"label": texts, "rationale": [list(written) for written in texts]}

    monkeypatch.setattr(module, "ask", ask)


class Watch(TrainerCallback):
    """Keeps the metrics that callbacks get at each evaluation."""

    def __init__(self):
        self.seen = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.seen.append(dict(metrics))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_metrics_are_those_of_an_evaluation(tmp_path, family):
    """The log, other callbacks and the caller must be told one number, and `qcrd evaluate` must find it again."""
    make, tokenizer = FAMILIES[family]
    watch = Watch()
    trainer = trainer_of(
        tmp_path,
        make(),
        [{"prompt": f"b + {i}", "label": str(i), "positive_rationales": [f"b = {i}"]} for i in range(3)],
        tokenizer(),
        {"eval_dataset": held_out(), "callbacks": [watch]},
        preset="dss_all",
        max_steps=40,
        optim="adamw_torch",
        learning_rate=0.02,
        **ASKING,
    )
    trainer.train()
    metrics = trainer.evaluate()
    result = evaluate_student(
        trainer.model,
        tokenizer(),
        held_out(),
        "number",
        trainer.student_format,
        label_max_new_tokens=4,
        max_new_tokens=6,
        progress=False,
    )
    assert 0 < result.label_accuracy < 1  # three of six were learned
    assert accuracies(metrics) == {
        "eval_label_accuracy": result.label_accuracy,
        "eval_answer_accuracy": result.answer_accuracy,
        "eval_agreement": result.agreement,
        "eval_accuracy_questions": 6,
    }
    assert metrics["eval_accuracy_runtime"] > 0
    assert accuracies(watch.seen[-1]) == accuracies(entries(trainer)[-1]) == accuracies(metrics)
    assert callback_of(trainer).results["eval"].questions == result.questions


def test_the_best_model_and_early_stopping(tmp_path, monkeypatch):
    """Metrics that come after the trainer has looked for the best model are logged all the same, and never used."""
    scripted(monkeypatch, [2, 5, 4, 3, 6, 6])
    trainer = asked(
        tmp_path,
        parts={"callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]},
        max_steps=6,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="answer_accuracy",
        **EACH_STEP,
    )
    trainer.train()
    assert [entry["eval_answer_accuracy"] for entry in entries(trainer)] == [2 / 6, 5 / 6, 4 / 6, 3 / 6]
    assert trainer.state.global_step == 4  # two evaluations without a better one
    assert trainer.state.best_metric == 5 / 6
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best = QCRDTrainer(tmp_path / "checkpoint-2", QCRDConfig(tmp_path / "x", use_cpu=True, report_to="none")).model
    assert largest_difference(weights(trainer.model), weights(best)) == 0


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_run_is_the_same_with_it_and_without(tmp_path, adapter, sampled):
    """Random numbers drawn, or a mode left behind, would make a run depend on whether it is measured."""
    runs = []
    for measures in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        parts = {"eval_dataset": held_out(), "peft_config": lora(lora_dropout=0.3) if adapter else None}
        trainer = generating(
            tmp_path / str(measures),
            sharp_llama(attention_dropout=0.3),
            parts=parts,
            max_steps=3,
            **(EACH_STEP if measures else {}),
        )
        if measures:
            kwargs = {"num_samples": 2} if sampled else {}
            trainer.add_callback(
                AccuracyCallback(trainer, "number", max_new_tokens=5, label_max_new_tokens=3, **kwargs)
            )
        trainer.train()
        if measures:
            assert len(entries(trainer)) == 3
            assert all("eval_answer_accuracy" in entry for entry in entries(trainer))
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        store = [(key, negative.token_ids) for key, negative in trainer.negatives]
        states = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        asked_grad = {name: p.requires_grad for name, p in trainer.model.named_parameters()}
        runs.append(((losses, store, states, asked_grad), weights(trainer.model)))
    assert runs[0][0] == runs[1][0]
    assert len(runs[0][0][0]) == 3
    assert largest_difference(runs[0][1], runs[1][1]) == 0


def test_modes_and_the_adapter_stay(tmp_path):
    """Called by hand in the middle of training, an evaluation leaves the student as the loop needs it."""
    trainer = asked(tmp_path, parts={"peft_config": lora()})
    trainer.model.train()
    list(trainer.model.modules())[5].eval()
    before = {name: m.training for name, m in trainer.model.named_modules()}
    held = weights(trainer.model)
    callback_of(trainer).measure(held_out(), "eval")
    assert before == {name: m.training for name, m in trainer.model.named_modules()}
    assert largest_difference(held, weights(trainer.model)) == 0
    assert trainer.model.active_adapter == "default"


class StopAfter(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 2


def test_a_resumed_run_goes_on_exactly(tmp_path):
    """The accuracies of a resumed run, and what is best so far, are those of the run that was not stopped."""
    shape = {
        **EACH_STEP,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "metric_for_best_model": "eval_agreement",
        "load_best_model_at_end": True,
        "optim": "adamw_torch",
        "learning_rate": 0.05,
    }

    def run(folder, resume=None, **parts):
        torch.manual_seed(0)
        trainer = asked(folder, sharp_llama(attention_dropout=0.3), parts=parts, **shape)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(tmp_path / "whole")
    run(tmp_path / "stopped", callbacks=[StopAfter()])
    resumed = run(tmp_path / "stopped", resume=True)
    assert len(entries(whole)) == 4
    assert entries(resumed) == entries(whole)
    assert resumed.state.best_metric == whole.state.best_metric
    assert resumed.state.best_model_checkpoint[-12:] == whole.state.best_model_checkpoint[-12:]
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0


# ---- What is asked ----


def test_a_student_without_a_rationale_task(tmp_path):
    """Its rationales would be noise; a metric of noise must not be there to choose a model by."""
    trainer = asked(tmp_path, preset="label_only")
    metrics = trainer.evaluate()
    assert "eval_label_accuracy" in metrics
    assert "eval_answer_accuracy" not in metrics
    assert "eval_agreement" not in metrics
    trainer.save_model()
    told = json.loads((tmp_path / "qcrd_format.json").read_text(encoding="utf-8"))
    assert (told["predicts"], told["explains"]) == (True, False)
    other = asked(tmp_path, alpha_1=0.0)
    assert (other.student_format.predicts, other.student_format.explains) == (False, True)
    assert "eval_label_accuracy" not in other.evaluate()


def test_several_sets(tmp_path):
    """Each under its own name, of its own questions."""
    trainer = asked(tmp_path, eval_rows={"one": held_out(2), "two": held_out(5)})
    metrics = trainer.evaluate()
    assert (metrics["eval_one_accuracy_questions"], metrics["eval_two_accuracy_questions"]) == (2, 5)
    assert "eval_two_answer_accuracy" in metrics
    assert set(callback_of(trainer).results) == {"eval_one", "eval_two"}
    assert [one.id for one in callback_of(trainer).results["eval_one"].questions] == ["h0", "h1"]


def test_rows_that_are_given_later(tmp_path):
    """The questions asked are those evaluated on, not those that the trainer was built with."""
    trainer = asked(tmp_path)
    assert trainer.evaluate(held_out(3))["eval_accuracy_questions"] == 3
    assert trainer.evaluate({"more": held_out(4)})["eval_more_accuracy_questions"] == 4
    assert trainer.evaluate(trainer.eval_dataset)["eval_accuracy_questions"] == 6
    assert trainer.evaluate(trainer.train_dataset)["eval_accuracy_questions"] == 8
    assert trainer.evaluate()["eval_accuracy_questions"] == 6
    assert not any("accuracy" in name for name in trainer.predict(held_out(3)).metrics)
    several = asked(tmp_path, eval_rows={"one": held_out(2), "two": held_out(5)})
    assert several.evaluate(several.eval_dataset["two"])["eval_accuracy_questions"] == 5


def test_questions_of_ones_own(tmp_path):
    """A smaller or another set than that of the losses, with several samples, at every evaluation."""
    trainer = asked(tmp_path, eval_accuracy=False)
    assert trainer.evaluate().keys().isdisjoint(NAMES)
    trainer.add_callback(
        AccuracyCallback(trainer, "number", held_out(4), max_questions=3, num_samples=2, max_new_tokens=4)
    )
    assert trainer.evaluate()["eval_accuracy_questions"] == 3
    results = callback_of(trainer).results["eval"].questions
    assert all(len(one.samples.rationales) == 2 for one in results)
    trainer.remove_callback(AccuracyCallback)
    assert trainer.evaluate().keys().isdisjoint(NAMES)


def test_a_streamed_set(tmp_path):
    """A stream has no columns to look at before it is read."""
    trainer = asked(tmp_path, eval_rows=held_out().to_iterable_dataset(), eval_max_questions=4)
    assert trainer.evaluate()["eval_accuracy_questions"] == 4


def test_choices(tmp_path):
    """Options belong to their question."""
    rows = [{"prompt": f"b + {i}", "label": "B", "options": ["a", "b"]} for i in range(3)]
    trainer = asked(tmp_path, eval_rows=Dataset.from_list(rows), task_kind="choice", choices_column="options")
    assert trainer.evaluate()["eval_accuracy_questions"] == 3
    assert callback_of(trainer).results["eval"].questions[0].label == "B"


# ---- Another trainer ----


def plain(folder, **overrides):
    """A trainer of transformers, on token ids."""
    rows = Dataset.from_list([{"input_ids": ids("<Predict> a + 1 1 </s>"), "labels": ids("<Predict> a + 1 1 </s>")}])
    kwargs = {"train_dataset": rows, "eval_dataset": rows, "processing_class": word_tokenizer(), **overrides}
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **EACH_STEP, max_steps=2)
    return Trainer(model=tiny_llama(), args=args, **kwargs)


def test_a_trainer_of_transformers(tmp_path):
    """The same metrics, for whoever trains by other losses."""
    trainer, watch = plain(tmp_path), Watch()
    trainer.add_callback(AccuracyCallback(trainer, "number", held_out(), max_new_tokens=4))
    trainer.add_callback(watch)
    trainer.train()
    assert len(watch.seen) == 2
    assert set(NAMES) <= watch.seen[0].keys()
    assert set(NAMES) <= entries(trainer)[0].keys()
    assert not any("accuracy" in name for name in trainer.predict(trainer.eval_dataset).metrics)


# ---- What cannot work ----


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"task_kind": None}, "eval_accuracy=True needs `task_kind`"),
        ({"eval_max_new_tokens": 0}, "eval_max_new_tokens must be an integer of at least 1"),
        ({"eval_max_questions": 0}, "eval_max_questions must be an integer of at least 1"),
        ({"preset": "label_only", "metric_for_best_model": "eval_answer_accuracy"}, "alpha_2 is 0"),
        ({"preset": "label_only", "metric_for_best_model": "eval_one_agreement"}, "alpha_2 is 0"),
        ({"alpha_1": 0.0, "metric_for_best_model": "label_accuracy"}, "alpha_1 is 0"),
    ],
    ids=["kind", "tokens", "questions", "answer", "agreement", "label"],
)
def test_configurations_that_cannot_work(kwargs, message):
    """The first evaluation may come hours after the start."""
    with pytest.raises(ConfigError, match=message):
        QCRDConfig("unused", **{**ASKING, **kwargs})


def test_options_that_cannot_work(tmp_path):
    """Two of them would measure twice, and log one."""
    trainer = asked(tmp_path)
    with pytest.raises(ConfigError, match="has an AccuracyCallback already"):
        AccuracyCallback(trainer, "number")
    trainer = asked(tmp_path, eval_accuracy=False)
    for kwargs, message in (
        ({"task_kind": "essay"}, "`task_kind` is 'essay'"),
        ({"task_kind": "number", "max_questions": 0}, "max_questions must be at least 1, got 0"),
        ({"task_kind": "number", "num_samples": 0}, "num_samples must be an integer"),
        ({"task_kind": "number", "batch_size": 0}, "batch_size must be an integer"),
    ):
        with pytest.raises(ConfigError, match=message):
            AccuracyCallback(trainer, **kwargs)
    label_only = asked(tmp_path, preset="label_only", eval_accuracy=False)
    with pytest.raises(ConfigError, match="was not taught the rationale task"):
        AccuracyCallback(label_only, "number", tasks=["rationale"])
    assert trainer.evaluation_parts == label_only.evaluation_parts == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a", "label": "many"}], r"eval_dataset cannot be asked .* Row 0, column 'label'.*many"),
        ([{"prompt": "a", "label": None, "positive_rationales": ["a is 1"]}], "0 of 1 rows have a prompt and a label"),
        ([{"prompt": "a", "label": "1", "id": "x"}] * 2, "Rows 0 and 1 .* have the same id 'x'"),
    ],
    ids=["label", "none", "id"],
)
def test_questions_that_cannot_be_asked(tmp_path, rows, message):
    """Before the first step, not at the first evaluation."""
    with pytest.raises(DataError, match=message):
        asked(tmp_path, eval_rows=Dataset.from_list(rows))
    with pytest.raises(DataError, match=r"eval_dataset\['two'\] cannot be asked"):
        asked(tmp_path, eval_rows={"one": held_out(), "two": Dataset.from_list(rows)})


def test_models_and_trainers_that_cannot_work(tmp_path, monkeypatch):
    """Each would fail, or hang, only when the first evaluation comes."""
    trainer = asked(tmp_path, eval_accuracy=False)
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer.model), "can_generate", lambda self: False)
        with pytest.raises(ModelError, match="LlamaForCausalLM cannot generate"):
            AccuracyCallback(trainer, "number")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "is_fsdp_enabled", True)
        with pytest.raises(ConfigError, match="FSDP and ZeRO-3 split up"):
            AccuracyCallback(trainer, "number")
    with pytest.raises(ConfigError, match="A Trainer keeps no questions as texts: pass `questions=`"):
        AccuracyCallback(plain(tmp_path), "number")
    rows = plain(tmp_path).eval_dataset
    with pytest.raises(ConfigError, match="several sets in `eval_dataset`"):
        AccuracyCallback(plain(tmp_path, eval_dataset={"a": rows, "b": rows}), "number", held_out())
    with pytest.raises(ConfigError, match="leave `questions` out, and each set is asked under its name"):
        AccuracyCallback(asked(tmp_path, eval_rows={"a": held_out()}, eval_accuracy=False), "number", held_out())
    without = plain(tmp_path)
    without.processing_class = None
    with pytest.raises(ConfigError, match="has no tokenizer to generate with"):
        AccuracyCallback(without, "number", held_out())


def test_a_metric_of_the_same_name(tmp_path):
    """Of two numbers under one name, one would be lost."""
    trainer = asked(tmp_path, parts={"compute_metrics": lambda prediction: {"label_accuracy": 0.5}})
    with pytest.raises(ConfigError, match="`compute_metrics` gives eval_label_accuracy too"):
        trainer.evaluate()


def test_an_error_while_asking(tmp_path, monkeypatch):
    """It is raised, and the next evaluation is not taken for one of other rows."""
    trainer = asked(tmp_path)
    generate = trainer.model.generate

    def failing(*args, **kwargs):
        raise RuntimeError("no memory is left here")

    monkeypatch.setattr(trainer.model, "generate", failing)
    with pytest.raises(RuntimeError, match="no memory is left"):
        trainer.evaluate(held_out(2))
    monkeypatch.setattr(trainer.model, "generate", generate)
    assert trainer.evaluate()["eval_accuracy_questions"] == 6
