"""Scores of rows against the model's own full logits, where a head is scaled, soft-capped or biased."""

import pytest
import torch
from peft import get_peft_model
from running import lora
from tiny import EOS, PAD, VOCAB_SIZE, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

from qcrd_trl.errors import ModelError
from qcrd_trl.trainer.scoring import by_length, score_rows, score_rows_by_length


SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": 2,
}


def gemma2():
    # A cap of 0.05 is far below the logits, so that leaving it out shows.
    config = Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=0.05, attn_implementation="eager")
    return Gemma2ForCausalLM(config)


def cohere():
    return CohereForCausalLM(CohereConfig(**SMALL, logit_scale=5.0))


def biased_bart():
    model = tiny_bart()
    model.final_logits_bias.normal_()
    return model


STUDENTS = {
    "llama": tiny_llama,
    "llama_lora": lambda: get_peft_model(tiny_llama(), lora(init_lora_weights=False)),
    "gpt2": tiny_gpt2,
    "gemma2_soft_capped": gemma2,
    "cohere_scaled": cohere,
    "t5_tied_and_scaled": tiny_t5,
    "t5_untied": lambda: tiny_t5(tie_word_embeddings=False),
    "bart_biased": biased_bart,
}


def student(name):
    torch.manual_seed(0)
    model = STUDENTS[name]()
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval(), base.get_output_embeddings(), base if base.config.is_encoder_decoder else None


def batch(is_encoder_decoder, count=5):
    """Rows of several lengths, padded on the right; the third has nothing supervised."""
    torch.manual_seed(1)
    prompts, completions = [3, 7, 2, 5, 4][:count], [4, 1, 0, 9, 2][:count]
    inputs = [p if is_encoder_decoder else p + c for p, c in zip(prompts, completions, strict=True)]
    width, label_width = max(inputs, default=1), max(completions if is_encoder_decoder else inputs, default=1)
    input_ids = torch.randint(4, VOCAB_SIZE, (count, width))
    mask = torch.arange(width)[None] < torch.tensor(inputs)[:, None].reshape(-1, 1)
    labels = torch.full((count, label_width), -100)
    for row, (p, c) in enumerate(zip(prompts, completions, strict=True)):
        if is_encoder_decoder:
            labels[row, :c] = torch.randint(4, VOCAB_SIZE, (c,))
        else:
            labels[row, p : p + c] = input_ids[row, p : p + c]
    return input_ids.masked_fill(~mask, PAD), mask.long(), labels


def plain(model, decoder, input_ids, mask, labels):
    """Mean token losses and likeliest tokens by the usual forward pass, one unpadded row at a time."""
    losses, tokens = [], []
    for row in range(len(input_ids)):
        chosen = input_ids[row : row + 1, : int(mask[row].sum())]
        target = labels[row][labels[row] != -100]
        if decoder is None:
            logits = model(input_ids=chosen).logits[0]
            logits = logits[len(logits) - len(target) - 1 : -1]
        else:
            start = torch.tensor([decoder.config.decoder_start_token_id])
            shifted = torch.cat([start, target])[None, : max(len(target), 1)]
            logits = model(input_ids=chosen, decoder_input_ids=shifted).logits[0, : len(target)]
        nll = -logits.double().log_softmax(-1)[range(len(target)), target]
        losses.append(nll.mean() if len(target) else torch.zeros((), dtype=torch.float64))
        tokens.append(logits.argmax(-1))
    return torch.stack(losses), tokens


@pytest.mark.parametrize("name", STUDENTS)
def test_equal_to_full_logits(name):
    """A scale, cap or bias that the shortcut past the head loses gives every token a wrong probability."""
    model, head, decoder = student(name)
    rows = batch(decoder is not None)
    scored = score_rows(model, head, *rows, decoder=decoder)
    expected, tokens = plain(model, decoder, *rows)
    assert expected.max() > 1
    torch.testing.assert_close(scored.nll.double(), expected, rtol=1e-5, atol=1e-5)
    assert scored.num_tokens.tolist() == [4, 1, 0, 9, 2]
    assert scored.row.tolist() == [0] * 4 + [1] + [3] * 9 + [4] * 2
    assert scored.predicted.tolist() == torch.cat(tokens).tolist()
    assert scored.states.shape == (16, 16)
    assert not scored.states.requires_grad
    assert scored.nll[2] == 0


def test_the_students_of_this_test_need_their_head():
    """Otherwise the test above would pass for a head without its cap, scale or bias."""
    for name, without in (
        ("gemma2_soft_capped", lambda m: setattr(m.config, "final_logit_softcapping", None)),
        ("cohere_scaled", lambda m: setattr(m, "logit_scale", 1.0)),
        ("bart_biased", lambda m: m.final_logits_bias.zero_()),
    ):
        model, head, decoder = student(name)
        rows = batch(decoder is not None)
        before = score_rows(model, head, *rows, decoder=decoder).nll
        without(model)
        assert (score_rows(model, head, *rows, decoder=decoder).nll - before).abs().max() > 0.1, name


