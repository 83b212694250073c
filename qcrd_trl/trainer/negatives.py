"""Generated negatives into a batch, in the trainer's own process, so that a refresh counts from the very next step."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset, IterableDataset

from ..data.collator import DataCollatorForQCRD
from ..data.store import NegativeStore
from .objective import RationaleRows
from .qcrd_config import QCRDConfig


logger = logging.getLogger(__name__)


class GeneratedNegatives:
    """
    The generated negatives of a run, as its batches need them.

    Args:
        store ([`~qcrd_trl.data.store.NegativeStore`]): the negatives of the current iteration.
        dataset ([`~datasets.Dataset`]): the tokenized training set.
        collator ([`DataCollatorForQCRD`]): pads rows.
        source (`str`): where negatives come from, see [`QCRDConfig`].
    """

    def __init__(self, store: NegativeStore, dataset: Dataset | None, collator: DataCollatorForQCRD, source: str):
        self.store, self._dataset, self._collator, self._source = store, dataset, collator, source
        self._places: dict[int, int] | None = None
        self._keys: list[tuple[str, int]] = []
        self._scores: list[tuple[list[tuple[str, int]], torch.Tensor, torch.Tensor]] = []

    def in_batch(self, batch: dict[str, torch.Tensor], is_held_out: bool = False) -> dict[str, torch.Tensor]:
        """The batch with the negatives that the source asks for; held-out questions keep those that their rows bring."""
        generated, read, self._keys = [], [], []
        if is_held_out:
            return batch if self._source != "none" else add_negatives(batch, [], False, self._collator)
        if len(self.store):
            for row, question in enumerate(batch["question_index"].tolist()):
                entry = self._entry(question)
                for place, negative in enumerate(self.store.get(entry["id"])):
                    generated.append((row, entry["explain_prompt_ids"], negative.token_ids))
                    if self._collator.pairs is not None:
                        # Anew each time: it takes far less than the step, and there is nothing that could be out of date.
                        read.append((entry["discriminator_prompt_ids"], self._collator.pairs.ids(negative.text)))
                    self._keys.append((entry["id"], place))
        return add_negatives(batch, generated, self._source in ("minority", "both"), self._collator, read)

    def note_scores(self, rows: RationaleRows, scores: torch.Tensor) -> None:
        """Keeps the discriminator's scores of the batch that was last made; they stay on the device."""
        if self._keys:
            self._scores.append((self._keys, rows.generated, scores))

    def take_scores(self) -> dict[tuple[str, int], float]:
        """The latest score of each negative since the last call, by question and place."""
        latest = {}
        for keys, generated, scores in self._scores:
            for number, score in zip(generated.tolist(), scores.tolist(), strict=True):
                if number >= 0:
                    latest[keys[number]] = score
        self._scores = []
        return latest

    def _entry(self, question: int) -> dict:
        if self._places is None:
            self._places = {index: place for place, index in enumerate(self._dataset["question_index"])}
        return self._dataset[self._places[question]]


def negative_source_of(args: QCRDConfig, dataset: Any) -> str:
    """Where the negatives of a run come from: a preset's generated ones are not to be had for a streaming dataset."""
    streams = isinstance(dataset, IterableDataset)
    if not (streams and args.generates_negatives) or args.negative_source_is_given:
        return args.negative_source
    logger.warning(
        "A streaming train_dataset does not tell its questions ahead, so no negatives are generated for them: those of its "
        'rows are used, as with negative_source="minority".'
    )
    return "minority"


def add_negatives(
    batch: dict[str, torch.Tensor],
    generated: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    keeps_own: bool,
    collator: DataCollatorForQCRD,
    read: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> dict[str, torch.Tensor]:
    """
    A batch with generated negatives in it.

    Args:
        batch (`dict[str, torch.Tensor]`): as [`DataCollatorForQCRD`] makes it.
        generated (`Sequence[tuple]`): row of the question in the batch, token ids of the question under the rationale
            prefix, and those of the negative.
        keeps_own (`bool`): whether the negatives of the batch stay beside them.
        collator ([`DataCollatorForQCRD`]): pads the new rows.
        read (`Sequence[tuple]`, *optional*): where a discriminator with an encoder of its own reads them, the ids of question
            and negative as it does, for each of `generated`.

    Returns:
        `dict[str, torch.Tensor]`: a new batch, with the new rows last, and with `rationale_generated` of shape `(N,)`: the
        place in `generated` of each row, -1 for those of the dataset.
    """
    device = batch["rationale_question"].device
    names = ("input_ids", "attention_mask", "labels")
    keep = batch["rationale_is_positive"] if not keeps_own else torch.ones_like(batch["rationale_is_positive"])
    own = {f"rationale_{name}": batch[f"rationale_{name}"][keep] for name in names}
    own["rationale_question"] = batch["rationale_question"][keep]
    own["rationale_is_positive"] = batch["rationale_is_positive"][keep]
    pairs = [name for name in batch if name.startswith("discriminator_")]
    own |= {name: batch[name][keep] for name in pairs}
    own["rationale_generated"] = torch.full_like(own["rationale_question"], -1)
    if not generated:
        return {**batch, **own}
    new = {f"rationale_{name}": t for name, t in collator.rows([(p, ids) for _, p, ids in generated]).items()}
    new["rationale_question"] = torch.tensor([row for row, _, _ in generated])
    new["rationale_is_positive"] = torch.zeros(len(generated), dtype=torch.bool)
    new["rationale_generated"] = torch.arange(len(generated))
    fill = {
        "rationale_input_ids": collator.pad_token_id,
        "rationale_attention_mask": 0,
        "rationale_labels": -100,
    }
    if pairs:
        new |= collator.discriminator_rows(read)
        fill |= {name: collator.pairs.pad_token_id if name.endswith("input_ids") else 0 for name in pairs}
    return {**batch, **{name: _stacked(own[name], new[name].to(device), fill.get(name)) for name in own}}


def _stacked(one: torch.Tensor, other: torch.Tensor, fill: int | None) -> torch.Tensor:
    if fill is not None:
        width = max(one.shape[1], other.shape[1])
        one, other = (
            torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill) for tensor in (one, other)
        )
    return torch.cat([one, other])
