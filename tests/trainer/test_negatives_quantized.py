"""Negatives generated on every kind of base, on the CPU: its bytes stay, and so do the gradients of what follows."""

import pytest
import torch
from datasets import Dataset
from generating import NEW_TOKENS, questions, refreshes, watch
from peft import get_peft_model, prepare_model_for_kbit_training
from running import config, gradients, largest_difference, lora, moved, weights
from tiny import ids, tiny_llama, word_tokenizer
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from qcrd_trl import QCRDTrainer, SelfAdversarialCallback


KINDS = ["fp32", "bf16", "int8", "nf4"]


def quantization_config(kind):
    """`None`, or a configuration that bitsandbytes can work with here; the test is skipped where it cannot."""
    if kind in ("fp32", "bf16"):
        return None
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from bitsandbytes import functional
    from transformers import BitsAndBytesConfig

    try:
        functional.quantize_4bit(torch.ones(64, 64))
        functional.int8_vectorwise_quant(torch.ones(64, 64, dtype=torch.float16))
    except (RuntimeError, OSError, AttributeError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder of a model whose layers are wide enough to be quantized."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama(hidden_size=64, intermediate_size=128, initializer_range=0.2).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def trainer_on(base, folder, kind, **overrides):
    torch.manual_seed(0)
    arguments = {
        "negative_source": "self",
        "negative_max_new_tokens": NEW_TOKENS,
        "negative_refresh_steps": 1,
        "negative_lag": 1,
        "optim": "adamw_torch",
        "learning_rate": 0.02,
        "max_steps": 4,
        "model_init_kwargs": {"dtype": "bfloat16"} if kind == "bf16" else None,
    }
    return QCRDTrainer(
        str(base),
        config(folder, **{**arguments, **overrides}),
        Dataset.from_list(questions()),
        quantization_config=quantization_config(kind),
        peft_config=lora(),
    )


def base_bytes(model):
    """The stored bytes of everything but the adapter: as the layers hold it, and as they save it, with its scales."""
    held = dict([*model.named_parameters(), *model.named_buffers()])
    saved = {f"saved {name}": tensor for name, tensor in model.state_dict().items()}
    return {
        name: tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8)
        for name, tensor in {**held, **saved}.items()
        if "lora_" not in name
    }


def check_equal_bytes(one, other):
    assert one.keys() == other.keys()
    assert not moved(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_stays_as_it_is_and_the_student_learns(base, tmp_path, kind):
    """A base that is merged, dequantized or repacked for generation is another one from then on, at a plausible loss."""
    trainer = trainer_on(base, tmp_path, kind)
    stored, before = base_bytes(trainer.model), weights(trainer.model)
    if kind in ("int8", "nf4"):
        assert sum(p.dtype in (torch.int8, torch.uint8) for p in trainer.model.parameters()) == 14
        assert sum(name.endswith({"int8": ".SCB", "nf4": ".nested_absmax"}[kind]) for name in stored) == 14
    there = watch(trainer, lambda state: {key: n.token_ids for key, n in trainer.negatives})
    trainer.train()
    check_equal_bytes(stored, base_bytes(trainer.model))
    changed = moved(before, weights(trainer.model))
    assert changed == {name for name in before if "lora_" in name}
    assert len(changed) == 28
    assert refreshes(trainer) == [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert all(len(negatives) > 4 for negatives in there)
    assert len({tuple(sorted(negatives.items())) for negatives in there}) == 4
    losses = [entry["loss/label"] for entry in trainer.state.log_history if "loss/label" in entry]
    assert losses[3] < losses[0]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_after_a_refresh_are_those_without_it(base, tmp_path, kind, checkpointing):
    """Repacked at the first forward without gradient, a 4-bit layer gives wrong gradients from then on, and no error."""
    runs = []
    for generated in (True, False):
        # With beta 0 and no discriminator no loss reads the negatives.
        trainer = trainer_on(
            base, tmp_path / str(generated), kind, max_steps=3, gradient_checkpointing=checkpointing,
            negative_source="none", beta=0.0, discriminator="none", quality_weighting="none",
        )  # fmt: skip
        if generated:
            trainer.add_callback(
                SelfAdversarialCallback(trainer, refresh_steps=1, lag=1, max_new_tokens=NEW_TOKENS, batch_size=3)
            )
        seen = noted_gradients(trainer)
        trainer.train()
        assert len(refreshes(trainer)) == 3 * generated
        runs.append(seen)
    check_equal_gradients(*runs)


def noted_gradients(trainer):
    """The gradients of each step, before the optimizer moves."""
    out, pre_step = [], trainer.callback_handler.on_pre_optimizer_step

    def noted(*args, **kwargs):
        out.append(gradients(trainer.model))
        return pre_step(*args, **kwargs)

    trainer.callback_handler.on_pre_optimizer_step = noted
    return out


def check_equal_gradients(one, other):
    assert len(one) == len(other) == 3
    for step, other_step in zip(one, other, strict=True):
        assert len(step) == 28
        assert max(grad.abs().max() for name, grad in step.items() if "lora_B" in name) > 1e-4
        assert largest_difference(step, other_step) == 0


class LabelTrainer(Trainer):
    """Anybody's trainer: the likelihood of the label, by the model's own loss, without a part of this package."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def label_trainer(base, folder, kind, **overrides):
    torch.manual_seed(0)
    quantized = quantization_config(kind)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=quantized, dtype=dtype)
    if quantized is not None:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    rows = Dataset.from_list([{"input_ids": (row := ids(f"+ {i} is")), "labels": row} for i in range(8)])
    return LabelTrainer(
        model=get_peft_model(model, lora()),
        args=TrainingArguments(
            str(folder), per_device_train_batch_size=2, max_steps=3, use_cpu=True, report_to="none", disable_tqdm=True,
            learning_rate=0.02, save_strategy="no", **overrides,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=word_tokenizer(),
    )  # fmt: skip


def attach(trainer):
    callback = SelfAdversarialCallback(
        trainer, questions=Dataset.from_list(questions()), refresh_steps=1, lag=1, max_new_tokens=NEW_TOKENS
    )
    trainer.add_callback(callback)
    return callback


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_trainer_keeps_its_gradients(base, tmp_path, kind):
    """The trap must be closed for whoever attaches the callback to a trainer, and a base, of their own."""
    runs = []
    for generated in (True, False):
        trainer = label_trainer(base, tmp_path / str(generated), kind)
        stored = base_bytes(trainer.model)
        if generated:
            callback = attach(trainer)
        seen = noted_gradients(trainer)
        trainer.train()
        check_equal_bytes(stored, base_bytes(trainer.model))
        assert len(refreshes(trainer)) == 3 * generated
        runs.append(seen)
    assert len(callback.store) > 0
    check_equal_gradients(*runs)


def test_a_plain_trainer_that_evaluates_first_keeps_its_gradients(base, tmp_path):
    """Closed at the first refresh only, the trap is open to the evaluation before it."""
    runs = []
    for evaluates in (True, False):
        trainer = label_trainer(base, tmp_path / str(evaluates), "nf4", eval_on_start=evaluates)
        attach(trainer)
        seen = noted_gradients(trainer)
        trainer.train()
        assert sum("eval_loss" in entry for entry in trainer.state.log_history) == evaluates
        runs.append(seen)
    check_equal_gradients(*runs)
