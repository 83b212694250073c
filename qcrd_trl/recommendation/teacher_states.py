"""What C2KD reads of a teacher: hidden states of its layers at the positions that predict, and its output head."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import ConfigError, ModelError, TrainingError
from ..losses import LogitForm
from ..models import base_model, keep_cpu_gradients
from .layer_filters import check_layers
from .states import head_of, hidden_size, num_layers, read_positions


TEACHER_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# What a configuration says of the run that wrote it, and not of what the model computes.
_NOT_COMPUTED = {"architectures", "transformers_version", "dtype", "torch_dtype", "use_cache", "output_hidden_states"}
_ADAPTER = (
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
)


class TeacherStates(Protocol):
    """
    A teacher as the student's training sees it: loaded, or read from a cache.

    Attributes:
        layers (`tuple[int, ...]`): candidate layers, counted from 1 as `hidden_states` of transformers.
        last_layer (`int`): the last layer, whose states come after the final norm and go into the head.
        hidden_size (`int`): width d_T of the states.
        vocab_size (`int`): number of items or tokens that the head scores.
        head (`nn.Module`): the frozen output head, states in float32 to logits in float32.
        fingerprint (`str`): of the teacher's weights and configuration, see [`teacher_fingerprint`].
        dtype (`torch.dtype`): what the states are rounded to.
    """

    layers: tuple[int, ...]
    last_layer: int
    hidden_size: int
    vocab_size: int
    head: nn.Module
    fingerprint: str
    dtype: torch.dtype

    def read(self, batch: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """
        States at the positions of a batch that predict a label, row by row.

        Args:
            batch (`Mapping[str, Any]`): a batch of [`DataCollatorForRecommendation`].

        Returns:
            `dict[int, torch.Tensor]`: of each of `layers` and of `last_layer`, rounded to `dtype`, given in float32, shape
            `(positions, hidden_size)`.
        """

    def to(self, device: torch.device | str) -> "TeacherStates":
        """Moves what there is of the teacher to a device."""


class LiveTeacher:
    """
    A teacher that is loaded, and run for every batch: in eval mode, without gradient, in the precision it was loaded in
    (autocast of the student's training does not reach it).

    All of its parameters are frozen for good.

    Args:
        model (`nn.Module`):
            An item-head model or a causal language model, with adapters or without.
        layers (`Sequence[int]`):
            Candidate layers, ascending, counted from 1.
        dtype (`str`, *optional*, defaults to `"float16"`):
            What the states are rounded to, `"float16"`, `"bfloat16"` or `"float32"`: the same as in a teacher cache, so that
            training with and without one is the same.

    Raises:
        [`ConfigError`]: for layers that the teacher does not have, or an unknown dtype.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int], dtype: str = "float16"):
        self.dtype = state_dtype(dtype)
        self.last_layer = num_layers(model)
        self.layers = check_layers(layers, self.last_layer)
        self.model = model.requires_grad_(False).eval()
        keep_cpu_gradients(self.model)  # 4-bit weights that are repacked on the way would have another fingerprint
        self.hidden_size = hidden_size(self.model)
        self._head: TeacherHead | None = None
        self._fingerprint: str | None = None

    @property
    def device(self) -> torch.device:
        """Where the teacher is."""
        return next(self.model.parameters()).device

    @property
    def head(self) -> "TeacherHead":
        """The teacher's output head, frozen. A weight in float32 is shared with the teacher, another is copied."""
        if self._head is None or self._head.weight.device != self.device:
            self._head = TeacherHead.of(self.model)
        return self._head

    @property
    def vocab_size(self) -> int:
        """Number of items or tokens."""
        return self.head.weight.shape[0]

    @property
    def fingerprint(self) -> str:
        """See [`teacher_fingerprint`]; computed when it is first asked for."""
        if self._fingerprint is None:
            self._fingerprint = teacher_fingerprint(self.model)
        return self._fingerprint

    def to(self, device: torch.device | str) -> "LiveTeacher":
        """Moves the teacher; a quantized one stays where it was loaded."""
        if not getattr(base_model(self.model), "is_quantized", False):
            self.model.to(device)
        return self

    @torch.no_grad()
    def read(self, batch: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """
        States at the positions that predict a label; see [`TeacherStates.read`].

        Raises:
            [`TrainingError`]: if a state is not finite, or becomes so when it is rounded.
        """
        rounded = self.read_rounded(batch)
        return {layer: states.float() for layer, states in rounded.items()}

    @torch.no_grad()
    def read_rounded(self, batch: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """As [`~LiveTeacher.read`], in `dtype`: what a teacher cache stores."""
        self.model.eval()  # a trainer may have put it into training mode, with its dropout
        wanted = tuple(sorted({*self.layers, self.last_layer}))
        inputs = {name: value.to(self.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        with torch.autocast(self.device.type, enabled=False):
            states = read_positions(self.model, inputs, wanted, with_logits=False).states
        rounded = {layer: states[layer].to(self.dtype) for layer in wanted}
        if not torch.stack([torch.isfinite(one).all() for one in rounded.values()]).all():
            raise _not_finite(states, rounded, self.dtype)
        return rounded


class TeacherHead(nn.Module):
    """
    An output head of its own: states to logits, both in float32. Nothing of it is trained.

    Args:
        weight (`torch.Tensor`): shape `(vocab_size, hidden_size)`, float32.
        bias (`torch.Tensor`, *optional*): shape `(vocab_size,)`, float32.
        form ([`LogitForm`], *optional*): factor and cap of the logits.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, form: LogitForm | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.form = LogitForm() if form is None else form

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> "TeacherHead":
        """
        The head of a teacher.

        Raises:
            [`ModelError`]: if it is not linear.
        """
        head = head_of(model)
        form = logit_form(model)
        weight = getattr(head, "weight", None)
        if type(head) is nn.Linear and weight.is_floating_point():
            return cls(weight, head.bias, form)
        # Adapters on the head, quantized heads: what a linear layer does to the unit vectors is its weight.
        width = hidden_size(model)
        place = next(head.parameters())
        dtype = place.dtype if place.dtype in TEACHER_DTYPES.values() else torch.float32
        bias = head(torch.zeros(1, width, device=place.device, dtype=dtype)).float()
        weight = (head(torch.eye(width, device=place.device, dtype=dtype)).float() - bias).T.contiguous()
        probe = torch.linspace(-1, 1, width, device=place.device, dtype=dtype)[None]
        own, ours = head(probe).float(), F.linear(probe.float(), weight, bias[0])
        if not (own - ours).abs().max() <= 2e-2 * own.abs().max().clamp(min=1e-6):
            raise ModelError(
                f"The teacher's head is a {type(head).__name__}, which is not linear: distillation through the teacher's head "
                "needs one that is."
            )
        return cls(weight, bias[0] if bias.any() else None, form)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits of states of shape `(..., hidden_size)`; autocast does not reach them."""
        with torch.autocast(states.device.type, enabled=False):
            logits = F.linear(states.to(self.weight.dtype), self.weight, self.bias).float()
        if self.form.scale != 1.0:
            logits = logits * self.form.scale
        if self.form.softcap is not None:
            logits = torch.tanh(logits / self.form.softcap) * self.form.softcap
        return logits


def logit_form(model: nn.Module) -> LogitForm:
    """What a teacher's configuration says of its logits: a factor (Cohere, Granite) and a cap (Gemma 2)."""
    config = base_model(model).config
    if hasattr(config, "backbone_config"):
        return LogitForm()  # an item-head model scores by its head alone
    config = config.get_text_config(decoder=True)
    scale = 1.0
    if getattr(config, "logits_scaling", None):
        scale = 1.0 / config.logits_scaling
    elif getattr(config, "logit_scale", None) is not None:
        scale = float(config.logit_scale)
    return LogitForm(scale, getattr(config, "final_logit_softcapping", None))


def state_dtype(name: str | torch.dtype) -> torch.dtype:
    """The dtype of a name of `TEACHER_DTYPES`."""
    dtype = TEACHER_DTYPES.get(name, name)
    if dtype not in TEACHER_DTYPES.values():
        raise ConfigError(f"Unknown teacher_dtype {name!r}: expected one of {', '.join(TEACHER_DTYPES)}.")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, as `TEACHER_DTYPES` has it."""
    return str(dtype).removeprefix("torch.")


@torch.no_grad()
def teacher_fingerprint(model: nn.Module) -> str:
    """
    SHA-256 of all that decides what a teacher computes: names, types and values of its weights, those of adapters and the
    states of quantization included, its configuration, and how its adapters are scaled.

    An adapter that is merged gives another fingerprint than the same one beside its base, and a teacher in bfloat16 another
    than in float32: their states differ.
    """
    digest = hashlib.sha256()
    model = getattr(model, "module", model)
    for name, tensor in sorted(model.state_dict().items()):
        if torch.is_tensor(tensor):
            digest.update(f"{name} {dtype_name(tensor.dtype)} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    told: dict[str, Any] = {"config": _computed(base_model(model).config.to_dict())}
    if hasattr(model, "peft_config"):
        active = model.active_adapters if isinstance(model.active_adapters, list) else [model.active_adapter]
        told["adapters"] = {
            name: {field: getattr(model.peft_config[name], field, None) for field in _ADAPTER} for name in active
        }
    digest.update(json.dumps(told, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _computed(config: Any) -> Any:
    """A configuration without what says nothing of the computation."""
    if isinstance(config, dict):
        return {
            str(name): _computed(value)
            for name, value in config.items()
            if not str(name).startswith("_") and name not in _NOT_COMPUTED
        }
    return [_computed(value) for value in config] if isinstance(config, (list, tuple)) else config


def _not_finite(
    states: Mapping[int, torch.Tensor], rounded: Mapping[int, torch.Tensor], dtype: torch.dtype
) -> TrainingError:
    for layer, values in rounded.items():
        if torch.isfinite(values).all():
            continue
        if not torch.isfinite(states[layer]).all():
            return TrainingError(
                f"The teacher's states of layer {layer} are not finite, in {dtype_name(states[layer].dtype)}, the precision "
                "that it is loaded in. Load it in bfloat16 or float32, and look at its own loss."
            )
        largest = states[layer].abs().max().item()
        return TrainingError(
            f"The teacher's states of layer {layer} reach {largest:.6g}, and {dtype_name(dtype)} ends at "
            f"{torch.finfo(dtype).max:.6g}. Set teacher_dtype='bfloat16' (the same room) or 'float32' (twice the room)."
        )
    raise AssertionError("unreachable: called only where a state is not finite")


__all__ = [
    "TEACHER_DTYPES",
    "LiveTeacher",
    "TeacherHead",
    "TeacherStates",
    "dtype_name",
    "logit_form",
    "state_dtype",
    "teacher_fingerprint",
]
