"""The number that a sentence concludes with."""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

from .guards import find_from, has_any, lowered, places_of, spaced_words
from .numerals import Number, find_numbers, plain_number_at


LONGEST_SENTENCE = 1200  # of a longer one its end is read
EQUATION_REACH = 40  # sentences from the end in which the last equation is looked for

_EQUALS = re.compile(r"=>|->|(?<![<>!=])=+|≈|\b(?:equals|equal to)\b", re.IGNORECASE)
# The same without its words; it begins with a set of characters, so that it is searched for quickly.
_EQUALS_SIGN = re.compile(r"[=≈-](?:(?<=≈)|(?<=-)>|(?<==)(?:>|(?<![<>!=]=)=*))")
ASIDE = re.compile(r"\([^()\n]{0,300}\)|\[[^\[\]\n]{0,300}\]")
_REJECTED = re.compile(
    r"(?:(?:\bnot|n't|\bnever)(?: [a-z]+)?|\bneither|\brather than|\binstead of|\bnor|≠|!=|\bas opposed to|\bunlike)"
    r"(?: (?:be|equal(?: to)?|just|simply|exactly|the|a|an|as))*[ $\"'(]*$",
    re.IGNORECASE,
)
_DISMISSED = re.compile(
    r"[%)\"']*(?: [a-z]+)? (?:(?:is|was|would be|will be) (?:also )?(?:wrong|incorrect|too \w+|not (?:right|correct|the answer|possible))|"
    r"(?:does not|doesn't|would not|wouldn't|will not|won't|cannot|can't) (?:work|be|fit))\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\b(?:steps?|days?|weeks?|questions?|problems?|parts?|methods?|options?|chapters?|figures?|tables?|cases?|rows?|"
    r"examples?|equations?|grades?|no\.|number|page|room|level|round|answer) #?$",
    re.IGNORECASE,
)
_NONE_LEFT = re.compile(
    r"\b(?:no|none of (?:the|his|her|their)|zero) (?:\w+ ){0,3}(?:(?:is|are|were|was|will be) )?"
    r"(?:left|remain(?:s|ing|ed)?)\b|\b(?:has|have|is|are|had|with|left) (?:with )?(?:nothing|none) (?:left|remaining)\b",
    re.IGNORECASE,
)
# Words that open the last clause of a conclusion. The loose ones may also add an aside ("16 died, leaving 4").
THEREFORE = re.compile(
    r"(?:^|[ ,;])(?:(?P<loose>meaning|giving(?: us)?|which gives|which leaves|leaving|which makes|making|resulting in|"
    r"which is|which equals|for a total of)|so|therefore|thus|hence|i\.e\.?|that is|that means|which means|consequently|"
    r"(?:which )?(?:rounds?|rounded) (?:up |down |off )?to(?! \w+ (?:decimal|significant|place|digit)))(?=[ ,:])|(?P<colon>:)(?= )",
    re.IGNORECASE,
)
CONCLUSION = re.compile(
    r"^\W*(?:(?:and|but) )?(?:so|therefore|thus|hence|in conclusion|in total|in all|altogether|finally|overall|"
    r"consequently|this means|that means|that leaves|this leaves|as a result|in summary|to conclude|we conclude)\b",
    re.IGNORECASE,
)
# Sentences that talk about an answer that has been given, and do not give one.
REMARK = re.compile(
    r"^\W*(?:note\b|this is because|because\b|this assumes|i assumed|we assume|let me know|please|remember|for (?:comparison|reference|example)|alternatively|"
    r"keep in mind|i hope|hope this|explanation|however\b|additionally\b|moreover\b|furthermore\b|of course\b|it(?:'s| is) (?:worth|important)|"
    r"reason\b|if you)",
    re.IGNORECASE,
)
EXPLAINS = re.compile(
    r"^\W*(?:to (?:find|see|get|arrive|solve|calculate|determine|figure|reach|answer|do|understand|work)\b|this is because|"
    r"here(?:'s| is) (?:how|why)|explanation|because\b|the reason|you can (?:find|get|calculate)|reasoning|we can (?:find|get))",
    re.IGNORECASE,
)
# A word that marks the number behind it as one that was given, not found.
_GIVEN = re.compile(
    r"in|after|for|per|every|each|from|with|than|at|on|over|during|within|between|among|to|into|across|by|before|until|since|"
    r"because|if|when|while|as|like|around|the|these|those|all|both|his|her|their|its|another|\w+'s"
)
_GIVEN_WORDS = frozenset(_GIVEN.pattern.split("|")[:-1])
_SUBORDINATE = re.compile(
    r"\b(?:because|since|after|before|when|while|if|although|though|than|where|who|out of|until|unless|given(?! by)|"
    r"as (?!much|many|a result|the answer))\b|,? (?:\w{2,}ing)\b(?= (?:\w+ )?\d)",
    re.IGNORECASE,
)
# Both end a text from which spaces and currency signs have been taken; the lengths are more than any match has.
_STATED = re.compile(
    r"\b(?:costs?|weighs?|makes?|gives?|is|are|was|were|be|takes?|earns?|earned|pays?|paid|holds?|totals?|brings?|yields?|needs?|"
    r"gets?|has|have|had|receives?|contains?)(?: (?:a total of|about|only|exactly|just|approximately|still|now|him|her|them|us))?$",
    re.IGNORECASE,
)
_STATED_LENGTH = 32
_FOUND = re.compile(
    r"\b(?:total(?: amount)? of|sum of|up to|comes to|amounts? to|equal to|difference of|product of|profit of|balance of|"
    r"average of|cost of|only|exactly|left with|made)$",
    re.IGNORECASE,
)
_FOUND_LENGTH = 24
TWO_SOLUTIONS = re.compile(r" or [a-zA-Z] ?=")
_LABEL_END = re.compile(r" ?[:.)]")
_UNKNOWN = re.compile(r" ?(?:[a-zA-Z]|\?)(?![a-zA-Z])")
_ALTOGETHER = re.compile(r"(?: [a-z]+){0,2} (?:in total|altogether|in all|all told)\b")
_FROM_TO = re.compile(r"\bfrom [^,.]{1,30} to [$]?$")
_LOWER_WORD = re.compile(r"[a-z']+")
_CLAUSE_END = re.compile(r",(?!\d)|$")

