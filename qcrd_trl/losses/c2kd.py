"""
Losses of C2KD (Chen et al., Findings of ACL 2025), kept ragged: one entry a position that predicts a target, and the row that
it belongs to. Padding never reaches them, so it cannot change a choice or a loss.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .logprobs import tile_tokens


FEATURE_LOSSES = ("mse", "normalized")


def route_per_row(
    student: torch.Tensor, layers: torch.Tensor, row: torch.Tensor, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The router of C2KD: which filtered teacher layer each row imitates, by the mean over the row's positions of
    cos(H_s^n, g^l(H_t^l)).

    The mean of the cosines of the positions, not the cosine of mean states: positions count alike, whatever their norms.
    There is no parameter, and no gradient through the choice.

    Args:
        student (`torch.Tensor`):
            States of the student's layer n, shape `(num_positions, d_S)`.
        layers (`torch.Tensor`):
            Filtered teacher states g^l(H_t^l) of the candidate layers, shape `(num_layers, num_positions, d_S)`.
        row (`torch.Tensor`):
            Row of each position, integers in `[0, num_rows)`, shape `(num_positions,)`.
        num_rows (`int`):
            Number of rows.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: for each row the index of its layer among the candidates, and the mean cosines,
        shape `(num_rows, num_layers)`, float32. Of equal cosines the first layer wins; a row without a position has index 0
        and cosines 0.
    """
    _check_positions(student, row)
    if layers.ndim != 3 or not len(layers) or layers.shape[1:] != student.shape:
        raise ValueError(
            f"`layers` must be (num_layers, num_positions, d_S) with at least one layer and the positions and width of "
            f"`student`, {tuple(student.shape)}; got {tuple(layers.shape)}."
        )
    with torch.no_grad():
        cosine = F.cosine_similarity(
            student.float().unsqueeze(0), layers.float(), dim=-1
        )  # (num_layers, num_positions)
        total = cosine.new_zeros(num_rows, len(layers)).index_add(0, row, cosine.T)
        count = torch.bincount(row, minlength=num_rows).clamp(min=1)
        mean = total / count.unsqueeze(1)
        # `argmax` promises no order among equal values: the first of the largest is asked for by its index.
        index = torch.arange(len(layers), device=mean.device).expand_as(mean)
        is_largest = mean == mean.max(1, keepdim=True).values
        return torch.where(is_largest, index, len(layers) - 1).min(1).values, mean


