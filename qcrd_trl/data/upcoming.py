"""Which rows the next optimizer steps will read, asked of the data loader without moving it."""

import copy
import math
from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from .length_grouping import LengthGroupedSampler


def steps_per_epoch(dataloader: Any, accumulation: int) -> int | None:
    """Optimizer steps of an epoch, or `None` where the data loader has no length."""
    try:
        return max(math.ceil(len(dataloader) / accumulation), 1)
    except TypeError:
        return None


def upcoming_rows(
    dataloader: DataLoader, first_step: int, num_steps: int, accumulation: int = 1, num_processes: int = 1
) -> set[int] | None:
    """
    Positions in the dataset of the rows that a run of optimizer steps will read, on all processes together.

    Args:
        dataloader (`DataLoader`): the training data loader, as the accelerator prepared it.
        first_step (`int`): optimizer steps done before the run.
        num_steps (`int`): its length.
        accumulation (`int`, *optional*, defaults to `1`): micro-batches of a step.
        num_processes (`int`, *optional*, defaults to `1`): processes, each of which has the batch size of the loader.

    Returns:
        `set[int]` or `None`: the positions; `None` where the sampler does not tell its order ahead, so that any row may
        be read.
    """
    batches = getattr(dataloader, "batch_sampler", None)
    while isinstance(getattr(batches, "batch_sampler", None), BatchSampler):
        batches = batches.batch_sampler
    sampler, size = getattr(batches, "sampler", None), getattr(batches, "batch_size", None)
    shared = 1 if getattr(getattr(dataloader, "batch_sampler", None), "split_batches", False) else num_processes
    per_epoch = steps_per_epoch(dataloader, accumulation)
    if type(batches) is not BatchSampler or size is None or per_epoch is None:
        return None
    rows: set[int] = set()
    together = size * shared
    size *= accumulation * shared
    step, end = first_step, first_step + num_steps
    while step < end:
        epoch, start = divmod(step, per_epoch)
        stop = min(per_epoch, start + end - step)
        order = _order(sampler, epoch)
        if order is None:
            return None
        rows.update(order[start * size : stop * size])
        if stop == per_epoch and num_processes > 1:
            rows.update(order[: -len(order) % together])  # the last batches are filled up from the first
        step += stop - start
    return rows


def _order(sampler: Iterable[int], epoch: int) -> list[int] | None:
    if isinstance(sampler, SequentialSampler):
        return list(sampler)
    if isinstance(sampler, LengthGroupedSampler):
        return sampler.order(epoch)
    if hasattr(sampler, "set_epoch") and hasattr(sampler, "initial_seed"):  # accelerate's, seeded by the epoch
        ahead = copy.copy(sampler)
        ahead.generator = None
        ahead.set_epoch(epoch)
        return list(ahead)
    return None
