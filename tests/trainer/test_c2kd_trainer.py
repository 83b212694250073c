"""The loss of C2KD against a plain computation row by row, where its gradients go, and what is logged of it."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from c2kd_runs import (
    FILTERED,
    LAMBDAS,
    NUM_ITEMS,
    c2kd_logs,
    c2kd_trainer,
    filters_of,
    item_model,
    item_rows,
    record_c2kd,
    teacher_model,
)
from datasets import Dataset
from running import largest_difference, moved, weights

from qcrd_trl.errors import TrainingError
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.teacher_states import LiveTeacher


METHODS = ("c2kd", "none", "feature_kd", "logit_kd", "blockwise")


def all_states(model, items):
    """Hidden states by layer, and logits, of the positions of one row that predict an item; no padding, no hooks."""
    out = model(torch.tensor([items]), output_hidden_states=True)
    return [states[0, :-1] for states in out.hidden_states], out.logits[0, :-1]


def by_hand(trainer, rows):
    """Sums over positions of each part of the loss, row by row, with the formulas written out; and the layers chosen."""
    args, teacher, heads = trainer.args, trainer.teacher, trainer.heads
    student = trainer.model
    sums = dict.fromkeys(("task", "feature", "logit", "block_task"), 0.0)
    positions, chosen, cosines = 0, [], []
    for row in rows:
        items = row["items"]
        targets = torch.tensor(items[1:])
        states, logits = all_states(student, items)
        positions += len(targets)
        sums["task"] = sums["task"] - logits.log_softmax(-1)[range(len(targets)), targets].sum()
        if teacher is None:
            continue
        with torch.no_grad():
            theirs, their_logits = all_states(teacher.model, items)
        if args.feature_distillation == "router":
            own = states[-1]
            filters = [trainer.filters.filters[str(layer)](theirs[layer]) for layer in FILTERED]
            means = [(F.normalize(own, dim=1) * F.normalize(other, dim=1)).sum(1).mean().item() for other in filters]
            best = max(range(len(means)), key=means.__getitem__)
            chosen.append(FILTERED[best])
            cosines.append(means[best])
            sums["feature"] = sums["feature"] + ((own - filters[best].detach()) ** 2).sum() / own.shape[1]
        elif args.feature_distillation == "last":
            projected = states[-1] @ heads.feature_projection.weight.T
            sums["feature"] = sums["feature"] + ((projected - theirs[-1]) ** 2).sum() / projected.shape[1]
        elif args.feature_distillation == "blocks":
            # 2 blocks: layers 1 and 2 of the student, 2 and 4 of the teacher.
            for number, (mine, other) in enumerate(((1, 2), (2, 4))):
                a, b = states[mine] @ heads.block_projections[number].weight.T, theirs[other]
                cosine = (a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)
                sums["feature"] = sums["feature"] + (1 - cosine + 0.1 * (a - b).norm(dim=1)).sum()
            logits_inside = student.head(heads.block_adapters[0](states[1]))
            sums["block_task"] = sums["block_task"] + F.cross_entropy(logits_inside, targets, reduction="sum")
        if args.logit_distillation != "none":
            scored = logits
            if args.logit_distillation == "cross_head":
                scored = (states[-1] @ heads.logit_projection.weight.T) @ teacher.model.head.weight.T
            t = args.temperature
            p, q = (their_logits / t).log_softmax(-1), (scored / t).log_softmax(-1)
            sums["logit"] = sums["logit"] + t * t * (p.exp() * (p - q)).sum()
    return sums, positions, chosen, cosines


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("c2kd", {}),
        ("c2kd", {"temperature": 2.0, "lambda_orthogonal": 0.05}),
        ("none", {}),
        ("feature_kd", {}),
        ("logit_kd", {"temperature": 3.0}),
        ("blockwise", {}),
        ("none", {"feature_distillation": "last", "logit_distillation": "cross_head"}),
    ],
)
def test_loss_and_gradients_by_hand(tmp_path, method, overrides):
    """A position off by one, a part scaled by rows instead of positions, or a layer counted from 0 trains plausibly."""
    rows = item_rows()
    trainer = c2kd_trainer(tmp_path, method=method, **overrides)
    if "lambda_orthogonal" in overrides:
        with torch.no_grad():
            trainer.heads.logit_projection.weight.mul_(1.5)
    reference = copy.deepcopy(trainer.model), copy.deepcopy(trainer.heads)
    noted = record_c2kd(trainer)
    trainer.train()
    entry = c2kd_logs(trainer)[0]

    trainer.model, trainer._heads.heads = (module.to("cpu") for module in reference)
    sums, positions, chosen, cosines = by_hand(trainer, rows)
    assert positions == sum(len(row["items"]) - 1 for row in rows) == 24
    weight = {"task": 1.0, "feature": LAMBDAS["lambda_feat"], "logit": LAMBDAS["lambda_logit"], "block_task": 1.0}
    total = sum(weight[name] * value for name, value in sums.items()) / positions
    if "lambda_orthogonal" in overrides:
        w = trainer.heads.logit_projection.weight
        penalty = ((w.T @ w - torch.eye(8)) ** 2).sum()
        # W is 1.5 times a matrix with W^T W = I: 8 times (1.5^2 - 1)^2.
        assert penalty.item() == pytest.approx(8 * 1.25**2, rel=1e-5)
        assert entry["loss/orthogonal"] == pytest.approx(penalty.item(), rel=1e-5)
        total = total + overrides["lambda_orthogonal"] * penalty
    assert entry["loss"] == pytest.approx(total.item(), rel=1e-5)
    for name, value in sums.items():
        if torch.is_tensor(value):
            assert entry[f"loss/{name}"] == pytest.approx(value.item() / positions, rel=1e-5)
            assert value.item() / positions > 1e-2
        else:
            assert f"loss/{name}" not in entry
    if chosen:
        assert len(set(chosen)) > 1, "a router that has one choice shows nothing"
        shares = {f"router/layer_{layer}": chosen.count(layer) / len(rows) for layer in FILTERED}
        assert {name: entry[name] for name in shares} == pytest.approx(shares)
        assert entry["cosine"] == pytest.approx(sum(cosines) / len(rows), rel=1e-5)
        assert trainer.router_shares() == pytest.approx({int(k[13:]): v for k, v in shares.items()})

    total.backward()
    expected = {
        f"{where}.{name}": p.grad
        for where, module in (("student", trainer.model), ("heads", trainer.heads))
        for name, p in module.named_parameters()
    }
    assert all(gradient is not None for gradient in expected.values())
    assert largest_difference(noted[0], expected) < 2e-6
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_what_is_trained_and_nothing_else(tmp_path, method):
    """A teacher that follows its student, or filters that learn to be chosen, give a loss that falls all the better."""
    teacher, filters = teacher_model(), filters_of()
    parts = {"teacher_model": teacher} if method != "none" else {}
    if method == "c2kd":
        parts["layer_filters"] = filters
    trainer = c2kd_trainer(tmp_path, method=method, parts=parts, max_steps=2, weight_decay=0.1)
    before = {name: weights(module) for name, module in everything(trainer, teacher, filters)}
    noted = record_c2kd(trainer)
    trainer.train()
    after = {name: weights(module) for name, module in everything(trainer, teacher, filters)}
    assert moved(before["teacher"], after["teacher"]) == set()
    assert moved(before["filters"], after["filters"]) == set()
    assert moved(before["student"], after["student"]) == set(before["student"])
    assert moved(before["heads"], after["heads"]) == set(before["heads"])
    assert all(gradient.abs().max() > 0 for gradient in noted[0].values())
    if method != "none":
        assert not any(p.requires_grad or p.grad is not None for p in teacher.parameters())
        assert not teacher.training
    if method == "c2kd":
        assert not any(p.requires_grad or p.grad is not None for p in filters.parameters())
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for module in (trainer.model, trainer.heads) for p in module.parameters()}
    expected_heads = {
        "c2kd": {"logit_projection.weight"},
        "none": set(),
        "feature_kd": {"feature_projection.weight"},
        "logit_kd": set(),
        "blockwise": {
            *(f"block_projections.{number}.weight" for number in (0, 1)),
            *("block_adapters.0.0.weight", "block_adapters.0.1.weight", "block_adapters.0.1.bias"),
        },
    }
    assert set(before["heads"]) == expected_heads[method]


def everything(trainer, teacher, filters):
    return (("teacher", teacher), ("filters", filters), ("student", trainer.model), ("heads", trainer.heads))


@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_nothing(tmp_path, method):
    """Padded positions that count pull every mean towards rows that are short, and a router towards what it pads with."""
    rows = item_rows()
    entries, gradients = [], []
    for multiple in (None, 16):
        # The same rows, one by one too: batches of rows of one length have no padding at all.
        for size in (8, 1):
            trainer = c2kd_trainer(
                tmp_path,
                rows=rows,
                method=method,
                pad_to_multiple_of=multiple,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=8 // size,
            )
            noted = record_c2kd(trainer)
            trainer.train()
            entries.append(c2kd_logs(trainer)[0])
            gradients.append(noted[0])
    width = max(len(row["items"]) for row in rows)
    assert width < 16
    for entry, gradient in zip(entries[1:], gradients[1:], strict=True):
        assert entry.keys() == entries[0].keys()
        assert entry == pytest.approx(entries[0], rel=2e-5)
        assert largest_difference(gradient, gradients[0]) < 2e-6
        router = [name for name in entry if name.startswith("router/")]
        assert [entry[name] for name in router] == [entries[0][name] for name in router]


@pytest.mark.parametrize("normalized", [False, True])
def test_a_student_that_is_its_teacher_costs_nothing(tmp_path, normalized):
    """A layer, a position or a norm that is not the same on both sides leaves a rest that pulls a perfect student away."""
    teacher = teacher_model(8)
    trainer = c2kd_trainer(
        tmp_path,
        model=copy.deepcopy(teacher),
        parts={"teacher_model": teacher, "layer_filters": LayerFilters.identity((3, 4), 8, NUM_ITEMS)},
        feature_loss="normalized" if normalized else "mse",
        temperature=2.0,
    )
    trainer.train()
    entry = c2kd_logs(trainer)[0]
    assert entry["router/layer_4"] == 1.0
    assert entry["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert entry["loss/feature"] == pytest.approx(0.0, abs=1e-12)
    assert entry["loss/logit"] == pytest.approx(0.0, abs=1e-9)
    assert entry["loss"] == pytest.approx(entry["loss/task"], abs=1e-6)
    assert entry["loss/task"] > 0.5


@pytest.mark.parametrize("method", ["feature_kd", "logit_kd", "blockwise"])
def test_a_student_that_is_its_teacher_has_no_distillation_loss_by_any_method(tmp_path, method):
    """Another layer, position or head on one of both sides leaves a rest."""
    teacher = teacher_model(8)
    trainer = c2kd_trainer(
        tmp_path, model=copy.deepcopy(teacher), parts={"teacher_model": teacher}, method=method, temperature=2.0
    )
    trainer.train()
    entry = c2kd_logs(trainer)[0]
    for name in ("loss/feature", "loss/logit"):
        assert entry.get(name, 0.0) == pytest.approx(0.0, abs=1e-9)
    assert ("loss/feature" in entry, "loss/logit" in entry) == (method != "logit_kd", method == "logit_kd")
    assert entry["loss/task"] > 0.5


def test_student_layer_and_candidates_are_those_asked_for(tmp_path):
    """The layer before or after gives as plausible a loss."""
    trainer = c2kd_trainer(tmp_path, student_layer=1, candidate_layers=[3, 2], lambda_logit=0.0)
    model = copy.deepcopy(trainer.model)
    trainer.train()
    entry = c2kd_logs(trainer)[0]
    assert {name for name in entry if name.startswith("router/")} == {"router/layer_2", "router/layer_3"}
    assert "loss/logit" not in entry
    total = 0.0
    for row in item_rows():
        states, _ = all_states(model, row["items"])
        theirs, _ = all_states(trainer.teacher.model, row["items"])
        filtered = [trainer.filters.filters[str(layer)](theirs[layer]) for layer in (2, 3)]
        cosine = [F.cosine_similarity(states[1], other, dim=1).mean().item() for other in filtered]
        total += ((states[1] - filtered[cosine.index(max(cosine))]) ** 2).mean(1).sum().item()
    assert entry["loss/feature"] == pytest.approx(total / 24, rel=1e-5)


def test_a_lambda_of_zero_switches_a_part_off(tmp_path):
    """A part that still costs its time, or an unused projection in the optimizer, would not be seen in the loss."""
    no_logits = c2kd_trainer(tmp_path, lambda_logit=0.0)
    assert no_logits.heads.is_empty
    no_features = c2kd_trainer(tmp_path, lambda_feat=0.0)
    assert no_features.filters is None
    plain = c2kd_trainer(tmp_path, method="none")
    for trainer in (no_logits, no_features, plain):
        trainer.train()
    names = [set(c2kd_logs(trainer)[0]) for trainer in (no_logits, no_features, plain)]
    common = {"loss", "loss/task", "grad_norm", "learning_rate", "epoch", "step"}
    router = {"cosine", *(f"router/layer_{layer}" for layer in FILTERED)}
    assert names == [common | {"loss/feature"} | router, common | {"loss/logit"}, common]


def test_only_the_last_position_counts_where_asked(tmp_path):
    """Two settings that train alike would mean that one is not read."""
    trainer = c2kd_trainer(tmp_path, method="none", train_positions="last")
    model = copy.deepcopy(trainer.model)
    trainer.train()
    nll = [-all_states(model, row["items"])[1][-1].log_softmax(0)[row["items"][-1]].item() for row in item_rows()]
    assert c2kd_logs(trainer)[0]["loss/task"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)


@pytest.mark.parametrize(
    ("part", "method"),
    [("feature", "c2kd"), ("logit", "c2kd"), ("feature", "feature_kd"), ("block_task", "blockwise")],
)
def test_a_part_that_is_not_finite_is_an_error(tmp_path, part, method):
    """Dropped in silence, a part that failed leaves a run that is called distilled and is none."""
    trainer = c2kd_trainer(tmp_path, method=method, max_steps=3)
    with torch.no_grad():
        if part == "block_task":
            trainer.heads.block_adapters[0][1].weight.fill_(math.nan)
        elif part == "logit":
            trainer.heads.logit_projection.weight[0, 0] = math.inf
        elif method == "c2kd":
            for layer in trainer.filters.filters.values():
                layer.weight.fill_(math.nan)
        else:
            trainer.heads.feature_projection.weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match=f"not finite after 0 steps: loss/{part} = "):
        trainer.train()


def test_a_candidate_that_is_not_finite_is_an_error_though_another_is_taken(tmp_path):
    """A NaN is neither larger nor smaller: a router would pass over it, and over the best layer, in silence."""
    trainer = c2kd_trainer(tmp_path)
    with torch.no_grad():
        trainer.filters.filters["2"].weight.fill_(math.nan)
    with pytest.raises(TrainingError, match="not finite after 0 steps: cosine = nan"):
        trainer.train()


def test_a_task_that_is_not_finite_is_an_error(tmp_path):
    """The base class would replace it by the mean of what it logged before."""
    trainer = c2kd_trainer(tmp_path, method="none", logging_nan_inf_filter=True)
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = math.nan
    with pytest.raises(TrainingError, match="loss/task = nan"):
        trainer.train()
    with pytest.raises(TrainingError, match="rows that are evaluated is nan"):
        trainer.evaluate(Dataset.from_list(item_rows(3)))


def test_the_heads_have_their_own_rate_and_clipping(tmp_path):
    """Clipped with the student, or not at all, heads that start badly would shrink its steps or explode."""
    trainer = c2kd_trainer(
        tmp_path, method="feature_kd", heads_learning_rate=0.02, max_grad_norm=0.01, learning_rate=0.3, max_steps=1
    )
    before = weights(trainer.heads)
    noted = record_c2kd(trainer)
    trainer.train()
    gradient = noted[0]["heads.feature_projection.weight"]
    assert gradient.norm().item() == pytest.approx(0.01, rel=1e-3)
    student = torch.cat([value.flatten() for name, value in noted[0].items() if name.startswith("student.")])
    assert student.norm().item() == pytest.approx(0.01, rel=1e-3)
    step = weights(trainer.heads)["feature_projection.weight"] - before["feature_projection.weight"]
    torch.testing.assert_close(step, -0.02 * gradient)


def test_matrices_of_the_heads_decay_and_norms_do_not(tmp_path):
    """A norm's weight that is pulled to zero shrinks what the task at the end of a block is told by."""
    trainer = c2kd_trainer(tmp_path, method="blockwise", weight_decay=0.3, learning_rate=0.1, heads_learning_rate=0.02)
    before = weights(trainer.heads)
    noted = record_c2kd(trainer)
    trainer.train()
    for name, after in weights(trainer.heads).items():
        decay = 0.3 * before[name] if before[name].ndim > 1 else 0.0
        torch.testing.assert_close(after, before[name] - 0.02 * (noted[0][f"heads.{name}"] + decay))


