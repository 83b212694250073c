"""Every saving of the scoring engine against none: one step's loss, gradients and logged parts."""

import itertools

import pytest
import torch
from peft import LoraConfig
from running import largest_difference, logged, lora, record, trainer_of
from students import STUDENTS, UNSHARED, student
from tiny import ragged_rows, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl.errors import ConfigError
from qcrd_trl.trainer.engine import ScoringEngine
from qcrd_trl.trainer.work import TokenWork


NAMES = ("shared_prompt", "selection", "chunked_logits")
OFF, ON = dict.fromkeys(NAMES, False), dict.fromkeys(NAMES, True)
# All positives and negatives are scored, one of each is differentiated; the margin is above every loss.
PAPER = {"preset": "qcrd_paper", "margin": 12.0}


def rows():
    """Questions whose prompt is long enough to be worth sharing, with 0 to 2 positives and 0 to 3 negatives."""
    rows = ragged_rows()
    for row in rows:
        row["prompt"] = f"a + b - c = d {row['prompt']}"
    rows[2]["label"] = None
    return rows


def one_step(folder, name, switches, adapter=False, model=None, **overrides):
    """What one optimizer step computes."""
    parts = None
    if adapter:
        task = "SEQ_2_SEQ_LM" if name in ("t5", "bart") else "CAUSAL_LM"
        parts = {"peft_config": lora(init_lora_weights=False, task_type=task)}
    torch.manual_seed(0)
    trainer = trainer_of(
        folder,
        student(name) if model is None else model,
        rows(),
        word_tokenizer(adds_eos=name == "t5"),
        parts,
        **{**PAPER, **switches, **overrides},
    )
    seen = record(trainer)
    trainer.train()
    seen.parts, seen.engine = logged(trainer)[0], trainer._engine
    return seen


def assert_same(one, other, tolerance=1e-5, relative=None):
    if relative is None:
        assert sum(other.losses) == pytest.approx(sum(one.losses), abs=tolerance)
        assert other.parts == pytest.approx(one.parts, abs=tolerance)
        assert largest_difference(one.student[0], other.student[0]) < tolerance
    else:
        assert sum(other.losses) == pytest.approx(sum(one.losses), rel=relative)
        difference = flat(other.student[0]) - flat(one.student[0])
        assert difference.norm() < relative * flat(one.student[0]).norm()
    assert max(gradient.abs().max() for gradient in one.student[0].values()) > 0.05
    assert one.parts["loss/negative"] < -1e-3
    for mine, theirs in zip(one.discriminator, other.discriminator, strict=True):
        assert largest_difference(mine, theirs) < (tolerance if relative is None else 0.05)
        assert max(gradient.abs().max() for gradient in mine.values()) > 1e-4


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("name", STUDENTS)
def test_all_savings_against_none(tmp_path, name, adapter):
    """A saving that is not exact in one architecture trains it on another loss, and nothing fails."""
    if adapter and name in ("gemma2", "granite", "cohere", "qwen2_windowed"):
        pytest.skip("as in its relatives")
    one, other = (one_step(tmp_path, name, switches, adapter) for switches in (OFF, ON))
    assert other.engine.head.form is not None
    assert other.engine._masks is not None
    assert one.engine.head.form is one.engine._masks is None
    assert_same(one, other)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "t5", "bart"])
def test_each_combination(tmp_path, name, adapter):
    """Each saving must be exact whatever the others are, or a user who switches one off gets another loss."""
    plain = one_step(tmp_path, name, OFF, adapter)
    for switches in list(itertools.product([False, True], repeat=3))[1:-1]:
        assert_same(plain, one_step(tmp_path, name, dict(zip(NAMES, switches, strict=True)), adapter))


@pytest.mark.parametrize(
    "overrides",
    [
        {"margin": 4.3},  # some negatives are beyond it
        {"reduction": "max_min", "quality_weighting": "normalized"},
        {"positive_reduction": "mean", "negative_reduction": "max", "margin_type": "relative", "margin": 2.0},
        {"positive_reduction": "weighted_mean", "negative_reduction": "min"},
        {"preset": "qcrd", "margin": 2.0, "negative_reduction": "max"},
    ],
)
def test_reductions(tmp_path, overrides):
    """A reduction that differentiates several, or a weight that only the whole batch tells, must get the same gradient."""
    assert_same(*(one_step(tmp_path, "llama", switches, **overrides) for switches in (OFF, ON)))


