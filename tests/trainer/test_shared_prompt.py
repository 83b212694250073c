"""Rows that share a prompt: their layout and masks by hand, and their scores against rows of their own."""

import logging

import pytest
import torch
from running import trainer_of
from students import STUDENTS, UNSHARED, WINDOW, student
from tiny import VOCAB_SIZE, tiny_llama
from torch import nn

from qcrd_trl.errors import ConfigError
from qcrd_trl.trainer.architecture import evaluating, mask_form, shares_exactly
from qcrd_trl.trainer.cached_prompt import score_on_cache
from qcrd_trl.trainer.head import StudentHead
from qcrd_trl.trainer.scoring import flat_passes, score_passes
from qcrd_trl.trainer.shared_prompt import MaskForm, segment_mask, share_prompts, shared_passes, split_long


def test_layout_by_hand():
    """A token from another row, or a position that goes on counting, gives a plausible loss of the wrong text."""
    # Rows 0 and 2 are of question 1 (prompt of 3 tokens), row 1 of question 0 (prompt of 1 token).
    shared = share_prompts(torch.tensor([3, 1, 3]), torch.tensor([2, 4, 1]), torch.tensor([1, 0, 1]))
    assert shared.source.tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 2]]
    assert shared.position.tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 3, 2]]
    assert shared.segment.tolist() == [[1, 1, 1, 1, -1], [0, 0, 1, 1, 2]]


def test_mask_by_hand():
    """A rationale that sees another is trained to copy it."""
    segment, position = torch.tensor([[0, 0, 1, 1, 2, -1]]), torch.tensor([[0, 1, 2, 3, 2, 0]])
    full = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    mask = segment_mask(segment, position, torch.float32)
    assert mask.shape == (1, 1, 6, 6)
    # A row of padding sees itself: over nothing at all a softmax is NaN.
    assert (mask[0, 0] == 0).int().tolist()[:5] == full[:5]
    assert mask[0, 0, 5, 5] == 0
    assert mask.min() == torch.finfo(torch.float32).min
    windowed = segment_mask(segment, position, torch.bfloat16, window=2)
    assert windowed.dtype == torch.bfloat16
    assert (windowed[0, 0] == 0).int().tolist()[:5] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
    ]


def test_long_rows_are_split_by_hand():
    """With a row for all, the time grows with the square of the number of rationales, and so does the mask."""
    # P = 60 and d = 576: S^2 = 60 (3456 + 60) = 459^2. 16 rationales of 60 tokens are 2.09 times that, 6 are 0.78.
    question = torch.tensor([0] * 16 + [1] * 6)
    full = torch.full((22,), 60)
    assert split_long(full, full, question, 576).tolist() == [0] * 8 + [1] * 8 + [2] * 6
    assert split_long(full, full, question.flip(0), 10**6).tolist() == [1] * 6 + [0] * 16
    # Rows need not come by question, and a question of one rationale stays whole, however long that is.
    # P = 2 and d = 8: S = 10.
    mixed, long = torch.tensor([1, 0, 1, 1, 1]), torch.tensor([5, 900, 5, 5, 5])
    assert split_long(torch.full((5,), 2), long, mixed, 8).tolist() == [1, 0, 1, 2, 2]
    assert split_long(torch.full((5,), 2), 100 * long, mixed, 8).tolist() == [1, 0, 2, 3, 4]


def rows(is_encoder_decoder):
    """Seven flat rows of four questions in mixed order; one completion of one token, one question of one row."""
    torch.manual_seed(1)
    prompts = {0: 4, 3: 1, 5: 7, 6: 2}
    question = torch.tensor([5, 0, 3, 5, 0, 6, 5])
    completions = [3, 8, 4, 1, 2, 5, 6]
    texts = {key: torch.randint(4, VOCAB_SIZE, (size,)) for key, size in prompts.items()}
    inputs, labels = [], []
    for key, size in zip(question.tolist(), completions, strict=True):
        rationale = torch.randint(4, VOCAB_SIZE, (size,))
        prompt = texts[key]
        inputs.append(prompt if is_encoder_decoder else torch.cat([prompt, rationale]))
        start = torch.full((0 if is_encoder_decoder else len(prompt),), -100)
        labels.append(torch.cat([start, rationale]))
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(ids) for ids in inputs], batch_first=True)
    padded = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
    return padded, mask, nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100), question


