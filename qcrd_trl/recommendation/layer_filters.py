"""The layer filters g^l of C2KD (Chen et al., Findings of ACL 2025): the teacher's states of a layer in the student's width."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import ConfigError, ModelError
from ..files import whole_folder
from ..losses import states_nll
from ..losses.logprobs import tile_tokens


CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
KIND, FORMAT = "layer_filters", 1
FORMS = ("mlp", "linear", "identity")


class LayerFilters(nn.Module):
    """
    A filter for each candidate layer of the teacher, with a norm and a head that they share.

    The filters are what the student imitates; norm and head are there to train them by the task alone, and are not used
    afterwards. The paper's abstract is silent on the form of a filter: an MLP of two linear layers is the default here, and
    the norm is an RMSNorm.

    Args:
        layers (`Sequence[int]`):
            Candidate layers of the teacher, ascending, counted from 1.
        teacher_size (`int`):
            Width d_T of the teacher's states.
        student_size (`int`):
            Width d_S of what a filter gives.
        vocab_size (`int`):
            Number of items, or of tokens in generative mode: the rows of the head.
        form (`str`, *optional*, defaults to `"mlp"`):
            `"mlp"`: linear, GELU, linear. `"linear"`: one linear layer. `"identity"`: the states as they are, where both widths
            are equal.
        filter_size (`int`, *optional*):
            Width between the two layers of an MLP; `teacher_size` if left out.
        teacher_fingerprint (`str`, *optional*):
            Fingerprint of the teacher that the filters belong to, see [`teacher_fingerprint`].

    Examples:

    ```python
    >>> import torch
    >>> from qcrd_trl.recommendation.layer_filters import LayerFilters

    >>> filters = LayerFilters([4, 6], teacher_size=8, student_size=3, vocab_size=10)
    >>> filters({4: torch.randn(5, 8), 6: torch.randn(5, 8)}).shape
    torch.Size([2, 5, 3])
    ```
    """

    def __init__(
        self,
        layers: Sequence[int],
        teacher_size: int,
        student_size: int,
        vocab_size: int,
        form: str = "mlp",
        filter_size: int | None = None,
        teacher_fingerprint: str | None = None,
    ):
        super().__init__()
        self.layers = check_layers(layers)
        self.teacher_size, self.student_size, self.vocab_size = teacher_size, student_size, vocab_size
        for name in ("teacher_size", "student_size", "vocab_size"):
            if not _is_size(getattr(self, name)):
                raise ConfigError(f"{name} must be an integer of at least 1, got {getattr(self, name)!r}.")
        if form not in FORMS:
            raise ConfigError(f"Unknown form of layer filters {form!r}: expected one of {', '.join(FORMS)}.")
        if form == "identity" and teacher_size != student_size:
            raise ConfigError(
                f"Identity filters need a teacher and a student of one width, got {teacher_size} and {student_size}: take "
                "form='linear' or 'mlp'."
            )
        if filter_size is not None and (form != "mlp" or not _is_size(filter_size)):
            raise ConfigError(
                f"filter_size is the width within form='mlp', an integer of at least 1; got {filter_size!r} with form={form!r}."
            )
        self.form, self.teacher_fingerprint = form, teacher_fingerprint
        self.filter_size = (filter_size or teacher_size) if form == "mlp" else None
        self.filters = nn.ModuleDict({str(layer): self._filter() for layer in self.layers})
        self.norm = nn.RMSNorm(student_size, eps=1e-6)
        self.head = nn.Linear(student_size, vocab_size, bias=False)

    def _filter(self) -> nn.Module:
        if self.form == "identity":
            return nn.Identity()
        if self.form == "linear":
            return nn.Linear(self.teacher_size, self.student_size)
        return nn.Sequential(
            nn.Linear(self.teacher_size, self.filter_size),
            nn.GELU(),
            nn.Linear(self.filter_size, self.student_size),
        )

    @classmethod
    def identity(
        cls, layers: Sequence[int], size: int, vocab_size: int = 1, teacher_fingerprint: str | None = None
    ) -> "LayerFilters":
        """Filters that give the teacher's states as they are."""
        return cls(layers, size, size, vocab_size, "identity", teacher_fingerprint=teacher_fingerprint)

    def forward(
        self, states: Mapping[int, torch.Tensor], targets: torch.Tensor | None = None, predicts: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """
        What the filters make of the teacher's states.

        Args:
            states (`Mapping[int, torch.Tensor]`):
                States by layer, each of shape `(positions, teacher_size)`. Layers that are no candidates are left alone.
            targets (`torch.Tensor`, *optional*):
                The next item or token of each position, shape `(positions,)`. With them the task's losses are given, all within
                this call, so that a wrapper such as DDP sees every parameter used.
            predicts (`bool`, *optional*, defaults to `False`):
                Whether to find the likeliest items too.

        Returns:
            `torch.Tensor`: g^l(H^l) of each candidate layer, float32, shape `(candidates, positions, student_size)`; or, with
            `targets`, the losses in nats and the likeliest items or `None`, both of shape `(candidates, positions)`.
        """
        missing = [layer for layer in self.layers if layer not in states]
        if missing:
            raise ModelError(
                f"The teacher's states of layers {missing} are missing: the layer filters are of layers {list(self.layers)}, "
                f"and the states of {sorted(states)}. Read the filters' layers from the teacher."
            )
        filtered = torch.stack([self.filters[str(layer)](states[layer].float()).float() for layer in self.layers])
        if targets is None:
            return filtered
        flat = self.norm(filtered.flatten(0, 1)).float()
        # Losses tile by tile: a vocabulary's logits of all positions and layers would not fit.
        nll, predicted = states_nll(flat, self.head.weight, targets.repeat(len(self.layers)), predicts=predicts)
        shape = filtered.shape[:2]
        return nll.view(shape), predicted.view(shape) if predicts else None

    def logits(self, filtered: torch.Tensor) -> torch.Tensor:
        """
        Logits of the shared head.

        Args:
            filtered (`torch.Tensor`): what `forward` gave, or a part of it, shape `(..., student_size)`.

        Returns:
            `torch.Tensor`: float32, shape `(..., vocab_size)`.
        """
        return self.head(self.norm(filtered)).float()

    def freeze(self) -> "LayerFilters":
        """Takes all parameters out of training, for the student's distillation."""
        return self.requires_grad_(False).eval()

    def check(
        self,
        teacher: Any,
        student_size: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """
        Checks that the filters belong to a teacher and a student.

        Args:
            teacher ([`TeacherStates`]): whose states they are to read.
            student_size (`int`, *optional*): width of the student's states.
            vocab_size (`int`, *optional*): number of items or tokens.

        Raises:
            [`ModelError`]: naming what does not fit.
        """
        if self.teacher_fingerprint is not None and self.teacher_fingerprint != teacher.fingerprint:
            raise ModelError(
                f"The layer filters were trained on another teacher: theirs has the fingerprint "
                f"{self.teacher_fingerprint[:12]}, this one {teacher.fingerprint[:12]}. Train filters on this teacher "
                "(`qcrd c2kd filters`), or load the teacher they were trained on, in the same precision and with the same "
                "adapters."
            )
        wrong = [
            f"{name} {mine} instead of {given}"
            for name, mine, given in (
                ("a teacher's width of", self.teacher_size, teacher.hidden_size),
                ("a student's width of", self.student_size, student_size),
                ("items or tokens in number", self.vocab_size, vocab_size),
            )
            if given is not None and mine != given
        ]
        if wrong:
            raise ModelError(
                f"The layer filters do not fit: they have {' and '.join(wrong)}. Train them for this pair."
            )
        lacking = sorted(set(self.layers) - {*teacher.layers, teacher.last_layer})
        if lacking:
            raise ModelError(
                f"The layer filters need layers {list(self.layers)} of the teacher, and {lacking} of them are not among what "
                f"is read or cached: {sorted({*teacher.layers, teacher.last_layer})}. Give those as the candidate layers, and "
                "build the teacher cache with them."
            )

    def settings(self) -> dict[str, Any]:
        """What `config.json` says."""
        names = ("form", "filter_size", "teacher_size", "student_size", "vocab_size", "teacher_fingerprint")
        told = {name: getattr(self, name) for name in names}
        return {"kind": KIND, "format": FORMAT, "layers": list(self.layers), **told}

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Writes `config.json` and `model.safetensors`; a folder of that name is replaced once the new one is whole."""
        with whole_folder(Path(save_directory)) as folder:
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Writes the files of [`~LayerFilters.save_pretrained`] into a folder that may hold others."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_NAME).write_text(json.dumps(self.settings(), indent=2) + "\n", encoding="utf-8")
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS_NAME)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike) -> "LayerFilters":
        """
        Loads filters that [`~LayerFilters.save_pretrained`] or a [`LayerFilterTrainer`] wrote, in eval mode.

        Raises:
            [`ModelError`]: if the folder holds none, or its files are damaged or do not belong together.
        """
        folder = Path(path)
        config = _read_config(folder)
        names = ("layers", "teacher_size", "student_size", "vocab_size", "form", "filter_size", "teacher_fingerprint")
        try:
            filters = cls(**{name: config[name] for name in names})
        except (KeyError, TypeError, ConfigError) as err:
            raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} is not that of layer filters: {err!r}") from err
        try:
            filters.load_state_dict(load_file(folder / WEIGHTS_NAME))
        except (SafetensorError, OSError) as err:
            raise ModelError(f"{WEIGHTS_NAME} in {str(folder)!r} is missing or damaged: {err}") from err
        except RuntimeError as err:
            raise ModelError(f"The weights in {str(folder)!r} do not fit their {CONFIG_NAME}: {err}") from err
        return filters.eval()


@torch.no_grad()
def hit_ranks(filters: LayerFilters, filtered: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Rank of each target among all items or tokens: 1 + those with a greater logit + those with the same and a smaller index.

    Args:
        filters ([`LayerFilters`]): whose norm and head score.
        filtered (`torch.Tensor`): what the filter of one layer gave, shape `(positions, student_size)`.
        targets (`torch.Tensor`): shape `(positions,)`.

    Returns:
        `torch.Tensor`: integers from 1, shape `(positions,)`.
    """
    ranks = torch.empty_like(targets)
    index = torch.arange(filters.vocab_size, device=targets.device)
    tile = tile_tokens(len(targets), filters.vocab_size, targets.device)
    for start in range(0, len(targets), tile):
        rows = slice(start, start + tile)
        logits, target = filters.logits(filtered[rows]), targets[rows, None]
        own = logits.gather(1, target)
        ranks[rows] = 1 + ((logits > own) | ((logits == own) & (index < target))).sum(1)
    return ranks


def check_layers(layers: Sequence[int], num_layers: int | None = None) -> tuple[int, ...]:
    """
    Candidate layers as a tuple.

    Args:
        layers (`Sequence[int]`): ascending, counted from 1.
        num_layers (`int`, *optional*): of the teacher.

    Raises:
        [`ConfigError`]: if there are none, or they are not ascending, or the teacher does not have them.
    """
    layers = tuple(layers)
    top = float("inf") if num_layers is None else num_layers
    if (
        not layers
        or not all(isinstance(layer, int) and not isinstance(layer, bool) and 1 <= layer <= top for layer in layers)
        or list(layers) != sorted(set(layers))
    ):
        limit = "counted from 1" if num_layers is None else f"of 1 to {num_layers}, the teacher's layers"
        hint = (
            ""
            if num_layers is None
            else " Those of layer filters or of a teacher cache are layers of the teacher they were made with."
        )
        raise ConfigError(
            f"Candidate layers must be ascending integers {limit}, at least one, got {list(layers)}.{hint}"
        )
    return layers


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Up to 4 layers at even distances in the late half of a teacher, the last one included: of 32, 20, 24, 28 and 32."""
    half = num_layers - num_layers // 2
    count = min(4, half)
    return tuple(sorted(num_layers - place * half // count for place in range(count)))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except OSError as err:
        raise ModelError(
            f"No layer filters in {str(folder)!r}: expected {CONFIG_NAME} and {WEIGHTS_NAME} there, as `qcrd c2kd filters` "
            "writes them."
        ) from err
    except ValueError as err:
        raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} is damaged: {err}") from err
    if not isinstance(config, dict) or config.get("kind") != KIND:
        kind = config.get("kind") if isinstance(config, dict) else None
        raise ModelError(
            f"{str(folder)!r} holds no layer filters: its {CONFIG_NAME} says kind={kind!r}. Give the output_dir of `qcrd c2kd filters`."
        )
    if config.get("format") != FORMAT:
        raise ModelError(
            f"The layer filters in {str(folder)!r} are of format {config.get('format')!r}, and format {FORMAT} is read here: "
            "update qcrd_trl, or train them anew."
        )
    return config
