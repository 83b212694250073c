"""Evaluation of C2KD: ranks of the last items by hand, whatever the batches, and a run that it leaves as it was."""

import math

import pytest
import torch
from c2kd_runs import c2kd_logs, c2kd_trainer, item_model, item_rows
from datasets import Dataset
from running import largest_difference, weights

from qcrd_trl.errors import ModelError, TrainingError


EVAL = item_rows(9, 3)


def by_hand(model, rows):
    """Loss and metrics of the last item of each row, by a loop over users and items."""
    nll, hits, gains, reciprocal = [], [], [], []
    model.eval()
    for row in rows:
        scores = model(torch.tensor([row["items"][:-1]])).logits[0, -1]
        target = row["items"][-1]
        nll.append(-scores.log_softmax(0)[target].item())
        rank = 1
        for item, score in enumerate(scores.tolist()):
            own = scores[target].item()
            rank += score > own or (score == own and item < target)
        hits.append(float(rank <= 10))
        gains.append(1 / math.log2(rank + 1) if rank <= 10 else 0.0)
        reciprocal.append(1 / rank)
    return {
        name: sum(values) / len(rows)
        for name, values in (("loss", nll), ("hr@10", hits), ("ndcg@10", gains), ("mrr", reciprocal))
    }


@pytest.mark.parametrize("size", [1, 4, 9])
def test_metrics_by_hand(tmp_path, size):
    """The item before the last, a history that is masked, or a mean of batch means would all look like results."""
    trainer = c2kd_trainer(
        tmp_path,
        method="none",
        max_steps=2,
        per_device_eval_batch_size=size,
        parts={"eval_dataset": Dataset.from_list(EVAL)},
    )
    trainer.train()
    metrics = trainer.evaluate()
    expected = by_hand(trainer.model, EVAL)
    assert {name: metrics[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert 0 < expected["hr@10"] <= 1
    assert 0 < expected["mrr"] < 1
    again = trainer.evaluate(Dataset.from_list(EVAL), metric_key_prefix="other")
    assert again["other_ndcg@10"] == metrics["eval_ndcg@10"]
    predicted = trainer.predict(Dataset.from_list(EVAL[:4])).metrics
    assert predicted["test_mrr"] == pytest.approx(by_hand(trainer.model, EVAL[:4])["mrr"])


def test_a_head_whose_weights_do_not_tell_its_scores_is_refused(tmp_path):
    """Items would be ranked by the weights beneath, and the epoch that is kept be chosen by scores the student does not give."""
    trainer = c2kd_trainer(tmp_path, method="none", parts={"eval_dataset": Dataset.from_list(EVAL)})
    trainer.model.head.register_forward_hook(lambda module, args, scores: -scores)
    with pytest.raises(ModelError, match="gives other scores than its weights do"):
        trainer.evaluate()


def test_a_student_in_double_precision_is_ranked(tmp_path):
    """Products of doubles are not exact: ranks are those of the weights in single precision."""
    trainer = c2kd_trainer(tmp_path, method="none", parts={"eval_dataset": Dataset.from_list(EVAL)})
    expected = trainer.evaluate()["eval_mrr"]
    trainer.model.double()
    assert trainer.evaluate()["eval_mrr"] == pytest.approx(expected)


def test_equal_scores_go_to_the_smaller_item(tmp_path):
    """A head of zeros would rank its target first, and a model that collapsed would win."""
    trainer = c2kd_trainer(tmp_path, method="none")
    with torch.no_grad():
        trainer.model.head.weight.zero_()
    metrics = trainer.evaluate(Dataset.from_list(EVAL))
    assert metrics["eval_mrr"] == pytest.approx(sum(1 / (row["items"][-1] + 1) for row in EVAL) / len(EVAL))


@pytest.mark.parametrize("method", ["c2kd", "blockwise", "none"])
def test_evaluation_leaves_the_run_as_it_was(tmp_path, method):
    """An evaluation that draws from the run's random state, or counts among what is logged, makes another run of it."""
    results = []
    for often in (False, True):
        torch.manual_seed(1)
        trainer = c2kd_trainer(
            tmp_path,
            item_model(attention_dropout=0.3),
            item_rows(12),
            {"eval_dataset": Dataset.from_list(EVAL)},
            method=method,
            per_device_train_batch_size=4,
            max_steps=5,
            **({"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True} if often else {}),
        )
        trainer.train()
        entries = [entry for entry in c2kd_logs(trainer) if "loss" in entry]
        results.append((weights(trainer.model), entries, torch.get_rng_state()))
        evaluated = [entry for entry in trainer.state.log_history if "eval_ndcg@10" in entry]
        assert len(evaluated) == (6 if often else 0)
    assert largest_difference(results[0][0], results[1][0]) == 0
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][2], results[1][2])


def test_several_sets(tmp_path):
    """Rows of the sets before that are counted along make means of both."""
    sets = {"one": Dataset.from_list(EVAL[:4]), "two": Dataset.from_list(EVAL[4:])}
    trainer = c2kd_trainer(tmp_path, method="none", parts={"eval_dataset": sets})
    metrics = trainer.evaluate()
    for name, rows in (("one", EVAL[:4]), ("two", EVAL[4:])):
        assert metrics[f"eval_{name}_mrr"] == pytest.approx(by_hand(trainer.model, rows)["mrr"])


def test_the_history_is_cut_as_in_training(tmp_path):
    """A longer history than was ever trained on measures another model."""
    trainer = c2kd_trainer(tmp_path, method="none", max_history=2)
    rows = [{"items": row["items"][-3:]} for row in EVAL]
    metrics = trainer.evaluate(Dataset.from_list(EVAL))
    assert metrics["eval_loss"] == pytest.approx(by_hand(trainer.model, rows)["loss"], rel=1e-5)
    assert metrics["eval_loss"] != pytest.approx(by_hand(trainer.model, EVAL)["loss"], rel=1e-5)


def test_scores_that_are_not_finite_are_an_error(tmp_path):
    """Metrics of 0 would be taken for a bad model, and the best checkpoint chosen among them."""
    trainer = c2kd_trainer(tmp_path, method="none")
    with torch.no_grad():
        trainer.model.head.weight[3].fill_(math.inf)
    with pytest.raises(TrainingError, match="rows that are evaluated"):
        trainer.evaluate(Dataset.from_list(EVAL))


def test_a_report_is_written(tmp_path):
    """Without its router's picture nobody sees that one layer is chosen for all rows."""
    trainer = c2kd_trainer(tmp_path, report_plots=True, max_steps=3)
    trainer.train()
    assert (tmp_path / "training_log.json").is_file()
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"losses.png", "router.png"}
