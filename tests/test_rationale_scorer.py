"""The discriminator that reads texts: what it computes, and its files."""

import json
import math

import pytest
import torch
from encoders import KINDS, encoder_ids, pair_tokenizer, save_encoder, tiny_bert
from safetensors.torch import load_file
from tiny import tiny_bart, tiny_llama, word_tokenizer

from qcrd_trl import RationaleDiscriminator, RationaleScorer
from qcrd_trl.errors import ConfigError, DataError, ModelError


PROMPTS = ["a + 1", "b", "c + 2 - 1", "a", [{"role": "user", "content": "d e"}]]
RATIONALES = ["is 2 so 2", "c .", "so 3", "b b b b b b b", "a"]


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    return request.param, save_encoder(tmp_path_factory.mktemp(request.param), request.param)


def make(checkpoint, **kwargs):
    return RationaleScorer.from_encoder(checkpoint[1], hidden_size=8, **kwargs)


def test_pool_and_score_by_hand():
    """Pooled over the question or the special tokens too, scores would tell questions apart, and lie in (0, 1) as well."""
    scorer = RationaleScorer(
        tiny_bert(hidden_size=2, num_attention_heads=1), pair_tokenizer("bert"), head := RationaleDiscriminator(2, 1)
    )
    with torch.no_grad():
        head.dense.weight.copy_(torch.tensor([[2.0, 1.0]]))
        head.dense.bias.fill_(0.5)
        head.score.weight.fill_(-1.0)
        head.score.bias.fill_(0.25)

    class States(torch.nn.Module):
        def forward(self, input_ids, attention_mask, token_type_ids):
            # [CLS] a [SEP] b c [SEP]: the specials and the question have states that would win any pool.
            states = [[9.0, -9.0], [9.0, -9.0], [-9.0, 9.0], [3.0, 1.0], [7.0, 2.0], [-9.0, 9.0]]
            assert input_ids.tolist() == [encoder_ids("[CLS] a [SEP] b c [SEP]")]
            return type("Output", (), {"last_hidden_state": torch.tensor([states])})

    scorer.encoder = States()
    # Normalised, both tokens of the rationale are (1, -1); dense 2 - 1 + 0.5; score -1.5 + 0.25.
    assert scorer.score(["a"], ["b c"]) == [pytest.approx(1 / (1 + math.exp(1.25)), abs=1e-4)]


