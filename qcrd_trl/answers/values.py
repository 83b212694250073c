"""Answers as values: gold labels, comparison and printing."""

import math
import numbers
import re
from collections.abc import Callable, Hashable, Mapping
from decimal import Decimal
from fractions import Fraction

from ..errors import ConfigError, DataError
from .choice import Options, extract_choice
from .nli import LABELS, extract_nli
from .normalise import clean
from .number import extract_number
from .text import extract_text, normalise_text


TASK_KINDS = ("number", "choice", "nli", "text")

Answer = Fraction | str
TaskKind = str | Callable[[str], Hashable | None]


def check_task_kind(task_kind: TaskKind) -> None:
    """Raise a [`ConfigError`] unless `task_kind` is one of the kinds or callable."""
    if not callable(task_kind) and task_kind not in TASK_KINDS:
        kinds = ", ".join(repr(kind) for kind in TASK_KINDS)
        raise ConfigError(
            f"`task_kind` is {task_kind!r}, but must be one of {kinds}, or a function from a text to an answer."
        )


def check_choices(choices: Mapping[str, str] | None) -> None:
    """Raise a [`ConfigError`] unless `choices` maps single letters to texts."""
    if choices is None:
        return
    if not isinstance(choices, Mapping) or not choices:
        raise ConfigError(f"`choices` must map letters to option texts, such as {{'A': 'bank'}}; got {choices!r}.")
    if bad := [key for key in choices if not (isinstance(key, str) and re.fullmatch("[A-Za-z]", key))]:
        raise ConfigError(f"`choices` must have single letters A-Z as keys; got {bad[0]!r}. Rename the options.")


def extract_answer(
    text: str | None, task_kind: TaskKind, choices: Mapping[str, str] | None = None
) -> Fraction | str | Hashable | None:
    """Extract the answer that a text finally commits to.

    A boxed answer, GSM8K's `####` and cues such as "the answer is" commit; the last one counts, and what is taken back
    ("Wait, no ...") does not. Without any of them, the sentence that concludes the text is read.

    Args:
        text (`str` or `None`):
            A rationale, or a bare answer such as `"32"`.
        task_kind (`str` or `Callable`):
            `"number"`, `"choice"`, `"nli"` or `"text"`; or a function that takes the text and returns the answer (or
            `None`).
        choices (`Mapping[str, str]`, *optional*):
            For `"choice"`: letter to option text. When given, only its letters count, and an answer in the words of one
            option maps to its letter.

    Returns:
        `Fraction`, `str` or `None`: an exact number without unit or percent sign; an upper-case letter;
        `"entailment"`, `"neutral"` or `"contradiction"`; or folded text. `None` means no vote: the text is empty or
        `None`, refuses, or commits to no single answer.

    Raises:
        `ConfigError`: if `task_kind` is unknown or `choices` does not map letters to texts.
        `TypeError`: if `text` is neither a string nor `None`.

    Examples:

    ```python
    >>> from qcrd_trl.answers import extract_answer
    >>> extract_answer("15 - 4 = 11, so 11 apples are left after 2 days.", "number")
    Fraction(11, 1)
    >>> extract_answer("The answer is bank.", "choice", choices={"A": "tree", "B": "bank"})
    'B'
    ```
    """
    if task_kind == "number" and type(text) is str:  # as most are: without the looks below
        return None if not text or text.isspace() else extract_number(text)
    check_task_kind(task_kind)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"`text` must be a string or None; got {type(text).__name__}. Join lists of messages first.")
    if text is None or not text.strip():
        return None
    if callable(task_kind):
        return task_kind(text)
    if task_kind == "number":
        return extract_number(text)
    if task_kind == "choice":
        check_choices(choices)
        return extract_choice(text, choices)
    return extract_nli(text) if task_kind == "nli" else extract_text(text)


