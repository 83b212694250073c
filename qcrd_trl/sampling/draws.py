"""Random tokens whose randomness belongs to the row alone."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor


class TokenDraws(LogitsProcessor):
    """
    Makes the likeliest token a sample: the largest of p / e, with e from the exponential distribution, has the
    distribution of a draw from p, the softmax of logits / temperature. Each row has random numbers of its own, so that what
    is drawn for it does not depend on the others.

    One number a row and the running sums of p would be cheaper still. But then each token's place on the line depends on the
    rounding of all before it, and with many likely tokens the token drawn would often change with the batch. Here only two
    nearly equal candidates can change places.

    Args:
        seeds (`Sequence[int]`): a seed for each row.
        temperature (`float`): sampling temperature.
        device (`torch.device`): where the logits are.
    """

    def __init__(self, seeds: Sequence[int], temperature: float, device: torch.device):
        self.temperature, self.device = temperature, torch.device(device)
        self._generators = [self._generator(seed) for seed in seeds]

    def _generator(self, seed: int) -> np.random.Generator | torch.Generator:
        # NumPy's exponential numbers take a fifth of the time of torch's on a CPU.
        if self.device.type == "cpu":
            return np.random.Generator(np.random.SFC64(seed))
        return torch.Generator(self.device).manual_seed(seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.ranked(scores, range(len(scores)))

    def ranked(self, logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """
        Scores of which the largest is the token drawn.

        Args:
            logits (`torch.Tensor`): of some rows, shape `(len(rows), vocabulary)`.
            rows (`Sequence[int]`): those rows.
        """
        chances = torch.softmax(logits.float() / self.temperature, -1)
        return chances.div_(self._exponentials(logits.shape, [self._generators[row] for row in rows]))

    def _exponentials(self, shape: torch.Size, generators: list) -> torch.Tensor:
        if self.device.type == "cpu":
            numbers = np.ones(shape)
            for row, generator in zip(numbers, generators, strict=True):
                if generator is not None:
                    generator.standard_exponential(out=row)
            numbers = torch.from_numpy(numbers).float()
        else:
            numbers = torch.ones(shape, device=self.device)
            for row, generator in zip(numbers, generators, strict=True):
                if generator is not None:
                    row.exponential_(generator=generator)
        return numbers.clamp_(min=torch.finfo(torch.float32).tiny)

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows."""
        self._generators = [self._generators[row] for row in rows]

    def start(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begins anew in some of the rows."""
        for row, seed in zip(rows, seeds, strict=True):
            self._generators[row] = self._generator(seed)

    def stop(self, row: int) -> None:
        """Draws nothing more for a row."""
        self._generators[row] = None
