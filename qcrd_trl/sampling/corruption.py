"""Word masking and replacement: what a discriminator's classes are balanced by (QCRD, Wang et al., EMNLP 2025, section 3.3).

The paper names the two and says no more; the choices here are ours. A *corrupted* rationale is a synthetic negative: some of
its words are masked, or replaced by others. A *masked copy* is a synthetic positive: a few words that carry no figure are
masked, so that it still says how the answer comes about.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass


CORRUPTIONS = ("mask", "replace")
DEFAULT_MASK = "..."

_NUMBER = re.compile(r"\d")
_PARTS = re.compile(r"(\s+)")


@dataclass(frozen=True)
class WordPool:
    """
    Words that replacements are drawn from, as often as they occur.

    Attributes:
        numbers (`tuple[str, ...]`): words with a digit.
        others (`tuple[str, ...]`): the other words.
    """

    numbers: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "WordPool":
        """The words of some texts."""
        words = [word for text in texts for word in text.split()]
        numbers, others = (tuple(w for w in words if _is_number(w) == side) for side in (True, False))
        return cls(numbers, others)

    def draw(self, word: str, rng: random.Random) -> str | None:
        """Another word of the same kind (a number for a number), or `None` if the pool has no other."""
        words = self.numbers if _is_number(word) else self.others
        for _ in range(20):  # frequent words are drawn again and again
            if words and (drawn := rng.choice(words)) != word:
                return drawn
        return next((other for other in words if other != word), None)


def corrupt(
    text: str, how: str, pool: WordPool, rng: random.Random, share: float = 0.15, mask: str = DEFAULT_MASK
) -> str | None:
    """
    A worse copy of a rationale.

    Args:
        text (`str`):
            The rationale.
        how (`str`):
            `"mask"`: words become `mask`. `"replace"`: words become others of `pool`, a number for a number. Of a rationale
            with numbers one is always among them.
        pool ([`WordPool`]):
            What replacements are drawn from.
        rng (`random.Random`):
            Draws words and places.
        share (`float`, *optional*, defaults to `0.15`):
            Share of the words that are changed, in (0, 1], at least one word. BERT's; the paper is silent.
        mask (`str`, *optional*, defaults to `"..."`):
            The encoder's mask token, in words.

    Returns:
        `str` or `None`: white space is kept as it is; `None` where nothing can be changed.
    """
    if how not in CORRUPTIONS:
        raise ValueError(f"Unknown corruption {how!r}: expected one of {', '.join(CORRUPTIONS)}.")
    parts = _PARTS.split(text)
    places = [place for place, part in enumerate(parts) if part and not part.isspace()]
    if not places:
        return None
    chosen = rng.sample(places, max(1, round(share * len(places))))
    numbers = [place for place in places if _is_number(parts[place])]
    if numbers and not set(numbers) & set(chosen):
        chosen[0] = rng.choice(numbers)
    for place in sorted(chosen):
        drawn = mask if how == "mask" else pool.draw(parts[place], rng)
        if drawn is not None:
            parts[place] = drawn
    changed = "".join(parts)
    return changed if changed != text else None


def masked_copy(text: str, rng: random.Random, share: float = 0.15, mask: str = DEFAULT_MASK) -> str:
    """
    A copy of a good rationale in which words without a digit are masked.

    Args:
        text (`str`): the rationale.
        rng (`random.Random`): draws the places.
        share (`float`, *optional*, defaults to `0.15`): share of the words that are masked.
        mask (`str`, *optional*, defaults to `"..."`): the encoder's mask token, in words.

    Returns:
        `str`: the copy; the text itself where it has no more than one word without a digit.
    """
    parts = _PARTS.split(text)
    words = [place for place, part in enumerate(parts) if part and not part.isspace()]
    plain = [place for place in words if not _is_number(parts[place])]
    if len(plain) > 1:
        for place in rng.sample(plain, min(max(1, round(share * len(words))), len(plain) - 1)):
            parts[place] = mask
    return "".join(parts)


@dataclass(frozen=True)
class BalancedQuestion:
    """
    A question with as many positives as negatives.

    Attributes:
        prompt (`str` or `list[dict]`): the question.
        positives (`tuple[str, ...]`): its positives, then masked copies of them.
        negatives (`tuple[str, ...]`): its negatives, then corrupted positives.
        num_masked (`int`): how many of the positives are masked copies.
        num_corrupted (`int`): how many of the negatives are corrupted positives.
    """

    prompt: str | list[dict]
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    num_masked: int
    num_corrupted: int


def balance(
    prompt: str | list[dict],
    positives: Sequence[str],
    negatives: Sequence[str],
    pool: WordPool,
    rng: random.Random,
    share: float = 0.15,
    mask: str = DEFAULT_MASK,
) -> BalancedQuestion | None:
    """
    Fills up the shorter side of a question to the length of the longer.

    Each question then has as many of both, so that neither a class nor what a question is about tells them apart. Missing
    negatives are corrupted positives, masked and replaced in turn; missing positives are masked copies of positives.

    Args:
        prompt (`str` or `list[dict]`): the question.
        positives (`Sequence[str]`): its positives.
        negatives (`Sequence[str]`): its negatives.
        pool, rng, share, mask: as in [`corrupt`].

    Returns:
        [`BalancedQuestion`] or `None`: `None` for a question without a positive, of which nothing can be made, and where
        no negative can be made either.
    """
    if not positives:
        return None
    made: list[str] = []
    known = {*positives, *negatives}
    for number in range(len(positives) - len(negatives)):
        text = corrupt(positives[number % len(positives)], CORRUPTIONS[number % 2], pool, rng, share, mask)
        if text is not None and text not in known:
            known.add(text)
            made.append(text)
    all_negatives = (*negatives, *made)
    if not all_negatives:
        return None
    missing = max(len(all_negatives) - len(positives), 0)
    copies = [masked_copy(positives[number % len(positives)], rng, share, mask) for number in range(missing)]
    return BalancedQuestion(prompt, (*positives, *copies), all_negatives, len(copies), len(made))


def _is_number(word: str) -> bool:
    return bool(_NUMBER.search(word))