def parse_label(
    label: object, task_kind: TaskKind, choices: Mapping[str, str] | None = None
) -> Fraction | str | Hashable:
    """Read the gold label of a dataset as a value that extracted answers compare with.

    Args:
        label (`Any`):
            The label: for `"number"` an `int`, a finite `float` or a text ("1,234", "... #### 72"); for `"choice"` a letter
            ("B", "(B)") or the text of an option; for `"nli"` the name of the class, never its index, as datasets
            number the classes differently.
        task_kind (`str` or `Callable`):
            As for [`extract_answer`].
        choices (`Mapping[str, str]`, *optional*):
            As for [`extract_answer`].

    Returns:
        `Fraction` or `str`: the label's value.

    Raises:
        `DataError`: if the label cannot be read.
        `ConfigError`: if `task_kind` is unknown or `choices` does not map letters to texts.

    Examples:

    ```python
    >>> from qcrd_trl.answers import parse_label
    >>> parse_label("48 / 2 = 24. 48 + 24 = 72. #### 72", "number")
    Fraction(72, 1)
    ```
    """
    check_task_kind(task_kind)
    value = None
    if callable(task_kind):
        value = task_kind(label) if label is not None else None
    elif task_kind == "number":
        value = _number(label)
    elif isinstance(label, str) and label.strip():
        if task_kind == "choice":
            check_choices(choices)
            value = _choice_label(label, choices)
        elif task_kind == "nli":
            value = extract_nli(label)
        else:
            value = normalise_text(clean(label)) or None
    elif task_kind == "text" and isinstance(label, (int, float)) and not isinstance(label, bool):
        value = normalise_text(str(label))
    if value is None:
        raise DataError(f"The label {_shown(label)} cannot be read as {_expected(task_kind, choices)}.")
    return value


def _choice_label(label: str, choices: Mapping[str, str] | None) -> str | None:
    options = Options(choices)
    if (match := re.fullmatch(r"\W*([A-Za-z])\W*", clean(label))) and match.group(1).upper() in options.letters:
        return match.group(1).upper()
    return options.by_text(clean(label)) or extract_choice(label, choices)


def _expected(task_kind: TaskKind, choices: Mapping[str, str] | None) -> str:
    if callable(task_kind):
        return "an answer: the task's function returned None for it"
    if task_kind == "choice":
        return (
            f"one of the letters {', '.join(choices)} or the text of an option" if choices else "a letter, such as 'B'"
        )
    if task_kind == "nli":
        return f"one of {', '.join(LABELS)}. Map class indices to names first"
    return "a number, such as 72, '1,234' or '... #### 72'" if task_kind == "number" else "a text that is not empty"


def _shown(label: object) -> str:
    text = repr(label) if not isinstance(label, int) else "an integer" if abs(label) >= 10**30 else repr(label)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _number(value: object) -> Fraction | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (Fraction, numbers.Integral)):
        return Fraction(value)
    if isinstance(value, Decimal):
        return Fraction(value) if value.is_finite() and abs(value.adjusted()) <= 400 else None
    if isinstance(value, numbers.Real):
        # The shortest decimal that names the float: 0.1 is one tenth, not the binary number next to it.
        return Fraction(repr(float(value))) if math.isfinite(value) else None
    return extract_number(value) if isinstance(value, str) and value.strip() else None


def answers_equal(a: object, b: object, task_kind: TaskKind = "number") -> bool:
    """Compare two answers by value.

    Args:
        a (`Any`):
            An answer that [`extract_answer`] or [`parse_label`] returned, or a value they would read.
        b (`Any`):
            The other answer.
        task_kind (`str` or `Callable`, *optional*, defaults to `"number"`):
            As for [`extract_answer`]; for a function, `==` decides.

    Returns:
        `bool`: whether both are the same answer. `None`, and what cannot be read, equals nothing.

    Raises:
        `ConfigError`: if `task_kind` is unknown.

    Examples:

    ```python
    >>> from qcrd_trl.answers import answers_equal
    >>> answers_equal("18", 18.0)
    True
    ```
    """
    check_task_kind(task_kind)
    if a is None or b is None:
        return False
    if callable(task_kind):
        return bool(a == b)
    try:
        return parse_label(a, task_kind) == parse_label(b, task_kind)
    except DataError:
        return False


def format_answer(value: Fraction | int | float | str) -> str:
    """Write an answer as text: the label of a training row.

    Args:
        value (`Fraction`, `int`, `float` or `str`):
            An answer.

    Returns:
        `str`: a whole number or a finite decimal where the number is one, else a fraction; strings as they are.

    Raises:
        `TypeError`: if `value` is no answer, such as `None`.

    Examples:

    ```python
    >>> from fractions import Fraction
    >>> from qcrd_trl.answers import format_answer
    >>> format_answer(Fraction(7, 2)), format_answer(Fraction(2, 3))
    ('3.5', '2/3')
    ```
    """
    if isinstance(value, str):
        return value
    if type(value) is Fraction and value.denominator == 1:
        return str(value.numerator)
    number = _number(value)
    if number is None:
        raise TypeError(
            f"An answer is a number or a string; got {value!r}. `None` is no answer: drop the row instead."
        )
    rest, twos, fives = number.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places > 20:
        return f"{number.numerator}/{number.denominator}"
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"
