"""The number that a text commits to."""

import re
from fractions import Fraction

from .conclusion import CONCLUSION, EXPLAINS, REMARK, TWO_SOLUTIONS, after_equals, pick, usable_numbers
from .cues import NO_ANSWER, Commit, cannot_commit, cut_continuation, find_commits, is_refusal, resolve
from .ending import conclude
from .guards import lowered
from .normalise import clean
from .numerals import MAX_PLAIN_DIGITS, Number
from .sentences import sentences


# "2 hours and 30 minutes" is one quantity, but no single number.
_COMPOUND = re.compile(
    r" ?(?:hours?|hrs?|h|minutes?|mins?|m|feet|foot|ft|pounds?|lbs?|years?|weeks?|days?)(?:,| and|, and)? "
    r" ?(?:hours?|minutes?|mins?|m|seconds?|secs?|inch(?:es)?|ounces?|oz|months?|days?)\b.*",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"\W*(?:not|neither)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"\b(?:because|since|as|which|where|so|and)\b|;|\(|,(?! ?[$\d])")
_ROUNDED = re.compile(
    r"\b(?:rounds?|rounded) (?:up |down |off )?to (?=[$\d])(?!\w+ (?:decimal|significant|place|digit))", re.I
)
_FILLER = re.compile(
    r"(?:[\s$\"'(:*=≈~>-]|\b(?:approximately|about|around|roughly|exactly|only|just|simply|a total of|total of|that|there (?:are|is)|"
    r"is|are|therefore|thus|so|now|equal to|about|nearly|almost|indeed|at least|at most|up to|be|to be|definitely|given by|"
    r"also|still|[a-zA-Z](?= ?=)|the (?:number|integer|value|fraction)|[sh]?he (?:has|had|needs)|they (?:have|had|need)|"
    r"number|(?:final )?answer|of)\b|[€£¥₹])*",
    re.IGNORECASE,
)
_VAGUE = re.compile(
    r"\W*(?:(?:lies|somewhere|anywhere) )?(?:(?:between|either)\b.*\d.* (?:and|or)\b.*\d|(?:strictly )?(?:less|more|greater|fewer|larger|"
    r"smaller|higher|lower) than\b)",
    re.IGNORECASE,
)
_RESTATES = re.compile(r"\b(?:which|so|that is|i\.e|or|thus|giving|making)\b|[=:(]", re.IGNORECASE)
_META = re.compile(
    r"\W*(?:clear|obvious|simple|easy|as follows|correct|right|wrong|incorrect|given|found|obtained|calculated|computed|"
    r"shown|below|above|in|straightforward|the same|verified|confirmed|reached|derived|easily|determined|what|reasonable|"
    r"based|because|consistent|valid|true|yes|sensible|rounded)\b",
    re.IGNORECASE,
)


def _read_region(region: str) -> Fraction | object | None:
    """The number in a region that a cue announced; `NO_ANSWER` for a refusal or an unreadable value."""
    if is_refusal(region):
        return NO_ANSWER
    if _NEGATED.match(region):
        _, but, other = region.partition(" but ")
        return _read_region(other) if but else None
    numbers = usable_numbers(region)
    if not numbers:
        return None
    first = numbers[0]
    if _VAGUE.match(region):
        return NO_ANSWER
    if not _FILLER.fullmatch(region[: first.start]):
        picked = pick(region)
        return picked.value if picked else NO_ANSWER
    clause_end = min(
        (match.start() for match in _CLAUSE_END.finditer(region) if match.start() >= first.end),
        default=len(region),
    )
    clause = region[:clause_end]
    inside = [number for number in numbers if number.end <= clause_end]
    if " or " in clause and TWO_SOLUTIONS.search(clause):
        return NO_ANSWER
    rounded = _ROUNDED.search(region, clause_end)
    if rounded and (later := [number for number in numbers if number.start >= rounded.end()]):
        return later[0].value
    if result := after_equals(clause, inside):
        return result.value if result.value is not None else NO_ANSWER
    if first.operand or first.value is None:
        return _evaluated(region, numbers)
    second = numbers[1] if len(numbers) > 1 else None
    share = second and re.fullmatch(r"(?:%| percent)? of (?:the )?[$]?", region[first.end : second.start])
    if share and len(numbers) > 2 and _RESTATES.search(region[second.end : numbers[2].start]):
        return numbers[2].value  # "50% of 24, or 12"
    if second and region[first.end : second.start] == " to ":
        return NO_ANSWER
    if second and _COMPOUND.fullmatch(region[first.end : second.start] + region[second.end :][:12].split(".")[0]):
        return NO_ANSWER
    if second and re.fullmatch(
        r"%? ?(?:,|or|and|,? and|,? or(?: maybe| perhaps| possibly)?|/) ?[$]?", region[first.end : second.start]
    ):
        return _one_of(first, second)
    return first.value


def _evaluated(region: str, numbers: list[Number]) -> Fraction | object:
    """The result of a calculation such as "3 + 4, which is 7"; a calculation without its result is no answer."""
    last = max((index for index, number in enumerate(numbers) if number.operand), default=len(numbers))
    if last + 1 < len(numbers) and _RESTATES.search(region[numbers[last].end : numbers[last + 1].start]):
        value = numbers[last + 1].value
        return NO_ANSWER if value is None else value
    return NO_ANSWER


def _one_of(first: Number, second: Number) -> Fraction | object:
    """Two bare values side by side are one answer only where they agree, as "8/3 or 2.67" does."""
    if second.value is None or second.word:
        return first.value
    close = abs(first.value - second.value) * 100 <= max(abs(first.value), abs(second.value))
    return first.value if close or first.value == 100 * second.value else NO_ANSWER


def _starts(region: str) -> bool:
    lead = usable_numbers(region)
    return bool(lead) and bool(_FILLER.fullmatch(region[: lead[0].start]))


def _read_commit(commit: Commit) -> Fraction | object | None:
    if commit.kind == "open":
        return None if re.search(r"\d", commit.rest) else NO_ANSWER
    if commit.kind == "before":
        picked = pick(commit.region)
        return picked.value if picked else None
    value = _read_region(commit.region)
    if commit.kind == "heading" and not _starts(commit.region):
        return None
    if commit.kind in ("box", "hash"):
        return NO_ANSWER if value is None else value
    later = sentences(commit.rest) if value is None or (commit.colon and not _starts(commit.region)) else []
    concluded = any((CONCLUSION.match(part) or "=" in part) and usable_numbers(part) for part in later)
    explained = value is not None and later and (EXPLAINS.match(later[0]) or REMARK.match(later[0]))
    if value is not NO_ANSWER and concluded and commit.colon and not explained:
        # "Answer:" may open a whole rationale; its conclusion counts, unless the next sentence explains the first.
        return conclude(f"{commit.region}\n{commit.rest}")
    if value is None and (concluded or _NEGATED.match(commit.region) or _META.match(commit.region)):
        return None
    if value is None:
        return None if commit.kind == "heading" or not commit.region else NO_ANSWER
    return value


def extract_number(text: str) -> Fraction | None:
    """Extract the number that a text finally commits to.

    Args:
        text (`str`):
            A rationale, or a bare answer.

    Returns:
        `Fraction` or `None`: the number; `None` where the text refuses, or commits to no single number.
    """
    if text.isdigit() and text.isascii() and len(text) <= MAX_PLAIN_DIGITS:  # as most labels are
        return Fraction(int(text))
    text = _drop_enumeration(clean(text))
    low = lowered(text)
    commits: list[Commit] = []
    if cannot_commit(text, low):
        if (value := conclude(text, low)) is not None:
            return value
    else:
        text = cut_continuation(text)
        # Headings such as "Result:" also stand before intermediate results: they count where nothing else does.
        commits = sorted(find_commits(text), key=lambda commit: commit.kind == "heading")
    return resolve(text, commits, _read_commit, conclude)


def _drop_enumeration(text: str) -> str:
    """Remove the numbers of a numbered list, which starts at 1 and counts on."""
    if "1. " not in text and "1) " not in text:
        return text
    expected = 1

    def number(match: re.Match) -> str:
        nonlocal expected
        if len(match.group(1)) > 3 or int(match.group(1)) not in (1, expected):
            return match.group()
        expected = int(match.group(1)) + 1
        return ""

    return re.sub(r"^(\d+)(?:[.)] (?=[^\d\n])|\) (?=\d))", number, text, flags=re.MULTILINE)
