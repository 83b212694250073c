"""What is drawn of a recommender's training run."""

from qcrd_trl.plots.runs import plot_losses, save_run_plots
from qcrd_trl.run_log import RunLog


HISTORY = [
    {"step": 1, "loss": 3.0, "loss/task": 2.0, "loss/feature": 1.0, "loss/logit": 0.5, "router/layer_4": 1.0},
    {"step": 1, "eval_loss": 1.5, "eval_ndcg@10": 0.1},
    {"step": 2, "loss": 2.0, "loss/task": 1.5, "loss/feature": 0.5, "loss/logit": 0.25, "router/layer_4": 0.5},
]


def test_parts_and_the_loss_held_out():
    """Held-out rows are measured by the task alone: drawn as the total, they would seem to say that the student underfits."""
    (axes,) = plot_losses(HISTORY, "t").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}
    assert drawn == {
        "total, weighted": [3.0, 2.0],
        "task": [2.0, 1.5],
        "features": [1.0, 0.5],
        "logits": [0.5, 0.25],
        "task, held out": [1.5],
    }


def test_the_router_is_drawn_of_a_run_that_has_one(tmp_path):
    """A run without a router would else end with an error, or an empty picture."""
    with_router = save_run_plots(RunLog(HISTORY, 2), tmp_path, "run")
    assert [path.name for path in with_router] == ["losses.png", "router.png"]
    without = save_run_plots(RunLog([{"step": 1, "loss": 1.0}], 1), tmp_path / "none", "run")
    assert [path.name for path in without] == ["losses.png"]
