"""The option that a text commits to."""

import re
from collections.abc import Mapping

from .cues import NO_ANSWER, REGION, Commit, cut_continuation, find_commits, is_refusal, resolve
from .normalise import clean
from .sentences import sentence_end, sentences
from .text import normalise_text


# The word behind a bare letter shows whether "A" is an option or an article, and "I" an option or a pronoun.
_ENDS_LETTER = re.compile(
    r"[)\].,:;!?\"'*-]|\s*$|\n| ?[-=(&/,;]| (?:because|since|as|for|not|and|or|is|was|which|rather|instead|but|in|over|seems?|"
    r"fits?|matches|makes|would|must|should|has|with|due|given|here|according|based|where|so|if|the|by|from|option|therefore|"
    r"can|cannot|does|best|correctly)\b"
)
_MENTION = re.compile(r"(?<![\w'@#$.-])([(\[{\"']{0,2})([A-Za-z])(?![\w@]|'[a-z])([)\]}\"']{0,2})")
_NAMED = re.compile(
    r"\b(?:options?|choices?|letters?|alternatives?|answers?|statements?) (?:is |was |are |= ?)?:?$", re.I
)
_REJECTED = re.compile(
    r"(?:\bnot|n't(?: be)?|\bnever|\brather than|\binstead of|\bnor|\bneither|≠|!=|\bexcept|\bas opposed to|\bunlike|\bthan|\bover|"
    r"\beliminated?|\bruled? out|\brejected?|\bexcluded?|\bdiscard(?:ed)?)"
    r"(?: (?:be|just|simply|the|option|choice|answer|both))*[ \"'(]*$",
    re.IGNORECASE,
)
_DISMISSED = re.compile(
    r"[)\].\"':]{0,2}(?: \w+)? (?:(?:is|are|was|seems?|looks?) (?:clearly |also |just |only |obviously |definitely |a common |a |"
    r"an |the |simply )*(?:not\b|wrong|incorrect|false|distractors?|ruled out|eliminated|excluded|impossible|irrelevant|unlikely|"
    r"too )|(?:isn't|can't|cannot|doesn't|does not|can be (?:ruled out|eliminated|excluded)))",
    re.IGNORECASE,
)
_PAIR = re.compile(
    r"[)\].\"']{0,2} ?(?:,|and|or|&|/|, and|, or|and/or|,? ?and also|as well as) ?(?:option |choice )?[(\[\"']{0,2}$",
    re.I,
)
_FAVOURED = re.compile(
    r"[)\].\"':]{0,2}(?: [\w-]+){0,3}? (?:(?:is|are|was|must be|seems?(?: to be)?|looks|would be|should be|appears(?: to be)?) "
    r"(?:therefore |thus |clearly |indeed |likely |probably |most likely )?(?:the )?(?:only )?(?:\w+ and )?(?:best|better|correct|"
    r"right|true|most \w+|answer|one|choice|option|accurate|appropriate)|fits|matches|makes (?:the )?most sense|works best)\b",
    re.IGNORECASE,
)
_CHOOSES = re.compile(
    r"\b(?:(?:i|we)(?:'d|'ll| would| will| must| should| have to)? (?:\w+ )?(?:choose|pick|select|go with|chose|selected|picked|"
    r"opt for|settle on)|(?:choose|pick|select|going with|correct (?:option|choice|letter|one|statement)(?: here)? (?:is|would be|"
    r"must be)|(?:option|choice|letter) (?:is|would be)|best (?:option|choice|fit|match)(?: here)? (?:is|would be)|it (?:is|'s|must be|has to be)|"
    r"must be|leaves(?: us with)?|the (?:option|choice|letter)))(?: the)?[: ]+(?=[(\[\"']{0,2}(?:(?:option|choice|letter|answer) )?[(\[\"']{0,2}[A-Za-z]\b)",
    re.IGNORECASE,
)
_THEREFORE = re.compile(
    r"(?:^|[ ,;])(?:so|therefore|thus|hence|consequently|which means|meaning)(?=[ ,:])", re.IGNORECASE
)


