"""What C2KD trains outside the student: projections into the teacher's width, and heads at the ends of blocks."""

from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import ModelError


HEADS_FILE = "distillation_heads.safetensors"


class DistillationHeads(nn.Module):
    """
    The trained parts of distillation that are no part of the student. They serve the training alone: checkpoints have them,
    the student that is saved in the end does not.

    Attributes:
        logit_projection (`nn.Linear` or `None`):
            W_proj: the student's last states in the teacher's width, for the teacher's head. No bias.
        feature_projection (`nn.Linear` or `None`):
            The student's states in the teacher's width, to imitate the teacher's last layer. It leads from the student to the
            teacher: led the other way, both sides could shrink to nothing.
        block_projections (`nn.ModuleList`): the same for the end of each block, where the widths differ.
        block_adapters (`nn.ModuleList`):
            Norm and linear map between the end of each block but the last and the student's head.

    Args:
        student_size (`int`): width d_S of the student's states.
        teacher_size (`int`): width d_T of the teacher's states.
        with_logits (`bool`, *optional*, defaults to `False`): whether there is a `logit_projection`.
        with_features (`bool`, *optional*, defaults to `False`): whether there is a `feature_projection`.
        num_blocks (`int`, *optional*, defaults to `0`): blocks of block-wise imitation.
        with_block_tasks (`bool`, *optional*, defaults to `False`): whether blocks are supervised by the task, too.
        seed (`int`, *optional*, defaults to `0`): seed of the weights, which move no other random state.
    """

    def __init__(
        self,
        student_size: int,
        teacher_size: int,
        with_logits: bool = False,
        with_features: bool = False,
        num_blocks: int = 0,
        with_block_tasks: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        # The same on every process, and without moving the random state of the student's run.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.logit_projection = _projection(student_size, teacher_size) if with_logits else None
            self.feature_projection = _projection(student_size, teacher_size) if with_features else None
            differ = student_size != teacher_size
            self.block_projections = nn.ModuleList(
                _projection(student_size, teacher_size) for _ in range(num_blocks if differ else 0)
            )
            self.block_adapters = nn.ModuleList(
                nn.Sequential(nn.RMSNorm(student_size, eps=1e-6), nn.Linear(student_size, student_size))
                for _ in range(num_blocks - 1 if with_block_tasks else 0)
            )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to train."""
        return next(self.parameters(), None) is None

    def blocks_in_teacher_width(self, states: torch.Tensor) -> torch.Tensor:
        """States at the ends of the student's blocks, `(blocks, positions, d_S)`, as `(blocks, positions, d_T)`."""
        if not len(self.block_projections):
            return states
        return torch.stack([to(block) for to, block in zip(self.block_projections, states, strict=True)])


class HeadsPart:
    """
    Trains [`DistillationHeads`] beside a student that is wrapped without them, as a [`CheckpointPart`].

    They are a group of their own in the student's optimizer, which a checkpoint holds.

    Args:
        heads ([`DistillationHeads`]): the heads.
        accelerator ([`~accelerate.Accelerator`]): device and processes.
        saves (`bool`): whether this process writes files.
    """

    def __init__(self, heads: DistillationHeads, accelerator: Accelerator, saves: bool):
        self.heads, self.accelerator, self.saves = heads.to(accelerator.device), accelerator, saves

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return list(self.heads.parameters())

    def average_gradients(self) -> None:
        """Averages the gradients over processes, as DDP does those of the student; called on every process."""
        if self.accelerator.num_processes == 1 or self.heads.is_empty:
            return
        parameters = self.parameters
        # One flat reduction, also where this process had nothing to learn from.
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        flat = self.accelerator.reduce(flat, reduction="mean")
        for parameter, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = grad.view_as(parameter).clone()

    def clip(self, max_norm: float) -> None:
        """Clips the norm of the gradients, apart from those of the student."""
        if not self.heads.is_empty:
            nn.utils.clip_grad_norm_(self.parameters, max_norm)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        self.heads.zero_grad(set_to_none=True)

    def save_checkpoint(self, folder: Path) -> None:
        """Writes the heads."""
        if self.saves and not self.heads.is_empty:
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.heads.state_dict().items()}
            save_file(tensors, folder / HEADS_FILE)

    def load_checkpoint(self, folder: Path) -> None:
        """
        Takes the heads over.

        Raises:
            [`ModelError`]: if they are missing, damaged or of another recipe.
        """
        if self.heads.is_empty:
            return
        try:
            stored = load_file(folder / HEADS_FILE)
        except (SafetensorError, OSError) as err:
            raise ModelError(
                f"{HEADS_FILE} in {str(folder)!r} is missing or damaged: {err}. Resume from another checkpoint."
            ) from err
        try:
            self.heads.load_state_dict(stored)
        except RuntimeError as err:
            raise ModelError(
                f"{HEADS_FILE} in {str(folder)!r} is of another recipe: {err}. Resume with the method and the teacher that the run "
                "was started with."
            ) from err


def _projection(student_size: int, teacher_size: int) -> nn.Linear:
    """A linear map without bias that at first keeps lengths and angles as far as it can; of equal widths the identity."""
    projection = nn.Linear(student_size, teacher_size, bias=False)
    if student_size == teacher_size:
        nn.init.eye_(projection.weight)
    else:
        nn.init.orthogonal_(projection.weight)
    return projection
