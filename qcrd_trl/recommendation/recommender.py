"""[`Recommender`]: a trained item-head model with the names of its items, which is asked by item ids."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError, DataError, ModelError
from ..files import whole_file
from ..repositories import student_folder
from .loading import load_recommender
from .states import core_model


ITEMS_FILE = "items.json"
_FORMAT = 1


@dataclass(frozen=True)
class ItemNames:
    """
    What the indices of an item-head model stand for.

    Args:
        item_ids (`list[str]`): id of each item, by its index.
        titles (`list[str or None]`): title of each item; `None` where there is none.
        max_history (`int`, *optional*): most items of a history that the model was trained to read; the newest count.
    """

    item_ids: list[str]
    titles: list[str | None]
    max_history: int | None = None

    def save(self, folder: str | os.PathLike) -> Path:
        """Writes `items.json` beside a model's weights, and gives its place."""
        path = Path(folder) / ITEMS_FILE
        content = {
            "format": _FORMAT,
            "max_history": self.max_history,
            "item_ids": self.item_ids,
            "titles": self.titles,
        }
        with whole_file(path) as aside:
            aside.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "ItemNames":
        """
        Reads what [`~ItemNames.save`] wrote.

        Raises:
            [`ModelError`]: if there is no such file, or it cannot be used.
        """
        path = Path(folder) / ITEMS_FILE
        if not path.is_file():
            raise ModelError(
                f"{str(folder)!r} has no {ITEMS_FILE}: it is no item-head model that `qcrd c2kd train` saved. Name the items by "
                "`Recommender(model, ItemNames(...))`."
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}, and this version reads {_FORMAT}")
            return cls(list(content["item_ids"]), list(content["titles"]), content["max_history"])
        except (ValueError, KeyError, TypeError) as err:
            raise ModelError(f"{path} cannot be used ({err!r}): save the model again.") from err


@dataclass(frozen=True)
class Recommendation:
    """
    An item that is recommended.

    Args:
        item_id (`str`): its id.
        title (`str` or `None`): its title.
        score (`float`): the model's score, a logit: only differences within one user mean something.
    """

    item_id: str
    title: str | None
    score: float


class Recommender:
    """
    Recommends next items by an item-head model or SASRec.

    Args:
        model (`nn.Module`): what [`~qcrd_trl.recommendation.loading.load_recommender`] gives.
        items ([`ItemNames`]): its items.

    Raises:
        [`ModelError`]: if the model scores no items, or not as many as are named.

    Example:

    ```python
    >>> from qcrd_trl.recommendation.recommender import Recommender

    >>> recommender = Recommender.from_pretrained("student")
    >>> (best,) = recommender.recommend([["50", "181", "1"]], k=3)
    >>> [one.title for one in best]
    ```
    """

    def __init__(self, model: nn.Module, items: ItemNames):
        number = getattr(core_model(model).config, "num_items", None)
        if number is None:
            raise ModelError(
                f"A {type(core_model(model)).__name__} scores no items: a model of generative mode is asked by "
                "`recommend_titles`."
            )
        if number != len(items.item_ids):
            raise ModelError(f"The model scores {number} items, and {len(items.item_ids)} are named.")
        self.model, self.items = model, items
        self._index = {item_id: index for index, item_id in enumerate(items.item_ids)}

    @classmethod
    def from_pretrained(cls, path_or_repo: str | os.PathLike, **kwargs: Any) -> "Recommender":
        """
        Loads a model and its items from a folder, or a repository of the Hub.

        Args:
            path_or_repo (`str` or `os.PathLike`): the folder or the repository's name.
            kwargs: passed to [`~qcrd_trl.recommendation.loading.load_recommender`], such as `revision`.
        """
        hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir") if key in kwargs}
        folder = student_folder(path_or_repo, **hub)
        items = ItemNames.load(folder)
        return cls(load_recommender(path_or_repo, **kwargs), items)

    @torch.no_grad()
    def recommend(
        self, histories: Sequence[Sequence[str]], k: int = 10, mask_history: bool = False, batch_size: int = 64
    ) -> list[list[Recommendation]]:
        """
        The best next items of each history.

        Args:
            histories (`Sequence[Sequence[str]]`): ids of items, the oldest first; at least one each.
            k (`int`, *optional*, defaults to `10`): how many items, at most all.
            mask_history (`bool`, *optional*, defaults to `False`): whether items of the history are left out.
            batch_size (`int`, *optional*, defaults to `64`): histories that are read at a time.

        Returns:
            `list[list[Recommendation]]`: of each history up to `k` items, the best first; of equal scores the smaller index.

        Raises:
            [`DataError`]: if a history is empty, or an id is not known.
            [`ModelError`]: if a score is no number.
            [`ConfigError`]: if a number is below 1.
        """
        for name, value in (("k", k), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {value}.")
        rows = [self._indices(number, history) for number, history in enumerate(histories)]
        was_training = self.model.training
        self.model.eval()
        try:
            found = []
            for start in range(0, len(rows), batch_size):
                found += self._best(rows[start : start + batch_size], k, mask_history)
        finally:
            self.model.train(was_training)
        return found

    def _indices(self, number: int, history: Sequence[str]) -> list[int]:
        if isinstance(history, str) or not hasattr(history, "__len__") or not len(history):
            raise DataError(f"History {number} must be a list of at least one item id, got {history!r}.")
        unknown = [one for one in history if str(one) not in self._index]
        if unknown:
            raise DataError(f"History {number} holds {unknown[0]!r}, which is no item of this model.")
        return [self._index[str(one)] for one in history]

    def _best(self, rows: list[list[int]], k: int, mask_history: bool) -> list[list[Recommendation]]:
        count = len(self.items.item_ids)
        read = [row if self.items.max_history is None else row[-self.items.max_history :] for row in rows]
        device = next(self.model.parameters()).device
        ids = torch.full((len(rows), max(map(len, read))), count)
        for place, row in enumerate(read):
            ids[place, : len(row)] = torch.tensor(row)
        last = torch.tensor([len(row) - 1 for row in read], device=device)
        at = (torch.arange(len(rows), device=device), last)
        scores = self.model(
            input_ids=ids.to(device), attention_mask=(ids != count).long().to(device), positions=at
        ).logits.float()
        scores = scores.cpu()
        if scores.isnan().any():  # a sort would put them first
            raise ModelError(
                "The model gives scores that are no numbers: its weights are not finite. Load an earlier checkpoint."
            )
        if mask_history:
            for place, row in enumerate(rows):
                scores[place, row] = -torch.inf
        best = torch.sort(scores, dim=1, descending=True, stable=True)
        return [
            [
                Recommendation(self.items.item_ids[index], self.items.titles[index], value)
                for value, index in zip(values.tolist(), indices.tolist(), strict=True)
                if value != -torch.inf
            ]
            for values, indices in zip(best.values[:, :k], best.indices[:, :k], strict=True)
        ]