class Options:
    """The letters a row allows, and the text of each option."""

    def __init__(self, choices: Mapping[str, str] | None) -> None:
        self.letters = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ" if choices is None else (key.upper() for key in choices))
        self.given = choices is not None
        self.texts = {}
        for key, option in (choices or {}).items():
            if normal := normalise_text(clean(str(option))):
                self.texts.setdefault(normal, []).append(key.upper())

    def by_text(self, text: str) -> str | None:
        """The letter of an option whose whole text this is."""
        letters = self.texts.get(normalise_text(text), [])
        return letters[0] if len(letters) == 1 else None

    def mentioned(self, text: str) -> list[tuple[int, str]]:
        """The options whose text stands in a text, as (position, letter); a longer option hides one inside it."""
        folded = f" {_words(text)} "
        found, taken = [], []
        for option in sorted(self.texts, key=len, reverse=True):
            needle = f" {_words(option)} "
            start = folded.find(needle) if needle.strip() else -1
            while start >= 0:
                end = start + len(needle)
                if not any(start < other_end - 1 and other_start < end - 1 for other_start, other_end in taken):
                    taken.append((start, end))
                    if not _REJECTED.search(folded[max(0, start - 30) : start + 1].rstrip() + " "):
                        found += [(start, letter) for letter in self.texts[option]]
                start = folded.find(needle, end - 1)
        return sorted(found)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+(?:[.'][^\W_]+)*|[%$+-]", normalise_text(text)))


def find_letters(text: str, options: Options, at_start: bool = False) -> list[re.Match]:
    """Find the letters of a text that name an option: no article "a", no pronoun "I", none that is rejected."""
    found = []
    for match in _MENTION.finditer(text):
        opened, letter, closed = match.groups()
        if letter.upper() not in options.letters:
            continue
        before, after = text[max(0, match.start() - 40) : match.start()], text[match.end() : match.end() + 40]
        named = bool(_NAMED.search(before))
        leads = at_start and not before.strip(" \"'(*:")
        wrapped = (opened[-1:] == "(" and closed[:1] == ")") or (
            opened[-1:] in ("[", "{") and closed[:1] in ("]", "}")
        )
        marked = (
            wrapped
            or (closed[:1] == ")" and not opened)
            or (bool(opened) and opened[-1:] in "\"'" and closed[:1] == opened[-1:])
        )
        if not (marked or named or leads) and (letter.islower() or (letter == "I" and not options.given)):
            continue
        if (
            letter in "AIa"
            and not marked
            and not (_ENDS_LETTER.match(after) and not (letter == "I" and after[:1] == " "))
        ):
            continue
        if letter.islower() and not marked and not _ENDS_LETTER.match(after):
            continue
        if (
            letter == "A"
            and not marked
            and re.match(r" (?:best|given|correctly)\b(?! (?:answers?|because|fits?))", after)
        ):
            continue
        if _REJECTED.search(before) or _DISMISSED.match(after):
            continue
        # "A, not B" rejects what follows a rejected letter too: "not A or B".
        if (pair := _PAIR.search(before)) and _REJECTED.search(before[: pair.start() - 1] if pair.start() else ""):
            continue
        found.append(match)
    return found


def _single(region: str, options: Options) -> str | object | None:
    """The one option of a region that a cue announced."""
    letters = find_letters(region, options, at_start=True)
    if not letters:
        whole = options.by_text(_before_reason(region))
        if whole:
            return whole
        if is_refusal(region) or re.match(r"\W*not\b.*\bnone\b", region, re.IGNORECASE):
            return NO_ANSWER
        named = {letter for _, letter in options.mentioned(_before_reason(region))}
        if len(named) > 1:
            return NO_ANSWER
        return named.pop() if named else None
    if is_refusal(region) and re.match(
        r"\W*(?:none|n/?a\b|neither|either|both|cannot|can't|unknown)", region, re.IGNORECASE
    ):
        return options.by_text(region.strip(" .")) or NO_ANSWER
    first = letters[0]
    if re.match(r"\W*(?:both|either) ", region[: first.start() + 1], re.IGNORECASE):
        return NO_ANSWER
    for second in letters[1:]:
        joined = _PAIR.fullmatch(region[first.end() : second.start()])
        if joined and second.group(2).upper() != first.group(2).upper():
            return NO_ANSWER
        break
    return first.group(2).upper()


def _before_reason(region: str) -> str:
    return re.split(
        r"\s(?:because|since|rather than|instead of|and not|not)\b|,? (?:as|so) |[,;] not\b", region, maxsplit=1
    )[0]


def _own_cues(text: str) -> list[Commit]:
    """Commits that only choices know: "I choose B", "Option B is correct"."""
    found = []
    for match in _CHOOSES.finditer(text):
        if not re.search(
            r"(?:\bnot|n't|\bif)(?: \w+)? $", text[max(0, match.start() - 20) : match.start()], re.IGNORECASE
        ):
            end = sentence_end(text, match.end(), REGION)
            found.append(Commit("cue", text[match.end() : end], match.end(), end))
    for match in _MENTION.finditer(text):
        if _FAVOURED.match(text, match.end()) and not re.match(
            r"\S* (?:\w+ )?(?:is|are) not\b", text[match.end() - 1 :][:40]
        ):
            found.append(Commit("cue", text[match.start() : match.end() + 12], match.end(), match.end() + 12))
    return found[-200:]


def _commits(text: str) -> list[Commit]:
    commits = [*find_commits(text), *_own_cues(text)]
    return sorted(commits, key=lambda commit: commit.end, reverse=True)


def extract_choice(text: str, choices: Mapping[str, str] | None = None) -> str | None:
    """Extract the letter of the option that a text finally commits to.

    Args:
        text (`str`):
            A rationale, or a bare answer.
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text. When given, only its letters count, and an answer in the words of an option maps to
            its letter. A letter beats the words behind it: "(C) bank" is C.

    Returns:
        `str` or `None`: an upper-case letter; `None` where the text refuses, names two options, or names none.
    """
    options = Options(choices)
    text = re.sub(r"\bn/a\b", "none", cut_continuation(clean(text)), flags=re.IGNORECASE)

    def read(commit: Commit) -> str | object | None:
        if commit.kind == "open":
            return NO_ANSWER if _conclude(commit.rest, options) is None else None
        value = _last(commit.region, options) if commit.kind == "before" else _single(commit.region, options)
        return NO_ANSWER if value is None and commit.kind == "box" else value

    return resolve(text, _commits(text), read, lambda tail: _conclude(tail, options))


def _last(region: str, options: Options) -> str | None:
    letters = find_letters(region, options)
    if letters:
        return letters[-1].group(2).upper()
    named = options.mentioned(region)
    return named[-1][1] if named else None


def _conclude(text: str, options: Options) -> str | None:
    """The option of a text that nothing announces: the whole text, or the only option its last sentences name."""
    if whole := options.by_text(text):
        return whole
    if is_refusal(text) and len(text) < 200:
        return None
    # "B. bank", "(B) bank", "D, not B": a text that starts with its letter, and is no list of the options.
    line, _, others = text.partition("\n")
    listed = re.search(r"^[(\[]?[A-Za-z][)\].:]", others, re.MULTILINE)
    if len(line) < 300 and not listed and re.match(r"[(\[]?[A-Za-z](?:[)\].:,]|$| (?:because|since|and|or)\b)", line):
        value = _single(line, options)
        if value is not None:
            return None if value is NO_ANSWER else value
    for part in reversed(sentences(text)[-30:]):
        part = part[-1200:]
        clauses = [part[match.end() :] for match in _THEREFORE.finditer(part)][::-1]
        for clause in [*clauses, part]:
            letters = {match.group(2).upper() for match in find_letters(clause, options)}
            if not letters:
                letters = {letter for _, letter in options.mentioned(clause)}
            if len(letters) == 1:
                return letters.pop()
            if letters:
                return None
    return None
