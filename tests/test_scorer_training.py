"""Pretraining of a discriminator that reads texts."""

import pytest
import torch
from encoders import KINDS, pair_tokenizer, save_encoder
from running import weights
from tiny import byte_tokenizer

from qcrd_trl import RationaleScorer
from qcrd_trl.errors import ConfigError, DataError, TrainingError
from qcrd_trl.metrics import auc
from qcrd_trl.scorer_training import (
    JudgedQuestion,
    ScorerSettings,
    balanced_questions,
    judge_scorer,
    judge_scores,
    judged_questions,
    mask_word,
    split_questions,
    train_scorer,
)


def questions(count=12):
    """Good rationales say `so`, bad ones `is`; a third of the questions has no bad one."""
    return [
        JudgedQuestion(
            f"a + {i % 10} b{'.' * (i // 10)}",
            tuple(f"{word} {i % 10} so {i % 7} ." for word in "abc"[: 1 + i % 3]),
            tuple(f"{word} {i % 10} is {i % 7} ." for word in "de"[: i % 3]),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp(request.param), request.param)


def make(checkpoint, **kwargs):
    return RationaleScorer.from_encoder(checkpoint, hidden_size=8, **kwargs)


def trained(checkpoint, freeze_encoder=False, **settings):
    scorer = make(checkpoint, freeze_encoder=freeze_encoder)
    given = {"max_steps": 4, "batch_size": 3, "encoder_learning_rate": 1e-3, **settings}
    losses = train_scorer(scorer, balanced_questions(questions(), 0.15, 0), ScorerSettings(**given), progress=False)
    return scorer, losses


def test_the_seed_decides_everything(checkpoint):
    """A discriminator that nobody can make again, or a run whose dropout depends on what ran before it."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, first = trained(checkpoint)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    other, second = trained(checkpoint)
    assert first == second
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    third, _ = trained(checkpoint, seed=1)
    assert not torch.equal(third.head.dense.weight, one.head.dense.weight)
    assert not one.training


@pytest.mark.parametrize("freeze_encoder", [False, True])
def test_who_learns(checkpoint, freeze_encoder):
    """A frozen encoder that drifts is not the one that is shared; one that should learn and does not costs the paper's half."""
    before = weights(make(checkpoint))
    scorer, losses = trained(checkpoint, freeze_encoder)
    after = weights(scorer)
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == ({"head"} if freeze_encoder else {"head", "encoder"})
    assert len(losses) == 4


def test_a_frozen_encoder_reads_a_text_once(checkpoint, monkeypatch):
    """
    What is read ahead must be what would be read at each step: the same texts by the same states. An encoder whose rates are 0
    moves as little as a frozen one, but reads at each step; without dropout they agree.
    """
    read = []
    pooled = RationaleScorer.pooled
    monkeypatch.setattr(
        RationaleScorer,
        "pooled",
        lambda self, *args: (read.extend(zip(*args[:2], strict=True)), pooled(self, *args))[1],
    )
    frozen, losses = trained(checkpoint, freeze_encoder=True, max_steps=12, max_grad_norm=1e9)
    assert read
    assert len(read) == len(set(read)) < 12 * 6
    moving = make(checkpoint)
    monkeypatch.setattr(moving.encoder, "train", lambda mode=True: moving.encoder)
    settings = ScorerSettings(
        max_steps=12, batch_size=3, encoder_learning_rate=0.0, weight_decay=0.01, max_grad_norm=1e9
    )
    assert not moving.encoder.training
    expected = train_scorer(moving, balanced_questions(questions(), 0.15, 0), settings, progress=False)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert max(losses) - min(losses) > 1e-3
    assert torch.allclose(frozen.head.dense.weight, moving.head.dense.weight, atol=1e-3)


@pytest.mark.parametrize("loss", ["binary", "ratio"])
def test_it_learns(checkpoint, loss):
    """A sign the wrong way round trains just as steadily, to the opposite."""
    data = questions(24)
    learned, held_out = split_questions(data, 0.25, 0)
    scorer = make(checkpoint)
    settings = ScorerSettings(max_steps=80, batch_size=8, encoder_learning_rate=1e-3, loss=loss, learning_rate=1e-2)
    losses = train_scorer(scorer, balanced_questions(learned, 0.15, 0), settings, progress=False)
    assert sum(losses[-10:]) < sum(losses[:10])
    figures = judge_scorer(scorer, held_out, settings, progress=False)
    assert figures["real"]["auc"] > 0.9
    assert figures["real"]["mean_positive"] > figures["real"]["mean_negative"]


def test_a_step_by_hand(checkpoint, monkeypatch):
    """Classes that are not drawn alike, or rates that never warm up, show in no loss."""
    seen, rates = [], []
    scorer = make(checkpoint)
    forward = scorer.forward

    def noted(**batch):
        seen.append(
            [
                scorer.tokenizer.decode(ids[mask])
                for ids, mask in zip(batch["input_ids"], batch["rationale_mask"], strict=True)
            ]
        )
        return forward(**batch)

    step = torch.optim.AdamW.step
    monkeypatch.setattr(scorer, "forward", noted)
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (rates.append([g["lr"] for g in self.param_groups]), step(self))[1]
    )
    data = balanced_questions(questions(), 0.15, 0)
    settings = ScorerSettings(
        max_steps=8, batch_size=5, warmup_share=0.25, learning_rate=0.8, encoder_learning_rate=0.08
    )
    losses = train_scorer(scorer, data, settings, progress=False)
    assert len(seen) == 8
    allowed = [
        {scorer.tokenizer.decode(scorer.pairs.ids(t)) for q in data for t in getattr(q, side)}
        for side in ("positives", "negatives")
    ]
    for texts in seen:
        assert len(texts) == 10
        assert set(texts[:5]) <= allowed[0]
        assert set(texts[5:]) <= allowed[1]
    # min((step + 1) / 2, (8 - step) / 8)
    factors = [0.5, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert rates == [[pytest.approx(0.8 * f), pytest.approx(0.08 * f)] for f in factors]
    assert all(loss > 0 for loss in losses)


def test_a_loss_that_is_not_finite(checkpoint):
    """NaN weights would be saved, and scored with."""
    scorer = make(checkpoint)
    with torch.no_grad():
        scorer.head.dense.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="loss is nan at step 1"):
        train_scorer(scorer, balanced_questions(questions(), 0.15, 0), ScorerSettings(max_steps=2), progress=False)


