"""One step of each method against an independent slow float64 computation from the equations: loss, parts, choices, gradients."""

import pytest
import torch
from c2kd_reference import doubled, reference_filter_loss, reference_loss
from c2kd_runs import c2kd_logs, c2kd_trainer, filters_of, item_rows, record_c2kd, teacher_model
from filtering import filter_trainer, record_gradients
from running import logged
from tiny import EOS, VOCAB_SIZE, ids, tiny_llama, word_tokenizer

from qcrd_trl.recommendation.layer_filters import LayerFilters


METHODS = ("c2kd", "none", "feature_kd", "logit_kd", "blockwise")
TITLES = ("d e", "f", "g = 1", "a", "b b", "c 2", "d", "e f g")
PROMPTS = ("a 1 + b", "c", "a b c d e f g", "so 3", "1 2", "3 4 5 6", "a + a", "is 7 8")
# Batches of one step of 8 rows: (rows in a micro-batch, micro-batches). The last of (3, 3) holds two rows.
SPLITS = ((8, 1), (3, 3), (1, 8))


def item_run(folder, method, **overrides):
    """A trainer in item-head mode, and its rows as the reference reads them: all items but the first are predicted."""
    rows = item_rows()
    start = (lambda items: len(items) - 1) if overrides.get("train_positions") == "last" else (lambda items: 1)
    trainer = c2kd_trainer(folder, rows=rows, method=method, **overrides)
    return trainer, [(row["items"], start(row["items"])) for row in rows]


def text_run(folder, method, **overrides):
    """A trainer in generative mode; the title and the token that ends it are predicted. The filters are MLPs."""
    parts = {"processing_class": word_tokenizer()}
    if method != "none":
        # Weights so large that its layers and its distributions differ.
        parts["teacher_model"] = tiny_llama(5, hidden_size=24, num_hidden_layers=4, initializer_range=0.4)
    if method == "c2kd":
        torch.manual_seed(9)
        parts["layer_filters"] = LayerFilters((2, 3, 4), 24, 16, VOCAB_SIZE, "mlp")
    pairs = list(zip(PROMPTS, TITLES, strict=True))
    rows = [{"prompt": prompt, "completion": title} for prompt, title in pairs]
    trainer = c2kd_trainer(folder, tiny_llama(), rows, parts, task_mode="generative", method=method, **overrides)
    return trainer, [([*ids(prompt), *ids(title), EOS], len(prompt.split())) for prompt, title in pairs]


def compare(trainer, rows, precision=1e-5):
    """Trains one step and compares all of it with the reference."""
    objective, args = trainer._objective, trainer.args
    student, heads = doubled(trainer.model), doubled(trainer.heads)
    teacher = doubled(trainer.teacher.model) if trainer.teacher is not None else student
    filters = doubled(trainer.filters) if trainer.filters is not None else {}
    total, parts, chosen = reference_loss(
        args,
        rows,
        student,
        heads,
        teacher,
        filters,
        objective.layers,
        objective.student_blocks,
        objective.teacher_blocks,
    )
    total.backward()
    noted = record_c2kd(trainer)
    trainer.train()
    entry = c2kd_logs(trainer)[0]
    assert entry["loss"] == pytest.approx(total.item(), rel=precision)
    assert {name[5:]: entry[name] for name in entry if name.startswith("loss/")} == pytest.approx(parts, rel=precision)
    shares = {layer: chosen.count(layer) / len(rows) for layer in objective.layers}
    assert trainer.router_shares() == pytest.approx(shares)
    expected = {f"student.{name}": weight.grad for name, weight in student.items()}
    expected |= {f"heads.{name}": weight.grad for name, weight in heads.items()}
    assert noted[0].keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(gradient.abs().max().item(), 1e-3)
        assert (noted[0][name] - gradient).abs().max().item() < 10 * precision * scale, name
    return parts, chosen


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}")
@pytest.mark.parametrize("method", METHODS)
def test_items(tmp_path, method, split):
    """A mean of means, a part scaled by rows, or a gradient that leaks through a target shows in one split or another."""
    size, steps = split
    trainer, rows = item_run(
        tmp_path, method, per_device_train_batch_size=size, gradient_accumulation_steps=steps, temperature=2.0
    )
    parts, chosen = compare(trainer, rows)
    assert min(parts.values()) > 1e-2
    assert len(set(chosen)) != 1, "a router that has one choice shows nothing"


