"""What the embeddings of items begin with."""

import pytest
import torch
from recommenders import language_model
from tiny import VOCAB_SIZE, ids, word_tokenizer
from transformers import AutoModel

from qcrd_trl.errors import ConfigError
from qcrd_trl.recommendation.item_init import seeded, token_scale
from qcrd_trl.recommendation.loading import build_recommender


TITLES = ["a b", "c", None, "a b c d", " ", "e"]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def source(request, tmp_path_factory):
    """A language model with its tokenizer; one of Gemma 3 multiplies its token embeddings by the root of the width."""
    folder = tmp_path_factory.mktemp(request.param)
    language_model(request.param, vocab_size=VOCAB_SIZE).save_pretrained(folder)
    word_tokenizer(adds_bos=True).save_pretrained(folder)
    return folder


def test_titles(source, caplog):
    """Items that begin where the language model's words are, with its own scale of numbers."""
    model = build_recommender("item_head", source, 6, item_init="titles", titles=TITLES)
    items = model.item_embeddings.weight.detach()
    embed = AutoModel.from_pretrained(source).get_input_embeddings()
    table = embed(torch.arange(VOCAB_SIZE)).detach()
    scale = table.square().mean().sqrt()
    assert abs(token_scale(embed, VOCAB_SIZE) - scale) < 1e-6
    means = torch.stack([table[ids(title)].mean(0) for title in ("a b", "c", "a b c d", "e")])  # no BOS
    factor = scale / means.square().mean().sqrt()
    assert torch.allclose(items[[0, 1, 3, 5]], means * factor, atol=1e-5)
    assert torch.allclose(items[[0, 1, 3, 5]].square().mean().sqrt(), scale, atol=1e-5)
    assert 0.5 < items[[2, 4]].std() / scale < 1.6  # 32 draws
    assert "2 of 6 items have no title" in caplog.text


def test_random_items_have_the_scale_of_tokens(source):
    """Inputs that are much smaller than those that a backbone was trained on are all alike to it."""
    scale = token_scale(AutoModel.from_pretrained(source).get_input_embeddings(), VOCAB_SIZE)
    for item_size in (None, 8):
        model = build_recommender("item_head", source, 3000, item_size=item_size)
        read = model.embed_items(torch.arange(3000))
        assert abs(read.square().mean().sqrt().item() / scale - 1) < 0.25
        assert read[0].shape == (16,)
    assert abs(model.head.weight.std() - 0.2) < 0.01  # the configuration's


def test_another_tokenizer(source):
    """A model of the Hub may come without one."""
    given = build_recommender(
        "item_head", source, 6, item_init="titles", titles=TITLES, tokenizer=word_tokenizer(), seed=1
    )
    own = build_recommender("item_head", source, 6, item_init="titles", titles=TITLES, seed=1)
    assert torch.equal(given.item_embeddings.weight, own.item_embeddings.weight)


def test_titles_that_cannot_be_used(source, tmp_path):
    """Titles of other items would be taken for these."""
    for titles, said in (
        (TITLES[:5], "`titles` must be one an item: got 5 titles and 6 items"),
        (None, "got 0 titles and 6 items"),
        ([None] * 6, "none of the items has one"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_recommender("item_head", source, 6, item_init="titles", titles=titles)
    with pytest.raises(ConfigError, match="needs embeddings of the backbone's width"):
        build_recommender("item_head", source, 6, item_init="titles", titles=TITLES, item_size=8)
    build_recommender("item_head", source, 6).save_pretrained(tmp_path)
    for other in (tmp_path, {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}):
        with pytest.raises(ConfigError, match="needs a language model whose token embeddings are read"):
            build_recommender("item_head", other, 6, item_init="titles", titles=TITLES)


def test_a_seed_within_a_block():
    """An error on the way must not leave the draws of the block behind."""
    state = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(2)

    def fails():
        with seeded(3):
            assert torch.equal(torch.rand(2), first)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(torch.get_rng_state(), state)
