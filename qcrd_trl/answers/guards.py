"""Cheap looks at a text that show which patterns cannot match it.

A pattern of many words is tried at every character; to ask whether one of its words is there at all costs a hundredth of
that. A guard may say yes where the pattern then finds nothing, and never no where it would find something.
"""

import re
from collections.abc import Iterable


# Letters as lower case, everything else as a space, so that what is left are words. Same length as the text.
_LETTERS_ONLY = dict.fromkeys(range(128), " ")
_LETTERS_ONLY |= {code: chr(code) for code in range(ord("a"), ord("z") + 1)}
_LETTERS_ONLY |= {code: chr(code).lower() for code in range(ord("A"), ord("Z") + 1)}


def lowered(text: str) -> str:
    """
    The text in lower case, for guards of patterns that ignore case.

    Those let the Turkish letters "İ" and "ı" stand for an "i", which lower case does not.
    """
    if text.isascii():
        return text.lower()
    return text.replace("İ", "i").replace("ı", "i").lower()


def has_any(text: str, parts: Iterable[str]) -> bool:
    """Whether one of the parts stands in the text."""
    for part in parts:  # noqa: SIM110 (`any` with a generator takes twice as long)
        if part in text:
            return True
    return False


def places_of(text: str, parts: Iterable[str]) -> list[int]:
    """Where the parts stand in the text, in order."""
    places = []
    for part in parts:
        place = text.find(part)
        while place >= 0:
            places.append(place)
            place = text.find(part, place + 1)
    places.sort()
    return places


def find_from(pattern: re.Pattern, text: str, places: list[int]) -> list[re.Match]:
    """The matches of a pattern, if every match begins at one of the places."""
    found, end = [], 0
    for place in places:
        if place >= end and (match := pattern.match(text, place)):
            found.append(match)
            end = match.end()
    return found


def spaced_words(text: str) -> str | None:
    """The words of a text in lower case, each in its place and everything else a space; `None` unless it is ASCII."""
    return text.translate(_LETTERS_ONLY) if text.isascii() else None
