"""A teacher's completion to the rationale in it: explanation and answer told apart, what follows the answer cut.

Teachers are asked for `<Explanation>: ... <Answer>: ...` (QCRD). They write it in many ways: in lower case, with markdown
stars, as a heading, as a pair of tags, the answer first, or not at all; and without a stop text they go on to a next
question. A text without these marks is left as it is, up to a next question behind its answer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..answers import answers_equal, extract_answer, format_answer
from ..answers.cues import find_commits
from ..answers.normalise import clean
from ..errors import ConfigError


PARSING = {"auto": None, "always": True, "never": False}

_STARS = r"[*_`#> \t]*"
# In angle brackets a mark counts anywhere; as a plain word only at the beginning of a line, with its colon.
_MARK = re.compile(
    rf"(?:(?:^{_STARS})?<[ \t]*(?P<tag>explanation|rationale|reasoning|answer)[ \t]*>{_STARS}[:：]?{_STARS}|"
    rf"^{_STARS}(?P<word>explanation|rationale|reasoning|(?:final )?answer)[*_`]*[ \t]*[:：]{_STARS})",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(r"<[ \t]*(?:explanation|rationale|reasoning|answer)[ \t]*>", re.IGNORECASE)
_CLOSING = re.compile(r"<[ \t]*/[ \t]*(?:explanation|rationale|reasoning|answer)[ \t]*>", re.IGNORECASE)
_NEXT = re.compile(
    rf"\n{_STARS}(?=[<ehinpqu])(?:<[ \t]*(?:question|problem|explain|predict)[ \t]*>|"
    r"(?:next )?(?:question|q|problem|human|user|premise|input|instruction|exercise)(?: ?#?\d{1,3})?[*_`]*[ \t]*[:：])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ParsedCompletion:
    """
    The parts of a completion.

    Attributes:
        explanation (`str`):
            The reasoning, without marks; the whole text where it has none.
        answer (`str` or `None`):
            What stands behind the mark of the answer; `None` without that mark.
        form (`str`):
            `"explanation_answer"`, `"answer_explanation"`, `"answer"` (an answer mark alone), `"explanation"`, or
            `"plain"`, a text without marks.
    """

    explanation: str
    answer: str | None
    form: str


def has_marks(text: str) -> bool:
    """Whether a text is in the asked form: a mark in angle brackets, or both an explanation and an answer in plain words."""
    if "<" in text and _TAG.search(text):
        return True
    if ":" not in text and "：" not in text:
        return False
    low = text.lower()
    if "answer" not in low or not ("explanation" in low or "rationale" in low or "reasoning" in low):
        return False
    return len({_is_answer(match) for match in _MARK.finditer(text)}) == 2


def split_completion(
    text: str, task_kind: str | Callable[[str], Any] = "text", choices: Mapping[str, str] | None = None
) -> ParsedCompletion:
    """
    Splits a completion into its explanation and its answer.

    Args:
        text (`str`):
            The completion as the teacher wrote it.
        task_kind (`str` or `Callable`, *optional*, defaults to `"text"`):
            As in [`~qcrd_trl.answers.extract_answer`]. An answer may begin on the line behind its mark and, for `"text"` and
            a function, have several lines; the other kinds' answers are one line.
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text.

    Returns:
        [`ParsedCompletion`]: The parts. What follows the answer is in none of them.

    Example:

    ```python
    >>> from qcrd_trl.sampling.completions import split_completion
    >>> split_completion("**Explanation:** 3 + 4 = 7.\\nAnswer: 7\\n\\nQuestion: and 8?", "number")
    ParsedCompletion(explanation='3 + 4 = 7.', answer='7', form='explanation_answer')
    ```
    """
    if not has_marks(text):
        return ParsedCompletion(cut_run_on(text), None, "plain")
    marks = list(_MARK.finditer(text))
    first = marks[0]
    second = next((mark for mark in marks[1:] if _is_answer(mark) != _is_answer(first)), None)
    rest = text[second.end() :] if second else ""
    if not _is_answer(first):  # the usual order
        explanation = text[first.end() : second.start()] if second else _until_next(text[first.end() :])
        if second is None:
            return ParsedCompletion(_tidy(cut_run_on(explanation)), None, "explanation")
        return ParsedCompletion(_tidy(explanation), _answer(rest, task_kind), "explanation_answer")
    before, answer = text[: first.start()], text[first.end() :]
    if second is None or before.strip():  # reasoning without a mark of its own, then the answer
        return ParsedCompletion(_tidy(before), _answer(answer, task_kind), "answer")
    answer = _answer(text[first.end() : second.start()], task_kind)
    return ParsedCompletion(_tidy(_until_next(rest)), answer, "answer_explanation")


def cut_run_on(text: str) -> str:
    """
    Cuts what a teacher wrote behind its answer: a next question that it went on to ask itself.

    Args:
        text (`str`):
            A completion.

    Returns:
        `str`: The text up to the first next question ("Question:", "Q2:", "<Question>") in front of which an answer
        stands; the text itself, unchanged, where there is none.
    """
    if "\n" not in text or (":" not in text and "：" not in text and "<" not in text):
        return text
    for match in islice(_NEXT.finditer(text), 5):
        head = text[: match.start()]
        if next(find_commits(clean(head), limit=20), None):
            return head.rstrip()
    return text


def parsing_of(parse_completions: str, is_samples_file: bool) -> bool | None:
    """
    What [`read_answer`] is told for the flag `--parse_completions`.

    Args:
        parse_completions (`str`):
            `"auto"`, `"always"` or `"never"`.
        is_samples_file (`bool`):
            Whether the texts come from a file of `qcrd sample`, all of whose texts are completions.

    Returns:
        `bool` or `None`: Whether explanation and answer are told apart; `None`: where marks say so.

    Raises:
        ConfigError: the flag is none of these.
    """
    if parse_completions not in PARSING:
        raise ConfigError(f"Unknown parse_completions {parse_completions!r}: expected one of {', '.join(PARSING)}.")
    return True if parse_completions == "auto" and is_samples_file else PARSING[parse_completions]


def read_answer(
    text: str,
    task_kind: str | Callable[[str], Any],
    choices: Mapping[str, str] | None = None,
    parse: bool | None = None,
) -> tuple[Any, ParsedCompletion | None]:
    """
    Reads the answer that a sample votes with.

    Args:
        text (`str`):
            The sample.
        task_kind (`str` or `Callable`):
            As in [`~qcrd_trl.answers.extract_answer`]. A function reads the whole completion, without what follows the
            answer.
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text.
        parse (`bool`, *optional*):
            Whether the text is a completion that explanation and answer are told apart in. Left out: if it has the marks.

    Returns:
        `tuple[Any, ParsedCompletion | None]`: The answer (`None`: it does not vote), and the parts; `None` where the text
        was read as it is.
    """
    if parse is False or (parse is None and not has_marks(text)):
        return extract_answer(text, task_kind, choices), None
    parsed = split_completion(text, task_kind, choices)
    if callable(task_kind):
        return extract_answer(cut_run_on(text), task_kind), parsed
    return extract_answer(parsed.explanation if parsed.answer is None else parsed.answer, task_kind, choices), parsed


def read_completion(
    text: str,
    task_kind: str | Callable[[str], Any],
    choices: Mapping[str, str] | None = None,
    parse: bool | None = True,
) -> tuple[Any, str | None]:
    """
    Reads the answer and the rationale of a sample.

    Args:
        text (`str`):
            The sample.
        task_kind (`str` or `Callable`):
            As in [`read_answer`].
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text.
        parse (`bool`, *optional*, defaults to `True`):
            As in [`read_answer`].

    Returns:
        `tuple[Any, str | None]`: The answer (`None`: it does not vote), and the rationale that reaches it (`None`: the
        completion explains nothing).
    """
    if parse is False or not has_marks(text):
        whole = cut_run_on(text) if parse else text
        return extract_answer(whole, task_kind, choices), whole
    value, parsed = read_answer(text, task_kind, choices, parse)
    if value is None:
        return None, parsed.explanation or None
    return value, as_rationale(parsed, value, task_kind, choices)


def as_rationale(
    parsed: ParsedCompletion,
    value: Any,
    task_kind: str | Callable[[str], Any],
    choices: Mapping[str, str] | None = None,
) -> str | None:
    """
    The text that a student learns from: it reaches its answer by itself.

    Args:
        parsed ([`ParsedCompletion`]):
            The parts of a completion.
        value (`Any`):
            The answer that it voted for.
        task_kind (`str` or `Callable`):
            As in [`~qcrd_trl.answers.extract_answer`].
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text.

    Returns:
        `str` or `None`: The explanation alone, if that answer is read from it; else the explanation and "The answer is X.";
        `None` where there is no explanation, or where even so another answer is read.
    """
    if not parsed.explanation:
        return None
    if _reaches(parsed.explanation, value, task_kind, choices):
        return parsed.explanation
    end = "" if parsed.explanation[-1] in ".!?:;)]}\"'" else "."
    words = [_written(value)]
    if parsed.answer and "\n" not in parsed.answer:
        words.insert(task_kind in ("number", "choice", "nli"), parsed.answer.rstrip(". "))
    for answer in words:
        text = f"{parsed.explanation}{end} The answer is {answer}."
        if _reaches(text, value, task_kind, choices):
            return text
    return None


def _reaches(text: str, value: Any, task_kind: Any, choices: Mapping[str, str] | None) -> bool:
    return answers_equal(extract_answer(text, task_kind, choices), value, task_kind)


def _written(value: Any) -> str:
    try:
        return format_answer(value)
    except TypeError:
        return str(value)


def _is_answer(mark: re.Match) -> bool:
    return (mark.group("tag") or mark.group("word")).lower().endswith("answer")


def _until_next(text: str) -> str:
    """A part up to whatever mark or question comes next."""
    ends = [match.start() for match in (_MARK.search(text), _NEXT.search(text)) if match]
    return text[: min(ends)] if ends else text


def _answer(text: str, task_kind: Any) -> str:
    text = _CLOSING.split(_until_next(f"\n{text}"), maxsplit=1)[0].strip(" \t\r\n*_`")
    return text if callable(task_kind) else text.partition("\n")[0].strip(" \t\r*_`")


def _tidy(text: str) -> str:
    return _CLOSING.sub("", text).strip(" \t\r\n*_`")
