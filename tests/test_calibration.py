"""Brier score, reliability bins and expected calibration error."""

import random

import pytest

from qcrd_trl.metrics import brier_score, expected_calibration_error, reliability_bins


SCORES, LABELS = [0.1, 0.15, 0.7, 0.75, 1.0], [False, True, True, False, True]


def test_by_hand():
    """Figures of calibration are believed, because nobody has a feeling for them."""
    # 0.01 + 0.7225 + 0.09 + 0.5625 + 0 over 5.
    assert brier_score(SCORES, LABELS) == pytest.approx(1.385 / 5)
    bins = reliability_bins(SCORES, LABELS, num_bins=2)
    assert [(b.low, b.high, b.weight) for b in bins] == [
        (0.0, 0.5, pytest.approx(0.4)),
        (0.5, 1.0, pytest.approx(0.6)),
    ]
    assert [b.mean_score for b in bins] == pytest.approx([0.125, 2.45 / 3])
    assert [b.share_positive for b in bins] == pytest.approx([0.5, 2 / 3])
    # 0.4 * |0.125 - 0.5| + 0.6 * |0.81667 - 0.66667|.
    assert expected_calibration_error(SCORES, LABELS, num_bins=2) == pytest.approx(0.4 * 0.375 + 0.6 * 0.15)


def test_weights_count_as_copies():
    """With weights that are forgotten, many positives and few negatives are not what was trained on."""
    copies = [1, 2, 1, 3, 1]
    scores, labels = (
        [x for x, n in zip(values, copies, strict=True) for _ in range(n)] for values in (SCORES, LABELS)
    )
    for measure in (brier_score, expected_calibration_error):
        assert measure(SCORES, LABELS, weights=copies) == pytest.approx(measure(scores, labels))
        assert measure(SCORES, LABELS, weights=[n / 10 for n in copies]) == pytest.approx(measure(scores, labels))
        assert measure(SCORES, LABELS) != pytest.approx(measure(scores, labels))


def test_calibrated_scores_have_no_error():
    """An error that is not 0 for scores which are true would blame every discriminator."""
    rng = random.Random(0)
    scores = [rng.random() for _ in range(20_000)]
    labels = [rng.random() < score for score in scores]
    assert expected_calibration_error(scores, labels) < 0.02
    assert expected_calibration_error([score**2 for score in scores], labels) > 0.1
    assert brier_score([0.5] * 4, [True, False, True, True]) == 0.25


def test_empty_bins():
    """A 0 in place of nothing would be read as a measurement."""
    bins = reliability_bins([1.0, 0.0], [True, False])
    assert [b.weight for b in bins] == [0.5, *[0.0] * 8, 0.5]
    assert bins[4].mean_score is bins[4].share_positive is None
    assert expected_calibration_error([1.0, 0.0], [True, False]) == 0


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([], [], "got 0, 0 and 0"),
        ([0.5], [True, False], "got 1, 2 and 1"),
        ([1.5], [True], "must lie in"),
        ([float("nan")], [True], "must lie in"),
    ],
)
def test_bad_input(scores, labels, message):
    """Logits taken for scores would fall into the last bin."""
    for measure in (brier_score, reliability_bins, expected_calibration_error):
        with pytest.raises(ValueError, match=message):
            measure(scores, labels)
