"""A discriminator's say in a selection: positives that it finds poor are left out, and all scores are kept."""

from collections.abc import Sequence
from typing import Any, Protocol

from .selecting import Selected


class Scorer(Protocol):
    """What scores rationales, such as a [`~rationale_scorer.RationaleScorer`]."""

    def score(self, prompts: Sequence[Any], rationales: Sequence[str], batch_size: int = 32) -> list[float]: ...


def add_scores(selected: Selected, scorer: Scorer, min_quality: float | None = None, batch_size: int = 32) -> None:
    """
    Scores the rationales of a chunk, in place.

    Args:
        selected ([`~sampling.selecting.Selected`]):
            Rows, which get `positive_scores` and `negative_scores`, and their report, which counts what is left out.
        scorer ([`Scorer`]):
            Gives scores in (0, 1).
        min_quality (`float`, *optional*):
            Positives scored below this are left out. A question that loses all of them keeps label and negatives.
        batch_size (`int`, *optional*, defaults to 32):
            Rationales scored at a time.
    """
    prompts, texts = [], []
    for _, row in selected.rows:
        for name in ("positive_rationales", "negative_rationales"):
            prompts += [row["prompt"]] * len(row[name])
            texts += row[name]
    scores = iter(scorer.score(prompts, texts, batch_size=batch_size) if texts else [])
    for _, row in selected.rows:
        for name in ("positive", "negative"):
            row[f"{name}_scores"] = [next(scores) for _ in row[f"{name}_rationales"]]
        if min_quality is None:
            continue
        kept = [place for place, score in enumerate(row["positive_scores"]) if score >= min_quality]
        before = len(row["positive_scores"])
        if len(kept) < before:
            selected.report.leave_out_positives(before - len(kept), before)
            for name in ("positive_rationales", "positive_scores"):
                row[name] = [row[name][place] for place in kept]
