"""The report of a samples file: counts over all samples, and of each question only how its samples voted."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from ..answers import format_answer, parse_label
from ..answers.values import TaskKind, check_task_kind
from ..data.text_files import parse_cell
from ..errors import ConfigError, DataError
from ..records import SAMPLE_STATUSES, Question
from .completions import read_answer
from .questions import read_position
from .self_consistency import text_problem


# Shares of the votes that the most frequent answer has, in percent: above the first number, up to and including the
# second; all of them are a bin of their own.
AGREEMENT_BINS = ("0-20", "20-40", "40-60", "60-80", "80-100", "100")
OUTCOMES = ("right", "wrong", "unlabelled", "tie")
_LONGEST_KEY = 48
_LARGEST_INDEX = 4096


class _Asked:
    """What is kept of a question: its label's value, and hashes that tell whether two rows mean the same question."""

    __slots__ = ("label", "label_hash", "prompt_hash", "row")

    def __init__(self, row: int, prompt_hash: int, label_hash: int, label: Any):
        self.row, self.prompt_hash, self.label_hash, self.label = row, prompt_hash, label_hash, label


class _Tally:
    """What is kept of the samples of a question: votes by answer, and which numbers there were (bits)."""

    __slots__ = ("samples", "seen", "votes")

    def __init__(self) -> None:
        self.votes: dict[Any, int] = {}
        self.samples = 0
        self.seen = 0


class _Group:
    """The samples that one model drew with the same settings."""

    def __init__(self, settings_hash: str | None, model: str | None, temperature: Any):
        self.settings_hash, self.model, self.temperature = settings_hash, model, temperature
        self.statuses: Counter[str] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.not_usable: Counter[str] = Counter()
        self.no_answer = 0
        self.usage: Counter[str] = Counter()
        self.with_usage = 0
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.tallies: dict[str, _Tally] = {}


