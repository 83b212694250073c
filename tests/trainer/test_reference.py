"""Loss and gradients of the trainer against eq. 1 to 8 written out in float64: a row at a time, all logits, no batch."""

import copy

import pytest
import torch
from running import gradients, record, trainer_of
from tiny import ids, ragged_rows, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl.data.tokenize import draw
from qcrd_trl.losses import REDUCTIONS, side_reductions
from qcrd_trl.trainer.presets import PRESETS


STUDENTS = {
    "llama": (tiny_llama, word_tokenizer),
    "gpt2": (tiny_gpt2, word_tokenizer),
    "t5": (tiny_t5, lambda: word_tokenizer(adds_eos=True)),
    "bart": (tiny_bart, lambda: word_tokenizer(adds_eos=True)),
}


class Reference:
    """The objective of one batch, from the student and the discriminator as they were before training."""

    def __init__(self, model, discriminator, args):
        self.model = copy.deepcopy(model).double()
        self.discriminator = None if discriminator is None else copy.deepcopy(discriminator).double()
        self.args = args
        self.active: list[bool] = []  # of each negative: whether it lies within the margin

    def read(self, prompt: str, text: str):
        """Mean token loss of a text (plain logits of one row), and the head's input where it predicts the text."""
        completion, model = ids(f"{text} </s>"), self.model
        if model.config.is_encoder_decoder:
            out = model(
                input_ids=torch.tensor([ids(f"{prompt} </s>")]),
                decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *completion[:-1]]]),
                output_hidden_states=True,
            )
            logits, states = out.logits[0], out.decoder_hidden_states[-1][0]
            if model.config.model_type == "t5":
                states = states * model.config.d_model**-0.5  # a tied head reads scaled states
        else:
            start = ids(prompt)
            out = model(input_ids=torch.tensor([[*start, *completion]]), output_hidden_states=True)
            logits, states = (tensor[0, len(start) - 1 : -1] for tensor in (out.logits, out.hidden_states[-1]))
        assert logits.dtype == torch.float64
        log_probs = logits - logits.exp().sum(1, keepdim=True).log()
        return -sum(log_probs[t, token] for t, token in enumerate(completion)) / len(completion), states.detach()

    def score(self, states):
        """Eq. 1: s = sigmoid(w relu(W pool + b) + c), of the highest of each normalised state."""
        centred = states - states.mean(1, keepdim=True)
        pooled = (centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()).max(0).values
        dense, score = self.discriminator.dense, self.discriminator.score
        return (1 / (1 + torch.exp(-(score.weight @ (dense.weight @ pooled + dense.bias).clamp(min=0) + score.bias))))[
            0
        ]

    def side(self, values, scores, how, key, qualities):
        """The reduced loss of one side and the score that belongs to it."""
        detached = [value.item() for value in values]
        if how in ("min", "max", "sampling"):
            picked = {
                "min": detached.index(min(detached)),
                "max": detached.index(max(detached)),
                "sampling": draw(len(values), *key),
            }[how]
            return values[picked], scores[picked]
        parts = qualities if how == "weighted_mean" else [1.0] * len(values)
        shares = [part / sum(parts) for part in parts]
        return (sum(share * x for share, x in zip(shares, column, strict=True)) for column in (values, scores))

    def question(self, index, row):
        """Losses of one question: label, (positive, its score), (negative, its score), L_D; None where there is none."""
        args = self.args
        label = None if row["label"] is None else self.read(f"<Predict> {row['prompt']}", row["label"])[0]
        positives, negatives = row["positive_rationales"], row["negative_rationales"]
        if args.rationale_source == "raw":
            everything = [*positives, *negatives]
            positives, negatives = [everything[draw(len(everything), args.seed, index)]] if everything else [], []
        if args.alpha_2 == 0:
            return label, None, None, None
        how_positive, how_negative = args.positive_reduction, args.negative_reduction
        keys = [(args.seed, 0, index, salt) for salt in (1, 2)]
        sides = []
        for texts, how, key in ((positives, how_positive, keys[0]), (negatives, how_negative, keys[1])):
            read = [self.read(f"<Explain> {row['prompt']}", text) for text in texts]
            if how == "sampling" and read:
                read = [read[draw(len(read), *key)]]  # the discriminator, too, sees only what is drawn
            scores = [1.0 if self.discriminator is None else self.score(states) for _, states in read]
            sides.append(([nll for nll, _ in read], scores))
        (pos, pos_scores), (neg, neg_scores) = sides
        plain = [[torch.as_tensor(score).item() for score in scores] for scores in (pos_scores, neg_scores)]
        key = (0, 0)  # one is left after a draw
        positive = tuple(self.side(pos, plain[0], how_positive, key, plain[0])) if pos else None
        negative = None
        threshold = args.margin
        if args.margin_type == "relative" and pos:
            threshold += positive[0].item()
        if neg and (pos or args.margin_type == "absolute"):
            clipped = [torch.clamp(nll - threshold, max=0) for nll in neg]
            self.active += [value.item() < 0 for value in clipped]
            negative = tuple(self.side(clipped, plain[1], how_negative, key, [1 - score for score in plain[1]]))
        return label, positive, negative, self.quality_loss(pos_scores, neg_scores)

    def quality_loss(self, pos, neg):
        if self.discriminator is None or not pos or not neg:
            return None
        if self.args.discriminator_loss == "ratio":
            return -torch.log(sum(torch.exp(score) for score in pos) / sum(torch.exp(score) for score in neg))
        return (
            sum(-torch.log(score) for score in pos) / len(pos) + sum(-torch.log(1 - score) for score in neg) / len(neg)
        ) / 2

    def __call__(self, rows):
        """L_total less its third term, with gradient to the student, and L_D, with gradient to the discriminator."""
        args = self.args
        questions = [self.question(index, row) for index, row in enumerate(rows)]
        labels, positives, negatives, qualities = (
            [x for x in column if x is not None] for column in zip(*questions, strict=True)
        )
        weights = []
        for side, weight in ((positives, lambda s: s), (negatives, lambda s: 1 - s)):
            raw = [weight(score) if args.quality_weighting != "none" else 1.0 for _, score in side]
            mean = sum(raw) / len(raw) if args.quality_weighting == "normalized" and raw else 1.0
            weights.append([value / mean for value in raw])
        count = len(rows)
        contrast = sum(w * x for w, (x, _) in zip(weights[0], positives, strict=True))
        contrast = contrast - args.beta * sum(w * x for w, (x, _) in zip(weights[1], negatives, strict=True))
        self.sizes = len(labels), len(positives), len(negatives), len(qualities)
        student = (args.alpha_1 * sum(labels) + args.alpha_2 * contrast) / count
        return student, sum(qualities) / count if qualities else None


