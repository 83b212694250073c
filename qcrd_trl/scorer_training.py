"""Pretraining of a [`RationaleScorer`] on a teacher's positives and negatives, and how well it tells held-out ones apart."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from .data.tokenize import fold_white_space
from .errors import ConfigError, DataError, TrainingError
from .losses import DISCRIMINATOR_LOSSES, discriminator_loss
from .metrics import auc, brier_score, expected_calibration_error, reliability_bins
from .rationale_scorer import RationaleScorer
from .sampling.corruption import CORRUPTIONS, DEFAULT_MASK, BalancedQuestion, WordPool, balance, corrupt


MAX_STEPS = 500  # the paper's own limit


@dataclass(frozen=True)
class JudgedQuestion:
    """
    A question with good and bad rationales.

    Attributes:
        prompt (`str` or `list[dict]`): the question.
        positives (`tuple[str, ...]`): its good rationales.
        negatives (`tuple[str, ...]`): its bad ones.
    """

    prompt: str | list[dict]
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


@dataclass(frozen=True)
class ScorerSettings:
    """
    How a discriminator is pretrained. Where nothing is said of the paper, it is silent.

    Args:
        max_steps (`int`, *optional*, defaults to `500`): optimizer steps, at most 500 (paper).
        batch_size (`int`, *optional*, defaults to `16`): questions a step; one positive and one negative are drawn of each.
        learning_rate (`float`, *optional*, defaults to `1e-3`): of the head.
        encoder_learning_rate (`float`, *optional*, defaults to `5e-5`): of the encoder, unless it is frozen.
        warmup_share (`float`, *optional*, defaults to `0.1`): share of the steps in which the rates rise from 0; they then
            fall to 0 in a line.
        weight_decay (`float`, *optional*, defaults to `0.01`): AdamW's.
        max_grad_norm (`float`, *optional*, defaults to `1.0`): the gradient is clipped to this norm.
        loss (`str`, *optional*, defaults to `"binary"`): `"binary"`: binary cross-entropy, whose scores are calibrated.
            `"ratio"`: eq. 2.
        corrupted_share (`float`, *optional*, defaults to `0.15`): share of the words that a corruption changes.
        eval_batch_size (`int`, *optional*, defaults to `32`): pairs scored at a time.
        seed (`int`, *optional*, defaults to `0`): decides corruptions, order and dropout.

    Raises:
        [`ConfigError`]: naming the setting that cannot be.
    """

    max_steps: int = MAX_STEPS
    batch_size: int = 16
    learning_rate: float = 1e-3
    encoder_learning_rate: float = 5e-5
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    loss: str = "binary"
    corrupted_share: float = 0.15
    eval_batch_size: int = 32
    seed: int = 0

    def __post_init__(self):
        if not 1 <= self.max_steps <= MAX_STEPS:
            raise ConfigError(
                f"max_steps must lie in 1 to {MAX_STEPS}, got {self.max_steps}: the paper pretrains for no more, and then "
                "goes on online."
            )
        for name in ("batch_size", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("learning_rate", "encoder_learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}.")
        if not 0 < self.max_grad_norm < float("inf"):
            raise ConfigError(f"max_grad_norm must be a finite number above 0, got {self.max_grad_norm}.")
        if not 0 <= self.warmup_share <= 1:
            raise ConfigError(f"warmup_share must lie in [0, 1], got {self.warmup_share}.")
        if not 0 < self.corrupted_share <= 1:
            raise ConfigError(f"corrupted_share must lie in (0, 1], got {self.corrupted_share}.")
        if self.loss not in DISCRIMINATOR_LOSSES:
            raise ConfigError(f"Unknown loss {self.loss!r}: expected one of {', '.join(DISCRIMINATOR_LOSSES)}.")


# ---- Data ----


def judged_questions(rows: Sequence[Mapping[str, Any]]) -> list[JudgedQuestion]:
    """
    The questions of a training set that have a rationale, those of one prompt put together.

    A text is taken once, up to white space, and as a positive where it stands on both sides; null and empty texts are left
    out.

    Args:
        rows (`Sequence[Mapping]`): rows with `prompt`, `positive_rationales` and `negative_rationales`.
    """
    prompts: dict[str, Any] = {}
    sides: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for row in rows:
        prompt = row["prompt"]
        if not prompt:
            continue
        key = json.dumps(prompt, sort_keys=True)
        prompts.setdefault(key, prompt)
        found = sides.setdefault(key, ({}, {}))
        for side, column in zip(found, ("positive_rationales", "negative_rationales"), strict=True):
            for text in row.get(column) or ():
                if text and text.strip():
                    side.setdefault(fold_white_space(text), text)
    return [
        JudgedQuestion(
            prompts[key],
            tuple(positives.values()),
            tuple(text for name, text in negatives.items() if name not in positives),
        )
        for key, (positives, negatives) in sides.items()
        if positives or negatives
    ]


def split_questions(
    questions: Sequence[JudgedQuestion], eval_fraction: float, seed: int
) -> tuple[list[JudgedQuestion], list[JudgedQuestion]]:
    """
    Questions to learn from and held-out ones, drawn by a seed; both in the order given.

    Raises:
        [`DataError`]: if the questions cannot be split, or one side lacks positives or real negatives.
    """
    if not 0 < eval_fraction < 1:
        raise ConfigError(f"eval_fraction must lie in (0, 1), got {eval_fraction}.")
    with_positive, with_negative = (
        sum(1 for q in questions if getattr(q, side)) for side in ("positives", "negatives")
    )
    if not with_positive or not with_negative:
        lacking = "positive" if not with_positive else "negative"
        raise DataError(
            f"None of the {len(questions)} questions has a {lacking} rationale: a discriminator learns from both. Sample more "
            "rationales a question, and select them by `qcrd select`."
        )
    if len(questions) < 2:
        raise DataError("There is 1 question only: at least 2 are needed, one to learn from and one held out.")
    number = min(max(round(eval_fraction * len(questions)), 1), len(questions) - 1)
    held_out = set(random.Random(seed).sample(range(len(questions)), number))
    parts = [[q for i, q in enumerate(questions) if (i in held_out) == side] for side in (False, True)]
    for name, part in zip(("to learn from", "held out"), parts, strict=True):
        for side in ("positives", "negatives"):
            if not any(getattr(q, side) for q in part):
                raise DataError(
                    f"None of the {len(part)} questions {name} has {side}: there are too few of them "
                    f"({with_negative} of {len(questions)} questions have negatives). Take another seed or eval_fraction, or "
                    "sample more."
                )
    return parts[0], parts[1]


def balanced_questions(
    questions: Sequence[JudgedQuestion], share: float, seed: int, mask: str = DEFAULT_MASK
) -> list[BalancedQuestion]:
    """Every question that has a positive, with as many negatives; see [`~sampling.corruption.balance`]."""
    pool = WordPool.of([text for q in questions for text in q.positives])
    found = (
        balance(q.prompt, q.positives, q.negatives, pool, random.Random(f"{seed}/balance/{place}"), share, mask)
        for place, q in enumerate(questions)
    )
    return [question for question in found if question is not None]


def mask_word(tokenizer: PreTrainedTokenizerBase) -> str:
    """What a masked word becomes: the encoder's mask token, T5's first sentinel, or else `"..."`."""
    if tokenizer.mask_token is not None:
        return tokenizer.mask_token
    sentinel = "<extra_id_0>"
    return sentinel if sentinel in tokenizer.get_vocab() else DEFAULT_MASK


# ---- Training ----


def train_scorer(
    scorer: RationaleScorer, questions: Sequence[BalancedQuestion], settings: ScorerSettings, progress: bool = True
) -> list[float]:
    """
    Trains a discriminator; its last weights are kept.

    Each step draws questions (each once before any comes again) and of each a positive and a negative. A frozen encoder reads
    each text that is drawn once, before the first step. The random state of the caller is left as it was, and the seed decides
    everything, on a CPU bit for bit.

    Args:
        scorer ([`RationaleScorer`]): what is trained, in place.
        questions (`Sequence[BalancedQuestion]`): what it learns from, at least one.
        settings ([`ScorerSettings`]): how.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `list[float]`: the loss of each step.

    Raises:
        [`TrainingError`]: if a loss is not finite.
    """
    device = next(scorer.parameters()).device
    groups = [{"params": list(scorer.head.parameters()), "lr": settings.learning_rate}]
    encoder = [p for p in scorer.encoder.parameters() if p.requires_grad]
    if encoder:
        groups.append({"params": encoder, "lr": settings.encoder_learning_rate})
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    warmup = max(round(settings.warmup_share * settings.max_steps), 1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (settings.max_steps - step) / settings.max_steps)
    )
    steps, losses = _drawn(questions, settings), []
    read = _read_once(scorer, questions, steps, settings, progress) if scorer.freeze_encoder else None
    parameters = [parameter for group in groups for parameter in group["params"]]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), tqdm(total=settings.max_steps, disable=not progress) as bar:
        bar.set_description("Training the discriminator")
        torch.manual_seed(settings.seed)
        scorer.train()
        for drawn in steps:
            if read is None:
                pairs = [(scorer.pairs.question_ids(questions[i].prompt), scorer.pairs.ids(text)) for i, text in drawn]
                batch = {name: tensor.to(device) for name, tensor in scorer.pairs.batch(pairs).items()}
                scores = scorer(**batch)
            else:
                scores = scorer.head.score_pooled(torch.stack([read[one] for one in drawn]).to(device))
            positive, negative = scores.reshape(2, -1, 1)
            there = torch.ones_like(positive, dtype=torch.bool)
            loss = discriminator_loss(settings.loss, positive, there, negative, there).mean()
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"The discriminator's loss is {loss.item()} at step {len(losses) + 1}. Lower the learning rates."
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
    scorer.eval()
    return losses


def _drawn(questions: Sequence[BalancedQuestion], settings: ScorerSettings) -> list[list[tuple[int, str]]]:
    """Of each step: the positives of its questions and then their negatives, each with the place of its question."""
    rng, order, steps = random.Random(f"{settings.seed}/order"), [], []
    for _ in range(settings.max_steps):
        while len(order) < settings.batch_size:
            order += rng.sample(range(len(questions)), len(questions))
        places, order = order[: settings.batch_size], order[settings.batch_size :]
        positives = [(i, rng.choice(questions[i].positives)) for i in places]
        steps.append(positives + [(i, rng.choice(questions[i].negatives)) for i in places])
    return steps


def _read_once(
    scorer: RationaleScorer,
    questions: Sequence[BalancedQuestion],
    steps: list[list[tuple[int, str]]],
    settings: ScorerSettings,
    progress: bool,
) -> dict[tuple[int, str], torch.Tensor]:
    """What the head scores, of every text that is drawn: under a frozen encoder it never changes."""
    texts = list(dict.fromkeys(one for drawn in steps for one in drawn))
    prompts = [questions[place].prompt for place, _ in texts]
    title = "Reading with the frozen encoder" if progress else False
    pooled = scorer.pooled(prompts, [text for _, text in texts], settings.eval_batch_size, title)
    return dict(zip(texts, pooled, strict=True))


# ---- Held-out questions ----


def judge_scorer(
    scorer: RationaleScorer,
    questions: Sequence[JudgedQuestion],
    settings: ScorerSettings,
    mask: str = DEFAULT_MASK,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """
    How well a discriminator tells the rationales of held-out questions apart.

    Args:
        scorer ([`RationaleScorer`]): the discriminator.
        questions (`Sequence[JudgedQuestion]`): questions that it has not seen.
        settings ([`ScorerSettings`]): seed and size of the corruptions.
        mask (`str`, *optional*, defaults to `"..."`): the encoder's mask token, in words.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `dict[str, dict]`: of the positives against `real` negatives and against their own copies by each of `CORRUPTIONS`:
        what [`judge_scores`] gives.
    """
    pool = WordPool.of([text for q in questions for text in q.positives])
    sides: dict[str, list[tuple[Any, str]]] = {
        "positive": [(q.prompt, text) for q in questions for text in q.positives],
        "real": [(q.prompt, text) for q in questions for text in q.negatives],
    }
    for how in CORRUPTIONS:
        rng = random.Random(f"{settings.seed}/held out/{how}")
        made = [(p, corrupt(text, how, pool, rng, settings.corrupted_share, mask)) for p, text in sides["positive"]]
        sides[how] = [(prompt, text) for prompt, text in made if text is not None]
    everything = [pair for side in sides.values() for pair in side]
    title = "Scoring held-out rationales" if progress else False
    scores = scorer.score(*zip(*everything, strict=True), batch_size=settings.eval_batch_size, progress=title)
    found, start = {}, 0
    for name, side in sides.items():
        found[name] = scores[start : start + len(side)]
        start += len(side)
    positive = found.pop("positive")
    return {name: judge_scores(positive, negative) for name, negative in found.items() if negative}


def judge_scores(positive: Sequence[float], negative: Sequence[float]) -> dict[str, Any]:
    """
    Figures of scores, in which both sides weigh the same, as in training: 0.5 is the accuracy of a guess, and 0.25 the Brier
    score of one.

    Args:
        positive (`Sequence[float]`): scores of good rationales, at least one.
        negative (`Sequence[float]`): scores of bad ones, at least one.

    Returns:
        `dict`: `num_positive`, `num_negative`, `auc`, `accuracy` (at 0.5), `brier`, `ece` (expected calibration error, 10
        bins), `mean_positive`, `mean_negative`, and `bins` (of [`~metrics.reliability_bins`], those that hold a score).
    """
    scores, labels = [*positive, *negative], [True] * len(positive) + [False] * len(negative)
    weights = [0.5 / len(positive)] * len(positive) + [0.5 / len(negative)] * len(negative)
    right = sum(s > 0.5 for s in positive) / len(positive) + sum(s <= 0.5 for s in negative) / len(negative)
    return {
        "num_positive": len(positive),
        "num_negative": len(negative),
        "auc": auc(positive, negative),
        "accuracy": right / 2,
        "brier": brier_score(scores, labels, weights),
        "ece": expected_calibration_error(scores, labels, weights=weights),
        "mean_positive": sum(positive) / len(positive),
        "mean_negative": sum(negative) / len(negative),
        "bins": [asdict(b) for b in reliability_bins(scores, labels, weights=weights) if b.weight],
    }
