"""Finds where a text commits to an answer, whatever kind of answer that is."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from .guards import find_from, has_any, lowered, places_of
from .latex import BOX_CLOSE, BOX_OPEN
from .sentences import sentence_end


Answer = TypeVar("Answer")

NO_ANSWER = object()  # a text commits to having no answer, or to something unreadable; nothing may stand in for it
REGION = 600  # characters after a cue that can hold its answer

_ADJECTIVE = r"(?:(?:final|correct|right|best|proper|overall|complete|simplified|exact|numeric(?:al)?|most \w+) )*"
_VERB = (
    r"(?:(?:would|should|must|will|has to|have to|can only|could only|seems? to|appears? to|turns? out to|"
    r"ends? up to|happens? to) be|(?:is|was|are|were)(?: therefore| thus| then| hence| so| indeed| simply| just| "
    r"clearly| actually| most likely| probably| likely)?|equals?|becomes|remains|comes(?: out)? to|"
    r"works out (?:to|as)|seems|lies|=+>?|->|≈)"
)
# The words between "answer" and its verb. Commas are allowed in pairs only: "the answer, in dollars, is".
_GAP = r"(?:,[^,.!?\n:=]{1,40},|[^,;.!?\n:=]|\.(?=\d)){0,70}?"
_ANSWER = re.compile(
    rf"\b(?:answers?|ans)\b['\")\]>]*(?:{_GAP} {_VERB}(?![\w'])(?: ?:)?|{_GAP} ?(?::|=)| of (?=[$\d-])| ?\((?=[$\d-])|\.(?= ?[\d$(-]))",
    re.IGNORECASE,
)
_LINE = re.compile(
    r"^(?:(?:[aA]|####) ?:|(?:the )?(?:final |correct )?answer(?= ?$| [-$(]{0,2}[\dA-Z]\b))",
    re.MULTILINE | re.IGNORECASE,
)
_CORRECTION = re.compile(r"\b(?:correction|corrected(?: answer)?|revised answer|edit) ?:", re.IGNORECASE)
_OTHER = re.compile(
    r"(?:^|(?<=[.!?] ))(?:the )?(?:final |overall )?(?:results?|solution|output|prediction|label|conclusion|verdict|"
    r"choice|option|relation(?:ship)?|classification|total) ?[:=](?=[ \n])",
    re.MULTILINE | re.IGNORECASE,
)
_BOX = re.compile(f"{BOX_OPEN}[^{BOX_OPEN}]")
_HASH = re.compile(r"#{4} ?(?=\S)")
_BEFORE = re.compile(
    rf" (?<=[\w.%)\]'\"] )(?:is|are|as|was|being|would be|must be|should be) (?:the|my|our|your) {_ADJECTIVE}answer\b",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"^ ?(?:(?:the )?(?:final )?answer|step|part|question|solution|problem|explanation)\b", re.I)

# What may stand between a cue and its answer: marks up to the line's end, or a colon and dots.
_BEHIND_CUE = re.compile(r"[ \n:*\"'>\]-]{0,12}(?=\n)|[ :]*(?:\.\.+ ?)?")
_PREFIX_START = re.compile(r"[.!?](?= )|\n")
# What turns "answer is" into talk about some other answer, read in the same sentence in front of the cue.
_FOREIGN = re.compile(
    r"\b(?:wrong|incorrect|mistaken|naive|tempting|another|other|previous|old|different|false|possible|example|"
    r"(?:might|may|could|would|people|some|many|students?|one) (?:\w+ )?(?:think|say|guess|assume|believe)|"
    r"common (?:mistake|error)|if (?:you|we|one|he|she|it|they|i|there)\b[^.]{0,80}\b(?:had|forgot|forget|were|was|did)|"
    r"to (?:find|get|reach|check|verify|confirm|obtain|compute|calculate|determine|answer)|"
    r"(?:solve|solving) for the|arrive at (?:the|our|this|an)|(?:find|finding|get|getting|reach|reaching|check|verify|calculate|calculating|determine|determining) "
    r"(?:what )?(?:the|our|this|an)|how|whether|what|not|don't think|doubt)(?:[^.,;:!?\n]{0,60})$",
    re.IGNORECASE,
)
_AS_VERB = re.compile(
    r"\b(?:to|can|could|we|i|you|will|would|now|not|please|must|should) (?:now |then |also )?$", re.IGNORECASE
)
_COUNTERFACTUAL = re.compile(r"\b(?:if|had|without|otherwise|unless|suppose|were)\b", re.IGNORECASE)

_RETRACTION = re.compile(
    r"(?:^|[.!?\n,;:)(-]) ?(?:(?:oh|hmm+|um|ah|but|and|so|ok|okay|no|oops)[,.!]? )*"
    r"(?:wait|hold on|scratch that|oops|sorry|my mistake|my bad|on second thoughts?|no, (?=that|it|the|this|two|wait|not|\d)|"
    r"actually|correction|i made an? (?:\w+ )?(?:mistake|error)|i was wrong|that(?:'s| is| was) (?:wrong|incorrect|not right)|"
    r"let me (?:correct|fix|redo|re-?do|re-?check|re-?compute|re-?calculate|re-?consider|try (?:again|that)|double)|"
    r"no(?= ?[,.-] ?[$(]?-?[\dA-Z]))(?![\w'])",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(
    r"\b(?:yes|correct|confirms?|confirmed|checks out|verified|matches|right|holds|same (?:answer|result)|indeed)\b(?! ?:)",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:no|wrong|incorrect|not (?:right|correct|true)|mistake|error|isn't right)\b", re.IGNORECASE)
_REFUSAL = re.compile(
    r"[\s\"'(:*]*(?:(?:simply|just|therefore|that|there (?:is|are)|i'm|i am|i|it|we|this|one|so|the answer) )*"
    r"(?:none\b|n/?a\b|unknown\b|undetermined\b|undefined\b|unclear\b|indeterminate\b|not (?:possible|enough|given|known|"
    r"available|applicable|determin\w+|provided|sure|certain|clear|stated|specified|answerable)|no (?:\w+ )?(?:answer|solution|"
    r"idea|value|information)|nothing\b|nil\b|null\b|nan\b|infinit\w+|inconclusive|ambiguous|insufficient|impossible\b|unable\b|"
    r"unanswerable|(?:cannot|can't|could not|couldn't|can not) (?:be )?\w+|do not know|don't know|not sure|missing|all of the above|"
    r"either of|both of|\?+ ?$)",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"\b(?:(?:cannot|can't|can not|could not|couldn't|unable to|impossible to|not possible to|no way to|hard to) (?:be )?"
    r"(?:accurately |exactly |uniquely )?(?:determine|find|found|answer|know|calculate|compute|say|tell|solve|infer)(?:e?d)?|"
    r"(?:not enough|insufficient|no sufficient) information|no (?:correct |valid )?answer\b|(?:i|we) (?:do not|don't) know)\b",
    re.IGNORECASE,
)
_CONTINUATION = re.compile(
    r"\n(?:q|question|problem|human|user|premise|input|instruction|exercise|###? ?(?:question|problem)) ?\d{0,3} ?:",
    re.IGNORECASE,
)
# Words without one of which a pattern above cannot match.
# What a match of `_OPEN` holds, and how those that hold it begin.
_OPEN_STARTS = {
    "not ": ("cannot ", "can not ", "could not ", "not enough ", "i do not ", "we do not "),
    "n't ": ("can't ", "couldn't ", "i don't ", "we don't "),
    "ble to ": ("impossible to ", "not possible to ", "unable to "),
    "way to ": ("no way to ",),
    "hard to ": ("hard to ",),
    "sufficient ": ("insufficient ", "no sufficient "),
}
_NO_ANSWER_STARTS = ("no answer", "no correct answer", "no valid answer")
_CONTINUATION_STARTS = tuple(
    f"\n{word}" for word in ("q", "problem", "human", "user", "premise", "input", "instruction", "exercise", "#")
)
_RETRACTION_WORDS = (
    *("wait", "hold on", "scratch", "oops", "sorry", "mistake", "my bad", "thought", "no,", "no ", "no.", "no-"),
    *("actually", "correct", "error", "wrong", "not right", "let me"),
)
_VERBS_BEFORE = (" is", " are", " as", " was", " be", " being")
_ANSWER_WORD = re.compile(r"ans(?<!\wans)")  # begins with letters, so that it is searched for quickly
_HEADING_ENDS = (
    *("result", "results", "solution", "output", "prediction", "label", "conclusion", "verdict"),
    *("choice", "option", "relation", "relationship", "classification", "total"),
)
# Each begins with a character, so that it is searched for quickly.
_HEADING_SIGNS = {
    sign: re.compile(
        rf"{sign}(?=[ \n])(?:(?<=[elnpst].)|(?<=[elnpst] .))"
        rf"(?:{'|'.join(f'(?<={word}.)|(?<={word} .)' for word in _HEADING_ENDS)})"
    )
    for sign in ":="
}
_ORDER = {
    pattern: rank for rank, pattern in enumerate((_BOX, _HASH, _ANSWER, _LINE, _CORRECTION, _BEFORE, _OTHER, _OPEN))
}


@dataclass(frozen=True)
class Commit:
    """A place where the text says: this is the answer.

    Attributes:
        kind (`str`): `"box"`, `"hash"` (GSM8K's `####`), `"cue"`, `"before"` (the answer stands before the cue),
            `"heading"` (a weaker cue such as "Result:") or `"open"` ("cannot be determined").
        region (`str`): the text that holds the answer.
        start (`int`): where the region starts; where the cue starts if the answer stands before it.
        end (`int`): where the region ends.
        rest (`str`): for a cue, what follows the region.
        colon (`bool`): whether the cue ends with a colon, after which a whole rationale may follow.
    """

    kind: str
    region: str
    start: int
    end: int
    rest: str = ""
    colon: bool = False


def _region_at(text: str, start: int) -> tuple[str, int]:
    """The sentence after a cue; where the line ends with the cue, the next line that is not empty."""
    skip = _BEHIND_CUE.match(text, start).end()
    while text[skip : skip + 1] == "\n":
        skip += 1
    end = sentence_end(text, skip, REGION)
    return text[skip:end].strip(), end


def _prefix(text: str, start: int) -> str:
    """The part of the sentence that stands in front of a cue."""
    window = text[max(0, start - 160) : start]
    return _PREFIX_START.split(window)[-1]


def _cue(text: str, match: re.Match) -> Commit | None:
    prefix = _prefix(text, match.start())
    if _FOREIGN.search(prefix) or (_AS_VERB.search(prefix) and not match.group().endswith((":", "="))):
        return None
    if "would" in match.group() and _COUNTERFACTUAL.search(prefix + match.group()):
        return None
    region, end = _region_at(text, match.end())
    rest = text[end : end + 8 * REGION]
    return Commit("cue", region, match.end(), end, rest, match.group().rstrip()[-1] in ":=")


def _hash(text: str, match: re.Match) -> Commit | None:
    # Four hashes may also be a markdown heading: a heading starts with a word or with a list number.
    end = text.find("\n", match.end())
    line = text[match.end() : end if end >= 0 else len(text)][:REGION]
    if _LABELLED.match(line) or re.match(r"\d{1,2}\. \D", line):
        return None
    stop = sentence_end(text, match.end(), REGION)
    return Commit("hash", text[match.end() : stop].strip(), match.end(), stop)


def _before(text: str, match: re.Match) -> Commit | None:
    prefix = _prefix(text, match.start())
    if re.match(r"\s*(?:this|that|it|which|here|what|there)\b", prefix, re.IGNORECASE) or len(prefix) < 1:
        return None
    return Commit("before", prefix.strip(), match.start(), match.end())


def _may_have_heading(low: str) -> bool:
    """Whether a word such as "result" stands in front of a colon or an equals sign."""
    return any(sign in low and pattern.search(low) for sign, pattern in _HEADING_SIGNS.items())


def _find_open(text: str, low: str) -> list[re.Match]:
    """The matches of `_OPEN` in a text, by its lower case."""
    starts = [start for held, starts in _OPEN_STARTS.items() if held in low for start in starts]
    if "answer" in low:
        starts += _NO_ANSWER_STARTS
    return find_from(_OPEN, text, places_of(low, starts)) if starts else []


def _marks(text: str) -> list[tuple[int, str, re.Match]]:
    """Where a commit may be: place, kind and match, in order; at one place in the order of the patterns below."""
    low = lowered(text)
    if len(low) != len(text):  # places in one are none in the other
        patterns = [("box", _BOX), ("hash", _HASH), ("cue", _ANSWER), ("cue", _LINE), ("cue", _CORRECTION)]
        patterns += [("before", _BEFORE), ("heading", _OTHER), ("open", _OPEN)]
        found = [(kind, match) for kind, pattern in patterns for match in pattern.finditer(text)]
    else:
        found = [(kind, match) for kind, pattern in _patterns_of(text, low) for match in pattern.finditer(text)]
        if "ans" in low:
            found += [("cue", match) for match in find_from(_ANSWER, text, places_of(low, ("ans",)))]
        if "answer" in low or "a:" in low or "a :" in low or "####" in text:
            lines = [0, *(place + 1 for place in places_of(text, "\n"))]
            found += [("cue", match) for match in find_from(_LINE, text, lines)]
        found += [("open", match) for match in _find_open(text, low)]
    if not found:
        return found
    marks = [(match.start(), kind, match) for kind, match in found]
    return sorted(marks, key=lambda mark: (mark[0], _ORDER[mark[2].re]))


def cannot_commit(text: str, low: str) -> bool:
    """Whether nothing in a text, and in no beginning of it, can be a commit; by its lower case, which is `low`."""
    if BOX_OPEN in text or _ANSWER_WORD.search(low) or len(low) != len(text):
        return False
    if "#" in text and "####" in text:
        return False
    if ":" in text:
        if ("a:" in low or "a :" in low) and _LINE.search(text):
            return False
        if "correct" in low or "revised" in low or "edit" in low:
            return False
        if _HEADING_SIGNS[":"].search(low) and _OTHER.search(text):
            return False
    if "=" in text and _HEADING_SIGNS["="].search(low) and _OTHER.search(text):
        return False
    return not (has_any(low, _OPEN_STARTS) and _find_open(text, low))


def _may_stand_before(low: str) -> bool:
    """Whether `_BEFORE` may match: in front of an "answer" stand a verb and "the", or words that are not looked into."""
    if "most " in low:
        return True
    for place in places_of(low, ("answer",)):
        head = low[max(0, place - 16) : place]
        if head[-1:] != " ":
            continue
        if not head.endswith((" the ", " to ", " this ", " that ", " an ")):
            return True
        if head.endswith(" the ") and head[:-5].endswith(_VERBS_BEFORE):
            return True
    return False


def _patterns_of(text: str, low: str) -> list[tuple[str, re.Pattern]]:
    """The patterns that may match a text, with the kind of commit that each finds."""
    found = []
    if BOX_OPEN in text:
        found.append(("box", _BOX))
    if "####" in text:
        found.append(("hash", _HASH))
    has_answer = "answer" in low
    if ":" in text and ("correct" in low or "revised" in low or "edit" in low):
        found.append(("cue", _CORRECTION))
    if has_answer and _may_stand_before(low):
        found.append(("before", _BEFORE))
    if _may_have_heading(low):
        found.append(("heading", _OTHER))
    return found


def find_commits(text: str, limit: int = 500) -> Iterator[Commit]:
    """Yield the commits of a cleaned text, the last one first.

    Args:
        text (`str`):
            A text that [`~answers.normalise.clean`] returned.
        limit (`int`, *optional*, defaults to `500`):
            How many candidates to look at: a text that repeats its cue thousands of times is not read in full.
    """
    for start, kind, match in reversed(_marks(text)[-limit:]):
        if kind == "box":
            close = text.find(BOX_CLOSE, start, start + 2 * REGION)
            end = close if close >= 0 else min(len(text), start + REGION)
            commit = Commit("box", text[start + 1 : end].strip(), start, end)
        elif kind == "hash":
            commit = _hash(text, match)
        elif kind == "open":
            end = sentence_end(text, match.end(), REGION)
            commit = Commit("open", text[start:end], start, end, text[end : end + 2 * REGION])
        elif kind == "before":
            commit = _before(text, match)
        else:
            commit = _cue(text, match)
            if commit and kind == "heading":
                commit = Commit("heading", commit.region, commit.start, commit.end, commit.rest, True)
        if commit:
            yield commit


def cut_continuation(text: str) -> str:
    """Drop a next question that the model went on to ask itself once it had answered the first."""
    if "\n" not in text or ":" not in text or not has_any(lowered(text), _CONTINUATION_STARTS):
        return text
    for match in islice(_CONTINUATION.finditer(text), 5):
        head = text[: match.start()]
        if next(find_commits(head, limit=20), None):
            return head
    return text


def _is_confirmed(tail: str) -> bool:
    """Whether a second look ended by confirming the first answer."""
    return bool(_CONFIRMED.search(tail)) and not re.search(r"\b(?:not|isn't|wasn't) (?:correct|right)\b", tail)


def resolve(
    text: str,
    commits: Iterable[Commit],
    read: Callable[[Commit], Answer | object | None],
    conclude: Callable[[str], Answer | None],
) -> Answer | None:
    """Follow the commits of a text back from the last one to the one that holds.

    Args:
        text (`str`):
            The cleaned text.
        commits (`Iterable[Commit]`):
            Its commits, the last one first.
        read (`Callable`):
            Reads the answer of a commit; `NO_ANSWER` if it commits to no answer, `None` if it is no commit.
        conclude (`Callable`):
            Reads the answer of a text that nothing announces.

    Returns:
        The answer, or `None` if there is none.
    """
    for commit in commits:
        value = read(commit)
        if value is None:
            continue
        retractions = _retractions(text, max(0, commit.start - 1))
        if not retractions:
            return None if value is NO_ANSWER else value
        tails = [text[retractions[-1].end() :], text[retractions[0].end() :]]
        if _is_confirmed(tails[1][:2000]):
            return None if value is NO_ANSWER else value
        for tail in tails:
            if (revised := conclude(tail)) is not None:
                return revised
        denied = _DENIED.search(text[retractions[0].start() :][:200])
        return None if denied or value is NO_ANSWER else value
    value = conclude(text)
    if value is None and (retractions := _retractions(text)):
        return conclude(text[retractions[-1].end() :])
    return value


def _retractions(text: str, start: int = 0) -> list[re.Match]:
    if not has_any(lowered(text), _RETRACTION_WORDS):
        return []
    return list(_RETRACTION.finditer(text, start))


def is_refusal(region: str) -> bool:
    """Whether a region says that there is no answer."""
    return bool(_REFUSAL.match(region))
