"""The area under the ROC curve."""

import random
import time

import pytest

from qcrd_trl.metrics import auc


@pytest.mark.parametrize(
    ("positive", "negative", "expected"),
    [
        ([0.9, 0.8], [0.1, 0.2], 1.0),
        ([0.1, 0.2], [0.9, 0.8], 0.0),
        ([0.5], [0.5], 0.5),
        # Of 6 pairs: 0.7 beats 0.6 and 0.2, ties with 0.7 (a half); 0.3 beats 0.2 alone: 3.5 / 6.
        ([0.7, 0.3], [0.6, 0.2, 0.7], 3.5 / 6),
    ],
)
def test_by_hand(positive, negative, expected):
    """Swapped sides would report a discriminator that is wrong as one that is right."""
    assert auc(positive, negative) == pytest.approx(expected)


def test_equals_counting_pairs():
    """Ties are usual among rounded scores: counted as wins they would flatter the discriminator."""
    rng = random.Random(0)
    positive = [rng.randint(2, 9) / 10 for _ in range(30)]
    negative = [rng.randint(0, 7) / 10 for _ in range(41)]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert any(p == n for p in positive for n in negative)
    assert auc(positive, negative) == pytest.approx(wins / (30 * 41))


@pytest.mark.parametrize(("positive", "negative"), [([], [0.5]), ([0.5], []), ([], [])])
def test_empty_side_has_no_area(positive, negative):
    """0 or 0.5 in place of `None` would be read as a measurement."""
    assert auc(positive, negative) is None


def test_few_against_many_is_fast():
    """An evaluation with 8 negatives and many positives would stand still, as for an exact p-value that nobody reads."""
    rng = random.Random(0)
    many, few = [rng.random() for _ in range(20_000)], [-1.0, -2.0, -3.0, -4.0, 2.0, 3.0, 4.0, 5.0]
    start = time.process_time()
    assert auc(many, few) == 0.5
    assert time.process_time() - start < 2
