"""How much texts differ, against numbers counted by hand."""

import pytest

from qcrd_trl.diversity import distinct_n, mean_pairwise_similarity


@pytest.mark.parametrize(
    ("texts", "n", "expected"),
    [
        (["a b", "a c"], 1, 3 / 4),
        (["A b", "a  C"], 1, 3 / 4),  # case and white space do not count
        (["a b c", "a b d"], 2, 3 / 4),  # ab, bc, ab, bd
        (["a b a b"], 2, 2 / 3),
        (["a b c"], 1, 1.0),
        (["a", "b"], 2, None),  # no pair of words at all; pairs do not reach over the end of a text
        ([], 1, None),
    ],
)
def test_distinct(texts, n, expected):
    """Positives that all say the same in the same words teach one rationale, however many they are."""
    assert distinct_n(texts, n) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a b", "b c"], 1 / 3),
        (["a b", "b a a"], 1.0),
        (["a", "b"], 0.0),
        (["a b", "b c", "a b"], (1 / 3 + 1 + 1 / 3) / 3),
        (["", ""], 1.0),
        (["a"], None),
    ],
)
def test_similarity(texts, expected):
    """A text compared with itself would make every set look alike."""
    assert mean_pairwise_similarity(texts) == pytest.approx(expected)
