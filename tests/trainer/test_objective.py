"""Which rationales are scored, and what their scores make of the loss."""

import math

import pytest
import torch

from qcrd_trl import DataCollatorForQCRD, QCRDConfig
from qcrd_trl.losses import REDUCTIONS
from qcrd_trl.trainer.objective import RationaleRows, rationale_parts, rationale_rows
from qcrd_trl.trainer.scoring import RowScores


SHAPES = [(3, 2), (0, 3), (2, 0), (0, 0), (4, 4), (1, 1)]  # positives and negatives of each question


def questions(shapes=SHAPES, first=10):
    """Rationales whose first id tells question and place: 1000 + 20 * question + place, negatives from place 10 on."""
    return [
        {
            "question_index": first + q,
            "predict_prompt_ids": [5],
            "label_ids": [7, 2],
            "explain_prompt_ids": [4],
            "positive_ids": [[1000 + 20 * q + j, 2] for j in range(m)],
            "negative_ids": [[1000 + 20 * q + 10 + j, 9, 2] for j in range(k)],
        }
        for q, (m, k) in enumerate(shapes)
    ]


def collate(features):
    return DataCollatorForQCRD(0)(features)


def config(**kwargs):
    return QCRDConfig("unused", **kwargs)


def picked(batch, args, step=0):
    """For each rationale picked its question's index in the dataset, its name, and its side."""
    rows = rationale_rows(batch, args, step)
    index = batch["question_index"][rows.question].tolist()
    return sorted(zip(index, rows.input_ids[:, 1:2].flatten().tolist(), rows.is_positive.tolist(), strict=True))


def everything(features):
    return sorted(
        (feature["question_index"], text[0], side == "positive_ids")
        for feature in features
        for side in ("positive_ids", "negative_ids")
        for text in feature[side]
    )


@pytest.mark.parametrize("reduction", ["min_max", "max_min", "mean", "weighted_mean"])
def test_every_rationale_is_scored(reduction):
    """A minimum over some of the positives is another positive."""
    batch = collate(questions())
    rows = rationale_rows(batch, config(reduction=reduction), 3)
    assert picked(batch, config(reduction=reduction)) == everything(questions())
    assert rows.num_questions == 6
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(getattr(rows, name), batch[f"rationale_{name}"])


@pytest.mark.parametrize("preset", ["dss", "dss_all"])
def test_no_negatives_where_they_have_no_part(preset):
    """Scored and thrown away, they would double the time of a baseline, and its speed would be reported as such."""
    batch = collate(questions())
    assert (~batch["rationale_is_positive"]).sum() == 10
    assert picked(batch, config(preset=preset)) == [row for row in everything(questions()) if row[2]]
    assert any(not row[2] for row in picked(batch, config(preset=preset, beta=0.2)))


def test_sampling_keeps_one_positive_of_each_question():
    """Two kept would be averaged or the first taken; none would be a question without reasoning."""
    batch = collate(questions())
    for step in range(20):
        rows = picked(batch, config(preset="qcrd"), step)
        assert set(rows) <= set(everything(questions()))
        assert [row[0] for row in rows if row[2]] == [10, 12, 14, 15]
        assert [row for row in rows if not row[2]] == [row for row in everything(questions()) if not row[2]]
        both = picked(batch, config(reduction="sampling"), step)
        assert [row[0] for row in both if row[2]] == [10, 12, 14, 15]
        assert [row[0] for row in both if not row[2]] == [10, 11, 14, 15]


def test_sampling_does_not_depend_on_the_split():
    """Accumulated batches of 1, or two processes, would train on other positives than one batch of all."""
    features, args = questions(), config(reduction="sampling")
    for step in range(10):
        whole = picked(collate(features), args, step)
        assert len(whole) == 8
        assert whole == sorted(row for f in features for row in picked(collate([f]), args, step))
        assert whole == picked(collate(features[::-1]), args, step)
        halves = picked(collate(features[:2]), args, step) + picked(collate(features[2:]), args, step)
        assert whole == sorted(halves)


def test_sampling_depends_on_seed_step_and_question():
    """Drawn once for all steps, the other positives are never seen; with one draw a step, questions move in step."""
    batch = collate(questions([(4, 4)] * 8))

    def drawn(step=0, seed=42, positive=True):
        rows = picked(batch, config(reduction="sampling", seed=seed), step)
        return [row[1] % 10 for row in rows if row[2] == positive]

    assert drawn() == drawn()
    assert drawn(step=1) != drawn()
    assert drawn(seed=43) != drawn()
    assert drawn(positive=False) != drawn()
    assert len(set(drawn())) > 1
    per_question = list(zip(*(drawn(step=step) for step in range(40)), strict=True))
    assert all(set(places) == {0, 1, 2, 3} for places in per_question)


