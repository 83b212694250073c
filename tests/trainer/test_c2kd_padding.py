"""Where the padding of a batch is, changes neither loss, nor gradient, nor the router's choice, in any mode or backbone."""

import pytest
import torch
from c2kd_runs import NUM_ITEMS, c2kd_trainer, item_model, item_rows, teacher_model
from tiny import VOCAB_SIZE, tiny_gpt2, tiny_llama, word_tokenizer

from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.sasrec import SASRecConfig, SASRecModel


def sasrec(size=8, layers=2, seed=0):
    torch.manual_seed(seed)
    settings = {"hidden_size": size, "num_hidden_layers": layers, "max_position_embeddings": 16, "dropout": 0.0}
    return SASRecModel(SASRecConfig(NUM_ITEMS, initializer_range=0.5, **settings))


def items_trainer(folder, student, method, **parts):
    parts = {"teacher_model": teacher_model(), **parts}
    return c2kd_trainer(folder, student, item_rows(), parts, method=method)


def texts_trainer(folder, build, method):
    parts = {
        "processing_class": word_tokenizer(),
        "teacher_model": tiny_llama(5, hidden_size=24, num_hidden_layers=4, initializer_range=0.4),
    }
    if method == "c2kd":
        torch.manual_seed(9)
        parts["layer_filters"] = LayerFilters((2, 3, 4), 24, 16, VOCAB_SIZE)
    pairs = [("a 1 + b", "d e"), ("c", "f"), ("a b c d e f g", "g = 1"), ("so 3", "a"), ("1 2 3", "b b 2 4")]
    rows = [{"prompt": prompt, "completion": title} for prompt, title in pairs]
    return c2kd_trainer(folder, build(), rows, parts, task_mode="generative", method=method)


CASES = {
    "llama": lambda folder, method: items_trainer(folder, item_model(), method),
    "sasrec": lambda folder, method: items_trainer(folder, sasrec(), method),
    "taught by sasrec": lambda folder, method: items_trainer(
        folder, item_model(), method, teacher_model=sasrec(12, 4, 5)
    ),
    "text, llama": lambda folder, method: texts_trainer(folder, tiny_llama, method),
    "text, gpt2": lambda folder, method: texts_trainer(folder, tiny_gpt2, method),
}


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "logit_kd", "blockwise"])
@pytest.mark.parametrize("case", CASES)
def test_padding_on_either_side_and_of_any_width(tmp_path, case, method):
    """Positions counted from the first column, or padding that is attended to, move every state of a row padded on the left."""
    trainer = CASES[case](tmp_path, method)
    rows = list(trainer.train_dataset)
    pad, seen = trainer.data_collator.pad_token_id, []
    for side, multiple in (("right", None), ("left", None), ("left", 16), ("right", 16)):
        trainer.model.zero_grad()
        trainer.heads.zero_grad()
        trainer._meters["run"].reset()
        batch = DataCollatorForC2KD(pad, side, multiple)(rows)
        assert (batch["attention_mask"][0] == 0).any()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        gradients = [p.grad.clone() for part in (trainer.model, trainer.heads) for p in part.parameters()]
        seen.append((loss.item(), trainer.router_shares(), gradients))
    for loss, shares, gradients in seen[1:]:
        assert loss == pytest.approx(seen[0][0], rel=1e-5)
        assert shares == seen[0][1]
        for one, other in zip(gradients, seen[0][2], strict=True):
            assert (one - other).abs().max() < 1e-5 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("method", ["c2kd", "none", "blockwise"])
def test_a_batch_without_a_target_costs_nothing(tmp_path, method):
    """0 divided by 0 positions is a NaN that reaches every weight."""
    trainer = c2kd_trainer(tmp_path, method=method)
    batch = trainer.data_collator([{**row, "labels": [-100] * len(row["labels"])} for row in trainer.train_dataset])
    count = trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    assert count == 0
    loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=count)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or p.grad.isfinite().all() for p in trainer.model.parameters())
