"""The tables of `qcrd report`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_samples(report: Mapping[str, Any], name: str, notes: Sequence[str] = ()) -> None:
    """
    Prints a report of samples.

    Args:
        report (`Mapping`): what [`~qcrd_trl.sampling.sample_report.SamplesReport.as_dict`] returns.
        name (`str`): what to call the file.
        notes (`Sequence[str]`, *optional*): lines under the tables.
    """
    questions, samples = report["questions"], report["samples"]
    answers, agreement, found = report["answers"], report["agreement"], report["yield"]
    drawn = report["samples_per_question"]
    table = _table(name)
    _row(table, "questions", questions)
    _row(table, "samples", samples)
    if drawn["least"] is not None:
        _row(table, "  a question", f"{drawn['least']}" if drawn["least"] == drawn["most"] else f"{drawn['least']} to {drawn['most']}")  # fmt: skip
    table.add_section()
    for status, count in report["statuses"].items():
        _row(table, f"status {status}", count, samples)
    _row(table, "  ok, answer read (votes)", answers["voting"], samples)
    _row(table, "  ok, no answer read", answers["without_answer"], samples)
    for reason, count in answers["not_usable"].items():
        _row(table, f"  ok, not usable: {reason.replace('_', ' ')}", count, samples)
    for reason, count in report["finish_reasons"].items():
        _row(table, f"finish reason {reason}", count, samples)
    usage = report["usage"]
    if usage["samples_with_usage"]:
        table.add_section()
        for part, count in usage.items():
            if part != "samples_with_usage":
                _row(table, f"{part.replace('_', ' ')} used", count)
    table.add_section()
    _row(table, "questions with a majority (yield)", found["with_majority"], questions)
    _row(table, "questions with a tie", agreement["ties"], questions)
    _row(table, "questions without a vote", agreement["questions_without_votes"], questions)
    if found["with_label"]:
        _row(table, "questions with a gold label", found["with_label"], questions)
        _row(table, "  with a majority, which is right", found["majority_right"], found["labelled_with_majority"])
        _row(table, "  with a right sample (yield by gold)", found["with_right_sample"], found["with_label"])
    table.add_section()
    _row(table, "votes of the most frequent answer, mean", _percent(agreement["mean_majority_share_of_votes"]))
    for share, outcomes in agreement["bins"].items():
        label = "  100 % (unanimous)" if share == "100" else f"  {share.replace('-', ' to ')} %"
        _row(table, label, outcomes["questions"], questions)
    if agreement["single_vote"]:
        _row(table, "  of the unanimous, a single vote", agreement["single_vote"], questions)
    console = Console()
    console.print(table)
    _print_lengths(console, report["lengths"])
    if len(report["settings"]) > 1:
        _print_settings(console, report["settings"])
    for note in notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def print_selection(report: Mapping[str, Any], name: str) -> None:
    """
    Prints a report of a selection.

    Args:
        report (`Mapping`): what [`~qcrd_trl.sampling.report.SelectionReport.as_dict`] returns.
        name (`str`): what to call the training set.
    """
    rows, samples, agreement, gold = report["rows"], report["samples"], report["agreement"], report["gold"]
    table = _table(name)
    _row(table, "questions in", rows["in"])
    _row(table, "questions out", rows["out"], rows["in"])
    for reason, count in rows["dropped"].items():
        _row(table, f"  left out: {reason}", count, rows["in"])
    _row(table, "with a positive (yield)", rows["with_positive"], rows["in"])
    _row(table, "with a negative", rows["with_negative"], rows["in"])
    _row(table, "ties", agreement["ties"], rows["in"])
    table.add_section()
    _row(table, "samples", samples["total"])
    _row(table, "  voting", samples["voting"], samples["total"])
    _row(table, "  without an answer", samples["abstained"], samples["total"])
    for reason, count in samples["dropped"].items():
        _row(table, f"  not usable: {reason}", count, samples["total"])
    _row(table, "  equal to another (kept once)", samples["duplicates_left_out"], samples["total"])
    table.add_section()
    _row(table, "votes of the most frequent answer, mean", _percent(agreement["mean_majority_share_of_votes"]))
    if gold["questions"]:
        _row(table, "majorities equal to the gold label", _percent(gold["majority_equals_gold"]))
        _row(table, "samples agreeing with the gold label", _percent(gold["share_of_samples"]))
    for heading, key in (("positives (m)", "positives_per_question"), ("negatives (k)", "negatives_per_question")):
        table.add_section()
        for size, count in report[key].items():
            _row(table, f"questions with {size} {heading}", count, rows["out"])
    Console().print(table)


def _table(name: str) -> Table:
    table = Table(title=escape(name), title_justify="left")
    table.add_column("")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    return table


def _row(table: Table, name: str, count: int | str, whole: int | None = None) -> None:
    share = "" if whole is None else _percent(count / whole if whole else None)
    table.add_row(escape(name), f"{count:,}" if isinstance(count, int) else count, share)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _print_lengths(console: Console, lengths: Mapping[str, Any]) -> None:
    table = Table(title="Length of the samples", title_justify="left")
    for heading in ("", "samples", "mean", "median", "95 % up to", "longest"):
        table.add_column(heading, justify="right" if heading else "left")
    for unit, found in lengths.items():
        if found is not None:
            table.add_row(
                unit,
                f"{found['samples']:,}",
                f"{found['mean']:,.1f}",
                f"{found['median']:,.1f}",
                f"{found['p95']:,}",
                f"{found['longest']:,}",
            )
    if table.row_count:
        console.print(table)


def _print_settings(console: Console, settings: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="By settings and model", title_justify="left")
    for heading in ("settings", "model", "samples", "ok", "agree", "majority", "right"):
        table.add_column(heading, justify="left" if heading in ("settings", "model") else "right", overflow="fold")
    for part in settings:
        samples, found = part["samples"], part["yield"]
        table.add_row(
            escape(str(part["settings_hash"])),
            escape(str(part["model"])),
            f"{samples:,}",
            _percent(part["statuses"]["ok"] / samples if samples else None),
            _percent(part["agreement"]["mean_majority_share_of_votes"]),
            _percent(found["with_majority_share"]),
            _percent(found["majority_right_share"]),
        )
    console.print(table)
    console.print(
        "agree: mean share of the votes of the most frequent answer; majority: questions that have one; right: of those "
        "with a gold label. The tables above take the samples of a question under all settings together.",
        highlight=False,
    )