# Words without one of which a pattern above cannot match.
_REJECTING = ("not", "n't", "never", "neither", "than", "instead", "nor", "≠", "!=", "opposed", "unlike")
_NONE_WORDS = ("no ", "none", "zero", "nothing")
# What rejects or dismisses a number of a sentence, gives two, or writes an equation in another way.
UNCLEAR = (
    *("not", "n't", "never", "neither", "rather", "instead", "nor", "!=", "opposed", "unlike"),
    *("wrong", "incorrect", "too ", " or ", "equal", "->"),
)
_RESTATED = 4  # how much better the result of a calculation looks
_DISMISSING = ("wrong", "incorrect", "too ", "not", "n't")
_COUNTED_WORDS = frozenset(
    [*"no number page room level round answer".split()]
    + [
        word + plural
        for word in "step day week question problem part method option chapter figure table case row".split()
        + "example equation grade".split()
        for plural in ("", "s")
    ]
)
_COUNTED_ENDS = tuple(sorted(_COUNTED_WORDS))
_THEREFORE_STARTS = frozenset(
    "meaning giving which leaving making resulting for so therefore thus hence i that consequently rounds round rounded".split()
)
_SUBORDINATE_WORDS = frozenset(
    "because since after before when while if although though than where who out until unless given as".split()
)
_STATED_WORDS = frozenset(
    "cost costs weigh weighs make makes give gives is are was were be take takes earn earns earned pay pays paid hold holds "
    "total totals bring brings yield yields need needs get gets has have had receive receives contain contains".split()
)
_FOUND_WORDS = frozenset("of to only exactly with made".split())


def blank_asides(text: str) -> str:
    """Puts spaces in the place of what stands in brackets, so that all other places stay as they are."""
    if "(" not in text and "[" not in text:
        return text
    return ASIDE.sub(lambda match: " " * len(match.group()), text)


def _equals(text: str) -> list[re.Match]:
    if "equal" in lowered(text):
        return list(_EQUALS.finditer(text))
    if "=" in text or "->" in text or "≈" in text:
        return list(_EQUALS_SIGN.finditer(text))
    return []


def has_equation(text: str) -> bool:
    """Whether something in a text equals something, by a sign or in words."""
    return ("=" in text or "->" in text or "≈" in text or "equal" in lowered(text)) and bool(_equals(text))


@lru_cache(maxsize=64)  # the last sentences are looked at several times
def usable_numbers(text: str) -> tuple[Number, ...]:
    """The numbers that can be an answer: not rejected by a "not", no label such as the 2 of "Step 2:"."""
    low = lowered(text)
    may_reject, may_dismiss = has_any(low, _REJECTING), has_any(low, _DISMISSING)
    numbers = []
    for number in find_numbers(text):
        if (
            (may_reject and _REJECTED.search(text[max(0, number.start - 40) : number.start]))
            or (may_dismiss and _DISMISSED.match(text, number.end))
            or (_LABEL_END.match(text, number.end) and is_counted(text[max(0, number.start - 40) : number.start]))
        ):
            continue
        numbers.append(number)
    return tuple(numbers)


