"""The pictures of samples and selections, read back from their figures."""

import pytest

from qcrd_trl.data.sources import Rows
from qcrd_trl.plots.samples import grouped_bars, plot_samples, plot_selection
from qcrd_trl.plots.style import LOOKS, house_style, new_figure, save_figure
from qcrd_trl.sampling.questions import find_columns
from qcrd_trl.sampling.sample_report import SamplesReport
from qcrd_trl.sampling.sample_rows import samples_of_rows


ROWS = [
    {"id": "a", "label": "3", "rationales": ["So 3.", "So 3.", "So 4."]},
    {"id": "b", "label": "5", "rationales": ["So 6.", {"text": "So", "status": "truncated"}]},
    {"id": "c", "label": "1", "rationales": ["So 1.", "So 2."]},
    {"id": "d", "label": "1", "rationales": ["no idea", {"text": None, "status": "failed"}]},
]


def report_of(rows):
    report, source = SamplesReport("number"), Rows("rows", lambda: rows)
    for question, sample in samples_of_rows(source, find_columns(source, "number")):
        report.add(question, sample)
    return report.as_dict()


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def is_labelled(axes):
    return all((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_samples():
    """Bars of one series under the name of another would show a teacher that is always right."""
    agreement, votes, lengths, statuses = plot_samples(report_of(ROWS), "A title").axes
    assert all(map(is_labelled, (agreement, votes, lengths, statuses)))
    names = [tick.get_text() for tick in agreement.get_xticklabels()]
    assert names == ["no vote", "≤ 20", "≤ 40", "≤ 60", "≤ 80", "< 100", "100"]
    right, wrong, tie, none = (heights(agreement)[i : i + 7] for i in (0, 7, 14, 21))
    assert legend_of(agreement) == ["majority is the label", "majority is not the label", "tie"]
    assert right == [0, 0, 0, 0, 1, 0, 0]  # a: 2 of 3
    assert wrong == [0, 0, 0, 0, 0, 0, 1]  # b: its one vote
    assert tie == [0, 0, 0, 1, 0, 0, 0]  # c: 1 of 2
    assert none == [1, 0, 0, 0, 0, 0, 0]  # d
    assert legend_of(votes) == ["for the label", "for other answers"]
    assert heights(votes) == [2, 1, 1, 1, 3, 0]  # b and d 0, c 1, a 2; d 0, a, b and c 1
    assert "characters" in lengths.get_xlabel()
    assert sum(heights(lengths)) == 8  # all but the failed one
    assert [tick.get_text() for tick in statuses.get_yticklabels()] == [
        "answer read", "no answer read", "truncated", "empty", "filtered", "failed"
    ]  # fmt: skip
    assert [bar.get_width() for bar in statuses.patches] == [6, 1, 1, 0, 0, 1]
    assert statuses.texts[0].get_text() == "6 (66.7 %)"


def test_a_very_long_sample_does_not_hide_the_others():
    """One run-on text of 100,000 characters would press all others into the first bar."""
    rows = [{"id": str(i), "rationales": ["x" * (50 + i)]} for i in range(100)] + [
        {"id": "long", "rationales": ["x" * 100_000]}
    ]
    lengths = plot_samples(report_of(rows), "t").axes[2]
    assert lengths.get_xlim()[1] < 300
    assert sum(heights(lengths)) == 101
    assert any("1 longer" in text for text in legend_of(lengths))


def test_tokens_where_the_teacher_counts_them():
    """Characters say little about a price or a limit that is in tokens."""
    row = {"id": "a", "text": "So 3.", "usage": {"completion_tokens": 4}}
    assert "tokens" in plot_samples(report_of([row]), "t").axes[2].get_xlabel()


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": "a", "rationales": []}],
        [{"id": "a", "text": None, "status": "failed", "sample_index": 0}],
        [{"id": "a", "text": "", "status": "empty", "sample_index": 0}],
    ],
)
def test_nothing_to_draw(tmp_path, rows):
    """A run in which every request failed is when a report is wanted most."""
    save_figure(lambda: plot_samples(report_of(rows), "t"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_selection():
    """m and k exchanged would show a set of negatives."""
    report = {
        "rows": {"yield": 0.75},
        "agreement": {"mean_majority_share_of_votes": 0.5},
        "gold": {"majority_equals_gold": None, "share_of_samples": 0.25},
        "positives_per_question": {"0": 1, "2": 3},
        "negatives_per_question": {"1": 4},
    }
    with house_style():
        counts, kept, main = plot_selection(report, [0, 0, 0, 0, 0, 1, 0, 0, 0, 3], "t").axes
    assert all(map(is_labelled, (counts, kept, main)))
    assert legend_of(counts) == ["positives (m)", "negatives (k)"]
    assert heights(counts) == [1, 0, 3, 0, 4, 0]
    assert heights(kept) == [0, 0, 0, 0, 0, 1, 0, 0, 0, 3]
    assert [bar.get_width() for bar in main.patches] == [75, 50, 25]


def test_many_values_are_put_together():
    """64 samples a question: 65 pairs of bars cannot be told apart."""
    _, (axes,) = new_figure(1, 1)
    grouped_bars(axes, {"a": (LOOKS[0], {str(size): 1 for size in range(65)})})
    assert heights(axes) == [5] * 13
    assert axes.get_xticklabels()[1].get_text() == "5–9"
