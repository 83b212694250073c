"""How much the texts written for one question differ from each other."""

from collections.abc import Sequence
from itertools import combinations


def distinct_n(texts: Sequence[str], n: int) -> float | None:
    """
    Share of the n-grams of words that are different ones (Li et al., 2016, "distinct-n"), over several texts together.

    Args:
        texts (`Sequence[str]`): the texts. Words are parted by white space; case does not count.
        n (`int`): words of an n-gram.

    Returns:
        `float` or `None`: in (0, 1]; 1 where no n-gram occurs twice. `None` where no text has n words.

    Example:

    ```python
    >>> from qcrd_trl.diversity import distinct_n
    >>> distinct_n(["a b", "a c"], 1)
    0.75
    ```
    """
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams) if grams else None


def mean_pairwise_similarity(texts: Sequence[str]) -> float | None:
    """
    Mean over all pairs of texts of the share of their words that both have (Jaccard's index of the sets of words).

    Args:
        texts (`Sequence[str]`): the texts, as for [`distinct_n`].

    Returns:
        `float` or `None`: in [0, 1]; 1 where all have the same words. `None` with less than two texts.
    """
    words = [set(_words(text)) for text in texts]
    pairs = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in combinations(words, 2)]
    return sum(pairs) / len(pairs) if pairs else None


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _grams(text: str, n: int) -> list[tuple[str, ...]]:
    words = _words(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