def is_counted(before: str) -> bool:
    """Whether the number behind this text is a label, such as the 2 of "Step 2"."""
    if not before.endswith((" ", " #")):
        return False
    spaced = spaced_words(before[-16:])
    if spaced is not None and not spaced.rstrip(" ").endswith(_COUNTED_ENDS):
        return False
    return bool(_COUNTED.search(before))


def after_equals(text: str, numbers: list[Number]) -> Number | None:
    """The result of the last equation: the number to the right of the last equals sign, else the one to its left."""
    for sign in reversed(_equals(text)):
        right = [number for number in numbers if number.start >= sign.end()]
        if right and not right[0].operand:
            gap = text[sign.end() : right[0].start]
            return right[0] if len(gap) < 40 else None
        if not right and _UNKNOWN.match(text, sign.end()):
            left = [number for number in numbers if number.end <= sign.start()]
            if left and sign.start() - left[-1].end <= 1 and not left[-1].operand:
                return left[-1]  # 12 = x
    return None


def behind_last_sign(text: str) -> Number | None:
    """What `after_equals` gives for "8 + 4 = 12 apples", in ASCII and without the words of `UNCLEAR`; `None`: not so plain."""
    sign = text.rfind("=")
    if sign < 0 or text[max(0, sign - 1) : sign] in ("<", ">", "!", "=") or text[sign + 1 : sign + 2] == ">":
        return None
    place = sign + 1
    place += text[place : place + 1] == " "
    place += text[place : place + 1] == "$"
    number = plain_number_at(text, place)
    return None if number is None or number.operand else number


def _demotion(text: str, number: Number, subordinate: list[tuple[int, int]], spaced: str | None) -> int:
    """How little a number looks like the one that a sentence is about; 0 is best."""
    begin = max(0, number.start - 60)
    before = text[begin : number.start]
    nearest = None if spaced is None else spaced[begin : number.start].split()
    cost = 0
    for start, end in subordinate:
        if start <= number.start < end:
            cost += 4
            break
    if (nearest is None or (nearest and nearest[-1].endswith(_COUNTED_ENDS))) and is_counted(before):
        cost += 3
    if number.ordinal:
        cost += 6
    if number.word and text[number.start : number.end].lower() in ("one", "half"):
        cost += 2
    if number.operand:
        cost += 2
    if text[number.end : number.end + 1] == "-" and text[number.end + 1 : number.end + 2].isalpha():
        cost += 2  # a 12-inch pizza
    if _ALTOGETHER.match(text, number.end):
        cost -= 3
    if (nearest is None or not _STATED_WORDS.isdisjoint(nearest[-4:])) and _STATED.search(
        before.rstrip(" $€£")[-_STATED_LENGTH:]
    ):
        return cost - 1
    if (nearest is None or (nearest and nearest[-1] in _FOUND_WORDS)) and (
        _FOUND.search(before.rstrip(" $")[-_FOUND_LENGTH:]) or (" to " in before and _FROM_TO.search(before))
    ):
        return cost
    if nearest is None or "'" in before:
        words = _LOWER_WORD.findall(before.lower().rpartition(",")[2])[-2:]
        given = bool(words) and bool(_GIVEN.fullmatch(words[-1]))
    else:
        comma = before.rfind(",")
        words = (nearest if comma < 0 else spaced[begin + comma + 1 : number.start].split())[-2:]
        given = bool(words) and words[-1] in _GIVEN_WORDS
    if given:
        cost += 3
    elif (words and words[-1] == "of") or (len(words) == 2 and words[0] in ("each", "every", "per")):
        cost += 1
    return cost


def _subordinates(text: str, spaced: str) -> list[re.Match]:
    """The matches of `_SUBORDINATE`, each of which begins with one of its words, or in front of one that ends in "ing"."""
    places = places_of(spaced, _SUBORDINATE_WORDS.intersection(spaced.split()))
    ending = spaced.find("ing ")
    while ending >= 0:
        space = text.rfind(" ", 0, ending)
        if space >= 0:
            places.append(space - (space > 0 and text[space - 1] == ","))
        ending = spaced.find("ing ", ending + 1)
    return find_from(_SUBORDINATE, text, sorted(places)) if places else []


def _subordinate_spans(text: str, spaced: str | None) -> list[tuple[int, int]]:
    spans = []
    for match in _SUBORDINATE.finditer(text) if spaced is None else _subordinates(text, spaced):
        end = _CLAUSE_END.search(text, match.end()).start()
        if match.group().strip(", ").lower() in ("than", "out of"):
            end = min(end, match.end() + 12)
        spans.append((match.start(), end))
    return spans


