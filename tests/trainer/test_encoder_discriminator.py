"""A student trained with a discriminator that has an encoder of its own."""

import copy

import pytest
import torch
from datasets import Dataset
from encoders import save_encoder
from generating import generating
from running import config, gradients, largest_difference, lora, moved, record, trainer_of, weights
from safetensors.torch import load_file
from test_checkpoints import StopAfter, optimizer_state
from test_reference import Reference
from tiny import ragged_rows, tiny_llama, word_tokenizer

from qcrd_trl import QCRDConfig, RationaleDiscriminator, RationaleScorer
from qcrd_trl.data.collator import DataCollatorForQCRD
from qcrd_trl.errors import ConfigError, ModelError


@pytest.fixture(scope="module", params=["bert", "t5"])
def scorer_folder(request, tmp_path_factory):
    """A pretrained discriminator, and what `QCRDConfig` says of it."""
    folder = tmp_path_factory.mktemp("scorer")
    scorer = RationaleScorer.from_encoder(save_encoder(folder / "encoder", request.param), hidden_size=8, seed=7)
    scorer.save_pretrained(folder / "discriminator")
    return folder / "discriminator"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    RationaleScorer.from_encoder(save_encoder(folder / "encoder"), hidden_size=8, seed=7).save_pretrained(folder / "d")
    return folder / "d"


def both_sides(count=16):
    return [
        {**row, "positive_rationales": ["a", f"b {i % 9} c"], "negative_rationales": ["d", "e f g"]}
        for i, row in enumerate(ragged_rows(count))
    ]


class TextReference(Reference):
    """Eq. 1 to 8 in float64, a rationale at a time, with the scores of the other discriminator."""

    def read(self, prompt, text):
        nll, _ = super().read(prompt, text)
        return nll, (prompt.removeprefix("<Explain> "), text)

    def score(self, pair):
        scorer = self.discriminator
        encoded = scorer.tokenizer(*pair, return_tensors="pt")
        mine = torch.tensor([owner == 1 for owner in encoded.sequence_ids(0)])
        states = scorer.encoder(**encoded).last_hidden_state[0][mine]
        assert states.dtype == torch.float64
        centred = states - states.mean(1, keepdim=True)
        pooled = (centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()).max(0).values
        dense, score = scorer.head.dense, scorer.head.score
        return torch.sigmoid(score.weight @ (dense.weight @ pooled + dense.bias).clamp(min=0) + score.bias)[0]


