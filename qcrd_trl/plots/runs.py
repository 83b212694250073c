"""Pictures of a training run: its losses, what the discriminator makes of rationales, and accuracies."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..run_log import RunLog
from ..statistics import wilson_interval
from .quality import plot_densities
from .router import plot_router, router_shares
from .samples import plot_selection
from .style import (
    BLACK,
    BLUE,
    GREEN,
    LOOKS,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    dress,
    new_figure,
    save_figure,
)


_TOTAL, _LABEL, _POSITIVE = Look(BLACK, "-", "P"), Look(GREEN, "-.", "^"), Look(BLUE, "-", "o")
_NEGATIVE, _DISCRIMINATOR = Look(ORANGE, "--", "s"), Look(VERMILION, ":", "D")
_BLOCKS, _ORTHOGONAL = Look(PURPLE, (0, (5, 1, 1, 1, 1, 1)), "v"), Look(SKY, (0, (8, 2)), "x")
# (title, unit, factor, lowest and highest value of the axis, {what is logged: (name in the legend, look)})
_PANELS: tuple[tuple[str, str, float, tuple[float | None, float | None], dict[str, tuple[str, Look]]], ...] = (
    (
        "Loss and its parts",
        "mean over questions, or positions",
        1.0,
        (None, None),
        {
            "loss": ("total, weighted", _TOTAL),
            "loss/label": ("label", _LABEL),
            "loss/positive": ("positives", _POSITIVE),
            "loss/negative": ("negatives", _NEGATIVE),
            "loss/discriminator": ("discriminator", _DISCRIMINATOR),
            "loss/task": ("task", _LABEL),
            "loss/feature": ("features", _POSITIVE),
            "loss/logit": ("logits", _NEGATIVE),
            "loss/block_task": ("task at the blocks' ends", _BLOCKS),
            "loss/orthogonal": ("orthogonality", _ORTHOGONAL),
        },
    ),
    (
        "Token losses",
        "nats per token",
        1.0,
        (0, None),
        {
            "nll/label": ("label", _LABEL),
            "nll/positive": ("positives", _POSITIVE),
            "nll/negative": ("negatives", _NEGATIVE),
        },
    ),
    (
        "Quality scores, mean",
        "score of the discriminator",
        1.0,
        (0, 1),
        {"quality/positive": ("positives", _POSITIVE), "quality/negative": ("negatives", _NEGATIVE)},
    ),
    (
        "Negatives beyond the margin",
        "share without a gradient, %",
        100.0,
        (0, 100),
        {"negatives/beyond_margin": ("negatives", _NEGATIVE)},
    ),
)
_MEASURES = {
    "label_accuracy": ("label predicted", LOOKS[0]),
    "answer_accuracy": ("answer of the rationale", LOOKS[1]),
    "agreement": ("agreement of the two", LOOKS[2]),
}
_ACCURACY = re.compile(r"(eval(?:_.+)?)_(label_accuracy|answer_accuracy|agreement)")
_COUNTS = ("accuracy_questions", "questions")  # how many questions a share is of
_FEW_POINTS, _MANY_POINTS = 40, 120
_MOST_LINES = 40


def save_run_plots(run: RunLog, folder: Path, name: str) -> list[Path]:
    """
    Draws what a run's log holds: `losses.png`, `quality.png`, `accuracy.png`, `selection.png` and `router.png`, each if there is
    something to draw.

    Args:
        run ([`~qcrd_trl.run_log.RunLog`]): the log.
        folder (`Path`): where to save the pictures; it is made.
        name (`str`): what titles call the run.

    Returns:
        `list[Path]`: the pictures.
    """
    drawn: dict[str, Callable[[], Figure]] = {}
    history = run.log_history
    if series_of(history, [part for *_, parts in _PANELS for part in parts]):
        drawn["losses.png"] = lambda: plot_losses(history, f"{name}: training")
    if run.scores is not None and any(map(sum, run.scores["counts"].values())):
        title = f"{name}: scores while training, iteration {run.scores['iteration']}"
        drawn["quality.png"] = lambda: plot_densities(run.scores["counts"], title)
    if accuracies_of(history):
        drawn["accuracy.png"] = lambda: plot_accuracies(history, f"{name}: held-out questions")
    if router_shares(history)[0]:
        drawn["router.png"] = lambda: plot_router(history, f"{name}: layer of the teacher that the router chose")
    if run.selection is not None:
        rows = run.selection["report"]["rows"]
        title = f"{name}: training set of {rows['out']:,} questions, {rows['with_positive']:,} with a positive"
        drawn["selection.png"] = lambda: plot_selection(run.selection["report"], run.selection["shares"], title)
    for file, draw in drawn.items():
        save_figure(draw, Path(folder) / file)
    return [Path(folder) / file for file in drawn]


def plot_losses(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """
    Draws the parts of the loss over the steps, training as lines and evaluation as points.

    Args:
        history (`list[dict]`): the trainer's log.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, an axes for each kind of quantity that was logged.
    """
    panels = [panel for panel in _PANELS if series_of(history, panel[4])]
    columns = min(2, len(panels))
    figure, axes = new_figure(-(-len(panels) // columns), columns, title, size=(6.4 * columns, 4.6 * -(-len(panels) // columns)))  # fmt: skip
    for one in axes[len(panels) :]:
        one.remove()
    refreshes = _refreshes(history)
    for one, (name, unit, factor, limits, parts) in zip(axes, panels, strict=False):
        for step in refreshes:
            one.axvline(step, color=PALE, linewidth=0.8, zorder=0)
        for part, points in series_of(history, parts).items():
            label, look = parts[part]
            _line(one, points, factor, label, look)
        # Held out, a side that the rows lack is a part of exactly 0, which no line should claim.
        held_out = [f"eval_{part}" for part in parts if part == "loss" or not part.startswith("loss/")]
        for part, points in series_of(history, held_out).items():
            # A recommender is evaluated by the task's loss alone.
            of_task = part == "eval_loss" and any("loss/task" in entry for entry in history)
            label, look = parts["loss/task" if of_task else part[5:]]
            steps, values = zip(*points, strict=True)
            one.plot(
                steps, [factor * value for value in values], linestyle="none", marker=look.marker, color=look.colour,
                markerfacecolor="white", markersize=6, label=f"{label}, held out",
            )  # fmt: skip
        _mark(one, refreshes)
        # A line along an end is seen whole.
        if limits[1] is not None:
            one.set_ylim(limits[0] - 0.03 * limits[1], 1.03 * limits[1])
        elif limits[0] is not None:
            one.set_ylim(limits[0], limits[0] + (1.06 * (one.dataLim.ymax - limits[0]) or 1))
        _legend(one)
        dress(one, name, "optimizer step", unit, grid="both")
    return figure


def plot_accuracies(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """
    Draws accuracies over the steps, with 95 % intervals where the log says how many questions they are of.

    Args:
        history (`list[dict]`): the trainer's log.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, an axes for each set of questions.
    """
    found = accuracies_of(history)
    figure, axes = new_figure(1, len(found), title, size=(7.0 * len(found), 4.6))
    refreshes = _refreshes(history)
    for one, (name, measures) in zip(axes, found.items(), strict=True):
        for step in refreshes:
            one.axvline(step, color=PALE, linewidth=0.8, zorder=0)
        sizes = set()
        span = max(step for points in measures.values() for step, *_ in points) or 1
        for place, (measure, points) in enumerate(measures.items()):
            label, look = _MEASURES[measure]
            shift = (place - (len(measures) - 1) / 2) * 0.006 * span  # so that no interval hides another
            steps = [step + shift for step, *_ in points]
            values = [100 * value for _, value, _ in points]
            sizes |= {count for *_, count in points}
            ends = [interval_of(value, count) for _, value, count in points]
            errors = [
                [max(0.0, v - 100 * e[0]) for v, e in zip(values, ends, strict=True)],
                [max(0.0, 100 * e[1] - v) for v, e in zip(values, ends, strict=True)],
            ]
            one.errorbar(
                steps, values, yerr=errors if any(map(any, errors)) else None, color=look.colour, linestyle=look.dash,
                marker=look.marker, markersize=5, linewidth=1.8, elinewidth=1.2, capsize=3, label=label,
            )  # fmt: skip
        _mark(one, refreshes)
        one.set_ylim(-3, 103)
        one.set_yticks(range(0, 101, 20))
        _legend(one)
        dress(one, _subtitle(name, sizes), "optimizer step", "questions, %", grid="both")
    return figure


def series_of(
    history: Sequence[Mapping[str, Any]], names: Sequence[str] | Mapping
) -> dict[str, list[tuple[int, float]]]:
    """Of each quantity that was logged, its steps and values; what is not a number is left out."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name in names:
        points = [(entry["step"], entry[name]) for entry in history if _is_number(entry.get(name))]
        if points:
            found[name] = points
    return found


