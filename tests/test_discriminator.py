"""The head that scores rationales, and its files."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from qcrd_trl import RationaleDiscriminator
from qcrd_trl.errors import ModelError, QCRDError


WIDTH = 6


def make(seed=0):
    torch.manual_seed(seed)
    return RationaleDiscriminator(WIDTH, hidden_size=5)


def ragged_states(seed=0):
    """States of 4 rationales with 3, 1, 0 and 5 tokens, and their mask, with gaps between the tokens."""
    torch.manual_seed(seed)
    mask = torch.zeros(4, 7, dtype=torch.bool)
    for row, columns in enumerate([(0, 2, 5), (6,), (), (1, 2, 3, 4, 6)]):
        mask[row, list(columns)] = True
    return torch.randn(4, 7, WIDTH), mask


def test_score_by_hand():
    """A mean in place of the max, or no normalisation, gives scores in (0, 1) all the same."""
    discriminator = RationaleDiscriminator(2, hidden_size=1)
    with torch.no_grad():
        discriminator.dense.weight.copy_(torch.tensor([[2.0, 1.0]]))
        discriminator.dense.bias.fill_(0.5)
        discriminator.score.weight.fill_(-1.0)
        discriminator.score.bias.fill_(0.25)
    states = torch.tensor([[[3.0, 1.0], [5.0, 9.0]], [[3.0, 1.0], [5.0, 9.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    # Normalised: (1, -1) and (-1, 1). Max of both (1, 1): dense 3.5; of the first alone (1, -1): dense 1.5.
    expected = [1 / (1 + math.exp(3.25)), 1 / (1 + math.exp(1.25))]
    assert discriminator(states, mask).tolist() == pytest.approx(expected, abs=1e-4)


def test_padded_and_ragged_forms_agree():
    """Training uses the ragged form and users the padded one: a difference would be two discriminators."""
    discriminator = make()
    states, mask = ragged_states()
    scores = discriminator(states, mask)
    shuffled = torch.randperm(int(mask.sum()))
    row = torch.arange(4)[:, None].expand_as(mask)[mask][shuffled]
    assert torch.equal(discriminator.score_tokens(states[mask][shuffled], row, 4), scores)
    for i in (0, 1, 3):
        alone = discriminator(states[i, mask[i]][None], torch.ones(1, int(mask[i].sum())))
        torch.testing.assert_close(alone, scores[i : i + 1])
    assert len(set(scores.tolist())) == 4
    assert scores.dtype == torch.float32
    assert scores.shape == (4,)
    assert ((scores > 0) & (scores < 1)).all()


def test_masked_positions_do_not_matter():
    """A score that saw the padding or the prompt would be a function of the batch that a rationale is in."""
    discriminator = make()
    states, mask = ragged_states()
    for fill in (1e6, float("nan"), float("inf")):
        noisy = states.masked_fill(~mask[..., None], fill)
        assert torch.equal(discriminator(noisy, mask), discriminator(states, mask))
    moved = states.clone()
    moved[0, 2] += torch.randn(WIDTH)
    assert discriminator(moved, mask)[0] != discriminator(states, mask)[0]


def test_no_rationale_at_all():
    """The first batch without a rationale would stop the run."""
    scores = make().score_tokens(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.long), 0)
    assert scores.shape == (0,)
    without_tokens = make().score_tokens(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.long), 2)
    assert torch.isfinite(without_tokens).all()
    assert without_tokens.shape == (2,)


def test_no_gradient_reaches_the_states():
    """A discriminator that moves the student would teach it to write states that please, not rationales."""
    discriminator = make()
    states, mask = ragged_states()
    states.requires_grad_()
    discriminator(states, mask).sum().backward()
    assert states.grad is None
    for name, parameter in discriminator.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_every_parameter_learns():
    """A head that only trained its last layer would still lower its loss a little."""
    discriminator = make()
    states, mask = ragged_states()
    before = {name: value.clone() for name, value in discriminator.state_dict().items()}
    optimizer = torch.optim.AdamW(discriminator.parameters(), lr=1e-2)
    target = torch.tensor([1.0, 0.0, 1.0, 0.0])
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy(discriminator(states, mask), target)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert all(not torch.equal(value, before[name]) for name, value in discriminator.state_dict().items())


@pytest.mark.parametrize("scale", [1e-2, 1e3])
def test_scale_of_the_states_does_not_matter(scale):
    """The last states of some students are hundreds of times larger than those of others: the sigmoid would saturate."""
    discriminator = make()
    states, mask = ragged_states()
    torch.testing.assert_close(discriminator(states * scale, mask), discriminator(states, mask), rtol=0.02, atol=1e-3)


def test_half_precision_states_and_autocast():
    """In bfloat16, scores lie 0.004 apart: quality weights and AUC would be made of ties."""
    discriminator = make()
    states, mask = ragged_states()
    half = states.bfloat16()
    expected = discriminator(half.float(), mask)
    assert discriminator(half, mask).dtype == torch.float32
    assert torch.equal(discriminator(half, mask), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = discriminator(half, mask)
        tokens = discriminator.score_tokens(half[mask], torch.arange(4)[:, None].expand_as(mask)[mask], 4)
    assert torch.equal(scores, expected)
    assert torch.equal(tokens, expected)


def test_round_trip_is_exact(tmp_path):
    """A resumed run whose discriminator differs in one bit is another run."""
    saved = make()
    saved.save_pretrained(tmp_path / "new" / "folder")
    loaded = RationaleDiscriminator.from_pretrained(tmp_path / "new" / "folder")
    assert not loaded.training
    assert (loaded.input_size, loaded.hidden_size) == (WIDTH, 5)
    assert loaded.state_dict().keys() == saved.state_dict().keys()
    for name, value in saved.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    states, mask = ragged_states()
    assert torch.equal(loaded(states, mask), saved(states, mask))
    assert not torch.equal(make(seed=1)(states, mask), saved(states, mask))


@pytest.mark.parametrize("full_model", [False, True])
def test_loads_from_a_students_folder(tmp_path, full_model):
    """A full model's folder has files of the same names: taken for the discriminator's they would end in an error."""
    saved = make()
    saved.save_pretrained(tmp_path / "discriminator")
    if full_model:
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    loaded = RationaleDiscriminator.from_pretrained(tmp_path)
    assert torch.equal(loaded.dense.weight, saved.dense.weight)


def spoil_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def drop_bias(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["dense.bias"]
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: [file.unlink() for file in folder.iterdir()], "No discriminator in"),
        (lambda folder: (folder / "model.safetensors").unlink(), "No discriminator in"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: spoil_config(folder, kind="encoder"), "kind 'student'"),
        (lambda folder: spoil_config(folder, kind=None), "kind 'student'"),
        (lambda folder: spoil_config(folder, hidden_size=9), "do not fit"),
        (drop_bias, "do not fit"),
        (lambda folder: spoil_config(folder, input_size=None), "config.json"),
        (lambda folder: spoil_config(folder, input_size="six"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"cut"), "model.safetensors"),
    ],
    ids=[
        *("empty", "no_weights", "no_config", "other_kind", "no_kind", "other_size", "missing_weight"),
        *("no_size", "wrong_size_type", "damaged_config", "config_is_a_list", "damaged_weights"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_broken_folders(tmp_path, spoil, text, nested):
    """A bare KeyError or JSON error from a checkpoint of gigabytes does not say which file is to be mended."""
    folder = tmp_path / "discriminator" if nested else tmp_path
    make().save_pretrained(folder)
    spoil(folder)
    with pytest.raises(ModelError, match=text) as caught:
        RationaleDiscriminator.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, QCRDError)
    assert isinstance(caught.value, ValueError)