def _is_aside(match: re.Match, text: str, numbers: list[Number], results: frozenset[Fraction]) -> bool:
    """Whether ", leaving 4" only adds to a conclusion that stands in front of it."""
    head = {n.value for n in numbers if n.end <= match.start() and not n.operand}
    tail = {n.value for n in numbers if n.start >= match.end()}
    if head & results:
        return True
    participle = match.group().strip(" ,;").lower() in ("leaving", "making", "giving", "meaning", ":")
    return bool(participle and head and CONCLUSION.match(text) and not tail & results)


def _therefores(text: str, spaced: str | None) -> list[re.Match]:
    """Words that open a clause of a conclusion, the last one first."""
    if spaced is None:
        return list(THEREFORE.finditer(text))[::-1]
    words = _THEREFORE_STARTS.intersection(spaced.split())
    if not words and ": " not in text:
        return []
    places = places_of(spaced, words)
    if ": " in text:
        places = sorted([*places, *(place + 1 for place in places_of(text, (": ",)))])
    found, end = [], 0
    for place in places:
        match = THEREFORE.match(text, max(0, place - 1)) or THEREFORE.match(text, place)
        if match and match.start() >= end:
            found.append(match)
            end = match.end()
    return found[::-1]


def pick(sentence: str, results: "Results | None" = None) -> Number | None:
    """The number that a sentence concludes with.

    Numbers in brackets count only where there are no others. The last clause with a "so" counts, in it the result of an
    equation, else the number that looks least like a given one; among equals, the first.

    Args:
        sentence (`str`):
            A sentence of a cleaned text.
        results (`Results`, *optional*):
            Results of calculations in the text: a conclusion that restates one of them is preferred.

    Returns:
        `Number` or `None`: the number, if the sentence has one.
    """
    outer = blank_asides(blank_asides(sentence))
    for text in (outer, sentence):
        numbers = [number for number in usable_numbers(text) if number.value is not None]
        if not numbers:
            continue
        spaced = spaced_words(text)
        for match in _therefores(text, spaced):
            tail = [number for number in numbers if number.start >= match.end()]
            loose = match.group("loose") or match.group("colon")
            if loose and _is_aside(match, text, numbers, results.found() if results else frozenset()):
                continue
            if any(not number.operand for number in tail):
                text = " " * match.end() + text[match.end() :]
                spaced = spaced and " " * match.end() + spaced[match.end() :]
                numbers = tail
                break
        if " or " in text and TWO_SOLUTIONS.search(text):
            return None  # two solutions
        if result := after_equals(text, numbers):
            return result
        numbers = [number for number in numbers if not number.operand]
        if not numbers:
            continue
        if len(numbers) == 1:
            return numbers[0]
        spans = _subordinate_spans(text, spaced)
        costs = [_demotion(text, number, spans, spaced) for number in numbers]
        best = costs.index(min(costs))
        if results and _could_lose(best, numbers, costs):
            found = results.found()
            costs = [cost - _RESTATED * (number.value in found) for number, cost in zip(numbers, costs, strict=True)]
            best = costs.index(min(costs))
        return numbers[best]
    return None


def _could_lose(best: int, numbers: list[Number], costs: list[int]) -> bool:
    """Whether another number would look better if it were the result of a calculation and the best one were not."""
    value, cost = numbers[best].value, costs[best] + _RESTATED
    return any(
        number.value != value and (other < cost or (other == cost and place < best))
        for place, (number, other) in enumerate(zip(numbers, costs, strict=True))
    )


class Results:
    """The result of the last equation in a text, read only where it matters: of its sentences, the last one first."""

    def __init__(self, parts: Callable[[], Iterable[str]]) -> None:
        self._parts = parts
        self._found: frozenset[Fraction] | None = None

    def found(self) -> frozenset[Fraction]:
        if self._found is None:
            self._found = self._read()
        return self._found

    def _read(self) -> frozenset[Fraction]:
        for part in self._parts():
            if has_equation(part):
                if part.isascii() and not has_any(part.lower(), UNCLEAR) and (number := behind_last_sign(part)):
                    return frozenset([number.value])
                numbers = [number for number in usable_numbers(part) if number.value is not None]
                if result := after_equals(part, numbers):
                    return frozenset([result.value])
        return frozenset()


def _may_say_none_left(part: str) -> bool:
    low = lowered(part)
    return ("left" in low or "remain" in low) and has_any(low, _NONE_WORDS)


def says_none_left(part: str) -> bool:
    """Whether a sentence ends by saying that nothing is left."""
    if not _may_say_none_left(part):
        return False
    none = _NONE_LEFT.search(part)
    return bool(none) and not usable_numbers(part[none.end() :])
