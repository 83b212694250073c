"""Titles by greedy search: the same as one by one, and everything as it was afterwards."""

import logging
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from recommended import small_data
from running import lora, weights
from tiny import (
    BOS,
    EOS,
    PAD,
    bos_tokenizer,
    ids,
    pad_is_eos_tokenizer,
    tiny_gpt2,
    tiny_llama,
    tiny_t5,
    word_tokenizer,
)
from torch import nn

from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.recommendation.generation import recommend_titles
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import generative_rows


MODELS = {
    "llama": tiny_llama,
    "gpt2": tiny_gpt2,
    "adapter": lambda: get_peft_model(tiny_llama(), lora(init_lora_weights=False)),
}
WORDS = ["a", "b", "c", "d", "e", "f", "g", "1", "2", "3 4", "4", "5"]
FORM = RecommendationPrompt(prompt="so {history} + {candidates} =", separator=" ")


def rows(split="test", **arguments):
    """Histories of 5, 4 and 2 titles; the candidates are 5, the target and 4."""
    return generative_rows(small_data(WORDS), split, form=FORM, **arguments)


def answering(name="llama", **overrides):
    """Weights large enough that the answers differ by prompt."""
    model = MODELS[name](**overrides)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def recommend(model, given=None, tokenizer=None, **arguments):
    given = rows() if given is None else given
    return recommend_titles(model, tokenizer or word_tokenizer(), given, progress=False, **arguments)


class Scripted(nn.Module):
    """Goes on with the same tokens whatever it is asked, and keeps what it was asked."""

    def __init__(self, *tokens, positions=256):
        super().__init__()
        self.config = tiny_llama(max_position_embeddings=positions).config
        self.tokens, self.device, self.asked = tokens, torch.device("cpu"), []

    def generate(self, input_ids, attention_mask, generation_config):
        self.asked.append((input_ids.tolist(), attention_mask.tolist(), generation_config, self.training))
        torch.rand(1), random.random(), np.random.rand()
        return torch.cat([input_ids, torch.tensor([self.tokens] * len(input_ids))], 1)


@pytest.mark.parametrize("name", MODELS)
def test_batches_equal_one_by_one(name):
    """Padding on the wrong side, or that is attended to, changes the answers: HR@1 falls with the batch size."""
    model, given = answering(name), rows()
    alone = [recommend(model, given.select([i]), max_new_tokens=6)[0] for i in range(3)]
    assert len(set(alone)) > 1
    for batch_size in (2, 16):
        assert recommend(model, given, max_new_tokens=6, batch_size=batch_size) == alone
    assert recommend(model, given.select([2, 0, 1]), max_new_tokens=6) == [alone[2], alone[0], alone[1]]


def test_equal_to_a_plain_greedy_loop():
    """Options of the model's own generation configuration would answer for another model."""
    model = answering()
    for name, value in {"do_sample": True, "temperature": 3.0, "top_k": 5, "repetition_penalty": 9.0}.items():
        setattr(model.generation_config, name, value)
    sequence = start = ids("so a b c d e + 5 f 4 =")
    for _ in range(6):
        sequence = [*sequence, model(torch.tensor([sequence])).logits[0, -1].argmax().item()]
        if sequence[-1] == EOS:
            break
    expected = word_tokenizer().decode(sequence[len(start) :], skip_special_tokens=True).strip()
    assert recommend(model, rows().select([0]), max_new_tokens=6) == [expected]
    assert model.generation_config.do_sample is True


def test_what_the_model_is_asked():
    """The longest prompts first, padded on the left, in eval mode, with one BOS and as many tokens as the longest title has."""
    model = Scripted(*ids("f </s>")).train()
    assert recommend(model, tokenizer=bos_tokenizer(), batch_size=2) == ["f"] * 3
    first, second = model.asked
    long, short = [BOS, *ids("so a b c d e + 5 f 4 =")], [PAD, BOS, *ids("so f e d c + 5 b 4 =")]
    assert first[0] == [long, short]
    assert first[1] == [[1] * 12, [0] + [1] * 11]
    assert second[0] == [[BOS, *ids("so b a + 5 b 4 =")]]
    assert (first[2].max_new_tokens, first[2].do_sample, first[3]) == (2, False, False)
    given = rows().map(lambda row: {"candidate_titles": [*row["candidate_titles"][:2], "3 4"]})
    model = Scripted(EOS)
    recommend(model, given)
    assert model.asked[0][2].max_new_tokens == 3  # two words and EOS


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(ids("a b </s> c"), "a b"), (ids("a b"), "a b"), (ids("</s> a"), ""), (ids("a </s> <pad>"), "a")],
)
def test_where_an_answer_ends(tokens, text):
    """What follows the end is padding, whatever it decodes to."""
    assert recommend(Scripted(*tokens)) == [text] * 3


