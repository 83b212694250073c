"""The picture of the router, read back from its figure."""

import pytest

from qcrd_trl.errors import DataError
from qcrd_trl.plots.router import plot_router, router_shares, save_router_plot


def entry(step, **shares):
    return {"step": step, "loss": 1.0, **{f"router/{name}": share for name, share in shares.items()}}


HISTORY = [
    entry(10, layer_4=1.0, layer_6=0.0),
    {"step": 10, "eval_loss": 2.0},
    entry(40, layer_4=0.2, layer_6=0.8),
]


def bars(axes):
    return [[(p.get_x(), p.get_width(), p.get_y(), p.get_height()) for p in group] for group in axes.containers]


def test_shares_of_a_log():
    """A layer sorted as text would put 10 before 4, and an entry of an evaluation is no step of the router."""
    steps, shares = router_shares([*HISTORY, entry(50, layer_10=1.0)])
    assert steps == [10, 40, 50]
    assert list(shares.items()) == [(4, [1.0, 0.2, 0.0]), (6, [0.0, 0.8, 0.0]), (10, [0.0, 0.0, 1.0])]


def test_histogram_over_steps():
    """Bars of equal width would give ten steps the weight of thirty, as would a plain mean for the whole run."""
    over_steps, in_all = plot_router(HISTORY, "A title").axes
    assert bars(over_steps) == [
        [(0, 10, 0, 100), (10, 30, 0, 20)],
        [(0, 10, 100, 0), (10, 30, 20, 80)],
    ]
    assert [text.get_text() for text in over_steps.get_legend().get_texts()] == ["layer 4", "layer 6"]
    heights = [group[0][3] for group in bars(in_all)]
    assert heights == [pytest.approx(40), pytest.approx(60)]  # (10 * 100 + 30 * 20) / 40
    assert [tick.get_text() for tick in in_all.get_xticklabels()] == ["4", "6"]
    assert all((axes.get_title() and axes.get_xlabel() and axes.get_ylabel()) for axes in (over_steps, in_all))


def test_many_entries_share_bars():
    """A thousand bars of a pixel each are no histogram; put together they must still sum to all samples."""
    history = [entry(i, layer_1=i % 2, layer_2=1 - i % 2) for i in range(1, 1001)]
    over_steps, _ = plot_router(history, "t").axes
    first, second = bars(over_steps)
    assert len(first) == 40
    assert all(a[3] + b[3] == pytest.approx(100) for a, b in zip(first, second, strict=True))
    assert first[0][3] == pytest.approx(100 * 13 / 25)


def test_nothing_of_a_router(tmp_path):
    """A baseline has no router: an empty picture would look like a fault of its run."""
    assert save_router_plot([{"step": 1, "loss": 1.0}], tmp_path / "router.png", "run") is None
    assert not (tmp_path / "router.png").exists()
    with pytest.raises(DataError, match="router/layer_L"):
        plot_router([], "t")


def test_the_file(tmp_path):
    """The same log gives the same bytes, in a folder that is made."""
    first = save_router_plot(HISTORY, tmp_path / "plots" / "router.png", "run")
    content = first.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert save_router_plot(HISTORY, first, "run").read_bytes() == content
