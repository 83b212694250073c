"""Running means of what is logged, kept on the device until they are needed."""

from collections.abc import Iterable

import torch


class Meter:
    """
    Sums of named quantities and of what they are divided by.

    Names are fixed, so that all processes reduce the same vector, whatever their batches held.

    Args:
        names (`Iterable[str]`): the quantities.
        device (`torch.device`): where they are summed.
    """

    def __init__(self, names: Iterable[str], device: torch.device):
        self.names = list(names)
        self._column = {name: i for i, name in enumerate(self.names)}
        self._device = device
        self._dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        self.reset()

    def reset(self) -> None:
        """Starts anew."""
        self._sums = torch.zeros(2, len(self.names), dtype=self._dtype, device=self._device)

    def add(self, name: str, total: torch.Tensor | float, count: torch.Tensor | float) -> None:
        """Adds to a quantity's sum and to its divisor; neither is synchronised with the host."""
        column = self._column[name]
        for i, value in enumerate((total, count)):
            value = value.detach().to(self._device, self._dtype) if torch.is_tensor(value) else float(value)
            self._sums[i, column] += value

    def state(self) -> dict[str, list[float]]:
        """The sums and divisors of this process, by name."""
        totals, counts = self._sums.cpu().tolist()
        return {name: [total, count] for name, total, count in zip(self.names, totals, counts, strict=True)}

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Goes on from what [`~Meter.state`] gave; a name that it does not hold starts anew."""
        self.reset()
        for name in self.names:
            self.add(name, *state.get(name, (0.0, 0.0)))

    def compute(self, reduce=None) -> dict[str, float]:
        """
        Mean of each quantity that was seen.

        Args:
            reduce (`Callable`, *optional*): sums the tensor over processes; a collective, called on every process.
        """
        sums = self._sums if reduce is None else reduce(self._sums.clone())
        totals, counts = sums.cpu().tolist()
        return {
            name: total / count for name, total, count in zip(self.names, totals, counts, strict=True) if count > 0
        }
