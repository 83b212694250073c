"""Self-consistency: the samples of a question vote, and the vote sorts them into positives and negatives.

Rules
- A sample votes with the value of its answer: 18, 18.0 and \\boxed{18} are one vote each for the same answer.
- A sample without an answer abstains: it is neither a positive nor a negative.
- `label_source="gold"`: the votes equal to the label are positives, all others negatives. Where none agrees, the
  question has no positive and keeps its negatives.
- `label_source="majority"`: the most frequent answer becomes the label, its samples are positives, all others
  negatives. A tie decides nothing: no label, no positive, no negative.
- `label_source="threshold"`: as by majority, where the most frequent answer has at least the share `min_agreement` of all
  samples of the question, abstentions and unusable ones included. Below it there is no label.
- With `label_source="gold"`, `min_agreement` asks the same of the label: where too few samples reach it, none of them is a
  positive (a right answer reached once in ten is often luck). Label and negatives stay.
- Texts that are equal after folding white space vote one by one but are kept once; a negative equal to a positive is
  left out. With `near_duplicates` below 1, so are texts nearly equal to one kept before them, positives among positives and
  negatives among negatives: a negative one word away from a positive is worth most.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..answers import answers_equal, format_answer, parse_label
from ..data.text_files import has_lone_surrogate
from ..errors import ConfigError
from ..records import Sample, Selection
from .completions import read_completion


LABEL_SOURCES = ("gold", "majority", "threshold")
DEFAULT_AGREEMENT = 0.6  # three of five samples


def check_label_source(label_source: str) -> None:
    """Raises a [`ConfigError`] that names the valid sources if `label_source` is none of them."""
    if label_source not in LABEL_SOURCES:
        raise ConfigError(f"Unknown label_source {label_source!r}: expected one of {', '.join(LABEL_SOURCES)}.")


def check_agreement(label_source: str, min_agreement: float | None) -> None:
    """Raises a [`ConfigError`] if no answer could have, or be asked for, this share of the samples."""
    if min_agreement is None:
        return
    if label_source == "majority":
        raise ConfigError(
            f"label_source='majority' takes every majority, whatever its share: use label_source='threshold' with "
            f"min_agreement {min_agreement}."
        )
    if not 0 < min_agreement <= 1:
        raise ConfigError(f"min_agreement is a share of the samples, above 0 and at most 1; got {min_agreement}.")


def check_near_duplicates(near_duplicates: float) -> None:
    """Raises a [`ConfigError`] if the likeness is out of range, or what measures it is not installed."""
    if not 0 < near_duplicates <= 1:
        raise ConfigError(f"near_duplicates is a likeness above 0 and at most 1 (off); got {near_duplicates}.")
    if near_duplicates < 1:
        try:
            import rapidfuzz  # noqa: F401
        except ImportError:
            raise ConfigError(
                "near_duplicates needs rapidfuzz: install it by `pip install 'qcrd_trl[select]'`, or leave it at 1 (off)."
            ) from None


def text_problem(text: Any) -> str | None:
    """
    Says why a text cannot be used.

    Args:
        text (`Any`):
            What stands where a text is expected.

    Returns:
        `str` or `None`: `"null"`, `"not_text"`, `"blank"` or `"lone_surrogate"` (half of a surrogate pair, which no
        UTF-8 file and no tokenizer can hold); `None` for a usable text.
    """
    if text is None:
        return "null"
    if not isinstance(text, str):
        return "not_text"
    if not text or text.isspace():
        return "blank"
    if not text.isascii() and has_lone_surrogate(text):
        return "lone_surrogate"
    return None


def fold_whitespace(text: str) -> str:
    """Returns `text` with each run of white space as one space: two texts equal in this form count as one."""
    return " ".join(text.split())


def select_rationales(
    samples: Iterable[str | Sample | None],
    *,
    task_kind: str | Callable[[str], Any],
    label: str | None = None,
    choices: Mapping[str, str] | None = None,
    label_source: str = "gold",
    min_agreement: float | None = None,
    near_duplicates: float = 1.0,
    parse_completions: bool | None = False,
) -> Selection:
    """
    Sorts the samples of one question into positive and negative rationales.

    Args:
        samples (`Iterable[str | Sample | None]`):
            The sampled texts, in the order in which they were drawn.
        task_kind (`str` or `Callable`):
            One of [`~qcrd_trl.answers.TASK_KINDS`], or a function from a text to its answer (or `None`).
        label (`str`, *optional*):
            The gold answer. With `label_source="majority"` it only serves to count how often the vote is right.
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text, for multiple-choice questions.
        label_source (`str`, *optional*, defaults to `"gold"`):
            `"gold"`: positives agree with `label`. `"majority"`: positives agree with the most frequent answer.
            `"threshold"`: the same, if enough samples do.
        min_agreement (`float`, *optional*):
            Share of all samples that must reach the label, in (0, 1]. 0.6 for `"threshold"`, none for `"gold"` if left out.
        near_duplicates (`float`, *optional*, defaults to `1.0`):
            Likeness, in (0, 1], from which a text counts as the same as one before it: 1 less the edits of characters
            (replaced, added, left out) as a share of the longer text. 1: off.
        parse_completions (`bool`, *optional*, defaults to `False`):
            Whether samples are completions that explanation and answer are told apart in, as
            [`~sampling.completions.read_completion`] does. `None`: those that carry the marks.

    Returns:
        [`Selection`]: The positives, the negatives and the counts behind them.

    Raises:
        ConfigError: `label_source` is unknown, `"gold"` comes without a label, or a share is out of range.
        DataError: the label is no answer of this kind.

    Example:

    ```python
    >>> from qcrd_trl.sampling.self_consistency import select_rationales
    >>> chosen = select_rationales(
    ...     ["3 + 4 = 7. The answer is 7.", "3 * 4 = 12. The answer is 12.", "Seven, so the answer is 7.0."],
    ...     task_kind="number",
    ...     label="7",
    ... )
    >>> len(chosen.positives), len(chosen.negatives), chosen.votes
    (2, 1, (('7', 2), ('12', 1)))
    ```
    """
    check_label_source(label_source)
    check_agreement(label_source, min_agreement)
    if min_agreement is None and label_source == "threshold":
        min_agreement = DEFAULT_AGREEMENT
    if label_source == "gold" and label is None:
        raise ConfigError("label_source='gold' needs a label: give one, or use label_source='majority'.")
    gold = None if label is None else parse_label(label, task_kind, choices)
    ballot = _Ballot(task_kind)
    for sample in samples:
        if isinstance(sample, Sample):
            ballot.take(sample.text, sample.status, choices, parse_completions)
        else:
            ballot.take(sample, "ok", choices, parse_completions)

    ranking = ballot.ranking()
    values, counts = ballot.values, ballot.counts
    tie = len(ranking) > 1 and counts[ranking[0]] == counts[ranking[1]]
    winner = ranking[0] if ranking and not tie else None
    right = None if gold is None else ballot.index(gold)
    if label_source == "gold":
        chosen, positive, decided = label, right, True
    else:
        chosen, positive, decided = (None if winner is None else _write(values[winner])), winner, winner is not None
    below = (
        min_agreement is not None
        and positive is not None
        # In whole numbers: 3 of 5 is 0.6, though 3 / 5 may come out below it.
        and counts[positive] < min_agreement * ballot.num_samples * (1 - 1e-9)
    )
    if below and label_source != "gold":
        chosen, decided = None, False
    positives, negatives, duplicates, near = (
        _split(ballot.order, positive, near_duplicates) if decided else ((), (), 0, 0)
    )
    return Selection(
        label=chosen,
        positives=() if below else positives,
        negatives=negatives,
        raw=ballot.raw,
        votes=tuple([(_write(values[i]), counts[i]) for i in ranking]),
        majority=None if winner is None else _write(values[winner]),
        tie=tie,
        num_samples=ballot.num_samples,
        abstentions=ballot.abstentions,
        dropped=ballot.dropped,
        duplicates=duplicates,
        near_duplicates=near,
        without_explanation=ballot.unexplained,
        below_agreement=below,
        statuses=ballot.statuses,
        gold_votes=None if gold is None else (0 if right is None else counts[right]),
        majority_is_gold=None if gold is None else (winner is not None and winner == right),
    )


class _Ballot:
    """
    Takes the samples of a question one by one.

    Attributes:
        values (`list`): the distinct answers, as drawn.
        counts (`list[int]`): how many samples reach each.
        order (`list[tuple[int, str]]`): of each vote with a rationale, the place of its answer, and the rationale.
        raw (`str` or `None`): the first usable text.
        num_samples, abstentions, unexplained (`int`), statuses, dropped (`dict[str, int]`): counts.
    """

    def __init__(self, task_kind: str | Callable[[str], Any]):
        self.task_kind = task_kind
        self.values: list[Any] = []
        self.counts: list[int] = []
        self._places: dict[tuple[int, int], int] = {}  # of numbers
        self.order: list[tuple[int, str]] = []
        self.raw: str | None = None
        self.num_samples = self.abstentions = self.unexplained = 0
        self.statuses: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    def take(self, text: Any, status: str, choices: Mapping[str, str] | None, parse_completions: bool | None) -> None:
        """Counts a sample, and the vote in it."""
        self.num_samples += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        problem = text_problem(text) if status == "ok" else f"status {status}"
        if problem is not None:
            self.dropped[problem] = self.dropped.get(problem, 0) + 1
            return
        answer, text = read_completion(text, self.task_kind, choices, parse_completions)
        if self.raw is None:
            self.raw = text
        if answer is None:
            self.abstentions += 1
            return
        new = len(self.values)
        if self.task_kind == "number":
            place = self._places.setdefault(answer.as_integer_ratio(), new)
        else:
            place = self.index(answer)
        if place is None or place == new:
            place = new
            self.values.append(answer)
            self.counts.append(1)
        else:
            self.counts[place] += 1
        if text is None:
            self.unexplained += 1
        else:
            self.order.append((place, text))

    def index(self, answer: Any) -> int | None:
        """Which of the answers so far this one equals."""
        if self.task_kind == "number":  # exact rationals: equal means the same value
            return self._places.get(answer.as_integer_ratio())
        return next((i for i, value in enumerate(self.values) if answers_equal(value, answer, self.task_kind)), None)

    def ranking(self) -> list[int]:
        """The places of the answers, the one that most samples reach first; among equals the one drawn first."""
        places = range(len(self.values))
        return sorted(places, key=self.counts.__getitem__, reverse=True)  # which keeps the order of equals


def _write(answer: Any) -> str:
    """Returns an answer as text; what a user's own function returns may be neither a number nor a text."""
    try:
        return format_answer(answer)
    except TypeError:
        return str(answer)


