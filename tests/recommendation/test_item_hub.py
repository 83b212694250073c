"""Recommenders that go to the Hub and come back."""

import pytest
import torch
from recommenders import NUM_ITEMS, batch_of, item_model, language_model
from running import lora
from transformers import AutoConfig, AutoModel

from qcrd_trl.errors import ModelError
from qcrd_trl.recommendation.item_model import ItemHeadModel
from qcrd_trl.recommendation.loading import ItemPeftModel, build_recommender, load_recommender


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1]]


def test_a_whole_model(hub_server):
    """Whoever names the repository gets the model that was pushed."""
    model = item_model(item_size=8)
    model.push_to_hub("me/ranker")
    assert set(hub_server.files("me/ranker")) >= {"config.json", "model.safetensors"}
    assert not any(name.endswith((".bin", ".pt")) for name in hub_server.files("me/ranker"))
    assert AutoConfig.from_pretrained("me/ranker").num_items == NUM_ITEMS
    for loaded in (
        *(AutoModel.from_pretrained("me/ranker"), ItemHeadModel.from_pretrained("me/ranker")),
        *(load_recommender("me/ranker"), build_recommender("item_head", "me/ranker", NUM_ITEMS).eval()),
    ):
        assert type(loaded) is ItemHeadModel
        assert torch.equal(loaded(**batch_of(ROWS)).logits, model(**batch_of(ROWS)).logits)
        assert loaded.name_or_path == "me/ranker"


def test_an_adapter_on_a_language_model(hub_server):
    """Its base is found by its id, and not by where a download lies."""
    language_model().push_to_hub("me/text")
    model = build_recommender("item_head", "me/text", NUM_ITEMS, peft_config=lora(init_lora_weights=False)).eval()
    model.push_to_hub("me/adapter")
    assert set(hub_server.files("me/adapter")) >= {"config.json", "adapter_config.json", "adapter_model.safetensors"}
    assert b'"me/text"' in hub_server.files("me/adapter")["adapter_config.json"]
    loaded = load_recommender("me/adapter")
    assert type(loaded) is ItemPeftModel
    assert torch.equal(loaded(**batch_of(ROWS)).logits, model(**batch_of(ROWS)).logits)


def test_a_repository_that_is_not_there(hub_server):
    """The chain of errors of a request fills a screen."""
    with pytest.raises(ModelError, match="No model could be loaded from 'me/nothing'") as caught:
        load_recommender("me/nothing")
    assert "\n" not in str(caught.value)