@pytest.mark.parametrize("name", ["llama", "t5_tied_and_scaled", "bart_biased"])
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4, 5, 8])
def test_in_several_passes(name, num_chunks):
    """Rows sorted by length must come back in their own order, whether there are fewer passes than rows or more."""
    model, head, decoder = student(name)
    rows = batch(decoder is not None)
    one = score_rows(model, head, *rows, decoder=decoder)
    several = score_rows_by_length(model, head, *rows, decoder=decoder, num_chunks=num_chunks)
    torch.testing.assert_close(several.nll, one.nll, rtol=1e-6, atol=1e-6)
    assert several.num_tokens.tolist() == one.num_tokens.tolist()
    assert sorted(several.row.tolist()) == one.row.tolist()
    order = several.row.argsort(stable=True)
    assert several.row[order].tolist() == one.row.tolist()
    torch.testing.assert_close(several.states[order], one.states, rtol=1e-5, atol=1e-5)
    assert several.predicted[order].tolist() == one.predicted.tolist()
    grads = []
    for scored in (one, several):
        model.zero_grad()
        (scored.nll.sum() + scored.anchor).backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert grads[0].abs().max() > 0.1
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


def test_passes_are_cut_where_they_are_smallest():
    """Passes of equal numbers of rows are padded by the few that are long."""
    lengths = torch.tensor([9, 2, 30, 3, 2, 10, 3, 29])
    # Sorted: 2 2 3 3 9 10 29 30. In three: 4 * 3 + 2 * 10 + 2 * 30 = 92, where equal numbers have 3 * 3 + 3 * 10 + 60 = 99.
    assert [chunk.tolist() for chunk in by_length(lengths, 3)] == [[1, 4, 3, 6], [0, 5], [7, 2]]
    assert [chunk.tolist() for chunk in by_length(lengths, 1)] == [[1, 4, 3, 6, 0, 5, 7, 2]]
    for count in (0, 2, 5):
        chunks = by_length(lengths[:count], 4)
        assert len(chunks) == 4
        assert sorted(i for chunk in chunks for i in chunk.tolist()) == list(range(count))


@pytest.mark.parametrize("name", ["llama", "t5_tied_and_scaled"])
@pytest.mark.parametrize("num_chunks", [1, 4])
def test_without_rows(name, num_chunks):
    """A micro-batch without a rationale still runs every pass, with a gradient of 0: else other processes would hang."""
    model, head, decoder = student(name)
    empty = [tensor[:0] for tensor in batch(decoder is not None)]
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    scored = score_rows_by_length(model, head, *empty, decoder=decoder, num_chunks=num_chunks)
    assert len(passes) == num_chunks
    assert scored.nll.shape == scored.num_tokens.shape == scored.row.shape == (0,)
    (scored.nll.sum() + scored.anchor).backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_nothing_supervised():
    """Prompts alone (questions without a label) have a loss of 0, not 0/0."""
    model, head, _ = student("llama")
    input_ids, mask, labels = batch(False)
    scored = score_rows(model, head, input_ids, mask, torch.full_like(labels, -100))
    assert scored.nll.tolist() == [0] * 5
    assert scored.predicted.shape == (0,)


def test_the_head_sees_supervised_tokens_alone():
    """Logits of a prompt would fill the memory that the shortcut is there to save; and the hook must not stay behind."""
    model, head, _ = student("llama")
    widths = []
    handle = head.register_forward_hook(lambda module, args, out: widths.append(out.shape))
    score_rows(model, head, *batch(False))
    handle.remove()
    assert widths == [(1, 16, VOCAB_SIZE)]
    assert not head._forward_pre_hooks
    assert model(input_ids=torch.ones(2, 3, dtype=torch.long)).logits.shape == (2, 3, VOCAB_SIZE)


def test_a_hook_does_not_outlive_an_error():
    """Left behind, it would cut the states of every later forward pass, those of generation too."""
    model, head, _ = student("llama")
    input_ids, mask, labels = batch(False)
    with pytest.raises(IndexError):
        score_rows(model, head, input_ids + 10 * VOCAB_SIZE, mask, labels)
    assert not head._forward_pre_hooks


def test_a_model_that_bypasses_its_head():
    """Its loss would be that of logits of every position, taken for those of the supervised ones."""
    model, _, _ = student("llama")
    with pytest.raises(ModelError, match="does not call its output embeddings"):
        score_rows(model, nn.Linear(16, VOCAB_SIZE), *batch(False))
