"""The whole way from interactions to data: what `qcrd c2kd prepare` runs."""

from dataclasses import asdict, dataclass

from ..errors import ConfigError
from .candidates import draw_candidates
from .interactions import Interactions, Items
from .leave_one_out import MAX_HISTORY, RecommendationData, make_data
from .sequences import MIN_LENGTH, Duplicates, build_sequences


@dataclass(frozen=True)
class PrepareSettings:
    """
    How interactions become data.

    Args:
        min_length (`int`, *optional*, defaults to `5`):
            Users with fewer events are left out; at least 3.
        max_history (`int`, *optional*, defaults to `50`):
            Largest number of events that anything is predicted from. The data holds all events; this is what its rows are cut
            to where nothing else is asked for.
        num_candidates (`int`, *optional*, defaults to `20`):
            Candidates of each user and split, the target among them.
        seed (`int`, *optional*, defaults to `0`):
            Decides the candidates.
        min_rating (`float`, *optional*):
            Events rated lower are left out.
        duplicates (`str`, *optional*, defaults to `"error"`):
            What becomes of events that are equal in user, item and time: `"error"`, `"drop"` or `"keep"`.
    """

    min_length: int = 5
    max_history: int = MAX_HISTORY
    num_candidates: int = 20
    seed: int = 0
    min_rating: float | None = None
    duplicates: Duplicates = "error"

    def __post_init__(self):
        for name, least in (("min_length", MIN_LENGTH), ("max_history", 1), ("num_candidates", 2), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}.")
        if self.min_rating is not None and not abs(self.min_rating) < float("inf"):
            raise ConfigError(f"min_rating must be a finite number, got {self.min_rating}.")
        if self.duplicates not in ("error", "drop", "keep"):
            raise ConfigError(f"duplicates must be 'error', 'drop' or 'keep', got {self.duplicates!r}.")


def prepare(
    interactions: Interactions, items: Items | None = None, settings: PrepareSettings | None = None
) -> RecommendationData:
    """
    Makes leave-one-out data with candidates. It does not depend on the order of the interactions or of the items.

    Args:
        interactions (`Interactions`): the events.
        items (`Items`, *optional*): items and titles.
        settings (`PrepareSettings`, *optional*): how.

    Returns:
        [`~recommendation.leave_one_out.RecommendationData`]: the data.

    Raises:
        DataError: the interactions cannot be used so.

    Example:

    ```python
    >>> data = prepare(read_interactions("ml-100k.inter"), read_items("ml-100k.item"))
    >>> save_data(data, "ml-100k-data")
    ```
    """
    settings = settings or PrepareSettings()
    built = build_sequences(interactions, items, settings.min_length, settings.min_rating, settings.duplicates)
    candidates = draw_candidates(
        built.user_ids, built.sequences, len(built.item_ids), settings.num_candidates, settings.seed
    )
    sources = {"interactions": interactions.name, "items": items.name if items else None}
    return make_data(
        built.user_ids,
        built.sequences,
        built.item_ids,
        built.titles,
        candidates,
        {**asdict(settings), "sources": sources},
        built.timestamps,
        built.counts,
    )
