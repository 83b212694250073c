"""What came out of an evaluation: a rank, or a text, for each user."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ranking_metrics import KS, user_metrics
from .titles import normalise_title


@dataclass(frozen=True, eq=False)
class RecommendationResult:
    """
    What a model recommends to each user, beside what came next.

    Args:
        task_mode (`str` or `None`): `"item_head"` or `"generative"`; `None` of a baseline without a model.
        split (`str`): `"validation"` or `"test"`: whose targets were looked for.
        ranking (`str`): `"full"`: among all items, or `"candidates"`: among the user's candidates.
        history_masked (`bool`): whether the items that a user met before took no part.
        user_set (`str`): what tells these users and targets, in this order, from others, see [`user_set`].
        item_set (`str`): the same of the items, or of the candidates, that were ranked.
        ranks (`numpy.ndarray`, *optional*): rank of each user's target, counted from 1; 0 is a miss. Not of `"generative"`.
        hits (`numpy.ndarray`, *optional*): of `"generative"`: for each user whether the text is the target's title.
        valid (`numpy.ndarray`, *optional*): of `"generative"`: whether it is the title of any candidate.
        texts (`list[str]`, *optional*): of `"generative"`: what was written.
        ks (`Sequence[int]`, *optional*, defaults to `(1, 5, 10, 20)`): where the lists of HR@k and NDCG@k end.
        counts (`dict`, *optional*): of users, items, and what else is worth knowing.
    """

    task_mode: str | None
    split: str
    ranking: str
    history_masked: bool
    user_set: str
    item_set: str
    ranks: np.ndarray | None = None
    hits: np.ndarray | None = None
    valid: np.ndarray | None = None
    texts: list[str] | None = None
    ks: Sequence[int] = KS
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def per_user(self) -> dict[str, np.ndarray]:
        """What each user adds to each metric: of ranks as in [`user_metrics`]; of texts `"hr@1"` and `"valid_ratio"`."""
        return values_of(self.ranks, self.hits, self.valid, self.ks)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics: means over users."""
        return {name: float(values.mean()) for name, values in self.per_user.items()}


def values_of(ranks: Any, hits: Any, valid: Any, ks: Sequence[int]) -> dict[str, np.ndarray]:
    """Values of each metric by user, of ranks, or else of hits and valid texts."""
    if ranks is not None:
        return user_metrics(ranks, ks)
    return {"hr@1": np.asarray(hits, dtype=float), "valid_ratio": np.asarray(valid, dtype=float)}


def hit_and_valid(text: str, candidate_titles: Sequence[str], target_title: str) -> tuple[bool, bool]:
    """
    Whether a text is the target's title, and whether it is the title of any candidate.

    Titles are compared by equality after [`normalise_title`]: NFKC, case folded, white space as single spaces. Nothing else is
    forgiven. Where other candidates have the target's title, no text can tell them apart, and naming it is a hit.

    Args:
        text (`str`): what the model wrote.
        candidate_titles (`Sequence[str]`): titles of the candidates.
        target_title (`str`): title of the target.

    Returns:
        `tuple[bool, bool]`: hit, valid. Blank text is neither.

    Example:

    ```python
    >>> from qcrd_trl.recommendation.outcome import hit_and_valid
    >>> hit_and_valid(" toy  story", ["Heat", "Toy Story"], "Toy Story")
    (True, True)
    ```
    """
    wanted = normalise_title(text)
    if not wanted:
        return False, False
    hit = wanted == normalise_title(target_title)
    return hit, hit or any(wanted == normalise_title(title) for title in candidate_titles)


def user_set(user_ids: Sequence[str], target_ids: Sequence[str]) -> str:
    """What tells evaluated users from others: SHA-256 of their ids and those of their targets, in order."""
    return _digest([list(map(str, user_ids)), list(map(str, target_ids))])


def item_set(item_ids: Sequence[str], candidates: np.ndarray | None = None) -> str:
    """What tells ranked items from others: SHA-256 of their ids in order, and of each user's candidates where there are any."""
    # Ids of candidates in sorted order: how they are shuffled changes no rank.
    chosen = None if candidates is None else np.sort(candidates, axis=1).tolist()
    return _digest([list(map(str, item_ids)), chosen])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
