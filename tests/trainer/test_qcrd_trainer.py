"""Training as users of a Trainer expect it: what moves, what does not, what is repeatable, which data are taken."""

import pytest
import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from running import FAMILIES, largest_difference, logged, lora, moved, record, trainer_of, weights
from tiny import chat_tokenizer, ragged_rows, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from transformers import TrainerCallback

from qcrd_trl import QCRDTrainer


TASK = {"llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}
ADAMW = {"optim": "adamw_torch", "learning_rate": 0.01, "max_steps": 3}


def train(folder, **kwargs):
    """A trained trainer, and the weights of student and discriminator from before."""
    trainer = trainer_of(folder, **kwargs)
    before = weights(trainer.model), None if trainer.discriminator is None else weights(trainer.discriminator)
    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps
    return trainer, *before


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_moves_and_nothing_else(tmp_path, family, adapter, bf16):
    """A parameter that no optimizer has, or a base that drifts under its adapter, shows in no loss."""
    make, tokenizer = FAMILIES[family]
    parts = {"peft_config": lora(task_type=TASK[family])} if adapter else None
    trainer, student, discriminator = train(
        tmp_path, model=make(), processing_class=tokenizer(), parts=parts, bf16=bf16, **ADAMW
    )
    changed = moved(student, weights(trainer.model))
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert isinstance(trainer.model, PeftModel) == adapter
    assert all("lora_" in name for name in trained) == adapter
    # T5's weights have further names, by which a dictionary of them shows the same tensor again.
    aliases = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert trained <= changed
    assert changed - trained <= (aliases if family == "t5" and not adapter else set())
    assert moved(discriminator, weights(trainer.discriminator)) == discriminator.keys()
    assert all(tensor.isfinite().all() for tensor in weights(trainer.model).values())
    assert all(entry["loss"] == pytest.approx(entry["loss"]) for entry in logged(trainer))


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_bart])
def test_other_architectures(tmp_path, make):
    """Learned positions and a tied or biased head must be trained as well."""
    trainer, before, _ = train(tmp_path, model=make(), **ADAMW)
    assert {name for name, _ in trainer.model.named_parameters()} <= moved(before, weights(trainer.model))


def test_a_discriminator_without_weight_stays_as_it_was(tmp_path):
    """With alpha_3 = 0 there is nothing it could learn, but weight decay would move it."""
    trainer, student, discriminator = train(tmp_path, alpha_3=0.0, **ADAMW)
    assert moved(student, weights(trainer.model))
    assert not moved(discriminator, weights(trainer.discriminator))
    assert [entry["quality/positive"] for entry in logged(trainer)] != []


def test_a_discriminator_that_is_taught_nothing_stays_as_it_was(tmp_path):
    """Without negatives there is no quality to learn: gradients of zero must not let momentum and decay move it."""
    rows = [{**row, "negative_rationales": []} for row in ragged_rows()]
    trainer, student, discriminator = train(tmp_path, rows=rows, **ADAMW)
    assert moved(student, weights(trainer.model))
    assert not moved(discriminator, weights(trainer.discriminator))


def test_the_discriminator_is_updated_at_its_interval(tmp_path):
    """An interval that is not kept makes it learn more often, or never."""
    trainer = trainer_of(tmp_path, discriminator_update_interval=2, **{**ADAMW, "max_steps": 4})
    seen = record(trainer)
    trainer.train()
    learned = [any(grad.any() for grad in grads.values()) for grads in seen.discriminator]
    assert learned == [True, False, True, False]


@pytest.mark.parametrize("kind", ["ratio", "binary"])
def test_the_discriminators_loss_does_not_reach_the_student(tmp_path, kind):
    """It would bend the student's states until its rationales are easy to tell apart."""
    seen = []
    for alpha_3 in (0.0, 5.0):
        # Without quality weights the discriminator has no other way into the student's loss.
        trainer = trainer_of(tmp_path, alpha_3=alpha_3, quality_weighting="none", discriminator_loss=kind)
        seen.append(record(trainer))
        trainer.train()
    assert seen[1].losses[0] - seen[0].losses[0] == pytest.approx(
        5.0 * trainer.state.log_history[0]["loss/discriminator"], abs=1e-5
    )
    assert abs(seen[1].losses[0] - seen[0].losses[0]) > 0.1
    assert largest_difference(seen[0].student[0], seen[1].student[0]) == 0
    assert any(grad.any() for grad in seen[1].discriminator[0].values())


def test_the_discriminators_rate_decays_by_iteration(tmp_path):
    """Adam cancels a factor on the loss: the decay of alpha_3 must act on the rate, or it acts on nothing."""
    rates = []
    rows = [{**row, "positive_rationales": ["a"], "negative_rationales": ["b"]} for row in ragged_rows()]
    trainer = trainer_of(
        tmp_path, rows=rows, per_device_train_batch_size=4, max_steps=6, discriminator_learning_rate=1e-3
    )
    step = trainer.discriminator_update.optimizer.step

    def noted(*args, **kwargs):
        rates.append(trainer.discriminator_update.optimizer.param_groups[0]["lr"])
        return step(*args, **kwargs)

    trainer.discriminator_update.optimizer.step = noted
    trainer.train()
    assert rates == pytest.approx([1e-3, 1e-3, 9e-4, 9e-4, 8.1e-4, 8.1e-4])


