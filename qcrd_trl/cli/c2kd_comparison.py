"""`qcrd c2kd evaluate --compare`: the results of several models, with what the differences are worth."""

from ..errors import ConfigError
from .comparison import split_files
from .comparison_table import difference_cells, print_comparison


HEADINGS = ("metric", "value", "95 % interval", "sd of seeds")


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
    runs = comparison.runs
    differences = {(one.run, one.metric): one for one in comparison.differences}
    by_seed = any(run.sd for run in runs)
    rows = []
    for number, run in enumerate(runs):
        cells = []
        for metric, value in run.metrics.items():
            figures = [metric, f"{value:.4f}", "{:.4f} to {:.4f}".format(*run.intervals[metric])]
            if by_seed:
                figures.append(f"{run.sd[metric]:.4f}" if metric in run.sd else "")
            cells.append((figures, difference_cells(differences.get((number, metric)), 1, 4)))
        rows.append((run.files, cells))
    console = print_comparison(f"{runs[0].users} users", HEADINGS if by_seed else HEADINGS[:3], rows)
    if comparison.differences:
        console.print(
            "p: paired permutation test, two-sided; intervals of differences: paired bootstrap over users.",
            highlight=False,
        )
    for note in comparison.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
