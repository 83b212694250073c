"""Short, exactly repeatable training runs, and what they compute on the way. `from running import ...`."""

import copy
import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tiny import ragged_rows, tiny_llama, tiny_t5, word_tokenizer
from torch import nn

from qcrd_trl import QCRDConfig, QCRDTrainer


# Each training run collects garbage, and walks through all that the imports left: half of the time of a tiny run.
gc.freeze()

# (model, tokenizer) of each family.
FAMILIES = {"llama": (tiny_llama, word_tokenizer), "t5": (tiny_t5, lambda: word_tokenizer(adds_eos=True))}


@dataclass
class Record:
    """What a run computed: a list entry a micro-batch (`losses`) or an optimizer step (the others)."""

    losses: list[float] = field(default_factory=list)
    student: list[dict[str, torch.Tensor]] = field(default_factory=list)
    discriminator: list[dict[str, torch.Tensor]] = field(default_factory=list)


def config(folder: Path | str, **overrides: Any) -> QCRDConfig:
    """Arguments of one plain step of gradient descent on 8 questions: no clipping, no schedule, no files."""
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
        "discriminator_hidden_size": 8,
        "negative_source": "minority",
    }
    return QCRDConfig(**{**arguments, **overrides})


def trainer_of(folder: Path | str, model=None, rows=None, processing_class=None, parts=None, **overrides: Any):
    """A trainer of a tiny student; `parts` are further arguments of [`QCRDTrainer`], the rest those of [`config`]."""
    model = tiny_llama() if model is None else model
    rows = ragged_rows() if rows is None else rows
    return QCRDTrainer(
        model=model,
        args=config(folder, **overrides),
        train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else rows,
        processing_class=word_tokenizer() if processing_class is None else processing_class,
        **(parts or {}),
    )


def record(trainer: QCRDTrainer) -> Record:
    """Makes a trainer note every micro-batch's loss and, before each step, the gradients of student and discriminator."""
    out = Record()
    training_step, pre_step = trainer.training_step, trainer.callback_handler.on_pre_optimizer_step

    def noted_step(*args, **kwargs):
        loss = training_step(*args, **kwargs)
        out.losses.append(loss.double().item())
        return loss

    def noted_student(*args, **kwargs):
        out.student.append(gradients(trainer.model))
        return pre_step(*args, **kwargs)

    trainer.training_step, trainer.callback_handler.on_pre_optimizer_step = noted_step, noted_student
    if trainer.discriminator is not None:
        move = trainer.discriminator_update.step

        def noted_discriminator(*args, **kwargs):
            out.discriminator.append(gradients(trainer.discriminator))
            return move(*args, **kwargs)

        trainer.discriminator_update.step = noted_discriminator
    return out


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the gradient of every parameter that is trained; zeros where there is none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every parameter and buffer."""
    return {name: tensor.detach().clone() for name, tensor in copy.copy(module.state_dict()).items()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference of two dictionaries of tensors, which must have the same names."""
    assert one.keys() == other.keys()
    assert one, "nothing to compare"
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of the tensors that are not the same any more."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def lora(**overrides: Any) -> LoraConfig:
    """A small adapter on every linear layer but the head."""
    return LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **overrides}
    )


def logged(trainer: QCRDTrainer) -> list[dict[str, float]]:
    """What was logged at each training step, less what the clock says."""
    timed = ("runtime", "per_second")
    return [
        {name: value for name, value in entry.items() if not any(part in name for part in timed)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
