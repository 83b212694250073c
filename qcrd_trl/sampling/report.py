"""The report of a selection: what came in, what came out, and how far the samples agree."""

import math
import platform
from collections import Counter
from importlib.metadata import version
from typing import Any

from ..errors import DataError
from ..records import Selection


class SelectionReport:
    """
    Counts over the questions of a selection.

    Example:

    ```python
    >>> report = SelectionReport(label_source="gold")
    >>> report.add(selection)  # for each question
    >>> report.drop("label", "null")  # for each question that is left out
    >>> print(report.as_text())
    ```

    Args:
        label_source (`str`):
            Where the labels come from, `"gold"` or `"majority"`.
        settings (`dict[str, Any]`, *optional*):
            The settings of the run, kept as they are.
    """

    def __init__(self, label_source: str, settings: dict[str, Any] | None = None):
        self.label_source = label_source
        self.settings = settings or {}
        self.rows_out = 0
        self.rows_dropped: Counter[str] = Counter()
        self.with_positive = 0
        self.with_negative = 0
        self.samples: Counter[str] = Counter()
        self.samples_dropped: Counter[str] = Counter()
        self.ties = 0
        self.without_votes = 0
        # (votes of the most frequent answer, of all votes or samples): counted, so that reports add up exactly.
        self.agreement: Counter[tuple[int, int]] = Counter()
        self.agreement_of_samples: Counter[tuple[int, int]] = Counter()
        self.below_agreement = 0
        self.statuses: Counter[str] = Counter()
        self.quality: Counter[str] = Counter()
        self.gold: Counter[str] = Counter()
        self.positives: Counter[int] = Counter()
        self.negatives: Counter[int] = Counter()

    def drop(self, part: str, reason: str) -> None:
        """Counts a question that is left out without a vote, by the part of it that cannot be used and why."""
        self.rows_dropped[f"{part} {reason}"] += 1

    def add(self, selection: Selection) -> bool:
        """
        Counts the vote on a question.

        Args:
            selection ([`~qcrd_trl.records.Selection`]):
                The outcome.

        Returns:
            `bool`: Whether the question goes into the training set: it has a label. (By majority, a tie has none.)
        """
        num_votes = selection.num_votes
        self.samples["total"] += selection.num_samples
        self.samples["voting"] += num_votes
        self.samples["abstained"] += selection.abstentions
        for name in ("duplicates", "near_duplicates", "without_explanation"):
            self.samples[name] += getattr(selection, name)
        for name, count in selection.statuses.items():  # `update` costs ten times as much for the one that most have
            self.statuses[name] += count
        self.below_agreement += selection.below_agreement
        for name, count in selection.dropped.items():
            self.samples_dropped[name] += count
        self.ties += selection.tie
        self.without_votes += not selection.votes
        top = selection.votes[0][1] if selection.votes else 0
        if selection.votes:
            self.agreement[top, num_votes] += 1
        if selection.num_samples:
            self.agreement_of_samples[top, selection.num_samples] += 1
        if selection.gold_votes is not None:
            self.gold["questions"] += 1
            self.gold["with_majority"] += selection.majority is not None
            self.gold["majority"] += bool(selection.majority_is_gold)
            self.gold["votes"] += selection.gold_votes
            self.gold["of_votes"] += num_votes
            self.gold["of_samples"] += selection.num_samples
        if selection.label is None:
            reason = "below agreement" if selection.below_agreement else "tie" if selection.tie else "no vote"
            self.rows_dropped[reason] += 1
            return False
        self.rows_out += 1
        self.with_positive += bool(selection.positives)
        self.with_negative += bool(selection.negatives)
        self.positives[len(selection.positives)] += 1
        self.negatives[len(selection.negatives)] += 1
        return True

    def leave_out_positives(self, count: int, before: int) -> None:
        """Counts positives of a question that are below the quality asked for, of so many that it had."""
        self.quality["positives"] += count
        self.positives[before] -= 1
        self.positives[before - count] += 1
        if not self.positives[before]:
            del self.positives[before]
        if count == before:
            self.quality["questions"] += 1
            self.with_positive -= 1

    def merge(self, other: "SelectionReport") -> None:
        """
        Adds the counts of another report, as that of another shard.

        Args:
            other ([`SelectionReport`]):
                A report over other questions.
        """
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SelectionReport":
        """
        Reads what [`~SelectionReport.as_dict`] gave, as `report.json` holds it.

        Args:
            values (`dict[str, Any]`):
                The report as plain values.

        Returns:
            [`SelectionReport`]: The report, which [`~SelectionReport.merge`] adds to others.

        Raises:
            [`DataError`]: a count is missing.
        """
        try:
            report = cls(values["settings"].get("label_source", "gold"), values["settings"])
            rows, samples, agreement = values["rows"], values["samples"], values["agreement"]
            report.rows_out, report.rows_dropped = rows["out"], Counter(rows["dropped"])
            report.with_positive, report.with_negative = rows["with_positive"], rows["with_negative"]
            report.samples = Counter({name: samples[name] for name in ("total", "voting", "abstained")})
            report.samples["duplicates"] = samples["duplicates_left_out"]
            report.samples["near_duplicates"] = samples["near_duplicates_left_out"]
            report.samples["without_explanation"] = samples["without_explanation"]
            report.samples_dropped, report.statuses = Counter(samples["dropped"]), Counter(samples["statuses"])
            report.ties, report.without_votes = agreement["ties"], agreement["questions_without_votes"]
            report.below_agreement = agreement["questions_below_min_agreement"]
            report.agreement = _from_fractions(agreement["of_votes"])
            report.agreement_of_samples = _from_fractions(agreement["of_samples"])
            report.quality, report.gold = Counter(values["quality"]), Counter(values["gold"]["counts"])
            report.positives = Counter({int(m): n for m, n in values["positives_per_question"].items()})
            report.negatives = Counter({int(k): n for k, n in values["negatives_per_question"].items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"This is no report of `qcrd select`: {type(error).__name__} {error}. Give the `report.json` of a selection."
            ) from error
        return report

    @property
    def rows_in(self) -> int:
        """Questions that came in."""
        return self.rows_out + sum(self.rows_dropped.values())

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain values, ready for JSON. Shares are in [0, 1], or null where there is nothing."""
        gold = self.gold
        return {
            "rows": {
                "in": self.rows_in,
                "out": self.rows_out,
                "dropped": dict(self.rows_dropped),
                "with_positive": self.with_positive,
                "with_negative": self.with_negative,
                "yield": _share(self.with_positive, self.rows_in),
            },
            "samples": {
                **{name: self.samples[name] for name in ("total", "voting", "abstained")},
                "dropped": dict(self.samples_dropped),
                "duplicates_left_out": self.samples["duplicates"],
                "near_duplicates_left_out": self.samples["near_duplicates"],
                "without_explanation": self.samples["without_explanation"],
                "statuses": dict(self.statuses),
            },
            "agreement": {
                "mean_majority_share_of_votes": _mean(self.agreement),
                "mean_majority_share_of_samples": _mean(self.agreement_of_samples),
                "ties": self.ties,
                "questions_without_votes": self.without_votes,
                "questions_below_min_agreement": self.below_agreement,
                "of_votes": _fractions(self.agreement),
                "of_samples": _fractions(self.agreement_of_samples),
            },
            "quality": dict(self.quality),
            "gold": {
                "questions": gold["questions"],
                "counts": dict(gold),
                "questions_with_majority": gold["with_majority"],
                "majority_equals_gold": _share(gold["majority"], gold["with_majority"]),
                "majority_equals_gold_of_all_questions": _share(gold["majority"], gold["questions"]),
                "share_of_samples": _share(gold["votes"], gold["of_samples"]),
                "share_of_votes": _share(gold["votes"], gold["of_votes"]),
            },
            "positives_per_question": {str(m): self.positives[m] for m in sorted(self.positives)},
            "negatives_per_question": {str(k): self.negatives[k] for k in sorted(self.negatives)},
            "settings": self.settings,
            "versions": {"python": platform.python_version(), **{n: version(n) for n in ("qcrd_trl", "pyarrow")}},
        }

    def as_text(self) -> str:
        """Returns the report as a table of at most 80 columns."""
        gold = self.gold
        of_samples = self.samples["total"]
        lines = [
            f"Selection by {self.label_source}",
            _line("questions in", self.rows_in),
            _line("questions out", self.rows_out),
            *(_line(f"  left out: {reason}", count) for reason, count in sorted(self.rows_dropped.items())),
            _line("with a positive (yield)", self.with_positive, self.rows_in),
            _line("with a negative", self.with_negative, self.rows_in),
            _line("ties", self.ties, self.rows_in),
            *(
                [_line("below the agreement asked for", self.below_agreement, self.rows_in)]
                * bool(self.below_agreement)
            ),
            *(
                [_line("all positives below the quality", self.quality["questions"], self.rows_in)]
                * bool(self.quality)
            ),
            "",
            _line("samples", of_samples),
            _line("  voting", self.samples["voting"], of_samples),
            _line("  without an answer", self.samples["abstained"], of_samples),
            *(_line(f"  not usable: {reason}", n, of_samples) for reason, n in sorted(self.samples_dropped.items())),
            _line("  equal to another (kept once)", self.samples["duplicates"], of_samples),
        ]
        for name, count in (
            ("  nearly equal to another", self.samples["near_duplicates"]),
            ("  without an explanation", self.samples["without_explanation"]),
            ("  positives below the quality asked for", self.quality["positives"]),
        ):
            if count:
                lines.append(_line(name, count, of_samples))
        if gold["questions"]:
            lines.append(_line("  agreeing with the gold label", gold["votes"], gold["of_samples"]))
        lines += ["", f"{'majority share of the votes, mean':<46}{_percent(_mean(self.agreement)):>10}"]
        if gold["questions"]:
            lines.append(_line("questions with gold label and majority", gold["with_majority"], gold["questions"]))
            lines.append(_line("  majority equal to the gold label", gold["majority"], gold["with_majority"]))
        lines += ["", *_histogram("positives a question (m)", self.positives)]
        lines += _histogram("negatives a question (k)", self.negatives)
        return "\n".join(lines)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _mean(counts: Counter[tuple[int, int]]) -> float | None:
    total = sum(counts.values())
    # fsum is exact, so that the order of the questions, and who counted them, cannot show.
    return round(math.fsum(n * part / whole for (part, whole), n in counts.items()) / total, 6) if total else None


def _fractions(counts: Counter[tuple[int, int]]) -> dict[str, int]:
    return {f"{part}/{whole}": counts[part, whole] for part, whole in sorted(counts)}


def _from_fractions(counts: dict[str, int]) -> Counter[tuple[int, int]]:
    return Counter({tuple(map(int, share.split("/"))): count for share, count in counts.items()})


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _line(name: str, count: int, whole: int | None = None) -> str:
    line = f"{name:<40}{count:>6}"
    return line if whole is None else f"{line}{_percent(_share(count, whole)):>10}"


def _histogram(name: str, counts: Counter[int], per_line: int = 6) -> list[str]:
    cells = [f"{size}: {counts[size]}" for size in sorted(counts)]
    lines = ["  ".join(f"{cell:<8}" for cell in cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
    return [f"{name}, size: questions", *(f"  {line.rstrip()}" for line in lines)]
