"""Rows of items, or of prompt and completion, to token ids: once and up front, every row checked, what is left out counted."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data.prompts import StudentFormat, completion_ids, has_lone_surrogate, is_conversational, prompt_ids
from ..errors import ConfigError, DataError
from .prompts import shorten_history


logger = logging.getLogger(__name__)

TASK_MODES = ("item_head", "generative")
TRAIN_POSITIONS = ("all", "last")
IGNORED = -100

# What rows may lose, in the words of the report.
COUNTERS = {
    "too_short": "rows dropped: fewer than two items, so that nothing precedes a target",
    "shortened": "rows lost their oldest history, to fit",
    "history_dropped": "history items left out of them",
}

# Nothing stands before a question, and a plain prompt is parted from its completion by a line break.
_FORM = StudentFormat(predict_prefix="", explain_prefix="")


def tokenize_rows(
    dataset: Dataset,
    task_mode: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    num_items: int | None = None,
    max_history: int | None = None,
    max_length: int | None = None,
    train_positions: str = "all",
    name: str = "train_dataset",
    num_proc: int | None = None,
) -> Dataset:
    """
    Checks and tokenizes a dataset.

    Args:
        dataset ([`~datasets.Dataset`]):
            Item-head mode: column `items`, a list of item indices, the oldest first. Generative mode: columns `prompt` (a text
            or messages) and `completion`, and those of [`~recommendation.prompts.generative_rows`] that say where the history
            stands in the prompt, without which nothing of it can be left out. Other columns are ignored.
        task_mode (`str`):
            `"item_head"` or `"generative"`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            That of student and teacher; needed in generative mode.
        num_items (`int`, *optional*):
            Number of items; needed in item-head mode.
        max_history (`int`, *optional*):
            Item-head mode: a row keeps its last `max_history + 1` items. (Generative rows are made with theirs.)
        max_length (`int`, *optional*):
            Generative mode: largest number of tokens of a prompt and its completion together. A row that is longer loses its
            oldest history first, one item after the other; its target is never cut.
        train_positions (`str`, *optional*, defaults to `"all"`):
            Item-head mode: `"all"`: every item but the first is predicted, `"last"`: only the last.
        name (`str`, *optional*, defaults to `"train_dataset"`):
            What error messages call the dataset.
        num_proc (`int`, *optional*):
            Number of processes that tokenize.

    Returns:
        [`~datasets.Dataset`] with the columns `input_ids`, `labels` (of the same length, not shifted, -100 where nothing is to be
        predicted), `row_index` (position in `dataset`) and `length`. What was left out is logged with counts.

    Raises:
        [`ConfigError`]: arguments that do not fit the task mode.
        [`DataError`]: a missing column, a wrong type, an item out of range, a target that does not fit, or no row left.
    """
    _check_arguments(task_mode, tokenizer, num_items, train_positions)
    check_dataset(dataset, ("items",) if task_mode == "item_head" else ("prompt", "completion"), name)
    if task_mode == "item_head":
        tokenize = ItemRowTokenizer(num_items, max_history, train_positions, name)
    else:
        tokenize = TextRowTokenizer(tokenizer, max_length, name)
    mapped = dataset.map(
        tokenize,
        with_indices=True,
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc=f"Tokenizing {name}",
    )
    counts = {counter: sum(mapped[f"n_{counter}"]) for counter in COUNTERS}
    report = ", ".join(f"{count} {COUNTERS[counter]}" for counter, count in counts.items() if count)
    if report:
        logger.warning("%s: %s.", name, report)
    if counts["too_short"]:
        mapped = mapped.filter(_is_kept, desc=f"Filtering {name}")
    if len(mapped) == 0:
        raise DataError(f"{name}: none of its {len(dataset)} rows can be used ({report}).")
    return mapped.remove_columns([f"n_{counter}" for counter in COUNTERS])


@dataclass
class ItemRowTokenizer:
    """
    Callable for [`datasets.Dataset.map`] (with indices): a sequence of items as a causal language model reads it.

    Args: as those of [`tokenize_rows`].
    """

    num_items: int
    max_history: int | None = None
    train_positions: str = "all"
    name: str = "train_dataset"

    def __call__(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        items = row["items"]
        if not isinstance(items, (list, tuple)) or any(isinstance(i, bool) or not isinstance(i, int) for i in items):
            raise DataError(
                f"{self.name}, row {index}: column 'items' must hold a list of item indices, got {items!r:.60}."
            )
        foreign = [item for item in items if not 0 <= item < self.num_items]
        if foreign:
            raise DataError(
                f"{self.name}, row {index}: item {foreign[0]} is not one of the {self.num_items} items (0 to "
                f"{self.num_items - 1}). Make the rows from the data that the models were built for."
            )
        counts = dict.fromkeys(COUNTERS, 0)
        kept = list(items)
        if self.max_history is not None and len(kept) > self.max_history + 1:
            counts["history_dropped"] = len(kept) - self.max_history - 1
            counts["shortened"] = 1
            kept = kept[-self.max_history - 1 :]
        counts["too_short"] = int(len(kept) < 2)
        hidden = 1 if self.train_positions == "all" else len(kept) - 1
        labels = [IGNORED] * hidden + kept[hidden:]
        return _tokenized(kept, labels, index, counts)


@dataclass
class TextRowTokenizer:
    """
    Callable for [`datasets.Dataset.map`] (with indices): prompt, completion and EOS, of which the last two are predicted.

    Args: as those of [`tokenize_rows`].
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int | None = None
    name: str = "train_dataset"

    def __call__(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        prompt, completion = checked_prompt(row, index, self.name), row["completion"]
        if not isinstance(completion, str) or not completion.strip() or has_lone_surrogate(completion):
            raise DataError(
                f"{self.name}, row {index}: column 'completion' must hold the target's title as a text, got "
                f"{completion!r:.60}."
            )
        wanted = answer_ids(prompt, completion, self.tokenizer)
        room = None if self.max_length is None else self.max_length - len(wanted)
        start, dropped = fitting_prompt_ids(row, index, self.tokenizer, room, self.name, self.max_length, "target")
        counts = {**dict.fromkeys(COUNTERS, 0), "shortened": int(dropped > 0), "history_dropped": dropped}
        return _tokenized(start + wanted, [IGNORED] * len(start) + wanted, index, counts)


def answer_ids(prompt: str | list[dict[str, Any]], title: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of a title as the answer to a prompt, with the token that ends it."""
    return completion_ids(prompt, "", title, tokenizer, _FORM)


def fitting_prompt_ids(
    row: Mapping[str, Any],
    index: int,
    tokenizer: PreTrainedTokenizerBase,
    room: int | None,
    name: str,
    max_length: int | None,
    reserved_for: str,
) -> tuple[list[int], int]:
    """
    Ids of a row's prompt, with as much of its newest history as fits.

    Args:
        row (`Mapping`): `prompt`, and `history` and `history_start` where something may be left out.
        index (`int`): its position, for errors.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): tokenizes.
        room (`int`, *optional*): most tokens of the prompt; no limit if left out.
        name (`str`): what errors call the dataset.
        max_length (`int`, *optional*): the limit that errors name.
        reserved_for (`str`): what errors say that the rest of `max_length` is for.

    Returns:
        `tuple[list[int], int]`: ids, and how many of the oldest items were left out.

    Raises:
        [`DataError`]: the prompt does not fit even without its history.
    """
    prompt = checked_prompt(row, index, name)
    ids = prompt_ids(prompt, "", tokenizer, _FORM)
    if room is None or len(ids) <= room:
        return ids, 0
    history = row.get("history") or []
    shortest = prompt_ids(shorten_history(row, len(history)), "", tokenizer, _FORM) if history else ids
    if len(shortest) > room:
        without = "without its history " if history else ""
        known = (
            ""
            if history
            else " Its history cannot be shortened: the row does not say where it stands (see `generative_rows`)."
        )
        raise DataError(
            f"{name}, row {index}: the prompt has {len(shortest)} tokens {without}and its {reserved_for} "
            f"{max_length - room}, which do not fit in max_length={max_length}.{known} Raise `max_length`, list fewer "
            "candidates, or filter such rows out."
        )
    fits, least, most = shortest, 1, len(history)
    while least < most:  # the fewest left out that fit
        middle = (least + most) // 2
        ids = prompt_ids(shorten_history(row, middle), "", tokenizer, _FORM)
        if len(ids) <= room:
            fits, most = ids, middle
        else:
            least = middle + 1
    return fits, most


def checked_prompt(row: Mapping[str, Any], index: int, name: str) -> str | list[dict[str, Any]]:
    """The prompt of a row, or a [`DataError`] that names what is wrong with it."""
    prompt = row["prompt"]
    texts = [prompt]
    if is_conversational(prompt):
        texts = [message.get("content") if isinstance(message, Mapping) else None for message in prompt]
        if not prompt or not isinstance(prompt[-1], Mapping) or prompt[-1].get("role") != "user":
            raise DataError(f"{name}, row {index}: the messages of column 'prompt' must end with the user's turn.")
    if not all(isinstance(text, str) and not has_lone_surrogate(text) for text in texts) or not "".join(texts).strip():
        raise DataError(
            f"{name}, row {index}: column 'prompt' must hold a text or a list of messages, each with a text as 'content', "
            f"got {prompt!r:.60}."
        )
    return prompt


def _tokenized(ids: Sequence[int], labels: Sequence[int], index: int, counts: Mapping[str, int]) -> dict[str, Any]:
    row = {"input_ids": list(ids), "labels": list(labels), "row_index": index, "length": len(ids)}
    return {**row, **{f"n_{name}": count for name, count in counts.items()}}


def _is_kept(row: Mapping[str, Any]) -> bool:
    return not row["n_too_short"]


def _check_arguments(task_mode: str, tokenizer: Any, num_items: int | None, train_positions: str) -> None:
    if task_mode not in TASK_MODES:
        raise ConfigError(f"`task_mode` must be one of {', '.join(map(repr, TASK_MODES))}, got {task_mode!r}.")
    if train_positions not in TRAIN_POSITIONS:
        raise ConfigError(
            f"`train_positions` must be one of {', '.join(map(repr, TRAIN_POSITIONS))}, got {train_positions!r}."
        )
    if task_mode == "item_head" and num_items is None:
        raise ConfigError("Item-head mode needs `num_items`, the number of items of the models' heads.")
    if task_mode == "generative" and tokenizer is None:
        raise ConfigError("Generative mode needs the tokenizer of student and teacher.")


def check_dataset(dataset: Any, needed: Sequence[str], name: str) -> None:
    """Raises a [`DataError`] that names what is wrong with a dataset's kind, size or columns."""
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"{name} must be a `datasets.Dataset`, got {type(dataset).__name__}. Pass one split; a list of rows becomes one by "
            "`Dataset.from_list(rows)`."
        )
    if len(dataset) == 0:
        raise DataError(f"{name} is empty: it has 0 rows.")
    missing = [column for column in needed if column not in dataset.column_names]
    if missing:
        raise DataError(
            f"{name} has no column {', '.join(map(repr, missing))}; its columns are "
            f"{', '.join(map(repr, dataset.column_names))}. Make it with `train_rows`, `eval_rows` or `generative_rows`, or choose "
            "the other task mode."
        )
