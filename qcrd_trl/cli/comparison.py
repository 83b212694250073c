"""`qcrd evaluate --compare`: the results of two students or more, with what the difference is worth."""

from pathlib import Path

from ..errors import ConfigError
from .comparison_table import difference_cells, print_comparison


HEADINGS = ("", "accuracy", "95 % interval")
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
    differences = {(one.run, one.metric): one for one in comparison.differences}
    rows = []
    for number, (run, files) in enumerate(zip(comparison.runs, groups, strict=True)):
        cells = []
        for metric, accuracy in run.accuracies.items():
            ends = "{:.1f} to {:.1f}".format(*(100 * end for end in run.intervals[metric]))
            figures = [NAMES[metric], f"{100 * accuracy:.1f} %", ends]
            cells.append((figures, difference_cells(differences.get((number, metric)), 100, 1)))
        rows.append((files, cells))
    console = print_comparison(f"{comparison.questions} questions", HEADINGS, rows, unit=" in points")
    for test in sorted({one.test for one in comparison.differences}):
        console.print(f"p: {test}, two-sided; intervals of differences: paired bootstrap.", highlight=False)
    for note in comparison.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
