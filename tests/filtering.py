"""Short runs of the layer filters, and what they compute on the way. `from filtering import ...`."""

from pathlib import Path
from typing import Any

from cached import item_rows, item_teacher
from datasets import Dataset

from qcrd_trl.trainer.filter_config import LayerFilterConfig
from qcrd_trl.trainer.filter_trainer import LayerFilterTrainer


def filter_config(folder: Path | str, **overrides: Any) -> LayerFilterConfig:
    """Arguments of a step of gradient descent on 8 rows: no clipping, no schedule, no files."""
    arguments = {
        "output_dir": str(folder),
        "student_size": 6,
        "candidate_layers": [2, 4],
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
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return LayerFilterConfig(**{**arguments, **overrides})


def filter_trainer(folder: Path | str, teacher: Any = "new", rows=None, parts=None, **overrides: Any):
    """A trainer of filters on a tiny teacher; `parts` are further arguments of it, the rest those of [`filter_config`]."""
    return LayerFilterTrainer(
        teacher_model=item_teacher() if isinstance(teacher, str) and teacher == "new" else teacher,
        args=filter_config(folder, **overrides),
        train_dataset=Dataset.from_list(item_rows(8) if rows is None else rows),
        **(parts or {}),
    )


def record_gradients(trainer: LayerFilterTrainer) -> list[dict]:
    """Makes a trainer note the gradients before each step."""
    from running import gradients

    out, pre_step = [], trainer.callback_handler.on_pre_optimizer_step

    def noted(*args, **kwargs):
        out.append(gradients(trainer.layer_filters))
        return pre_step(*args, **kwargs)

    trainer.callback_handler.on_pre_optimizer_step = noted
    return out
