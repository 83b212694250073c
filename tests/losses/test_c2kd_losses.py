"""Losses of C2KD: numbers worked by hand, what padding and order must not change, and where gradients go."""

import math

import pytest
import torch

from qcrd_trl.losses.c2kd import (
    block_loss,
    distillation_kl,
    feature_loss,
    head_kl,
    orthogonality_penalty,
    route,
    route_per_row,
    routed_states,
)


STUDENT = torch.tensor([[1.0, 0.0]])
LAYERS = torch.tensor([[[0.9, 0.1]], [[-1.0, 0.0]], [[0.0, 1.0]], [[3.0, 0.3]]])
ONE_ROW = torch.tensor([0])


def test_router_by_hand():
    """By distance instead of direction the first layer would win, and the choice would follow the scale of the states."""
    choice, cosine = route_per_row(STUDENT, LAYERS, ONE_ROW, 1)
    expected = [0.9 / math.sqrt(0.82), -1.0, 0.0, 3 / math.sqrt(9.09)]
    assert expected == pytest.approx([0.993884, -1, 0, 0.995037], abs=1e-6)
    assert cosine.tolist()[0] == pytest.approx(expected, abs=1e-6)
    assert choice.tolist() == [3]
    # ((1 - 3)^2 + 0.3^2) / 2, far above that of the first layer, 0.01.
    chosen = routed_states(LAYERS, choice, ONE_ROW)
    assert feature_loss(STUDENT, chosen).item() == pytest.approx(2.045, abs=1e-6)
    assert feature_loss(STUDENT, LAYERS[0]).item() == pytest.approx(0.01, abs=1e-6)


def test_router_means_over_the_positions_of_a_row():
    """A cosine of summed states, or one over all rows, would let long states or other rows decide."""
    # Row 0: positions e1 and e2; row 1: one position e1; row 2: none.
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    layers = torch.tensor(
        [
            [[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]],  # cosines 1, 0 | 0: of the sums (1, 1) and (10, 0): 0.707
            [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]],  # 0.7071, 0.7071 | 1
        ]
    )
    choice, cosine = route_per_row(student, layers, torch.tensor([0, 0, 1]), 3)
    half = math.sqrt(0.5)
    for mine, by_hand in zip(cosine.tolist(), [[0.5, half], [0.0, 1.0], [0.0, 0.0]], strict=True):
        assert mine == pytest.approx(by_hand, abs=1e-6)
    assert choice.tolist() == [1, 1, 0]
    # Rows and positions in another order choose the same layers.
    order = torch.tensor([2, 1, 0])
    moved = route(student[order], layers[:, order], torch.tensor([1, 0, 0]), 3)
    assert moved.tolist() == choice.tolist()
    assert routed_states(layers, choice, torch.tensor([0, 0, 1])).tolist() == layers[1].tolist()


def test_of_equal_layers_the_first_wins():
    """Which of equal layers is taken would differ between devices, and with it the run."""
    layers = torch.stack([-LAYERS[3], LAYERS[3], LAYERS[0], LAYERS[3]])
    assert route(STUDENT, layers, ONE_ROW, 1).tolist() == [1]
    assert route(torch.zeros(1, 2), layers, ONE_ROW, 1).tolist() == [0]


def test_no_gradient_goes_through_the_choice():
    """A gradient to the filters would teach them to be chosen."""
    student, layers = STUDENT.clone().requires_grad_(), LAYERS.clone().requires_grad_()
    choice, cosine = route_per_row(student, layers, ONE_ROW, 1)
    assert not choice.requires_grad
    assert not cosine.requires_grad
    feature_loss(student, routed_states(layers, choice, ONE_ROW)).sum().backward()
    assert layers.grad is None
    # d/ds of ((s1 - 3)^2 + (s2 - 0.3)^2) / 2.
    assert student.grad.tolist()[0] == pytest.approx([-2.0, -0.3], abs=1e-6)


