"""Recommenders by id, path or configuration."""

import json

import pytest
import torch
from peft import PeftModel
from recommenders import BACKBONES, NUM_ITEMS, backbone, batch_of, item_model, language_model
from running import lora, weights
from tiny import tiny_t5, word_tokenizer
from transformers import AutoModel, BertConfig, BertModel, GPT2LMHeadModel, LlamaForCausalLM

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.item_model import ItemHeadModel
from qcrd_trl.recommendation.loading import build_recommender, load_recommender
from qcrd_trl.recommendation.sasrec import SASRecModel


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1]]
SASREC = {"model_type": "qcrd_sasrec", "hidden_size": 8}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder with a language model of each family and an item-head model (`items`)."""
    folder = tmp_path_factory.mktemp("saved")
    for kind in BACKBONES:
        language_model(kind).save_pretrained(folder / kind)
    word_tokenizer().save_pretrained(folder / "llama")
    item_model().save_pretrained(folder / "items")
    return folder


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_backbone_is_the_language_models(saved, kind):
    """A backbone whose weights were drawn anew trains too, as if nothing had been learnt before."""
    model = build_recommender("item_head", saved / kind, NUM_ITEMS)
    assert type(model) is ItemHeadModel
    assert model.training
    assert model.dtype == torch.float32
    own, known = weights(model.backbone), weights(AutoModel.from_pretrained(saved / kind))
    assert set(known) - set(own) == {"wte.weight" if kind == "gpt2" else "embed_tokens.weight"}
    assert all(torch.equal(value, known[name]) for name, value in own.items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.name_or_path == str(saved / kind)


def test_a_shorter_backbone(saved, tmp_path):
    """The first layers of a language model make a small student."""
    model = build_recommender("item_head", saved / "llama", NUM_ITEMS, init_kwargs={"num_hidden_layers": 2})
    model.eval().save_pretrained(tmp_path)
    loaded = load_recommender(tmp_path)
    assert loaded.config.num_hidden_layers == 2
    known = weights(AutoModel.from_pretrained(saved / "llama"))
    assert all(torch.equal(value, known[name]) for name, value in weights(loaded.backbone).items())
    assert torch.equal(loaded(**batch_of(ROWS)).logits, model(**batch_of(ROWS)).logits)


def test_half_precision_is_the_backbones_alone(saved):
    """Items are trained from nothing: in bfloat16 they would lose every small step."""
    model = build_recommender("item_head", saved / "llama", NUM_ITEMS, init_kwargs={"dtype": "bfloat16"}, item_size=8)
    types = {name: p.dtype for name, p in model.named_parameters()}
    assert {dtype for name, dtype in types.items() if name.startswith("backbone")} == {torch.bfloat16}
    assert {dtype for name, dtype in types.items() if not name.startswith("backbone")} == {torch.float32}
    model(**batch_of(ROWS)).loss.backward()


@pytest.mark.parametrize("settings", [backbone(), backbone("gpt2"), SASREC])
def test_random_weights_are_those_of_the_seed(settings):
    """Two runs of one seed must begin alike, whatever was drawn before; and nobody's later draws may change."""
    before = dict(settings)
    first = build_recommender("item_head", settings, NUM_ITEMS, seed=3)
    torch.rand(7)
    state = torch.get_rng_state()
    second = build_recommender("item_head", settings, NUM_ITEMS, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    other = build_recommender("item_head", settings, NUM_ITEMS, seed=4)
    assert settings == before
    same = weights(second)
    assert all(torch.equal(value, same[name]) for name, value in weights(first).items())
    assert not torch.equal(first.head.weight, other.head.weight)
    assert type(first) is (SASRecModel if settings == SASREC else ItemHeadModel)


def test_new_parts_of_a_pretrained_model_are_those_of_the_seed(saved):
    """The items' parts and an adapter are drawn too."""
    arguments = {"peft_config": lora(init_lora_weights=False), "item_size": 8}
    state = torch.get_rng_state()
    one, two = (build_recommender("item_head", saved / "llama", NUM_ITEMS, seed=5, **arguments) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    same = weights(two)
    assert all(torch.equal(value, same[name]) for name, value in weights(one).items())


def test_saved_recommenders_are_loaded_as_they_are(saved, tmp_path):
    """A student that goes on from a saved one must not get new items."""
    model = build_recommender("item_head", saved / "items", NUM_ITEMS)
    assert all(torch.equal(value, weights(model)[name]) for name, value in weights(item_model()).items())
    assert build_recommender("item_head", str(saved / "items")).config.num_items == NUM_ITEMS
    sasrec = build_recommender("item_head", SASREC, NUM_ITEMS).eval()
    sasrec.save_pretrained(tmp_path)
    for loaded in (load_recommender(tmp_path), build_recommender("item_head", tmp_path, NUM_ITEMS).eval()):
        assert type(loaded) is SASRecModel
        assert torch.equal(loaded(**batch_of(ROWS)).logits, sasrec(**batch_of(ROWS)).logits)


def test_generative_models(saved):
    """The generative mode takes the language model whole."""
    model = build_recommender("generative", saved / "gpt2")
    assert type(model) is GPT2LMHeadModel
    assert all(torch.equal(value, weights(model)[name]) for name, value in weights(language_model("gpt2")).items())
    assert type(load_recommender(saved / "llama")) is LlamaForCausalLM
    assert not load_recommender(saved / "llama").training
    random = build_recommender("generative", {**backbone(), "vocab_size": 40}, seed=1)
    assert type(random) is LlamaForCausalLM
    assert random.get_output_embeddings().weight.shape[0] == 40
    adapted = build_recommender("generative", saved / "llama", peft_config=lora())
    assert isinstance(adapted, PeftModel)
    assert adapted.get_base_model().name_or_path == str(saved / "llama")


def test_a_loaded_model_is_taken_as_it_is(saved):
    """Whoever built a model wants it trained, not a copy."""
    model = item_model()
    assert build_recommender("item_head", model, NUM_ITEMS) is model
    text = language_model()
    assert build_recommender("generative", text) is text
    with pytest.raises(
        ConfigError, match="`quantization_config` and `init_kwargs` are used when the model is loaded here"
    ):
        build_recommender("item_head", model, NUM_ITEMS, init_kwargs={"dtype": "bfloat16"})


def test_what_does_not_fit_is_an_error(saved, tmp_path):
    """A head of another data set's items ranks something, and nothing says that it is nonsense."""
    with pytest.raises(ModelError, match="The model has num_items=9, expected 10: was it trained on other data"):
        build_recommender("item_head", saved / "items", 10)
    with pytest.raises(ModelError, match="The model has tie_items=False, expected True"):
        build_recommender("item_head", saved / "items", NUM_ITEMS, tie_items=True)
    with pytest.raises(ModelError, match="ItemHeadModel is a model of item-head mode, but task_mode='generative'"):
        build_recommender("generative", saved / "items")
    with pytest.raises(ModelError, match="LlamaForCausalLM is a model of generative mode, but task_mode='item_head'"):
        build_recommender("item_head", language_model(), NUM_ITEMS)
    with pytest.raises(ConfigError, match="Unknown task_mode 'items'"):
        build_recommender("items", saved / "items")
    with pytest.raises(ConfigError, match="Unknown item_init 'title'"):
        build_recommender("item_head", saved / "items", item_init="title")
    for source in (saved / "llama", backbone()):
        with pytest.raises(ConfigError, match="`num_items` is needed in item-head mode"):
            build_recommender("item_head", source)
    with pytest.raises(ConfigError, match="SASRec is a model of item-head mode"):
        build_recommender("generative", SASREC)


def test_settings_that_would_do_nothing(saved):
    """A configuration keeps whatever it is given, so that a misspelt width is the default one."""
    with pytest.raises(ConfigError, match="A configuration of model_type='llama' has no 'hidden_sise'"):
        build_recommender("item_head", {"model_type": "llama", "hidden_sise": 8}, 3)
    with pytest.raises(ConfigError, match="A configuration of model_type='qcrd_sasrec' has no 'layers'"):
        build_recommender("item_head", {**SASREC, "layers": 1}, 3)
    assert build_recommender("item_head", {**backbone(), "rope_theta": 500.0}, 3) is not None
    with pytest.raises(ConfigError, match="`init_kwargs` are for a model that is loaded: put dtype into"):
        build_recommender("item_head", backbone(), 3, init_kwargs={"dtype": "bfloat16"})
    for arguments in ({"peft_config": lora()}, {"quantization_config": object()}):
        with pytest.raises(ConfigError, match="A model that is made from a configuration has no weights on the disk"):
            build_recommender("item_head", backbone(), 3, **arguments)


def test_what_cannot_be_loaded_is_named(saved, tmp_path):
    """A folder of another kind, or none."""
    for call in (
        lambda path: load_recommender(path),
        lambda path: build_recommender("item_head", path, 3),
        lambda path: build_recommender("generative", path),
    ):
        with pytest.raises(ModelError, match=r"No model could be loaded from '.*absent'"):
            call(tmp_path / "absent")
    tiny_t5().save_pretrained(tmp_path / "t5")
    with pytest.raises(ModelError, match="holds an encoder-decoder: recommenders are decoder-only"):
        load_recommender(tmp_path / "t5")
    with pytest.raises(ConfigError, match="must be a decoder-only language model, got model_type='t5'"):
        build_recommender("item_head", tmp_path / "t5", 3)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match="must be a decoder-only language model, got model_type='bert'"):
        build_recommender("item_head", tmp_path / "bert", 3)
    item_model().save_pretrained(tmp_path / "damaged")
    (tmp_path / "damaged/model.safetensors").unlink()
    with pytest.raises(ModelError, match="No AutoModel could be loaded from"):
        load_recommender(tmp_path / "damaged")


def test_no_path_is_written(saved, tmp_path):
    """Where the model came from is nobody's business who gets it."""
    model = build_recommender("item_head", saved / "llama", NUM_ITEMS)
    model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert str(saved) not in text
    assert json.loads(text)["model_type"] == "qcrd_item_head"
