"""`qcrd c2kd evaluate --compare`: the results of several models, with what the differences are worth."""

from ..errors import ConfigError
from .comparison import split_files


HEADINGS = ("run", "metric", "value", "95 % interval", "sd of seeds", "difference", "95 % interval", "p")


def compare(files: list[str], output: str | None, seed: int) -> int:
    """
    Compares results, prints a table and writes JSON where that is asked for.

    Args:
        files (`list[str]`): a file for each model; several seeds of one are joined by commas.
        output (`str`, *optional*): JSON file to write.
        seed (`int`): of the resamples.

    Returns:
        `int`: exit status, 0.
    """
    from ..recommendation.results import compare as compare_results
    from ..recommendation.results import write_results

    groups = [split_files(name) for name in files]
    if len(groups) < 2 and sum(map(len, groups)) < 2:
        raise ConfigError(
            "--compare needs two results or more, got one. Files of several seeds of one model are joined by commas, models by "
            "spaces."
        )
    comparison = compare_results(*groups, seed=seed)
    _print(comparison)
    if output is not None:
        write_results(output, comparison.to_dict())
        print(f"Written to {output}")
    return 0


def _print(comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    runs = comparison.runs
    against = ", differences from the first run" if len(runs) > 1 else ""
    table = Table(title=f"{runs[0].users} users{against}")
    headings = HEADINGS if len(runs) > 1 else HEADINGS[:5]
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    differences = {(one.run, one.metric): one for one in comparison.differences}
    for number, run in enumerate(runs):
        name = run.files[0] if len(run.files) == 1 else f"{run.files[0]} and {len(run.files) - 1} more"
        for metric, value in run.metrics.items():
            low, high = run.intervals[metric]
            row = [name, metric, f"{value:.4f}", f"{low:.4f} to {high:.4f}"]
            row.append(f"{run.sd[metric]:.4f}" if metric in run.sd else "")
            one = differences.get((number, metric))
            if one is not None:
                ends = " to ".join(f"{end:+.4f}" for end in one.interval)
                row += [
                    f"{one.difference:+.4f}",
                    ends,
                    "<0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}",
                ]
            table.add_row(*row, end_section=metric == list(run.metrics)[-1])
            name = ""
    console = Console()
    console.print(table)
    if comparison.differences:
        console.print(
            "p: paired permutation test, two-sided; intervals of differences: paired bootstrap over users.",
            highlight=False,
        )
    for note in comparison.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
