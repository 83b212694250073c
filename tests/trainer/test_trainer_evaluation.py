"""Evaluation inside training: loss parts by name, token ids for metrics, and a training that is left as it was."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from running import FAMILIES, largest_difference, lora, record, trainer_of, weights
from tiny import ID, ids, ragged_rows, tiny_llama


def evaluated(folder, family="llama", rows=None, parts=None, **overrides):
    make, tokenizer = FAMILIES[family]
    parts = {"eval_dataset": Dataset.from_list(rows or ragged_rows(7)), **(parts or {})}
    return trainer_of(folder, make(), processing_class=tokenizer(), parts=parts, **overrides)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", ["qcrd_paper", "dss", "label_only"])
def test_the_loss_is_the_sum_of_its_parts(tmp_path, family, preset):
    """Batches of 4 and 3 questions: a mean of their means is not the mean over the questions."""
    trainer = evaluated(tmp_path, family, preset=preset, **({"margin": 8.0} if preset == "qcrd_paper" else {}))
    metrics, args = trainer.evaluate(), trainer.args
    total = args.alpha_1 * metrics["eval_loss/label"]
    if preset != "label_only":
        total += args.alpha_2 * (metrics["eval_loss/positive"] - args.beta * metrics["eval_loss/negative"])
        assert metrics["eval_nll/positive"] > 1
    if preset == "qcrd_paper":
        total += args.alpha_3 * metrics["eval_loss/discriminator"]
        assert metrics["eval_loss/negative"] < -1
        assert metrics["eval_loss/discriminator"] != 0
        assert 0 <= metrics["eval_discriminator_auc"] <= 1
        assert 0 < metrics["eval_quality/positive"] < 1
    else:
        assert "eval_discriminator_auc" not in metrics
    assert metrics["eval_loss"] == pytest.approx(total, abs=1e-5)


def test_the_decayed_weight_is_in_the_loss(tmp_path):
    """Two epochs on, alpha_3 is 0.81 of what it was, in evaluation as in training."""
    trainer = evaluated(tmp_path, preset="qcrd_paper", max_steps=2, learning_rate=0.0)
    trainer.train()
    metrics = trainer.evaluate()
    contrast = metrics["eval_loss/positive"] - 0.2 * metrics["eval_loss/negative"]
    total = 0.5 * metrics["eval_loss/label"] + 0.5 * contrast + 0.5 * 0.81 * metrics["eval_loss/discriminator"]
    assert abs(metrics["eval_loss/discriminator"]) > 0.01
    assert metrics["eval_loss"] == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("preset", ["qcrd", "qcrd_paper"])
def test_evaluation_does_not_depend_on_its_batches(tmp_path, preset):
    """The best checkpoint must not be another one because memory allowed for larger batches."""
    seen = []
    for batch_size in (8, 3, 1):
        metrics = evaluated(tmp_path, preset=preset, margin=4.0, per_device_eval_batch_size=batch_size).evaluate()
        clocks = ("runtime", "per_second", "preparation_time")
        seen.append({name: value for name, value in metrics.items() if not any(clock in name for clock in clocks)})
    assert seen[0]["eval_loss/negative"] < -0.01
    assert seen[1] == pytest.approx(seen[0], abs=1e-5)
    assert seen[2] == pytest.approx(seen[0], abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_metrics_get_token_ids(tmp_path, family):
    """Logits of every token of a vocabulary of today would not fit into memory: the likeliest ids do."""
    seen = {}

    def accuracy(prediction):
        seen["predictions"], seen["labels"] = prediction.predictions, prediction.label_ids
        there = prediction.label_ids != -100
        return {"token_accuracy": float((prediction.predictions == prediction.label_ids)[there].mean())}

    rows = [{**row, "label": " b" * (i % 2) + f" {row['label']}"} for i, row in enumerate(ragged_rows(7))]
    rows[2]["label"] = None
    trainer = evaluated(tmp_path, family, rows, {"compute_metrics": accuracy})
    metrics = trainer.evaluate()
    predictions, labels = seen["predictions"], seen["labels"]
    assert predictions.shape == labels.shape
    assert predictions.ndim == 2
    assert len(predictions) == 7
    assert np.issubdtype(predictions.dtype, np.integer)
    assert ((predictions == -100) == (labels == -100)).all()
    assert [list(row[row != -100]) for row in labels] == [
        [] if row["label"] is None else ids(row["label"] + " </s>") for row in rows
    ]
    # The ids are the arg max of a plain forward pass, given the label's earlier tokens.
    prompt, label = ids("<Predict> a + 0"), ids("0 </s>")
    if family == "t5":
        out = trainer.model.eval()(
            input_ids=torch.tensor([ids("<Predict> a + 0 </s>")]), decoder_input_ids=torch.tensor([[0, *label[:-1]]])
        ).logits[0]
    else:
        out = trainer.model.eval()(input_ids=torch.tensor([[*prompt, *label]])).logits[0, len(prompt) - 1 : -1]
    row = predictions[0]
    assert list(row[row != -100]) == out.argmax(-1).tolist()
    there = labels != -100
    assert metrics["eval_token_accuracy"] == (predictions == labels)[there].mean()


def test_predict(tmp_path):
    """The same for a dataset given later, under the prefix of its own."""
    trainer = evaluated(tmp_path, preset="qcrd")
    output = trainer.predict(trainer.eval_dataset)
    assert output.predictions.shape == output.label_ids.shape
    assert len(output.predictions) == 7
    assert {"test_loss", "test_loss/label", "test_loss/positive"} <= output.metrics.keys()
    assert output.metrics["test_loss"] == trainer.evaluate()["eval_loss"]


def test_rows_given_later_are_tokenized(tmp_path):
    """`evaluate(dataset)` takes what `eval_dataset` takes."""
    trainer = evaluated(tmp_path)
    assert trainer.evaluate(Dataset.from_list(ragged_rows(7)))["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_several_evaluation_sets(tmp_path):
    """Each under its own name, with counts of its own."""
    parts = {"eval_dataset": {"one": Dataset.from_list(ragged_rows(2)), "two": Dataset.from_list(ragged_rows(5))}}
    trainer = trainer_of(tmp_path, parts=parts, preset="dss_all")
    metrics = trainer.evaluate()
    alone = evaluated(tmp_path, rows=ragged_rows(5), preset="dss_all").evaluate()
    assert metrics["eval_two_loss"] == pytest.approx(alone["eval_loss"], abs=1e-6)
    assert metrics["eval_two_loss/positive"] == pytest.approx(alone["eval_loss/positive"], abs=1e-6)
    assert metrics["eval_one_loss"] != pytest.approx(metrics["eval_two_loss"], abs=1e-4)


def test_held_out_labels_need_no_rationales(tmp_path):
    """Held-out questions were seldom sent to a teacher: they still measure the label task."""
    rows = [{"prompt": row["prompt"], "label": row["label"]} for row in ragged_rows(7)]
    metrics = evaluated(tmp_path, rows=rows).evaluate()
    assert metrics["eval_loss"] == pytest.approx(0.5 * metrics["eval_loss/label"], abs=1e-6)
    assert metrics["eval_loss/label"] > 1


def test_a_known_student_is_measured_as_it_is(tmp_path):
    """Rates that come from another formula than their name says mislead whoever tunes by them."""
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token has probability 1/V
    trainer = trainer_of(
        tmp_path, model, parts={"eval_dataset": Dataset.from_list(ragged_rows(8))}, preset="qcrd_paper", margin=4.0
    )
    metrics, uniform = trainer.evaluate(), np.log(len(ID))
    assert metrics["eval_nll/label"] == pytest.approx(uniform, abs=1e-5)
    assert metrics["eval_nll/positive"] == metrics["eval_nll/negative"] == pytest.approx(uniform, abs=1e-5)
    assert metrics["eval_negatives/beyond_margin"] == 0
    trainer.args.margin = 3.0
    assert trainer.evaluate()["eval_negatives/beyond_margin"] == 1


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_evaluation_leaves_training_as_it_was(tmp_path, accumulation, adapter):
    """A gradient, a mode or a mean left behind would make a run depend on how often it is measured."""
    runs = []
    for evaluate in (False, True):
        torch.manual_seed(0)
        trainer = evaluated(
            tmp_path,
            parts={"peft_config": lora() if adapter else None},
            optim="adamw_torch",
            max_steps=3,
            per_device_train_batch_size=4 // accumulation,
            gradient_accumulation_steps=accumulation,
            **({"eval_strategy": "steps", "eval_steps": 1} if evaluate else {}),
        )
        seen = record(trainer)
        trainer.train()
        runs.append((seen, weights(trainer.model), weights(trainer.discriminator)))
    assert runs[0][0].losses == runs[1][0].losses
    assert len(runs[0][0].losses) == 3 * accumulation
    assert largest_difference(runs[0][1], runs[1][1]) == 0
    assert largest_difference(runs[0][2], runs[1][2]) == 0


def test_evaluation_draws_the_same_rationales_each_time(tmp_path):
    """A curve over steps must show the student, not the draw."""
    trainer = evaluated(tmp_path, preset="qcrd", reduction="sampling", max_steps=2, learning_rate=0.0)
    before = trainer.evaluate()["eval_nll/positive"]
    trainer.train()
    assert trainer.evaluate()["eval_nll/positive"] == pytest.approx(before, abs=1e-6)
