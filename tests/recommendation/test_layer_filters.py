"""The layer filters: what they compute, what they are trained by, and which teacher they belong to."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from cached import cached, item_rows, item_teacher, tokenized
from running import weights

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.layer_filters import LayerFilters, default_layers, hit_ranks
from qcrd_trl.recommendation.teacher_states import LiveTeacher


def filters(form: str = "mlp", **options) -> LayerFilters:
    torch.manual_seed(0)
    return LayerFilters(
        **{"layers": [2, 4], "teacher_size": 6, "student_size": 3, "vocab_size": 10, "form": form, **options}
    )


def states(positions: int = 5, seed: int = 1) -> dict[int, torch.Tensor]:
    torch.manual_seed(seed)
    return {layer: torch.randn(positions, 6) for layer in (1, 2, 4)}


@pytest.mark.parametrize("form", ["mlp", "linear"])
def test_each_layer_goes_through_its_own_filter(form):
    """One filter for all layers, or layers in the order of a dict, would leave the router nothing to choose between."""
    made, given = filters(form), states()
    out = made({layer: given[layer] for layer in (4, 1, 2)})
    assert out.shape == (2, 5, 3)
    for place, layer in enumerate((2, 4)):
        own = made.filters[str(layer)]
        if form == "linear":
            expected = F.linear(given[layer], own.weight, own.bias)
        else:
            expected = F.linear(F.gelu(F.linear(given[layer], own[0].weight, own[0].bias)), own[2].weight, own[2].bias)
        assert torch.allclose(out[place], expected, atol=1e-6)
    changed = made({**given, 2: given[2] + 1})
    assert torch.equal(changed[1], out[1])
    assert not torch.allclose(changed[0], out[0], atol=1e-2)


def test_the_losses_are_the_cross_entropies_of_the_shared_head():
    """Losses in tiles, of all layers at once: a layer's targets must not be another's."""
    made, given, targets = filters(), states(), torch.tensor([0, 9, 3, 3, 7])
    nll, predicted = made(given, targets, predicts=True)
    logits = made.logits(made(given))
    assert logits.shape == (2, 5, 10)
    for place in range(2):
        normed = F.rms_norm(made(given)[place], (3,), made.norm.weight, 1e-6)
        assert torch.allclose(logits[place], normed @ made.head.weight.T, atol=1e-6)
        assert torch.allclose(nll[place], F.cross_entropy(logits[place], targets, reduction="none"), atol=1e-5)
    assert torch.equal(predicted, logits.argmax(-1))
    assert made(given, targets)[1] is None


def test_gradients_reach_filters_norm_and_head_and_not_the_states():
    """A parameter that gets none stays at its random start, and the student imitates noise."""
    made = filters()
    given = {layer: value.requires_grad_() for layer, value in states().items()}
    made({layer: value.detach() for layer, value in given.items()}, torch.tensor([0, 1, 2, 3, 4]))[0].sum().backward()
    assert len(list(made.parameters())) == 2 * 4 + 2
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name
    assert all(value.grad is None for value in given.values())


def test_no_positions_at_all():
    """A micro-batch of one process may have nothing to predict: a gradient of 0, not a missing one, keeps DDP alive."""
    made = filters()
    made(states(0), torch.zeros(0, dtype=torch.long))[0].sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in made.parameters())
    assert made(states(0)).shape == (2, 0, 3)


def test_identity_filters_give_the_states():
    """The equivalence that the whole method is checked by: an identical student then has nothing to imitate."""
    made = LayerFilters.identity([2, 4], 6)
    given = states()
    assert torch.equal(made(given), torch.stack([given[2], given[4]]))
    with pytest.raises(ConfigError, match="Identity filters need a teacher and a student of one width, got 6 and 3"):
        filters("identity")


def test_ranks_count_what_is_greater_and_ties_by_the_smaller_index():
    """Ties that are won make a head of equal logits hit everything."""
    made = LayerFilters.identity([1], 4, vocab_size=4)
    with torch.no_grad():
        made.head.weight.copy_(torch.eye(4))
    given = torch.tensor([[1.0, 3.0, 3.0, 2.0]]).repeat(4, 1)  # the norm keeps the order
    assert hit_ranks(made, given, torch.tensor([0, 1, 2, 3])).tolist() == [4, 1, 2, 3]
    assert hit_ranks(made, torch.zeros(2, 4), torch.tensor([0, 3])).tolist() == [1, 4]


@pytest.mark.parametrize("tile", [1, 16, 100])
def test_ranks_in_tiles(monkeypatch, tile):
    """Positions of a later tile must be ranked by their own targets."""
    monkeypatch.setattr("qcrd_trl.recommendation.layer_filters.tile_tokens", lambda *_: tile)
    made, given, targets = filters(), states(40)[2], torch.arange(40) % 10
    filtered = made({2: given, 4: given})[0]
    logits = made.logits(filtered)
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)
    expected = (order == targets[:, None]).nonzero()[:, 1] + 1
    assert torch.equal(hit_ranks(made, filtered, targets), expected)


def test_the_default_layers():
    """Up to four in the late half, the last one among them."""
    found = {number: default_layers(number) for number in (1, 2, 3, 6, 12, 30, 32)}
    assert found == {
        1: (1,),
        2: (2,),
        3: (2, 3),
        6: (4, 5, 6),
        12: (8, 9, 11, 12),
        30: (19, 23, 27, 30),
        32: (20, 24, 28, 32),
    }


@pytest.mark.parametrize("form", ["mlp", "linear", "identity"])
def test_saved_and_loaded(tmp_path, form):
    """Filters that lose a weight, their layers or their teacher on the way are found out by a worse student alone."""
    options = {"student_size": 6} if form == "identity" else {}
    made = filters(form, teacher_fingerprint="ab" * 32, **options)
    made.save_pretrained(tmp_path / "filters")
    made.save_pretrained(tmp_path / "filters")  # again, in place of the first
    loaded = LayerFilters.from_pretrained(tmp_path / "filters")
    assert loaded.settings() == made.settings()
    assert not loaded.training
    assert weights(loaded).keys() == weights(made).keys()
    assert torch.equal(loaded(states()), made(states()))
    assert torch.equal(loaded.logits(loaded(states())), made.logits(made(states())))
    assert sorted(path.name for path in (tmp_path / "filters").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("none", "No layer filters in .*`qcrd c2kd filters`"),
        ("text", "is damaged"),
        ("kind", "holds no layer filters: its config.json says kind='student'"),
        ("format", "are of format 2, and format 1 is read here"),
        ("layers", "is not that of layer filters"),
        ("size", "do not fit their config.json"),
        ("weights", "missing or damaged"),
    ],
)
def test_folders_that_hold_no_filters(tmp_path, change, told):
    """A folder of another kind may have files of the same names."""
    made = filters()
    made.write(tmp_path)
    config = {
        **made.settings(),
        **{"kind": {"kind": "student"}, "format": {"format": 2}, "layers": {"layers": [4, 2]}}.get(change, {}),
        **({"vocab_size": 11} if change == "size" else {}),
    }
    (tmp_path / "config.json").write_text("{" if change == "text" else json.dumps(config))
    if change == "weights":
        (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(ModelError, match=told):
        LayerFilters.from_pretrained(tmp_path / "none" if change == "none" else tmp_path)


def teacher(**changes) -> SimpleNamespace:
    told = {"fingerprint": "a" * 64, "hidden_size": 6, "layers": (2, 4), "last_layer": 6, **changes}
    return SimpleNamespace(**told)


def test_another_teacher_and_other_sizes_are_refused():
    """Filters of another teacher fit by their shapes: the student would imitate what they make of foreign states."""
    made = filters(teacher_fingerprint="a" * 64)
    made.check(teacher(), 3, 10)
    with pytest.raises(
        ModelError, match="trained on another teacher: theirs has the fingerprint aaaaaaaaaaaa, this one bbbb"
    ):
        made.check(teacher(fingerprint="b" * 64))
    with pytest.raises(ModelError, match="a teacher's width of 6 instead of 8"):
        made.check(teacher(hidden_size=8))
    with pytest.raises(
        ModelError, match="a student's width of 3 instead of 5 and items or tokens in number 10 instead of 11"
    ):
        made.check(teacher(), 5, 11)
    with pytest.raises(ModelError, match=r"need layers \[2, 4\] of the teacher, and \[2\] of them are not among"):
        made.check(teacher(layers=(4,)))
    made.check(teacher(layers=(2,), last_layer=4))  # the last layer is always read
    with pytest.raises(ModelError, match=r"states of layers \[4\] are missing"):
        made({2: states()[2]})


def test_a_real_teacher_and_its_cache_are_told_from_another(tmp_path):
    """The cache stands for its teacher: filters trained on one are those of the other."""
    live = LiveTeacher(item_teacher(), [3])
    made = LayerFilters([3], 16, 3, 12, teacher_fingerprint=live.fingerprint)
    made.check(live, 3, 12)
    made.check(cached(tmp_path / "cache", live, tokenized(item_rows(2))), 3, 12)
    with pytest.raises(ModelError, match="another teacher"):
        made.check(LiveTeacher(item_teacher(1), [3]))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layers": []}, "at least one"),
        ({"layers": [4, 2]}, "ascending"),
        ({"student_size": 0}, "student_size must be an integer of at least 1"),
        ({"form": "tree"}, "Unknown form of layer filters 'tree': expected one of mlp, linear, identity"),
        ({"form": "linear", "filter_size": 4}, "filter_size is the width within form='mlp'"),
    ],
)
def test_arguments_that_cannot_be(options, told):
    """Each would fail later, in torch's words."""
    with pytest.raises(ConfigError, match=told):
        filters(**options)


def test_frozen_for_the_student():
    """Filters that go on learning beside the student move towards it, and the imitation is a collapse."""
    made = filters().freeze()
    assert not any(parameter.requires_grad for parameter in made.parameters())
    assert not made(states()).requires_grad
