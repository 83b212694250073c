"""[`C2KDTrainer`]: cross-layer and cross-head distillation of sequential recommenders as a Hugging Face Trainer."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from ..errors import ConfigError
from ..recommendation.layer_filters import LayerFilters
from ..recommendation.states import head_of, hidden_size, label_positions, num_layers, read_positions
from ..recommendation.teacher import cache_teacher
from ..recommendation.teacher_states import LiveTeacher, logit_form
from ..report_callback import RunReportCallback
from .c2kd_config import C2KDConfig
from .c2kd_heads import DistillationHeads, HeadsPart
from .c2kd_objective import BatchLoss, C2KDObjective
from .c2kd_rows import MEASURED, RecommendationTrainer
from .c2kd_setup import (
    check_arguments,
    check_fit,
    generative_tokenizer,
    items_of,
    load_filters,
    load_student,
    load_teacher,
    with_layers_needed,
)
from .checkpoints import MeterPart
from .checks import check_best_metric
from .meter import Meter


class C2KDTrainer(RecommendationTrainer):
    """
    Trainer for Cross-layer and Cross-head Knowledge Distillation (C2KD) of small recommenders.

    C2KD was introduced in [C2KD: Cross-layer and Cross-head Knowledge Distillation for Small Language Model-based
    Recommendations](https://aclanthology.org/2025.findings-acl.917). Beside the task, the next item, the student imitates the
    filtered states of that teacher layer which is nearest to its own, row by row, and the teacher's distribution through the
    teacher's own head. `args.method` gives the baselines, and trains teachers (`"none"`).

    Args:
        model (`str` or `dict` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Student: an id or path, the configuration of a backbone with random weights
            (`{"model_type": "llama", "hidden_size": 64, ...}`), or a loaded model.
        teacher_model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`] or [`TeacherStates`], *optional*):
            Teacher, already trained on the task. It is frozen, and never a part of what is saved. May be left out where
            `args.teacher_cache` holds its states; with both, the cache gets what it lacks, and the teacher is then let go.
        args ([`C2KDConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Item-head mode: rows with `items`, indices of items, the oldest first. Generative mode: rows with `prompt` (text or
            messages) and `completion` (the title).
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`] or `dict` of them, *optional*):
            Rows of the same form, whose last item is what is ranked.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer, in generative mode. If `None`, that of the model's id or path.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            Further callbacks.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train in place of the whole model; a head over items is trained whole beside it.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            Quantization of the base model, when `model` is an id or a path.
        layer_filters ([`LayerFilters`], *optional*):
            The filters g^l. If `None`, those in the folder `args.layer_filters`.

    Attributes:
        teacher ([`TeacherStates`] or `None`): what reads the teacher's states.
        heads ([`DistillationHeads`]): what is trained outside the student, such as W_proj.

    Examples:

    ```python
    >>> from qcrd_trl import C2KDConfig, C2KDTrainer
    >>> from qcrd_trl.recommendation.folder import eval_rows, load_data, train_rows

    >>> data = load_data("ml-100k")
    >>> trainer = C2KDTrainer(
    ...     model={"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    ...     teacher_model="teacher",
    ...     args=C2KDConfig(output_dir="student", layer_filters="filters"),
    ...     train_dataset=train_rows(data, max_history=50),
    ...     eval_dataset=eval_rows(data, "validation", max_history=50),
    ... )
    >>> trainer.train()
    ```
    """

    _tag_names = ("c2kd", "distillation", "sequential-recommendation")
    # The loss of a micro-batch is divided by the positions of the whole accumulated batch on all processes.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: str | os.PathLike | Mapping[str, Any] | PreTrainedModel | nn.Module,
        teacher_model: Any = None,
        args: C2KDConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
        quantization_config: Any = None,
        layer_filters: LayerFilters | None = None,
    ):
        if args is None:
            args = C2KDConfig(f"{Path(_name_of(model)).name or 'student'}-C2KD")
        check_arguments(args, train_dataset, model, teacher_model, layer_filters)
        check_best_metric(args, eval_dataset, MEASURED[args.task_mode])
        processing_class = generative_tokenizer(processing_class, model, args)
        teacher_name = str(teacher_model) if isinstance(teacher_model, (str, os.PathLike)) else None
        filters = load_filters(layer_filters, args)
        teacher = load_teacher(teacher_model, args, filters)
        num_items = args.num_items
        if num_items is None and teacher is not None and not isinstance(model, nn.Module):
            num_items = teacher.vocab_size
        model = load_student(model, args, num_items, quantization_config, peft_config)
        self.num_items = items_of(model)
        if isinstance(teacher, LiveTeacher) and teacher is not teacher_model and filters is None:
            teacher = with_layers_needed(teacher, args, model)
        if teacher is not None:
            check_fit(model, teacher, filters, args, processing_class, teacher_name)
        train_dataset, eval_dataset = self._tokenize_all(train_dataset, eval_dataset, processing_class, args)

        super().__init__(
            model=model,
            args=args,
            data_collator=self._collator(args, processing_class),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
        )
        self.label_names = ["labels"]
        if hasattr(self.model, "add_model_tags"):
            self.model.add_model_tags(list(self._tag_names))

        if args.uses_teacher and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ConfigError(
                "Distillation under FSDP or DeepSpeed is not supported: what is trained outside the student would not be sharded. "
                "Use DDP (`torchrun`), or method='none'."
            )
        device = self.accelerator.device
        self.teacher = self._placed(teacher)
        self.filters = None if filters is None else filters.to(device)
        self._heads = HeadsPart(self._new_heads(), self.accelerator, args.should_save)
        self._objective = C2KDObjective(
            args,
            num_layers(self.model),
            self.teacher,
            self.filters,
            self.heads,
            head_of(self.model),
            logit_form(self.model),
        )
        self.checkpoint_parts.append(self._heads)
        self._meters = {
            "train": Meter(self._logged_names(), device),
            "run": Meter(["train_loss", *self._router_names()], device),
        }
        self.checkpoint_parts.append(MeterPart(self._meters, args.process_index))
        self._clock = time.perf_counter()
        if args.report_plots:
            self.add_callback(RunReportCallback(self))

    @property
    def heads(self) -> DistillationHeads:
        """What is trained outside the student."""
        return self._heads.heads

    # ---- Teacher ----

    def _placed(self, teacher: Any) -> Any:
        """The teacher on the device of this process; where a cache is wanted, its cache, with all rows that are trained on."""
        args = self.args
        if teacher is None:
            return None
        rows = [] if self.train_dataset is None else [self.train_dataset]
        return cache_teacher(
            teacher,
            args.teacher_cache,
            rows,
            self.data_collator,
            self.accelerator,
            args.per_device_eval_batch_size,
            progress=not args.disable_tqdm,
        )

    def _new_heads(self) -> DistillationHeads:
        args, student = self.args, hidden_size(self.model)
        if self.teacher is None:
            return DistillationHeads(student, student)
        blocks = 0
        if args.uses_blocks:
            blocks = len(C2KDObjective(args, num_layers(self.model), self.teacher).student_blocks)
        return DistillationHeads(
            student,
            self.teacher.hidden_size,
            with_logits=args.uses_logits and args.logit_distillation == "cross_head",
            with_features=args.uses_features and args.feature_distillation == "last",
            num_blocks=blocks,
            with_block_tasks=args.lambda_block_task > 0,
            seed=args.seed,
        )

    # ---- Optimizer ----

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and not self.heads.is_empty:
            args = self.args
            rate = args.learning_rate if args.heads_learning_rate is None else args.heads_learning_rate
            # As of the student: matrices decay, norms and biases do not.
            for decay, is_matrix in ((args.weight_decay, True), (0.0, False)):
                parameters = [one for one in self._heads.parameters if (one.ndim > 1) == is_matrix]
                if parameters:
                    optimizer.add_param_group({"params": parameters, "lr": rate, "weight_decay": decay})
        return optimizer

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        self._heads.zero_grad()  # `model.zero_grad()` does not reach them
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _clip_grad_norm(self, model):
        norm = super()._clip_grad_norm(model)  # undoes the scaling of fp16, too
        self._heads.clip(self.args.max_grad_norm)
        return norm

    # ---- Loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ):
        """
        L = L_task + lambda_feat L_feat + lambda_logit L_logit, summed over the positions of the micro-batch that predict a target
        and divided by those of the global batch.

        Args:
            model (`nn.Module`): the student, as wrapped for training.
            inputs (`dict[str, Any]`): a batch of [`DataCollatorForC2KD`].
            return_outputs (`bool`, *optional*, defaults to `False`): whether to return the task's logits, `(positions, V)`.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): positions of the global batch; those of `inputs` if left
                out.

        Raises:
            [`TrainingError`]: if a part of the loss is not finite.
        """
        row, column = label_positions(inputs["labels"])
        targets, rows = inputs["labels"][row, column + 1], len(inputs["labels"])
        read = None if self.teacher is None else self.teacher.read(inputs)
        student = read_positions(model, inputs, self._objective.student_reads)
        batch = self._objective.loss(student, read, targets, row, rows)
        batch.check_finite(self.state.global_step)
        self._record(batch, rows)
        scale = 1.0 / max(len(row), 1)
        if num_items_in_batch is not None:
            # Gradients are averaged over processes, while the loss is a mean over all their positions.
            scale = self.args.world_size / torch.as_tensor(num_items_in_batch).clamp(min=1)
        loss = batch.total() * scale
        return (loss, {"logits": student.logits}) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        ends_step = self.accelerator.sync_gradients
        for name, meter in (("loss", "train"), ("train_loss", "run")):
            self._meters[meter].add(name, loss.detach().double(), int(ends_step))
        if ends_step:
            self._heads.average_gradients()
        return loss

    # ---- Logging ----

    def _router_names(self) -> list[str]:
        return [f"router/layer_{layer}" for layer in self._objective.layers]

    def _logged_names(self) -> list[str]:
        parts = ["loss/task", "loss/feature", "loss/logit", "loss/block_task", "loss/orthogonal"]
        return ["loss", *parts, "cosine", *self._router_names(), "positions_per_second"]

    def _record(self, batch: BatchLoss, rows: int) -> None:
        meter, positions = self._meters["train"], batch.num_positions
        for name, part in batch.parts.items():
            meter.add(f"loss/{name}", part.sum(), positions)
        if batch.orthogonal is not None:
            meter.add("loss/orthogonal", batch.orthogonal * positions, positions)
        if batch.choice is not None:
            meter.add("cosine", batch.cosine.sum(), rows)
            for index, name in enumerate(self._router_names()):
                chosen = (batch.choice == index).sum()
                meter.add(name, chosen, rows)
                self._meters["run"].add(name, chosen, rows)
        meter.add("positions_per_second", positions, 0)

    def router_shares(self) -> dict[int, float]:
        """
        Share of the rows of the run so far that chose each candidate layer, by layer; empty without a router or a step. A
        collective, called on every process.
        """
        shares = self._meters["run"].compute(self._sum_over_processes)
        names = zip(self._objective.layers, self._router_names(), strict=True)
        return {layer: shares[name] for layer, name in names if name in shares}

    def train(self, *args, **kwargs):
        self._clock = time.perf_counter()
        for meter in self._meters.values():
            meter.reset()
        output = super().train(*args, **kwargs)
        return output._replace(training_loss=output.metrics["train_loss"])

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        started = time.perf_counter()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._clock += time.perf_counter() - started  # not a part of the training speed

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            meter, now = self._meters["train"], time.perf_counter()
            meter.add("positions_per_second", 0, (now - self._clock) / self.args.world_size)
            # The base class's own sum starts anew when a run is resumed; this one is a part of the checkpoint.
            logs = {**logs, **meter.compute(self._sum_over_processes)}
            meter.reset()
            self._clock = now
        elif "train_loss" in logs:
            totals = self._meters["run"].compute(self._sum_over_processes)
            logs.update({"train_loss": totals["train_loss"]} if "train_loss" in totals else {})
        super().log(logs, start_time)

    # ---- Saving ----

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._heads.load_checkpoint(Path(self.state.best_model_checkpoint))


def _name_of(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return str(model)
    return getattr(getattr(model, "config", None), "_name_or_path", "") or ""
