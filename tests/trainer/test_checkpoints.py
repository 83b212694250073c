"""What is saved, that it loads without this package, and that a resumed run is the run that was never stopped."""

import json

import pytest
import torch
from datasets import Dataset
from peft import AutoPeftModelForCausalLM, PeftModel
from running import largest_difference, logged, lora, moved, trainer_of, weights
from safetensors.torch import load_file
from tiny import ids, ragged_rows, tiny_llama, tiny_t5, word_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

from qcrd_trl import QCRDTrainer, RationaleDiscriminator, StudentFormat
from qcrd_trl.errors import ModelError
from qcrd_trl.models import load_model


ADAMW = {"optim": "adamw_torch", "learning_rate": 0.01, "per_device_train_batch_size": 2}


def run(folder, adapter=True, accumulation=1, until=None, resume=None, rows=16, **overrides):
    """Four optimizer steps with dropout, a checkpoint at each; `until` stops early, `resume` goes on from a folder."""
    torch.manual_seed(3)
    # Each question has both sides, so that the discriminator learns at every step.
    every = [
        {**row, "positive_rationales": ["a", "b c"], "negative_rationales": ["d", "e f g"]}
        for row in ragged_rows(rows)
    ]
    trainer = trainer_of(
        folder,
        tiny_llama(attention_dropout=0.3),
        every,
        parts={"peft_config": lora(lora_dropout=0.2)} if adapter else None,
        gradient_accumulation_steps=accumulation,
        save_strategy="steps",
        save_steps=1,
        **{"max_steps": 4, **ADAMW, **overrides},
    )
    if until is not None:
        trainer.add_callback(StopAfter(until))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class StopAfter(TrainerCallback):
    """Ends a run early, with its schedule planned for all steps, as a kill would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps


def optimizer_state(trainer):
    state = trainer.discriminator_update.optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


@pytest.mark.parametrize("preset", ["qcrd", "qcrd_paper"])
@pytest.mark.parametrize(("adapter", "accumulation", "rows"), [(True, 1, 16), (False, 1, 4), (True, 2, 16)])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, adapter, accumulation, rows, preset):
    """A random state, an optimizer or a discriminator that starts anew at each restart bends the run, unseen."""
    shape = {"adapter": adapter, "accumulation": accumulation, "rows": rows, "preset": preset}
    whole = run(tmp_path / "whole", **shape)
    stopped = run(tmp_path / "stopped", until=2, **shape)
    assert stopped.state.global_step == 2
    resumed = run(tmp_path / "stopped", resume=True, **shape)
    assert resumed.state.global_step == whole.state.global_step == 4
    assert moved(weights(stopped.model), weights(whole.model))
    assert moved(weights(stopped.discriminator), weights(whole.discriminator))
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0
    assert largest_difference(weights(resumed.discriminator), weights(whole.discriminator)) == 0
    assert {name: float(value) for name, value in optimizer_state(stopped).items() if "step" in name} == {
        f"{number}.step": 2 for number in range(4)
    }
    assert len(optimizer_state(whole)) == 12
    assert largest_difference(optimizer_state(resumed), optimizer_state(whole)) == 0
    assert len(logged(whole)) == 4
    assert logged(resumed) == logged(whole)


def test_a_stream_is_resumed_where_it_was(tmp_path):
    """Rows that were read before the stop must be skipped: else the run learns them twice and others never."""

    def stream(folder, **kwargs):
        rows = Dataset.from_list(ragged_rows(6)).to_iterable_dataset()
        trainer = trainer_of(folder, rows=rows, max_steps=5, save_strategy="steps", save_steps=2, **ADAMW)
        if "until" in kwargs:
            trainer.add_callback(StopAfter(kwargs["until"]))
        trainer.train(resume_from_checkpoint=kwargs.get("resume"))
        return trainer

    whole = stream(tmp_path / "whole")
    stream(tmp_path / "stopped", until=2)
    resumed = stream(tmp_path / "stopped", resume=True)
    assert largest_difference(weights(whole.model), weights(resumed.model)) == 0
    assert largest_difference(weights(whole.discriminator), weights(resumed.discriminator)) == 0


@pytest.mark.parametrize("adapter", [False, True])
def test_the_best_checkpoint_brings_its_discriminator(tmp_path, adapter):
    """A student of step 2 with the discriminator of step 4 would be saved as a pair that never was."""
    trainer = trainer_of(
        tmp_path,
        tiny_llama(),
        ragged_rows(8),
        parts={"eval_dataset": Dataset.from_list(ragged_rows(4)), "peft_config": lora() if adapter else None},
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss/label",
        greater_is_better=True,  # the worst of a falling loss: the first
        **{"max_steps": 4, **ADAMW, "learning_rate": 0.003},
    )
    trainer.train()
    losses = [entry["eval_loss/label"] for entry in trainer.state.log_history if "eval_loss/label" in entry]
    best = max(range(4), key=losses.__getitem__) + 1
    assert best < 4
    folder = tmp_path / f"checkpoint-{best}"
    assert trainer.state.best_model_checkpoint == str(folder)
    saved = weights(RationaleDiscriminator.from_pretrained(folder))
    last = weights(RationaleDiscriminator.from_pretrained(tmp_path / "checkpoint-4"))
    assert largest_difference(weights(trainer.discriminator), saved) == 0
    assert largest_difference(last, saved) > 0
    file = folder / ("adapter_model.safetensors" if adapter else "model.safetensors")
    mine = {name.replace(".default", ""): value for name, value in weights(trainer.model).items()}
    stored = load_file(file)
    assert largest_difference({name: mine[name] for name in stored}, stored) == 0


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("adapter", [False, True])
def test_a_saved_student_loads_without_this_package(tmp_path, family, adapter):
    """What is saved is used elsewhere: it must be the trained weights, all of them, and nothing else."""
    base, out = tmp_path / "base", tmp_path / "out"
    (tiny_t5 if family == "t5" else tiny_llama)().save_pretrained(base)
    word_tokenizer(adds_eos=family == "t5").save_pretrained(base)
    task = "SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM"
    trainer = trainer_of(
        out,
        str(base),
        processing_class=word_tokenizer(adds_eos=family == "t5"),
        parts={"peft_config": lora(task_type=task)} if adapter else None,
        **{**ADAMW, "max_steps": 4},
    )
    trainer.train()
    trainer.save_model()
    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    loaded = auto.from_pretrained(base)
    inputs = {"input_ids": torch.tensor([ids("a is 3 so")])}
    if family == "t5":
        inputs["decoder_input_ids"] = torch.tensor([ids("<pad> b c")])
    untrained = loaded.eval()(**inputs).logits
    loaded = PeftModel.from_pretrained(loaded, out) if adapter else auto.from_pretrained(out)
    logits = loaded.eval()(**inputs).logits
    assert torch.equal(logits, trainer.model.eval()(**inputs).logits)
    assert (logits - untrained).abs().max() > 1e-3
    assert torch.equal(load_model(out).eval()(**inputs).logits, logits)
    assert isinstance(load_model(out), PeftModel) == adapter

    assert AutoTokenizer.from_pretrained(out)("a + 1").input_ids == trainer.processing_class("a + 1").input_ids
    assert StudentFormat.from_pretrained(out) == trainer.student_format
    scorer = RationaleDiscriminator.from_pretrained(out)
    assert largest_difference(weights(scorer), weights(trainer.discriminator)) == 0
    names = load_file(out / ("adapter_model.safetensors" if adapter else "model.safetensors")).keys()
    assert names
    assert not any("discriminator" in name or name == "dense.weight" or "score" in name for name in names)
    assert sorted(p.name for p in (out / "discriminator").iterdir()) == ["config.json", "model.safetensors"]


def test_a_saved_adapter_names_its_base(tmp_path):
    """PEFT's own classes load a student by its folder alone."""
    tiny_llama().save_pretrained(tmp_path / "base")
    trainer = trainer_of(tmp_path / "out", str(tmp_path / "base"), parts={"peft_config": lora()})
    trainer.save_model()
    assert isinstance(AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out"), PeftModel)
    assert "qcrd" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_an_adapter_is_trained_further(tmp_path):
    """An adapter that is loaded frozen would be trained on without moving."""
    tiny_llama().save_pretrained(tmp_path / "base")
    first = trainer_of(tmp_path / "one", str(tmp_path / "base"), parts={"peft_config": lora()}, **ADAMW)
    first.train()
    first.save_model()
    second = trainer_of(tmp_path / "two", str(tmp_path / "one"), **ADAMW)
    before = weights(second.model)
    assert largest_difference(before, weights(first.model)) == 0
    second.train()
    changed = moved(before, weights(second.model))
    assert changed
    assert changed == {name for name in before if "lora_" in name}


def test_a_run_without_a_discriminator_saves_none(tmp_path):
    """A folder of an untrained discriminator beside a baseline would be taken for a result."""
    trainer = trainer_of(tmp_path, preset="dss")
    trainer.train()
    trainer.save_model()
    assert not (tmp_path / "discriminator").exists()
    with pytest.raises(ModelError, match=r"(?i)no discriminator"):
        RationaleDiscriminator.from_pretrained(tmp_path)


def test_a_checkpoint_without_a_discriminator_cannot_be_resumed_with_one(tmp_path):
    """It would go on with a new one, whose scores say nothing, at full weight."""
    trainer_of(tmp_path, preset="dss", save_strategy="steps", save_steps=1).train()
    trainer = trainer_of(tmp_path, preset="qcrd", max_steps=2)
    with pytest.raises(ModelError, match="No discriminator"):
        trainer.train(resume_from_checkpoint=True)


def test_a_discriminator_of_another_size_is_refused(tmp_path):
    """Weights that fit by chance alone are not those of this run."""
    trainer_of(tmp_path, save_strategy="steps", save_steps=1).train()
    trainer = trainer_of(tmp_path, discriminator_hidden_size=16, max_steps=2)
    with pytest.raises(ModelError, match="not of this run's size"):
        trainer.train(resume_from_checkpoint=True)


def test_the_arguments_are_saved_as_they_were_resolved(tmp_path):
    """A preset alone does not say what a run did once the preset changes."""
    trainer = trainer_of(tmp_path, preset="qcrd_paper")
    stored = json.loads(trainer.args.to_json_string())
    assert {name: stored[name] for name in ("alpha_1", "beta", "margin", "positive_reduction")} == {
        "alpha_1": 0.5,
        "beta": 0.2,
        "margin": 3.0,
        "positive_reduction": "min",
    }
    assert isinstance(trainer, QCRDTrainer)