def scores(model, shared, num_passes=1):
    decoder = model if model.config.is_encoder_decoder else None
    *flat, question = rows(decoder is not None)
    if shared:
        passes = shared_passes(*flat, question, mask_form(model)[0], torch.float32, decoder, num_passes)
    else:
        passes = flat_passes(*flat, decoder)
    assert len(passes) == (num_passes if shared else 1)
    model.zero_grad()
    scored = score_passes(model, model.get_output_embeddings(), passes, len(question), decoder)
    (scored.nll * torch.arange(1.0, 8)).sum().backward()
    return scored, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("num_passes", [1, 2, 6])
@pytest.mark.parametrize("name", STUDENTS)
def test_equal_to_flat_rows(name, num_passes):
    """Whatever an architecture makes of masks and positions, a rationale's loss is that of a row of its own."""
    model = student(name).eval()
    one, gradient = scores(model, False)
    other, shared_gradient = scores(model, True, num_passes)
    assert one.nll.max() - one.nll.min() > 0.1
    torch.testing.assert_close(other.nll, one.nll, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shared_gradient, gradient, rtol=1e-4, atol=1e-4)
    assert other.num_tokens.tolist() == one.num_tokens.tolist() == [3, 8, 4, 1, 2, 5, 6]
    mine, theirs = one.row.argsort(stable=True), other.row.argsort(stable=True)
    torch.testing.assert_close(other.states[theirs], one.states[mine], rtol=1e-4, atol=1e-4)
    assert other.predicted[theirs].tolist() == one.predicted[mine].tolist()


@pytest.mark.parametrize("num_passes", [1, 3, 9])
@pytest.mark.parametrize("name", [name for name in STUDENTS if name not in ("t5", "bart")])
def test_on_a_cache_equal_to_flat_rows(name, num_passes):
    """Prompts of several lengths lie side by side in a cache: what pads one must not be seen by its rationales."""
    model = student(name).eval()
    one, _ = scores(model, False)
    *flat, question = rows(False)
    head = StudentHead(model.get_output_embeddings())
    other = score_on_cache(model, head, *flat, question, num_passes)
    torch.testing.assert_close(other.nll, one.nll.detach(), rtol=1e-5, atol=1e-5)
    assert other.nll.grad_fn is None
    assert other.num_tokens.tolist() == one.num_tokens.tolist()
    mine, theirs = one.row.argsort(stable=True), other.row.argsort(stable=True)
    torch.testing.assert_close(other.states[theirs], one.states[mine], rtol=1e-4, atol=1e-4)
    short = [tensor[2:3] for tensor in (*flat, question)]  # a prompt of one token leaves nothing to be kept
    torch.testing.assert_close(score_on_cache(model, head, *short).nll, one.nll[2:3].detach(), rtol=1e-5, atol=1e-5)


def test_a_cache_under_gradient_checkpointing():
    """Layers that are run again keep no cache in some versions: rationales would be scored without their prompt."""
    model = student("llama")
    *flat, question = rows(False)
    head = StudentHead(model.get_output_embeddings())
    before = score_on_cache(model, head, *flat, question)
    model.gradient_checkpointing_enable()
    after = score_on_cache(model.train(), head, *flat, question)
    assert after is None or torch.allclose(after.nll, before.nll)
    # A model that keeps none says so by its length.
    forward = model.model.forward
    model.model.forward = lambda *args, **kwargs: forward(
        *args, **{**kwargs, "past_key_values": None, "use_cache": False}
    )
    assert score_on_cache(model, head, *flat, question) is None


