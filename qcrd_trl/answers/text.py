"""Answers that are free text."""

import re
import unicodedata

from .cues import cut_continuation, find_commits, is_refusal
from .normalise import clean


_PAIRS = {"(": ")", "[": "]", '"': '"', "'": "'", "`": "`", "*": "*", "_": "_", "“": "”", "‘": "’", "«": "»"}
_REASON = re.compile(r",? (?:because|since) |[,;]? (?:rather than|instead of) |[,;] (?:and )?not ", re.IGNORECASE)


def normalise_text(text: str) -> str:
    """Fold what does not change an answer: case, width, spaces, a leading article, quotes and punctuation at the ends.

    Args:
        text (`str`):
            Any text.

    Returns:
        `str`: the folded text, which may be empty.
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("‘", "'")
    text = " ".join(text.split())
    while True:
        shorter = text.strip(" ").lstrip(",;:!?").rstrip(".,;:!?").strip(" ")
        while len(shorter) > 1 and _PAIRS.get(shorter[0]) == shorter[-1] and shorter[-1] not in shorter[1:-1]:
            shorter = shorter[1:-1].strip(" ")
        if shorter == text:
            break
        text = shorter
    return re.sub(r"^(?:an?|the) (?=\S)", "", text)


def extract_text(text: str) -> str | None:
    """Extract a free-text answer, folded by [`~answers.text.normalise_text`].

    The last commit counts (a box, `####`, "the answer is ..."), without a reason or an aside behind it; without a
    commit, the last line that is not empty.

    Args:
        text (`str`):
            A rationale, or a bare answer.

    Returns:
        `str` or `None`: the folded answer; `None` for a refusal ("none", "unknown", "cannot be determined").
    """
    text = cut_continuation(clean(text))
    for commit in find_commits(text):
        if (
            commit.kind in ("before", "heading")
            or not commit.region
            or re.match(r"\W*not\b", commit.region, re.IGNORECASE)
        ):
            continue
        if commit.kind == "open":
            if commit.rest.strip():
                continue
            return None
        return _fold(commit.region)
    lines = [line for line in text.split("\n") if line.strip()]
    return _fold(lines[-1]) if lines else None


def _fold(region: str) -> str | None:
    if is_refusal(region):
        return None
    region = _REASON.split(region.replace("\x02", "").replace("\x03", ""), maxsplit=1)[0]
    region = re.sub(r"(?<=\S) \([^()]{1,300}\)[.!?]?$", "", region.strip())
    return normalise_text(region) or None
