"""Batches that are filled up as rows end: the same texts as one by one, of the models alone that allow it."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from running import lora
from tiny import EOS, ids, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from transformers import DynamicCache, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from qcrd_trl.sampling import generate as module
from qcrd_trl.sampling import joining
from qcrd_trl.sampling.generate import generate_completions
from qcrd_trl.sampling.joining import JoinedRows, can_join


STUDENTS = {
    "llama": tiny_llama,
    "grouped": lambda: tiny_llama(num_attention_heads=4, num_key_value_heads=2),
    "gpt2": tiny_gpt2,
    "adapter": lambda: get_peft_model(tiny_llama(), lora(init_lora_weights=False)),
}
WORDS = "a b c d e f g is so + - = . 1 2 3 4 5 6 7".split()
PROMPTS = [ids(" ".join(WORDS[i % 5 : i % 5 + 1 + (7 * i) % 11])) for i in range(20)]


def student(name="llama"):
    """Sharp, so that greedy completions differ, with several ends, so that they end at different lengths."""
    model = STUDENTS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    model.generation_config.eos_token_id = [EOS, *range(8, 30, 5)]
    return model


def generate(model, prompts=PROMPTS, batch_size=5, temperature=1.0, seeds=None, max_new_tokens=24, **kwargs):
    seeds = range(100, 100 + len(prompts)) if seeds is None else seeds
    kwargs |= {"temperature": temperature, "seeds": seeds, "batch_size": batch_size}
    return generate_completions(model, word_tokenizer(), prompts, max_new_tokens, **{"progress": False, **kwargs})


def noted(monkeypatch, *names):
    """How often some methods of [`JoinedRows`] are called."""
    calls = dict.fromkeys(names, 0)

    def note(name):
        method = getattr(JoinedRows, name)

        def counted(self, *args):
            calls[name] += 1
            return method(self, *args)

        monkeypatch.setattr(JoinedRows, name, counted)

    for name in names:
        note(name)
    return calls


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("name", STUDENTS)
def test_joined_rows_equal_rows_of_plain_generate(name, temperature, monkeypatch):
    """A prompt put beside another row's states, or at another row's position, would get a text of neither question."""
    model = student(name)
    calls = noted(monkeypatch, "_join", "_shrink", "_step")
    joined = generate(model, temperature=temperature)
    assert calls["_join"] >= 4
    assert calls["_shrink"] >= 1
    # 20 rows, 5 at a time, in the order of their lengths: batches that wait for their longest row take more steps.
    order = sorted(range(20), key=lambda i: -len(PROMPTS[i]))
    waiting = sum(max(joined[i].num_tokens - 1 for i in order[start : start + 5]) for start in range(0, 20, 5))
    assert calls["_step"] < waiting
    assert len({completion.token_ids for completion in joined}) > 10
    assert len({completion.num_tokens for completion in joined}) > 3
    monkeypatch.setattr(module, "can_join", lambda model: False)
    for size in (1, 20):
        assert generate(model, batch_size=size, temperature=temperature) == joined


@pytest.mark.parametrize("batch_size", [1, 2, 16, 20, 64])
def test_the_size_of_a_batch_does_not_count(batch_size):
    """Else a resumed run on a smaller device has other negatives."""
    model = student()
    expected = generate(model)
    assert generate(model, batch_size=batch_size) == expected
    parts = [generate(model, batch_size=2, share=(process, 3)) for process in range(3)]
    assert [next(part[i] for part in parts if part[i] is not None) for i in range(20)] == expected


def test_room_that_runs_out(monkeypatch):
    """Columns that are moved while a row still uses them are a part of its text forgotten."""
    model = student()
    model.generation_config.eos_token_id = [EOS, 8]
    expected = generate(model, max_new_tokens=60)
    assert max(completion.num_tokens for completion in expected) == 60
    monkeypatch.setattr(joining, "ROOM", 1)
    calls = noted(monkeypatch, "_move")
    assert generate(model, max_new_tokens=60) == expected
    assert calls["_move"] > 6


def test_a_row_ended_by_its_first_token():
    """A row that is never under way must not hold its place."""
    model = student()
    model.generation_config.eos_token_id = list(range(33))
    completions = generate(model)
    assert [completion.num_tokens for completion in completions] == [1] * 20
    assert all(completion.is_finished for completion in completions)
    assert [c.num_tokens for c in generate(student(), max_new_tokens=1)] == [1] * 20


def test_under_autocast():
    """States come in another type than the weights; room of the wrong type would be an error at every refresh."""
    with torch.autocast("cpu", torch.bfloat16):
        completions = generate(student())
    assert len({completion.token_ids for completion in completions}) > 10


class _Own(LlamaForCausalLM):
    def prepare_inputs_for_generation(self, *args, **kwargs):
        return super().prepare_inputs_for_generation(*args, **kwargs)


def _changed(**settings):
    model = tiny_llama()
    for name, value in settings.items():
        setattr(model.config if name in ("layer_types", "sliding_window") else model, name, value)
    return model


def _mistral(window):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return MistralForCausalLM(
        MistralConfig(vocab_size=33, num_key_value_heads=2, sliding_window=window, **sizes, pad_token_id=0)
    )


ALONE = {
    "encoder-decoder": tiny_t5,
    "another encoder-decoder": tiny_bart,
    "windows": lambda: _mistral(4),
    "some windows": lambda: _changed(layer_types=["full_attention", "sliding_attention"]),
    "linear attention": lambda: _changed(layer_types=["full_attention", "linear_attention"]),
    "state": lambda: _changed(_is_stateful=True),
    "own inputs": lambda: _Own(tiny_llama().config),
    "own generate": lambda: _changed(generate=lambda **kwargs: None),
    "learned prompt": lambda: get_peft_model(
        tiny_llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_models_whose_rows_are_not_joined(name):
    """A window, a recurrent state or positions of a model's own would silently be those of another row."""
    assert not can_join(ALONE[name]())


def test_models_whose_rows_are_joined():
    """Otherwise nothing above is tested."""
    for build in (*STUDENTS.values(), lambda: _mistral(None)):
        assert can_join(build())


def test_a_window_is_not_passed_over(monkeypatch):
    """A model that says nothing of its cache is known by the cache itself, and generates as before."""
    expected = generate(student())

    class Other(DynamicCache):
        pass

    monkeypatch.setattr(joining, "DynamicCache", Other)
    calls = noted(monkeypatch, "_begin", "_step")
    assert generate(student()) == expected
    assert calls == {"_begin": 1, "_step": 0}


def test_the_bar_moves_with_each_completion(monkeypatch):
    """A bar that stands until all is done tells nothing in the hour that it takes."""
    moves = []

    class Bar:
        def __init__(self, total, **kwargs):
            moves.append(total)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self, number=1):
            moves.append(number)

    monkeypatch.setattr(module, "tqdm", Bar)
    generate(student(), progress=True)
    assert moves == [20] + [1] * 20
