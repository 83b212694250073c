"""The demo's picture: how the parts of the loss fall, and what the students can do in the end."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..plots.style import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION, dress, new_figure, save_figure


COLOURS = {"label_only": ORANGE, "dss": BLUE, "qcrd": VERMILION}
DASHES = {"label_only": ":", "dss": "--", "qcrd": "-"}
HATCHES = {"label_only": "..", "dss": "//", "qcrd": ""}
MEASURES = {
    "label_accuracy": "label\npredicted",
    "answer_accuracy": "answer of\nrationale",
    "steps_right": "every step\nright",
}


def plot_demo(
    methods: Mapping[str, Mapping[str, Any]],
    baseline: float,
    title: str,
    path: str | os.PathLike,
) -> None:
    """
    Draws the losses and the accuracies of the demo and saves them as a PNG.

    Args:
        methods (`Mapping[str, Mapping]`):
            Of each method, each of `MEASURES` as `{"value": share, "standard_error": share}`, or `None` where it was not
            taught, and `history`, the logged steps with the parts of the loss.
        baseline (`float`):
            Share of the questions that the most frequent answer is right for.
        title (`str`):
            Title of the picture.
        path (`str` or `os.PathLike`):
            Where to save it.
    """
    save_figure(lambda: _draw(methods, baseline, title), Path(path))


def _draw(methods: Mapping[str, Mapping[str, Any]], baseline: float, title: str) -> Figure:
    figure, (label, rationale, accuracy) = new_figure(1, 3, title, size=(13, 4.6))
    for method, outcome in methods.items():
        history = outcome["history"]
        _line(label, history, "nll/label", method, color=COLOURS[method], linestyle=DASHES[method])
        name = f"{method}, positives" if _has(history, "nll/negative") else method
        _line(rationale, history, "nll/positive", name, color=COLOURS[method], linestyle=DASHES[method])
        _line(rationale, history, "nll/negative", f"{method}, negatives", color=BLACK, linestyle="-.")
        _line(rationale, history, "loss/discriminator", f"{method}, discriminator (nats)", color=GREEN, linestyle=":")
    _finish(label, "Loss of the label (training)", "nats per token")
    _finish(rationale, "Losses of the rationales (training)", "nats per token")
    _bars(accuracy, methods, baseline)
    return figure


def _has(history: Sequence[Mapping[str, float]], name: str) -> bool:
    return any(name in entry for entry in history)


def _line(axes, history: Sequence[Mapping[str, float]], name: str, label: str, **style: Any) -> None:
    points = [(entry["step"], entry[name]) for entry in history if name in entry]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, linewidth=2, **style)


def _finish(axes, title: str, unit: str) -> None:
    dress(axes, title, "step", unit, grid="both")
    axes.set_ylim(bottom=0)
    axes.legend()


def _bars(axes, methods: Mapping[str, Mapping[str, Any]], baseline: float) -> None:
    width = 0.8 / len(methods)
    for place, (method, measures) in enumerate(methods.items()):
        for group, name in enumerate(MEASURES):
            x = group + (place - (len(methods) - 1) / 2) * width
            measured = measures[name]
            if measured is None:
                axes.text(
                    x,
                    2,
                    "not taught",
                    rotation=90,
                    ha="center",
                    va="bottom",
                    fontsize=9,
                    color=GREY,
                    backgroundcolor="white",
                )
                continue
            value, error = 100 * measured["value"], 100 * measured["standard_error"]
            axes.bar(
                x,
                value,
                width,
                yerr=error,
                capsize=3,
                color=COLOURS[method],
                hatch=HATCHES[method],
                edgecolor="white",
                label=method if group == 0 else None,
            )
            axes.text(x, value + error + 1, f"{value:.0f}", ha="center", va="bottom", fontsize=9)
    axes.axhline(100 * baseline, color=GREY, linewidth=1, linestyle="--", label="most frequent answer")
    axes.set_title("Held-out questions (± one standard error)")
    axes.set_xticks(range(len(MEASURES)), MEASURES.values())
    axes.set_ylabel("right, %")
    axes.set_ylim(0, 128)
    axes.set_yticks(range(0, 101, 20))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[1:] + handles[:1], labels[1:] + labels[:1], ncols=2, loc="upper left")
