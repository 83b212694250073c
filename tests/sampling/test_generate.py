"""Batched greedy generation: the same texts as one by one, and a model that is left as it was."""

import pytest
import torch
from peft import get_peft_model
from running import lora, weights
from tiny import EOS, PAD, ids, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from torch import nn

from qcrd_trl.sampling.generate import generate_completions, pad_prompts
from qcrd_trl.sampling.joining import JoinedRows


STUDENTS = {
    "llama": tiny_llama,
    "gpt2": tiny_gpt2,
    "adapter": lambda: get_peft_model(tiny_llama(), lora(init_lora_weights=False)),
    "t5": tiny_t5,
    "bart": tiny_bart,
}
PROMPTS = [ids(text) for text in ("a", "a + 1 = is", "<Explain> a + 2 - 3 = 4", "b c", "d d d", "e")]


def student(name="llama", **overrides):
    """Weights large enough that the texts differ by prompt."""
    model = STUDENTS[name](**overrides)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def generate(model, prompts=PROMPTS, max_new_tokens=8, **kwargs):
    return generate_completions(model, word_tokenizer(), prompts, max_new_tokens, progress=False, **kwargs)


@pytest.mark.parametrize("name", STUDENTS)
def test_batches_equal_one_by_one(name):
    """Padding on the wrong side, or that is attended to, changes the answers: accuracy falls with the batch size."""
    model = student(name)
    alone = [generate(model, [prompt])[0] for prompt in PROMPTS]
    assert len({completion.text for completion in alone}) > 2
    for batch_size in (2, 4, 32):
        assert generate(model, batch_size=batch_size) == alone
    assert generate(model, PROMPTS[::-1]) == alone[::-1]


def test_equal_to_a_plain_greedy_loop():
    """An option of the model's own generation config (sampling, beams, a penalty) would make it another student."""
    model = student()
    for name, value in {"do_sample": True, "temperature": 3.0, "top_k": 5, "repetition_penalty": 9.0}.items():
        setattr(model.generation_config, name, value)
    model.generation_config.num_beams, model.generation_config.no_repeat_ngram_size = 3, 1
    prompt = PROMPTS[2]
    sequence = list(prompt)
    for _ in range(8):
        token = model(torch.tensor([sequence])).logits[0, -1].argmax().item()
        sequence.append(token)
        if token == EOS:
            break
    [completion] = generate(model, [prompt])
    new = sequence[len(prompt) :]
    assert completion.text == word_tokenizer().decode(new, skip_special_tokens=True).strip()
    assert completion.num_tokens == len(new)
    assert completion.is_finished == (new[-1] == EOS)
    assert model.generation_config.do_sample is True


class Scripted(nn.Module):
    """A decoder-only model that goes on with the same tokens whatever it is asked."""

    def __init__(self, *tokens):
        super().__init__()
        self.config = tiny_llama().config
        self.tokens = tokens
        self.device = torch.device("cpu")
        self.calls = []

    def generate(self, input_ids, attention_mask, generation_config):
        self.calls.append((input_ids.tolist(), attention_mask.tolist(), self.training))
        return torch.cat([input_ids, torch.tensor([self.tokens] * len(input_ids))], 1)


@pytest.mark.parametrize(
    ("tokens", "text", "num_tokens", "is_finished"),
    [
        ((*ids("a is 3"), EOS, PAD, PAD), "a is 3", 4, True),
        (tuple(ids("a is 3 .")), "a is 3 .", 4, False),
        ((EOS, *ids("a b")), "", 1, True),
    ],
)
def test_where_a_text_ends(tokens, text, num_tokens, is_finished):
    """What follows the end is padding; a text that was cut is not one that the student ended."""
    [completion] = generate(Scripted(*tokens), [ids("a")])
    assert (completion.text, completion.num_tokens, completion.is_finished) == (text, num_tokens, is_finished)


def test_batches_are_sorted_and_padded_on_the_left():
    """A decoder goes on from the last column: padding there would be what it goes on from."""
    model = Scripted(EOS)
    generate(model, [ids("a"), ids("b c d"), ids("e f")], batch_size=2)
    assert model.calls == [
        ([ids("b c d"), ids("<pad> e f")], [[1, 1, 1], [0, 1, 1]], False),
        ([ids("a")], [[1]], False),
    ]
    padded = pad_prompts([[5], [6, 7]], PAD, left=False)  # as an encoder reads them
    assert {name: tensor.tolist() for name, tensor in padded.items()} == {
        "input_ids": [[5, PAD], [6, 7]],
        "attention_mask": [[1, 0], [1, 1]],
    }


def test_several_ends():
    """Chat models end a turn by another token than a text; either is an end."""
    model = student()
    [first] = generate(model, [PROMPTS[1]], max_new_tokens=1)
    model.generation_config.eos_token_id = [EOS, ids(first.text)[0]]
    [completion] = generate(model, [PROMPTS[1]])
    assert completion.is_finished
    assert completion.num_tokens == 1


def test_no_prompts():
    """A split without questions is no error here."""
    assert generate(student(), []) == []


@pytest.mark.parametrize("raises", [None, "at once", "under way"])
def test_the_model_is_left_as_it_was(raises, monkeypatch):
    """Left in eval mode, the rest of a training would run without dropout; a random state moved, as another run."""
    model = student("adapter")
    model.train()
    frozen = model.base_model.model.model.layers[0]
    frozen.eval()  # a module that its owner keeps in eval mode
    tokenizer = word_tokenizer()
    tokenizer.padding_side = "right"
    modes = [module.training for module in model.modules()]
    assert {True, False} == set(modes)
    grads, before = [p.requires_grad for p in model.parameters()], weights(model)
    config, use_cache = model.generation_config.to_dict(), model.config.use_cache
    state = torch.get_rng_state()
    if raises:
        if raises == "at once":
            model.generate = None  # not callable
        else:
            monkeypatch.setattr(JoinedRows, "_step", None)
        with pytest.raises(TypeError):
            generate_completions(model, tokenizer, PROMPTS, 4, progress=False)
    else:
        generate_completions(model, tokenizer, PROMPTS, 4, progress=False)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert tokenizer.padding_side == "right"
    assert [p.requires_grad for p in model.parameters()] == grads
    assert all(torch.equal(value, weights(model)[name]) for name, value in before.items())
    assert model.generation_config.to_dict() == config
    assert model.config.use_cache == use_cache
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_two_calls_give_the_same_text_under_dropout(name):
    """Dropout that is still on while generating makes every accuracy a draw."""
    drop = {"dropout_rate": 0.5} if name == "t5" else {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    model = student(name, **drop).train()
    prompt = torch.tensor([PROMPTS[2]])
    inputs = {"decoder_input_ids": prompt} if name == "t5" else {}
    assert not torch.equal(model(prompt, **inputs).logits, model(prompt, **inputs).logits)
    first = generate(model)
    assert generate(model) == first
    assert first == generate(model.eval())


def test_gradients_survive():
    """Called between two micro-batches, it must not lose the gradient of the first."""
    model = student().train()
    model(torch.tensor([PROMPTS[1]])).logits.sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    generate(model)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))
    assert torch.is_grad_enabled()
