"""Answers as metrics of the `evaluate` library, offline and inside a trainer."""

import evaluate
import numpy as np
import pytest
from datasets import Dataset
from running import trainer_of
from tiny import ragged_rows, tiny_gpt2, word_tokenizer

from qcrd_trl import AnswerAccuracy, AnswerAgreement
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.evaluation.outcome import Written, outcome_of
from qcrd_trl.records import Question


def test_accuracy_by_hand():
    """A text compared as a text calls "7.0" and "The answer is 7." wrong."""
    texts = ["3 + 4 = 7. The answer is 7.", "7.0", "It is 12.", "Who knows?", None]
    found = AnswerAccuracy().compute(predictions=texts, references=["7", "7", "7", "7", "7"], task_kind="number")
    assert found == {"accuracy": 2 / 5, "no_answer": 2 / 5}


def test_agreement_by_hand():
    """Two texts without an answer do not agree."""
    found = AnswerAgreement().compute(
        predictions=["7", "8", "none"], references=["3 + 4 = 7", "It is 9.", "no idea"], task_kind="number"
    )
    assert found == {"agreement": 1 / 3}


def test_they_are_metrics_of_the_library():
    """What works with other metrics works with these: batches one by one, and combinations."""
    metric = AnswerAccuracy()
    assert isinstance(metric, evaluate.Metric)
    assert "task_kind" in metric.inputs_description
    metric.add_batch(predictions=["It is 7."], references=["7"])
    metric.add(prediction="8", reference="7")
    assert metric.compute(task_kind="number")["accuracy"] == 0.5
    assert metric.compute(predictions=["9"], references=["9"], task_kind="number")["accuracy"] == 1  # and again
    both = evaluate.combine([AnswerAccuracy(), AnswerAgreement()])
    found = both.compute(predictions=["7"], references=["7"], task_kind="number")
    assert found == {"accuracy": 1, "no_answer": 0, "agreement": 1}


def test_options_of_a_choice():
    """The text of an option is an answer only if the options are known."""
    choices = [{"A": "a hat", "B": "a bank"}, {"A": "a boat", "B": "a hat"}]
    texts = ["The answer is a bank.", "The answer is a hat."]
    found = AnswerAccuracy().compute(predictions=texts, references=["B", "A"], task_kind="choice", choices=choices)
    assert found["accuracy"] == 0.5
    found = AnswerAgreement().compute(
        predictions=texts, references=["(B)", "(B)"], task_kind="choice", choices=choices
    )
    assert found["agreement"] == 1


def test_a_task_kind_of_ones_own():
    """Any function from a text to a value."""
    found = AnswerAccuracy().compute(
        predictions=["it is two", "it is three"], references=["two", "two"], task_kind=lambda text: text.split()[-1]
    )
    assert found["accuracy"] == 0.5


def test_they_are_the_accuracies_of_an_evaluation():
    """Two formulas of one name would let a paper report the better."""
    labels, texts = ["1", "2", "3", "4"], ["1", "It is 2.0.", "5", "none"]
    asked = [Question(i, f"q{i}", "?", label, ()) for i, label in enumerate(labels)]
    said = ["It is 1.", "6", "It is 5.", "none"]
    written = {"label": [[Written(t, True)] for t in texts], "rationale": [[Written(t, True)] for t in said]}
    result = outcome_of(asked, written, "number")
    kind = {"task_kind": "number"}
    assert AnswerAccuracy().compute(predictions=texts, references=labels, **kind)["accuracy"] == result.label_accuracy
    assert AnswerAccuracy().compute(predictions=said, references=labels, **kind)["accuracy"] == result.answer_accuracy
    assert (
        AnswerAgreement().compute(predictions=texts, references=said, **kind)["agreement"] == result.agreement == 0.5
    )


def test_inside_compute_metrics(tmp_path):
    """As documented: the likeliest tokens of the label, given its earlier ones, read back as texts."""
    tokenizer, metric = word_tokenizer(), AnswerAccuracy()

    def compute_metrics(prediction):
        texts = [
            tokenizer.batch_decode(np.where(ids == -100, tokenizer.pad_token_id, ids), skip_special_tokens=True)
            for ids in (prediction.predictions, prediction.label_ids)
        ]
        found = metric.compute(predictions=texts[0], references=texts[1], task_kind="number")
        return {f"forced_{name}": value for name, value in found.items()}

    rows = ragged_rows(4)
    trainer = trainer_of(
        tmp_path,
        tiny_gpt2(),
        rows,
        parts={"eval_dataset": Dataset.from_list(ragged_rows(6)), "compute_metrics": compute_metrics},
        preset="label_only",
        max_steps=60,
        optim="adamw_torch",
        learning_rate=0.02,
    )
    before = trainer.evaluate()["eval_forced_accuracy"]
    trainer.train()
    assert before < trainer.evaluate(Dataset.from_list(rows))["eval_forced_accuracy"] == 1
    assert trainer.evaluate()["eval_forced_no_answer"] == 0


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"predictions": [], "references": []}, DataError, "no texts to measure"),
        ({"references": ["many"]}, DataError, "Reference 0: .*many"),
        ({"task_kind": "essay"}, ConfigError, "`task_kind` is 'essay'"),
        ({"task_kind": None}, ConfigError, "`task_kind` is None"),
        ({"choices": []}, DataError, "got 0 for 1 texts"),
    ],
    ids=["empty", "label", "kind", "no_kind", "choices"],
)
def test_what_cannot_be_measured(kwargs, error, message):
    """A label that cannot be read is the dataset's fault, and would count as the student's."""
    with pytest.raises(error, match=message):
        AnswerAccuracy().compute(**{"predictions": ["7"], "references": ["7"], "task_kind": "number", **kwargs})
