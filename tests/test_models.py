"""Loading students by id or path, and the checks before training."""

from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel, get_peft_model
from running import lora, weights
from tiny import ids, pad_is_eos_tokenizer, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from transformers import (
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
)

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.models import (
    base_model,
    is_encoder_decoder,
    keep_cpu_gradients,
    load_model,
    load_tokenizer,
    prepare_student,
    prepare_tokenizer,
)


ARGS = SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None, fp16=False)
CLASSES = {
    tiny_llama: LlamaForCausalLM,
    tiny_gpt2: GPT2LMHeadModel,
    tiny_t5: T5ForConditionalGeneration,
    tiny_bart: BartForConditionalGeneration,
}


@pytest.mark.parametrize("make", CLASSES)
def test_both_families_load_with_their_head(tmp_path, make):
    """An encoder-decoder loaded as a decoder alone has a head, and knows nothing."""
    model = make()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is CLASSES[make]
    assert all(torch.equal(value, weights(loaded)[name]) for name, value in weights(model).items())
    assert is_encoder_decoder(loaded) == (make in (tiny_t5, tiny_bart))
    assert base_model(loaded) is loaded


def test_precision(tmp_path):
    """A model stored in bfloat16 and trained as it is loses every update smaller than its rounding."""
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_model(tmp_path).dtype == torch.float32
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32), ("auto", torch.bfloat16)):
        assert load_model(tmp_path, dtype=name).dtype == dtype
    assert load_model(tmp_path, dtype=torch.float16).dtype == torch.float16
    for wrong in ("float33", "nn", "4bit"):
        with pytest.raises(ConfigError, match=f"Unknown dtype '{wrong}'"):
            load_model(tmp_path, dtype=wrong)


@pytest.mark.parametrize("trainable", [False, True])
def test_an_adapter_loads_on_its_base(tmp_path, trainable):
    """A student that is only read must not be trainable, and one to be trained further must."""
    tiny_llama().save_pretrained(tmp_path / "base")
    model = get_peft_model(load_model(tmp_path / "base"), lora(init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_model(tmp_path / "adapter", is_trainable=trainable)
    assert isinstance(loaded, PeftModel)
    assert {p.requires_grad for name, p in loaded.named_parameters() if "lora_" in name} == {trainable}
    assert not any(p.requires_grad for name, p in loaded.named_parameters() if "lora_" not in name)
    row = torch.tensor([ids("a is 3")])
    assert torch.equal(loaded.eval()(row).logits, model.eval()(row).logits)
    assert not torch.equal(loaded(row).logits, load_model(tmp_path / "base").eval()(row).logits)
    assert type(base_model(loaded)) is LlamaForCausalLM
    assert not is_encoder_decoder(loaded)


def test_an_adapter_without_the_name_of_its_base(tmp_path):
    """PEFT leaves the name empty for a model that was built in a script."""
    get_peft_model(tiny_llama(), lora()).save_pretrained(tmp_path)
    config = tmp_path / "adapter_config.json"
    text = config.read_text(encoding="utf-8").replace(
        '"base_model_name_or_path": ""', '"base_model_name_or_path": null'
    )
    config.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="does not name its base model"):
        load_model(tmp_path)


def test_what_cannot_be_loaded_is_named(tmp_path):
    """The chain of a Hub request's errors fills a screen, and the path is not in its last line."""
    with pytest.raises(ModelError, match=r"No model could be loaded from '.*absent'"):
        load_model(tmp_path / "absent")
    with pytest.raises(ModelError, match="No model could be loaded"):
        load_model(tmp_path)  # an empty folder
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config.is_encoder_decoder = False
    BertModel(config).save_pretrained(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="No AutoModelForCausalLM could be loaded") as error:
        load_model(tmp_path / "damaged")
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="No tokenizer could be loaded"):
        load_tokenizer(tmp_path)


def test_the_tokenizer_of_an_adapter_is_that_of_its_base(tmp_path):
    """An adapter is often saved without one."""
    tiny_llama().save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    get_peft_model(load_model(tmp_path / "base"), lora()).save_pretrained(tmp_path / "adapter")
    assert load_tokenizer(tmp_path / "adapter")("a + 1").input_ids == ids("a + 1")


def test_the_vocabulary_is_not_touched():
    """New tokens would need new embeddings, and the student would not load elsewhere."""
    for make in (word_tokenizer, pad_is_eos_tokenizer, lambda: word_tokenizer(pad=None)):
        tokenizer = make()
        size, vocabulary = len(tokenizer), tokenizer.get_vocab()
        assert prepare_tokenizer(tokenizer) is tokenizer
        assert len(tokenizer) == size
        assert tokenizer.get_vocab() == vocabulary
        assert tokenizer.pad_token_id is not None
    assert prepare_tokenizer(word_tokenizer()).pad_token == "<pad>"


def test_full_fine_tuning_takes_the_model_itself():
    """A copy would be trained while the user saves the original."""
    model = tiny_llama()
    assert prepare_student(model, ARGS) is model
    assert all(p.requires_grad for p in model.parameters())


def test_an_adapter_freezes_its_base():
    """A base that is trained along is another method, at another cost."""
    model = prepare_student(tiny_t5(), ARGS, lora(task_type="SEQ_2_SEQ_LM"))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    assert is_encoder_decoder(model)
    assert prepare_student(model, ARGS) is model


def test_checkpointing_needs_inputs_with_a_gradient():
    """Reentrant checkpointing passes no gradient on where no input of a layer has one: the adapter would stand still."""
    args = SimpleNamespace(**{**vars(ARGS), "gradient_checkpointing": True})
    model = prepare_student(tiny_llama(), args, lora())
    embedded = model.get_input_embeddings()(torch.tensor([[5]]))
    assert embedded.requires_grad
    plain = prepare_student(tiny_llama(), ARGS, lora())
    assert not plain.get_input_embeddings()(torch.tensor([[5]])).requires_grad


def test_4_bit_layers_keep_their_gradients():
    """The flag that repacks weights is set on every layer, wherever it is nested."""

    class Layer(torch.nn.Linear):
        support_avx512bf16_for_cpu = True

    model = torch.nn.Sequential(Layer(2, 2), torch.nn.Sequential(Layer(2, 2), torch.nn.Linear(2, 2)))
    keep_cpu_gradients(model)
    assert [layer.support_avx512bf16_for_cpu for layer in model.modules() if isinstance(layer, Layer)] == [
        False,
        False,
    ]
    assert not hasattr(model[1][1], "support_avx512bf16_for_cpu")
