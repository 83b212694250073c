"""How the discriminator scores rationales while it trains, counted by who wrote them."""

from collections.abc import Callable
from typing import Any

import torch

from ..run_log import SCORE_BINS, SOURCES
from .objective import RationaleRows


class ScoreCounts:
    """
    Histograms of the scores of the latest iteration, one for each of [`~qcrd_trl.run_log.SOURCES`].

    They are kept on the device; nothing is synchronised with the host until they are asked for.

    Args:
        device (`torch.device`): where they are counted.
    """

    def __init__(self, device: torch.device):
        self.iteration: int | None = None
        self._counts = torch.zeros(len(SOURCES) * SCORE_BINS, dtype=torch.long, device=device)

    def add(self, rows: RationaleRows, scores: torch.Tensor, iteration: int) -> None:
        """
        Counts the scores of a micro-batch. Those of an earlier iteration, by another discriminator, are forgotten.

        Args:
            rows ([`RationaleRows`]): the rationales.
            scores (`torch.Tensor`): in (0, 1), shape `(rationales,)`.
            iteration (`int`): the iteration.
        """
        if iteration != self.iteration:
            self.iteration = iteration
            self._counts.zero_()
        source = (~rows.is_positive).long()
        if rows.generated is not None:
            source = torch.where(rows.generated >= 0, 2, source)
        place = (scores.detach().float() * SCORE_BINS).long().clamp(0, SCORE_BINS - 1)  # a NaN counts as the lowest
        self._counts.scatter_add_(0, source * SCORE_BINS + place, torch.ones_like(place))

    def state(self) -> dict[str, Any]:
        """The counts of this process; empty before the first score."""
        return {} if self.iteration is None else self._named(self._counts)

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from what [`~ScoreCounts.state`] gave."""
        self.iteration = state.get("iteration")
        self._counts.zero_()
        if self.iteration is not None:
            flat = [count for source in SOURCES for count in state["counts"][source]]
            self._counts += torch.tensor(flat, dtype=torch.long, device=self._counts.device)

    def reset(self) -> None:
        """Starts anew."""
        self.load_state({})

    def compute(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any] | None:
        """
        The counts of all processes: `iteration`, and `counts` by source; `None` if nothing was scored.

        Args:
            reduce (`Callable`): sums a tensor over processes; a collective, called on every process.
        """
        counts = reduce(self._counts.clone())
        return None if self.iteration is None else self._named(counts)

    def _named(self, counts: torch.Tensor) -> dict[str, Any]:
        named = dict(zip(SOURCES, counts.view(len(SOURCES), SCORE_BINS).tolist(), strict=True))
        return {"iteration": self.iteration, "counts": named}