def test_equals_the_encoder_alone(checkpoint):
    """Another layer's states, or a mask that padding slips through, would give plausible scores."""
    kind = checkpoint[0]
    scorer = make(checkpoint)
    assert type(scorer.encoder) is KINDS[kind]
    tokenizer = pair_tokenizer(kind)
    for prompt, text, score in zip(PROMPTS[:4], RATIONALES, scorer.score(PROMPTS, RATIONALES), strict=False):
        encoded = tokenizer(prompt, text, return_tensors="pt")
        mine = [owner == 1 for owner in encoded.sequence_ids(0)]
        with torch.no_grad():
            states = scorer.encoder(**encoded).last_hidden_state[0][mine]
        states = (states - states.mean(1, keepdim=True)) / (states.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        head = scorer.head
        logit = head.score.weight @ torch.relu(head.dense.weight @ states.max(0).values + head.dense.bias)
        assert score == pytest.approx(torch.sigmoid(logit + head.score.bias).item(), abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_batches_do_not_matter(checkpoint, batch_size):
    """A score that depends on what is scored beside it, or that comes back in the order of lengths, is another's."""
    scorer = make(checkpoint)
    alone = [scorer.score([prompt], [text])[0] for prompt, text in zip(PROMPTS, RATIONALES, strict=True)]
    assert scorer.score(PROMPTS, RATIONALES, batch_size=batch_size) == pytest.approx(alone, abs=1e-6)
    assert len({round(score, 5) for score in alone}) == len(alone)
    assert all(0 < score < 1 for score in alone)


@pytest.mark.parametrize("freeze_encoder", [False, True])
def test_scoring_leaves_no_trace(checkpoint, freeze_encoder):
    """Scoring in the middle of a run would switch its dropout off, or draw other numbers for the rest of it."""
    scorer = make(checkpoint, freeze_encoder=freeze_encoder).train()
    modes = {name: module.training for name, module in scorer.named_modules()}
    assert modes["encoder"] == (not freeze_encoder)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = scorer.score(PROMPTS, RATIONALES)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: module.training for name, module in scorer.named_modules()} == modes
    assert scorer.score(PROMPTS, RATIONALES) == first  # no dropout
    assert all(p.grad is None for p in scorer.parameters())
    if checkpoint[0] == "bert" and not freeze_encoder:  # the mode has an effect
        batch = scorer.pairs.batch([(encoder_ids("a"), encoder_ids("b c d"))])
        assert not torch.equal(scorer(**batch), scorer(**batch))


def test_a_new_head_is_the_seeds_alone(checkpoint):
    """A head drawn from the global state differs from process to process, and moves what is drawn after it."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = make(checkpoint, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(make(checkpoint, seed=1).head.dense.weight, one.head.dense.weight)
    assert not torch.equal(make(checkpoint, seed=2).head.dense.weight, one.head.dense.weight)


@pytest.mark.parametrize("freeze_encoder", [False, True])
def test_who_gets_a_gradient(checkpoint, freeze_encoder):
    """An encoder that is detached by the pool would never learn; one that is frozen would keep its activations."""
    scorer = make(checkpoint, freeze_encoder=freeze_encoder)
    batch = scorer.pairs.batch([(encoder_ids("a"), encoder_ids("b c d")), (encoder_ids("b + 1"), encoder_ids("e"))])
    scorer(**batch).sum().backward()
    assert all(p.grad.any() for p in scorer.head.parameters())
    learned = {name for name, p in scorer.encoder.named_parameters() if p.grad is not None and p.grad.any()}
    trained = {name for name, p in scorer.encoder.named_parameters() if p.requires_grad}
    assert bool(learned) == bool(trained) == (not freeze_encoder)
    assert not any("pooler" in name for name in trained)  # no gradient would ever reach it
    if trained:
        assert len(trained - learned) <= 2, trained - learned  # such as biases that softmax cancels


def test_no_pair_at_all(checkpoint):
    """The first batch without a rationale would stop the run."""
    scorer = make(checkpoint)
    assert scorer.score([], []) == []
    assert scorer(**scorer.pairs.batch([])).shape == (0,)


# ---- Files ----


def test_round_trip_is_exact(checkpoint, tmp_path):
    """A scorer that is not the one that was measured."""
    scorer = make(checkpoint, seed=4, max_length=20)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    scorer.train().save_pretrained(tmp_path / "new" / "d")
    loaded = RationaleScorer.from_pretrained(tmp_path / "new" / "d")
    assert not loaded.training
    assert loaded.max_length == 20
    assert loaded.state_dict().keys() == scorer.state_dict().keys()
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in scorer.state_dict().items())
    assert loaded.score(PROMPTS, RATIONALES) == scorer.score(PROMPTS, RATIONALES)
    config = json.loads((tmp_path / "new" / "d" / "config.json").read_text())
    assert config == {"kind": "encoder", "max_length": 20, "input_size": 16, "hidden_size": 8}
    assert load_file(tmp_path / "new" / "d" / "model.safetensors").keys() == scorer.head.state_dict().keys()
    assert not list((tmp_path / "new").glob("_unfinished*"))


def test_loads_from_a_students_folder(checkpoint, tmp_path):
    """`OUT` is what a user has in hand after training, not `OUT/discriminator`."""
    scorer = make(checkpoint)
    scorer.save_pretrained(tmp_path / "discriminator")
    assert RationaleScorer.from_pretrained(tmp_path).score(["a"], ["b"]) == scorer.score(["a"], ["b"])
    assert RationaleScorer.is_trained(tmp_path)
    assert not RationaleScorer.is_trained(checkpoint[1])
    assert not RationaleScorer.is_trained(tmp_path / "nowhere")


def test_either(checkpoint, tmp_path):
    """A trained discriminator taken for an encoder checkpoint would be given a new head, and nobody would see it."""
    scorer = make(checkpoint, seed=9)
    scorer.save_pretrained(tmp_path / "d")
    again = RationaleScorer.from_either(tmp_path / "d", hidden_size=3, freeze_encoder=True)
    assert torch.equal(again.head.dense.weight, scorer.head.dense.weight)
    assert again.freeze_encoder
    assert RationaleScorer.from_either(checkpoint[1], hidden_size=3, seed=9).head.hidden_size == 3


def spoil(folder, **changes):
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "No discriminator in"),
        (lambda folder: spoil(folder, kind="other"), "kind='other'"),
        (lambda folder: spoil(folder, max_length=None), "must give max_length"),
        (lambda folder: spoil(folder, max_length=0), "must give max_length"),
        (lambda folder: spoil(folder, hidden_size="x"), "must give input_size and hidden_size"),
        (lambda folder: spoil(folder, hidden_size=3), "do not fit"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json .* is damaged"),
        (
            lambda folder: [f.unlink() for f in (folder / "encoder").iterdir()] and (folder / "encoder").rmdir(),
            "lost its encoder",
        ),
        (
            lambda folder: (folder / "encoder" / "config.json").unlink(),
            "No discriminator and no encoder could be loaded",
        ),
        (
            lambda folder: tiny_bert(hidden_size=8).save_pretrained(folder / "encoder"),
            "width 8, but the head reads 16",
        ),
    ],
)
def test_broken_folders(tmp_path, damage, text):
    """A KeyError from the middle of transformers does not say which file is to be mended."""
    scorer = RationaleScorer.from_encoder(save_encoder(tmp_path / "encoder"), hidden_size=8)
    scorer.save_pretrained(tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(ModelError, match=text) as caught:
        RationaleScorer.from_pretrained(tmp_path / "d")
    assert str(tmp_path) in str(caught.value)


def test_each_kind_names_the_other(checkpoint, tmp_path):
    """Who holds a folder does not see of which kind it is."""
    make(checkpoint).save_pretrained(tmp_path / "encoder_kind")
    RationaleDiscriminator(4, 2).save_pretrained(tmp_path / "student_kind")
    with pytest.raises(ModelError, match=r"load it with RationaleScorer\.from_pretrained"):
        RationaleDiscriminator.from_pretrained(tmp_path / "encoder_kind")
    with pytest.raises(ModelError, match=r"load it with RationaleDiscriminator\.from_pretrained"):
        RationaleScorer.from_pretrained(tmp_path / "student_kind")
    with pytest.raises(ModelError, match="kind='student'"):
        RationaleScorer.from_either(tmp_path / "student_kind")


def test_what_is_no_encoder(tmp_path):
    """Half of an encoder-decoder that is loaded with new weights scores at random."""
    tiny_bart().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"encoder-decoder .bart. whose encoder cannot be loaded alone"):
        RationaleScorer.from_encoder(tmp_path)
    with pytest.raises(ModelError, match="No discriminator and no encoder could be loaded from"):
        RationaleScorer.from_encoder(tmp_path / "nowhere" / "at" / "all")


def test_a_decoder_reads_too(tmp_path):
    """A causal model is no encoder of the paper's kind, but reads a rationale with the question before it."""
    tiny_llama().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    scorer = RationaleScorer.from_encoder(tmp_path)
    assert scorer.max_length == 256
    scores = scorer.score(["a", "a", "b"], ["b c", "b d", "b c"])
    assert len(set(scores)) == 3


def test_bad_arguments(checkpoint):
    """A longer input than the encoder has positions for would be an IndexError, or nonsense, at the first long pair."""
    with pytest.raises(ConfigError, match="max_length=65 is more than the 64 tokens"):
        make(checkpoint, max_length=65)
    scorer = make(checkpoint)
    assert scorer.max_length == 64
    with pytest.raises(DataError, match="2 prompts and 1 rationales"):
        scorer.score(["a", "b"], ["c"])
    with pytest.raises(ConfigError, match="batch_size must be"):
        scorer.score(["a"], ["c"], batch_size=0)