def check(folder, student="llama", **overrides):
    """One training step against the reference; gives the reference, for what it counted."""
    make, tokenizer = STUDENTS[student]
    rows = ragged_rows()
    rows[1]["label"] = None
    model = make()
    with torch.no_grad():  # further from uniform, so that rationales differ by more than rounding
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        if student == "bart":
            model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(2))
    trainer = trainer_of(folder, model, rows, tokenizer(), **overrides)
    reference = Reference(trainer.model, trainer.discriminator, trainer.args)
    seen = record(trainer)
    trainer.train()
    kept = [row for row in rows if row["label"] is not None or trainer.args.alpha_2 > 0]
    assert len(kept) == len(trainer.train_dataset)

    loss, quality = reference(kept)
    loss.backward()
    total = loss.item() + (0.0 if quality is None else trainer.args.alpha_3 * quality.item())
    assert seen.losses == [pytest.approx(total, rel=1e-6, abs=1e-6)]
    expected = gradients(reference.model)
    assert max(grad.abs().max() for grad in expected.values()) > 1e-2
    for name, grad in expected.items():
        torch.testing.assert_close(seen.student[0][name].double(), grad, rtol=1e-5, atol=1e-6, msg=name)
    if reference.discriminator is not None:
        quality.backward()
        assert len(seen.discriminator) == 1
        for name, grad in gradients(reference.discriminator).items():
            assert grad.abs().max() > 1e-4, name
            torch.testing.assert_close(seen.discriminator[0][name].double(), grad, rtol=1e-5, atol=1e-6, msg=name)
    return reference


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets(tmp_path, preset, student):
    """A wrong sign, shift, mean or weight, or logits that the head's shortcut changes, would train to a plausible loss."""
    margin = {"margin": 8.0} if preset == "qcrd_paper" else {}  # active for students that know nothing yet
    reference = check(tmp_path, student, preset=preset, **margin)
    labels, positives, negatives, qualities = reference.sizes
    # Of the rows i = 0 to 7, the second has no label; i % 3 positives and (i + 1) % 4 negatives.
    assert labels == 7
    assert positives == {"label_only": 0, "dss": 7}.get(preset, 5)
    assert negatives == {"qcrd_paper": 6, "qcrd": 4, "dss_all": 6}.get(preset, 0)
    assert qualities == (4 if preset.startswith("qcrd") else 0)
    assert any(reference.active) == preset.startswith("qcrd")  # the others have beta = 0


@pytest.mark.parametrize("weighting", ["none", "printed", "normalized"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(tmp_path, reduction, weighting):
    """Each reduction picks its own rationales, and each weighting its own share of them; all give a loss that falls."""
    both = side_reductions(reduction)
    reference = check(
        tmp_path,
        preset="qcrd_paper",
        reduction=reduction,
        quality_weighting=weighting,
        margin=8.0,
        beta=0.7,
        alpha_1=0.3,
        alpha_2=0.9,
        alpha_3=0.4,
    )
    assert (reference.args.positive_reduction, reference.args.negative_reduction) == both
    assert any(reference.active)


@pytest.mark.parametrize("loss", ["ratio", "binary"])
@pytest.mark.parametrize("margin_type", ["absolute", "relative"])
def test_margins_and_discriminator_losses(tmp_path, margin_type, loss):
    """A margin within which some negatives lie and others do not, where a clamp on the wrong side would show."""
    reference = check(
        tmp_path,
        preset="qcrd_paper",
        margin_type=margin_type,
        margin=3.6 if margin_type == "absolute" else 0.1,
        negative_reduction="mean",
        discriminator_loss=loss,
    )
    assert {True, False} == set(reference.active)
