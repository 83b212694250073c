"""Self-consistency: the samples of a question vote, and the vote sorts them into positives and negatives.

Rules
- A sample votes with the value of its answer: 18, 18.0 and \\boxed{18} are one vote each for the same answer.
- A sample without an answer abstains: it is neither a positive nor a negative.
- `label_source="gold"`: the votes equal to the label are positives, all others negatives. Where none agrees, the
  question has no positive and keeps its negatives.
- `label_source="majority"`: the most frequent answer becomes the label, its samples are positives, all others
  negatives. A tie decides nothing: no label, no positive, no negative.
- Texts that are equal after folding white space vote one by one but are kept once; a negative equal to a positive is
  left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..answers import answers_equal, extract_answer, format_answer, parse_label
from ..data.text_files import has_lone_surrogate
from ..errors import ConfigError
from ..records import Sample, Selection


LABEL_SOURCES = ("gold", "majority")


def check_label_source(label_source: str) -> None:
    """Raises a [`ConfigError`] that names the valid sources if `label_source` is none of them."""
    if label_source not in LABEL_SOURCES:
        raise ConfigError(f"Unknown label_source {label_source!r}: expected one of {', '.join(LABEL_SOURCES)}.")


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
    if not text.strip():
        return "blank"
    if has_lone_surrogate(text):
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

    Returns:
        [`Selection`]: The positives, the negatives and the counts behind them.

    Raises:
        ConfigError: `label_source` is unknown, or `"gold"` comes without a label.
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
    if label_source == "gold" and label is None:
        raise ConfigError("label_source='gold' needs a label: give one, or use label_source='majority'.")
    gold = None if label is None else parse_label(label, task_kind, choices)

    dropped: Counter[str] = Counter()
    num_samples = abstentions = 0
    raw = None
    values: list[Any] = []  # one entry a distinct answer
    texts: list[list[str]] = []  # the texts that reach values[i]
    order: list[tuple[int, str]] = []  # (index of its answer, text) of each vote, as drawn
    for sample in samples:
        num_samples += 1
        if not isinstance(sample, Sample):
            sample = Sample(sample)
        problem = text_problem(sample.text) if sample.status == "ok" else f"status {sample.status}"
        if problem is not None:
            dropped[problem] += 1
            continue
        if raw is None:
            raw = sample.text
        answer = extract_answer(sample.text, task_kind, choices)
        if answer is None:
            abstentions += 1
            continue
        index = next((i for i, value in enumerate(values) if answers_equal(value, answer, task_kind)), len(values))
        if index == len(values):
            values.append(answer)
            texts.append([])
        texts[index].append(sample.text)
        order.append((index, sample.text))

    ranking = sorted(range(len(values)), key=lambda i: -len(texts[i]))  # stable: the answer drawn first leads
    tie = len(ranking) > 1 and len(texts[ranking[0]]) == len(texts[ranking[1]])
    winner = ranking[0] if ranking and not tie else None
    right = (
        None if gold is None else next((i for i, v in enumerate(values) if answers_equal(v, gold, task_kind)), None)
    )

    if label_source == "gold":
        chosen, positive = label, right
        decided = True
    else:
        chosen, positive = (None if winner is None else _write(values[winner])), winner
        decided = winner is not None
    positives, negatives, duplicates = _split(order, positive) if decided else ((), (), 0)
    return Selection(
        label=chosen,
        positives=positives,
        negatives=negatives,
        raw=raw,
        votes=tuple((_write(values[i]), len(texts[i])) for i in ranking),
        majority=None if winner is None else _write(values[winner]),
        tie=tie,
        num_samples=num_samples,
        abstentions=abstentions,
        dropped=dict(dropped),
        duplicates=duplicates,
        gold_votes=None if gold is None else (0 if right is None else len(texts[right])),
        majority_is_gold=None if gold is None else (winner is not None and winner == right),
    )


def _write(answer: Any) -> str:
    """Returns an answer as text; what a user's own function returns may be neither a number nor a text."""
    try:
        return format_answer(answer)
    except TypeError:
        return str(answer)


def _split(order: list[tuple[int, str]], positive: int | None) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Returns positives and negatives, each text once, and the number of texts left out as equal to another."""
    seen: set[str] = set()
    kept: dict[bool, list[str]] = {True: [], False: []}
    for is_positive in (True, False):  # positives first, so that a negative equal to one is left out
        for index, text in order:
            if (index == positive) is not is_positive:
                continue
            folded = fold_whitespace(text)
            if folded not in seen:
                seen.add(folded)
                kept[is_positive].append(text)
    return tuple(kept[True]), tuple(kept[False]), len(order) - len(kept[True]) - len(kept[False])