class SamplesReport:
    """
    Counts the samples of a file, in whatever order they stand. No text is kept.

    Memory grows with the number of questions and of their different answers, not with the number of samples.

    Args:
        task_kind (`str` or `Callable`):
            How the answer of a text is found: one of [`~qcrd_trl.answers.TASK_KINDS`], or a function from a text to its
            answer.
        parse_completions (`bool`, *optional*, defaults to `False`):
            Whether samples are completions that explanation and answer are told apart in; `None`: those that carry the
            marks. As in [`~qcrd_trl.sampling.self_consistency.select_rationales`], whose votes these are.

    Example:

    ```python
    >>> rows = load_rows("samples.jsonl")
    >>> report = SamplesReport("number", parse_completions=True)
    >>> for question, sample in samples_of_rows(rows, find_columns(rows, "number")):
    ...     report.add(question, sample)
    >>> report.as_dict()["yield"]
    ```
    """

    def __init__(self, task_kind: TaskKind, parse_completions: bool | None = False):
        check_task_kind(task_kind)
        self.task_kind = task_kind
        self.parse_completions = parse_completions
        self.repeated = 0
        self._groups: dict[tuple[Any, Any], _Group] = {}
        self._asked: dict[str, _Asked] = {}
        self._keys: dict[Any, Any] = {}

    def add(self, question: Question, sample: Mapping[str, Any] | None) -> None:
        """
        Counts a sample.

        Args:
            question ([`~qcrd_trl.records.Question`]): the question; its own samples are not looked at.
            sample (`Mapping` or `None`): `text`, and where they are there `status`, `sample_index`, `settings_hash`, `model`,
                `temperature`, `finish_reason` and `usage`; `None` counts the question alone.

        Raises:
            DataError: the label is no answer of this kind, or two rows give one id to different questions.
        """
        self._meet(question)
        if sample is None:
            return
        name = (sample.get("settings_hash"), sample.get("model"))
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(*name, sample.get("temperature"))
        tally = group.tallies.get(question.id)
        if tally is None:
            tally = group.tallies[question.id] = _Tally()
        if self._is_repeated(tally, sample, question.row):
            return
        tally.samples += 1
        text, status = sample["text"], str(sample.get("status") or "ok")
        group.statuses[status] += 1
        if sample.get("finish_reason") is not None:
            group.finish_reasons[str(sample["finish_reason"])] += 1
        self._measure(group, sample)
        if status != "ok":
            return
        problem = text_problem(text)
        if problem is not None:
            group.not_usable[problem] += 1
            return
        answer, _ = read_answer(text, self.task_kind, question.choices, self.parse_completions)
        if answer is None:
            group.no_answer += 1
            return
        key = self._key(answer)
        tally.votes[key] = tally.votes.get(key, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """
        Returns the report as plain values, ready for JSON.

        Returns:
            `dict`: counts, and shares in [0, 1] or null where there is nothing. `settings` has the main ones of each settings
            hash and model apart.
        """
        groups = list(self._groups.values())
        tallies = [group.tallies for group in groups]
        report = self._describe(groups, tallies[0] if len(tallies) == 1 else _pool(tallies), list(self._asked))
        report["repeated_left_out"] = self.repeated
        report["settings"] = [
            self._describe_settings(group) for group in groups if (group.settings_hash, group.model) != (None, None)
        ]
        return report

    # Counting

    def _meet(self, question: Question) -> None:
        label = question.label
        prompt_hash = hash(question.prompt if isinstance(question.prompt, str) else repr(question.prompt))
        label_hash = hash(label)
        asked = self._asked.get(question.id)
        if asked is None:
            self._asked[question.id] = _Asked(question.row, prompt_hash, label_hash, self._label(question))
        elif (asked.prompt_hash, asked.label_hash) != (prompt_hash, label_hash):
            part = "label" if asked.prompt_hash == prompt_hash else "prompt"
            raise DataError(
                f"Rows {asked.row} and {question.row} (rows count from 0) have the same id {question.id!r} but not the same "
                f"{part}. Give each question its own id."
            )

    def _label(self, question: Question) -> Any:
        if question.label is None:
            return None
        try:
            return self._key(parse_label(question.label, self.task_kind, question.choices))
        except DataError as error:
            raise DataError(
                f"Row {question.row} (rows count from 0): {error} Check --task_kind and --label_column."
            ) from error

    def _is_repeated(self, tally: _Tally, sample: Mapping[str, Any], row: int) -> bool:
        """A sample that stands twice, as after joining files that overlap, would vote twice."""
        position = read_position(sample.get("sample_index"), row)
        if sample.get("settings_hash") is None or not 0 <= position < _LARGEST_INDEX or position % 1:
            return False
        bit = 1 << int(position)
        if tally.seen & bit:
            self.repeated += 1
            return True
        tally.seen |= bit
        return False

    def _measure(self, group: _Group, sample: Mapping[str, Any]) -> None:
        if isinstance(sample["text"], str):
            group.characters[len(sample["text"])] += 1
        usage = parse_cell(sample.get("usage"), "usage", 0)
        counts = {k: v for k, v in usage.items() if isinstance(v, int)} if isinstance(usage, Mapping) else {}
        if counts:
            group.with_usage += 1
            group.usage.update(counts)
            if "completion_tokens" in counts:
                group.tokens[counts["completion_tokens"]] += 1

    def _key(self, answer: Any) -> Any:
        """A small value that stands for an answer: the same for equal answers, and one object for all that are equal."""
        if isinstance(answer, Fraction):
            answer = format_answer(answer)
        if isinstance(answer, str) and len(answer) > _LONGEST_KEY:
            answer = hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        try:
            return self._keys.setdefault(answer, answer)
        except TypeError:
            raise ConfigError(
                f"The task's function returned a {type(answer).__name__}, which cannot be counted: return a value that is "
                f"hashable, such as a text, a number or a tuple, or None."
            ) from None

    # Summing up

    def _describe_settings(self, group: _Group) -> dict[str, Any]:
        described = self._describe([group], group.tallies, list(group.tallies))
        for lengths in described["lengths"].values():
            if lengths is not None:
                del lengths["histogram"]
        kept = ("questions", "samples", "statuses", "answers", "usage", "lengths", "agreement", "yield")
        return {
            "settings_hash": group.settings_hash,
            "model": group.model,
            "temperature": group.temperature,
            **{name: described[name] for name in kept},
        }

    def _describe(self, groups: list[_Group], tallies: Mapping[str, _Tally], ids: list[str]) -> dict[str, Any]:
        statuses = _sum(group.statuses for group in groups)
        not_usable = _sum(group.not_usable for group in groups)
        no_answer = sum(group.no_answer for group in groups)
        usage = _sum(group.usage for group in groups)
        drawn = [tallies[key].samples if key in tallies else 0 for key in ids]
        return {
            "questions": len(ids),
            "samples": statuses.total(),
            "samples_per_question": {"least": min(drawn, default=None), "most": max(drawn, default=None)},
            "statuses": {**{name: statuses[name] for name in SAMPLE_STATUSES}, **statuses},
            "finish_reasons": dict(_sum(group.finish_reasons for group in groups).most_common()),
            "answers": {
                "voting": statuses["ok"] - no_answer - not_usable.total(),
                "without_answer": no_answer,
                "not_usable": dict(not_usable),
            },
            "usage": {**usage, "samples_with_usage": sum(group.with_usage for group in groups)},
            "lengths": {
                "characters": _lengths(_sum(group.characters for group in groups)),
                "tokens": _lengths(_sum(group.tokens for group in groups)),
            },
            **self._votes(tallies, ids),
        }

    def _votes(self, tallies: Mapping[str, _Tally], ids: list[str]) -> dict[str, Any]:
        bins = {name: Counter(dict.fromkeys(OUTCOMES, 0)) for name in AGREEMENT_BINS}
        labelled = sum(self._asked[key].label is not None for key in ids)
        counts: Counter[str] = Counter()
        shares = 0.0
        for_answer: Counter[int] = Counter()
        for_others: Counter[int] = Counter()
        for key in ids:
            votes = tallies[key].votes if key in tallies else {}
            label = self._asked[key].label
            total = sum(votes.values())
            top = max(votes.values(), default=0)
            leaders = [answer for answer, count in votes.items() if count == top]
            of_label = votes.get(label, 0) if label is not None else None
            if labelled and of_label is not None:
                for_answer[of_label] += 1
                for_others[total - of_label] += 1
            elif not labelled and len(leaders) == 1:
                for_answer[top] += 1
                for_others[total - top] += 1
            counts["with_right_sample"] += bool(of_label)
            if not votes:
                counts["no_vote"] += 1
                continue
            shares += top / total
            counts["unanimous"] += top == total
            counts["single_vote"] += total == 1
            outcome = "tie"
            if len(leaders) == 1:
                outcome = "unlabelled" if label is None else "right" if leaders[0] == label else "wrong"
            counts[outcome] += 1
            counts["labelled_with_majority"] += outcome in ("right", "wrong")
            bins[_bin(top, total)][outcome] += 1
        voted = len(ids) - counts["no_vote"]
        with_majority = voted - counts["tie"]
        return {
            "agreement": {
                "mean_majority_share_of_votes": round(shares / voted, 6) if voted else None,
                "unanimous": counts["unanimous"],
                "single_vote": counts["single_vote"],
                "ties": counts["tie"],
                "questions_without_votes": counts["no_vote"],
                "bins": {name: {"questions": outcomes.total(), **outcomes} for name, outcomes in bins.items()},
            },
            "yield": {
                "with_majority": with_majority,
                "with_majority_share": _share(with_majority, len(ids)),
                "with_label": labelled,
                "labelled_with_majority": counts["labelled_with_majority"],
                "majority_right": counts["right"],
                "majority_right_share": _share(counts["right"], counts["labelled_with_majority"]),
                "with_right_sample": counts["with_right_sample"],
                "with_right_sample_share": _share(counts["with_right_sample"], labelled),
            },
            "votes_per_question": {
                "reference": "label" if labelled else "majority",
                "for_reference": {str(size): for_answer[size] for size in sorted(for_answer)},
                "for_others": {str(size): for_others[size] for size in sorted(for_others)},
            },
        }


def _pool(tallies: Iterable[Mapping[str, _Tally]]) -> dict[str, _Tally]:
    """The votes of each question under all settings together."""
    pooled: dict[str, _Tally] = {}
    for part in tallies:
        for key, tally in part.items():
            whole = pooled.setdefault(key, _Tally())
            whole.samples += tally.samples
            for answer, count in tally.votes.items():
                whole.votes[answer] = whole.votes.get(answer, 0) + count
    return pooled


def _bin(top: int, total: int) -> str:
    """The bin of a share, in whole numbers: 3 of 5 is exactly 60 %."""
    if top == total:
        return AGREEMENT_BINS[-1]
    return AGREEMENT_BINS[-(-5 * top // total) - 1]


def _sum(counters: Iterable[Counter]) -> Counter:
    total: Counter = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _lengths(counts: Counter[int]) -> dict[str, Any] | None:
    """Mean, median and others of lengths given as {length: how many have it}; `histogram` is what a picture needs."""
    total = counts.total()
    if not total:
        return None
    ranked = sorted(counts)

    def at(rank: int) -> int:
        """The length at a rank, counted from 1."""
        for length in ranked:
            rank -= counts[length]
            if rank <= 0:
                return length
        raise AssertionError("a rank beyond the last")

    return {
        "samples": total,
        "mean": round(sum(length * count for length, count in counts.items()) / total, 6),
        "median": (at((total + 1) // 2) + at(total // 2 + 1)) / 2,
        "p95": at(-(-95 * total // 100)),
        "longest": ranked[-1],
        "histogram": {str(length): counts[length] for length in ranked},
    }