@pytest.mark.parametrize("name", [*UNSHARED])
def test_falls_back(tmp_path, name):
    """What cannot share prompts may still select, and compute its losses in tiles."""
    other = one_step(tmp_path, name, {**ON, "shared_prompt": "auto"})
    assert other.engine._masks is None
    assert_same(one_step(tmp_path, name, OFF), other)


@pytest.mark.parametrize(("name", "adapter"), [("llama", False), ("mistral", True), ("t5", False)])
def test_gradient_checkpointing(tmp_path, name, adapter):
    """Layers that are run again in the backward pass must get the same masks, and the encoder its own rows."""
    one, other = (
        one_step(tmp_path, name, switches, adapter, gradient_checkpointing=switches is ON) for switches in (OFF, ON)
    )
    assert_same(one, other)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "t5", "bart"])
def test_bfloat16(tmp_path, name, adapter):
    """Autocast keeps the weights cast in a pass without a graph, and gives them to the next: they would get no gradient."""
    one, other = (one_step(tmp_path, name, switches, adapter, bf16=True) for switches in (OFF, ON))
    exact = one_step(tmp_path, name, OFF, adapter)
    rounding = 0.1 if name == "t5" else 0.05  # the plain version's own, asserted below
    assert_same(one, other, relative=rounding)
    # Savings are tried out, and masks made, in the precision of the run: it is on in the student's forward alone.
    assert other.engine._dtype() == torch.bfloat16
    # It is as far from single precision as the plain version is, not farther.
    error, plain = (flat(run.student[0]) - flat(exact.student[0]) for run in (other, one))
    assert 1e-4 < plain.norm() < rounding * flat(exact.student[0]).norm()
    assert error.norm() < 1.5 * plain.norm()


@pytest.mark.parametrize("weighting", ["normalized", "printed"])
def test_accumulation_scores_once_without_a_graph(tmp_path, monkeypatch, weighting):
    """Weights of mean 1 need every score before the first gradient: to score twice for that costs half as much again."""
    calls = []
    every, labels = ScoringEngine.every, ScoringEngine.labels

    def noted(kind, score):
        return lambda *args, **kw: calls.append((kind, torch.is_grad_enabled())) or score(*args, **kw)

    monkeypatch.setattr(ScoringEngine, "every", noted("rationales", every))
    monkeypatch.setattr(ScoringEngine, "labels", noted("labels", labels))
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "quality_weighting": weighting}
    one = one_step(tmp_path, "llama", OFF, quality_weighting=weighting)
    calls.clear()
    other = one_step(tmp_path, "llama", ON, **split)
    assert_same(one, other)
    labels, ahead, picked = ("labels", True), ("rationales", False), ("rationales", True)
    if weighting == "normalized":
        assert calls == [ahead] * 2 + [labels, picked] * 2
    else:
        assert calls == [labels, ahead, picked] * 2


def test_only_what_was_picked_is_differentiated(tmp_path, monkeypatch):
    """All rationales with a graph need the memory that selection is to save."""
    seen = []
    score = ScoringEngine.every
    monkeypatch.setattr(
        ScoringEngine,
        "every",
        lambda self, model, rows: (
            seen.append((len(rows.question), torch.is_grad_enabled())) or score(self, model, rows)
        ),
    )
    other = one_step(tmp_path, "llama", ON, margin=100.0)
    # 7 positives of 5 questions, and 12 negatives of 6.
    assert seen == [(19, False), (11, True)]
    assert other.parts["negatives/beyond_margin"] == 0
    seen.clear()
    one_step(tmp_path, "llama", ON, margin=0.0)  # every negative is beyond it
    assert seen == [(19, False), (5, True)]


