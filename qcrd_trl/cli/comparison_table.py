"""What the two commands that compare results print: numbered runs, their figures, and how they differ from the first."""

from collections.abc import Sequence
from typing import Any


DIFFERENCES = ("difference", "95 % interval", "p")


def print_comparison(
    title: str,
    headings: Sequence[str],
    runs: Sequence[tuple[list[str], list[tuple[list[str], list[str]]]]],
    unit: str = "",
) -> Any:
    """
    Prints a comparison: the runs' files, each by a number, then a table of their figures and one of their differences.

    Both tables fit a terminal of 80 columns, and files' names stand above them, where they are never folded.

    Args:
        title (`str`): of the first table.
        headings (`Sequence[str]`): of its columns after the run's number; the first of them is text, the others are figures.
        runs (`Sequence[tuple[list[str], list[tuple[list[str], list[str]]]]]`): for each run its files and its rows: the cells of
            the first table, and those of [`difference_cells`].
        unit (`str`, *optional*): of the differences, for the second title.

    Returns:
        `rich.console.Console`: to print notes below.
    """
    from rich.console import Console

    console = Console()
    for number, (files, _) in enumerate(runs, 1):
        name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        console.print(f"run {number}: {name}", highlight=False, markup=False, soft_wrap=True)
    console.print(_table(title, headings, [[cells for cells, _ in rows] for _, rows in runs]))
    differences = [[[cells[0], *more] for cells, more in rows if more] for _, rows in runs]
    if any(differences):
        console.print(_table(f"Differences from run 1{unit}", (headings[0], *DIFFERENCES), differences))
    return console


def _table(title: str, headings: Sequence[str], runs: Sequence[list[list[str]]]) -> Any:
    from rich.table import Table

    table = Table(title=title)
    for column, heading in enumerate(("run", *headings)):
        table.add_column(heading, justify="left" if column < 2 else "right", overflow="fold")
    for number, rows in enumerate(runs, 1):
        for place, row in enumerate(rows):
            table.add_row("" if place else str(number), *row, end_section=place == len(rows) - 1)
    return table


def difference_cells(one: Any, scale: float, digits: int) -> list[str]:
    """
    The cells of a difference: itself, its interval and its p-value; none for a run that is compared with nothing.

    Args:
        one (`Any`): with `difference`, `interval` and `p_value`, or `None`.
        scale (`float`): factor of the difference and the interval's ends.
        digits (`int`): of them, after the point.

    Returns:
        `list[str]`: three cells, or none.
    """
    if one is None:
        return []
    ends = " to ".join(f"{scale * end:+.{digits}f}" for end in one.interval)
    p_value = "<0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"
    return [f"{scale * one.difference:+.{digits}f}", ends, p_value]