# ---- Data ----


def test_questions_of_rows():
    """One question on both sides of the split, or one text on both sides of a question, is a leak."""
    rows = [
        {"prompt": "a", "positive_rationales": ["b  c", "b c", None, " "], "negative_rationales": ["d", "b\nc"]},
        {"prompt": None, "positive_rationales": ["b"], "negative_rationales": []},
        {"prompt": "a", "positive_rationales": ["e"], "negative_rationales": None},
        {"prompt": [{"role": "user", "content": "a"}], "positive_rationales": [], "negative_rationales": ["f"]},
        {"prompt": "g", "positive_rationales": [], "negative_rationales": []},
    ]
    assert judged_questions(rows) == [
        JudgedQuestion("a", ("b  c", "e"), ("d",)),
        JudgedQuestion([{"role": "user", "content": "a"}], (), ("f",)),
    ]


def test_split():
    """Held-out questions that depend on the order of training, or that stand on both sides, measure memory."""
    data = questions(20)
    learned, held_out = split_questions(data, 0.25, 3)
    assert len(held_out) == 5
    assert sorted([*learned, *held_out], key=data.index) == data
    assert (learned, held_out) == split_questions(data, 0.25, 3)
    assert any(split_questions(data, 0.25, seed)[1] != held_out for seed in range(3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([JudgedQuestion("a", ("b",), ())] * 3, "None of the 3 questions has a negative rationale"),
        ([JudgedQuestion("a", (), ("b",))] * 3, "None of the 3 questions has a positive rationale"),
        ([], "None of the 0 questions has a positive"),
        ([JudgedQuestion("a", ("b",), ("c",))], "There is 1 question only"),
        (
            [JudgedQuestion("a", ("b",), ("c",)), *[JudgedQuestion("d", ("b",), ())] * 9],
            "has negatives: there are too few",
        ),
    ],
)
def test_what_cannot_be_split(data, message):
    """An AUC of one class alone does not exist, and a discriminator that saw no bad rationale likes all."""
    with pytest.raises(DataError, match=message):
        split_questions(data, 0.2, 0)


