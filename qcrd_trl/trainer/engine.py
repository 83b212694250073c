"""Scoring in the fewest tokens: which savings a student and a batch allow, and the passes that make use of them."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from accelerate import Accelerator, DistributedType
from torch import nn
from transformers import PreTrainedModel

from ..errors import ConfigError
from ..models import base_model
from .architecture import evaluating, mask_form, shares_exactly
from .cached_prompt import score_on_cache
from .head import StudentHead, tiled_head
from .objective import RationaleRows
from .qcrd_config import PICKS, QCRDConfig
from .scoring import RowScores, flat_pass, flat_passes, score_passes
from .shared_prompt import MaskForm, shared_passes
from .work import token_work


logger = logging.getLogger(__name__)


# Selection is taken where it costs at most this much of what it replaces: it always needs less memory.
WORTH = 1.03


class PassWork(NamedTuple):
    """
    Work of one forward pass, in multiplications, each a number.

    Attributes:
        weights (`torch.Tensor`): tokens by the weights they meet.
        pairs (`torch.Tensor`): what attention compares, in a pass with a gradient.
        pairs_ahead (`torch.Tensor`): what it compares in one without, which may share prompts by a cache.
    """

    weights: torch.Tensor
    pairs: torch.Tensor
    pairs_ahead: torch.Tensor


class ScoringEngine:
    """
    Scores the rows of a batch.

    Args:
        model (`nn.Module`): the student, without what wraps it for several processes.
        args ([`QCRDConfig`]): `shared_prompt`, `selection`, `chunked_logits` and `rationale_forward_passes` are read.
        accelerator ([`~accelerate.Accelerator`]): tells the precision of the student's passes, and whether each process
            holds a part of the weights only (FSDP, ZeRO-3), so that the student cannot be tried out.

    Raises:
        [`ConfigError`]: if an argument asks for a saving that the student does not allow.
    """

    def __init__(self, model: nn.Module, args: QCRDConfig, accelerator: Accelerator):
        self.args, self._student, self._accelerator = args, model, accelerator
        plugin = getattr(accelerator.state, "deepspeed_plugin", None)
        is_fsdp = accelerator.distributed_type == DistributedType.FSDP
        self._is_sharded = is_fsdp or getattr(plugin, "zero_stage", 0) == 3
        self._base: PreTrainedModel = base_model(model)
        self.decoder = self._base if self._base.config.is_encoder_decoder else None
        self.head = StudentHead(self._base.get_output_embeddings())
        self.work = token_work(self._base)
        self._masks: MaskForm | None = None
        self._caches = self._is_ready = False
        if args.uses_rationales and args.shared_prompt is not False:
            self._masks, reason = mask_form(self._base)
            if self._masks is None and args.shared_prompt is True:
                raise ConfigError(_refused("shared_prompt", type(self._base).__name__, reason))
            if self._masks is None:
                self._say(f"Each rationale is scored in a row of its own, with its prompt: {reason}.")

    # ---- Once, before the first pass ----

    def _get_ready(self) -> None:
        """Tries the savings out, with the weights and the precision of the run."""
        if self._is_ready:
            return
        self._is_ready = True
        if self._is_sharded:
            self._without_trial()
            return
        fixed = torch.random.fork_rng(devices=_devices(self._base)), evaluating(self._student)
        with self._accelerator.autocast(), torch.no_grad(), fixed[0], fixed[1]:
            if self.args.chunked_logits is not False:
                self.head, reason = tiled_head(self._base, self.head.module)
                if reason is not None:
                    self._fall_back("chunked_logits", reason, "The logits of all supervised tokens are held at once")
            trial = (self._base, self.head, self._masks, self._dtype())
            self._caches = self._masks is not None and self.decoder is None and shares_exactly(*trial, cached=True)
            if self._masks is not None and not shares_exactly(*trial):
                self._masks = None
                reason = "rows that share a prompt gave other hidden states than rows of their own"
                self._fall_back("shared_prompt", reason, "Each rationale is scored in a row of its own")
        _forget_casts()

    def _without_trial(self) -> None:
        reason = "its weights are split up among processes"
        if self.args.chunked_logits is not False:
            self._fall_back("chunked_logits", reason, "The logits of all supervised tokens are held at once")
        if self._masks is not None and self.args.shared_prompt == "auto":
            self._masks = None
            self._fall_back("shared_prompt", f"{reason}, so it cannot be tried out", "Each rationale has its own row")

    def _fall_back(self, name: str, reason: str, instead: str) -> None:
        if getattr(self.args, name) is True:
            raise ConfigError(_refused(name, type(self._base).__name__, reason))
        self._say(f"{instead}: {reason}.")

    def _say(self, text: str) -> None:
        if self.args.should_log:
            logger.warning(text)

    def _dtype(self) -> torch.dtype:
        """Type of the attention's inputs."""
        weight = self._base.get_input_embeddings().weight
        device = weight.device.type
        with self._accelerator.autocast():  # as it is in the student's forward, and only there
            return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype

    # ---- Scores ----

    def labels(self, model: nn.Module, batch: dict[str, torch.Tensor], predicts: bool) -> RowScores:
        """The label task's rows of a batch."""
        self._get_ready()
        one = flat_pass(batch["input_ids"], batch["attention_mask"], batch["labels"], self.decoder)
        return score_passes(model, self.head, [one], len(batch["labels"]), self.decoder, predicts)

    def rationales(
        self,
        model: nn.Module,
        rows: RationaleRows,
        ahead: RowScores | None = None,
        total: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> RowScores:
        """
        The rationales of a batch, to be given to [`~ScoringEngine.differentiate`] once a loss is made of them.

        Args:
            model (`nn.Module`): the student, as wrapped for training.
            rows ([`RationaleRows`]): the rationales.
            ahead ([`RowScores`], *optional*): their scores without a graph, where they have been computed already.
            total (`Callable`, *optional*): as for [`~ScoringEngine.selects`].

        Returns:
            [`RowScores`]: with losses that have a graph, or that are a leaf to pick from.
        """
        if not torch.is_grad_enabled() or not self.selects(rows, ahead is not None, total):
            return self.every(model, rows)
        if ahead is None:
            with torch.no_grad():
                ahead = self.every(model, rows)
        return replace(ahead, nll=ahead.nll.detach().requires_grad_())

    def every(self, model: nn.Module, rows: RationaleRows) -> RowScores:
        """Every one of some rationales, in a number of passes that does not depend on them."""
        self._get_ready()
        parts, number = (rows.input_ids, rows.attention_mask, rows.labels), self.args.rationale_forward_passes
        # A prompt with one rationale is a row of its own.
        shares = self._masks is not None and bool((torch.bincount(rows.question) > 1).any())
        if not torch.is_grad_enabled() and not self._is_sharded:
            # What wraps the student for several processes would have all of them make the same number of passes.
            model = self._student
        if shares and self._caches and not torch.is_grad_enabled():
            scored = score_on_cache(model, self.head, *parts, rows.question, number)
            if scored is not None:
                return scored
            self._caches = False
        if shares:
            passes = shared_passes(*parts, rows.question, self._masks, self._dtype(), self.decoder, number)
        else:
            passes = flat_passes(*parts, self.decoder, number)
        return score_passes(model, self.head, passes, len(rows.question), self.decoder, predicts=False)

    # ---- Select, then differentiate ----

    def selects(
        self, rows: RationaleRows, is_scored: bool, total: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> bool:
        """
        Whether it is cheaper to score a batch without a graph first, and then to differentiate what was picked.

        Args:
            rows ([`RationaleRows`]): the rationales of the batch.
            is_scored (`bool`): whether they have been scored without a graph already.
            total (`Callable`, *optional*): sums a tensor over processes. All processes decide alike, because they have to
                make the same number of passes.
        """
        if self.args.selection is False or not self.args.picks_rationales:
            return False
        if self.args.selection is True:
            return True
        self._get_ready()
        costs = self.costs(rows, is_scored)
        plain, selected = (costs if total is None else total(costs)).tolist()
        return selected < WORTH * plain

    def costs(self, rows: RationaleRows, is_scored: bool = False) -> torch.Tensor:
        """
        What the rationales of a batch cost without selection and with it, in forward passes of a rationale's token.

        Forward and backward over the weights cost as [`~ScoringEngine.passes_with_gradient`] says, and those of attention
        three forward passes also where weights are frozen, as what it compares is not.
        """
        every, picked = self.count(rows)
        backward = self.passes_with_gradient()
        attention = 3 + self._recomputes()
        plain = backward * every.weights + attention * every.pairs
        ahead = 0 if is_scored else every.weights + every.pairs_ahead
        selected = ahead + backward * picked.weights + attention * picked.pairs
        return torch.stack([plain, selected]) / self.work.completion

    def count(self, rows: RationaleRows) -> tuple["PassWork", "PassWork"]:
        """Work of one forward pass over all rationales, and over those that a gradient is expected to go through."""
        completion = (rows.labels != -100).sum(1).float()
        prompt = rows.attention_mask.sum(1).float() - (0 if self.decoder is not None else completion)
        share = torch.zeros_like(completion)  # of each row that is expected to be picked
        sides = ((rows.is_positive, self.args.positive_reduction, True),)
        sides += ((~rows.is_positive, self.args.negative_reduction, self.args.beta > 0),)
        for side, how, counts in sides:
            members = torch.bincount(rows.question[side], minlength=rows.num_questions)[rows.question].clamp(min=1)
            expected = 1 / members if how in PICKS else torch.ones_like(share)
            share = torch.where(side, expected * counts, share)
        return tuple(self._work_of(rows, prompt, completion, part) for part in (torch.ones_like(share), share))

    def _work_of(
        self, rows: RationaleRows, prompt: torch.Tensor, completion: torch.Tensor, share: torch.Tensor
    ) -> "PassWork":
        work, separate = self.work, self.decoder is not None
        weights = (share * (completion * work.completion + prompt * work.encoded)).sum()
        alone = completion * (completion + prompt)  # pairs of a rationale with itself and its prompt
        if self._masks is None:
            weights = weights + (share * prompt).sum() * work.prompt
            pairs = ahead = (share * (alone + prompt * (prompt if separate else prompt + completion))).sum()
            return PassWork(weights, pairs * work.pair, ahead * work.pair)
        # Of each question: its prompt, if any of its rationales is there, and their tokens.
        read, told = (torch.zeros(rows.num_questions, device=share.device) for _ in "ab")
        read.scatter_reduce_(0, rows.question, prompt * (share > 0), "amax")
        told.index_add_(0, rows.question, completion * share)
        ahead = (read**2).sum() + (share * alone).sum()
        # A mask compares all tokens of a row, a cache those of a rationale with the prompt and themselves.
        pairs = ahead if separate else ((read + told) ** 2).sum()
        return PassWork(
            weights + read.sum() * work.prompt, pairs * work.pair, (ahead if self._caches else pairs) * work.pair
        )

    def passes_with_gradient(self) -> int:
        """What forward and backward cost, in forward passes: 3 with trained weights, 2 with a frozen base, recomputed +1."""
        trained = sum(p.numel() for p in self._base.parameters() if p.requires_grad)
        frozen = trained * 2 < sum(p.numel() for p in self._base.parameters())
        return (2 if frozen else 3) + self._recomputes()

    def _recomputes(self) -> bool:
        return bool(self.args.gradient_checkpointing or getattr(self.args, "activation_checkpointing", False))

    def differentiate(
        self, model: nn.Module, rows: RationaleRows, nll: torch.Tensor, loss: torch.Tensor
    ) -> torch.Tensor:
        """
        A loss of scores, with a graph that reaches the student.

        Args:
            model (`nn.Module`): the student, as wrapped for training.
            rows ([`RationaleRows`]): the rationales.
            nll (`torch.Tensor`): their losses, as [`~ScoringEngine.rationales`] gave them, shape `(rationales,)`.
            loss (`torch.Tensor`): a number made of them.

        Returns:
            `torch.Tensor`: the same number. If `nll` had no graph, it goes through a second pass over the rationales alone
            that have a part in its gradient: those that a reduction picked, less negatives beyond the margin.
        """
        if not (nll.is_leaf and nll.requires_grad):
            return loss
        (slope,) = torch.autograd.grad(loss, nll, allow_unused=True)
        slope = torch.zeros_like(nll) if slope is None else slope
        _forget_casts()
        chosen = slope != 0
        again = self.every(model, rows.subset(chosen))
        return loss.detach() + (slope[chosen] * (again.nll - again.nll.detach())).sum() + again.anchor


def for_later(scored: RowScores) -> RowScores:
    """Scores without what takes memory by the token."""
    return replace(scored, states=scored.states[:0].clone(), row=scored.row[:0].clone())


def _refused(name: str, model: str, reason: str | None) -> str:
    return f"{name}=True cannot be done for this {model}: {reason}. Set {name}='auto' or {name}=False."


def _devices(model: nn.Module) -> list[torch.device]:
    device = next(model.parameters()).device
    return [device] if device.type == "cuda" else []


def _forget_casts() -> None:
    # Autocast keeps the weights that it cast, also those cast without a graph: they would take no gradient.
    torch.clear_autocast_cache()
