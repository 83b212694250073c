"""
Full ranking in bounded memory, with ranks that are the same however the work is cut up.

Ties decide many ranks (items that share an embedding, states that collapsed), and a matrix product gives the same item other last
bits in a tile of another shape, which breaks ties at random. So a float64 product only decides what it can be trusted to decide.
Scores that are closer to the target's than its largest possible rounding error are compared exactly, pair by pair: products of
two float32 numbers are exact in float64, and [`math.fsum`] gives the sign of a sum without any error. There are next to none of
these pairs but true ties.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, DataError
from .ranking_metrics import MISS


USER_CHUNK, ITEM_CHUNK = 256, 8192  # a tile of 16 MiB
_EXACT = (torch.float32, torch.float16, torch.bfloat16)  # whose products are exact in float64
_NUMBERS = 2**20  # that are held at a time while pairs are compared


@torch.no_grad()
def target_ranks(
    user_states: torch.Tensor,
    item_weight: torch.Tensor,
    targets: torch.Tensor | Sequence[int],
    bias: torch.Tensor | None = None,
    history: Sequence[Any] | None = None,
    user_chunk: int = USER_CHUNK,
    item_chunk: int = ITEM_CHUNK,
) -> torch.Tensor:
    """
    Rank of each user's target among all items: 1 + the number of items that score higher + the number of items that score
    the same and have a smaller index.

    An item's score is the exact product of state and weight (and the bias added), as of real numbers. The rank therefore
    depends on the states and weights alone: not on the chunks, the number of threads or the device.

    Args:
        user_states (`torch.Tensor` of shape `(U, d)`): float32 or less, what the head would read for each user.
        item_weight (`torch.Tensor` of shape `(N, d)`): float32 or less, the head's row of each item.
        targets (`torch.Tensor` or `Sequence[int]`, of shape `(U,)`): index of each user's target.
        bias (`torch.Tensor` of shape `(N,)`, *optional*): the head's bias.
        history (`Sequence`, *optional*): for each user the indices of items that take no part, in any order and number;
            the target takes part all the same. If left out, all items do.
        user_chunk (`int`, *optional*, defaults to `256`): users at a time.
        item_chunk (`int`, *optional*, defaults to `8192`): items at a time. No more than `user_chunk * item_chunk` scores
            exist at a time, each of 8 bytes.

    Returns:
        `torch.LongTensor` of shape `(U,)`, on the CPU: ranks from 1. 0 is a miss: the target's score is not finite. Of the
        other items, one that scores NaN or minus infinity never outranks the target, and one of plus infinity does.

    Raises:
        [`DataError`]: shapes do not fit each other, a target or an item of the history does not exist, or the states or
            weights are of another type.
        [`ConfigError`]: a chunk is smaller than 1.
    """
    head = _Head(user_states, item_weight, bias)
    _check_chunks(user_chunk=user_chunk, item_chunk=item_chunk)
    targets = _indices(targets, len(user_states), len(item_weight), "target", head.device)
    hidden = _Hidden(history, targets, len(item_weight))
    ranks = torch.empty(len(user_states), dtype=torch.long)
    for start in range(0, len(user_states), user_chunk):
        rows = slice(start, min(start + user_chunk, len(user_states)))
        users = _Users(head, user_states[rows], targets[rows])
        hidden.turn_to(rows)
        for first in range(0, len(item_weight), item_chunk):
            items = torch.arange(first, min(first + item_chunk, len(item_weight)), device=head.device)
            weight, item_bias = head.of(slice(first, first + len(items)))
            scores = users.states @ weight.T
            if item_bias is not None:
                scores += item_bias
            hidden.hide(scores, first)
            users.count(scores, weight, item_bias, items)
            del scores, weight  # before the next tile is made
        ranks[rows] = users.ranks()
    return ranks


@torch.no_grad()
def candidate_ranks(
    user_states: torch.Tensor,
    item_weight: torch.Tensor,
    candidates: torch.Tensor | np.ndarray,
    targets: torch.Tensor | Sequence[int],
    bias: torch.Tensor | None = None,
    user_chunk: int = USER_CHUNK,
) -> torch.Tensor:
    """
    As [`target_ranks`], among a few candidates of each user's own.

    Args:
        candidates (`torch.Tensor` or `np.ndarray` of shape `(U, C)`): indices of items, the target among them.
        user_states, item_weight, targets, bias, user_chunk: as in [`target_ranks`]. `user_chunk * C * d` numbers exist at a
            time.

    Raises:
        [`DataError`]: a target is not among its candidates, too.
    """
    head = _Head(user_states, item_weight, bias)
    _check_chunks(user_chunk=user_chunk)
    targets = _indices(targets, len(user_states), len(item_weight), "target", head.device)
    candidates = torch.as_tensor(np.asarray(candidates, dtype=np.int64))
    if candidates.dim() != 2 or len(candidates) != len(user_states):
        raise DataError(f"Expected candidates of shape ({len(user_states)}, C), got {tuple(candidates.shape)}.")
    candidates = _indices(
        candidates.flatten(), candidates.numel(), len(item_weight), "candidate", head.device
    ).view_as(candidates)
    missing = (~(candidates == targets[:, None]).any(1)).nonzero()
    if len(missing):
        raise DataError(f"The target of user {int(missing[0])} is not among the candidates; expected it there.")
    ranks = torch.empty(len(user_states), dtype=torch.long)
    for start in range(0, len(user_states), user_chunk):
        rows = slice(start, min(start + user_chunk, len(user_states)))
        users = _Users(head, user_states[rows], targets[rows])
        chosen = candidates[rows]
        weight, item_bias = head.of(chosen)
        scores = (weight * users.states[:, None, :]).sum(-1)
        if item_bias is not None:
            scores += item_bias
        scores[chosen == targets[rows, None]] = -math.inf
        users.count(scores, weight, item_bias, chosen)
        del scores, weight
        ranks[rows] = users.ranks()
    return ranks


@torch.no_grad()
def target_ranks_from_scores(
    scores: torch.Tensor, targets: torch.Tensor | Sequence[int], history: Sequence[Any] | None = None
) -> torch.Tensor:
    """
    As [`target_ranks`], of scores that are there.

    Args:
        scores (`torch.Tensor` of shape `(U, N)`): score of each item for each user. Not changed.
        targets, history: as in [`target_ranks`].
    """
    if scores.dim() != 2 or not scores.is_floating_point():
        raise DataError(f"Expected scores of shape (users, items), got {scores.dtype} of shape {tuple(scores.shape)}.")
    targets = _indices(targets, *scores.shape, "target", scores.device)
    hidden = _Hidden(history, targets, scores.shape[1])
    of_target = scores.gather(1, targets[:, None])
    scores = scores.clone()
    hidden.turn_to(slice(0, len(scores)))
    hidden.hide(scores, 0)
    smaller = torch.arange(scores.shape[1], device=scores.device) < targets[:, None]
    ranks = 1 + ((scores > of_target) | ((scores == of_target) & smaller)).sum(1)
    return torch.where(of_target[:, 0].isfinite(), ranks, MISS).cpu()


class _Head:
    """Weights and bias of all items, in float64 as they are asked for, and the largest of them."""

    def __init__(self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None):
        if states.dim() != 2 or weight.dim() != 2 or states.shape[1] != weight.shape[1] or not len(weight):
            raise DataError(
                "Expected states of shape (users, d) and a weight of shape (items, d), got "
                f"{tuple(states.shape)} and {tuple(weight.shape)}."
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise DataError(f"Expected a bias of shape ({len(weight)},), got {tuple(bias.shape)}.")
        for name, tensor in (("states", states), ("weights", weight), ("bias", bias)):
            if tensor is not None and tensor.dtype not in _EXACT:
                raise DataError(
                    f"The {name} are {tensor.dtype}: expected float32, float16 or bfloat16, whose ranks can be told exactly. "
                    "Pass them as `.float()`."
                )
        self.weight, self.bias = weight, bias
        self.device = states.device if states.device.type != "mps" else torch.device("cpu")  # which has no float64
        norm = max(float(self._exact(part).norm(dim=1).nan_to_num(0, 0, 0).max()) for part in weight.split(ITEM_CHUNK))
        self.largest_norm = norm
        self.largest_bias = 0.0 if bias is None else float(self._exact(bias).nan_to_num(0, 0, 0).abs().max())

    def of(self, items: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        places = items.to(self.weight.device) if isinstance(items, torch.Tensor) else items
        return self._exact(self.weight[places]), None if self.bias is None else self._exact(self.bias[places])

    def _exact(self, part: torch.Tensor) -> torch.Tensor:
        return part.to(self.device).double()


class _Users:
    """A chunk of users, and how many items were found before the target of each."""

    def __init__(self, head: _Head, states: torch.Tensor, targets: torch.Tensor):
        self.states, self.targets = states.to(head.device).double(), targets
        self._weight, self._bias = head.of(targets)
        self._of_target = (self.states * self._weight).sum(1)
        if self._bias is not None:
            self._of_target = self._of_target + self._bias
        # Twice the bound of the rounding error of two sums of d products and a bias, whatever their order.
        self._unit = 4 * (states.shape[1] + 4) * 2.0**-53
        margin = self._unit * (self.states.norm(dim=1) * head.largest_norm + head.largest_bias)
        # Beside a target whose score is not finite nothing needs to be counted: NaN is neither smaller nor larger.
        of_target = torch.where(self._of_target.isfinite(), self._of_target, math.nan)
        self._low, self._high = (of_target - margin)[:, None], (of_target + margin)[:, None]
        self._before = torch.zeros_like(targets)

    def count(
        self, scores: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, items: torch.Tensor
    ) -> None:
        """
        Counts the items of a tile.

        Args:
            scores (`torch.Tensor` of shape `(users, I)`): minus infinity for what takes no part.
            weight (`torch.Tensor` of shape `(I, d)`, or `(users, I, d)` of items of each user's own): their weights.
            bias, items (`torch.Tensor` of shape `(I,)` or `(users, I)`): their biases and indices.
        """
        above = (scores > self._high).sum(1)
        self._before += above
        # Row by row: where everything is tied, the places of a whole tile would be larger than the tile.
        for row in ((scores >= self._low).sum(1) > above).nonzero()[:, 0].tolist():
            near = ((scores[row] >= self._low[row]) & (scores[row] <= self._high[row])).nonzero()[:, 0]
            own = (row,) if items.dim() == 2 else ()
            for places in near.split(max(1, _NUMBERS // self.states.shape[1])):
                at = (*own, places)
                self._before[row] += self._num_before(row, weight[at], None if bias is None else bias[at], items[at])

    def _num_before(self, row: int, weight: torch.Tensor, bias: torch.Tensor | None, items: torch.Tensor) -> int:
        """Items before the target, by exact arithmetic."""
        products, of_target = self.states[row] * weight, self.states[row] * self._weight[row]
        if bias is not None:
            products = torch.cat([products, bias[:, None]], 1)
            of_target = torch.cat([of_target, self._bias[row : row + 1]])
        smaller = items < self.targets[row]
        same = (products == of_target).all(1)
        # Where the weights of a few items are huge, most pairs are near by the bound of all, and certain by their own.
        difference = products.sum(1) - of_target.sum()
        uncertain = difference.abs() <= self._unit * (products.abs().sum(1) + of_target.abs().sum())
        before = torch.where(same, smaller, ~uncertain & (difference > 0))
        subtracted = (-of_target).tolist()
        for place in (uncertain & ~same).nonzero()[:, 0].tolist():
            exact = math.fsum(products[place].tolist() + subtracted)
            before[place] = exact > 0 or (exact == 0 and bool(smaller[place]))
        return int(before.sum())

    def ranks(self) -> torch.Tensor:
        return torch.where(self._of_target.isfinite(), 1 + self._before, MISS).cpu()


class _Hidden:
    """The items that take no part: each user's history, and the target itself, which is never before itself."""

    def __init__(self, history: Sequence[Any] | None, targets: torch.Tensor, num_items: int):
        self._targets, self._device = targets.cpu().numpy(), targets.device
        self._lengths = self._items = None
        if history is None:
            return
        if len(history) != len(targets):
            raise DataError(f"Expected the history of {len(targets)} users, got {len(history)}.")
        items = [np.asarray(one, dtype=np.int64).reshape(-1) for one in history]
        self._lengths = np.array([len(one) for one in items], dtype=np.int64)
        self._items = np.concatenate(items) if items else np.empty(0, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)])
        outside = np.flatnonzero((self._items < 0) | (self._items >= num_items))
        if len(outside):
            raise DataError(
                f"Item {self._items[outside[0]]} of a history does not exist: expected 0 to {num_items - 1}."
            )

    def turn_to(self, users: slice) -> None:
        rows, columns = np.arange(users.stop - users.start), self._targets[users]
        if self._items is not None:
            here = slice(self._starts[users.start], self._starts[users.stop])
            rows = np.concatenate([rows, np.repeat(rows, self._lengths[users])])
            columns = np.concatenate([columns, self._items[here]])
        order = np.argsort(columns, kind="stable")
        self._rows, self._columns = rows[order], columns[order]

    def hide(self, scores: torch.Tensor, first: int) -> None:
        start, end = np.searchsorted(self._columns, [first, first + scores.shape[1]])
        rows = torch.as_tensor(self._rows[start:end], device=self._device)
        columns = torch.as_tensor(self._columns[start:end] - first, device=self._device)
        scores[rows, columns] = -math.inf


def _indices(
    values: torch.Tensor | Sequence[int], count: int, num_items: int, name: str, device: torch.device
) -> torch.Tensor:
    indices = torch.as_tensor(values)
    if indices.shape != (count,) or indices.is_floating_point():
        raise DataError(f"Expected {count} {name}s, got {indices.dtype} of shape {tuple(indices.shape)}.")
    outside = ((indices < 0) | (indices >= num_items)).nonzero()
    if len(outside):
        raise DataError(
            f"The {name} {int(indices[outside[0]])} does not exist: expected an index of 0 to {num_items - 1}."
        )
    return indices.to(device, torch.long)


def _check_chunks(**chunks: int) -> None:
    for name, size in chunks.items():
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, got {size}.")
