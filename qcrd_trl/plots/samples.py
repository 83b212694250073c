"""Pictures of a samples file and of what was selected from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from .style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    Look,
    dress,
    new_figure,
    stacked_bars,
    whole_numbers,
)


_MOST_BARS = 16
_MOST_LENGTHS = 40
_OUTCOMES = {
    "right": ("majority is the label", Look(BLUE)),
    "wrong": ("majority is not the label", Look(ORANGE, hatch="//")),
    "unlabelled": ("majority, no label given", Look(SKY, hatch="..")),
    "tie": ("tie", Look(PALE, hatch="xx")),
}
_STATUS_COLOURS = {"answer read": BLUE, "no answer read": ORANGE}


def plot_samples(report: Mapping[str, Any], title: str) -> Figure:
    """
    Draws a report of samples: agreement, votes, lengths and statuses.

    Args:
        report (`Mapping`): what [`~qcrd_trl.sampling.sample_report.SamplesReport.as_dict`] returns.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in four axes.
    """
    figure, (agreement, votes, lengths, statuses) = new_figure(2, 2, title)
    _agreement(agreement, report["agreement"])
    _votes(votes, report)
    _length_histogram(lengths, report["lengths"])
    _statuses(statuses, report)
    return figure


def plot_selection(report: Mapping[str, Any], shares: Sequence[int], title: str) -> Figure:
    """
    Draws a report of a selection: positives and negatives a question, how far they agree, and its main shares.

    Args:
        report (`Mapping`): what [`~qcrd_trl.sampling.report.SelectionReport.as_dict`] returns.
        shares (`list[int]`): questions by the share of their kept rationales that are positives: of ten equal bins from 0 to
            100 %, the last with 100 %.
        title (`str`): title of the picture.

    Returns:
        `Figure`: the picture, in three axes.
    """
    figure, (counts, kept, main) = new_figure(1, 3, title, size=(15.6, 4.4))
    grouped_bars(
        counts,
        {
            "positives (m)": (Look(BLUE), report["positives_per_question"]),
            "negatives (k)": (Look(ORANGE, hatch="//"), report["negatives_per_question"]),
        },
    )
    dress(counts, "Rationales a question", "rationales of the question", "questions")
    kept.bar([10 * i + 5 for i in range(10)], shares, 9.2, color=BLUE)
    kept.set_xticks(range(0, 101, 20))
    whole_numbers(kept.yaxis)
    dress(kept, "Agreement of the rationales kept", "positives among a question's rationales, %", "questions")
    _main_shares(main, report)
    return figure


def grouped_bars(axes: Any, series: Mapping[str, tuple[Look, Mapping[str, int]]]) -> None:
    """
    Draws distributions of small whole numbers side by side. Many values are put together into equal bins.

    Args:
        axes (`Axes`): the axes.
        series (`dict[str, tuple[Look, dict[str, int]]]`): by its name in the legend, how often each number occurs.
    """
    largest = max((int(size) for _, sizes in series.values() for size in sizes), default=0)
    width = -(-(largest + 1) // _MOST_BARS)
    bins = range(0, largest + 1, width)
    bar = 0.8 / len(series)
    for place, (name, (look, sizes)) in enumerate(series.items()):
        heights = [sum(n for size, n in sizes.items() if start <= int(size) < start + width) for start in bins]
        shift = (place - (len(series) - 1) / 2) * bar
        axes.bar(
            [i + shift for i in range(len(bins))], heights, bar, label=name, color=look.colour, hatch=look.hatch,
            edgecolor="white", linewidth=0.6,
        )  # fmt: skip
    names = [str(start) if width == 1 else f"{start}–{start + width - 1}" for start in bins]
    axes.set_xticks(range(len(bins)), names, rotation=0 if width == 1 else 45)
    whole_numbers(axes.yaxis)
    axes.set_ylim(top=1.15 * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncols=2)  # over the bars


def _agreement(axes: Any, agreement: Mapping[str, Any]) -> None:
    bins = agreement["bins"]
    names = ["no vote", *(f"≤ {name.partition('-')[2]}" for name in list(bins)[:-2]), "< 100", "100"]
    series = {
        label: (look, [0, *(bins[name][outcome] for name in bins)]) for outcome, (label, look) in _OUTCOMES.items()
    }
    series["no vote"] = (Look(GREY), [agreement["questions_without_votes"], *[0] * len(bins)])
    stacked_bars(axes, names, series)
    handles, labels = axes.get_legend_handles_labels()
    shown = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label != "no vote"]
    if shown:
        axes.legend(*zip(*shown, strict=True), loc="upper left", ncols=2, columnspacing=1)
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])  # room for the legend over the bars
    dress(axes, "Agreement of the votes", "share of the votes that the most frequent answer has, %", "questions")


def _votes(axes: Any, report: Mapping[str, Any]) -> None:
    votes = report["votes_per_question"]
    reference = "the label" if votes["reference"] == "label" else "the majority"
    grouped_bars(
        axes,
        {
            f"for {reference}": (Look(BLUE), votes["for_reference"]),
            "for other answers": (Look(ORANGE, hatch="//"), votes["for_others"]),
        },
    )
    whose = "with a label" if votes["reference"] == "label" else "with a majority"
    dress(axes, f"Votes a question (questions {whose})", "samples of the question", "questions")


def _length_histogram(axes: Any, lengths: Mapping[str, Any]) -> None:
    unit = "tokens" if lengths["tokens"] else "characters"
    found = lengths[unit]
    if found is None:
        axes.text(0.5, 0.5, "no sample has a text", ha="center", va="center", transform=axes.transAxes)
    else:
        sizes = [int(size) for size in found["histogram"]]
        # a few very long texts must not press all others into one bar
        width = -(
            -(min(max(sizes), int(found["p95"] * 1.6)) + 1) // _MOST_LENGTHS
        )  # whole, or bars hold unequal ranges
        end = width * min(_MOST_LENGTHS, max(sizes) // width + 1)
        axes.hist(
            [min(size, end - 1) for size in sizes], bins=range(0, end + 1, width),
            weights=list(found["histogram"].values()), color=SKY, edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        axes.axvline(found["median"], color=BLACK, linewidth=1.5, label=f"median {found['median']:,.0f}")
        axes.axvline(
            found["p95"], color=VERMILION, linewidth=1.5, linestyle="--", label=f"95 % up to {found['p95']:,}"
        )
        beyond = sum(count for size, count in found["histogram"].items() if int(size) >= end)
        if beyond:
            axes.plot([], [], " ", label=f"last bar: {beyond:,} longer too")
        axes.legend()
        axes.set_xlim(0, end)
        whole_numbers(axes.yaxis)
        whole_numbers(axes.xaxis)
    dress(axes, "Length of the samples", f"length of a sample, {unit}", "samples")


def _statuses(axes: Any, report: Mapping[str, Any]) -> None:
    answers = report["answers"]
    counts = {"answer read": answers["voting"], "no answer read": answers["without_answer"]}
    counts |= {f"not usable: {reason.replace('_', ' ')}": n for reason, n in answers["not_usable"].items()}
    counts |= {status: n for status, n in report["statuses"].items() if status != "ok"}
    names = list(counts)
    colours = [_STATUS_COLOURS.get(name, VERMILION) for name in names]
    axes.barh(range(len(names)), list(counts.values()), 0.7, color=colours)
    _name_rows(axes, names)
    largest = max([1, *counts.values()])
    for place, count in enumerate(counts.values()):
        share = f" ({100 * (count / report['samples']):.1f} %)" if report["samples"] else ""
        axes.annotate(f"{count:,}{share}", (count, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, largest * 1.4)
    whole_numbers(axes.xaxis)
    dress(axes, "What became of the samples", "samples", "status", grid="x")


def _main_shares(axes: Any, report: Mapping[str, Any]) -> None:
    gold = report["gold"]
    shares = {
        "questions with\na positive": report["rows"]["yield"],
        "votes for the most\nfrequent answer, mean": report["agreement"]["mean_majority_share_of_votes"],
        "majorities that\nare the label": gold["majority_equals_gold"],
        "samples that\nreach the label": gold["share_of_samples"],
    }
    shares = {name: share for name, share in shares.items() if share is not None}
    axes.barh(range(len(shares)), [100 * share for share in shares.values()], 0.6, color=GREEN)
    _name_rows(axes, list(shares))
    for place, share in enumerate(shares.values()):
        axes.annotate(
            f"{100 * share:.1f}", (100 * share, place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    dress(axes, "Main shares", "share, %", "measure", grid="x")


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
