"""`qcrd evaluate --compare`: the results of two students or more, with what the difference is worth."""

from pathlib import Path

from ..errors import ConfigError


HEADINGS = ("run", "", "accuracy", "95 % interval", "difference", "95 % interval", "p")
NAMES = {"label_accuracy": "label", "answer_accuracy": "answer", "agreement": "agreement"}


def compare(files: list[str], output: str | None, seed: int, allow_settings: bool) -> int:
    """
    Compares results, prints a table and writes JSON where that is asked for.

    Args:
        files (`list[str]`): a file for each student; several seeds of one are joined by commas.
        output (`str`, *optional*): JSON file to write.
        seed (`int`): of the resamples.
        allow_settings (`bool`): whether to compare results of other samples, temperatures or limits.

    Returns:
        `int`: exit status, 0.
    """
    from ..evaluation import compare_results, write_results

    groups = [split_files(name) for name in files]
    if len(groups) < 2:
        raise ConfigError(
            f"--compare needs two results or more, got {len(groups)}. Files of several seeds of one student are joined by "
            "commas, students by spaces."
        )
    comparison = compare_results(*groups, seed=seed, allow_settings=allow_settings)
    _print(comparison, groups)
    if output is not None:
        write_results(output, comparison.to_dict())
        print(f"Written to {output}")
    return 0


def split_files(name: str) -> list[str]:
    """The files of one student; a file whose own name has a comma is one file."""
    return [name] if Path(name).is_file() else [part for part in name.split(",") if part]


def _print(comparison, groups: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{comparison.questions} questions, differences from the first run in points")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    differences = {(one.run, one.metric): one for one in comparison.differences}
    for number, (run, files) in enumerate(zip(comparison.runs, groups, strict=True)):
        name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        for metric, accuracy in run.accuracies.items():
            low, high = run.intervals[metric]
            row = [name, NAMES[metric], f"{100 * accuracy:.1f} %", f"{100 * low:.1f} to {100 * high:.1f}"]
            one = differences.get((number, metric))
            if one is not None:
                ends = " to ".join(f"{100 * end:+.1f}" for end in one.interval)
                row += [
                    f"{100 * one.difference:+.1f}",
                    ends,
                    "<0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}",
                ]
            table.add_row(*row, end_section=metric == list(run.accuracies)[-1])
            name = ""
    console = Console()
    console.print(table)
    for test in sorted({one.test for one in comparison.differences}):
        console.print(f"p: {test}, two-sided; intervals of differences: paired bootstrap.", highlight=False)
    for note in comparison.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
