"""Where sentences end."""

import re


# Begins with a set of characters, not with an alternative, so that it is searched for quickly.
_STOP = re.compile(r"[.!?\n](?:(?<=\n)|(?<!\n)[.!?]*[\"')\]]*(?=\s|$))")
_ABBREVIATION = re.compile(
    r"(?:\b(?:approx|e\.g|i\.e|ans|rs|no|vs|dr|mrs?|ms|st|prof|fig|eq|cf|resp|incl|ca|jr|sr|mt|u\.s|p\.m|a\.m)|^\d{1,2}|"
    r"(?<![\w])[A-Z])$",
    re.IGNORECASE,
)
_ABBREVIATIONS = frozenset("approx ans rs no vs dr mr mrs ms st prof fig eq cf resp incl ca jr sr mt".split())


def is_sentence_stop(text: str, match: re.Match) -> bool:
    """Whether a full stop ends a sentence, rather than an abbreviation, an initial or a list number."""
    if match.group() != ".":
        return True
    place = match.start()
    if place >= 5 and (end := text[place - 5 : place]).isascii() and end.isalpha() and end.lower() != "pprox":
        return True  # no abbreviation, nor anything else that is looked for below, is as long
    start = max(0, place - 8)
    word = text[start : match.start()].rpartition("\n")[2].rpartition(" ")
    last = word[2]
    if (
        last.isascii()
        and ((last.isalpha() and last.lower() not in _ABBREVIATIONS) or last.isdigit())
        and len(last) > 2
    ):
        return True
    if not _ABBREVIATION.search(word[2].lstrip("(\"'")):
        return True
    following = text[match.end() : match.end() + 2].strip(" ")
    # "answer is B. Note": a capital behind a letter or number ends the sentence, unless the letter is an initial.
    if re.fullmatch(r"[\"'(]?\d{1,2}", word[2]):
        return bool(word[1]) or not following
    return len(word[2].lstrip("(\"'")) == 1 or not following or following == "\n"


def sentence_end(text: str, start: int, limit: int) -> int:
    """Where the sentence that contains `start` ends, its full stop included."""
    for match in _STOP.finditer(text, start, min(len(text), start + limit)):
        if match.group() == "\n":
            return match.start()
        if is_sentence_stop(text, match):
            return match.end()
    return min(len(text), start + limit)


def sentences(text: str, limit: int | None = None) -> list[str]:
    """Split a text at full stops and line ends; with a limit, no further than so many sentences."""
    pieces, start = [], 0
    for match in _STOP.finditer(text):
        if len(pieces) == limit:
            return pieces
        if match.group() == "\n" or is_sentence_stop(text, match):
            piece = text[start : match.end()].strip()
            start = match.end()
            if piece:
                pieces.append(piece)
    if len(pieces) != limit and (piece := text[start:].strip()):
        pieces.append(piece)
    return pieces
