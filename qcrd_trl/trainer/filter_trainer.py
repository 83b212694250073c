"""[`LayerFilterTrainer`]: stage 2 of C2KD, the layer filters learn the task from a frozen teacher's states."""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from ..errors import ConfigError, ModelError, TrainingError
from ..models import prepare_tokenizer
from ..recommendation.collator import DataCollatorForC2KD
from ..recommendation.layer_filters import LayerFilters, hit_ranks
from ..recommendation.states import label_positions
from ..recommendation.teacher import cache_teacher, find_teacher
from ..recommendation.teacher_states import TeacherStates
from ..recommendation.tokens import tokenize_rows
from .checkpoints import MeterPart, ResumableTrainer
from .checks import check_best_metric, own_folder
from .filter_config import LayerFilterConfig
from .meter import Meter


COLUMNS = ("input_ids", "labels", "row_index", "length")
HITS = (1, 10)  # k of the hit rates of an evaluation
METRICS = ("loss", *(f"hr@{k}" for k in HITS))  # of each layer


class LayerFilterTrainer(ResumableTrainer):
    """
    Trainer for the layer filters of C2KD (Chen et al., Findings of ACL 2025).

    Each filter turns the teacher's states of a candidate layer into the student's width, and is trained by the task alone: the
    cross-entropy of the next item, or token, by a norm and a head that all filters share. The losses of the layers are summed.
    The teacher is frozen and has no part in what is trained or saved.

    The loss is a mean over all positions that predict a label, of the global batch, however that is split into micro-batches
    and processes.

    Args:
        teacher_model (`str`, [`~transformers.PreTrainedModel`] or [`TeacherStates`], *optional*):
            Teacher: an id or path, a loaded model, or its states. `None`: its cache alone (`teacher_cache`).
        args ([`LayerFilterConfig`]):
            Configuration for this trainer.
        train_dataset ([`~datasets.Dataset`], *optional*):
            Rows with `items`, or with `prompt` and `completion` in generative mode.
        eval_dataset ([`~datasets.Dataset`] or `dict` of them, *optional*):
            Rows of the same form.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer of teacher and student, for generative mode.
        layer_filters ([`LayerFilters`], *optional*):
            Filters to train further; new ones if left out.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            Quantization of a teacher that is given as an id or a path.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            Further callbacks.
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            Optimizer and scheduler.

    Examples:

    ```python
    >>> from qcrd_trl.recommendation.folder import load_data, train_rows
    >>> from qcrd_trl.trainer.filter_config import LayerFilterConfig
    >>> from qcrd_trl.trainer.filter_trainer import LayerFilterTrainer

    >>> trainer = LayerFilterTrainer(
    ...     teacher_model="teacher",
    ...     args=LayerFilterConfig("filters", student_size=64),
    ...     train_dataset=train_rows(load_data("ml-100k"), max_history=50),
    ... )
    >>> trainer.train()
    >>> trainer.save_model()
    ```
    """

    # The loss of a micro-batch is divided by the positions of the whole accumulated batch on all processes.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        teacher_model: str | os.PathLike | nn.Module | TeacherStates | None = None,
        args: LayerFilterConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        layer_filters: LayerFilters | None = None,
        quantization_config: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None] = (None, None),
    ):
        if not isinstance(args, LayerFilterConfig):
            raise ConfigError(f"`args` must be a `LayerFilterConfig`, got {type(args).__name__}.")
        own_folder(args, teacher_model=teacher_model, teacher_cache=args.teacher_cache)
        if args.n_gpu > 1:
            raise ConfigError(
                f"{args.n_gpu} GPUs in one process are not supported. Start the script with `accelerate launch`, or set "
                "CUDA_VISIBLE_DEVICES to one of them."
            )
        layers = args.candidate_layers if layer_filters is None else layer_filters.layers
        teacher = find_teacher(
            teacher_model,
            layers,
            args.teacher_dtype,
            args.teacher_cache,
            quantization_config,
            args.teacher_model_init_kwargs,
        )
        filters = _filters(layer_filters, teacher, args)
        parts = [f"{name}/layer_{layer}" for name in METRICS for layer in filters.layers]
        check_best_metric(args, eval_dataset, ["loss", *parts])
        pad = teacher.vocab_size
        if args.task_mode == "generative":
            if processing_class is None:
                raise ConfigError("Generative mode needs `processing_class`, the tokenizer of teacher and student.")
            processing_class = prepare_tokenizer(processing_class)
            if len(processing_class) > teacher.vocab_size:
                raise ModelError(
                    f"The tokenizer has {len(processing_class)} tokens and the teacher's head {teacher.vocab_size}: they are "
                    "not of one model."
                )
            pad = processing_class.pad_token_id
        self._num_items = teacher.vocab_size if args.task_mode == "item_head" else None

        def tokenized(dataset, name):
            if dataset is None or isinstance(dataset, dict):
                return dataset and {key: tokenized(one, f"{name}[{key!r}]") for key, one in dataset.items()}
            return self._tokenize(dataset, name, processing_class, args)

        super().__init__(
            model=filters,
            args=args,
            data_collator=DataCollatorForC2KD(pad, pad_to_multiple_of=args.pad_to_multiple_of),
            train_dataset=tokenized(train_dataset, "train_dataset"),
            eval_dataset=tokenized(eval_dataset, "eval_dataset"),
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigError(
                "FSDP and DeepSpeed are not supported: the filters are small, start the script with plain DDP."
            )
        self.label_names = ["labels"]
        self.model_accepts_loss_kwargs = True  # asks the base class for the number of items, which we count
        evaluated = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        read = [rows for rows in (self.train_dataset, *evaluated) if rows is not None]
        del teacher_model
        self.teacher: TeacherStates = cache_teacher(
            teacher,
            args.teacher_cache,
            read,
            self.data_collator,
            self.accelerator,
            args.teacher_batch_size,
            not args.disable_tqdm,
        )
        filters.check(self.teacher, args.student_size, self.teacher.vocab_size)
        names = [f"{what}/layer_{layer}" for what in ("loss", "hr@1") for layer in filters.layers]
        self._meters = {
            "train": Meter(["loss", *names], self.accelerator.device),
            "run": Meter(["train_loss"], self.accelerator.device),
        }
        self.checkpoint_parts.append(MeterPart(self._meters, args.process_index))
        self._evaluated: dict[int, list[float]] | None = None

    @property
    def layer_filters(self) -> LayerFilters:
        """The filters, without wrappers."""
        return self.accelerator.unwrap_model(self.model)

    # ---- Rows ----

    def _tokenize(self, dataset: Dataset, name: str, tokenizer: Any, args: LayerFilterConfig) -> Dataset:
        # Held-out rows end in their target, and what precedes it was trained on.
        positions = args.train_positions if name == "train_dataset" else "last"
        with args.main_process_first(desc=f"tokenizing {name}"):
            return tokenize_rows(
                dataset,
                args.task_mode,
                tokenizer,
                self._num_items,
                args.max_history,
                args.max_length,
                positions,
                name,
                args.dataset_num_proc,
            )

    def get_eval_dataloader(self, eval_dataset: Dataset | str | None = None):
        if isinstance(eval_dataset, Dataset) and "input_ids" not in eval_dataset.column_names:
            eval_dataset = self._tokenize(eval_dataset, "eval_dataset", self.processing_class, self.args)
        return super().get_eval_dataloader(eval_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(COLUMNS)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | None:
        if not batch_samples:
            return None
        count = torch.tensor(sum(len(label_positions(batch["labels"])[0]) for batch in batch_samples), device=device)
        return self._sum_over_processes(count)

    def _sum_over_processes(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, reduction="sum") if self.args.world_size > 1 else tensor

    # ---- Loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ):
        """
        Sum over candidate layers of the mean cross-entropy over positions, in nats.

        Args:
            model (`nn.Module`): the filters, as wrapped for training.
            inputs (`dict[str, Any]`): a batch of [`DataCollatorForC2KD`].
            return_outputs (`bool`, *optional*, defaults to `False`): whether to give the losses of each layer and position too.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): positions of the global batch; those of `inputs` if left
                out.
        """
        row, targets = _targets(inputs)
        nll, predicted = model(self.teacher.read(inputs), targets, predicts=True)
        sums = nll.sum(1)
        self._check_finite(sums.detach())
        meter = self._meters["train"]
        for place, layer in enumerate(self.layer_filters.layers):
            meter.add(f"loss/layer_{layer}", sums[place], len(row))
            meter.add(f"hr@1/layer_{layer}", (predicted[place] == targets).sum(), len(row))
        scale = 1.0 / max(len(row), 1)
        if num_items_in_batch is not None:
            # Gradients are averaged over processes, while the loss is a mean over all their positions.
            scale = self.args.world_size / torch.as_tensor(num_items_in_batch).clamp(min=1)
        loss = sums.sum() * scale
        return (loss, {"nll": nll}) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        for meter, name in (("train", "loss"), ("run", "train_loss")):
            self._meters[meter].add(name, loss.detach().double(), int(self.accelerator.sync_gradients))
        return loss

    def _check_finite(self, sums: torch.Tensor) -> None:
        if not torch.isfinite(sums).all():
            told = dict(zip(self.layer_filters.layers, sums.tolist(), strict=True))
            raise TrainingError(
                f"A loss of the layer filters is not finite at step {self.state.global_step}: summed over positions it is, by "
                f"layer, {told}. Lower the learning rate, or clip gradients (max_grad_norm)."
            )

    # ---- Evaluation ----

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        row, targets = _targets(inputs)
        states = self.teacher.read(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            nll, _ = model(states, targets)
            filtered = model(states)
            ranks = torch.stack([hit_ranks(self.layer_filters, one, targets) for one in filtered])
        self._check_finite(nll.sum(1))
        values = torch.stack([nll.double(), *((ranks <= k).double() for k in HITS)])  # (kinds, layers, P)
        rows = len(inputs["row_index"])
        summed = values.new_zeros(*values.shape[:2], rows).index_add_(2, row, values).permute(2, 0, 1).cpu()
        counts = torch.bincount(row, minlength=rows).tolist()
        for index, sums, count in zip(inputs["row_index"].tolist(), summed, counts, strict=True):
            self._evaluated[index] = [
                count,
                *sums.flatten().tolist(),
            ]  # a row that fills a process's last batch counts once
        return nll.sum() / max(len(row), 1), None, None

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        """
        As the base class; the metrics are means over the last items of the rows, or over the titles' tokens: `loss` (summed over
        layers) and, for each layer, `loss/layer_L`, `hr@1/layer_L` and `hr@10/layer_L` by a full ranking of all items or tokens.
        """
        self._evaluated = {}
        try:
            # A data loader draws its seed from torch's generator: evaluating must not change the run it interrupts.
            with torch.random.fork_rng(devices=[]):
                output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            found = [self._evaluated] if self.args.world_size == 1 else gather_object([self._evaluated])
        finally:
            self._evaluated = None
        rows = {index: sums for part in found for index, sums in part.items()}
        total = torch.tensor(list(rows.values()), dtype=torch.float64).sum(0)
        positions, sums = total[0].clamp(min=1), total[1:].view(1 + len(HITS), -1)
        means = (sums / positions).tolist()
        parts = {"loss": sum(means[0])}
        for name, values in zip(METRICS, means, strict=True):
            for layer, value in zip(self.layer_filters.layers, values, strict=True):
                parts[f"{name}/layer_{layer}"] = value
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in parts.items()})
        return output

    # ---- Logging, saving, resuming ----

    def train(self, *args, **kwargs):
        for meter in self._meters.values():
            meter.reset()
        output = super().train(*args, **kwargs)
        return output._replace(training_loss=output.metrics["train_loss"])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._evaluated is None:
            # The base class's own sum starts anew when a run is resumed; this one is a part of the checkpoint.
            logs = {**logs, **self._meters["train"].compute(self._sum_over_processes)}
            self._meters["train"].reset()
        elif "train_loss" in logs:
            logs.update(self._meters["run"].compute(self._sum_over_processes))
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            self.layer_filters.write(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        # The base class loads what fits of a checkpoint and leaves the rest as it was drawn.
        held, mine = LayerFilters.from_pretrained(resume_from_checkpoint).settings(), self.layer_filters.settings()
        if held != mine:
            differs = {name: (held[name], mine[name]) for name in mine if held[name] != mine[name]}
            told = ", ".join(f"{name} {old!r}, now {new!r}" for name, (old, new) in differs.items())
            raise ModelError(
                f"The checkpoint {resume_from_checkpoint!r} holds other layer filters than this run's: {told}. Resume with the "
                "arguments and the teacher that it was begun with."
            )
        super()._load_from_checkpoint(resume_from_checkpoint, model)


def _targets(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The row of each position that predicts a label, and the label."""
    row, column = label_positions(inputs["labels"])
    return row, inputs["labels"][row, column + 1]


def _filters(given: LayerFilters | None, teacher: TeacherStates, args: LayerFilterConfig) -> LayerFilters:
    if given is not None:
        if given.form == "identity":
            raise ConfigError("Identity filters have nothing to learn: leave `layer_filters` out.")
        given.check(teacher, args.student_size, teacher.vocab_size)
        given.teacher_fingerprint = teacher.fingerprint
        return given.requires_grad_(True)
    if args.student_size is None:
        raise ConfigError("`student_size` is missing: the width of the states of the student that is to be trained.")
    # The same on every process, and without moving the random state of whoever builds the trainer.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        return LayerFilters(
            teacher.layers,
            teacher.hidden_size,
            args.student_size,
            teacher.vocab_size,
            args.filter_form,
            args.filter_size,
            teacher.fingerprint,
        )