def test_normalized_feature_loss_by_hand():
    """With the mean and the weights swapped, or on raw states, the value would depend on the scale of the teacher."""
    student, target = torch.tensor([[3.0, 4.0], [2.0, 0.0]]), torch.tensor([[4.0, 3.0], [0.0, 5.0]])
    # Unit vectors (.6, .8), (.8, .6): squared difference .08, mean .04, cos .96. Second: squared 2, mean 1, cos 0.
    expected = [0.25 * 0.04 + 0.75 * 0.04, 0.25 * 1 + 0.75 * 1]
    assert feature_loss(student, target, "normalized", 0.25).tolist() == pytest.approx(expected, abs=1e-6)
    assert feature_loss(7 * student, 0.1 * target, "normalized", 0.25).tolist() == pytest.approx(expected, abs=1e-6)
    first = feature_loss(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0, 0.0]]), "normalized", 0.5)
    assert first.item() == pytest.approx(0.5 * 2 / 4 + 0.5 * 1)  # the mean is over the width, 1 - cos is not


@pytest.mark.parametrize("form", ["mse", "normalized"])
def test_equal_states_cost_nothing(form):
    """A rest by rounding would push a student that is the teacher already."""
    states = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    student = states.clone().requires_grad_()
    loss = feature_loss(student, states, form)
    assert loss.tolist() == [0.0] * 5
    loss.sum().backward()
    assert student.grad.abs().max() == 0


def test_kl_by_hand():
    """The other direction of KL gives 0.0767 and 0.0991, and without T^2 the second is 0.0229: all train plausibly."""
    teacher, student = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, -1.0]])

    def by_hand(temperature, swapped=False):
        p = [math.exp(z / temperature) for z in (2.0, 0.0, 0.0)]
        q = [math.exp(z / temperature) for z in (1.0, 0.0, -1.0)]
        p, q = (q, p) if swapped else (p, q)
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) * temperature**2

    assert [by_hand(1), by_hand(2)] == pytest.approx([0.061554, 0.091417], abs=1e-6)
    assert [by_hand(1, True), by_hand(2, True)] == pytest.approx([0.0767, 0.0991], abs=1e-4)
    assert distillation_kl(teacher, student).item() == pytest.approx(by_hand(1), abs=1e-6)
    assert distillation_kl(teacher, student, 2.0).item() == pytest.approx(by_hand(2), abs=1e-6)


def test_kl_gradient_and_zero():
    """A gradient of another sign or size, or one to the teacher, leaves the value as it is."""
    teacher = torch.tensor([[2.0, 0.0, 0.0]]).requires_grad_()
    student = torch.tensor([[1.0, 0.0, -1.0]]).requires_grad_()
    distillation_kl(teacher, student, 2.0).sum().backward()
    assert teacher.grad is None
    p, q = torch.softmax(teacher.detach() / 2, 1), torch.softmax(student.detach() / 2, 1)
    torch.testing.assert_close(student.grad, 2 * (q - p))  # T^2 / T (q - p)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)) * 5
    assert distillation_kl(logits, logits, 3.0).tolist() == [0.0] * 4
    low = distillation_kl(logits.bfloat16(), logits.bfloat16())
    assert low.dtype == torch.float32


def kl_inputs(seed=0, positions=37, width=6, vocabulary=50):
    torch.manual_seed(seed)
    weight = torch.randn(vocabulary, width)
    return weight, torch.randn(positions, width), torch.randn(positions, width, requires_grad=True)