def test_pad_that_is_eos_or_missing():
    """Many models pad with EOS, and some tokenizers name no padding at all: the mask decides, and nothing is set."""
    model = answering()
    expected = recommend(model, max_new_tokens=6)
    assert recommend(model, tokenizer=pad_is_eos_tokenizer(), max_new_tokens=6) == expected
    bare = word_tokenizer(pad=None)
    assert recommend(model, tokenizer=bare, max_new_tokens=6) == expected
    assert bare.pad_token is None


def test_everything_is_as_before():
    """A model left in eval mode trains without dropout from then on; a random state that moved makes another run of it."""
    model, tokenizer = answering("adapter").train(), word_tokenizer()
    model.get_base_model().model.layers[0].mlp.eval()
    random_one = Scripted(EOS)
    modes = [module.training for module in model.modules()]
    before, config, side = weights(model), model.get_base_model().generation_config, tokenizer.padding_side
    grads = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    recommend(model, tokenizer=tokenizer, max_new_tokens=3)
    recommend(random_one)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert np.random.get_state()[1].tolist() == state[2]
    assert [module.training for module in model.modules()] == modes
    assert model.get_base_model().generation_config is config
    assert tokenizer.padding_side == side
    assert [parameter.requires_grad for parameter in model.parameters()] == grads
    assert all(torch.equal(value, before[name]) for name, value in weights(model).items())


def test_everything_is_as_before_after_an_error():
    """An interrupted evaluation is no reason to train on in eval mode."""
    model = Scripted(EOS).train()
    config = model.generation_config = object.__new__(type(tiny_llama().generation_config))
    config.eos_token_id = config.bos_token_id = config.decoder_start_token_id = None

    def broken(**kwargs):
        torch.rand(1)
        raise RuntimeError("out of memory")

    model.generate = broken
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of memory"):
        recommend(model)
    assert model.training
    assert model.generation_config is config
    assert torch.equal(torch.get_rng_state(), state)


def test_long_prompts_lose_their_oldest_history(caplog):
    """A prompt beyond the model's positions fails in the middle of the evaluation, or is answered without its end."""
    model = Scripted(EOS)
    with caplog.at_level(logging.WARNING):
        recommend(model, max_length=10)  # 8 for the prompt, of which 6 are no history
    assert model.asked[0][0] == [ids("so d e + 5 f 4 ="), ids("so d c + 5 b 4 ="), ids("so b a + 5 b 4 =")]
    assert "2 of 3 prompts lost their oldest history (5 items in all), to fit in 10 tokens" in caplog.text
    model = Scripted(EOS, positions=9)  # what the model knows is a limit too
    recommend(model)
    assert model.asked[0][0][0] == ids("so e + 5 f 4 =")
    with pytest.raises(DataError, match="rows, row 0: the prompt has 6 tokens without its history and its answer 2"):
        recommend(model, max_length=7)


def test_titles_that_cannot_be_written(caplog):
    """A limit below the longest title makes a hit on it impossible, which no number shows."""
    with caplog.at_level(logging.WARNING):
        recommend(Scripted(EOS), max_new_tokens=1)
    assert "The longest candidate has 2 tokens, of which only max_new_tokens=1 can be written." in caplog.text


def test_what_is_refused():
    """What cannot answer is said before the first batch."""
    with pytest.raises(ConfigError, match="`batch_size` must be at least 1, got 0"):
        recommend(Scripted(EOS), batch_size=0)
    with pytest.raises(ConfigError, match="`max_new_tokens` must be at least 1"):
        recommend(Scripted(EOS), max_new_tokens=0)
    with pytest.raises(ModelError, match="no eos token"):
        recommend(Scripted(EOS), tokenizer=word_tokenizer(eos=None))
    with pytest.raises(ModelError, match="encoder-decoder"):
        recommend(tiny_t5())
    with pytest.raises(DataError, match="no column 'candidate_titles'"):
        recommend(Scripted(EOS), Dataset.from_list([{"prompt": "a"}]))
