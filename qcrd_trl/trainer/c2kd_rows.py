"""A trainer of sequential recommenders: rows of either task mode become batches, and evaluation ranks all items."""

import math
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import EvalLoopOutput

from ..data.length_grouping import grouped_sampler
from ..errors import ConfigError, DataError, TrainingError
from ..losses import token_nll
from ..recommendation.collator import DataCollatorForC2KD
from ..recommendation.ranking import target_ranks
from ..recommendation.ranking_metrics import metrics_of
from ..recommendation.states import (
    check_linear_head,
    head_of,
    label_positions,
    linear_head,
    num_layers,
    read_positions,
)
from ..recommendation.tokens import ItemRowTokenizer, TextRowTokenizer, tokenize_rows
from .c2kd_card import RecommenderCardTrainer
from .c2kd_config import C2KDConfig
from .checkpoint_weights import check_weights


COLUMNS = ["input_ids", "labels", "row_index", "length"]
# What is measured, by task mode; beside the loss in item-head mode.
METRICS = ("hr@10", "ndcg@10", "mrr")
MEASURED = {"item_head": ("loss", *METRICS), "generative": ("loss",)}


class RecommendationTrainer(RecommenderCardTrainer):
    """
    A [`~transformers.Trainer`] whose datasets have the columns of [`C2KDTrainer`].

    Evaluation is that of the task alone, whatever the method: it needs no teacher, and measures the last item of each row.

    Attributes:
        num_items (`int` or `None`): items of the student's head, in item-head mode; set before the base class is initialised.
    """

    num_items: int | None = None

    def __init__(self, *args, **kwargs):
        self._evaluated: dict[int, tuple[float, int, int]] = {}
        super().__init__(*args, **kwargs)
        # A dispatched batch, the default for streaming datasets, is joined and cut as if it held tensors alone.
        if self.accelerator.dataloader_config.dispatch_batches:
            raise ConfigError("dispatch_batches=True would lose the rows' keys: leave it out of `accelerator_config`.")
        self.accelerator.dataloader_config.dispatch_batches = False

    # ---- Rows ----

    def _collator(self, args: C2KDConfig, tokenizer: PreTrainedTokenizerBase | None) -> DataCollatorForC2KD:
        pad = self.num_items if args.task_mode == "item_head" else tokenizer.pad_token_id
        return DataCollatorForC2KD(pad, pad_to_multiple_of=args.pad_to_multiple_of)

    def _tokenize_all(
        self, train_dataset: Any, eval_dataset: Any, tokenizer: PreTrainedTokenizerBase | None, args: C2KDConfig
    ) -> tuple[Any, Any]:
        with args.main_process_first(desc="tokenizing"):
            train = self._tokenize(train_dataset, "train_dataset", tokenizer, args)
            if isinstance(eval_dataset, dict):
                named = {key: (value, f"eval_dataset[{key!r}]") for key, value in eval_dataset.items()}
                return train, {key: self._tokenize(*pair, tokenizer, args) for key, pair in named.items()}
            return train, self._tokenize(eval_dataset, "eval_dataset", tokenizer, args)

    def _tokenize(self, dataset: Any, name: str, tokenizer: PreTrainedTokenizerBase | None, args: C2KDConfig) -> Any:
        if dataset is None:
            return None
        # Held-out rows end in their target, and what precedes it was trained on.
        positions = args.train_positions if name == "train_dataset" else "last"
        if isinstance(dataset, IterableDataset):
            if args.task_mode == "item_head":
                row_tokenizer: Any = ItemRowTokenizer(self.num_items, args.max_history, positions, name)
            else:
                row_tokenizer = TextRowTokenizer(tokenizer, args.max_length, name)
            rows = dataset.map(row_tokenizer, with_indices=True).filter(_has_target)
            return rows.select_columns(COLUMNS)
        return tokenize_rows(
            dataset,
            args.task_mode,
            tokenizer=tokenizer,
            num_items=self.num_items,
            max_history=args.max_history,
            max_length=args.max_length,
            train_positions=positions,
            name=name,
            num_proc=args.dataset_num_proc,
        )

    def _tokenized(self, dataset: Any, name: str) -> Any:
        """Rows as the user has them, given to `evaluate` or `predict`, are tokenized as those of `__init__` were."""
        held = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        if any(dataset is known for known in held):
            return dataset
        if isinstance(dataset, (Dataset, IterableDataset)) and "row_index" not in (dataset.column_names or []):
            return self._tokenize(dataset, name, self.processing_class, self.args)
        return dataset

    def get_eval_dataloader(self, eval_dataset=None):
        return super().get_eval_dataloader(self._tokenized(eval_dataset, "eval_dataset"))

    def get_test_dataloader(self, test_dataset):
        return super().get_test_dataloader(self._tokenized(test_dataset, "test_dataset"))

    def _get_train_sampler(self, train_dataset=None):
        rows = self.train_dataset if train_dataset is None else train_dataset
        return grouped_sampler(rows, self.args) or super()._get_train_sampler(train_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(COLUMNS)

    # ---- Resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        # The base class warns of weights that one side lacks, and goes on.
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            check_weights(self.model if model is None else model, resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    # ---- Counts ----

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | None:
        """Positions that predict a target, of the accumulated batch on all processes."""
        if not batch_samples:
            return None
        count = sum((batch["labels"][:, 1:] != -100).sum() for batch in batch_samples)
        return self._sum_over_processes(count.to(device))

    def _sum_over_processes(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, reduction="sum") if self.args.world_size > 1 else tensor

    # ---- Evaluation ----

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        row, column = label_positions(inputs["labels"])
        targets, last = inputs["labels"][row, column + 1], num_layers(model)
        with torch.no_grad(), self.compute_loss_context_manager():
            read = read_positions(model, inputs, [last])
            nll = token_nll(read.logits, targets)
        rows = len(inputs["row_index"])
        sums = nll.double().new_zeros(rows).index_add(0, row, nll.double())
        counts = torch.bincount(row, minlength=rows)
        ranks = [0] * rows
        if self.args.task_mode == "item_head":
            ranks = self._ranks(model, read.states[last], targets, row, rows)
        found = zip(inputs["row_index"].tolist(), sums.tolist(), counts.tolist(), ranks, strict=True)
        self._evaluated.update({index: values for index, *values in found})
        return nll.mean().detach(), None, None

    def _ranks(
        self, model: nn.Module, states: torch.Tensor, targets: torch.Tensor, row: torch.Tensor, rows: int
    ) -> list[int]:
        """Rank of the last target of each row among all items, the history not masked."""
        is_last = torch.ones_like(row, dtype=torch.bool)
        is_last[:-1] = row[1:] != row[:-1]
        if int(is_last.sum()) != rows:
            raise DataError("A row that is evaluated has no target: each must end in the item to be ranked.")
        weight, bias = linear_head(model, self.num_items)
        if not self._evaluated:  # the first batch of an evaluation
            check_linear_head(head_of(model), states[is_last][:1], weight, bias)
        return target_ranks(states[is_last].to(weight.dtype), weight, targets[is_last], bias).tolist()

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        self._evaluated = {}
        try:
            # A data loader draws its seed from torch's generator: evaluating must not change the run it interrupts.
            with torch.random.fork_rng(devices=[]):
                output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            evaluated, self._evaluated = self._evaluated, {}
        if self.args.world_size > 1:
            # Processes get some rows twice, so that all have equally many: each counts once.
            evaluated = {index: values for part in gather_object([evaluated]) for index, values in part.items()}
        output.metrics.update(
            {f"{metric_key_prefix}_{name}": value for name, value in self._metrics_of(evaluated).items()}
        )
        return output

    def _metrics_of(self, evaluated: dict[int, Any]) -> dict[str, float]:
        if not evaluated:
            return {}
        order = sorted(evaluated)  # a sum that depends on the order of the processes would differ in its last bits
        loss = math.fsum(evaluated[index][0] for index in order) / sum(evaluated[index][1] for index in order)
        if not math.isfinite(loss):
            raise TrainingError(
                f"The task's loss on the rows that are evaluated is {loss}: the student's weights or scores are not finite. "
                "Go back to a checkpoint before, lower the learning rate, or train in bf16 or float32 in place of fp16."
            )
        if self.args.task_mode != "item_head":
            return {"loss": loss}
        found = metrics_of([evaluated[index][2] for index in order], ks=(10,))
        return {"loss": loss, **{name: found[name] for name in METRICS}}


def _has_target(row: dict[str, Any]) -> bool:
    return len(row["input_ids"]) > 1