def test_the_logged_loss_is_the_sum_of_its_logged_parts(tmp_path):
    """Parts under the wrong name or weight, or an alpha_3 of another iteration, would explain a loss that was not."""
    trainer = trainer_of(tmp_path, per_device_train_batch_size=4, max_steps=6)
    trainer.train()
    entries = logged(trainer)
    assert len(entries) == 6
    assert [entry["alpha_3"] for entry in entries] == pytest.approx([0.5, 0.5, 0.45, 0.45, 0.405, 0.405])
    for entry in entries:
        contrast = entry["loss/positive"] - 0.2 * entry["loss/negative"]
        total = 0.5 * entry["loss/label"] + 0.5 * contrast + entry["alpha_3"] * entry["loss/discriminator"]
        assert entry["loss"] == pytest.approx(total, abs=1e-5)
    assert len({round(entry["loss"], 4) for entry in entries}) == 6


def seeded_run(folder, seed):
    trainer = trainer_of(
        folder,
        model=tiny_llama(attention_dropout=0.3),
        rows=ragged_rows(12),
        parts={"peft_config": lora(lora_dropout=0.2)},
        seed=seed,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        **ADAMW,
    )
    # The adapter's first weights come from the caller's random state, so those are not a part of the trainer's seed.
    torch.manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_A" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    trainer.train()
    return weights(trainer.model), weights(trainer.discriminator), logged(trainer)


def test_a_seed_repeats_a_run_bit_for_bit(tmp_path):
    """A random state that the seed does not cover makes every comparison of two recipes a comparison of luck too."""
    one, again, other = (seeded_run(tmp_path, seed) for seed in (1, 1, 2))
    for left, right in zip(one[:2], again[:2], strict=True):
        assert largest_difference(left, right) == 0
    assert one[2] == again[2]
    assert len(one[2]) == 3
    assert largest_difference(one[0], other[0]) > 1e-4
    assert largest_difference(one[1], other[1]) > 1e-4
    assert one[2] != other[2]


@pytest.mark.parametrize("beta", [0.2, 0.0])
def test_negatives_become_less_likely_and_positives_more(tmp_path, beta):
    """A sign the wrong way round would teach the teacher's mistakes, at a loss that falls all the same."""
    rows = [
        {
            "prompt": "a + 1",
            "label": "2",
            "positive_rationales": ["a is 1 so 2"],
            "negative_rationales": ["a is 1 so 3"],
        }
    ]
    overrides = {"alpha_1": 0.0, "margin": 5.0, "quality_weighting": "none", "discriminator": "none", "alpha_3": 0.0}
    trainer = trainer_of(
        tmp_path, rows=rows, beta=beta, max_steps=50, optim="adamw_torch", learning_rate=0.01, **overrides
    )
    before = nll_of_rationales(trainer)
    trainer.train()
    after = nll_of_rationales(trainer)
    assert after[0] < before[0] - 2
    if beta:
        assert after[1] > before[1] + 1
    else:  # alone, the positive pulls the negative along: they differ by one word of six
        assert after[1] < before[1] - 1


def nll_of_rationales(trainer):
    batch = trainer.data_collator(list(trainer.train_dataset))
    labels = batch["rationale_labels"]
    with torch.no_grad():
        logits = trainer.model.eval()(
            input_ids=batch["rationale_input_ids"], attention_mask=batch["rationale_attention_mask"]
        ).logits
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
    return (losses.view(len(labels), -1).sum(1) / (labels[:, 1:] != -100).sum(1)).tolist()


@pytest.mark.parametrize("absent", [True, False])
def test_without_negatives_the_contrast_is_the_positive_part(tmp_path, absent):
    """A question without negatives must not get a bonus or a penalty for the lack."""
    rows = [{k: v for k, v in row.items() if k != "negative_rationales"} for row in ragged_rows()]
    if not absent:
        rows = [{**row, "negative_rationales": None} for row in rows]
    for beta in (0.2, 3.0):
        trainer = trainer_of(tmp_path, rows=rows, alpha_1=0.0, alpha_2=1.0, beta=beta)
        trainer.train()
        entry = trainer.state.log_history[0]
        assert entry["loss"] == pytest.approx(entry["loss/positive"], abs=1e-6)
        assert entry["loss/positive"] > 1
        assert entry["loss/negative"] == entry["loss/discriminator"] == 0
        assert "nll/negative" not in entry  # a mean of nothing is not reported as 0


