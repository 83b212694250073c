"""The loss of C2KD on a batch, part by part, each a number for every position that predicts a target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError, TrainingError
from ..losses import LogitForm, token_nll
from ..losses.c2kd import (
    block_loss,
    feature_loss,
    head_kl,
    orthogonality_penalty,
    route_per_row,
    routed_states,
)
from ..recommendation.states import PositionStates
from .c2kd_config import C2KDConfig
from .c2kd_heads import DistillationHeads


@dataclass
class BatchLoss:
    """
    What a batch costs.

    Args:
        parts (`dict[str, torch.Tensor]`): `"task"`, and of `"feature"`, `"logit"`, `"block_task"` those that the recipe has, each
            unweighted, of shape `(positions,)`.
        weights (`dict[str, float]`): weight of each part.
        orthogonal (`torch.Tensor`, *optional*): the penalty of the projection, a number.
        choice (`torch.Tensor`, *optional*): index of the layer that each row chose, shape `(rows,)`.
        cosine (`torch.Tensor`, *optional*): mean cosine of that layer, shape `(rows,)`.
        cosines (`torch.Tensor`, *optional*): mean cosines of all candidate layers, shape `(rows, layers)`.
    """

    parts: dict[str, torch.Tensor]
    weights: dict[str, float]
    orthogonal: torch.Tensor | None = None
    choice: torch.Tensor | None = None
    cosine: torch.Tensor | None = None
    cosines: torch.Tensor | None = None

    @property
    def num_positions(self) -> int:
        """Positions that predict a target."""
        return len(self.parts["task"])

    def total(self) -> torch.Tensor:
        """The weighted sum over positions; the penalty counts once a position, so that it has its weight in their mean."""
        total = sum(self.weights[name] * part.sum() for name, part in self.parts.items())
        if self.orthogonal is not None:
            total = total + self.weights["orthogonal"] * self.num_positions * self.orthogonal
        return total

    def check_finite(self, step: int) -> None:
        """
        Raises where a part is not finite: a run must not go on without one of its parts.

        Raises:
            [`TrainingError`]: naming the part.
        """
        sums = {f"loss/{name}": part.detach().sum() for name, part in self.parts.items()}
        if self.orthogonal is not None:
            sums["loss/orthogonal"] = self.orthogonal.detach()
        if self.cosines is not None:  # a layer that is not chosen has no part in the loss
            sums["cosine"] = self.cosines.sum()
        finite = torch.isfinite(torch.stack(list(sums.values()))).tolist()
        wrong = [name for name, good in zip(sums, finite, strict=True) if not good]
        if wrong:
            values = ", ".join(f"{name} = {sums[name].item()}" for name in wrong)
            raise TrainingError(
                f"The loss is not finite after {step} steps: {values}. Lower the learning rate, set max_grad_norm, train in bf16 "
                "or float32 in place of fp16, or, for loss/feature of raw states, set feature_loss='normalized'. Resume from "
                "the newest checkpoint."
            )


@dataclass
class C2KDObjective:
    """
    The loss of a recipe: task, feature imitation, logit distillation, penalty.

    Args:
        args ([`C2KDConfig`]): the recipe.
        student_layers (`int`): layers L_S of the student.
        teacher ([`TeacherStates`], *optional*): the teacher.
        filters ([`LayerFilters`], *optional*): the layer filters, frozen.
        heads ([`DistillationHeads`], *optional*): what is trained beside the student.
        student_head (`nn.Module`, *optional*): the student's head, which supervises the ends of blocks.
        student_form ([`LogitForm`], *optional*): factor and cap of its logits.
    """

    args: C2KDConfig
    student_layers: int
    teacher: Any = None
    filters: Any = None
    heads: DistillationHeads | None = None
    student_head: nn.Module | None = None
    student_form: LogitForm = field(default_factory=LogitForm)

    def __post_init__(self):
        args = self.args
        self.student_layer = args.student_layer or self.student_layers
        if self.student_layer > self.student_layers:
            raise ConfigError(f"student_layer={args.student_layer}, and the student has {self.student_layers} layers.")
        self.candidates = candidate_indices(args, self.filters) if args.uses_router else []
        self.student_blocks: list[int] = []
        self.teacher_blocks: list[int] = []
        if args.uses_blocks:
            count = num_blocks(args, self.student_layers, self.teacher.last_layer)
            self.student_blocks = block_ends(self.student_layers, count)
            self.teacher_blocks = block_ends(self.teacher.last_layer, count)
            lacking = sorted(set(self.teacher_blocks) - {*self.teacher.layers, self.teacher.last_layer})
            if lacking:
                raise ConfigError(
                    f"Block-wise imitation in {count} blocks needs layers {self.teacher_blocks} of the teacher, and {lacking} are "
                    f"not among those that are read or cached, {sorted(self.teacher.layers)}. Build the teacher cache with them."
                )

    @property
    def layers(self) -> list[int]:
        """The candidate layers of the router."""
        return [self.filters.layers[index] for index in self.candidates]

    @property
    def student_reads(self) -> list[int]:
        """Layers of the student whose states the loss reads."""
        wanted = set(self.student_blocks)
        if self.args.uses_features and not self.args.uses_blocks:
            wanted.add(self.student_layer)
        if self.args.uses_logits:
            wanted.add(self.student_layers)
        return sorted(wanted)

    def loss(
        self,
        student: PositionStates,
        teacher: Mapping[int, torch.Tensor] | None,
        targets: torch.Tensor,
        row: torch.Tensor,
        num_rows: int,
    ) -> BatchLoss:
        """
        The loss of a batch.

        Args:
            student ([`PositionStates`]): logits, and states of `student_reads`.
            teacher (`Mapping[int, torch.Tensor]`, *optional*): what the teacher read.
            targets (`torch.Tensor`): what is to be predicted, shape `(positions,)`.
            row (`torch.Tensor`): row of each position.
            num_rows (`int`): rows of the batch.
        """
        args = self.args
        out = BatchLoss({"task": token_nll(student.logits, targets)}, {"task": 1.0})
        if args.uses_features:
            out.weights["feature"] = args.lambda_feat
            if args.uses_router:
                self._router(out, student, teacher, row, num_rows)
            elif args.uses_blocks:
                self._blocks(out, student, teacher, targets)
            else:
                projected = self.heads.feature_projection(student.states[self.student_layer].float())
                target = teacher[self.teacher.last_layer]
                out.parts["feature"] = feature_loss(projected, target, args.feature_loss, args.feature_alpha)
        if args.uses_logits:
            self._logits(out, student, teacher)
        return out

    def _router(self, out: BatchLoss, student: PositionStates, teacher: Any, row: torch.Tensor, num_rows: int) -> None:
        states = student.states[self.student_layer]
        # As exact as the teacher's states are, whatever the student's autocast is.
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            filtered = self.filters(teacher)[self.candidates]
            if self.args.filter_target == "normed":
                filtered = self.filters.norm(filtered)
        choice, cosine = route_per_row(states.detach(), filtered, row, num_rows)
        target = routed_states(filtered, choice, row)
        out.parts["feature"] = feature_loss(states, target, self.args.feature_loss, self.args.feature_alpha)
        out.choice, out.cosines = choice, cosine
        out.cosine = cosine.gather(1, choice.unsqueeze(1)).squeeze(1)

    def _blocks(self, out: BatchLoss, student: PositionStates, teacher: Any, targets: torch.Tensor) -> None:
        states = torch.stack([student.states[layer].float() for layer in self.student_blocks])
        target = torch.stack([teacher[layer] for layer in self.teacher_blocks])
        projected = self.heads.blocks_in_teacher_width(states)
        out.parts["feature"] = block_loss(projected, target, self.args.block_norm_weight)
        if len(self.heads.block_adapters):
            nll = [
                token_nll(self._student_logits(adapter(block)), targets)
                for adapter, block in zip(self.heads.block_adapters, states[:-1], strict=True)
            ]
            out.parts["block_task"] = torch.stack(nll).mean(0)
            out.weights["block_task"] = self.args.lambda_block_task

    def _logits(self, out: BatchLoss, student: PositionStates, teacher: Any) -> None:
        args, own = self.args, student.logits
        crosses = args.logit_distillation == "cross_head"
        if crosses:
            projection = self.heads.logit_projection
            own = projection(student.states[self.student_layers].float())
            if args.lambda_orthogonal > 0:
                out.orthogonal = orthogonality_penalty(projection.weight)
                out.weights["orthogonal"] = args.lambda_orthogonal
        theirs = teacher[self.teacher.last_layer]
        out.parts["logit"] = head_kl(
            self.teacher.head, theirs, own, self.teacher.vocab_size, crosses, args.temperature
        )
        out.weights["logit"] = args.lambda_logit

    def _student_logits(self, states: torch.Tensor) -> torch.Tensor:
        weight = next(self.student_head.parameters())
        logits = self.student_head(states.to(weight.dtype)).float() * self.student_form.scale
        cap = self.student_form.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def block_ends(num_layers: int, num_blocks: int) -> list[int]:
    """The last layer of each of `num_blocks` blocks of as equal length as can be: of 6 layers in 4 blocks 1, 3, 4, 6."""
    return [num_layers * (block + 1) // num_blocks for block in range(num_blocks)]


def num_blocks(args: C2KDConfig, student_layers: int, teacher_layers: int) -> int:
    """Blocks of block-wise imitation. A [`ConfigError`] tells that a model has fewer layers."""
    fewest = min(student_layers, teacher_layers)
    if args.num_blocks is not None and args.num_blocks > fewest:
        raise ConfigError(
            f"num_blocks={args.num_blocks}, but the student has {student_layers} layers and the teacher {teacher_layers}: a "
            "block needs a layer of each."
        )
    return args.num_blocks or min(4, fewest)


def candidate_indices(args: C2KDConfig, filters: Any) -> list[int]:
    """Where the candidate layers stand among those that have a filter."""
    layers: Sequence[int] = filters.layers if args.candidate_layers is None else sorted(args.candidate_layers)
    lacking = sorted(set(layers) - set(filters.layers))
    if lacking:
        raise ConfigError(
            f"candidate_layers {list(layers)}: there are layer filters for {list(filters.layers)} alone, none for {lacking}. "
            "Train filters for them (`qcrd c2kd filters`), or leave candidate_layers out."
        )
    return [list(filters.layers).index(layer) for layer in layers]
