"""Rows of generative mode: the history as titles, candidates listed, the next title to be written."""

import logging
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from ..data.prompts import is_conversational
from ..errors import ConfigError, DataError
from .candidates import draw_beside
from .prompt_form import RecommendationPrompt
from .titles import item_texts, normalise_title


if TYPE_CHECKING:
    from .folder import RecommendationData


logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")


def generative_rows(
    data: "RecommendationData",
    split: str,
    max_history: int | None = None,
    examples_per_user: int | None = 1,
    seed: int = 0,
    num_candidates: int | None = None,
    form: RecommendationPrompt | None = None,
    users: Sequence[int] | None = None,
) -> Dataset:
    """
    Prompts and completions of a split.

    Rows stand user by user in the order of `users`, for training the latest target first; they depend on the data and the
    arguments alone, and what a user gets does not depend on the other users.

    Args:
        data ([`RecommendationData`]):
            Sequences, titles and candidates.
        split (`str`):
            `"validation"` or `"test"`: one row a user, with the candidates that `data` fixes. `"train"`: rows whose targets are
            training events.
        max_history (`int`, *optional*):
            Most titles of a history, the newest; that of `form` if left out.
        examples_per_user (`int`, *optional*, defaults to `1`):
            Training rows a user, the latest targets first; all of them if `None`.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the candidates of training rows: their target and items that the user never met, not even later, in a
            shuffled order.
        num_candidates (`int`, *optional*):
            Candidates of a training row, its target included; as many as a test row has if left out.
        form ([`RecommendationPrompt`], *optional*):
            Template; the built-in one, as plain text, if left out.
        users (`Sequence[int]`, *optional*):
            Indices of the users wanted (see [`sample_users`]); all if left out.

    Returns:
        [`~datasets.Dataset`] with the columns
        - `prompt` (text or messages) and `completion` (the target's title),
        - `user_id`, `target` and `candidates` (item indices),
        - `candidate_titles`: the text of each candidate. An item without a title goes by its id. Candidates whose titles are equal
          are listed once in the prompt.
        - `history` and `history_start`: the pieces of the prompt that are its history, the oldest first, and where they begin.

        How many items have no title, and how many rows candidates that no title tells apart, is logged.

    Raises:
        [`ConfigError`]: an unknown split, a number out of range.
        [`DataError`]: a user without enough items to draw candidates from, or no row at all.
    """
    form = form or RecommendationPrompt()
    max_history = form.max_history if max_history is None else max_history
    num_candidates = data.candidates["test"].shape[1] if num_candidates is None else num_candidates
    _check(data, split, max_history, examples_per_user, num_candidates, users)
    titles = item_texts(data.titles, data.item_ids)
    rows = []
    for user in range(len(data.user_ids)) if users is None else users:
        if split == "train":
            parts = _training_parts(data, user, examples_per_user, num_candidates, seed)
        else:
            parts = [(data.history(user, split), int(data.target(user, split)), data.candidates[split][user])]
        for history, target, candidates in parts:
            shown = [titles.texts[item] for item in history[-max_history:]]
            listed = [titles.texts[item] for item in candidates]
            rows.append(
                {
                    **form.render(shown, unique_titles(listed)),
                    "completion": titles.texts[target],
                    "user_id": data.user_ids[user],
                    "candidates": [int(item) for item in candidates],
                    "candidate_titles": listed,
                    "target": target,
                }
            )
    if not rows:
        raise DataError(
            f"There is no {split} row in generative mode: no user was asked for, or none has two training events, of which the "
            "second is a target."
        )
    if titles.num_missing:
        logger.warning("%d of %d items have no title and go by their id.", titles.num_missing, len(titles.texts))
    equal = sum(len(unique_titles(row["candidate_titles"])) < len(row["candidate_titles"]) for row in rows)
    if equal:
        logger.warning(
            "%d of %d %s rows have candidates of equal titles, which are listed once: naming it counts for each of them.",
            *(equal, len(rows), split),
        )
    return Dataset.from_list(rows)


def sample_users(data: "RecommendationData", count: int, seed: int = 0) -> list[int]:
    """
    Indices of `count` users, drawn without replacement and sorted; all of them if there are no more.

    Raises:
        [`ConfigError`]: `count` is below 1.
    """
    if count < 1:
        raise ConfigError(f"The number of users to sample must be at least 1, got {count}.")
    known = len(data.user_ids)
    if count >= known:
        return list(range(known))
    return sorted(random.Random(f"users:{seed}").sample(range(known), count))


def shorten_history(row: Mapping[str, Any], count: int) -> str | list[dict[str, Any]]:
    """The prompt of a row without the oldest `count` items of its history."""
    prompt = row["prompt"]
    text = prompt[-1]["content"] if is_conversational(prompt) else prompt
    start = row["history_start"]
    rest = start + sum(len(piece) for piece in row["history"][:count])
    text = text[:start] + text[rest:]
    return [*prompt[:-1], {**prompt[-1], "content": text}] if is_conversational(prompt) else text


def unique_titles(titles: Sequence[str]) -> list[str]:
    """The titles without those that are equal to an earlier one (see [`normalise_title`])."""
    first: dict[str, str] = {}
    for title in titles:
        first.setdefault(normalise_title(title), title)
    return list(first.values())


def _training_parts(data, user: int, examples: int | None, num_candidates: int, seed: int) -> list[tuple]:
    """(history, target, candidates) of a user's training rows, the latest target first."""
    events = data.history(user, "train")
    places = range(len(events) - 1, 0, -1)
    met = np.unique(data.sequences[user])
    return [
        (events[:place], int(events[place]), _draw_candidates(data, user, place, met, num_candidates, seed))
        for place in (places if examples is None else places[:examples])
    ]


def _draw_candidates(data, user: int, place: int, met: np.ndarray, count: int, seed: int) -> list[int]:
    if data.num_items - len(met) < count - 1:
        raise DataError(
            f"User {data.user_ids[user]!r} has met {len(met)} of {data.num_items} items: there are no {count - 1} others to list "
            "beside a target. Choose fewer candidates."
        )
    target = int(data.sequences[user][place])
    return draw_beside(seed, data.user_ids[user], f"train\0{place}", target, met, data.num_items, count)


def _check(data, split, max_history, examples_per_user, num_candidates, users) -> None:
    if split not in SPLITS:
        raise ConfigError(f"`split` must be one of {', '.join(map(repr, SPLITS))}, got {split!r}.")
    for name, value in (("max_history", max_history), ("examples_per_user", examples_per_user)):
        if value is not None and value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    if split == "train" and not 1 <= num_candidates <= data.num_items:
        raise ConfigError(
            f"`num_candidates` must lie between 1 and the number of items ({data.num_items}), got {num_candidates}."
        )
    unknown = [user for user in (() if users is None else users) if not 0 <= user < len(data.user_ids)]
    if unknown:
        raise ConfigError(
            f"There is no user {unknown[0]}: the data has {len(data.user_ids)} (0 to {len(data.user_ids) - 1})."
        )
