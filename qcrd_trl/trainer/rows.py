"""A trainer of questions: rows as the user has them become token ids, and batches stay whole."""

from typing import Any, Protocol

import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import EvalLoopOutput

from ..data.dataset import prepare_dataset
from ..data.length_grouping import grouped_sampler
from ..data.pairs import PairTokenizer
from ..data.prompts import StudentFormat
from ..data.tokenize import DISCRIMINATOR_COLUMNS, RowTokenizer
from ..errors import ConfigError
from .hub import HubTrainer
from .qcrd_config import QCRDConfig


# What a batch is collated from.
COLUMNS = [
    "question_index",
    "length",
    "id",
    "predict_prompt_ids",
    "label_ids",
    "explain_prompt_ids",
    "positive_ids",
    "negative_ids",
    *DISCRIMINATOR_COLUMNS,
]


class EvaluationPart(Protocol):
    """Something that is measured beside the loss whenever the trainer evaluates."""

    def measure(self, rows: Dataset | IterableDataset | None, metric_key_prefix: str) -> dict[str, float]:
        """Metrics, by their names with the prefix, of rows as the user has them. Called on every process."""


class RowsTrainer(HubTrainer):
    """
    A [`~transformers.Trainer`] whose datasets have the columns of [`QCRDTrainer`].

    Attributes:
        student_format ([`StudentFormat`]): how questions are put to the student; set before the base class is initialised.
        discriminator_pairs ([`~data.pairs.PairTokenizer`] or `None`): how they are put to a discriminator with an encoder
            of its own; set before, too.
        questions, eval_questions: `train_dataset` and `eval_dataset` as the user has them; set before, too.
        evaluation_parts (`list[EvaluationPart]`): what is measured beside the loss.
    """

    student_format: StudentFormat
    discriminator_pairs: PairTokenizer | None = None
    questions: Any
    eval_questions: Any

    def __init__(self, *args, **kwargs):
        self.evaluation_parts: list[EvaluationPart] = []
        self._rows_evaluated: Any = None
        super().__init__(*args, **kwargs)
        # A dispatched batch, the default for streaming datasets, is cut to as many rows as it has questions.
        if self.accelerator.dataloader_config.dispatch_batches:
            raise ConfigError("dispatch_batches=True would lose rationales: leave it out of `accelerator_config`.")
        self.accelerator.dataloader_config.dispatch_batches = False

    def _tokenize_all(
        self, train_dataset: Any, eval_dataset: Any, tokenizer: PreTrainedTokenizerBase, args: QCRDConfig
    ) -> tuple[Any, Any]:
        with args.main_process_first(desc="tokenizing"):
            train = self._tokenize(train_dataset, "train_dataset", tokenizer, args)
            if isinstance(eval_dataset, dict):
                named = {key: (value, f"eval_dataset[{key!r}]") for key, value in eval_dataset.items()}
                return train, {key: self._tokenize(*pair, tokenizer, args) for key, pair in named.items()}
            return train, self._tokenize(eval_dataset, "eval_dataset", tokenizer, args)

    def _tokenize(self, dataset: Any, name: str, tokenizer: PreTrainedTokenizerBase, args: QCRDConfig) -> Any:
        if dataset is None:
            return None
        row_tokenizer = RowTokenizer(
            tokenizer,
            self.student_format,
            args.uses_rationales,
            args.rationale_source,
            args.seed,
            self.discriminator_pairs,
        )
        # Held-out questions may have labels alone, and then measure the label task.
        if name != "train_dataset" and getattr(dataset, "column_names", None) is not None:
            columns = set(dataset.column_names)
            row_tokenizer.rationales &= bool(columns & {"positive_rationales", "raw_rationale"})
        return prepare_dataset(dataset, row_tokenizer, name, args.dataset_num_proc)

    def _get_train_sampler(self, train_dataset=None):
        rows = self.train_dataset if train_dataset is None else train_dataset
        return grouped_sampler(rows, self.args) or super()._get_train_sampler(train_dataset)

    def get_eval_dataloader(self, eval_dataset=None):
        return super().get_eval_dataloader(self._tokenized(eval_dataset, "eval_dataset"))

    def get_test_dataloader(self, test_dataset):
        return super().get_test_dataloader(self._tokenized(test_dataset, "test_dataset"))

    def _tokenized(self, dataset, name: str):
        """Rows as the user has them, given to `evaluate` or `predict`, are tokenized as those of `__init__` were."""
        held = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        if any(dataset is known for known in held):  # a stream does not tell its columns
            return dataset
        if isinstance(dataset, (Dataset, IterableDataset)) and "question_index" not in (dataset.column_names or []):
            return self._tokenize(dataset, name, self.processing_class, self.args)
        return dataset

    # ---- Counts ----

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | None:
        if not batch_samples:
            return None
        count = torch.tensor(sum(len(batch["question_index"]) for batch in batch_samples), device=device)
        return self._sum_over_processes(count)

    def _sum_over_processes(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, reduction="sum") if self.args.world_size > 1 else tensor

    # ---- Evaluation beside the loss ----

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        outer, self._rows_evaluated = self._rows_evaluated, self._rows_of(eval_dataset)
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self._rows_evaluated = outer

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        # Here, not in a callback's `on_evaluate`: metrics are logged before that.
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        for part in self.evaluation_parts if self._rows_evaluated is not None else ():
            measured = part.measure(self._rows_evaluated, metric_key_prefix)
            twice = sorted(measured.keys() & output.metrics.keys())
            if twice:
                raise ConfigError(f"`compute_metrics` gives {twice[0]} too: name its own metric otherwise.")
            output.metrics.update(measured)
        return output

    def _rows_of(self, dataset: Any) -> Any:
        """The rows as the user has them of what `evaluate` is given; `None` for several sets, which come one by one."""
        if dataset is None:
            return None if isinstance(self.eval_questions, dict) else self.eval_questions
        if isinstance(dataset, dict):
            return None
        if isinstance(dataset, str):
            return self.eval_questions[dataset]
        if dataset is self.train_dataset:
            return self.questions
        if dataset is self.eval_dataset:
            return self.eval_questions
        held = self.eval_dataset if isinstance(self.eval_dataset, dict) else {}
        return next((self.eval_questions[name] for name, known in held.items() if known is dataset), dataset)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(COLUMNS)