def accuracies_of(history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float, int | None]]]]:
    """
    Accuracies of a log, by set of questions (`"eval"`, `"eval_NAME"`) and measure.

    Returns:
        `dict[str, dict[str, list[tuple]]]`: of each measure its (step, share, number of questions or `None`), in the order
            of the steps. What was evaluated again at a step, as a student is when training is over, counts once.
    """
    found: dict[str, dict[str, dict[int, tuple[int, float, int | None]]]] = {}
    for entry in history:
        for key, value in entry.items():
            match = _ACCURACY.fullmatch(key)
            if match is None or not _is_number(value):
                continue
            counts = [entry.get(f"{match[1]}_{name}") for name in _COUNTS]
            count = next((int(count) for count in counts if _is_number(count) and count > 0), None)
            points = found.setdefault(match[1], {}).setdefault(match[2], {})
            points.setdefault(entry["step"], (entry["step"], value, count))
    return {
        name: {
            measure: [parts[measure][step] for step in sorted(parts[measure])]
            for measure in _MEASURES
            if measure in parts
        }
        for name, parts in found.items()
    }


def interval_of(share: float, count: int | None) -> tuple[float, float]:
    """95 % interval of a share of `count` questions; the share itself, twice, where the count is unknown."""
    return (share, share) if count is None else wilson_interval(round(share * count), count)


