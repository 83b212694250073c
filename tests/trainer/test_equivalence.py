"""The loss of a global batch does not depend on how the batch is split, or how the model is run."""

import pytest
from running import FAMILIES, largest_difference, lora, record, trainer_of
from tiny import ragged_rows, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl.losses import REDUCTIONS
from qcrd_trl.trainer.presets import PRESETS


# The paper's margin of 3 nats is below the loss of an untrained student of some thirty words, so that no negative would
# have a gradient.
MARGIN = {"qcrd_paper": {"margin": 6.0}}


def ragged_with_gaps():
    """Eight questions: m 0 to 2, k 0 to 3, two without a label, one with a label alone, one with negatives alone."""
    rows = ragged_rows()
    rows[1]["label"] = rows[6]["label"] = None
    assert rows[3]["positive_rationales"] == rows[3]["negative_rationales"] == []
    assert rows[6]["positive_rationales"] == []
    assert rows[6]["negative_rationales"] != []
    return rows


def one_step(folder, family="llama", batch_size=8, accumulation=1, parts=None, model=None, **overrides):
    """Loss, gradient and discriminator's gradient of one optimizer step on the eight questions."""
    make, tokenizer = FAMILIES[family]
    trainer = trainer_of(
        folder,
        model or make(),
        ragged_with_gaps(),
        tokenizer(),
        parts,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        **overrides,
    )
    seen = record(trainer)
    trainer.train()
    assert len(seen.losses) == -(-len(trainer.train_dataset) // batch_size)
    assert len(seen.student) == 1
    seen.parts = trainer.state.log_history[0]
    return seen


def assert_same(one, other, tolerance=1e-6):
    assert sum(other.losses) == pytest.approx(sum(one.losses), abs=tolerance)
    assert largest_difference(one.student[0], other.student[0]) < tolerance
    assert len(one.discriminator) == len(other.discriminator)
    for left, right in zip(one.discriminator, other.discriminator, strict=True):
        assert largest_difference(left, right) < tolerance
        assert largest_difference(left, {k: v * 0 for k, v in left.items()}) > 1e-4
    for name in ("loss/label", "loss/positive", "loss/negative", "loss/discriminator", "nll/positive"):
        assert one.parts.get(name) == pytest.approx(other.parts.get(name), abs=tolerance)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_its_micro_batches(tmp_path, family, preset):
    """A mean over micro-batches, or over tokens, would weigh questions by what they happen to share a batch with."""
    overrides = {"preset": preset, **MARGIN.get(preset, {})}
    whole = one_step(tmp_path, family, 8, 1, **overrides)
    assert all(grad.abs().max() > 1e-6 for grad in whole.student[0].values()), "a parameter has no gradient"
    if preset.startswith("qcrd"):
        assert whole.parts["loss/negative"] < -1e-3, whole.parts
        assert whole.parts["loss/discriminator"] != 0
        assert 0 < whole.parts["quality/negative"] < 1
    for batch_size, accumulation in ((1, 8), (2, 4)):
        assert_same(whole, one_step(tmp_path, family, batch_size, accumulation, **overrides))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighting", ["printed", "normalized"])
def test_every_reduction_is_independent_of_the_split(tmp_path, reduction, weighting):
    """A draw from a stream of random numbers, or a mean weight of each micro-batch, would change with the split."""
    overrides = {
        "preset": "qcrd_paper",
        **MARGIN["qcrd_paper"],
        "reduction": reduction,
        "quality_weighting": weighting,
    }
    whole = one_step(tmp_path, "llama", 8, 1, **overrides)
    assert whole.parts["loss/negative"] < -1e-3
    assert_same(whole, one_step(tmp_path, "llama", 1, 8, **overrides))
    assert_same(whole, one_step(tmp_path, "llama", 4, 2, **overrides))


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_passes_by_length_change_nothing(tmp_path, family):
    """A row lost, doubled or given another's loss in the sorting would train on wrong texts at a plausible loss."""
    whole = one_step(tmp_path, family, rationale_forward_passes=1)
    for passes in (3, 30):
        assert_same(whole, one_step(tmp_path, family, rationale_forward_passes=passes))


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(tmp_path, family):
    """Padding that is attended to, or counted, makes the loss depend on the longest text of the batch."""
    assert_same(one_step(tmp_path, family), one_step(tmp_path, family, pad_to_multiple_of=64))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adapter", [False, True])
def test_gradient_checkpointing_changes_nothing(tmp_path, family, adapter):
    """A checkpointed layer whose inputs need no gradient gives its adapter none: only some of it would be trained."""
    runs = []
    for checkpointing in (False, True):
        parts = {"peft_config": lora(task_type="SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM")} if adapter else None
        runs.append(one_step(tmp_path, family, parts=parts, gradient_checkpointing=checkpointing))
    assert_same(*runs)
    names = [name for name in runs[0].student[0] if "lora_B" in name]
    assert len(names) >= 14 if adapter else not names
    for name in names:  # lora_A has no gradient at the first step, as lora_B starts at zero
        assert runs[1].student[0][name].abs().max() > 0, name


def test_a_last_accumulation_that_is_not_full_is_a_mean_of_what_it_has(tmp_path):
    """Divided by the full batch's number, the last step of every epoch would be too small."""
    rows = ragged_rows(7)
    overrides = {"max_steps": 2, "learning_rate": 0.0}
    whole = trainer_of(tmp_path, rows=rows, per_device_train_batch_size=4, **overrides)
    split = trainer_of(tmp_path, rows=rows, per_device_train_batch_size=1, gradient_accumulation_steps=4, **overrides)
    seen = []
    for trainer in (whole, split):
        seen.append(record(trainer))
        trainer.train()
    assert len(seen[1].losses) == 7
    assert sum(seen[1].losses[4:]) == pytest.approx(seen[0].losses[1], abs=1e-6)
    assert largest_difference(seen[0].student[1], seen[1].student[1]) < 1e-6


def test_a_question_of_many_tokens_weighs_as_one_of_few(tmp_path):
    """By tokens, the label of 12 words would have 12 times the weight of a number."""
    rows = [
        {"prompt": "a + 1", "label": "2", "positive_rationales": ["a"]},
        {"prompt": "b + 1", "label": " ".join("c" * 12), "positive_rationales": ["a"]},
    ]
    losses = []
    for chosen in (rows, rows[:1], rows[1:]):
        trainer = trainer_of(tmp_path, rows=chosen, preset="label_only")
        seen = record(trainer)
        trainer.train()
        losses.append(sum(seen.losses))
    assert losses[1] != pytest.approx(losses[2], abs=1e-3)
    assert losses[0] == pytest.approx((losses[1] + losses[2]) / 2, abs=1e-6)


@pytest.mark.parametrize(("make", "tokenizer"), [(tiny_llama, word_tokenizer), (tiny_t5, word_tokenizer)])
def test_without_labels_or_rationales_there_is_no_nan(tmp_path, make, tokenizer):
    """A micro-batch of questions that lack one task must not divide by zero: one NaN ends the run."""
    rows = [
        {"prompt": "a + 1", "label": None, "positive_rationales": ["a is 1"], "negative_rationales": []},
        {"prompt": "a + 2", "label": "2", "positive_rationales": [], "negative_rationales": []},
        {"prompt": "a + 3", "label": None, "positive_rationales": [], "negative_rationales": ["b is 3"]},
    ]
    trainer = trainer_of(
        tmp_path, make(), rows, tokenizer(), per_device_train_batch_size=1, gradient_accumulation_steps=3
    )
    seen = record(trainer)
    trainer.train()
    assert all(loss == loss and abs(loss) < 10 for loss in seen.losses)
    assert sorted(loss != 0 for loss in seen.losses) == [False, True, True]  # a negative alone has no relative margin
    assert all(grad.isfinite().all() for grad in seen.student[0].values())
