"""A trainer of questions: rows as the user has them become token ids, and batches stay whole."""

from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from ..data.dataset import prepare_dataset
from ..data.length_grouping import grouped_sampler
from ..data.pairs import PairTokenizer
from ..data.prompts import StudentFormat
from ..data.tokenize import DISCRIMINATOR_COLUMNS, RowTokenizer
from ..errors import ConfigError
from .checkpoints import ResumableTrainer
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


class RowsTrainer(ResumableTrainer):
    """
    A [`~transformers.Trainer`] whose datasets have the columns of [`QCRDTrainer`].

    Attributes:
        student_format ([`StudentFormat`]): how questions are put to the student; set before the base class is initialised.
        discriminator_pairs ([`~data.pairs.PairTokenizer`] or `None`): how they are put to a discriminator with an encoder
            of its own; set before the base class is initialised.
    """

    student_format: StudentFormat
    discriminator_pairs: PairTokenizer | None = None

    def __init__(self, *args, **kwargs):
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

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = list(COLUMNS)