def test_gradients_of_a_step_do_not_stay(tmp_path):
    """`model.zero_grad()` does not reach the heads: their gradients would add up over the run."""
    trainer = c2kd_trainer(tmp_path, max_steps=2, learning_rate=0.0)
    noted = record_c2kd(trainer)
    trainer.train()
    assert noted[0].keys() == noted[1].keys()
    assert largest_difference(noted[0], noted[1]) < 1e-6  # the same 8 rows, in another order
    assert noted[0]["heads.logit_projection.weight"].abs().max() > 1e-3


def test_teacher_states_given_by_hand_are_used(tmp_path):
    """A `TeacherStates` of the user's own must not be replaced by one that reads other layers."""
    teacher = LiveTeacher(teacher_model(), [2, 3, 4], "float32")
    trainer = c2kd_trainer(tmp_path, parts={"teacher_model": teacher})
    assert trainer.teacher is teacher
    other = c2kd_trainer(tmp_path)
    for one in (trainer, other):
        one.train()
    assert c2kd_logs(trainer)[0] == c2kd_logs(other)[0]
    assert c2kd_trainer(tmp_path, method="logit_kd").teacher.layers == (4,)
    assert c2kd_trainer(tmp_path, method="blockwise").teacher.layers == (2, 4)


@pytest.mark.parametrize(
    "student",
    [
        {"model_type": "qcrd_sasrec", "hidden_size": 8, "max_position_embeddings": 16},
        {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16},
        {
            "model_type": "qwen2",
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ],
    ids=lambda settings: settings["model_type"],
)
@pytest.mark.parametrize("method", ["none", "c2kd", "blockwise"])
def test_any_backbone_is_trained(tmp_path, student, method):
    """Layers that are found by their names in one family have no gradient, or none at all, in another."""
    trainer = c2kd_trainer(tmp_path, student, method=method, num_items=NUM_ITEMS, max_steps=2, learning_rate=0.3)
    before = weights(trainer.model)
    noted = record_c2kd(trainer)
    trainer.train()
    assert {name for name, p in trainer.model.named_parameters()} <= moved(before, weights(trainer.model)) | {
        name
        for name in before
        if name.endswith(".bias")  # of keys: a softmax does not see it
    }
    assert all(math.isfinite(value.abs().max()) for value in noted[0].values())
    assert c2kd_logs(trainer)[1]["loss"] < c2kd_logs(trainer)[0]["loss"]


def test_a_seed_repeats_a_run(tmp_path):
    """Heads drawn from the run's own random state would change it, and two runs with dropout would differ."""
    logs = []
    for _ in range(2):
        trainer = c2kd_trainer(tmp_path, model=item_model(attention_dropout=0.3), max_steps=3, rows=item_rows(16))
        trainer.train()
        logs.append((c2kd_logs(trainer), weights(trainer.model)))
    assert logs[0][0] == logs[1][0]
    assert largest_difference(logs[0][1], logs[1][1]) == 0
