"""Densities and the reliability diagram, read back from their figures."""

import pytest

from qcrd_trl.plots.quality import label_of, look_of, plot_densities, plot_quality, plot_reliability


def bins(*parts):
    named = ("low", "high", "weight", "mean_score", "share_positive")
    return [dict(zip(named, part, strict=True)) for part in parts]


REPORT = {
    "sources": {
        "teacher_positive": {"scored": 4, "histogram": [0, 0, 0, 4]},
        "teacher_negative": {"scored": 0, "histogram": [0, 0, 0, 0]},
        "student_1.5": {"scored": 4, "histogram": [3, 0, 1, 0]},
        "student_2": {"scored": 4, "histogram": [4, 0, 0, 0]},
    },
    "against": {
        "teacher_negative": {"auc": None, "expected_calibration_error": None, "reliability": []},
        "student_1.5": {
            "auc": 0.875,
            "expected_calibration_error": 0.125,
            "reliability": bins((0, 0.5, 0.25, 0.2, 0.0), (0.5, 1.0, 0.75, 0.8, 0.6)),
        },
        "student_2": {
            "auc": 1.0,
            "expected_calibration_error": 0.25,
            "reliability": bins((0, 0.5, 0.5, 0.1, 0.0), (0.5, 1.0, 0.5, 0.9, 1.0)),
        },
    },
}


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_densities_have_unit_area():
    """Counts instead of densities would make the source with most rationales the best."""
    (axes,) = plot_densities({"teacher_positive": [0, 1, 1, 2], "student_sample": [0] * 40 + [1] * 10}, "t").axes
    assert legend_of(axes) == ["teacher positives (4)", "student samples (10)"]
    drawn = [patch.get_data() for patch in axes.patches if not patch.get_fill()]
    for heights, edges, _ in drawn:
        assert sum(h * (b - a) for h, a, b in zip(heights, edges[:-1], edges[1:], strict=True)) == pytest.approx(1)
    heights, edges, _ = drawn[0]
    assert list(heights) == [0, 1, 1, 2]
    assert list(edges) == [0, 0.25, 0.5, 0.75, 1]
    heights, edges, _ = drawn[1]  # 50 bins put together by twos
    assert (len(heights), list(heights[-5:]), heights[-6]) == (25, [pytest.approx(5)] * 5, 0)
    assert all((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))


def test_bins_that_do_not_divide():
    """A last bin that is narrower must be higher, or the area is not one."""
    (axes,) = plot_densities({"a_b": [1] * 51}, "t").axes
    heights, edges, _ = next(patch.get_data() for patch in axes.patches if not patch.get_fill())
    assert edges[-1] == 1.0
    assert [round(height, 6) for height in heights] == [1.0] * len(heights)
    assert legend_of(axes) == ["a b (51)"]


def test_quality_says_what_the_densities_are_worth():
    """An AUC beside the wrong source would be quoted."""
    (axes,) = plot_quality(REPORT, "t").axes
    assert legend_of(axes) == [
        "teacher positives (4)", "student samples, T = 1.5 (4, AUC 0.875)", "student samples, T = 2 (4, AUC 1.000)"
    ]  # fmt: skip


def test_reliability():
    """Axes exchanged would make an overconfident discriminator a cautious one."""
    diagram, weights = plot_reliability(REPORT, "t").axes
    assert "score" in diagram.get_xlabel()
    assert "positives" in diagram.get_ylabel()
    diagonal, low, high = diagram.lines
    assert (list(low.get_xdata()), list(low.get_ydata())) == ([0.2, 0.8], [0.0, 0.6])
    assert (list(high.get_xdata()), list(high.get_ydata())) == ([0.1, 0.9], [0.0, 1.0])
    assert legend_of(diagram)[1:] == [
        "against student samples, T = 1.5, ECE 0.125", "against student samples, T = 2, ECE 0.250"
    ]  # fmt: skip
    assert [bar.get_height() for bar in weights.patches] == [25, 75, 50, 50]
    assert low.get_color() != high.get_color() != diagonal.get_color()


def test_nothing_to_compare():
    """A training set without negatives, and no samples asked for: a picture of the positives is left."""
    report = {"sources": {"teacher_positive": REPORT["sources"]["teacher_positive"]}, "against": {}}
    assert len(plot_quality(report, "t").axes) == 1
    assert len(plot_reliability(report, "t").axes) == 2
    assert plot_densities({"teacher_positive": [0, 0]}, "t").axes[0].get_legend() is None


def test_a_source_looks_the_same_everywhere():
    """Positives in blue here and in orange there would be read as negatives."""
    assert look_of("teacher_positive", 5) == look_of("teacher_positive", 0)
    assert len({look_of(name, place).colour for place, name in enumerate(REPORT["sources"])}) == 4
    assert label_of("student_0.7") == "student samples, T = 0.7"
