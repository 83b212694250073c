"""The common style of all pictures: colours, marks, labelled axes, and a PNG that is whole or not there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..files import whole_file


# Okabe and Ito's colours, which are told apart with any kind of colour vision; dashes, markers and hatches tell the same
# again, for a print in grey.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#555555"
PALE = "#BBBBBB"

DPI = 150
# What a user's own matplotlibrc could make illegible: a dark background, LaTeX that is not installed, tiny fonts.
_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.facecolor": "white",
    "axes.labelcolor": "black",
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.facecolor": "white",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.edgecolor": "white",  # hides the grid behind it
    "legend.framealpha": 0.9,
    "legend.frameon": True,
    "savefig.bbox": None,
    "savefig.transparent": False,
    "text.color": "black",
    "text.usetex": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


@dataclass(frozen=True)
class Look:
    """
    How one series is drawn, told apart by colour and again without colour.

    Args:
        colour (`str`): of lines and bars.
        dash (`str`): of lines.
        marker (`str`): of points.
        hatch (`str`): of bars.
    """

    colour: str
    dash: str = "-"
    marker: str = "o"
    hatch: str = ""


# In the order in which series take them.
LOOKS = (
    Look(BLUE, "-", "o", ""),
    Look(ORANGE, "--", "s", "//"),
    Look(GREEN, "-.", "^", ".."),
    Look(VERMILION, ":", "D", "\\\\"),
    Look(PURPLE, (0, (5, 1, 1, 1, 1, 1)), "v", "xx"),
    Look(SKY, (0, (8, 2)), "P", "--"),
)


@contextmanager
def house_style() -> Iterator[None]:
    """The style's settings inside the block; the caller's own matplotlib settings before and after it."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(
    rows: int, columns: int, title: str | None = None, size: tuple[float, float] | None = None
) -> tuple[Figure, Sequence[Any]]:
    """
    An empty figure, without a window system and without a place in `pyplot`'s list of figures.

    Args:
        rows (`int`): rows of axes.
        columns (`int`): columns of axes.
        title (`str`, *optional*): title above all axes.
        size (`tuple[float, float]`, *optional*): width and height in inches; 5.2 by 3.9 for each axes when left out.

    Returns:
        `tuple[Figure, list[Axes]]`: the figure and its axes, row by row.
    """
    figure = Figure(figsize=size or (5.2 * columns, 3.9 * rows), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    if title is not None:
        figure.suptitle(title, fontsize=12)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def dress(axes: Any, title: str, x: str, y: str, grid: str = "y") -> None:
    """
    Gives axes their title, the names of both quantities with their units, and a faint grid.

    Args:
        axes (`Axes`): the axes.
        title (`str`): what they show.
        x (`str`): what lies on the horizontal axis, with its unit.
        y (`str`): what lies on the vertical axis, with its unit.
        grid (`str`, *optional*, defaults to `"y"`): `"x"`, `"y"` or `"both"`.
    """
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid)


def stacked_bars(axes: Any, names: Sequence[str], series: Mapping[str, tuple[Look, Sequence[int]]]) -> None:
    """
    Draws counts as stacked bars with the sum over each.

    Args:
        axes (`Axes`): the axes.
        names (`list[str]`): of the bars.
        series (`dict[str, tuple[Look, list[int]]]`): what is stacked, from below, by its name in the legend. A series of
            zeros is left out.
    """
    sums = [0] * len(names)
    for name, (look, counts) in series.items():
        if any(counts):
            axes.bar(
                range(len(names)), counts, 0.8, bottom=sums, label=name, color=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0.6,
            )  # fmt: skip
        sums = [below + count for below, count in zip(sums, counts, strict=True)]
    for place, total in enumerate(sums):
        axes.annotate(
            f"{total:,}", (place, total), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    axes.set_xticks(range(len(names)), names)
    whole_numbers(axes.yaxis)
    axes.set_ylim(0, max([1, *sums]) * 1.12)


def whole_numbers(axis: Any) -> None:
    """Ticks at whole numbers only, with separators: there are no half questions."""
    axis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))


def save_figure(draw: Callable[[], Figure], path: Path) -> None:
    """
    Draws a figure in the common style and saves it as a PNG, which is whole or not there.

    Args:
        draw (`Callable[[], Figure]`): makes the figure.
        path (`Path`): where to save it; what stands there is replaced. Folders are made.
    """
    with house_style(), whole_file(Path(path)) as aside:
        # no title, date or version inside the file: the same values give the same bytes
        draw().savefig(aside, format="png", dpi=DPI, metadata={"Software": None})