def _subtitle(name: str, sizes: set[int | None]) -> str:
    title = name.removeprefix("eval").removeprefix("_") or "Accuracy"
    known = sorted(size for size in sizes if size is not None)
    if not known:
        return f"{title} (number of questions unknown: no intervals)"
    return f"{title} ({' and '.join(f'{size:,}' for size in known)} questions, 95 % intervals)"


def _line(axes: Any, points: Sequence[tuple[int, float]], factor: float, label: str, look: Look) -> None:
    steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    values = factor * values
    if len(values) > _MANY_POINTS:
        width = len(values) // 40
        axes.plot(steps, values, color=look.colour, linewidth=0.8, alpha=0.25)
        smooth = np.convolve(values, np.ones(width) / width, mode="valid")
        steps, values, label = steps[width - 1 :], smooth, f"{label} (mean of {width} entries)"
    axes.plot(
        steps, values, color=look.colour, linestyle=look.dash, linewidth=1.8, label=label,
        marker=look.marker if len(values) <= _FEW_POINTS else None, markersize=3.5,
    )  # fmt: skip


def _refreshes(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Steps at which negatives were generated anew; none if they are too many to be told apart."""
    steps = sorted({entry["step"] for entry in history if "negatives/iteration" in entry})
    return steps if len(steps) <= _MOST_LINES else []


def _mark(axes: Any, refreshes: Sequence[int]) -> None:
    if refreshes:
        axes.plot([], [], color=PALE, linewidth=0.8, label="new negatives")


def _legend(axes: Any) -> None:
    """Over the axes, where it hides no line."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=3, columnspacing=1.2)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