def route(student: torch.Tensor, layers: torch.Tensor, row: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The choices of [`route_per_row`] alone: `(num_rows,)`, integers in `[0, num_layers)`."""
    return route_per_row(student, layers, row, num_rows)[0]


def routed_states(layers: torch.Tensor, choice: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """
    The states that each position imitates: those of the layer that its row chose.

    Args:
        layers (`torch.Tensor`): filtered teacher states, shape `(num_layers, num_positions, d_S)`.
        choice (`torch.Tensor`): index of each row's layer, shape `(num_rows,)`.
        row (`torch.Tensor`): row of each position, shape `(num_positions,)`.

    Returns:
        `torch.Tensor`: shape `(num_positions, d_S)`.
    """
    return layers[choice[row], torch.arange(layers.shape[1], device=layers.device)]


def feature_loss(student: torch.Tensor, target: torch.Tensor, form: str = "mse", alpha: float = 0.5) -> torch.Tensor:
    """
    L_feat of each position, computed in float32.

    Args:
        student (`torch.Tensor`):
            States of the student, shape `(num_positions, d)`.
        target (`torch.Tensor`):
            States to imitate, same shape; no gradient reaches them.
        form (`str`, *optional*, defaults to `"mse"`):
            `"mse"`: the mean over the d entries of squared differences, which depends on the scale of the states.
            `"normalized"`: alpha MSE + (1 - alpha) (1 - cos) on L2-normalised states, which does not.
        alpha (`float`, *optional*, defaults to `0.5`):
            Weight of the first term of `"normalized"`, in [0, 1].

    Returns:
        `torch.Tensor`: shape `(num_positions,)`, non-negative; exactly 0 where both are equal.
    """
    if form not in FEATURE_LOSSES:
        raise ValueError(f"Unknown feature loss {form!r}: expected one of {', '.join(FEATURE_LOSSES)}.")
    _check_pair("student", student, "target", target)
    student, target = student.float(), target.detach().float()
    if form == "mse":
        return (student - target).square().mean(-1)
    student, target = F.normalize(student, dim=-1), F.normalize(target, dim=-1)
    squared = (student - target).square()
    # 1 - cos of unit vectors as half their squared distance: exactly 0 for equal states, where 1 - cos rounds.
    return alpha * squared.mean(-1) + (1 - alpha) * squared.sum(-1) / 2


def distillation_kl(
    teacher_logits: torch.Tensor, student_logits: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """
    KL(p_t || p_s) T^2 of each position, with p = softmax(logits / T), computed in float32.

    The factor T^2 keeps the size of the gradient as T changes (Hinton et al., 2015).

    Args:
        teacher_logits (`torch.Tensor`):
            Logits of the teacher, shape `(num_positions, V)`; no gradient reaches them.
        student_logits (`torch.Tensor`):
            Logits of the student, same shape.
        temperature (`float`, *optional*, defaults to `1.0`):
            T > 0.

    Returns:
        `torch.Tensor`: shape `(num_positions,)`, in nats, non-negative but for rounding; exactly 0 where both are equal.
    """
    _check_pair("teacher_logits", teacher_logits, "student_logits", student_logits)
    if not temperature > 0:
        raise ValueError(f"`temperature` must be above 0, got {temperature!r}.")
    teacher = F.log_softmax(teacher_logits.detach().float() / temperature, dim=-1)
    student = F.log_softmax(student_logits.float() / temperature, dim=-1)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1) * temperature**2


def head_kl(
    head: Callable[[torch.Tensor], torch.Tensor],
    teacher_states: torch.Tensor,
    student: torch.Tensor,
    vocab_size: int,
    crosses: bool = True,
    temperature: float = 1.0,
    tile: int | None = None,
) -> torch.Tensor:
    """
    [`distillation_kl`] of logits that the teacher's head makes, without ever holding those of all positions.

    Positions are taken a tile at a time, each with the whole vocabulary. Of more than one tile the logits are made once more
    in the backward pass. The loss is the same, up to the rounding of matrix products of other shapes.

    Args:
        head (`Callable`): the teacher's head, from states `(num_positions, d_T)` to logits `(num_positions, V)`.
        teacher_states (`torch.Tensor`): the teacher's last states, shape `(num_positions, d_T)`; no gradient reaches them.
        student (`torch.Tensor`):
            What is compared: the student's states in the teacher's width, shape `(num_positions, d_T)`, or, without
            `crosses`, the logits of its own head, shape `(num_positions, V')`. Of two vocabularies the ids that both have count.
        vocab_size (`int`): V, by which the tiles are chosen.
        crosses (`bool`, *optional*, defaults to `True`): whether the student's logits are made by the teacher's head, too.
        temperature (`float`, *optional*, defaults to `1.0`): T > 0.
        tile (`int`, *optional*): positions at a time; chosen by device and vocabulary if left out.

    Returns:
        `torch.Tensor`: shape `(num_positions,)`, in nats.
    """

    def part(theirs: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher_logits = head(theirs)
        logits = head(own) if crosses else own
        # Models of one tokenizer may pad their vocabularies to different sizes; no token has the ids beyond.
        shared = min(teacher_logits.shape[-1], logits.shape[-1])
        return distillation_kl(teacher_logits[:, :shared], logits[:, :shared], temperature)

    if len(teacher_states) != len(student):
        raise ValueError(f"There are {len(teacher_states)} states of the teacher and {len(student)} of the student.")
    if tile is None:
        tile = tile_tokens(len(student), vocab_size, student.device)
    if len(student) <= tile:
        return part(teacher_states, student)
    tiles = zip(teacher_states.split(tile), student.split(tile), strict=True)
    return torch.cat(
        [checkpoint(part, *pair, use_reentrant=False, preserve_rng_state=False) for pair in tiles]
    )  # nothing in it is drawn


def orthogonality_penalty(weight: torch.Tensor) -> torch.Tensor:
    """
    How far a projection is from keeping lengths and angles: the squared Frobenius norm of W W^T - I, or of W^T W - I, of the
    two the smaller matrix. (The larger one cannot be the identity.)

    Args:
        weight (`torch.Tensor`): matrix of the projection, shape `(d_out, d_in)`.

    Returns:
        `torch.Tensor`: a number, at least 0.
    """
    if weight.ndim != 2:
        raise ValueError(f"`weight` must be a matrix, got the shape {tuple(weight.shape)}.")
    weight = weight.float()
    gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    return (gram - torch.eye(len(gram), device=gram.device)).square().sum()


def block_loss(student: torch.Tensor, target: torch.Tensor, norm_weight: float = 0.1) -> torch.Tensor:
    """
    Block-wise imitation in the form of SLMRec's public code (Xu et al., ICLR 2025), of each position: 1 - cos between the
    states at the end of a block of student layers and of the teacher's block, plus `norm_weight` times the length of their
    difference.

    Args:
        student (`torch.Tensor`):
            States at the ends of the student's blocks, in the teacher's width, shape `(num_blocks, num_positions, d_T)`.
        target (`torch.Tensor`):
            States at the ends of the teacher's blocks, same shape; no gradient reaches them.
        norm_weight (`float`, *optional*, defaults to `0.1`):
            Weight of the length (that of the public code).

    Returns:
        `torch.Tensor`: the sum over blocks, shape `(num_positions,)`, non-negative; 0 where both are equal.
    """
    if student.ndim != 3 or student.shape != target.shape:
        raise ValueError(
            f"`student` and `target` must be (num_blocks, num_positions, d_T), both alike; got {tuple(student.shape)} and "
            f"{tuple(target.shape)}."
        )
    student, target = student.float(), target.detach().float()
    apart = (F.normalize(student, dim=-1) - F.normalize(target, dim=-1)).square().sum(-1) / 2  # 1 - cos
    squared = (student - target).square().sum(-1)
    # The square root has no gradient at 0, which would be NaN.
    distance = torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt() * (squared > 0)
    return (apart + norm_weight * distance).sum(0)


def _check_positions(states: torch.Tensor, row: torch.Tensor) -> None:
    if states.ndim != 2 or row.shape != states.shape[:1]:
        raise ValueError(
            f"`student` must be (num_positions, d) and `row` (num_positions,); got {tuple(states.shape)} and "
            f"{tuple(row.shape)}."
        )


def _check_pair(one_name: str, one: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    if one.ndim != 2 or one.shape != other.shape:
        raise ValueError(
            f"`{one_name}` and `{other_name}` must be two matrices of one shape; got {tuple(one.shape)} and "
            f"{tuple(other.shape)}."
        )