def test_label_only_needs_no_rationale_and_reads_none(tmp_path):
    """It is the baseline that people compare with: one pass a batch, on data that were never sent to a teacher."""
    rows = [{"prompt": row["prompt"], "label": row["label"]} for row in ragged_rows()]
    for preset, extra, passes in (("label_only", {}, 1), ("dss", {"alpha_2": 0.0}, 1)):
        model = tiny_llama()
        trainer = trainer_of(tmp_path, model, rows, preset=preset, **extra)
        calls = []
        model.register_forward_pre_hook(lambda module, *_, calls=calls: calls.extend([1] * module.training))
        trainer.train()
        assert len(calls) == passes
        entry = trainer.state.log_history[0]
        assert "loss/positive" not in entry
        assert entry["loss"] == pytest.approx(entry["loss/label"] * trainer.args.alpha_1, abs=1e-6)
        assert trainer.discriminator is None


def test_without_a_label_task_no_label_is_read(tmp_path):
    """alpha_1 = 0 should cost nothing, and rows need no label."""
    rows = [{k: v for k, v in row.items() if k != "label"} for row in ragged_rows()]
    trainer, _, _ = train(tmp_path, rows=rows, alpha_1=0.0)
    assert "loss/label" not in trainer.state.log_history[0]
    assert trainer.state.log_history[0]["loss/positive"] > 0


@pytest.mark.parametrize("prompt", ["standard", "conversational"])
@pytest.mark.parametrize("columns", [{}, {"remove_unused_columns": False}])
def test_forms_of_rows(tmp_path, prompt, columns):
    """Default arguments drop what the model's forward does not name: rationales, of all columns, must not be."""
    rows = ragged_rows()
    if prompt == "conversational":
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    trainer, before, _ = train(tmp_path, rows=rows, processing_class=chat_tokenizer(), **columns)
    entry = trainer.state.log_history[0]
    assert entry["nll/negative"] > 0
    assert entry["loss/label"] > 0
    assert len(moved(before, weights(trainer.model))) == len(before)


def test_worker_processes_give_the_same_run(tmp_path):
    """Loading in workers must change neither the order of the rows nor what is drawn."""
    runs = []
    for workers in (0, 1):
        trainer, _, _ = train(tmp_path, per_device_train_batch_size=4, dataloader_num_workers=workers, **ADAMW)
        runs.append(weights(trainer.model))
    assert largest_difference(*runs) == 0


def test_streaming(tmp_path):
    """Six rows in batches of two are three steps: the stream starts anew until max_steps is reached."""
    rows = Dataset.from_list(ragged_rows(6)).to_iterable_dataset()
    trainer, before, _ = train(tmp_path, rows=rows, per_device_train_batch_size=2, max_steps=5)
    assert trainer.state.global_step == 5
    assert len(logged(trainer)) == 5
    assert all(entry["loss/label"] > 0 for entry in logged(trainer))
    assert moved(before, weights(trainer.model))


@pytest.mark.parametrize("kind", ["id", "model", "peft"])
def test_forms_of_a_student(tmp_path, kind):
    """Each way to give a student must train it, and by the tokenizer that belongs to it."""
    folder = tmp_path / "base"
    tiny_llama().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    if kind == "id":
        given, tokenizer = str(folder), None
    elif kind == "model":
        given, tokenizer = tiny_llama(), word_tokenizer()
    else:
        given, tokenizer = get_peft_model(tiny_llama(), lora()), word_tokenizer()
    trainer = trainer_of(tmp_path / "run", given, processing_class=tokenizer or word_tokenizer(), **ADAMW)
    if tokenizer is None:
        trainer = QCRDTrainer(folder, trainer.args, Dataset.from_list(ragged_rows()))  # a path object, no tokenizer
        assert trainer.processing_class("a").input_ids == word_tokenizer()("a").input_ids
    before = weights(trainer.model)
    size = trainer.model.get_input_embeddings().weight.shape
    trainer.train()
    assert moved(before, weights(trainer.model))
    assert isinstance(trainer.model, PeftModel) == (kind == "peft")
    assert trainer.model.get_input_embeddings().weight.shape == size
    assert len(trainer.processing_class) == len(word_tokenizer())


class Nothing(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append(model is not None)


def test_drop_in_arguments(tmp_path):
    """Callbacks, an optimizer and a collator of one's own must be used, as any Trainer uses them."""
    model = tiny_t5()
    used = []
    trainer = trainer_of(tmp_path, model, processing_class=word_tokenizer(adds_eos=True))
    collate = trainer.data_collator

    def collator(features):
        used.append(len(features))
        return collate(features)

    callback, optimizer = Nothing(), torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = trainer_of(
        tmp_path,
        model,
        processing_class=word_tokenizer(adds_eos=True),
        parts={"callbacks": [callback], "optimizers": (optimizer, None), "data_collator": collator},
    )
    before = weights(model)
    trainer.train()
    assert callback.steps == [True]
    assert used == [8]
    assert not moved(before, weights(model))  # its rate is 0
    assert trainer.optimizer.optimizer is optimizer
