"""How large the parts of C2KD's loss are: norms of states and filtered states, and of each part's gradient.

    python examples/benchmarks/c2kd_scales.py --interactions ml-100k.inter --items ml-100k.item [--teacher_epochs 3] [--json FILE]

Item-head mode on ml-100k: a teacher, its layer filters and a student are trained for a few epochs. The norms are root mean
squares of an entry, over the positions of a batch of 64 users that are trained on, and means over the student's gradient. The
students see the same batches in the same order, so what differs is the feature loss alone.
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from qcrd_trl import C2KDConfig, C2KDTrainer
from qcrd_trl.recommendation.folder import eval_rows, train_rows
from qcrd_trl.recommendation.interactions import read_interactions, read_items
from qcrd_trl.recommendation.preparing import prepare
from qcrd_trl.recommendation.states import label_positions, read_positions
from qcrd_trl.trainer.filter_config import LayerFilterConfig
from qcrd_trl.trainer.filter_trainer import LayerFilterTrainer


# Name: (feature_loss, filter_target, lambda_feat).
STUDENTS = {
    "raw, 0.5": ("mse", "raw", 0.5),
    "raw, 5": ("mse", "raw", 5.0),
    "normed, 0.5": ("mse", "normed", 0.5),
    "normalized, 0.5": ("normalized", "raw", 0.5),
    "no features": ("mse", "raw", 0.0),
}


def llama(size, layers, heads):
    return {
        "model_type": "llama",
        "hidden_size": size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": int(2.5 * size),
        "max_position_embeddings": 512,
    }


def rms(states):
    return states.float().square().mean().sqrt().item()


def common(args, folder, epochs, **more):
    return {
        "output_dir": str(folder),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 128,
        "learning_rate": args.rate,
        "weight_decay": 0.1,
        "warmup_steps": 10,
        "max_history": args.max_history,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 10_000,
        "seed": args.seed,
        **more,
    }


def measure(trainer, batch):
    """Root mean squares of states, and norms of the gradient of each weighted part, with respect to the student."""
    model, objective = trainer.accelerator.unwrap_model(trainer.model).eval(), trainer._objective
    row, column = label_positions(batch["labels"])
    targets, rows = batch["labels"][row, column + 1], len(batch["labels"])
    told = {}
    with torch.no_grad():
        states = read_positions(model, batch, [1, 2], with_logits=False).states
    told["rms_student"] = {layer: rms(one) for layer, one in states.items()}
    read = trainer.teacher.read(batch)
    student = read_positions(model, batch, objective.student_reads)
    loss = objective.loss(student, read, targets, row, rows)
    told["mean"] = {name: part.mean().item() for name, part in loss.parts.items()}
    if loss.cosine is not None:
        told["cosine"] = loss.cosine.mean().item()
    told["gradient"] = {}
    for name, part in loss.parts.items():
        weighted = loss.weights[name] * part.sum() / len(row)
        found = torch.autograd.grad(weighted, list(model.parameters()), retain_graph=True, allow_unused=True)
        told["gradient"][name] = torch.stack([one.norm() for one in found if one is not None]).norm().item()
    model.train()
    return told


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", required=True)
    parser.add_argument("--items", required=True)
    parser.add_argument("--teacher_epochs", type=int, default=3)
    parser.add_argument("--filter_epochs", type=int, default=2)
    parser.add_argument("--student_epochs", type=int, default=3)
    parser.add_argument("--teacher_size", type=int, default=128)
    parser.add_argument("--teacher_layers", type=int, default=4)
    parser.add_argument("--max_history", type=int, default=50)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--students", nargs="+", default=list(STUDENTS), choices=list(STUDENTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        data = prepare(read_interactions(args.interactions), read_items(args.items))
        rows, held_out = train_rows(data, args.max_history), eval_rows(data, "validation", args.max_history)
        teacher = C2KDTrainer(
            llama(args.teacher_size, args.teacher_layers, 4),
            args=C2KDConfig(**common(args, work / "t", args.teacher_epochs, method="none", num_items=data.num_items,
                                     report_plots=False)),
            train_dataset=rows,
            eval_dataset=held_out,
        )  # fmt: skip
        teacher.train()
        outcome = {"arguments": {name: str(value) for name, value in vars(args).items()}}
        outcome["teacher"] = {name: value for name, value in teacher.evaluate().items() if "@" in name}
        print("teacher", outcome["teacher"], flush=True)
        model = teacher.model
        filters = LayerFilterTrainer(
            model,
            LayerFilterConfig(**common(args, work / "f", args.filter_epochs, student_size=64,
                                       teacher_cache=str(work / "cache"))),
            rows,
        )  # fmt: skip
        before = copy.deepcopy(filters.layer_filters)
        filters.train()
        trained = filters.layer_filters.eval()
        batch = filters.data_collator([filters.train_dataset[place] for place in range(64)])
        read = filters.teacher.read(batch)
        with torch.no_grad():
            outcome["rms_teacher"] = {layer: rms(read[layer]) for layer in trained.layers}
            outcome["rms_filtered_at_first"] = dict(zip(trained.layers, map(rms, before(read)), strict=True))
            raw = trained(read)
            outcome["rms_raw"] = dict(zip(trained.layers, map(rms, raw), strict=True))
            outcome["rms_normed"] = dict(zip(trained.layers, map(rms, trained.norm(raw)), strict=True))
        for name in ("rms_teacher", "rms_filtered_at_first", "rms_raw", "rms_normed"):
            print(name, outcome[name], flush=True)
        outcome["students"] = {}
        for name in args.students:
            loss, target, weight = STUDENTS[name]
            student = C2KDTrainer(
                llama(64, 2, 2),
                args=C2KDConfig(**common(args, work / "s", args.student_epochs, teacher_cache=str(work / "cache"),
                                         feature_loss=loss, filter_target=target if weight else "raw", lambda_feat=weight,
                                         report_plots=False)),
                train_dataset=rows,
                eval_dataset=held_out,
                layer_filters=copy.deepcopy(trained) if weight else None,
            )  # fmt: skip
            told = {"at_first": measure(student, batch)}
            student.train()
            told["trained"] = measure(student, batch)
            told["router"] = student.router_shares()
            told["validation"] = {key: value for key, value in student.evaluate().items() if "@" in key}
            outcome["students"][name] = told
            print(name, json.dumps(told), flush=True)
    if args.json:
        args.json.write_text(json.dumps(outcome, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
