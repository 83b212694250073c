"""What the two commands that compare results print: numbered runs, a table of them, and what its figures rest on."""

from collections.abc import Sequence
from typing import Any


def print_comparison(title: str, headings: Sequence[str], runs: Sequence[tuple[list[str], list[list[str]]]]) -> Any:
    """
    Prints a comparison: the runs' files, each by a number, then the table, whose first column has these numbers.

    Files' names stand above the table, where they are never folded: a terminal of 80 columns has no room for them beside the
    figures.

    Args:
        title (`str`): of the table.
        headings (`Sequence[str]`): of the columns after the run's number; the first of them is text, the others are figures.
        runs (`Sequence[tuple[list[str], list[list[str]]]]`): for each run its files and its rows; a row may stop early.

    Returns:
        `rich.console.Console`: to print notes below.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for number, (files, _) in enumerate(runs, 1):
        name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        console.print(f"run {number}: {name}", highlight=False, markup=False, soft_wrap=True)
    table = Table(title=title)
    for column, heading in enumerate(("run", *headings)):
        table.add_column(heading, justify="left" if column < 2 else "right", overflow="fold")
    for number, (_, rows) in enumerate(runs, 1):
        for place, row in enumerate(rows):
            table.add_row("" if place else str(number), *row, end_section=place == len(rows) - 1)
    console.print(table)
    return console


def difference_cells(one: Any, scale: float, digits: int) -> list[str]:
    """
    The last three cells of a row: the difference, its interval and its p-value; none for a run that is compared with nothing.

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
