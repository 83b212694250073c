"""One spelling for what can be spelled in many ways: characters, spaces, markdown, HTML, LaTeX.

Every step takes time linear in the text: no pattern has two unbounded repeats that could match the same characters.
"""

import re
import unicodedata
from functools import lru_cache

from .latex import to_plain


MAX_LENGTH = 65_536

_SPECIAL = {
    "−": "-",
    "–": "-",
    "—": " - ",
    "‐": "-",
    "‑": "-",
    "‒": "-",
    "―": " - ",
    "⁄": "/",
    "∕": "/",
    "∗": "*",
    "⋅": "×",
    "·": "×",
    "∙": "×",
    "✕": "×",
    "✖": "×",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "≃": "≈",
    "≅": "≈",
    "→": "=>",
    "⇒": "=>",
    "⟹": "=>",
    "➔": "=>",
    "…": "...",
    "。": ". ",
    "、": ", ",
    "：": ": ",
    "\u2028": "\n",
    "\u2029": "\n\n",
    "\x85": "\n",
}
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_FOREIGN = re.compile(r"[^\x00-\x7f]")
# What no step changes, but for stars, spaces, two dollar signs, and marks that begin a line.
_TIDY = re.compile(r"[\n -;=-\[\]^a-z|}×÷£€°≈]*")
# A line that begins like a rule, a heading, a quotation or the point of a list.
_MARKED_LINE = re.compile(r"\n[ |:=#>*•◦‣-]")
# These begin with what is searched for quickly, and look back from there.
_STRONG = re.compile(r"\*\*+|__+")
_EMPHASIS = re.compile(r"[*_](?:(?<![\w*)][*_])(?=[\w$(-])|(?<=[\w.!?%)][*_])(?![\w* (]))")
# A space and a word, not a second operand, follow the closing star of "*42* apples".
_CLOSING_STAR = re.compile(r"\*(?<=[\w.!?%)]\*)(?= [a-zA-Z])")
# With the line feed in front.
_RULE = re.compile(r"\n[ |:=-]{3,}(?=\n|\Z)")  # below headings and in tables
# Three hashes and fewer are headings, four may be GSM8K's answer mark, five and six are headings again.
_HEADING = re.compile(r"\n ?(?:#{1,3}|#{5,9})(?!#) ?")
_QUOTATION = re.compile(r"\n ?>{1,4} ?")
_POINT = re.compile(r"\n ?[*•◦‣-] (?=\S)")
_BLANKS = re.compile(r"[ \t]+")
_SPACES = re.compile(r"  +")
_SUPERSCRIPT_CHARACTERS = frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")
_CONTROLS = {code: " " if code in (9, 11, 12) else None for code in range(32) if code != 10}
_VULGAR = "\x00"  # stands before a fraction made of one character, until it is known whether a digit precedes it