@pytest.mark.parametrize("rate", [0.0, 1e-3], ids=["head", "whole"])
@pytest.mark.parametrize(
    "overrides",
    [
        {"preset": "qcrd_paper", "margin": 8.0},
        {"preset": "qcrd", "discriminator_loss": "binary"},
        {"preset": "qcrd_paper", "margin": 8.0, "reduction": "weighted_mean", "quality_weighting": "normalized"},
    ],
    ids=["paper", "qcrd", "weighted"],
)
def test_loss_and_gradients(tmp_path, scorer_folder, overrides, rate):
    """Scores of the wrong rationale, a padded one, or with a gradient into the student's loss, would train plausibly."""
    rows = ragged_rows()
    trainer = trainer_of(
        tmp_path,
        rows=rows,
        discriminator_model_name_or_path=str(scorer_folder),
        discriminator_encoder_learning_rate=rate,
        **overrides,
    )
    assert isinstance(trainer.discriminator, RationaleScorer)
    assert trainer.args.discriminator == "encoder"
    reference = TextReference(trainer.model, trainer.discriminator, trainer.args)
    seen = record(trainer)
    trainer.train()
    kept = [row for row in rows if row["label"] is not None]
    loss, quality = reference(kept)
    loss.backward()
    assert seen.losses == [pytest.approx(loss.item() + trainer.args.alpha_3 * quality.item(), rel=1e-5, abs=1e-5)]
    for name, grad in gradients(reference.model).items():
        torch.testing.assert_close(seen.student[0][name].double(), grad, rtol=1e-4, atol=1e-5, msg=name)
    quality.backward()
    expected = gradients(reference.discriminator)
    assert any(name.startswith("encoder.") for name in expected) == (rate > 0)
    assert max(grad.abs().max() for name, grad in expected.items() if name.startswith("encoder.") or not rate) > 1e-4
    for name, grad in expected.items():
        torch.testing.assert_close(seen.discriminator[0][name].double(), grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("rate", [0.0, 1e-3], ids=["head", "whole"])
def test_what_is_updated_and_when(tmp_path, bert, rate):
    """An encoder that moves at a rate of 0, or a head that stands still, shows in no loss."""
    trainer = trainer_of(
        tmp_path,
        rows=both_sides(),
        discriminator_model_name_or_path=str(bert),
        discriminator_encoder_learning_rate=rate,
        discriminator_update_interval=2,
        max_steps=3,
    )
    pretrained = weights(RationaleScorer.from_pretrained(bert))
    assert largest_difference(weights(trainer.discriminator), pretrained) == 0
    states, rates = [], []
    step = trainer.discriminator_update.step

    def noted(iteration):
        step(iteration)
        states.append(weights(trainer.discriminator))
        rates.append([group["lr"] for group in trainer.discriminator_update.optimizer.param_groups])

    trainer.discriminator_update.step = noted
    trainer.train()
    parts = [
        {name.split(".")[0] for name in moved(before, after)}
        for before, after in zip([pretrained, *states], states, strict=False)
    ]
    both = {"head", "encoder"} if rate else {"head"}
    assert parts == [both, set(), both]  # steps 0 and 2
    assert rates[0] == [1e-3, rate][: 1 + (rate > 0)]
    assert rates[2] == [pytest.approx(0.9 * r) for r in rates[0]]  # 16 questions in batches of 8: the second epoch
    assert not trainer.discriminator.training


def test_generated_negatives_are_scored(tmp_path, bert):
    """Scores of a negative's neighbour, or of the text of an earlier iteration, are numbers like any."""
    trainer = generating(
        tmp_path, discriminator_model_name_or_path=str(bert), alpha_3=0.0, num_negatives=2, negative_source="both"
    )
    trainer.train()
    scorer, prompts = RationaleScorer.from_pretrained(bert), {row["id"]: row["prompt"] for row in trainer.questions}
    trainer.gather_negative_scores()
    scored = [(prompts[key], negative) for key, negative in trainer.negatives if negative.quality is not None]
    assert len(scored) >= 3
    expected = scorer.score([prompt for prompt, _ in scored], [negative.text for _, negative in scored])
    assert [negative.quality for _, negative in scored] == pytest.approx(expected, abs=1e-6)
    assert len({round(score, 4) for score in expected}) > 1


def run(folder, bert, until=None, resume=None, **overrides):
    """Four steps with a checkpoint at each, a student with dropout, and generated negatives."""
    torch.manual_seed(3)
    trainer = generating(
        folder,
        tiny_llama(attention_dropout=0.3, initializer_range=0.4),
        both_sides(8),
        negative_source="both",
        negative_refresh_steps=2,
        discriminator_model_name_or_path=str(bert),
        discriminator_learning_rate=0.01,
        save_strategy="steps",
        save_steps=1,
        **overrides,
    )
    if until is not None:
        trainer.add_callback(StopAfter(until))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("rate", [0.0, 1e-2], ids=["head", "whole"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, bert, rate, accumulation):
    """A discriminator that starts anew from its pretrained weights, or an optimizer that does, bends the run unseen."""
    shape = {"discriminator_encoder_learning_rate": rate, "gradient_accumulation_steps": accumulation}
    whole = run(tmp_path / "whole", bert, **shape)
    stopped = run(tmp_path / "stopped", bert, until=2, **shape)
    assert stopped.state.global_step == 2
    resumed = run(tmp_path / "stopped", bert, resume=True, **shape)
    assert resumed.state.global_step == 4
    assert moved(weights(stopped.discriminator), weights(whole.discriminator))
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0
    assert largest_difference(weights(resumed.discriminator), weights(whole.discriminator)) == 0
    assert largest_difference(optimizer_state(resumed), optimizer_state(whole)) == 0
    assert [negative for _, negative in resumed.negatives] == [negative for _, negative in whole.negatives]


def test_what_is_saved(tmp_path, bert):
    """An encoder among the student's weights doubles every upload, and no other library could load them."""
    trainer = trainer_of(
        tmp_path / "out",
        rows=both_sides(),
        discriminator_model_name_or_path=str(bert),
        discriminator_encoder_learning_rate=1e-2,
        save_strategy="steps",
        save_steps=1,
    )
    trainer.train()
    trainer.save_model()
    expected = trainer.discriminator.score(["a", "b"], ["b c", "d"])
    assert expected != RationaleScorer.from_pretrained(bert).score(["a", "b"], ["b c", "d"])
    for folder in (tmp_path / "out", tmp_path / "out" / "checkpoint-1"):
        assert load_file(folder / "model.safetensors").keys() == trainer.model.state_dict().keys()
        assert RationaleScorer.from_pretrained(folder).score(["a", "b"], ["b c", "d"]) == expected
    assert (tmp_path / "out" / "checkpoint-1" / "discriminator" / "optimizer.pt").is_file()
    assert not any("encoder" in name and "discriminator" in name for name in trainer.model.state_dict())


def test_a_new_discriminator_on_an_encoder(tmp_path, bert, caplog):
    """The random state of the run would be another one than without the discriminator; and nobody asked for a new head."""
    encoder = save_encoder(tmp_path / "encoder")
    shape = {"rows": both_sides(), "parts": {"peft_config": lora(lora_dropout=0.5)}, "alpha_3": 0.0}
    shape |= {"quality_weighting": "none", "positive_reduction": "mean", "negative_reduction": "mean"}
    torch.manual_seed(0)
    one = trainer_of(tmp_path / "one", discriminator_model_name_or_path=str(encoder), **shape)
    head = copy.deepcopy(one.discriminator.head.state_dict())
    assert "is no pretrained discriminator: it is read as an encoder" in caplog.text
    caplog.clear()
    trainer_of(tmp_path / "pretrained", discriminator_model_name_or_path=str(bert))
    assert "no pretrained discriminator" not in caplog.text
    assert one.discriminator.head.hidden_size == 8  # discriminator_hidden_size of these tests
    one.train()
    torch.manual_seed(0)
    other = trainer_of(tmp_path / "other", discriminator_model_name_or_path=str(encoder), **shape)
    assert largest_difference(weights(other.discriminator.head), head) == 0
    torch.manual_seed(0)
    plain = trainer_of(tmp_path / "plain", **shape)
    plain.train()
    assert largest_difference(weights(plain.model), weights(one.model)) == 0


def test_evaluation(tmp_path, bert):
    """Held-out rationales that are not tokenized for the encoder would stop the run at its first evaluation."""
    rows = both_sides(6)
    trainer = trainer_of(
        tmp_path,
        rows=both_sides(),
        parts={"eval_dataset": Dataset.from_list(rows)},
        discriminator_model_name_or_path=str(bert),
        alpha_3=0.0,
        preset="qcrd_paper",
    )
    metrics = trainer.evaluate()
    scorer = RationaleScorer.from_pretrained(bert)
    side = [(row["prompt"], text) for row in rows for text in row["positive_rationales"]]
    assert metrics["eval_quality/positive"] == pytest.approx(
        sum(scorer.score(*zip(*side, strict=True))) / len(side), abs=1e-6
    )
    assert 0 <= metrics["eval_discriminator_auc"] <= 1
    assert trainer.evaluate(Dataset.from_list(rows[:3]))["eval_quality/positive"] > 0
    labels = Dataset.from_list([{"prompt": "a + 1", "label": "1"}])
    assert "eval_loss/label" in trainer.evaluate(labels)


# ---- Bad input ----


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"discriminator": "encoder"}, "needs discriminator_model_name_or_path"),
        ({"discriminator": "student", "discriminator_model_name_or_path": "x"}, "not used by discriminator='student'"),
        ({"discriminator": "none", "discriminator_model_name_or_path": "x"}, "not used by discriminator='none'"),
        ({"preset": "dss", "discriminator_model_name_or_path": "x"}, "preset='dss' has no discriminator"),
        ({"discriminator_encoder_learning_rate": 1e-5}, "has no encoder to train"),
        (
            {"discriminator_model_name_or_path": "x", "discriminator_encoder_learning_rate": -1.0},
            "discriminator_encoder_learning_rate must be a finite number",
        ),
        ({"discriminator": "bert"}, "Unknown discriminator 'bert': expected one of student, encoder, none"),
    ],
)
def test_arguments_that_exclude_each_other(tmp_path, overrides, message):
    """A discriminator that was pretrained for hours and then not used is found by nobody."""
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **overrides)


