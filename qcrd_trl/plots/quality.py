"""Pictures of how a discriminator scores rationales, by who wrote them."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from .style import BLACK, LOOKS, Look, dress, new_figure


NAMES = {
    "teacher_positive": "teacher positives",
    "teacher_negative": "teacher negatives",
    "student_sample": "student samples",
}
_MOST_BARS = 25


def plot_densities(counts: Mapping[str, Sequence[int]], title: str) -> Figure:
    """
    Draws how scores are distributed, by source.

    Args:
        counts (`dict[str, list[int]]`): of each source, how many scores lie in each of some equal bins from 0 to 1.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in one axes.
    """
    figure, (axes,) = new_figure(1, 1, title, size=(7.2, 4.6))
    draw_densities(axes, counts)
    return figure


def plot_quality(report: Mapping[str, Any], title: str) -> Figure:
    """
    Draws the densities of a report of rationale quality, beside what they are worth: the area under each ROC curve.

    Args:
        report (`Mapping`): what [`~qcrd_trl.rationale_quality.QualityReport.as_dict`] returns.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in one axes.
    """
    aucs = {name: found["auc"] for name, found in report["against"].items()}
    counts = {name: source["histogram"] for name, source in report["sources"].items() if source["scored"]}
    figure, (axes,) = new_figure(1, 1, title, size=(7.2, 4.8))
    draw_densities(axes, counts, {name: f", AUC {auc:.3f}" for name, auc in aucs.items() if auc is not None})
    return figure


def plot_reliability(report: Mapping[str, Any], title: str) -> Figure:
    """
    Draws the reliability diagram of a report of rationale quality: what the scores foretell, and what comes of it.

    Args:
        report (`Mapping`): what [`~qcrd_trl.rationale_quality.QualityReport.as_dict`] returns.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in two axes: the diagram, and how the scores are spread over its bins.
    """
    found = {name: part for name, part in report["against"].items() if part["reliability"]}
    figure, (diagram, weights) = new_figure(1, 2, title, size=(11.4, 4.9))
    diagram.plot([0, 1], [0, 1], color=BLACK, linewidth=1, linestyle="--", label="calibrated")
    width = 0.8 / max(1, len(found))
    for place, (name, part) in enumerate(found.items()):
        look, bins = look_of(name, list(report["sources"]).index(name)), part["reliability"]
        points = [(one["mean_score"], one["share_positive"]) for one in bins if one["weight"]]
        diagram.plot(
            *zip(*points, strict=True), color=look.colour, linestyle=look.dash, marker=look.marker, linewidth=1.8,
            label=f"against {label_of(name)}, ECE {part['expected_calibration_error']:.3f}",
        )  # fmt: skip
        shift = (place - (len(found) - 1) / 2) * width
        weights.bar(
            [i + 0.5 + shift for i in range(len(bins))], [100 * one["weight"] for one in bins], width,
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.4, label=label_of(name),
        )  # fmt: skip
    size = len(next(iter(found.values()))["reliability"]) if found else 10
    weights.set_xticks(range(0, size + 1, 2), [f"{i / size:.1f}" for i in range(0, size + 1, 2)])
    diagram.set_xlim(-0.03, 1.03)  # a mark at an end is seen whole
    diagram.set_ylim(-0.03, 1.03)
    diagram.set_aspect("equal")
    diagram.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.16))
    if found:
        weights.legend(loc="upper left", bbox_to_anchor=(0, -0.16))
    dress(diagram, "Reliability", "mean score of a bin", "positives in the bin, share", grid="both")
    dress(weights, "Where the scores lie (half positives, half others)", "score of the discriminator", "share, %")
    return figure


def draw_densities(axes: Any, counts: Mapping[str, Sequence[int]], notes: Mapping[str, str] | None = None) -> None:
    """
    Draws histograms of unit area over scores from 0 to 1.

    Args:
        axes (`Axes`): the axes.
        counts (`dict[str, list[int]]`): of each source, how many scores lie in each of some equal bins from 0 to 1.
        notes (`dict[str, str]`, *optional*): what the legend says behind a source's name.
    """
    highest = 0.0
    for place, (name, given) in enumerate(counts.items()):
        total = sum(given)
        if not total:
            continue
        size = -(-len(given) // _MOST_BARS)
        bars = [sum(given[start : start + size]) for start in range(0, len(given), size)]
        edges = [min(1.0, i * size / len(given)) for i in range(len(bars) + 1)]
        heights = [count / total / (high - low) for count, low, high in zip(bars, edges[:-1], edges[1:], strict=True)]
        look = look_of(name, place)
        label = f"{label_of(name)} ({total:,}{(notes or {}).get(name, '')})"
        axes.stairs(heights, edges, color=look.colour, fill=True, alpha=0.15)
        axes.stairs(heights, edges, color=look.colour, linestyle=look.dash, linewidth=2, label=label)
        highest = max(highest, *heights)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.05 * highest if highest else 1)
    if highest:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.07), ncols=2)  # over the axes: a peak may be anywhere
    dress(axes, "Density of the quality scores", "score of the discriminator", "density", grid="both")


def look_of(name: str, place: int) -> Look:
    """The same source looks the same in every picture."""
    order = list(NAMES)
    return LOOKS[order.index(name) if name in order else place % len(LOOKS)]


def label_of(name: str) -> str:
    """How a legend calls a source."""
    if name in NAMES:
        return NAMES[name]
    temperature = name.removeprefix("student_")
    return f"student samples, T = {temperature}" if temperature != name else name.replace("_", " ")
