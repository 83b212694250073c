"""The rationale task of one micro-batch: which rationales are scored, and what the scores make of the loss."""

from dataclasses import dataclass

import torch

from ..data.tokenize import draw
from ..losses import (
    ReducedRationales,
    contrastive_loss,
    discriminator_loss,
    quality_weights,
    reduce_negatives,
    reduce_positives,
)
from .meter import Meter
from .qcrd_config import QCRDConfig
from .scoring import RowScores


POSITIVE_DRAW, NEGATIVE_DRAW = 1, 2

# What is logged by name. `loss/...` are means over all questions, so that with their weights they add up to the loss;
# the others are means over what they speak of.
LOGGED = (
    "loss",
    "loss/label",
    "loss/positive",
    "loss/negative",
    "loss/discriminator",
    "nll/label",
    "nll/positive",
    "nll/negative",
    "negatives/beyond_margin",
    "quality/positive",
    "quality/negative",
    "alpha_3",
    "tokens_per_second",
    "questions_per_second",
)


@dataclass
class RationaleRows:
    """
    The rationales of a batch that are scored.

    Attributes:
        input_ids (`torch.Tensor`): shape `(N, L)`.
        attention_mask (`torch.Tensor`): same shape.
        labels (`torch.Tensor`): same shape, or that of the decoder's labels.
        question (`torch.Tensor`): row of each rationale's question in the batch, shape `(N,)`.
        is_positive (`torch.Tensor`): boolean, shape `(N,)`.
        num_questions (`int`): questions of the batch.
        generated (`torch.Tensor` or `None`): which generated negative each is, -1 for one of the dataset, shape `(N,)`.
        pairs (`dict[str, torch.Tensor]` or `None`): what a discriminator with an encoder of its own reads, tensors of shape
            `(N, L'')`.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    question: torch.Tensor
    is_positive: torch.Tensor
    num_questions: int
    generated: torch.Tensor | None = None
    pairs: dict[str, torch.Tensor] | None = None

    def subset(self, keep: torch.Tensor) -> "RationaleRows":
        """Some of them, by a mask of shape `(N,)`, of the same questions."""
        return RationaleRows(
            input_ids=self.input_ids[keep],
            attention_mask=self.attention_mask[keep],
            labels=self.labels[keep],
            question=self.question[keep],
            is_positive=self.is_positive[keep],
            num_questions=self.num_questions,
            generated=None if self.generated is None else self.generated[keep],
            pairs=None if self.pairs is None else {name: tensor[keep] for name, tensor in self.pairs.items()},
        )


def rationale_rows(batch: dict[str, torch.Tensor], args: QCRDConfig, step: int) -> RationaleRows:
    """
    Picks the rationales that the loss needs, before any is scored: one drawn rationale a question where a side is reduced
    by sampling, no negatives where they have no part.

    Args:
        batch (`dict[str, torch.Tensor]`): as [`DataCollatorForQCRD`] makes it.
        args ([`QCRDConfig`]): the recipe.
        step (`int`): optimizer step, a part of the draw's key beside the seed and the question's index.
    """
    question, positive = batch["rationale_question"], batch["rationale_is_positive"]
    keep = torch.ones_like(positive)
    if not args.uses_negatives:
        keep &= positive
    sides = ((args.positive_reduction, True, POSITIVE_DRAW), (args.negative_reduction, False, NEGATIVE_DRAW))
    if any(how == "sampling" for how, _, _ in sides):
        # The draw is a function of seed, step and question, so that it does not depend on how the batch is split.
        members: dict[tuple[int, bool], list[int]] = {}
        for row, key in enumerate(zip(question.tolist(), positive.tolist(), strict=True)):
            members.setdefault(key, []).append(row)
        index = batch["question_index"].tolist()
        for how, side, salt in sides:
            if how != "sampling":
                continue
            for (owner, is_positive), rows in members.items():
                if is_positive == side:
                    drawn = rows[draw(len(rows), args.seed, step, index[owner], salt)]
                    keep[[row for row in rows if row != drawn]] = False
    start = "discriminator_"
    pairs = {name.removeprefix(start): tensor for name, tensor in batch.items() if name.startswith(start)}
    return RationaleRows(
        input_ids=batch["rationale_input_ids"],
        attention_mask=batch["rationale_attention_mask"],
        labels=batch["rationale_labels"],
        question=question,
        is_positive=positive,
        num_questions=len(batch["question_index"]),
        generated=batch.get("rationale_generated"),
        pairs=pairs or None,
    ).subset(keep)


@dataclass
class RationaleParts:
    """
    The rationale losses of a micro-batch before its normalisation. Tensors have shape `(questions,)` unless said.

    Attributes:
        positives ([`ReducedRationales`]): the reduced positives.
        negatives ([`ReducedRationales`]): the reduced negatives.
        discriminator (`torch.Tensor`): L_D with gradient to the discriminator, 0 without one.
        scores (`torch.Tensor` or `None`): score of every rationale scored, detached, shape `(rationales,)`.
        is_positive (`torch.Tensor`): which of them are positives, boolean, shape `(rationales,)`.
    """

    positives: ReducedRationales
    negatives: ReducedRationales
    discriminator: torch.Tensor
    scores: torch.Tensor | None
    is_positive: torch.Tensor

    def quality_sums(self) -> torch.Tensor:
        """Sums that the means of the normalised quality weights are made of: s^pos and 1 - s^neg, each with a count."""
        sums = []
        for score, present in ((self.positives.score, self.positives), (1 - self.negatives.score, self.negatives)):
            there = present.present.to(score.dtype)
            sums += [(score * there).sum(), there.sum()]
        return torch.stack(sums)

    def contrast(
        self, args: QCRDConfig, quality_sums: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Eq. 3 with the quality weights of `args`.

        Args:
            args ([`QCRDConfig`]): the recipe.
            quality_sums (`torch.Tensor`, *optional*): those of the global batch, which weights of mean 1 are made by.
                Left out in evaluation, such weights are 1: a loss that depends on the batches would not compare.
        """
        weighting = args.quality_weighting
        means = (None, None)
        if weighting == "normalized" and quality_sums is None:
            weighting = "none"
        elif weighting == "normalized":
            means = quality_sums[0::2] / quality_sums[1::2].clamp(min=1)
        weights = [
            quality_weights(score, side.present, weighting, mean)
            for score, side, mean in (
                (self.positives.score, self.positives, means[0]),
                (1 - self.negatives.score, self.negatives, means[1]),
            )
        ]
        return contrastive_loss(self.positives, self.negatives, args.beta, *weights)