def test_no_rationale_in_the_batch():
    """The first such batch would stop the run."""
    batch = collate(questions([(0, 0)] * 2))
    for args in (config(), config(reduction="min_max"), config(preset="dss")):
        rows = rationale_rows(batch, args, 0)
        assert len(rows.question) == 0
        assert rows.num_questions == 2
        scored = row_scores([])
        quality = torch.zeros(0, requires_grad=True) if args.discriminator == "student" else None
        parts = rationale_parts(rows, scored, args, quality)
        loss, positive, negative = parts.contrast(args, parts.quality_sums())
        assert loss.tolist() == positive.tolist() == negative.tolist() == parts.discriminator.tolist() == [0, 0]
        (loss.sum() + parts.discriminator.sum()).backward()


# ---- Parts of the loss ----


def row_scores(nll):
    """Losses of rationales as a forward pass gives them; what else it gives is not read here."""
    empty = torch.zeros(0, dtype=torch.long)
    values = torch.tensor(nll, dtype=torch.float64, requires_grad=True)
    return RowScores(values, empty, torch.zeros(0, 4), empty, empty, torch.zeros(()))


def make_rows(question, is_positive, num_questions):
    blank = torch.zeros(len(question), 2, dtype=torch.long)
    return RationaleRows(
        blank, blank, blank, torch.tensor(question, dtype=torch.long), torch.tensor(is_positive), num_questions
    )


# Question 0: positives 2, 1 (s 0.5, 0.25), negatives 1.2, 2.5 (s 0.4, 0.9). Question 1: positive 3 (s 0.75).
# Question 2: negative 0.5 (s 0.2). Not sorted by question, as sorting by length leaves them.
QUESTION = [0, 1, 0, 2, 0, 0]
IS_POSITIVE = [True, True, False, False, True, False]
NLL = [2.0, 3.0, 1.2, 0.5, 1.0, 2.5]
QUALITY = [0.5, 0.75, 0.4, 0.2, 0.25, 0.9]
SETTINGS = {"beta": 0.2, "discriminator_loss": "ratio", "margin": 0.5}


def parts_of(args, nll=NLL, quality=QUALITY):
    rows, scored = make_rows(QUESTION, IS_POSITIVE, 3), row_scores(nll)
    quality = None if quality is None else torch.tensor(quality, dtype=torch.float64, requires_grad=True)
    return rationale_parts(rows, scored, args, quality), scored.nll, quality


def test_min_max_by_hand():
    """Ragged rationales put in the wrong cell mix the questions, and the mean over the batch hides it."""
    args = config(reduction="min_max", quality_weighting="normalized", margin_type="relative", **SETTINGS)
    parts, nll, quality = parts_of(args)
    assert parts.positives.value.tolist() == [1.0, 3.0, 0.0]
    # Threshold 1 + 0.5 in question 0: l' = -0.3 and 0, the maximum is 0 of the second. Question 2 has no threshold.
    assert parts.negatives.value.tolist() == [0.0, 0.0, 0.0]
    assert parts.negatives.present.tolist() == [True, False, False]
    assert parts.positives.score.tolist() == [0.25, 0.75, 1.0]
    assert parts.quality_sums().tolist() == pytest.approx([1.0, 2, 0.1, 1])
    loss, positive, negative = parts.contrast(args, parts.quality_sums())
    # Mean of s^pos over the two questions with a positive: 0.5, so the weights are 0.5 and 1.5.
    assert positive.tolist() == pytest.approx([0.5, 4.5, 0])
    assert negative.tolist() == [0, 0, 0]
    loss.sum().backward()
    assert nll.grad.tolist() == pytest.approx([0, 1.5, 0, 0, 0.5, 0])
    assert quality.grad is None  # detached: the student's loss does not teach the discriminator


