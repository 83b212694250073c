"""Token losses from hidden states, a few tokens at a time, against float64 and full logits."""

import pytest
import torch

from qcrd_trl.losses import LogitForm, head_logits, states_nll
from qcrd_trl.losses.logprobs import tile_tokens


FORMS = {
    "plain": LogitForm(),
    "scaled": LogitForm(scale=3.0),
    "capped": LogitForm(softcap=2.0),
    "both": LogitForm(scale=0.5, softcap=1.5),
}


def problem(num_tokens=7, vocabulary=11, width=5, trains_head=True, dtype=torch.float32):
    torch.manual_seed(0)
    states = torch.randn(num_tokens, width, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, dtype=dtype).requires_grad_(trains_head)
    bias = torch.randn(vocabulary).requires_grad_(trains_head)
    return states, weight, bias, torch.randint(vocabulary, (num_tokens,))


def in_float64(states, weight, bias, targets, form):
    """Losses and gradients of a weighted sum by the formula, with automatic differentiation."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (states, weight, bias)]
    logits = (leaves[0] @ leaves[1].T + leaves[2]) * form.scale
    if form.softcap is not None:
        logits = form.softcap * torch.tanh(logits / form.softcap)
    nll = -logits.log_softmax(1)[torch.arange(len(targets)), targets]
    (nll * factors(len(targets))).sum().backward()
    return nll.detach(), logits.argmax(1), [leaf.grad for leaf in leaves]


def factors(count):
    """What each token's loss is multiplied with: some have no part in the whole."""
    return torch.arange(count, dtype=torch.float64) % 3 - 1


@pytest.mark.parametrize("tile", [1, 3, 7, None])
@pytest.mark.parametrize("trains_head", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_equal_to_float64(form, trains_head, tile):
    """A gradient that misses the cap's slope, the scale or a tile still trains, to something else."""
    states, weight, bias, targets = problem(trains_head=trains_head)
    expected, likeliest, grads = in_float64(states, weight, bias, targets, FORMS[form])
    nll, predicted = states_nll(states, weight, targets, bias, FORMS[form], predicts=True, tile=tile)
    torch.testing.assert_close(nll.detach().double(), expected, rtol=1e-5, atol=1e-5)
    assert predicted.tolist() == likeliest.tolist()
    (nll * factors(7)).sum().backward()
    torch.testing.assert_close(states.grad.double(), grads[0], rtol=1e-5, atol=1e-5)
    assert states.grad.abs().max() > 0.1
    for tensor, grad in ((weight, grads[1]), (bias, grads[2])):
        assert (tensor.grad is not None) == trains_head
        if trains_head:
            torch.testing.assert_close(tensor.grad.double(), grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trains_head", [False, True])
def test_under_autocast(trains_head):
    """Under bfloat16 the products are rounded as the model rounds them, but losses and sums over tokens are not."""
    states, weight, bias, targets = problem(64, 50, 32, trains_head)
    expected, _, grads = in_float64(states, weight, bias, targets, LogitForm())
    with torch.autocast("cpu", torch.bfloat16):
        nll, _ = states_nll(states, weight, targets, bias, LogitForm(dtype=torch.bfloat16), tile=16)
        (nll * factors(64)).sum().backward()
    assert nll.dtype == states.grad.dtype == torch.float32
    assert (nll.detach() - expected).abs().max() < 0.1
    assert (nll.detach() - expected).abs().max() > 1e-4, "the products were not of bfloat16"
    assert (states.grad - grads[0]).norm() < 0.02 * grads[0].norm()
    if trains_head:
        assert (weight.grad - grads[1]).norm() < 0.02 * grads[1].norm()


def test_a_half_precision_model():
    """Gradients go to a parameter in its own type, and a sum in bfloat16 would lose all but its largest terms."""
    states, weight, bias, targets = problem(64, 50, 32, dtype=torch.bfloat16)
    expected, _, grads = in_float64(states, weight, bias, targets, LogitForm())
    nll, _ = states_nll(states, weight, targets, bias)
    assert nll.dtype == torch.float32
    (nll * factors(64)).sum().backward()
    assert states.grad.dtype == weight.grad.dtype == torch.bfloat16
    assert (nll.detach() - expected).abs().max() < 0.1
    assert (weight.grad - grads[1]).norm() < 0.02 * grads[1].norm()


@pytest.mark.parametrize("trains_head", [False, True])
def test_the_logits_are_never_whole(monkeypatch, trains_head):
    """The memory of a batch's logits is what this is to save; tokens without a gradient are not computed again."""
    states, weight, _, targets = problem(12, 11, 5, trains_head)
    heights = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: heights.append(a.shape[0]) or product(a, b))
    nll, _ = states_nll(states, weight, targets, tile=4)
    nll[3:5].sum().backward()
    # With a frozen head: logits and gradient of each tile. Else: logits of each, then those of the two tokens, and back.
    assert heights == ([4, 4, 4, 2, 2] if trains_head else [4] * 6)


def test_without_gradient_and_without_tokens():
    """Nothing is kept for a backward pass that does not come, and no token is no error."""
    states, weight, bias, targets = problem()
    with torch.no_grad():
        assert states_nll(states, weight, targets, bias)[0].grad_fn is None
    nll, predicted = states_nll(states[:0], weight, targets[:0], predicts=True)
    assert nll.shape == predicted.shape == (0,)
    (nll.sum() + states.sum() * 0).backward()
    assert not states.grad.any()


def test_shapes_are_checked():
    """A weight that is transposed may fit by chance, and then every loss is wrong."""
    states, weight, _, targets = problem()
    with pytest.raises(ValueError, match="num_tokens, hidden_size"):
        states_nll(states, weight.T, targets)


def test_logits_are_those_of_the_formula():
    """A head is taken for known if these agree with the model's own."""
    states, weight, bias, _ = problem()
    form = FORMS["both"]
    expected = form.softcap * torch.tanh((states @ weight.T + bias) * form.scale / form.softcap)
    torch.testing.assert_close(head_logits(states, weight, bias, form), expected.detach())


@pytest.mark.parametrize(
    ("num_tokens", "vocabulary", "device", "expected"),
    [
        (256, 49_152, "cpu", 256),  # 48 MiB of float32
        (257, 49_152, "cpu", 129),  # and not a last tile of one token
        (1000, 49_152, "cpu", 250),
        (128, 262_144, "cpu", 128),  # 48 MiB are 48 tokens, too few for a product with a head of this size
        (2730, 49_152, "cuda", 1365),  # 256 MiB
        (2731, 49_152, "cuda", 911),
        (512, 262_144, "cuda", 256),
        (256, 1_000_000, "cuda", 256),
        (0, 49_152, "cpu", 256),
    ],
)
def test_tokens_of_a_tile(num_tokens, vocabulary, device, expected):
    """By memory for common vocabularies; large ones are not cut so thin that each tile reads the whole head for a few tokens."""
    assert tile_tokens(num_tokens, vocabulary, torch.device(device)) == expected