def rationale_parts(
    rows: RationaleRows,
    scored: RowScores,
    args: QCRDConfig,
    quality: torch.Tensor | None = None,
) -> RationaleParts:
    """
    Reduces the scored rationales of each question, eq. 1, 2 and 4 to 7.

    Args:
        rows ([`RationaleRows`]): which rationales they are.
        scored ([`RowScores`]): their losses and hidden states.
        args ([`QCRDConfig`]): the recipe.
        quality (`torch.Tensor`, *optional*): the discriminator's scores of them, with gradient where it is to learn,
            shape `(rationales,)`.
    """
    sides = []
    for side in (rows.is_positive, ~rows.is_positive):
        place, mask = _places(rows.question[side], rows.num_questions)
        nll = _spread(scored.nll[side], place, mask)
        sides.append((nll, mask, None if quality is None else _spread(quality[side], place, mask)))
    (pos_nll, pos_mask, pos_score), (neg_nll, neg_mask, neg_score) = sides
    positives = reduce_positives(pos_nll, pos_mask, args.positive_reduction, pos_score, _first(pos_mask))
    negatives = reduce_negatives(
        neg_nll,
        neg_mask,
        args.negative_reduction,
        neg_score,
        _first(neg_mask),
        margin=args.margin,
        margin_type=args.margin_type,
        positives=positives,
    )
    if quality is None:
        loss = positives.value.new_zeros(rows.num_questions)
    else:
        loss = discriminator_loss(args.discriminator_loss, pos_score, pos_mask, neg_score, neg_mask)
    return RationaleParts(positives, negatives, loss, None if quality is None else quality.detach(), rows.is_positive)


def record_rationales(
    meter: Meter, parts: RationaleParts, positive: torch.Tensor, negative: torch.Tensor, questions: int
) -> None:
    """Adds a micro-batch to what is logged; `positive` and `negative` are the parts that [`contrastive_loss`] gives."""
    meter.add("loss/positive", positive.sum(), questions)
    meter.add("loss/negative", negative.sum(), questions)
    meter.add("nll/positive", parts.positives.nll.sum(), parts.positives.present.sum())
    with_negative = parts.negatives.present.sum()
    meter.add("nll/negative", parts.negatives.nll.sum(), with_negative)
    meter.add("negatives/beyond_margin", with_negative - parts.negatives.active.sum(), with_negative)
    if parts.scores is not None:
        meter.add("loss/discriminator", parts.discriminator.sum(), questions)
        for name, side in (("positive", parts.is_positive), ("negative", ~parts.is_positive)):
            meter.add(f"quality/{name}", parts.scores[side].sum(), side.sum())


def _first(mask: torch.Tensor) -> torch.Tensor:
    # Sampling leaves one rationale a question before it is scored, so the drawn one is the first.
    return mask.new_zeros(mask.shape[0], dtype=torch.long)


def _places(question: torch.Tensor, num_questions: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Where each rationale of a side goes in a `(questions, rationales)` table, and which entries of it exist."""
    same = (question[:, None] == question[None, :]).tril(-1)
    column = same.sum(1)
    width = int(column.max()) + 1 if len(column) else 0
    mask = torch.zeros(num_questions, width, dtype=torch.bool, device=question.device)
    mask[question, column] = True
    return (question, column), mask


def _spread(values: torch.Tensor, place: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(mask.shape).index_put(place, values)
