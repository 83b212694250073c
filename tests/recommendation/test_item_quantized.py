"""Recommenders on a backbone of 4 bits."""

import pytest
import torch
from recommenders import NUM_ITEMS, batch_of, item_model, language_model
from running import lora
from transformers import Trainer, TrainingArguments

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.loading import build_recommender, load_recommender
from qcrd_trl.recommendation.states import core_model, read_positions


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1]]
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}


@pytest.fixture(scope="module")
def quantization():
    """QLoRA's 4-bit form, where it can be computed."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig

    try:
        import bitsandbytes.functional as functional

        functional.quantize_4bit(torch.ones(64, 64))
    except (ImportError, RuntimeError, OSError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A language model, and an item-head model with a projection."""
    folder = tmp_path_factory.mktemp("bases")
    language_model(**WIDE).save_pretrained(folder / "text")
    item_model(backbone_settings=WIDE, item_size=32).save_pretrained(folder / "items")
    return folder


@pytest.mark.parametrize("source", ["text", "items"])
def test_an_adapter_is_trained_on_it(saved, quantization, tmp_path, source):
    """The items' parts are trained: 4 bits would hold none of their steps. And what is saved is what was trained."""
    from bitsandbytes.nn import Linear4bit

    peft_config = lora(target_modules="all-linear")
    model = build_recommender("item_head", saved / source, NUM_ITEMS, quantization, peft_config)
    core = core_model(model)
    layers = [name for name, module in core.named_modules() if isinstance(module, Linear4bit)]
    assert len([name for name in layers if name.endswith("base_layer")]) == 3 * 7
    assert all(name.startswith("backbone.layers.") for name in layers)
    assert not any(layer.support_avx512bf16_for_cpu for layer in core.modules() if isinstance(layer, Linear4bit))
    assert core.is_quantized
    for name in core.item_modules:
        assert getattr(core, name).weight.dtype == torch.float32

    model.eval()
    before = model(**batch_of(ROWS)).logits  # an evaluation before training must not spoil the gradients
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=2, learning_rate=0.05, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True, optim="adamw_torch", remove_unused_columns=False,
    )  # fmt: skip
    Trainer(model, arguments, data_collator=lambda rows: batch_of(rows), train_dataset=ROWS).train()
    model.eval()
    after = model(**batch_of(ROWS))
    assert not torch.allclose(after.logits, before, atol=1e-2)

    model.save_pretrained(tmp_path / "adapter")
    assert "quantization_config" not in (tmp_path / "adapter/config.json").read_text()
    loaded = load_recommender(tmp_path / "adapter", quantization)
    assert torch.allclose(loaded(**batch_of(ROWS)).logits, after.logits, atol=1e-5)
    full = load_recommender(tmp_path / "adapter")
    assert not getattr(core_model(full), "is_quantized", False)
    logits = full(**batch_of(ROWS)).logits
    assert not torch.allclose(logits, after.logits, atol=1e-3)
    assert torch.cosine_similarity(logits.flatten(), after.logits.flatten(), 0) > 0.9
    read = read_positions(model, batch_of(ROWS), [1, 3])
    assert read.states[1].shape == (7, 64)


def test_gradients_are_those_of_the_same_weights_in_full(saved, quantization):
    """On some CPUs the first evaluation repacks the layers for a kernel without a backward pass."""
    model = build_recommender("item_head", saved / "text", NUM_ITEMS, quantization, lora(init_lora_weights=False))

    def gradients():
        model.zero_grad()
        model.train()(**batch_of(ROWS)).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}

    first = gradients()
    with torch.no_grad():
        model.eval()(**batch_of(ROWS))
    assert all(torch.allclose(value, first[name], atol=1e-6) for name, value in gradients().items())
    assert all(value.abs().sum() > 0 for value in first.values())


def test_what_cannot_be_quantized_or_saved(saved, quantization, tmp_path):
    """A folder that cannot be loaded again looks like a saved model."""
    with pytest.raises(ModelError, match="A quantized model cannot be trained itself: pass `peft_config`"):
        build_recommender("item_head", saved / "text", NUM_ITEMS, quantization)
    model = build_recommender("item_head", saved / "text", NUM_ITEMS, quantization, lora())
    with pytest.raises(ModelError, match="is not saved: save the adapter on it"):
        core_model(model).save_pretrained(tmp_path)
    sasrec = build_recommender("item_head", {"model_type": "qcrd_sasrec"}, NUM_ITEMS)
    sasrec.save_pretrained(tmp_path / "sasrec")
    with pytest.raises(ConfigError, match="SASRec is too small to be quantized"):
        load_recommender(tmp_path / "sasrec", quantization)