@pytest.mark.parametrize("tile", [1, 16, 36, 37])
@pytest.mark.parametrize("crosses", [True, False])
def test_kl_by_tiles_is_the_kl(tile, crosses):
    """A seam between tiles that drops a position or takes it twice, or a last tile that is shorter and weighs as much."""
    weight, teacher, student = kl_inputs()
    own = student if crosses else student @ weight.T * 0.7
    found = head_kl(lambda states: states @ weight.T, teacher, own, 50, crosses, 2.0, tile)
    logits = student @ weight.T if crosses else student @ weight.T * 0.7
    expected = distillation_kl(teacher @ weight.T, logits, 2.0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    scale = torch.linspace(-1, 2, 37)  # each position has a gradient of its own
    (gradient,) = torch.autograd.grad((found * scale).sum(), student, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * scale).sum(), student)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_kl_by_tiles_holds_a_tile():
    """Logits of all positions that wait for the backward pass are what the tiles are there to save."""
    held, (weight, teacher, student) = [], kl_inputs(positions=64, vocabulary=1000)

    def note(tensor):
        held.append(tensor.numel())
        return tensor

    for tile in (64, 16):
        held.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            head_kl(lambda states: states @ weight.T, teacher, student, 1000, tile=tile).sum().backward()
        most = max(held)
        assert (most >= 64 * 1000) == (tile == 64)
    assert held
    with torch.no_grad():
        assert head_kl(lambda states: states @ weight.T, teacher, student, 1000, tile=16).shape == (64,)


def test_kl_through_a_head_of_two_vocabularies():
    """Logits of ids that one model lacks would take a share of the probability of the other."""
    weight, teacher, student = kl_inputs()
    own = student @ torch.cat([weight, torch.ones(9, 6)]).T
    found = head_kl(lambda states: states @ weight.T, teacher, own, 50, False, tile=16)
    torch.testing.assert_close(found, distillation_kl(teacher @ weight.T, own[:, :50]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="37 states of the teacher and 36"):
        head_kl(lambda states: states @ weight.T, teacher, own[:-1], 50, False)


def test_orthogonality_by_hand():
    """Over the larger side the penalty could never be 0, and would pull the projection to nothing."""
    # W^T W = [[4, 0], [0, 1]] of a (3, 2): (4 - 1)^2 = 9.
    tall = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert orthogonality_penalty(tall).item() == 9
    assert orthogonality_penalty(tall.T).item() == 9
    # W W^T = [[2, 1], [1, 1]]: 1 + 1 + 1 + 0.
    assert orthogonality_penalty(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).item() == 3
    assert orthogonality_penalty(torch.eye(4, 6)).item() == orthogonality_penalty(torch.eye(6, 4)).item() == 0


def test_block_loss_by_hand():
    """A block left out, or a mean over blocks, changes the weight of the part against the task."""
    student = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]])
    target = torch.tensor([[[3.0, -4.0]], [[5.0, 0.0]]])
    # Block 1: cos (9 - 16) / 25 = -0.28, length 8. Block 2: cos 1, length 4.
    assert block_loss(student, target).item() == pytest.approx(1.28 + 0.8 + 0.4, abs=1e-6)
    assert block_loss(student, target, 0.0).item() == pytest.approx(1.28, abs=1e-6)
    same = student.clone().requires_grad_()
    loss = block_loss(same, student)
    assert loss.tolist() == [0.0]
    loss.sum().backward()
    assert same.grad.abs().max() == 0  # and no NaN


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: route(STUDENT, LAYERS[0], ONE_ROW, 1), "num_layers"),
        (lambda: route(STUDENT, LAYERS[:0], ONE_ROW, 1), "at least one layer"),
        (lambda: route(STUDENT, LAYERS, torch.tensor([0, 1]), 2), "`row`"),
        (lambda: feature_loss(STUDENT, torch.zeros(1, 3)), "one shape"),
        (lambda: feature_loss(STUDENT, STUDENT, "l1"), "Unknown feature loss 'l1'"),
        (lambda: distillation_kl(torch.zeros(1, 3), torch.zeros(2, 3)), "one shape"),
        (lambda: distillation_kl(STUDENT, STUDENT, 0.0), "above 0"),
        (lambda: orthogonality_penalty(torch.zeros(3)), "a matrix"),
        (lambda: block_loss(STUDENT, STUDENT), "num_blocks"),
    ],
)
def test_wrong_shapes_and_values(call, message):
    """Broadcasting would turn a transposed argument into a plausible number."""
    with pytest.raises(ValueError, match=message):
        call()