def test_the_path_chooses_the_kind(tmp_path):
    """A config that is written out and read again has to mean the same."""
    args = config(tmp_path, discriminator_model_name_or_path="x")
    assert args.discriminator == "encoder"
    again = QCRDConfig(
        str(tmp_path), use_cpu=True, discriminator="encoder", discriminator_model_name_or_path="x", preset="dss"
    )
    assert again.discriminator == "encoder"


def test_a_path_that_is_neither(tmp_path, bert):
    """It would be found after the student was loaded and the data were tokenized, or after the first epoch."""
    with pytest.raises(ModelError, match="No discriminator and no encoder could be loaded from"):
        trainer_of(tmp_path, discriminator_model_name_or_path=str(tmp_path / "nowhere" / "at" / "all"))
    RationaleDiscriminator(16, 8).save_pretrained(tmp_path / "student_kind")
    with pytest.raises(ModelError, match="kind='student'"):
        trainer_of(tmp_path, discriminator_model_name_or_path=str(tmp_path / "student_kind"))
    # Without a rationale task there is no discriminator to load.
    assert trainer_of(tmp_path, discriminator_model_name_or_path="x", alpha_2=0.0).discriminator is None


def test_a_collator_that_leaves_the_texts_out(tmp_path, bert):
    """Without the check it is an error about `None` in the middle of the first step."""
    parts = {"data_collator": DataCollatorForQCRD(word_tokenizer().pad_token_id)}
    trainer = trainer_of(tmp_path, parts=parts, discriminator_model_name_or_path=str(bert))
    with pytest.raises(ConfigError, match="gives no discriminator_input_ids"):
        trainer.train()


def test_resumed_otherwise(tmp_path, bert):
    """A checkpoint of the one kind taken for the other, or an optimizer of fewer parts, must not go on half-loaded."""
    shape = {"rows": both_sides(), "save_strategy": "steps", "save_steps": 1}
    trainer_of(tmp_path, discriminator_model_name_or_path=str(bert), **shape).train()
    with pytest.raises(ModelError, match="kind='encoder'"):
        trainer_of(tmp_path, max_steps=2, **shape).train(resume_from_checkpoint=True)
    whole = {"discriminator_model_name_or_path": str(bert), "discriminator_encoder_learning_rate": 1e-3}
    with pytest.raises(ModelError, match="other parts were trained"):
        trainer_of(tmp_path, max_steps=2, **whole, **shape).train(resume_from_checkpoint=True)
