"""Finds the numbers of a text and reads each as an exact rational."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .guards import spaced_words
from .words import PARTS, SCALES, VOCABULARY, find_word_numbers


MAX_PLAIN_DIGITS = 15  # of a number that is read in a short way
MAX_DIGITS = 300  # beyond this a digit string is noise, and Python refuses to read more than 4300 digits

_CURRENCY = r"(?:US\$|[A-Z]{0,3}\$|[€£¥₹₩₽฿¢]|Rs\.?|INR|USD|EUR|GBP|AUD|CAD|JPY|RMB)"
# Begins with a set of characters, not with an alternative, so that it is searched for quickly.
_RUN = re.compile(r"[\d.](?:(?<=\d)|(?<!\d)(?<![A-Za-z]\.)\d)[\d,._']*")
_SPACED_GROUPS = re.compile(r"(?: \d{3})+(\.\d+)?(?!\d|[,.:/]\d)")
_PLAIN = re.compile(r"\d*\.?\d+")
_GROUPED = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}|\d{1,3}(?:'\d{3})+|\d{1,3}(?:_\d{3})+)(\.\d+)?")
_CLOCK = re.compile(r"(?::\d+)+|(?: : \d+)+")
_SLASH = re.compile(r"/(\d+)|(?<=\d) / (\d+)")
_MIXED = re.compile(r"(?: |-| and )(\d{1,9})/(\d{1,9})(?![\d/.]|,\d)")
_EXPONENT = re.compile(r"[eE]([+-]?\d+)(?!\w)")
_TIMES_TEN = re.compile(r" ?[x×*] ?10 ?\^ ?([+-]?\d+)")
_POWER = re.compile(r" ?\^ ?\(?([+-]?\d+)\)?")
_SCALE = re.compile(rf"[ -]?({'|'.join(SCALES)})(?![a-z])|(k|K)(?![\w²/])|( ?bn|M|B)(?![\w/])")
_AND_PART = re.compile(rf" and (a|one|two|three) ({'|'.join(PARTS)})(?![a-z])", re.IGNORECASE)
_CENTS = re.compile(r"(?: dollars?| euros?| pounds?| rupees?)?(?: and|,)? (\d{1,2}) (?:cents?|pence|paise)\b")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_IRRATIONAL = re.compile(r" ?(?:π|√|pi\b|sqrt|∛)")
_RANGE = re.compile(r"-\d+(?:-\d+)*")
_AFTER_OPERATOR = re.compile(
    r"[%°]?\)? ?(?:[+*×÷^±]|/ ?[$(\d]|[x] ?[$(\d]|- ?[$(]{0,2}\d|times \d|plus \d|minus \d|divided by )"
)
_BEFORE_OPERATOR = re.compile(r"(?:[+*/×÷^±√]|[\d)%] ?-|\d ?x|√\(?|times|plus|minus|divided by)[ ($]{0,4}$")

# Most numbers are a few digits between a word and a word or a full stop: "has 12 apples". What stands around those can be
# neither sign, currency, fraction, power, scale, unit nor operator, and nothing else has to be tried.
_PLAIN_AFTER = re.compile(
    r"\Z|[.;!?\n\"'\]=]|,(?! ?\d)|[)%](?:\Z|[.;!?\n]|,(?! ?\d)| [a-ce-lnoq-suvwyz=])| [=<>(&]|"
    r"(?P<operator> ?[+÷]| - ?[$(]{0,2}\d| ?[*×](?! ?10)| x ?(?!10)[$(\d])|"
    r" (?!(?i:and) |hundred|thousand|lakh|million|crore|billion|trillion|bn|x|pi\b|sqrt|times|plus|minus|divided|"
    r"(?:dollar|euro|pound|rupee)s?(?: and|,)? \d)[A-Za-z]"
)
_NOT_PLAIN_BEFORE = (
    "minus",
    "negative",
    "rs",
    "inr",
    "usd",
    "eur",
    "gbp",
    "aud",
    "cad",
    "jpy",
    "rmb",
    "times",
    "plus",
    "by",
)
_PLAIN_BEFORE = frozenset("abcdefghijklmnopqrstuvwyz,;:=")
_OPERATORS = frozenset("+*×÷")
_SIGN = re.compile(rf"({_CURRENCY} ?)?((?:minus |negative )|[-+]+)?({_CURRENCY} ?)?$", re.IGNORECASE)
_SPACED_MINUS = re.compile(r"(?:[=≈:(\[] ?|\$)(-) $")
_MONEY = re.compile(r"[$€£¥₹] ?$")
_BELOW = re.compile(r"(?:/\d+)+|\.\d+")
_SIGN_WORD = re.compile(r"(?<!\w)(?:minus|negative) $", re.IGNORECASE)


class Number(NamedTuple):
    """A number as it stands in a text.

    Attributes:
        start (`int`): where it starts, sign and currency included.
        end (`int`): where it ends, percent sign excluded.
        value (`Fraction` or `None`): its value; `None` for what looks like a number and has no single value, such as
            a clock time, a date, a range, a version or a multiple of π.
        ordinal (`bool`): whether it is an ordinal such as "3rd".
        operand (`bool`): whether an operator joins it to a neighbour, as both numbers of "8 + 9".
        word (`bool`): whether it is written in words.
    """

    start: int
    end: int
    value: Fraction | None
    ordinal: bool = False
    operand: bool = False
    word: bool = False


def _read_run(run: str) -> Fraction | None:
    if len(run) > MAX_DIGITS:
        return None
    if run.isdigit():
        return Fraction(int(run))
    if _PLAIN.fullmatch(run):
        return Fraction(run if run[0] != "." else f"0{run}")
    if match := _GROUPED.fullmatch(run):
        return Fraction(re.sub("[,'_]", "", run)) if match else None
    return None


def _power_of_ten(exponent: str) -> Fraction | None:
    # The length is checked before int() so that "1e999999999" builds no number of a billion digits.
    if len(exponent) > 4 or abs(int(exponent)) > MAX_DIGITS:
        return None
    return Fraction(10) ** int(exponent)


def _times(left: Fraction | None, right: Fraction | None) -> Fraction | None:
    return None if left is None or right is None else left * right


def _over(left: Fraction | None, bottom: str) -> Fraction | None:
    if left is None or len(bottom) > MAX_DIGITS or not int(bottom):
        return None
    return left / int(bottom)


class _Reader:
    """Reads one number that starts with a digit: the digits first, then each suffix that changes the value."""

    def __init__(self, text: str, match: re.Match) -> None:
        self.text = text
        run = match.group().rstrip(",._'")
        self.start, self.end = match.start(), match.start() + len(run)
        self.value = _read_run(run)
        if run.isdigit() and len(run) <= 3 and (groups := self._match(_SPACED_GROUPS)):
            self.value = Fraction(run + groups.group().replace(" ", "")) if groups.end() - self.start < 60 else None
            self.end = groups.end()
        self.whole = self.value is not None and self.value.denominator == 1 and "." not in run

    def _match(self, pattern: re.Pattern) -> re.Match | None:
        return pattern.match(self.text, self.end)

    def suffixes(self) -> None:
        if match := self._match(_CLOCK):
            self.value, self.end = None, match.end()
            return
        self._fraction()
        if (match := self._match(_RANGE)) and not _MIXED.match(self.text, self.end):
            self.value, self.end = None, match.end()
            return
        self._powers()
        if match := self._match(_SCALE):
            word, thousand, letter = match.groups()
            scale = SCALES[word] if word else 1000 if thousand else None
            # "5M" may be metres; after a currency sign M and B are millions and billions.
            money = bool(_MONEY.search(self.text, max(0, self.start - 2), self.start))
            if letter and money:
                scale = 10**6 if letter == "M" else 10**9
            if scale:
                self.value, self.end = _times(self.value, Fraction(scale)), match.end()
        if self.whole and (match := self._match(_AND_PART)):
            count = {"a": 1, "one": 1, "two": 2, "three": 3}[match.group(1).lower()]
            self.value += Fraction(count, PARTS[match.group(2).lower()])
            self.end = match.end()
        elif self.whole and (match := self._match(_CENTS)):
            self.value += Fraction(int(match.group(1)), 100)
            self.end = match.end()
        if match := self._match(_IRRATIONAL):
            self.value, self.end = None, match.end()

    def _fraction(self) -> None:
        if self.whole and (match := self._match(_MIXED)) and int(match.group(2)) > int(match.group(1)):
            self.value += Fraction(int(match.group(1)), int(match.group(2)))
            self.end = match.end()
        elif match := self._match(_SLASH):
            bottom = match.group(1) or match.group(2)
            self.value, self.end = _over(self.value, bottom), match.end()
            if more := _BELOW.match(self.text, self.end):  # a date, or a decimal below
                decimal = _read_run(bottom + more.group()) if more.group()[0] == "." else None
                self.value = _times(self.value, int(bottom) / decimal) if decimal else None
                self.end = more.end()

    def _powers(self) -> None:
        if match := self._match(_EXPONENT) or self._match(_TIMES_TEN):
            self.value, self.end = _times(self.value, _power_of_ten(match.group(1))), match.end()
        elif match := self._match(_POWER):
            exponent = match.group(1)
            small = self.value is not None and self.value < 10**6 and len(exponent) <= 3 and abs(int(exponent)) <= 64
            self.value = self.value ** int(exponent) if small and self.value else None
            self.end = match.end()


def _sign(text: str, start: int) -> tuple[int, int]:
    """The sign in front of a number, and where the number starts with its sign and currency."""
    window = text[max(0, start - 16) : start]
    offset = start - len(window)
    match = _SIGN.search(window)
    before, sign, _ = match.groups()
    begin = offset + match.start()
    if not sign:
        # "= - 7": a spaced minus is a sign only where no operand can stand before it.
        if spaced := _SPACED_MINUS.search(window):
            return -1, offset + spaced.start(1)
        return 1, begin
    left = text[:begin].rstrip(" ")[-1:] if begin else ""
    binary = left.isdigit() or left in tuple(")]%")
    glued = text[begin - 1 : begin].isalpha()
    if not before and (binary or glued):
        return 1, offset + match.end(2) if match.group(3) else start
    return (-1 if "-" in sign or sign[0].isalpha() else 1), begin


def _is_glued(text: str, start: int, digits: int) -> bool:
    """Whether the digits belong to a name, as in "x2", "B12" or "v1.2"."""
    if start < digits:
        return False
    return (text[digits - 1 : digits].isalpha() or text[digits - 1 : digits] == "_") if digits else False


_run_value = lru_cache(maxsize=8192)(_read_run)  # most numbers stand in a text several times


def _plain(text: str, match: re.Match) -> Number | None:
    """The number of a run of digits, if nothing around it can change what it is; else `None`, and all has to be tried."""
    run = match.group().rstrip(",._'")
    if len(run) > MAX_PLAIN_DIGITS or run[0] == "." or (value := _run_value(run)) is None:
        return None
    start = match.start()
    end = start + len(run)
    after = _PLAIN_AFTER.match(text, end)
    if not after:
        return None
    operand = after.lastgroup is not None
    begin = start - 1 if start and text[start - 1] == "$" else start
    if begin:
        nearest = text[begin - 1]
        if nearest in "*×÷":
            return Number(begin, end, value, False, True)
        if nearest == "=":
            return Number(begin, end, value, False, operand)
        if nearest == "(":
            operand = operand or bool(_BEFORE_OPERATOR.search(text, max(0, begin - 16), begin))
            return Number(begin, end, value, False, operand)
        if nearest != " " or begin < 2:
            return None
        before = text[begin - 2]
        if before in _OPERATORS or (before == "x" and text[max(0, begin - 4) : begin - 2].rstrip(" ")[-1:].isdigit()):
            operand = True
        elif before == "-":
            if begin < 4 or text[begin - 3] != " " or not text[begin - 4].isdigit():
                return None
            operand = True
        elif before not in _PLAIN_BEFORE or (
            before in "serdpyb" and text[max(0, begin - 9) : begin - 1].lower().endswith(_NOT_PLAIN_BEFORE)
        ):
            return None
    return Number(begin, end, value, False, operand)


def plain_number_at(text: str, place: int) -> Number | None:
    """The number whose digits begin at a place, if what stands around them cannot change what it is; else `None`."""
    match = _RUN.match(text, place)
    return _plain(text, match) if match else None


def only_plain_number(text: str) -> Number | None:
    """The number of a text in which digits stand once, if what stands around them cannot change what it is; else `None`."""
    match = _RUN.search(text)
    number = _plain(text, match) if match else None
    return None if number is None or _RUN.search(text, number.end) else number


def find_numbers(text: str) -> list[Number]:
    """Find the numbers of a cleaned text, left to right."""
    found, position = [], 0
    while match := _RUN.search(text, position):
        if plain := _plain(text, match):
            found.append(plain)
            position = plain.end
            continue
        sign, start = _sign(text, match.start())
        reader = _Reader(text, match)
        reader.suffixes()
        position = reader.end
        if _is_glued(text, start, match.start()):
            continue
        value = None if reader.value is None else sign * reader.value
        ordinal = bool(_ORDINAL.match(text, reader.end))
        found.append(Number(start, reader.end, value, ordinal, _is_operand(text, start, reader.end)))
    return _with_words(text, found)


def _is_operand(text: str, start: int, end: int) -> bool:
    window = text[max(0, start - 16) : start]
    return bool(_AFTER_OPERATOR.match(text, end) or _BEFORE_OPERATOR.search(window))


def _with_words(text: str, digits: list[Number]) -> list[Number]:
    words = spaced_words(text)
    if words is not None and VOCABULARY.isdisjoint(words.split()):
        return digits if len(digits) < 2 else sorted(digits, key=lambda number: number.start)
    taken = [(number.start, number.end) for number in digits]
    merged = list(digits)
    index = 0
    for start, end, value in find_word_numbers(text):
        while index < len(taken) and taken[index][1] <= start:
            index += 1
        if index < len(taken) and taken[index][0] < end:
            continue
        sign = _SIGN_WORD.search(text, max(0, start - 10), start)
        # In "seven minus three" the word is an operator.
        if sign and not any(
            number.end == sign.start() - 1 for number in merged[-1:] + digits[max(0, index - 1) : index]
        ):
            start, value = sign.start(), -value
        merged.append(Number(start, end, value, False, _is_operand(text, start, end), True))
    return sorted(merged, key=lambda number: number.start)