@lru_cache(maxsize=4096)
def _plain_character(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category == "Zs":
        return " "
    if category in ("Cf", "Cc", "Cs"):
        return ""
    folded = unicodedata.normalize("NFKC", char)
    if "⁄" in folded:
        return _VULGAR + folded.replace("⁄", "/")
    return folded if folded.isascii() else char


def plain_characters(text: str) -> str:
    """Map digits, dashes, quotes, spaces and fractions of all scripts to ASCII, and drop invisible characters."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        if "− " in text:
            text = re.sub(r"− +(?=[\d.$])", "−", text)  # a true minus sign belongs to its number
        foreign = set(_FOREIGN.findall(text))
        if not foreign.isdisjoint(_SUPERSCRIPT_CHARACTERS):
            text = _SUPERSCRIPTS.sub(lambda match: "^" + unicodedata.normalize("NFKC", match.group()), text)
            foreign = set(_FOREIGN.findall(text))
        for char in foreign:  # what a character becomes holds no character that becomes another
            text = text.replace(char, _plain_character(char))
        if _VULGAR in text:
            text = re.sub(_VULGAR, "", re.sub(rf"(?<=\d) ?{_VULGAR}", " ", text))
    # Whatever can be printed, and line feeds, hold no control character.
    return text if text.replace("\n", "").isprintable() else text.translate(_CONTROLS)


def collapse_spaces(text: str) -> str:
    """Leave single spaces and at most one empty line in a row."""
    if "\t" in text:
        text = _BLANKS.sub(" ", text)
    elif "  " in text:
        text = _SPACES.sub(" ", text)
    if "\n" in text:
        text = text.replace(" \n", "\n").replace("\n ", "\n")
        if "\n\n\n" in text:
            text = re.sub(r"\n{3,}", "\n\n", text)
    return text.strip()


def _annotation(match: re.Match) -> str:
    # GSM8K writes "<<48/2=24>>24": the result is repeated after the annotation, unless the text was cut.
    following = match.string[match.end() : match.end() + 1]
    return "" if following.isdigit() or following in ("-", ".", "$") else match.group(1).rpartition("=")[2]


def strip_markup(text: str) -> str:
    """Remove markdown emphasis, code marks, struck text, HTML tags and calculator annotations."""
    # Each step is skipped where the text lacks its mark: most texts have none.
    if "<" in text:
        text = re.sub(r"<<([^<>\n]*)>>", _annotation, text)
        text = re.sub(r"<(s|del|strike)>[^<>]{0,300}</\1>", " ", text, flags=re.IGNORECASE)
        text = re.sub(r"<((?:final[ _]?)?answer)>", r"\n\1: ", text, flags=re.IGNORECASE)
        text = re.sub(r"<(/?(?:final[ _]?)?answer|br ?/?|/?p|/?div|/?think)>", "\n", text, flags=re.IGNORECASE)
        text = re.sub(r"<(/?[a-zA-Z][a-zA-Z0-9]{0,15})(?: [^<>]{0,80})?/?>", _tag, text)
    if "~~" in text:
        text = re.sub(r"~~[^~\n]{1,300}~~", " ", text)
    if "`" in text:
        text = re.sub(r"^ *```.*$", "", text, flags=re.MULTILINE).replace("`", "")
    return _strip_stars_and_lines(text)


def _strip_stars_and_lines(text: str) -> str:
    """Remove emphasis, and what marks a line as a rule, a heading, a quotation or the point of a list."""
    if "*" in text or "_" in text:
        if "**" in text or "__" in text:
            text = _STRONG.sub("", text)
        text = _EMPHASIS.sub("", text)
        text = _CLOSING_STAR.sub("", text)
    if text[:1] in " |:=#>*•◦‣-" or _MARKED_LINE.search(text):
        text = _RULE.sub("\n", f"\n{text}")
        if "#" in text:
            text = _HEADING.sub("\n", text)
        if ">" in text:
            text = _QUOTATION.sub("\n", text)
        text = _POINT.sub("\n", text)[1:]
    return text.replace("$$", " ") if "$" in text else text


def _tag(match: re.Match) -> str:
    name = match.group(1).lower()
    if name == "sup":
        return "^"
    # A tag such as <Explanation> that names a part of the answer reads as a heading; a formatting tag as nothing.
    return match.group(1) if name in ("explanation", "answer", "rationale", "reason", "reasoning") else ""


def window(text: str) -> str:
    """Keep of a very long text its start, its end, and the neighbourhood of its last cues.

    A model that runs in a loop can write megabytes. Its answer stands at an end or behind a cue, and the bound keeps
    the cost of every later step small.
    """
    if len(text) <= MAX_LENGTH:
        return text
    half = MAX_LENGTH // 4
    lowered = text.lower()
    places = [0, len(text)]
    # Lower case may change the length of exotic letters; a window of some thousand characters does not mind.
    places += [place for cue in ("answer", "boxed{", "####") if (place := lowered.rfind(cue)) >= 0]
    spans: list[list[int]] = []
    for place in sorted(places):
        reach = half if place in (0, len(text)) else 2000
        start, end = max(0, place - reach), min(len(text), place + reach)
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([start, end])
    return "\n\n".join(text[start:end] for start, end in spans)


def clean(text: str) -> str:
    """Bring a text into the one spelling that all readers of answers expect."""
    if len(text) <= MAX_LENGTH and _TIDY.fullmatch(text):  # as most texts are
        return collapse_spaces(_strip_stars_and_lines(text))
    text = plain_characters(window(text))
    # Markup goes first: the stars and underscores of "**$\boxed{5}$**" would otherwise stick to the number.
    text = strip_markup(text)
    return collapse_spaces(to_plain(text) if "\\" in text or "{" in text else text)