def count_of(name, rationales, prompt, tokens, **overrides):
    """The engine's decision for one question."""
    make = tiny_t5 if name == "t5" else tiny_llama
    trainer = trainer_of(overrides.pop("folder"), make(), rows(), word_tokenizer(), **{**PAPER, **overrides})
    from qcrd_trl.trainer.objective import RationaleRows

    ids = torch.ones(rationales, prompt + tokens, dtype=torch.long)
    labels = ids.clone()
    labels[:, :prompt] = -100
    positive = torch.arange(rationales) < rationales // 2
    batch = RationaleRows(ids, ids, labels, torch.zeros(rationales, dtype=torch.long), positive, 1)
    return trainer._engine, batch


# Per layer 4 attention matrices of 16 x 16 and 3 matrices of 16 x 32: 2560; two layers. The head: 33 x 16.
PROMPT, COMPLETION, PAIR = 5120, 5120 + 528, 2 * 16 * 2


@pytest.mark.parametrize("shared", [False, True])
def test_the_count_by_hand(tmp_path, shared):
    """A wrong count chooses the slower way at every step."""
    engine, batch = count_of("llama", 6, 60, 60, folder=tmp_path, shared_prompt=shared)
    engine._get_ready()
    every, picked = engine.count(batch)
    if shared:
        # One row of P + nR, or of P + 2R; without a graph, 6 rationales of 60 that each look at 120 tokens.
        assert every.weights.item() == 60 * PROMPT + 360 * COMPLETION
        assert every.pairs.item() == 420**2 * PAIR
        assert every.pairs_ahead.item() == (60**2 + 6 * 60 * 120) * PAIR
        assert picked.weights.item() == pytest.approx(60 * PROMPT + 120 * COMPLETION)
        assert picked.pairs.item() == pytest.approx(180**2 * PAIR)
    else:
        assert every.weights.item() == 6 * 60 * (PROMPT + COMPLETION)
        assert every.pairs.item() == every.pairs_ahead.item() == 6 * 120**2 * PAIR
        assert picked.weights.item() == pytest.approx(2 * 60 * (PROMPT + COMPLETION))
        assert picked.pairs.item() == pytest.approx(2 * 120**2 * PAIR)
    engine, batch = count_of("llama", 6, 60, 60, folder=tmp_path, shared_prompt=shared, positive_reduction="mean")
    picked = engine.count(batch)[1].weights.item()  # 3 positives and a negative
    assert picked == pytest.approx((60 * PROMPT if shared else 4 * 60 * PROMPT) + 240 * COMPLETION)


def test_the_count_of_an_encoder_decoder_by_hand(tmp_path):
    """Keys and values of the encoded question are made for each rationale, and are what sharing does not save."""
    engine, batch = count_of("t5", 6, 60, 60, folder=tmp_path)
    engine._get_ready()
    every, picked = engine.count(batch)
    # `count_of` shows the encoder 120 tokens. Per layer of the encoder 4 x 16 x 16 and 2 x 16 x 32; of the decoder 2 x 16 x 16
    # more that read its own tokens, and as many that read the encoder's.
    encoder, decoder, encoded = 2 * 2048, 2 * 2560 + 528, 2 * 512
    assert every.weights.item() == 120 * encoder + 6 * (60 * decoder + 120 * encoded)
    assert every.pairs.item() == every.pairs_ahead.item() == (120**2 + 6 * 60 * (60 + 120)) * PAIR
    assert picked.weights.item() == pytest.approx(120 * encoder + 2 * (60 * decoder + 120 * encoded))
    assert picked.pairs.item() == pytest.approx((120**2 + 2 * 60 * (60 + 120)) * PAIR)


TOKENS = TokenWork(1, 1, 0, 0)
SMOLLM2 = TokenWork(106.2e6, 134.5e6, 0, 34560)


