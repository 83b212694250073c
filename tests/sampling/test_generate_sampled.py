"""Sampled generation: from the whole distribution at its temperature, and a function of the seeds alone."""

import random

import numpy as np
import pytest
import torch
from peft import get_peft_model
from running import lora
from tiny import BOS, EOS, ID, PAD, ids, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from torch import nn
from transformers import GenerationConfig

from qcrd_trl.sampling import generate, shrinking
from qcrd_trl.sampling.generate import generate_completions


VOCAB_SIZE = 64  # more than the 50 that `top_k` leaves by default in some versions
PROMPTS = [ids(text) for text in ("a", "a + 1 = is", "<Explain> a + 2 - 3 = 4", "b c", "d d d", "e", "f g")]
STUDENTS = {
    "llama": tiny_llama,
    "gpt2": tiny_gpt2,
    "adapter": lambda: get_peft_model(tiny_llama(), lora(init_lora_weights=False)),
    "t5": tiny_t5,
    "bart": tiny_bart,
}


@torch.no_grad()
def memoryless(logits, build=tiny_llama):
    """A student whose next token has the same distribution whatever stands before it: softmax of `logits`."""
    model = build(vocab_size=len(logits))
    for parameter in model.parameters():
        parameter.zero_()
    if build is tiny_bart:
        model.final_logits_bias[0] = torch.tensor(logits)
        return model
    # Every hidden state is a row of ones, of which the head reads the first.
    model.model.embed_tokens.weight.fill_(1.0)
    model.model.norm.weight.fill_(1.0)
    model.lm_head.weight[:, 0] = torch.tensor(logits)
    return model


def sampled(model, prompts=PROMPTS, max_new_tokens=8, temperature=1.0, seeds=None, **kwargs):
    return generate_completions(
        model,
        word_tokenizer(),
        prompts,
        max_new_tokens,
        progress=False,
        temperature=temperature,
        seeds=range(100, 100 + len(prompts)) if seeds is None else seeds,
        **kwargs,
    )


