"""Tokenized questions to padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .pairs import PairTokenizer


@dataclass
class DataCollatorForQCRD:
    """
    Pads a batch of questions: one row a question for the label task, one row a rationale for the rationale task.

    Args:
        pad_token_id (`int`):
            Id that fills the inputs. It may be the EOS id: masks and labels are set by position, never by id.
        is_encoder_decoder (`bool`, *optional*, defaults to `False`):
            Whether the completions stand in the labels alone (an encoder reads the prompt) or follow the prompt.
        pad_to_multiple_of (`int`, *optional*):
            Widths are rounded up to a multiple of this.
        pairs ([`~data.pairs.PairTokenizer`], *optional*):
            That of a discriminator with an encoder of its own.

    Returns:
        `dict[str, torch.Tensor]` with B questions and N rationales, in the order of the questions, positives first:
        - `question_index` `(B,)`: position of the question in the dataset.
        - `input_ids`, `attention_mask`, `labels` `(B, L)`: prompt with label. A question without a label has its
          prompt alone, with labels all -100.
        - `rationale_input_ids`, `rationale_attention_mask`, `rationale_labels` `(N, L')`: prompt with rationale.
        - `rationale_question` `(N,)`: row of the question in this batch.
        - `rationale_is_positive` `(N,)`: boolean.

        The labels of an encoder-decoder student have a width of their own. With `pairs` there are also
        `discriminator_input_ids`, `discriminator_attention_mask`, `discriminator_rationale_mask` and, where the encoder has
        them, `discriminator_token_type_ids` `(N, L'')`: question with rationale as the discriminator reads them.

    Examples:

    ```python
    >>> from qcrd_trl.data.collator import DataCollatorForQCRD

    >>> question = {"question_index": 7, "predict_prompt_ids": [5, 6], "label_ids": [9, 2], "explain_prompt_ids": [4],
    ...             "positive_ids": [[8, 2]], "negative_ids": [[3, 3, 2]]}
    >>> batch = DataCollatorForQCRD(pad_token_id=2)([question])
    >>> batch["rationale_input_ids"]
    tensor([[4, 8, 2, 2],
            [4, 3, 3, 2]])
    >>> batch["rationale_labels"]
    tensor([[-100,    8,    2, -100],
            [-100,    3,    3,    2]])
    ```
    """

    pad_token_id: int
    is_encoder_decoder: bool = False
    pad_to_multiple_of: int | None = None
    pairs: PairTokenizer | None = None

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        label_rows = [(feature["predict_prompt_ids"], feature["label_ids"]) for feature in features]
        rationale_rows, question, positive = [], [], []
        for position, feature in enumerate(features):
            for ids, is_positive in [(i, True) for i in feature["positive_ids"]] + [
                (i, False) for i in feature["negative_ids"]
            ]:
                rationale_rows.append((feature["explain_prompt_ids"], ids))
                question.append(position)
                positive.append(is_positive)
        batch = {"question_index": torch.tensor([int(feature["question_index"]) for feature in features])}
        batch.update(self.rows(label_rows))
        batch.update({f"rationale_{name}": tensor for name, tensor in self.rows(rationale_rows).items()})
        batch["rationale_question"] = torch.tensor(question, dtype=torch.long)
        batch["rationale_is_positive"] = torch.tensor(positive, dtype=torch.bool)
        if self.pairs is not None:
            read = [
                (feature["discriminator_prompt_ids"], ids)
                for feature in features
                for ids in feature["discriminator_positive_ids"] + feature["discriminator_negative_ids"]
            ]
            batch.update(self.discriminator_rows(read))
        return batch

    def discriminator_rows(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, torch.Tensor]:
        """What the discriminator reads, of pairs of ids of a question and a rationale, a row each."""
        return {f"discriminator_{name}": tensor for name, tensor in self.pairs.batch(pairs).items()}

    def rows(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, torch.Tensor]:
        """`input_ids`, `attention_mask` and `labels` of pairs of prompt and completion, a row each."""
        if self.is_encoder_decoder:
            inputs = [list(prompt) for prompt, _ in rows]
            labels = [list(completion) for _, completion in rows]
        else:
            inputs = [[*prompt, *completion] for prompt, completion in rows]
            labels = [[*([-100] * len(prompt)), *completion] for prompt, completion in rows]
        return {
            "input_ids": self._stack(inputs, self.pad_token_id),
            "attention_mask": self._stack([[1] * len(ids) for ids in inputs], 0),
            "labels": self._stack(labels, -100),
        }

    def _stack(self, rows: list[list[int]], fill: int) -> torch.Tensor:
        width = max([len(row) for row in rows], default=0)
        # A row of no token at all (no label in the whole batch of an encoder-decoder student) still needs a column.
        width = max(width, 1)
        if self.pad_to_multiple_of:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        stacked = torch.full((len(rows), width), fill, dtype=torch.long)
        for i, row in enumerate(rows):
            stacked[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        return stacked
