"""A 4-bit base under an adapter, on the CPU."""

import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from running import config, gradients, largest_difference, lora, moved, record, trainer_of, weights
from tiny import ids, ragged_rows, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl import QCRDTrainer
from qcrd_trl.errors import ModelError
from qcrd_trl.models import load_model
from qcrd_trl.sampling.generate import generate_completions


def quantization_config():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig

    # As for QLoRA. In this form CPUs with AVX512_BF16 repack a layer's weights at its first forward without gradient.
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@pytest.fixture
def base(tmp_path):
    """Folder of a model whose layers are wide enough to be quantized."""
    try:
        quantization_config()
        import bitsandbytes.functional as functional

        functional.quantize_4bit(torch.ones(64, 64))
    except (ImportError, RuntimeError, OSError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    folder = tmp_path / "base"
    tiny_llama(hidden_size=64, intermediate_size=128, num_hidden_layers=2).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def four_bit(model):
    """The stored bytes of every quantized layer."""
    return {
        name: p.detach().clone().view(torch.uint8) for name, p in model.named_parameters() if p.dtype == torch.uint8
    }


def trainer_on(base, folder, **overrides):
    torch.manual_seed(0)
    return QCRDTrainer(
        str(base),
        config(folder, optim="adamw_torch", learning_rate=0.01, **overrides),
        Dataset.from_list(ragged_rows()),
        quantization_config=quantization_config(),
        peft_config=lora(),
    )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_is_trained_on_a_4_bit_base(base, tmp_path, checkpointing):
    """A base that changes, or an adapter that gets no gradient through it, shows in no loss."""
    trainer = trainer_on(base, tmp_path / "run", max_steps=3, gradient_checkpointing=checkpointing)
    stored, before = four_bit(trainer.model), weights(trainer.model)
    assert len(stored) == 14
    trainer.train()
    after = four_bit(trainer.model)
    assert stored.keys() == after.keys()
    assert all(torch.equal(stored[name], after[name]) for name in stored)
    changed = moved(before, weights(trainer.model))
    adapters = {name for name in before if "lora_" in name}
    assert changed == adapters
    assert len(adapters) == 28
    assert trainer.state.log_history[2]["loss"] < trainer.state.log_history[0]["loss"]

    trainer.save_model()
    loaded = load_model(tmp_path / "run", quantization_config=quantization_config()).eval()
    row = torch.tensor([ids("a is 3")])
    with torch.no_grad():
        torch.testing.assert_close(loaded(row).logits, trainer.model.eval()(row).logits, rtol=1e-2, atol=1e-2)


def test_gradients_after_generation_are_those_without_it(base, tmp_path):
    """Repacked for inference, 4-bit layers give wrong gradients from then on, silently: train, evaluate, train is lost."""
    seen = []
    for generate in (False, True):
        trainer = trainer_on(base, tmp_path)
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        if generate:
            [completion] = generate_completions(
                trainer.model, trainer.processing_class, [ids("a + 1")], 4, progress=False
            )
            assert completion.num_tokens > 0
            trainer.model.eval()
            with torch.no_grad():
                trainer.model(torch.tensor([ids("a + 1")]))
        trainer.model.train()
        batch = trainer.data_collator(list(trainer.train_dataset))
        trainer.compute_loss(trainer.model, batch).backward()
        seen.append(gradients(trainer.model))
    assert max(grad.abs().max() for grad in seen[0].values()) > 1e-3
    assert largest_difference(*seen) == 0


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_saving_on_a_4_bit_base(base, tmp_path, checkpointing):
    """A pass without a graph repacks 4-bit layers on some CPUs; the gradients of the next would silently be others."""
    seen = []
    for on in (False, True):
        switches = dict.fromkeys(("shared_prompt", "selection", "chunked_logits"), on)
        paper = {"preset": "qcrd_paper", "margin": 6.0, "gradient_checkpointing": checkpointing, "max_steps": 2}
        trainer = trainer_on(base, tmp_path, **paper, **switches)
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(len(name)))
        noted = record(trainer)
        trainer.train()
        assert (trainer._engine._masks is not None) == (trainer._engine.head.form is not None) == on
        seen.append(noted)
    assert sum(seen[0].losses) == pytest.approx(sum(seen[1].losses), abs=0.02)
    for step in (0, 1):
        mine, theirs = (torch.cat([g.flatten() for g in noted.student[step].values()]) for noted in seen)
        assert (mine - theirs).norm() < 0.02 * mine.norm()
        assert mine.norm() > 0.1


def test_a_loaded_model_is_protected_too(base, tmp_path):
    """The user who loads and wraps the model meets the same CPU."""
    model = get_peft_model(load_model(base, quantization_config=quantization_config()), lora())
    trainer = trainer_of(tmp_path, model)
    layers = [m for m in trainer.model.modules() if hasattr(m, "support_avx512bf16_for_cpu")]
    assert len(layers) == 14
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    before = weights(model)
    trainer.train()
    assert moved(before, weights(model)) == {name for name in before if "lora_B" in name}


def test_a_quantized_base_needs_an_adapter(base, tmp_path):
    """Its own weights have no gradient: nothing would be trained."""
    with pytest.raises(ModelError, match="pass `peft_config`"):
        QCRDTrainer(
            str(base),
            config(tmp_path),
            Dataset.from_list(ragged_rows()),
            quantization_config=quantization_config(),
        )


def test_an_encoder_decoder_in_4_bit(base, tmp_path):
    """T5 keeps some layers in full precision, and its adapter has other layers to go to."""
    folder = tmp_path / "t5"
    tiny_t5(d_model=64, d_ff=128, d_kv=32).save_pretrained(folder)
    word_tokenizer(adds_eos=True).save_pretrained(folder)
    trainer = QCRDTrainer(
        str(folder),
        config(tmp_path / "run", max_steps=2),
        Dataset.from_list(ragged_rows()),
        quantization_config=quantization_config(),
        peft_config=lora(task_type="SEQ_2_SEQ_LM", target_modules=["q", "v"]),
    )
    before = weights(trainer.model)
    trainer.train()
    assert moved(before, weights(trainer.model)) == {name for name in before if "lora_" in name}
