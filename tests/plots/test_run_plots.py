"""The pictures of a training run, read back from their figures."""

import pytest

from qcrd_trl.plots.runs import accuracies_of, interval_of, plot_accuracies, plot_losses, save_run_plots, series_of
from qcrd_trl.run_log import SCORE_BINS, SOURCES, RunLog


def entry(step, **more):
    parts = {"loss": 3.0 - step, "loss/label": 2.0, "loss/positive": 2.5, "loss/negative": -0.5}
    parts |= {"loss/discriminator": -0.1, "nll/label": 2.0, "nll/positive": 2.5, "nll/negative": 3.5}
    parts |= {"negatives/beyond_margin": 0.25, "quality/positive": 0.75, "quality/negative": 0.25}
    return {"step": step, "epoch": step / 2, **parts, **more}


HISTORY = [
    {"step": 0, "negatives/iteration": 0},
    entry(1),
    {"step": 1, "eval_loss": 2.0, "eval_loss/positive": 0.0, "eval_nll/label": 1.5},
    {"step": 2, "negatives/iteration": 1},
    entry(2),
    {"step": 2, "train_loss": 1.0},
]
ACCURACIES = [
    {"step": 1, "eval_label_accuracy": 0.5, "eval_answer_accuracy": 0.0, "eval_accuracy_questions": 10},
    {"step": 2, "eval_label_accuracy": 1.0, "eval_answer_accuracy": 0.25, "eval_agreement": 0.5, "eval_questions": 10},
]


def lines(axes):
    """Name in the legend to (steps, values); grid lines of the refreshes are left out."""
    return {
        line.get_label(): (list(line.get_xdata()), [round(y, 6) for y in line.get_ydata()])
        for line in axes.lines
        if not line.get_label().startswith("_") and len(line.get_xdata())
    }


def is_labelled(axes):
    return all((axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_legend()))


def test_losses():
    """A part under the name of another, or at another step, would tell of a run that there never was."""
    loss, token, quality, margin = plot_losses(HISTORY, "A title").axes
    assert all(map(is_labelled, (loss, token, quality, margin)))
    assert lines(loss) == {
        "total, weighted": ([1, 2], [2.0, 1.0]),
        "label": ([1, 2], [2.0, 2.0]),
        "positives": ([1, 2], [2.5, 2.5]),
        "negatives": ([1, 2], [-0.5, -0.5]),
        "discriminator": ([1, 2], [-0.1, -0.1]),
        "total, weighted, held out": ([1], [2.0]),
    }
    assert lines(token)["label, held out"] == ([1], [1.5])
    assert lines(token)["negatives"] == ([1, 2], [3.5, 3.5])
    assert lines(quality) == {"positives": ([1, 2], [0.75, 0.75]), "negatives": ([1, 2], [0.25, 0.25])}
    assert lines(margin) == {"negatives": ([1, 2], [25.0, 25.0])}
    assert margin.get_ylim()[0] < 0 < 100 < margin.get_ylim()[1]
    assert token.get_ylim() == pytest.approx((0, 1.06 * 3.5))  # a flat line along the top is seen whole too
    marks = [line.get_xdata()[0] for line in margin.lines if list(line.get_ydata()) == [0, 1]]
    assert marks == [0, 2]
    assert any("new negatives" in text.get_text() for text in margin.get_legend().get_texts())


def test_only_what_was_logged_is_drawn():
    """A label-only run has no rationales: empty axes would look like a fault."""
    (axes,) = plot_losses([{"step": 1, "loss": 1.0, "loss/label": None}, {"step": 2, "loss": float("nan")}], "t").axes
    assert lines(axes) == {"total, weighted": ([1], [1.0])}


def test_many_entries_are_smoothed():
    """A thousand noisy entries hide where the loss goes; a mean that looks ahead would fall before its cause."""
    history = [{"step": i, "loss": float(i % 2) + (i > 500)} for i in range(1, 1001)]
    (axes,) = plot_losses(history, "t").axes
    (name, (steps, values)), = lines(axes).items()  # fmt: skip
    assert name == "total, weighted (mean of 25 entries)"
    assert (steps[0], steps[-1], len(values)) == (25, 1000, 976)
    assert max(v for s, v in zip(steps, values, strict=True) if s <= 500) < 0.6
    assert min(v for s, v in zip(steps, values, strict=True) if s >= 525) > 1.4