def _split(
    order: list[tuple[int, str]], positive: int | None, near_duplicates: float
) -> tuple[tuple[str, ...], tuple[str, ...], int, int]:
    """Returns positives and negatives, each text once, and the numbers of texts left out as equal or nearly equal."""
    folded_texts = _folded([text for _, text in order], everywhere=near_duplicates < 1)
    if folded_texts is None:
        positives = [text for place, text in order if place == positive]
        negatives = [text for place, text in order if place != positive]
        return tuple(positives), tuple(negatives), 0, 0
    seen: set[str] = set()
    kept: dict[bool, list[str]] = {True: [], False: []}
    near = 0
    for is_positive in (True, False):  # positives first, so that a negative equal to one is left out
        folded_here: list[str] = []
        for (index, text), folded in zip(order, folded_texts, strict=True):
            if (index == positive) is not is_positive:
                continue
            if folded in seen:
                continue
            if near_duplicates < 1 and _is_near(folded, folded_here, near_duplicates):
                near += 1
                continue
            seen.add(folded)
            folded_here.append(folded)
            kept[is_positive].append(text)
    num_kept = len(kept[True]) + len(kept[False])
    return tuple(kept[True]), tuple(kept[False]), len(order) - num_kept - near, near


def _folded(texts: list[str], everywhere: bool) -> list[str] | None:
    """
    The texts with their white space folded, but for those that cannot equal another, unless that is wanted everywhere;
    `None`: no two are equal.
    """
    if everywhere:
        return [fold_whitespace(text) for text in texts]
    # Equal texts have equal ends, also when folded: most texts need not be looked at as a whole.
    ends: list[Any] = [tuple(text.rsplit(None, 3)[1:]) for text in texts]
    if len(set(ends)) == len(ends):
        return None
    alike = [ends.count(end) > 1 for end in ends]
    ends = [
        (text.rsplit(None, 12)[1:], text.split(None, 6)[:6]) if like else end
        for end, text, like in zip(ends, texts, alike, strict=True)
    ]
    alike = [ends.count(end) > 1 for end in ends]
    if not any(alike):
        return None
    return [fold_whitespace(text) if like else text for text, like in zip(texts, alike, strict=True)]


def _is_near(text: str, others: list[str], likeness: float) -> bool:
    from rapidfuzz.distance import Levenshtein

    return any(Levenshtein.normalized_similarity(text, other, score_cutoff=likeness) >= likeness for other in others)
