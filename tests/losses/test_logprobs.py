"""Token losses and their mean over each row."""

import math

import pytest
import torch

from qcrd_trl.losses import mean_per_row, token_nll


def test_token_nll_by_hand():
    """Odds 1 : 2 : 5 give probabilities 1/8, 1/4, 5/8; a loss in bits or of the wrong column would still fall."""
    logits = torch.tensor([[0.0, math.log(2), math.log(5)]] * 3)
    nll = token_nll(logits, torch.tensor([0, 1, 2]))
    assert nll.tolist() == pytest.approx([math.log(8), math.log(4), math.log(1.6)])


def test_token_nll_equals_float64():
    """Large logits overflow an exponential that is taken without subtracting the maximum."""
    torch.manual_seed(0)
    logits = (torch.randn(7, 11) * 50).requires_grad_()
    targets = torch.randint(11, (7,))
    exact = logits.detach().double()
    expected = exact.logsumexp(1) - exact[torch.arange(7), targets]
    nll = token_nll(logits, targets)
    torch.testing.assert_close(nll.double(), expected, rtol=1e-6, atol=1e-5)
    nll.sum().backward()
    softmax = exact.softmax(1)
    softmax[torch.arange(7), targets] -= 1
    torch.testing.assert_close(logits.grad.double(), softmax, rtol=1e-5, atol=1e-6)


def test_half_precision_logits_are_lifted():
    """Bfloat16 keeps 8 bits: ln 4096 = 8.318 becomes 8.3125, and rationales of like loss become ties."""
    logits = torch.zeros(1, 4096, dtype=torch.bfloat16)
    nll = token_nll(logits, torch.tensor([5]))
    assert nll.dtype == torch.float32
    assert nll.item() == pytest.approx(12 * math.log(2), rel=1e-6)


def test_no_token():
    """A batch whose rows were all cut to nothing must give no loss, not an error in the middle of a run."""
    assert token_nll(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("shape", [(3,), (1, 3, 5)])
def test_shapes_are_checked(shape):
    """Logits of a padded batch would broadcast against flat targets and give a loss of the wrong tokens."""
    with pytest.raises(ValueError, match=r"num_tokens, vocabulary"):
        token_nll(torch.zeros(shape), torch.zeros(3, dtype=torch.long))


def test_mean_per_row_by_hand():
    """A mean over all tokens of the batch would weight a rationale by its length; a row without token is 0, not 0/0."""
    values = torch.tensor([4.0, 1.0, 3.0, 2.0], requires_grad=True)
    mean = mean_per_row(values, torch.tensor([2, 0, 0, 0]), 4)
    assert mean.tolist() == [2.0, 0.0, 4.0, 0.0]
    (mean * torch.tensor([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    assert values.grad.tolist() == pytest.approx([100.0, 1 / 3, 1 / 3, 1 / 3])


def test_mean_per_row_equals_float64():
    """Rows come interleaved when they are scored by length: a mean over runs of equal rows would be wrong there."""
    torch.manual_seed(0)
    values, row = torch.rand(50), torch.randint(6, (50,))
    mean = mean_per_row(values, row, 6)
    for i in range(6):
        mine = [v for v, r in zip(values.double().tolist(), row.tolist(), strict=True) if r == i]
        assert len(mine) > 1
        assert mean[i].item() == pytest.approx(sum(mine) / len(mine), rel=1e-6)