def test_accuracies_with_intervals():
    """Without an interval, noise of ten questions looks like progress."""
    (axes,) = plot_accuracies(ACCURACIES, "t").axes
    assert axes.get_title() == "Accuracy (10 questions, 95 % intervals)"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "label predicted", "answer of the rationale", "agreement of the two"
    ]  # fmt: skip
    label = axes.containers[0]
    assert list(label.lines[0].get_ydata()) == [50.0, 100.0]
    (segments,) = (collection.get_segments() for collection in label.lines[2])
    # Wilson for 5 of 10 and 10 of 10, z = 1.96: (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    assert [round(y, 1) for y in segments[0][:, 1]] == [23.7, 76.3]
    assert [round(y, 1) for y in segments[1][:, 1]] == [72.2, 100.0]
    assert abs(label.lines[0].get_xdata()[0] - 1) < 0.05


def test_without_the_number_of_questions():
    """An interval that is made up is worse than none; that there is none is said."""
    (axes,) = plot_accuracies([{"step": 1, "eval_label_accuracy": 0.5}], "t").axes
    assert "no intervals" in axes.get_title()
    assert not axes.containers[0].lines[2]
    assert interval_of(0.5, None) == (0.5, 0.5)


def test_a_step_that_was_evaluated_twice():
    """The student is evaluated again when training is over: a line would go up and down in one place, or back."""
    last = {"step": 1, "eval_label_accuracy": 0.5, "eval_accuracy_questions": 10}
    found = accuracies_of([*ACCURACIES, last])
    assert found == accuracies_of(ACCURACIES)
    assert found["eval"]["label_accuracy"] == [(1, 0.5, 10), (2, 1.0, 10)]


def test_several_sets_of_questions():
    """Accuracies of one set drawn among those of another would look like a jump."""
    history = [
        {"step": 1, "eval_a_label_accuracy": 0.1, "eval_b_c_label_accuracy": 0.2, "eval_b_c_accuracy_questions": 4}
    ]
    assert accuracies_of(history) == {
        "eval_a": {"label_accuracy": [(1, 0.1, None)]}, "eval_b_c": {"label_accuracy": [(1, 0.2, 4)]}
    }  # fmt: skip
    assert [axes.get_title()[:4] for axes in plot_accuracies(history, "t").axes] == ["a (n", "b_c "]
    assert accuracies_of([{"step": 1, "eval_mean_token_accuracy": 0.5, "eval_label_accuracy": "x"}]) == {}


def test_series_leave_out_what_is_no_number():
    """A null, a text or True would stop the picture of a whole run."""
    history = [{"step": i, "a": value} for i, value in enumerate([1, None, "x", True, float("inf"), 2.5])]
    assert series_of(history, ["a", "b"]) == {"a": [(0, 1), (5, 2.5)]}


@pytest.mark.parametrize("everything", [True, False])
def test_pictures_of_what_there_is(tmp_path, everything):
    """A picture of nothing, or a missing one, would both be taken for a result."""
    counts = {source: [3, *[0] * (SCORE_BINS - 2), 1] for source in SOURCES}
    selection = {
        "report": {
            "rows": {"yield": 0.75, "out": 4, "with_positive": 3},
            "agreement": {"mean_majority_share_of_votes": 0.5},
            "gold": {"majority_equals_gold": None, "share_of_samples": 0.25},
            "positives_per_question": {"0": 1, "2": 3},
            "negatives_per_question": {"1": 4},
        },
        "shares": [0, 0, 0, 0, 0, 1, 0, 0, 0, 3],
    }
    if everything:
        run = RunLog(HISTORY + ACCURACIES, 2, {"iteration": 1, "counts": counts}, selection)
    else:
        run = RunLog(
            [{"step": 2, "train_loss": 1.0}], 2, {"iteration": 0, "counts": {source: [0] for source in SOURCES}}
        )
    drawn = save_run_plots(run, tmp_path / "plots", "my-run")
    expected = ["accuracy.png", "losses.png", "quality.png", "selection.png"] if everything else []
    assert sorted(path.name for path in drawn) == expected
    assert sorted(path.name for path in tmp_path.glob("plots/*")) == expected
