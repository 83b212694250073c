"""Accuracies inside training that cannot work: told before the first step, or at least not passed over."""

import pytest
from asking import ASKING, asked, held_out, plain
from datasets import Dataset

from qcrd_trl import AccuracyCallback, QCRDConfig
from qcrd_trl.errors import ConfigError, DataError, ModelError


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
        with pytest.raises(ModelError, match=r"LlamaForCausalLM cannot generate answers.*eval_accuracy=False"):
            AccuracyCallback(trainer, "number")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "is_fsdp_enabled", True)
        with pytest.raises(ConfigError, match=r"^Answers .* FSDP and ZeRO-3 split up.*qcrd evaluate"):
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
