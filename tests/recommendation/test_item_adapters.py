"""Adapters on models with a head over items."""

import json
from types import SimpleNamespace

import pytest
import torch
from recommenders import NUM_ITEMS, batch_of, item_model, language_model
from running import lora, weights

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.loading import ItemPeftModel, build_recommender, load_recommender, prepare_recommender
from qcrd_trl.recommendation.states import core_model, head_of


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder with language models and an item-head model (`items`, `tied`)."""
    folder = tmp_path_factory.mktemp("bases")
    for kind in ("llama", "gpt2", "gemma3_text"):
        language_model(kind).save_pretrained(folder / kind)
    item_model(item_size=8).save_pretrained(folder / "items")
    item_model(tie_items=True).save_pretrained(folder / "tied")
    return folder


def trained(source, **arguments):
    """A recommender with an adapter after two steps, in evaluation mode."""
    model = build_recommender(
        "item_head", source, NUM_ITEMS, peft_config=lora(**arguments.pop("lora", {})), **arguments
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(**batch_of(ROWS)).loss.backward()
        optimizer.step()
    return model.eval()


SOURCES = {
    "llama": {},
    "gpt2": {"lora": {"target_modules": None}},
    "gemma3_text": {"lora": {"target_modules": None, "r": 2}, "item_size": 8},
    "llama tied": {"tie_items": True},
    "llama shorter": {"init_kwargs": {"num_hidden_layers": 2}},
    "items": {},
    "tied": {"lora": {"task_type": None}},
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_folder_holds_all_that_was_trained(saved, tmp_path, name):
    """An adapter without its items loads on random ones, and ranks at random."""
    source = saved / name.split()[0]
    model = trained(source, **SOURCES[name])
    assert type(model) is ItemPeftModel
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - {"README.md"} == {
        *("adapter_config.json", "adapter_model.safetensors", "config.json"),
    }
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == str(source)
    assert str(source) not in (tmp_path / "config.json").read_text()
    expected = model(**batch_of(ROWS)).logits
    with model.disable_adapter():
        assert not torch.allclose(model(**batch_of(ROWS)).logits, expected, atol=1e-3)

    for trainable in (False, True):
        loaded = load_recommender(tmp_path, is_trainable=trainable)
        assert type(loaded) is ItemPeftModel
        assert loaded.training == trainable
        assert {p.requires_grad for n, p in loaded.named_parameters() if "lora_" in n or "modules_to_save" in n} == {
            trainable
        }
        assert torch.equal(loaded.eval()(**batch_of(ROWS)).logits, expected)
        assert loaded.active_adapter == "default"
    again = build_recommender("item_head", tmp_path, NUM_ITEMS)
    assert torch.equal(again.eval()(**batch_of(ROWS)).logits, expected)
    assert any(p.requires_grad for p in again.parameters())


def test_what_is_trained(saved):
    """The backbone stays as it is; the items' parts are trained whole, and not by an adapter of their own."""
    model = build_recommender("item_head", saved / "llama", NUM_ITEMS, peft_config=lora(), item_size=8)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    items = {
        f"base_model.model.{part}.modules_to_save.default.weight"
        for part in ("item_embeddings", "item_projection", "head")
    }
    assert items <= names
    assert all(".backbone.layers." in name and ".lora_" in name for name in names - items)
    assert len(names - items) == 3 * 7 * 2  # 3 layers of 7 linear maps, A and B
    before = weights(model)
    trained_one = trained(saved / "llama", item_size=8)
    after = weights(trained_one)
    assert {name for name in before if not torch.equal(before[name], after[name])} <= names


def test_a_tied_head_stays_tied(saved, tmp_path):
    """PEFT copies each module that is trained whole, and a head that is a copy drifts away from the embeddings."""
    for source, arguments in ((saved / "llama", {"tie_items": True}), (saved / "tied", {})):
        model = trained(source, **arguments)
        core = core_model(model)
        assert head_of(model).weight is core.item_embeddings.weight
        assert not torch.equal(head_of(model).weight, core.head.original_module.weight)
        model.save_pretrained(tmp_path)
        loaded = load_recommender(tmp_path, is_trainable=True)
        assert head_of(loaded).weight is core_model(loaded).item_embeddings.weight
        # As a trainer resumes: the weights are loaded over those that are there.
        fresh = build_recommender("item_head", source, NUM_ITEMS, peft_config=lora(), **arguments)
        fresh.load_adapter(str(tmp_path), "default", is_trainable=True)
        assert head_of(fresh).weight is core_model(fresh).item_embeddings.weight
        assert torch.equal(fresh.eval()(**batch_of(ROWS)).logits, model(**batch_of(ROWS)).logits)


def test_the_users_configuration_is_not_changed(saved):
    """It may be meant for two models."""
    config = lora(target_modules=None)
    before = dict(vars(config))
    build_recommender("item_head", saved / "gpt2", NUM_ITEMS, peft_config=config)
    assert vars(config) == before


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_under_checkpointing(saved, use_reentrant):
    """Reentrant checkpointing passes no gradient on where no input has one."""
    grads = []
    for checkpointed in (False, True):
        args = SimpleNamespace(gradient_checkpointing=checkpointed, gradient_checkpointing_kwargs=None, fp16=False)
        peft_config = lora(init_lora_weights=False)
        model = build_recommender("item_head", saved / "llama", NUM_ITEMS, peft_config=peft_config, args=args)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model(**batch_of(ROWS)).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    assert all(value is not None and value.abs().sum() > 0 for value in grads[0].values())
    assert all(torch.allclose(value, grads[1][name], atol=1e-6) for name, value in grads[0].items())


def test_what_cannot_be_found_again(saved, tmp_path):
    """An adapter without a base, or on one that is not the same any more."""
    with pytest.raises(ConfigError, match="An adapter names the model that it is for"):
        prepare_recommender(item_model(), None, lora())
    sasrec = build_recommender("item_head", {"model_type": "qcrd_sasrec"}, NUM_ITEMS)
    with pytest.raises(ConfigError, match="SASRec is small, and trained whole"):
        prepare_recommender(sasrec, None, lora())
    model = trained(saved / "items")
    with pytest.raises(ConfigError, match="The model is a `PeftModel` already"):
        prepare_recommender(model, None, lora())
    model.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "base_model_name_or_path": None}))
    with pytest.raises(ModelError, match="does not name its base model"):
        load_recommender(tmp_path / "adapter")
    torch.manual_seed(0)
    other = build_recommender("item_head", saved / "llama", NUM_ITEMS + 1)
    other.save_pretrained(tmp_path / "other")
    file.write_text(json.dumps({**config, "base_model_name_or_path": str(tmp_path / "other")}))
    with pytest.raises(ModelError, match=r"The adapter is for 9 items, but its base '.*other' has 10"):
        load_recommender(tmp_path / "adapter")
