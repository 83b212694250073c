"""Tiny recommenders, their rows, and short exactly repeatable runs of C2KD. `from c2kd_runs import ...`."""

import gc
import random
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from qcrd_trl import C2KDConfig, C2KDTrainer
from qcrd_trl.recommendation.item_model import ItemHeadConfig, ItemHeadModel
from qcrd_trl.recommendation.layer_filters import LayerFilters


# Each training run collects garbage, and walks through all that the imports left: half of the time of a tiny run.
gc.freeze()

NUM_ITEMS = 11
LAMBDAS = {"lambda_feat": 0.7, "lambda_logit": 0.4}
FILTERED = (2, 3, 4)  # the teacher's candidate layers


def item_model(size: int = 8, layers: int = 2, seed: int = 0, num_items: int = NUM_ITEMS, **overrides: Any):
    """An item-head model on a tiny Llama."""
    backbone = {
        "model_type": "llama",
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **overrides,
    }
    torch.manual_seed(seed)
    return ItemHeadModel(ItemHeadConfig(backbone, num_items=num_items))


def teacher_model(size: int = 12, seed: int = 5):
    """A teacher of four layers with large weights, so that its distributions and its layers differ."""
    teacher = item_model(size, 4, seed)
    with torch.no_grad():
        for parameter in teacher.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return teacher


def filters_of(size: int = 8, teacher_size: int = 12, seed: int = 9, layers=FILTERED, form: str = "linear"):
    """Layer filters with random weights."""
    torch.manual_seed(seed)
    return LayerFilters(layers, teacher_size, size, NUM_ITEMS, form)


def item_rows(count: int = 8, seed: int = 0) -> list[dict]:
    """Rows of 2 to 7 items, and a column that nobody asked for."""
    draws = random.Random(seed)
    return [
        {"user_id": f"u{i}", "items": [draws.randrange(NUM_ITEMS) for _ in range(2 + i % 6)]} for i in range(count)
    ]


def c2kd_config(folder: Path | str, **overrides: Any) -> C2KDConfig:
    """Arguments of one plain step of gradient descent on 8 rows: no clipping, no schedule, no files."""
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 4,
        "max_steps": 1,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "report_plots": False,
        "disable_tqdm": True,
        "use_cpu": True,
        "teacher_dtype": "float32",
        **LAMBDAS,
    }
    return C2KDConfig(**{**arguments, **overrides})


def c2kd_trainer(folder: Path | str, model=None, rows=None, parts=None, **overrides: Any) -> C2KDTrainer:
    """
    A trainer of a tiny student; `parts` are further arguments of [`C2KDTrainer`], the rest those of [`c2kd_config`]. Teacher and
    filters are there where the method needs them.
    """
    args = c2kd_config(folder, **overrides)
    parts = dict(parts or {})
    if args.uses_teacher and args.teacher_cache is None:
        parts.setdefault("teacher_model", teacher_model())
    if args.uses_router and args.layer_filters is None:
        parts.setdefault("layer_filters", filters_of())
    rows = item_rows() if rows is None else rows
    return C2KDTrainer(
        model=item_model() if model is None else model,
        args=args,
        train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else rows,
        **parts,
    )


def record_c2kd(trainer: C2KDTrainer) -> list[dict[str, torch.Tensor]]:
    """Makes a trainer note before each step the gradients of student and heads, by name."""
    noted: list[dict[str, torch.Tensor]] = []
    pre_step = trainer.callback_handler.on_pre_optimizer_step

    def note(*args, **kwargs):
        modules = {"student": trainer.model, "heads": trainer.heads}
        noted.append(
            {
                f"{where}.{name}": torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
                for where, module in modules.items()
                for name, p in module.named_parameters()
                if p.requires_grad
            }
        )
        return pre_step(*args, **kwargs)

    trainer.callback_handler.on_pre_optimizer_step = note
    return noted


def c2kd_logs(trainer: C2KDTrainer) -> list[dict[str, float]]:
    """What was logged, less what the clock says, and what padding costs."""
    timed = ("runtime", "per_second", "preparation_time", "total_flos")
    return [
        {name: value for name, value in entry.items() if not any(part in name for part in timed)}
        for entry in trainer.state.log_history
    ]
