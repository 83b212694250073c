"""Titles as texts of the prompt, and the rule by which a generated text names one of them."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


def normalise_title(text: str) -> str:
    """
    The form in which titles are compared: Unicode NFKC, case folded, runs of white space as one space, none at the ends.

    Nothing else is forgiven: quotation marks, numbering, a closing full stop or further words make another title.

    Examples:

    ```python
    >>> normalise_title("  Cafe\\u0301\\nSociety ")
    'café society'
    ```
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


@dataclass(frozen=True)
class ItemTexts:
    """
    What the items are called in prompts and completions.

    Attributes:
        texts (`list[str]`): a text for each item, on one line.
        num_missing (`int`): items without a title, whose text is their id.
        num_shared (`int`): items whose text another item has too, so that no text can tell them apart.
    """

    texts: list[str]
    num_missing: int
    num_shared: int


def item_texts(titles: Sequence[str | None], item_ids: Sequence[str]) -> ItemTexts:
    """
    Texts of all items: the title with white space folded, or the item's id where there is none.

    Args:
        titles (`Sequence[str]`): titles by item index; `None` or white space alone is no title.
        item_ids (`Sequence[str]`): ids by item index.
    """
    folded = [" ".join((title or "").split()) for title in titles]
    texts = [title or str(item_id) for title, item_id in zip(folded, item_ids, strict=True)]
    counts: dict[str, int] = {}
    for text in texts:
        key = normalise_title(text)
        counts[key] = counts.get(key, 0) + 1
    shared = sum(counts[normalise_title(text)] > 1 for text in texts)
    return ItemTexts(texts, sum(not title for title in folded), shared)
