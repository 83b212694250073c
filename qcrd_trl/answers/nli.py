"""The inference label that a text commits to."""

import re

from .cues import NO_ANSWER, Commit, cut_continuation, find_commits, is_refusal, resolve
from .normalise import clean
from .sentences import sentences


LABELS = ("entailment", "neutral", "contradiction")

_LABEL = re.compile(
    r"\b(?P<non>non-?|un)?(?:(?P<entailment>entail(?:s|ed|ing|ments?)?)|(?P<neutral>neutral(?:ity|ly)?)|"
    r"(?P<contradiction>contradict(?:s|ed|ing|ions?|ory)?))\b",
    re.IGNORECASE,
)
# "does not (clearly) entail", "not a contradiction", "neither an entailment nor a contradiction", "not entailed or ..."
_REJECTED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|without|no|rather than|rul(?:es?|ed|ing) out|exclud(?:es?|ed|ing)|eliminat(?:es?|ed|ing)|instead of|as opposed to|than|unlike|except)|n't)"
    r"(?: (?!but\b|so\b|is\b)[\w-]+){0,3}[ \"'(:*]*$",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"[,;.]| (?:but|so|therefore|thus|hence|because|since|although) ", re.IGNORECASE)
_LISTED = re.compile(
    r"[\"')]* ?(?:or|nor|,|/|, or|, nor)(?: (?:an?|the|to|does it|is it|it))* ?[\"'(]*$", re.IGNORECASE
)
_DISMISSED = re.compile(
    r"[\"')]* (?:is|can be|are|was|seems?|would be) (?:clearly |therefore |thus |also )*(?:not\b|ruled out|excluded|eliminated|wrong|"
    r"incorrect|unlikely|impossible|out\b|too strong)|[\"')]* (?:isn't|doesn't|does not|can't|cannot)\b",
    re.IGNORECASE,
)
_THEREFORE = re.compile(
    r"(?:^|[ ,;])(?:so|therefore|thus|hence|consequently|which means|meaning)(?=[ ,:])", re.IGNORECASE
)


def _labels(text: str) -> tuple[list[str], set[str]]:
    """The labels that a text affirms, in order, and those that it rejects."""
    affirmed, rejected = [], set()
    previous: tuple[int, bool] | None = None
    for match in _LABEL.finditer(text):
        label = match.lastgroup if match.lastgroup != "non" else next(k for k in LABELS if match.group(k))
        before = _BROKEN.split(text[max(0, match.start() - 50) : match.start()])[-1]
        negated = (
            bool(match.group("non")) or bool(_REJECTED.search(before)) or bool(_DISMISSED.match(text, match.end()))
        )
        if previous and previous[1] and _LISTED.fullmatch(text[previous[0] : match.start()]):
            negated = True  # "not an entailment or a contradiction" rejects both
        previous = (match.end(), negated)
        if negated:
            rejected.add(label)
        else:
            affirmed.append(label)
    return affirmed, rejected


def _single(text: str, first: bool) -> str | object | None:
    """The label of a text: the only one it affirms, or the only one that it leaves over."""
    affirmed, rejected = _labels(text)
    distinct = set(affirmed)
    if len(distinct) == 1:
        return affirmed[0]
    if not distinct:
        left = [label for label in LABELS if label not in rejected]
        return left[0] if len(left) == 1 else None
    if first and not re.search(
        r"\b(?:or|and|either|both)\b|/", text[: [m.start() for m in _LABEL.finditer(text)][1]], re.IGNORECASE
    ):
        return affirmed[0]
    return NO_ANSWER


def extract_nli(text: str) -> str | None:
    """Extract the inference label that a text finally commits to.

    Args:
        text (`str`):
            A rationale, or a bare answer. Verb forms count ("entails", "contradicts"); yes, no and maybe do not, as
            what they mean depends on the prompt.

    Returns:
        `str` or `None`: `"entailment"`, `"neutral"` or `"contradiction"`; `None` where the text names none or several.
        A text that rejects two labels commits to the third.
    """
    text = cut_continuation(clean(text))
    return resolve(text, find_commits(text), _read, _conclude)


def _read(commit: Commit) -> str | object | None:
    if commit.kind == "open":
        return None  # "it cannot be determined" is how texts argue for neutral
    value = _single(commit.region, first=commit.kind != "before")
    refused = is_refusal(commit.region) or commit.kind == "box"
    return NO_ANSWER if value is None and refused else value


def _conclude(text: str) -> str | None:
    parts = [part[-1200:] for part in sentences(text)[-30:]]
    rejected: set[str] = set()
    for part in reversed(parts):
        clauses = [part[match.end() :] for match in _THEREFORE.finditer(part)][::-1]
        for clause in [*clauses, part]:
            value = _single(clause, first=False)
            if value is not None:
                return None if value is NO_ANSWER else value
        rejected |= _labels(part)[1]
    left = [label for label in LABELS if label not in rejected]
    return left[0] if len(left) == 1 else None
