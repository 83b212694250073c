"""The number that a text ends on where nothing announces an answer.

Most rationales end in a sentence such as "Therefore, Ann has 12 apples left." or "She has 7 + 5 = 12 apples." Where a text
checks no answer, and explains none, its last sentence decides, and the others are not looked at. Where that holds one bare
number, or one behind its last equals sign, so does that number, whatever else it says. Each short way here is taken under
conditions in which the long one, behind it, can give nothing else.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from .conclusion import (
    ASIDE,
    CONCLUSION,
    EQUATION_REACH,
    EXPLAINS,
    LONGEST_SENTENCE,
    REMARK,
    THEREFORE,
    Results,
    behind_last_sign,
    blank_asides,
    has_equation,
    is_counted,
    pick,
    says_none_left,
    usable_numbers,
)
from .guards import has_any, lowered, spaced_words
from .numerals import only_plain_number
from .sentences import sentences
from .words import VOCABULARY


_CHECK = re.compile(
    r"^\W*(?:(?:double[- ]?)?check(?:ing)?\b|verif\w+|as a check|(?:to|(?:we|you) (?:can|could)(?: also)?|let's|let us) "
    r"(?:double[- ]?check|check|verify|confirm)\b)",
    re.IGNORECASE,
)
_EXPLAINED = 4  # sentences of which one behind the first may explain the answer in front of it
_CHECKING = ("check", "verif", "confirm")  # words without one of which it cannot match
# What `_CHECK` and `EXPLAINS` begin a sentence with, behind the end of another.
_MAY_CHECK = re.compile(r"[.!?\n]\W*(?:double|check|verif|as a check|to |we |you |let)")
_MAY_EXPLAIN = re.compile(
    r"[.!?\n]\W*(?:to [fsgacdruw]|this is b|here|explan|because|the reason|you can|reasoning|we can)"
)
# What either of them finds, this finds.
_MAY_TALK = re.compile(
    r"[.!?\n]\W*(?:double|check|verif|as a check|to |we |you |let|this is b|here|explan|because|the reason|reasoning)"
)
_INNER_STOP = re.compile(r"[.!?][.!?]*[\"')\]]*\s")  # wherever a sentence ends, and another follows in its line
# What may open another clause behind the result of an equation, dismiss the result, or write another equation.
_AFTER_RESULT = (
    *(": ", "so", "therefore", "thus", "hence", "that", "which", "round", "meaning", "giving", "leaving", "making"),
    *("resulting", "total of", "i.e", "i e", "consequently"),
    *("wrong", "incorrect", "too ", "not", "n't", "equal", "->"),
)
# Words of numbers, and those without one of which nothing rejects or dismisses a number, gives two, or equates.
_UNPLAIN = VOCABULARY | frozenset(
    [*"not t cannot never neither nor rather instead opposed unlike wrong incorrect too or equal equals".split()]
)


def conclude(text: str, low: str | None = None) -> Fraction | None:
    """The number that a text ends on where nothing announces an answer.

    Sentences are read from the last one back; remarks and checks of an answer are passed over. `low` is the text in lower
    case, where that is known.
    """
    low = lowered(text) if low is None else low
    may_talk = _MAY_TALK.search(low)
    may_check = may_talk and has_any(low, _CHECKING) and _MAY_CHECK.search(low)
    last = "" if may_check else _last_sentence(text)
    # A conclusion is never passed over for what is said in front of an explanation.
    explains = may_talk and not CONCLUSION.match(last) and _MAY_EXPLAIN.search(low)
    if explains and not may_check:
        explains = any(EXPLAINS.match(part[-LONGEST_SENTENCE:]) for part in sentences(text, _EXPLAINED)[1:])
    if not explains and (value := _deciding(last, text)) is not None:
        return value
    parts = [part[-LONGEST_SENTENCE:] for part in sentences(text)]
    if may_check:
        parts = _before_check(parts)
    results = Results(lambda: reversed(parts[-EQUATION_REACH:]))
    explanation = next((place for place, part in enumerate(parts[:_EXPLAINED]) if place and EXPLAINS.match(part)), 0)
    if not explanation:
        return _backwards(parts, results)
    end = _backwards(parts, results)
    if any(CONCLUSION.match(later) for later in parts[explanation + 1 :]):
        return end
    # The answer first, then how it was found: they agree, or the way to it is told without an equation.
    head = _backwards(parts[:explanation], results)
    if head is None or head == end or (results.found() and head not in results.found()):
        return end
    return head


def _backwards(parts: list[str], results: Results) -> Fraction | None:
    remark = None
    for part in reversed(parts[-60:]):
        if says_none_left(part):
            return Fraction(0)
        value = _concluded(part, results)
        if value is None:
            continue
        remarks = REMARK.match(part) and "=" not in part
        remarks = remarks and all(match.group("colon") for match in THEREFORE.finditer(part))
        if len(parts) > 1 and (remarks or ASIDE.fullmatch(part.rstrip("."))):
            remark = value if remark is None else remark
            continue
        return value
    return remark


def _before_check(parts: list[str]) -> list[str]:
    """The sentences without a check of the answer, which comes after a number."""
    looked, answered = 0, False
    for index, part in enumerate(parts):
        if not _CHECK.match(part):
            continue
        while looked < index and not answered:
            answered = bool(usable_numbers(parts[looked]))
            looked += 1
        if answered:
            return parts[:index]
    return parts


def _deciding(sentence: str, text: str) -> Fraction | None:
    """What `_backwards` finds in the last sentence of a text; `None` where others may count as well."""
    if len(sentence) > LONGEST_SENTENCE or sentence[:1] in ("", "(", "[") or REMARK.match(sentence):
        return None
    if says_none_left(sentence):
        return Fraction(0)
    value = _plain_number(sentence)
    if value is None and (picked := pick(sentence, Results(lambda: _with_equations(text)))):
        value = picked.value
    return value


def _with_equations(text: str) -> Iterator[str]:
    """The last sentences of a text, the last one first, but for lines that hold no equation."""
    if sum(map(text.count, "\n.!?")) >= EQUATION_REACH:
        yield from reversed([part[-LONGEST_SENTENCE:] for part in sentences(text)][-EQUATION_REACH:])
        return
    for line in reversed(text.split("\n")):
        if has_equation(line):
            yield from reversed([part[-LONGEST_SENTENCE:] for part in sentences(line)])


def _concluded(sentence: str, results: Results) -> Fraction | None:
    """The value that `pick` takes of a sentence."""
    value = _plain_number(sentence)
    if value is None and (picked := pick(sentence, results)):
        value = picked.value
    return value


def _last_sentence(text: str) -> str:
    """What `sentences` gives last: a line feed always ends a sentence, and so does a full stop behind a common word."""
    line = text[text.rfind("\n") + 1 :]
    stop = line.rfind(". ", 0, -2)
    if stop > 0:
        word = line[max(0, stop - 8) : stop].rpartition(" ")[2]
        if len(word) > 4 and word.isascii() and word.isalpha() and word.lower() != "approx":
            line = line[stop + 1 :]
    if not _INNER_STOP.search(line.rstrip()):
        return line.strip()
    return sentences(line)[-1]


def _plain_number(sentence: str) -> Fraction | None:
    """The same where it does not depend on the words of the sentence, or else `None`."""
    if not sentence.isascii():
        # Joined to another number it is none, by whichever sign.
        sentence = sentence.replace("×", "*").replace("÷", "+")
        if not sentence.isascii():
            return None
    if "(" in sentence or "[" in sentence:
        sentence = blank_asides(blank_asides(sentence))
    if "=" in sentence:
        # The number behind the last equals sign: what stands in front of the sign can neither reject nor outdo it.
        number = behind_last_sign(sentence)
        if number is None or " or " in sentence or has_any(sentence[number.end :].lower(), _AFTER_RESULT):
            return None
        return number.value
    number = only_plain_number(sentence)
    if number is None or number.operand or "->" in sentence:
        return None
    # A label such as the 2 of "This is step 2."
    following = sentence[number.end : number.end + 2].lstrip(" ")[:1]
    if following in (":", ".", ")") and is_counted(sentence[max(0, number.start - 40) : number.start]):
        return None
    return number.value if _UNPLAIN.isdisjoint(spaced_words(sentence).split()) else None