def test_max_min_by_hand():
    """The same batch under the other reduction, absolute margin and printed weights: every part is another."""
    args = config(
        reduction="max_min", quality_weighting="printed", margin_type="absolute", **{**SETTINGS, "margin": 2}
    )
    parts, nll, _ = parts_of(args)
    assert parts.positives.value.tolist() == [2.0, 3.0, 0.0]
    assert parts.negatives.value.tolist() == pytest.approx([-0.8, 0, -1.5])
    loss, positive, negative = parts.contrast(args, parts.quality_sums())
    assert positive.tolist() == pytest.approx([1.0, 2.25, 0])  # 0.5 * 2, 0.75 * 3
    assert negative.tolist() == pytest.approx([-0.48, 0, -1.2])  # (1 - 0.4) * -0.8, (1 - 0.2) * -1.5
    assert loss.tolist() == pytest.approx([1.096, 2.25, 0.24])  # less 0.2 of it
    loss.sum().backward()
    assert nll.grad.tolist() == pytest.approx([0.5, 0.75, -0.12, -0.16, 0, 0])


def test_weights_of_the_global_batch():
    """The mean that divides the weights is that of all micro-batches: 0.25 in place of this one's 0.5 doubles them."""
    args = config(reduction="min_max", quality_weighting="normalized", **SETTINGS)
    parts, _, _ = parts_of(args)
    sums = torch.tensor([2.0, 8.0, 0.0, 0.0], dtype=torch.float64)
    assert parts.contrast(args, sums)[1].tolist() == pytest.approx([1.0, 9.0, 0])


def test_sums_add_up_over_micro_batches():
    """Means of means would differ from one batch of all wherever m and k are ragged."""
    args = config(reduction="min_max", quality_weighting="normalized", margin_type="absolute", **SETTINGS)
    parts, _, _ = parts_of(args)
    whole = parts.contrast(args, parts.quality_sums())[0]
    pieces = []
    for q in range(3):
        mine = [i for i, question in enumerate(QUESTION) if question == q]
        rows = make_rows([0] * len(mine), [IS_POSITIVE[i] for i in mine], 1)
        quality = torch.tensor([QUALITY[i] for i in mine], dtype=torch.float64)
        pieces.append(rationale_parts(rows, row_scores([NLL[i] for i in mine]), args, quality))
    sums = sum(piece.quality_sums() for piece in pieces)
    torch.testing.assert_close(sums, parts.quality_sums())
    torch.testing.assert_close(torch.cat([piece.contrast(args, sums)[0] for piece in pieces]), whole)
    alone = torch.cat([piece.contrast(args, piece.quality_sums())[0] for piece in pieces])
    assert not torch.allclose(alone, whole)


def test_discriminator_loss_by_hand():
    """L_D must reach the discriminator's scores, of both sides of a question that has both, and never the student."""
    parts, nll, quality = parts_of(config(preset="qcrd_paper"))
    e = math.exp
    expected = -math.log((e(0.5) + e(0.25)) / (e(0.4) + e(0.9)))
    assert parts.discriminator.tolist() == pytest.approx([expected, 0, 0])
    parts.discriminator.sum().backward()
    assert nll.grad is None
    assert (quality.grad != 0).tolist() == [True, False, True, False, True, True]
    assert torch.equal(parts.scores, quality.detach())
    assert not parts.scores.requires_grad


def test_without_a_discriminator():
    """No scores: no weights, no L_D, and nothing else changes."""
    args = config(preset="dss_all", beta=0.2, margin=2.0)
    parts, nll, _ = parts_of(args, quality=None)
    assert parts.scores is None
    assert parts.discriminator.tolist() == [0, 0, 0]
    loss, positive, negative = parts.contrast(args, parts.quality_sums())
    assert positive.tolist() == [1.5, 3.0, 0.0]
    assert negative.tolist() == pytest.approx([-0.4, 0, -1.5])  # (-0.8 + 0) / 2
    loss.sum().backward()
    assert nll.grad.tolist() == pytest.approx([0.5, 1, -0.1, -0.2, 0.5, 0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("preset", ["qcrd", "qcrd_paper"])
def test_no_negative_gives_exactly_the_positive_part(reduction, preset):
    """Where a dataset has no negatives the contrast must vanish, not leave a constant or a NaN."""
    args = config(preset=preset, reduction=reduction)
    rows, scored = make_rows([0, 1, 1], [True] * 3, 2), row_scores([2.0, 3.0, 1.0])
    quality = torch.tensor([0.5, 0.75, 0.25], requires_grad=True)
    parts = rationale_parts(rows, scored, args, quality)
    loss, positive, negative = parts.contrast(args, parts.quality_sums())
    assert torch.equal(loss, positive)
    assert negative.tolist() == parts.discriminator.tolist() == [0, 0]
    assert (positive > 0).all()
    (loss.sum() + parts.discriminator.sum()).backward()
    assert torch.isfinite(scored.nll.grad).all()
    assert scored.nll.grad[0] > 0
    assert quality.grad is None or not quality.grad.any()
