"""The tables of `qcrd report` for a training run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..plots.quality import label_of
from ..plots.runs import accuracies_of, interval_of, series_of
from ..run_log import RunLog


# What is logged for a machine, or stands in the first lines.
_LEFT_OUT = (
    "step",
    "epoch",
    "runtime",
    "_per_second",
    "total_flos",
    "negatives/iteration",
    "negatives/snapshot",
    "_questions",
    "negatives/seconds",
)
_MOST_EVALUATIONS = 20


def print_run(run: RunLog, name: str) -> None:
    """
    Prints what a run logged.

    Args:
        run ([`~qcrd_trl.run_log.RunLog`]): its log.
        name (`str`): what to call it.
    """
    console, history = Console(), run.log_history
    epochs = next((entry["epoch"] for entry in reversed(history) if entry.get("epoch") is not None), None)
    facts = [f"{run.global_step:,} optimizer steps"]
    facts += [] if epochs is None else [f"{epochs:.2f} epochs"]
    preset = run.settings.get("preset")
    facts += [] if preset is None else [f"preset {preset}"]
    console.print(f"{name}: {', '.join(facts)} (from {run.source})", markup=False, highlight=False, soft_wrap=True)
    console.print(_series(history))
    if run.scores is not None:
        console.print(_scores(run.scores))
    for subset, measures in accuracies_of(history).items():
        console.print(_accuracies(subset, measures))


def _series(history: Sequence[Mapping[str, Any]]) -> Table:
    names = dict.fromkeys(name for entry in history for name in entry)
    table = Table(title="What was logged", title_justify="left")
    for heading in ("", "first", "last", "lowest", "highest"):
        table.add_column(heading, justify="right" if heading else "left")
    accuracies = {f"{subset}_{measure}" for subset, found in accuracies_of(history).items() for measure in found}
    shown = [name for name in names if not any(part in name for part in _LEFT_OUT) and name not in accuracies]
    for name, points in series_of(history, shown).items():
        values = [value for _, value in points]
        ends = (values[0], values[-1], min(values), max(values))
        table.add_row(escape(name), *map(_number, ends))
    return table


def _scores(scores: Mapping[str, Any]) -> Table:
    table = Table(title=f"Scores while training, iteration {scores['iteration']}", title_justify="left")
    for heading in ("", "rationales", "mean", "above 0.5"):
        table.add_column(heading, justify="right" if heading else "left")
    for source, counts in scores["counts"].items():
        total = sum(counts)
        if total:
            mean = sum((place + 0.5) / len(counts) * count for place, count in enumerate(counts)) / total
            above = sum(counts[len(counts) // 2 :]) / total
            table.add_row(label_of(source), f"{total:,}", f"{mean:.2f}", f"{100 * above:.1f} %")
    return table


def _accuracies(subset: str, measures: Mapping[str, Sequence[tuple[int, float, int | None]]]) -> Table:
    title = "Held-out questions, % [95 % interval]" if subset == "eval" else f"{subset[5:]}, % [95 % interval]"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("step", justify="right")
    for measure in measures:
        table.add_column(measure.replace("_", " "), justify="right")
    cells = {
        measure: {step: _share(value, count) for step, value, count in points} for measure, points in measures.items()
    }
    steps = sorted({step for points in cells.values() for step in points})
    for step in steps[-_MOST_EVALUATIONS:]:
        table.add_row(f"{step:,}", *(points.get(step, "-") for points in cells.values()))
    if len(steps) > _MOST_EVALUATIONS:
        table.caption = f"the last {_MOST_EVALUATIONS} of {len(steps)} evaluations"
    return table


def _share(value: float, count: int | None) -> str:
    if count is None:
        return f"{100 * value:.1f}"
    low, high = interval_of(value, count)
    return escape(f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