def counts(model, temperature, draws=4096):
    """How often each token is drawn."""
    completions = sampled(model, [ids("a")] * (draws // 32), 32, temperature, batch_size=64)
    tokens = [token for completion in completions for token in completion.token_ids]
    assert len(tokens) == draws
    return np.bincount(tokens, minlength=VOCAB_SIZE)


def chi_square(seen, logits, temperature):
    """Of the counts against softmax(logits / temperature)."""
    weights = np.exp(np.array(logits) / temperature)
    expected = seen.sum() * weights / weights.sum()
    likely = expected > 1e-6
    assert not seen[~likely].any()
    return ((seen - expected)[likely] ** 2 / expected[likely]).sum()


def test_the_temperature_is_that_of_the_distribution():
    """Applied twice, or not at all, it still gives texts: only how wrong they are differs, and with it the method."""
    logits = [-1000.0] * VOCAB_SIZE
    for word, logit in {"a": 0.0, "b": -1.0, "c": -2.0, "d": -3.0}.items():
        logits[ID[word]] = logit
    model = memoryless(logits)
    for temperature in (0.7, 1.0, 1.5):
        seen = counts(model, temperature)
        # Three degrees of freedom: larger than 21 once in 10,000 draws of the seed.
        assert chi_square(seen, logits, temperature) < 21
        assert all(chi_square(seen, logits, other) > 80 for other in (0.7, 1.0, 1.5, 2.25) if other != temperature)


def test_every_token_may_be_drawn():
    """Without its tail the distribution is not the one that the loss scores the negatives by."""
    logits = [-0.01 * token for token in range(VOCAB_SIZE)]  # no two alike, so that a rank can cut them
    logits[EOS] = -1000.0
    seen = counts(memoryless(logits), 1.0)
    assert seen[EOS] == 0
    assert (np.delete(seen, EOS) > 0).all()
    # 62 degrees of freedom: 62 + 4 sqrt(124) is 107.
    assert chi_square(seen, logits, 1.0) < 107


OWN = {
    **{"do_sample": False, "temperature": 0.01, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1},
    **{"epsilon_cutoff": 0.5, "eta_cutoff": 0.5, "top_h": 0.1, "num_beams": 2, "num_return_sequences": 2},
    **{"repetition_penalty": 50.0, "no_repeat_ngram_size": 1, "encoder_repetition_penalty": 9.0},
    **{"encoder_no_repeat_ngram_size": 1, "exponential_decay_length_penalty": (1, 9.0)},
    **{"min_length": 11, "min_new_tokens": 7, "max_length": 4, "forced_eos_token_id": EOS},
    **{"suppress_tokens": [ID["a"]], "begin_suppress_tokens": [ID["a"]], "bad_words_ids": [[ID["a"]]]},
    **{"sequence_bias": [[[ID["c"]], 30.0]], "return_dict_in_generate": True, "stop_strings": ["a"]},
}
CASES = {name: (tiny_llama, {name: value}) for name, value in OWN.items()}
# As many encoder-decoders that were trained on summaries have it.
SUMMARY = {"min_length": 6, "no_repeat_ngram_size": 3, "num_beams": 4, "forced_bos_token_id": BOS}
CASES["summary"] = (tiny_bart, {**SUMMARY, "forced_eos_token_id": EOS, "max_length": 142})


@pytest.mark.parametrize("case", CASES)
def test_the_models_own_generation_config_is_not_used(case):
    """Many models come with one, made for chatting or for summaries: each student would sample by other rules."""
    build, options = CASES[case]
    logits = [-1000.0] * VOCAB_SIZE
    for word, logit in {"a": 0.0, "b": -1.0, "c": -2.0, "</s>": -2.5}.items():
        logits[ID[word]] = logit
    model = memoryless(logits, build)
    special = {name: getattr(model.config, name, None) for name in ("bos_token_id", "decoder_start_token_id")}
    special |= {"eos_token_id": EOS, "pad_token_id": PAD}
    texts, given = [], []
    for own in ({}, options):
        model.generation_config = GenerationConfig(**special)
        for name, value in own.items():
            setattr(model.generation_config, name, value)
        given.append(model.generation_config.to_dict())
        texts.append((sampled(model), generate_completions(model, word_tokenizer(), PROMPTS, 8, progress=False)))
        assert model.generation_config.to_dict() == given[-1]
    assert given[0] != given[1]
    assert {completion.is_finished for completion in texts[0][0]} == {True, False}
    assert len({completion.text for completion in texts[0][0]}) > 2
    assert texts[1] == texts[0]


@pytest.mark.parametrize("name", STUDENTS)
def test_only_the_seeds_count(name):
    """What depends on the random state, or on the prompts beside it, is not what a resumed run samples again."""
    model = STUDENTS[name]()
    torch.manual_seed(1)
    whole = sampled(model, batch_size=2)
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    assert sampled(model, batch_size=2) == whole
    assert len({completion.token_ids for completion in whole}) >= len(PROMPTS) - 1  # two may end at once
    assert sampled(model, batch_size=3) == whole
    assert sampled(model, PROMPTS[3:5], batch_size=2, seeds=[103, 104]) == whole[3:5]
    assert sampled(model, batch_size=2, seeds=range(200, 207)) != whole
    one_changed = sampled(model, batch_size=2, seeds=[100, 101, 102, 203, 104, 105, 106])
    assert [i for i, (one, other) in enumerate(zip(whole, one_changed, strict=True)) if one != other] == [3]


def test_without_seeds_each_call_draws_anew():
    """The same samples at every call would be one sample."""
    model = tiny_llama()
    torch.manual_seed(1)
    first, second = (
        generate_completions(model, word_tokenizer(), PROMPTS, 8, progress=False, temperature=1.0) for _ in "ab"
    )
    assert first != second
    torch.manual_seed(1)
    assert generate_completions(model, word_tokenizer(), PROMPTS, 8, progress=False, temperature=1.0) == first


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("name", STUDENTS)
def test_a_batch_that_shrinks_gives_the_same(name, temperature, monkeypatch):
    """A row that goes on from another row's states would be a text of neither question."""
    model = STUDENTS[name]()
    with torch.no_grad():  # sharp, so that greedy completions differ and end at different lengths
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    tokenizer = word_tokenizer()
    model.generation_config.eos_token_id = [EOS, *range(8, 30, 3)]
    prompts, calls, generate = [*PROMPTS, *PROMPTS], [], model.generate

    def noted(*args, **kwargs):
        calls.append(kwargs)
        return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", noted)
    seeds = range(100, 100 + len(prompts))
    both = []
    for rows in (100, 1):
        monkeypatch.setattr(shrinking, "MIN_ROWS", rows)
        both.append(
            generate_completions(model, tokenizer, prompts, 24, progress=False, temperature=temperature, seeds=seeds)
        )
        # The greedy texts of these encoder-decoders do not end: nothing shrinks.
        shrinks = rows == 1 and (temperature or name not in ("t5", "bart"))
        assert len(calls) > 2 if shrinks else len(calls) <= 2
    assert both[0] == both[1]
    assert len({completion.num_tokens for completion in both[0]}) > 2 or not shrinks


def test_states_that_cannot_be_cut_are_not():
    """A recurrent state, or a cache of another kind, cut wrongly would give texts that nobody wrote."""
    assert shrinking.can_shrink(tiny_llama())
    assert shrinking.can_shrink(tiny_bart())
    model = tiny_llama()
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert not shrinking.can_shrink(model)
    model = tiny_llama()
    model._is_stateful = True
    assert not shrinking.can_shrink(model)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_shares_together_are_the_whole(processes):
    """A prompt that two processes sample, or none, is a negative too many or too few on every process."""
    model = tiny_llama()
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]  # two negatives a question: 14 samples, 4 batches
    whole = sampled(model, prompts, batch_size=4)
    assert len({completion.token_ids for completion in whole}) > 10
    parts = [sampled(model, prompts, batch_size=4, share=(process, processes)) for process in range(processes)]
    for i, expected in enumerate(whole):
        assert [part[i] for part in parts if part[i] is not None] == [expected]
    sizes = [sum(completion is not None for completion in part) for part in parts]
    assert sizes == {2: [8, 6], 3: [6, 4, 4], 7: [4, 4, 4, 2, 0, 0, 0]}[processes]


class Echo(nn.Module):
    """Goes on with the last token of the prompt, and draws from every random state on the way."""

    def __init__(self, raises=False):
        super().__init__()
        self.config, self.device, self.raises = tiny_llama().config, torch.device("cpu"), raises

    def generate(self, input_ids, attention_mask, generation_config, logits_processor):
        torch.rand(3)
        np.random.rand(3)
        random.random()
        if self.raises:
            raise KeyboardInterrupt
        return torch.cat([input_ids, input_ids[:, -1:]], 1)


def test_completions_stand_in_the_order_of_the_prompts():
    """Sorted by length they are generated: given back so, each negative would stand beside another question."""
    completions = sampled(Echo(), batch_size=2)
    assert [completion.token_ids[0] for completion in completions] == [prompt[-1] for prompt in PROMPTS]


@pytest.mark.parametrize("raises", [False, True])
def test_the_random_state_is_as_before(raises):
    """Moved, it shuffles the rest of the training another way, and only where negatives are generated."""
    model, states = Echo(raises), []
    for uses in (False, True):
        torch.manual_seed(4)
        random.seed(4)
        np.random.seed(4)
        if uses and raises:
            with pytest.raises(KeyboardInterrupt):
                sampled(model)
        elif uses:
            assert len(sampled(model)) == len(PROMPTS)
        states.append((torch.rand(2).tolist(), random.random(), np.random.rand()))
    assert states[0] == states[1]


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize(("positions", "max_length"), [(12, None), (12, 40), (40, 12)])
def test_neither_learned_positions_nor_the_limit_are_exceeded(positions, max_length, joins, monkeypatch):
    """A student with learned positions has none beyond its last: on a GPU that ends the process."""
    model = tiny_gpt2(n_positions=positions)
    with pytest.raises(IndexError):
        model(torch.tensor([[5] * (positions + 1)]))
    prompts = [ids("a b c d e f g a b c"), ids("a b c d e"), ids("a b c")]
    # 12 - 10, 12 - 5, and 12 - 3, of which 8 are asked for. In a batch that is not filled up, 12 - 10 for both.
    limits = (2, 7, 8) if joins else (2, 2, 8)
    if not joins:
        monkeypatch.setattr(generate, "can_join", lambda model: False)
    seen = set()
    for seed in range(8):
        completions = sampled(
            model, prompts, batch_size=2, max_length=max_length, seeds=range(10 * seed, 10 * seed + 3)
        )
        for completion, limit in zip(completions, limits, strict=True):
            assert completion.num_tokens == limit or (completion.num_tokens < limit and completion.is_finished)
            seen.add((limit, completion.num_tokens))
    assert {(limit, limit) for limit in limits} <= seen


@pytest.mark.parametrize(
    ("build", "max_length", "limit"),
    [(tiny_t5, 3, 3), (tiny_bart, 3, 3), (lambda: tiny_bart(max_position_embeddings=7), None, 7)],
)
def test_the_limit_of_an_encoder_decoder_is_that_of_its_completions(build, max_length, limit):
    """Its prompts stand elsewhere: taken off the limit, long questions would get no negative."""
    completions = sampled(build(), [ids("a b c d e f g"), ids("a")] * 4, 20, max_length=max_length)
    assert all(completion.num_tokens == limit or completion.is_finished for completion in completions)
    assert any(completion.num_tokens == limit for completion in completions)
