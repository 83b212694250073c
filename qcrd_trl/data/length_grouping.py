"""Batches of questions of like length, in an order that is a function of the seed and the epoch."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset
from torch.utils.data import Sampler


class LengthGroupedSampler(Sampler[int]):
    """
    Draws questions so that those of a batch are of like length, and batches come in random order.

    The questions are shuffled and cut into groups of `batches_per_group` batches. Each group is sorted by length and cut into
    batches, whose order is shuffled over the whole epoch: a batch is a random sample of questions of like length, another
    one in each epoch, and lengths have no trend. Only a last batch that is not full keeps its place.

    Args:
        lengths (`Sequence[int]`): tokens of each question.
        batch_size (`int`): questions of a micro-batch on all processes together.
        seed (`int`, *optional*, defaults to `0`): seed of all epochs. The order does not depend on any state but the epoch,
            so that each process draws the same one, and a resumed run that of the run that was not stopped.
        batches_per_group (`int`, *optional*, defaults to `16`): batches that are sorted together. More leave less padding,
            and make the questions of a batch more alike.

    Examples:

    ```python
    >>> sampler = LengthGroupedSampler([5, 1, 4, 2], batch_size=2)
    >>> sorted(sampler)
    [0, 1, 2, 3]
    ```
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int = 0, batches_per_group: int = 16):
        self.lengths, self.batch_size, self.initial_seed = list(lengths), batch_size, seed
        self.batches_per_group = batches_per_group
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that is drawn next; an epoch that was drawn to its end sets the one after it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from self.order(self.epoch)
        self.epoch += 1

    def order(self, epoch: int) -> list[int]:
        """Positions of all questions in the order of an epoch."""
        draws = random.Random(f"{self.initial_seed}:{epoch}")
        shuffled = list(range(len(self.lengths)))
        draws.shuffle(shuffled)
        size, whole = self.batch_size, len(shuffled) - len(shuffled) % self.batch_size
        group, batches = size * self.batches_per_group, []
        for start in range(0, whole, group):
            members = sorted(shuffled[start : min(start + group, whole)], key=self.lengths.__getitem__)
            batches += [members[i : i + size] for i in range(0, len(members), size)]
        draws.shuffle(batches)
        return [index for batch in batches for index in batch] + shuffled[whole:]


def grouped_sampler(rows: Any, args: Any) -> LengthGroupedSampler | None:
    """The sampler of a tokenized dataset, if its training arguments ask for `train_sampling_strategy="group_by_length"`."""
    if args.train_sampling_strategy != "group_by_length" or not isinstance(rows, Dataset):
        return None
    seed = args.seed if args.data_seed is None else args.data_seed
    return LengthGroupedSampler(rows["length"], args.train_batch_size * args.world_size, seed)
