"""Numbers written in words."""

import re
from fractions import Fraction


_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SMALL = {word: value for value, word in enumerate(_UNITS)}
SMALL |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
SMALL["fourty"] = 40
SCALES = {
    "hundred": 100,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "trillion": 10**12,
}
PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
    "hundredth": 100,
}
_SINGULAR = frozenset(word for word in PARTS if word != "halves")
PARTS |= {f"{word}s": value for word, value in PARTS.items() if word not in ("half", "halves")}

VOCABULARY = frozenset([*SMALL, *SCALES, *PARTS, "dozen"])
_WORD = re.compile(rf"(?<![a-z'])(?:{'|'.join(sorted(VOCABULARY, key=len, reverse=True))})(?![a-z])")
_ARTICLE = re.compile(r"(?<![a-z])an? $")
# What may stand between two words of one number.
_GLUE = re.compile(r" and a |[ -]and[ -]|[ -]a |, |[ -]| point ")


def _runs(text: str):
    """Yield lists of matches that stand close enough together to be one number."""
    run: list[re.Match] = []
    for match in _WORD.finditer(text):
        if run and _GLUE.fullmatch(text, run[-1].end(), match.start()):
            run.append(match)
            continue
        if run:
            yield run
        run = [match]
    if run:
        yield run


class _Number:
    """Adds the words of a run one by one, and says where a word no longer fits."""

    def __init__(self) -> None:
        self.total, self.group, self.last, self.words = Fraction(0), None, None, []
        self.fraction: list[int] | None = None

    def take(self, word: str, glue: str) -> bool:
        if self.fraction is not None:  # "three point one four"
            if word in SMALL and SMALL[word] < 10:
                self.fraction.append(SMALL[word])
                return True
            return False
        if word in SMALL:
            return self._small(SMALL[word], glue)
        if word == "dozen":
            fits = (self.last != "part" or glue == " a ") and "and" not in glue
            self.group = Fraction(12 * (1 if self.group is None else self.group))
        elif word in SCALES:
            fits = (self.last != "part" or glue == " a ") and "and" not in glue and "," not in glue
            if fits:
                self._scale(SCALES[word])
        else:
            fits = self._part(word, glue)
        self.last = "part" if word in PARTS or word == "dozen" else "scale"
        return fits

    def _small(self, value: int, glue: str) -> bool:
        if glue == " point ":
            if value > 9 or self.group is None:
                return False
            self.fraction = [value]
        elif self.last is None:
            self.group = Fraction(value)
        elif self.last == "scale" and glue != ", and ":
            self.group = (self.group or 0) + value
        elif self.last == "tens" and 0 < value < 10 and glue in ("-", " "):
            self.group += value
        else:
            return False
        self.last = "tens" if value >= 20 else "unit"
        return True

    def _scale(self, scale: int) -> None:
        group = Fraction(1) if self.group is None else self.group
        if scale == 100:
            self.group = group * 100
        else:
            self.total += group * scale
            self.group = None

    def _part(self, word: str, glue: str) -> bool:
        if self.last is None:
            self.group = Fraction(1, PARTS[word])
        elif "and" in glue and self.last in ("unit", "tens", "scale"):  # "two and a half"
            self.group = (self.group or 0) + Fraction(1, PARTS[word])
        elif glue in ("-", " ") and self.last in ("unit", "tens") and self.group is not None:  # "two thirds"
            # "two thirds" and "one third" are fractions, "twenty-third" is a place in a row.
            if self.group != 1 and word in _SINGULAR:
                return False
            self.group = self.group / PARTS[word]
        else:
            return False
        return True

    @property
    def value(self) -> Fraction:
        value = self.total + (self.group or 0)
        if self.fraction:
            value += Fraction(int("".join(map(str, self.fraction))), 10 ** len(self.fraction))
        return value


def _split(run: list[re.Match], text: str):
    """Yield the numbers of a run; "two, three" is one run but two numbers."""
    start = 0
    while start < len(run):
        number, end = _Number(), start
        number.take(run[start].group(), "")
        while end + 1 < len(run):
            trial = run[end + 1]
            kept = (number.total, number.group, number.last, number.fraction)
            if not number.take(trial.group(), text[run[end].end() : trial.start()]):
                number.total, number.group, number.last, number.fraction = kept
                break
            end += 1
        yield run[start : end + 1], number.value
        start = end + 1


def find_word_numbers(text: str) -> list[tuple[int, int, Fraction]]:
    """Find numbers in words: (start, end, value), left to right.

    Ordinals such as "third" count only as parts ("two thirds", "a third of"), never alone.
    """
    lowered = text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
    found = []
    for run in _runs(lowered):
        for words, value in _split(run, lowered):
            first, start, end = words[0].group(), words[0].start(), words[-1].end()
            article = _ARTICLE.search(lowered, max(0, start - 3), start)
            if len(words) == 1 and first in PARTS and first != "half" and not article:
                continue
            # "by the million" and "dozen" alone are no values; "3 million" is read with its digits.
            if (first in SCALES or first == "dozen") and not article:
                continue
            if found and value < 1 < found[-1][2] and lowered[found[-1][1] : start] == " and ":  # "two and one third"
                start, _, whole = found.pop()
                found.append((start, end, whole + value))
                continue
            found.append((article.start() if article else start, end, value))
    return found