@pytest.mark.parametrize("method", METHODS)
def test_titles(tmp_path, method):
    """A prompt that counts, an end of the title that does not, or one position to the side trains plausibly."""
    trainer, rows = text_run(
        tmp_path, method, per_device_train_batch_size=3, gradient_accumulation_steps=3, temperature=2.0
    )
    compare(trainer, rows)


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("c2kd", {"filter_target": "normed"}),
        ("c2kd", {"filter_target": "normed", "feature_loss": "normalized", "feature_alpha": 0.3, "student_layer": 1}),
        ("c2kd", {"lambda_orthogonal": 0.05, "train_positions": "last", "pad_to_multiple_of": 16}),
        ("feature_kd", {"logit_distillation": "own_heads", "feature_loss": "normalized", "temperature": 0.5}),
    ],
    ids=["normed", "normalized", "orthogonal", "mixed"],
)
def test_options(tmp_path, method, overrides):
    """An option that is read and not obeyed gives a run that is called what it is not."""
    trainer, rows = item_run(
        tmp_path, method, per_device_train_batch_size=3, gradient_accumulation_steps=3, **overrides
    )
    if "lambda_orthogonal" in overrides:
        with torch.no_grad():
            trainer.heads.logit_projection.weight.mul_(1.5)  # at first there is no penalty
    compare(trainer, rows)


@pytest.mark.parametrize("run", [item_run, text_run])
@pytest.mark.parametrize("method", ["c2kd", "logit_kd"])
def test_logits_by_tiles(tmp_path, monkeypatch, method, run):
    """Positions at the seam of two tiles that count twice or never, or a projection whose gradient stops there."""
    monkeypatch.setattr("qcrd_trl.losses.c2kd.tile_tokens", lambda *_: 16)  # of some 24 positions
    trainer, rows = run(tmp_path, method, temperature=2.0)
    assert sum(len(row) - start for row, start in rows) > 16
    compare(trainer, rows)


def test_targets_of_two_kinds_are_two(tmp_path):
    """The norm that the filters share would do nothing if it were left out, and a test with a norm of ones might not see it."""
    filters = filters_of()
    with torch.no_grad():
        filters.norm.weight.copy_(torch.linspace(0.2, 3, 8))
    losses = []
    for target in ("raw", "normed"):
        trainer = c2kd_trainer(
            tmp_path, parts={"teacher_model": teacher_model(), "layer_filters": filters}, filter_target=target
        )
        rows = [(row["items"], 1) for row in item_rows()]
        losses.append(compare(trainer, rows)[0]["feature"])
    assert losses[0] != pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}")
@pytest.mark.parametrize("form", ["mlp", "linear"])
def test_filters(tmp_path, form, split):
    """Stage 2: a layer that counts twice, or a norm that only one of the layers has, trains plausibly."""
    size, steps = split
    rows = item_rows()
    trainer = filter_trainer(
        tmp_path,
        teacher_model(),
        rows,
        filter_form=form,
        teacher_dtype="float32",
        per_device_train_batch_size=size,
        gradient_accumulation_steps=steps,
    )
    filters, teacher = doubled(trainer.layer_filters), doubled(trainer.teacher.model)
    loss = reference_filter_loss([(row["items"], 1) for row in rows], teacher, filters, (2, 4))
    loss.backward()
    noted = record_gradients(trainer)
    trainer.train()
    assert logged(trainer)[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert noted[0].keys() == filters.keys()
    for name, weight in filters.items():
        scale = max(weight.grad.abs().max().item(), 1e-3)
        assert (noted[0][name] - weight.grad).abs().max().item() < 1e-4 * scale, name
    assert all(p.grad is None for p in trainer.teacher.model.parameters())
