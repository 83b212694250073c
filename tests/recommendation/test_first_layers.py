"""A student that is the first layers of a larger model: `num_hidden_layers` among the arguments of `from_pretrained`."""

import pytest
import torch
from running import lora
from tiny import ids, tiny_gpt2, tiny_llama

from qcrd_trl.errors import ConfigError
from qcrd_trl.recommendation.loading import build_recommender, load_recommender


INPUT = torch.tensor([ids("a + 1 = is"), ids("b so c d e")])
MODELS = {
    "llama": (lambda: tiny_llama(num_hidden_layers=4), "num_hidden_layers", lambda model: model.model.norm),
    "gpt2": (lambda: tiny_gpt2(n_layer=4), "n_layer", lambda model: model.transformer.ln_f),
}


@pytest.fixture(params=MODELS)
def whole(request, tmp_path):
    """A model of four layers, and the folder that it was saved in."""
    build, name, norm = MODELS[request.param]
    model = build().eval()
    model.save_pretrained(tmp_path / "whole")
    return model, tmp_path / "whole", name, norm


def test_the_first_layers_keep_their_weights(whole, tmp_path):
    """Weights that are drawn anew without an error cost all that was learned, and training still goes down."""
    model, folder, name, norm = whole
    cut = build_recommender("generative", folder, init_kwargs={name: 2}, seed=3).eval()
    assert cut.config.num_hidden_layers == 2
    states = model(INPUT, output_hidden_states=True).hidden_states
    expected = model.get_output_embeddings()(norm(model)(states[2]))
    torch.testing.assert_close(cut(INPUT).logits, expected)
    assert not torch.allclose(expected, model(INPUT).logits)
    kept = dict(model.named_parameters())
    assert all(torch.equal(value, kept[key]) for key, value in cut.named_parameters())
    cut.save_pretrained(tmp_path / "cut")
    again = load_recommender(tmp_path / "cut")
    assert again.config.num_hidden_layers == 2
    assert torch.equal(again(INPUT).logits, cut(INPUT).logits)


def test_in_item_head_mode(whole):
    """The backbone's first layers, below new items."""
    model, folder, name, _ = whole
    cut = build_recommender("item_head", folder, num_items=5, init_kwargs={name: 2})
    kept = {key.partition(".")[2]: value for key, value in model.named_parameters()}
    own = dict(cut.backbone.named_parameters())
    assert len(own) > 8
    assert all(torch.equal(value, kept[key]) for key, value in own.items())


def test_an_adapter_on_a_cut_model_is_refused(whole, tmp_path):
    """The adapter's folder would name the whole model: what is loaded is not what was trained. A saved cut one is named."""
    _, folder, name, _ = whole
    with pytest.raises(ConfigError, match="has 4 layers, and an adapter would name it as the base of a model of 2"):
        build_recommender("generative", folder, peft_config=lora(), init_kwargs={name: 2})
    build_recommender("generative", folder, init_kwargs={name: 2}).save_pretrained(tmp_path / "cut")
    trained = build_recommender("generative", tmp_path / "cut", peft_config=lora(init_lora_weights=False)).eval()
    trained.save_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(load_recommender(tmp_path / "adapter")(INPUT).logits, trained(INPUT).logits)