def test_auto_takes_the_cheaper(tmp_path):
    """A model of one size decides otherwise than one of another: by tokens alone, selection is left out where it pays."""
    for rationales, prompt, frozen, work, expected in (
        (6, 300, True, TOKENS, False),  # 2 (300 + 360) = 1320 against 660 + 2 (300 + 120) = 1500
        (6, 60, True, TOKENS, True),  # 840 against 420 + 360
        (6, 60, False, TOKENS, True),  # 1260 against 420 + 540
        (2, 60, False, TOKENS, False),  # both are picked
        (16, 300, False, TOKENS, True),  # 3780 against 1260 + 1260
        (6, 130, True, TOKENS, True),  # 980 against 990: it needs less memory
        (6, 180, True, TOKENS, False),  # 1080 against 1140
        # Weights 160.5e9 and attention 3 x 660^2 x 34560 = 45.2e9: 205.7e9. Selected: 80.3e9 and (300^2 + 360 x 360) x 34560
        # = 7.6e9, then 96.0e9 and 3 x 420^2 x 34560 = 18.3e9: 202.2e9.
        (6, 300, True, SMOLLM2, True),
        (4, 300, True, SMOLLM2, False),
    ):
        engine, batch = count_of("llama", rationales, prompt, 60, folder=tmp_path)
        engine.passes_with_gradient = lambda frozen=frozen: 2 if frozen else 3
        engine.work = work
        assert engine.selects(batch, False) == expected, (rationales, prompt, frozen)
    # What another process has counts too: all decide alike.
    engine, batch = count_of("llama", 6, 60, 60, folder=tmp_path)
    engine.work = TOKENS
    assert engine.selects(batch, False, lambda costs: costs + torch.tensor([1e6, 1.1e6])) is False
    # What has been scored without a graph already costs nothing more.
    engine, batch = count_of("llama", 6, 300, 60, folder=tmp_path)
    engine.passes_with_gradient = lambda: 2
    engine.work = TOKENS
    assert engine.selects(batch, True)


def test_the_costs_by_hand(tmp_path):
    """Frozen weights need no gradient, but attention does: counted alike, long prompts look cheaper than they are."""
    engine, batch = count_of("llama", 6, 300, 60, folder=tmp_path)
    engine._get_ready()
    engine.passes_with_gradient = lambda: 2
    engine.work = SMOLLM2
    plain, selected = (engine.costs(batch) * SMOLLM2.completion).tolist()
    assert plain == pytest.approx(205.7e9, rel=1e-3)
    assert selected == pytest.approx(202.2e9, rel=1e-3)
    engine.args.gradient_checkpointing = True
    assert engine.costs(batch)[0].item() * 134.5e6 == pytest.approx(160.5e9 + 4 / 3 * 45.2e9, rel=1e-3)


def test_what_a_backward_pass_costs(tmp_path):
    """2 with trained weights, about 1 with a frozen base, and 1 more where activations are recomputed."""
    adapter = {"peft_config": LoraConfig(r=1, target_modules=["q_proj"], task_type="CAUSAL_LM")}
    costs = [
        trainer_of(tmp_path, parts=parts, gradient_checkpointing=again)._engine.passes_with_gradient()
        for parts in (None, adapter)
        for again in (False, True)
    ]
    assert costs == [3, 4, 2, 3]


@pytest.mark.parametrize("name", NAMES)
def test_switches(name, tmp_path):
    """A shell gives words, YAML gives truth values, and a misspelt one must not switch anything silently."""
    for value, expected in (("auto", "auto"), (True, True), ("false", False), ("True", True)):
        assert getattr(trainer_of(tmp_path, **PAPER, **{name: value}).args, name) == expected
    with pytest.raises(ConfigError, match=f"{name} must be 'auto', True or False, got 'on'"):
        trainer_of(tmp_path, **{name: "on"})


def test_selection_of_nothing(tmp_path):
    """Asked for where every rationale has a gradient, it would cost a pass and save nothing."""
    with pytest.raises(ConfigError, match="selection=True has nothing to leave out"):
        trainer_of(tmp_path, preset="dss_all", selection=True)


def test_a_head_that_cannot_be_taken_apart(tmp_path, caplog):
    """Logits made in an unknown way give wrong losses if the head is taken for plain; `True` must not be ignored."""
    model = tiny_llama()
    forward = model.forward

    def bent(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = 5 * torch.tanh(output.logits / 5)
        return output

    model.forward = bent
    one, other = (one_step(tmp_path, "llama", {**ON, "chunked_logits": how}, model=model) for how in (False, "auto"))
    assert other.engine.head.form is None
    assert sum(other.losses) == pytest.approx(sum(one.losses), abs=0.2)
    with pytest.raises(ConfigError, match="chunked_logits=True cannot be done for this LlamaForCausalLM: its logits"):
        one_step(tmp_path, "llama", ON, model=model)