def test_a_prompt_is_read_once():
    """Otherwise nothing is saved, and only a clock would tell."""
    *flat, question = rows(False)
    [one] = shared_passes(*flat, question, MaskForm(), torch.float32)
    # Four prompts of 4, 1, 7 and 2 tokens without their last, and all completions.
    assert one.inputs["input_ids"].shape == (4, 6 + 10)
    assert int(one.supervised.sum()) == 29
    *flat, question = rows(True)
    [one] = shared_passes(*flat, question, MaskForm(), torch.float32, student("t5"))
    assert one.inputs["input_ids"].shape == (4, 7)
    assert one.encoded.tolist() == [3, 2, 0, 3, 2, 1, 3]  # by length: questions 3, 6, 0, 5


@pytest.mark.parametrize("name", [*STUDENTS, *UNSHARED])
def test_the_trial_tells_who_can(name):
    """GPT-Neo's local attention and MPT's ALiBi take a mask without an error, and give other losses."""
    model = student(name)
    with evaluating(model):
        form = mask_form(model)[0]
        assert (form is None) == (name in UNSHARED)
        assert shares_exactly(
            model, StudentHead(model.get_output_embeddings()), form or MaskForm(), torch.float32
        ) == (name in STUDENTS)
    assert model.training


def test_the_trial_sees_a_window_that_is_lost():
    """A window that is wider than the trial's rows would be lost on it: what the configuration says counts first."""
    for name in ("mistral", "qwen2_windowed", "gemma3"):
        model = student(name)
        assert mask_form(model)[0].window == WINDOW
        with evaluating(model):
            assert not shares_exactly(model, StudentHead(model.get_output_embeddings()), MaskForm(), torch.float32)


REFUSALS = {
    "flash": (lambda m: setattr(m.config, "_attn_implementation", "flash_attention_2"), "flash_attention_2"),
    "linear": (lambda m: setattr(m.config, "layer_types", ["linear_attention", "full_attention"]), "linear_attention"),
    "alibi": (lambda m: setattr(m.config, "alibi", True), "more than positions"),
    "unknown_chunks": (
        lambda m: (setattr(m.config, "model_type", "new"), setattr(m.config, "attention_chunk_size", 8)),
        "attention_chunk_size",
    ),
}


@pytest.mark.parametrize("name", [*REFUSALS, *UNSHARED])
def test_what_cannot_is_refused_or_falls_back(tmp_path, caplog, name):
    """`auto` must be exact in any case, and say once that it saves nothing; `True` must not be silently ignored."""
    model, expected = (student(name), "") if name in UNSHARED else (tiny_llama(), REFUSALS[name][1])
    if name in REFUSALS:
        REFUSALS[name][0](model)
    with pytest.raises(ConfigError, match=rf"shared_prompt=True cannot be done for this .*{expected}.*'auto'"):
        trainer_of(tmp_path, model, shared_prompt=True)
    with caplog.at_level(logging.WARNING, "qcrd_trl"):
        trainer = trainer_of(tmp_path, model)
    assert [expected in record.message for record in caplog.records if "row of its own" in record.message] == [True]
    assert trainer._engine._masks is None


def test_an_unknown_architecture_is_tried_once(tmp_path, caplog, monkeypatch):
    """An architecture that no list names is found out by the trial, before the first step and not at each."""
    import qcrd_trl.trainer.engine as engine

    calls = []
    monkeypatch.setattr(engine, "shares_exactly", lambda *args, **kw: bool(calls.append(args)))
    with caplog.at_level(logging.WARNING, "qcrd_trl"):
        trainer_of(tmp_path, max_steps=2).train()
    assert len(calls) == 2  # by a cache, and by a mask
    assert sum("gave other hidden states" in record.message for record in caplog.records) == 1
    with pytest.raises(ConfigError, match="gave other hidden states"):
        trainer_of(tmp_path, shared_prompt=True).train()
