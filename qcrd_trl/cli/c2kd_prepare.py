"""`qcrd c2kd prepare`: interactions and titles to leave-one-out sequences and candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .common import parse_arguments


@dataclass
class PrepareArguments:
    """
    Arguments of `qcrd c2kd prepare`.

    Args:
        interactions (`str`):
            Interactions (user, item, time and, if there is one, rating): CSV, TSV, JSONL, Parquet, RecBole's `.inter`, a
            folder, or a Hub dataset.
        output_dir (`str`):
            Folder to write, which takes its name once it is whole. Data that lies there is replaced.
        items (`str`, *optional*):
            Items and their titles, in the same formats, or RecBole's `.item`. Items have no titles if left out.
        min_length (`int`, *optional*, defaults to `5`):
            Users with fewer events are left out; at least 3.
        max_history (`int`, *optional*, defaults to `50`):
            Largest number of events that anything is predicted from, where a run does not say otherwise. All are kept.
        num_candidates (`int`, *optional*, defaults to `20`):
            Candidates of each user and split, the target among them.
        seed (`int`, *optional*, defaults to `0`):
            Decides the candidates.
        min_rating (`float`, *optional*):
            Events rated lower are left out.
        duplicates (`str`, *optional*, defaults to `"error"`):
            What becomes of events that are equal in user, item and time.
        user_column, item_column, timestamp_column, rating_column (`str`, *optional*):
            Columns of the interactions, found by their names if left out.
        items_item_column, title_column (`str`, *optional*):
            Columns of the items, found by their names if left out.
        split, items_split (`str`, *optional*):
            Splits of the interactions and of the items.
        dataset_config, items_config (`str`, *optional*):
            Their configurations, for Hub datasets.
    """

    interactions: str = field(metadata={"help": "Interactions: a file, a folder, or a Hub dataset."})
    output_dir: str = field(metadata={"help": "Folder to write."})
    items: str | None = field(
        default=None, metadata={"help": "Items and their titles: a file, a folder, or a Hub dataset."}
    )
    min_length: int = field(default=5, metadata={"help": "Users with fewer events are left out; at least 3."})
    max_history: int = field(
        default=50,
        metadata={"help": "Events that anything is predicted from, where a run says nothing else. All are kept."},
    )
    num_candidates: int = field(default=20, metadata={"help": "Candidates of a user and split, target included."})
    seed: int = field(default=0, metadata={"help": "Seed of the candidates."})
    min_rating: float | None = field(default=None, metadata={"help": "Events rated lower are left out."})
    duplicates: Literal["error", "drop", "keep"] = field(
        default="error", metadata={"help": "What becomes of events that are equal in user, item and time."}
    )
    user_column: str | None = field(default=None, metadata={"help": "Column of the user. Default: by its name."})
    item_column: str | None = field(default=None, metadata={"help": "Column of the item. Default: by its name."})
    timestamp_column: str | None = field(default=None, metadata={"help": "Column of the time. Default: by its name."})
    rating_column: str | None = field(default=None, metadata={"help": "Column of the rating. Default: by its name."})
    items_item_column: str | None = field(
        default=None, metadata={"help": "Column of the item in --items. Default: by its name."}
    )
    title_column: str | None = field(
        default=None, metadata={"help": "Column of the title in --items. Default: by its name."}
    )
    split: str | None = field(default=None, metadata={"help": "Split of the interactions."})
    items_split: str | None = field(default=None, metadata={"help": "Split of the items."})
    dataset_config: str | None = field(
        default=None, metadata={"help": "Configuration of a Hub dataset of interactions."}
    )
    items_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset of items."})


def main(argv: Sequence[str]) -> int:
    """
    Prepares data and returns the exit status.

    Args:
        argv (`Sequence[str]`): the arguments.
    """
    description = "Turns interactions and item titles into leave-one-out sequences and candidates."
    (args,) = parse_arguments(argv, PrepareArguments, prog="qcrd c2kd prepare", description=description)
    from ..recommendation.folder import check_output_folder, save_data
    from ..recommendation.interactions import read_interactions, read_items
    from ..recommendation.preparing import PrepareSettings, prepare

    settings = PrepareSettings(**{name: getattr(args, name) for name in PrepareSettings.__dataclass_fields__})
    output = check_output_folder(args.output_dir)
    columns = (args.user_column, args.item_column, args.timestamp_column, args.rating_column)
    items = None
    if args.items is not None:
        items = read_items(args.items, args.items_item_column, args.title_column, args.items_split, args.items_config)
    interactions = read_interactions(args.interactions, *columns, args.split, args.dataset_config)
    data = prepare(interactions, items, settings)
    save_data(data, output)
    print(_described(data))
    print(f"Saved the data to {output}, fingerprint {data.fingerprint[:12]}")
    return 0


def _described(data) -> str:
    counts = data.counts
    orders = " and ".join(
        f"{what} in the order of their ids as {counts[f'{what[:-1]}_order']}" for what in ("users", "items")
    )
    lines = [
        f"read {counts['interactions']} interactions of {counts['users_read']} users; {orders}",
        f"kept {counts['users']} users with {counts['events']} events ({counts['training_events']} to train on), and "
        f"{counts['items']} items",
        f"{counts['users_with_tied_targets']} users have equal times on their last two events: the larger item is the last",
    ]
    told = {
        "events_rated_too_low": "events rated below min_rating left out",
        "duplicates_left_out": "events left out that equal another in user, item and time",
        "users_too_short": f"users with fewer than {data.settings['min_length']} events left out",
        "events_of_short_users": "events of theirs",
        "repeated_items": "events whose user had met the item before, kept",
        "items_only_in_interactions": "items that only interactions have, added",
        "items_without_title": "items without a title",
        "items_never_met": "items that no user kept has met, kept",
    }
    return "\n".join([*lines, *(f"{counts[name]} {what}" for name, what in told.items() if counts.get(name))])