def test_balance_is_reproducible():
    """Corruptions that depend on the number of questions before them change all when one is added."""
    data = questions()
    one = balanced_questions(data, 0.15, 0)
    assert one == balanced_questions(data, 0.15, 0)
    assert one != balanced_questions(data, 0.15, 1)
    assert all(len(q.positives) == len(q.negatives) for q in one)
    assert sum(q.num_corrupted for q in one) > 0
    without = [JudgedQuestion("x", (), ("y",)), *data]
    assert len(balanced_questions(without, 0.15, 0)) == len(data)


def test_mask_words():
    """A mask that the encoder never saw is some letters; it has one of its own where it was pretrained by masking."""
    assert mask_word(pair_tokenizer("bert")) == "[MASK]"
    assert mask_word(pair_tokenizer("t5")) == "<extra_id_0>"
    assert mask_word(byte_tokenizer()) == "..."


# ---- Figures ----


def test_figures_by_hand():
    """With many positives and few negatives, `good` said of everything is right four times of five."""
    figures = judge_scores([0.9, 0.9, 0.9, 0.4], [0.2, 0.8])
    assert (figures["num_positive"], figures["num_negative"]) == (4, 2)
    assert figures["accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert figures["auc"] == auc([0.9, 0.9, 0.9, 0.4], [0.2, 0.8]) == pytest.approx(7 / 8)
    assert figures["brier"] == pytest.approx(((3 * 0.01 + 0.36) / 4 + (0.04 + 0.64) / 2) / 2)
    # Bins by weight: 0.2 (negatives 1/4), 0.4 (positives 1/8), 0.8 (negatives 1/4), 0.9 (positives 3/8).
    assert figures["ece"] == pytest.approx(0.2 / 4 + 0.6 / 8 + 0.8 / 4 + 0.1 * 3 / 8)
    assert [b["weight"] for b in figures["bins"]] == pytest.approx([1 / 4, 1 / 8, 1 / 4, 3 / 8])
    assert judge_scores([0.6] * 9, [0.6])["accuracy"] == 0.5


def test_held_out_figures(checkpoint):
    """Synthetic negatives counted among the real ones would flatter a discriminator that sees masks alone."""
    data = questions()
    scorer = make(checkpoint)
    settings = ScorerSettings()
    figures = judge_scorer(scorer, data, settings, progress=False)
    assert list(figures) == ["real", "mask", "replace"]
    good = [(q.prompt, text) for q in data for text in q.positives]
    bad = [(q.prompt, text) for q in data for text in q.negatives]
    expected = judge_scores(scorer.score(*zip(*good, strict=True)), scorer.score(*zip(*bad, strict=True)))
    assert figures["real"]["auc"] == expected["auc"]
    assert figures["real"]["brier"] == pytest.approx(expected["brier"], abs=1e-6)
    assert figures["mask"]["num_negative"] == figures["mask"]["num_positive"] == len(good)
    assert figures == judge_scorer(scorer, data, settings, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 501}, "max_steps must lie in 1 to 500, got 501"),
        ({"max_steps": 0}, "max_steps must lie in 1 to 500"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number"),
        ({"encoder_learning_rate": float("nan")}, "encoder_learning_rate must be a finite number"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be a finite number above 0"),
        ({"warmup_share": 1.5}, "warmup_share must lie in"),
        ({"corrupted_share": 0.0}, "corrupted_share must lie in"),
        ({"loss": "hinge"}, "Unknown loss 'hinge'"),
    ],
)
def test_bad_settings(settings, message):
    """They would be found after the encoder was loaded, or never."""
    with pytest.raises(ConfigError, match=message):
        ScorerSettings(**settings)


def test_bad_fraction():
    with pytest.raises(ConfigError, match="eval_fraction must lie in"):
        split_questions(questions(), 1.0, 0)
