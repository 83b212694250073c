"""A picture of C2KD's router: which layer of the teacher it chose, over the steps and in all."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..errors import DataError
from .style import LOOKS, dress, new_figure, save_figure


_LAYER = re.compile(r"router/layer_(\d+)")
_MOST_BARS = 40


def router_shares(history: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[int, list[float]]]:
    """
    What a run's log holds of the router.

    Args:
        history (`list[dict]`): the trainer's log. An entry of training has a share `router/layer_L` for each candidate layer.

    Returns:
        `tuple[list[int], dict[int, list[float]]]`: the steps, and by layer the share of the samples that it was chosen for, in
            [0, 1], since the entry before. A layer that an entry does not name has 0 there.
    """
    steps, found = [], []
    for entry in history:
        shares = {int(m[1]): float(value) for name, value in entry.items() if (m := _LAYER.fullmatch(name))}
        if shares:
            steps.append(int(entry["step"]))
            found.append(shares)
    layers = sorted({layer for shares in found for layer in shares})
    return steps, {layer: [shares.get(layer, 0.0) for shares in found] for layer in layers}


def plot_router(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """
    Draws which candidate layers the router chose: a histogram of the steps, and what it comes to over all of them.

    Args:
        history (`list[dict]`): the trainer's log, see [`router_shares`].
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in two axes. Many entries are put together into at most 40 bars, each the mean of its entries
            weighted by the steps that they stand for.

    Raises:
        [`DataError`]: if the log holds nothing of the router.
    """
    steps, shares = router_shares(history)
    if not steps:
        raise DataError(
            "The log has no entry `router/layer_L`: the router runs where feature_distillation is 'router'."
        )
    weights = np.diff([0, *steps]).astype(float)  # an entry stands for the steps since the one before
    weights = np.where(weights > 0, weights, 1.0)  # a run that was resumed may log a step again
    width = -(-len(steps) // _MOST_BARS)
    starts = range(0, len(steps), width)
    ends = [steps[min(start + width, len(steps)) - 1] for start in starts]
    edges = [0, *ends]
    figure, (over_steps, in_all) = new_figure(1, 2, title, size=(10.4, 4.4))
    below = np.zeros(len(starts))
    totals = {}
    for place, (layer, values) in enumerate(shares.items()):
        look, values = LOOKS[place % len(LOOKS)], 100 * np.asarray(values)
        heights = np.asarray([np.average(values[s : s + width], weights=weights[s : s + width]) for s in starts])
        over_steps.bar(
            edges[:-1], heights, np.maximum(np.diff(edges), 0), bottom=below, align="edge", color=look.colour,
            hatch=look.hatch, edgecolor="white", linewidth=0.4, label=f"layer {layer}",
        )  # fmt: skip
        below = below + heights
        totals[layer] = float(np.average(values, weights=weights))
        in_all.bar(place, totals[layer], 0.7, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.6)
        in_all.annotate(
            f"{totals[layer]:.1f}",
            (place, totals[layer]),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
        )
    over_steps.set_xlim(0, ends[-1])
    over_steps.set_ylim(0, 100)
    over_steps.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=4, columnspacing=1.2)
    in_all.set_xticks(range(len(totals)), [str(layer) for layer in totals])
    in_all.set_ylim(0, 110)
    in_all.set_yticks(range(0, 101, 20))
    dress(over_steps, "Chosen layer, over training", "optimizer step", "samples, %")
    dress(in_all, "Chosen layer, whole run", "candidate layer of the teacher", "samples, %")
    return figure


def save_router_plot(history: Sequence[Mapping[str, Any]], path: Path, name: str) -> Path | None:
    """
    Draws the router of a run.

    Args:
        history (`list[dict]`): the trainer's log.
        path (`Path`): the PNG file; its folder is made.
        name (`str`): what the title calls the run.

    Returns:
        `Path`: the picture; `None` where the log holds nothing of a router.
    """
    if not router_shares(history)[0]:
        return None
    save_figure(lambda: plot_router(history, f"{name}: layer of the teacher that the router chose"), Path(path))
    return Path(path)
