"""How large the parts of C2KD's loss are, of what `run.py` trained: norms of states, and of each part's gradient.

    python examples/c2kd_ml100k/scales.py --work WORK [--seed 0] [--students none c2kd]

Sizes are root mean squares of an entry, at the positions of the first 64 users that are trained on. Gradients are those of the
part's weighted mean over positions with respect to the student's weights (all of them together), at a student with random weights
and at those that were trained. Logits are compared through the students' own heads here: W_proj is not kept.
"""

import argparse
import json
from pathlib import Path

import torch

from qcrd_trl import C2KDConfig
from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.folder import load_data, train_rows
from qcrd_trl.recommendation.item_model import ItemHeadModel
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.loading import load_recommender
from qcrd_trl.recommendation.states import label_positions, num_layers, read_positions
from qcrd_trl.recommendation.teacher_cache import CachedTeacher
from qcrd_trl.recommendation.tokens import tokenize_rows
from qcrd_trl.trainer.c2kd_objective import C2KDObjective


USERS = 64
# Name: what feature imitation is set to.
TARGETS = {
    "raw, mse": {"filter_target": "raw", "feature_loss": "mse"},
    "normed, mse": {"filter_target": "normed", "feature_loss": "mse"},
    "raw, normalized": {"filter_target": "raw", "feature_loss": "normalized"},
}


def size(states: torch.Tensor) -> float:
    """Root mean square of an entry."""
    return states.float().square().mean().sqrt().item()


def gradient_norm(loss: torch.Tensor, model: torch.nn.Module) -> float:
    """Norm of a loss's gradient with respect to all weights."""
    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    return torch.stack([one.norm() for one in found if one is not None]).norm().item()


def parts_of(student, filters, teacher, batch) -> dict[str, dict[str, float]]:
    """By target: the mean of each part, the norm of its gradient, and the cosine of the layer that the router takes."""
    row, column = label_positions(batch["labels"])
    targets, told, layers = batch["labels"][row, column + 1], {}, num_layers(student)
    for name, settings in TARGETS.items():
        args = C2KDConfig("unused", logit_distillation="own_heads", use_cpu=True, report_to="none", **settings)
        objective = C2KDObjective(args, layers, teacher, filters)
        loss = objective.loss(
            read_positions(student, batch, objective.student_reads), teacher.read(batch), targets, row, len(batch["labels"])
        )  # fmt: skip
        told[name] = {"cosine": loss.cosine.mean().item()}
        for part, values in loss.parts.items():
            told[name][part] = values.mean().item()
            told[name][f"gradient of {part}"] = gradient_norm(loss.weights[part] * values.mean(), student)
    return told


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_history", type=int, default=50, help="that of the run")
    parser.add_argument("--students", nargs="+", default=["none", "c2kd"])
    args = parser.parse_args(argv)
    data = load_data(args.work / "data")
    filters = LayerFilters.from_pretrained(args.work / f"filters-{args.seed}").freeze()
    teacher = CachedTeacher(args.work / f"filters-{args.seed}" / "teacher_cache")
    rows = train_rows(data, args.max_history).select(range(USERS))
    tokenized = tokenize_rows(rows, "item_head", num_items=data.num_items, max_history=args.max_history)
    batch = DataCollatorForC2KD(data.num_items)(list(tokenized))
    with torch.no_grad():
        read = teacher.read(batch)
        raw = filters(read)
        sizes = {"teacher": {layer: size(states) for layer, states in read.items()}}
        sizes["raw"] = dict(zip(filters.layers, map(size, raw), strict=True))
        sizes["normed"] = dict(zip(filters.layers, map(size, filters.norm(raw)), strict=True))
    print(json.dumps(sizes))
    students = {name: load_recommender(args.work / f"{name}-{args.seed}") for name in args.students}
    torch.manual_seed(args.seed)
    students = {"random": ItemHeadModel(next(iter(students.values())).config), **students}
    for name, student in students.items():
        student = student.eval().requires_grad_(True)
        layers = list(range(1, num_layers(student) + 1))
        with torch.no_grad():
            states = read_positions(student, batch, layers, with_logits=False).states
        print(name, json.dumps({layer: size(one) for layer, one in states.items()}))
        for target, told in parts_of(student, filters, teacher, batch).items():
            print(f"  {target}:", ", ".join(f"{key} {value:.4g}" for key, value in told.items()))


if __name__ == "__main__":
    main()
