"""The student as it was at the start of each iteration: saved on disk, put in place to generate, put back."""

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from .errors import ModelError
from .files import copy_folder, remove_unfinished, sha256, whole_folder
from .models import base_model


SNAPSHOTS_FOLDER = "negative_generators"
STATE_NAME = "snapshot.json"
ADAPTER_NAME = "default"
_WEIGHTS = {"adapter": "adapter_model.safetensors", "model": "model.safetensors"}


def snapshot_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """
    What a snapshot holds, by name: the trained adapter, or every weight of a model without one. The tensors are the
    model's own, so that writing into them changes it; tied weights occur once.

    Raises:
        [`ModelError`]: if a parameter that is trained lies outside the adapter, so that nothing would ever save it.
    """
    if not isinstance(model, PeftModel):
        weights, seen = {}, set()
        for name, tensor in model.state_dict().items():
            if tensor.data_ptr() not in seen or tensor.numel() == 0:
                seen.add(tensor.data_ptr())
                weights[name] = tensor
        return weights
    weights = get_peft_model_state_dict(model, adapter_name=ADAPTER_NAME)
    held = {tensor.data_ptr() for tensor in weights.values()}
    lost = [name for name, p in model.named_parameters() if p.requires_grad and p.data_ptr() not in held]
    if lost:
        raise ModelError(
            f"{len(lost)} trained parameters are not a part of the adapter and would be lost ({', '.join(lost[:3])}). Name "
            "their modules in `modules_to_save` of the `peft_config`, or freeze them."
        )
    return weights


def fingerprint(model: nn.Module) -> str:
    """
    Tells the base under an adapter by its shapes and a sample of its unquantized weights, rounded to bfloat16 so that the
    precision it is loaded in does not count, and the adapter by its scale.
    """
    digest = hashlib.sha256()
    for name, parameter in base_model(model).named_parameters():
        if parameter.requires_grad or "lora_" in name or f".{ADAPTER_NAME}." in f"{name}.":
            continue
        name = name.replace(".base_layer.", ".").replace(".original_module.", ".")
        digest.update(name.encode())
        if parameter.dtype.is_floating_point:
            sample = parameter.detach().flatten()[:256].to("cpu", torch.bfloat16).view(torch.int16)
            digest.update(str(tuple(parameter.shape)).encode() + sample.numpy().tobytes())
    for name, module in model.named_modules():
        if isinstance(getattr(module, "scaling", None), dict):
            digest.update(f"{name} {module.scaling.get(ADAPTER_NAME)}".encode())
    return digest.hexdigest()


@dataclass
class Snapshots:
    """
    Snapshots of one run, each a folder `iteration-NNNN`: a plain PEFT adapter, or all weights as safetensors.

    Args:
        folder (`Path`): where they are kept.
    """

    folder: Path

    def path(self, iteration: int) -> Path:
        """Folder of the snapshot taken at the start of an iteration."""
        return self.folder / f"iteration-{iteration:04d}"

    def iterations(self) -> list[int]:
        """Iterations that there is a whole snapshot of, in order."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"iteration-(\d{4,})", path.name) for path in self.folder.iterdir())
        numbers = sorted(int(match.group(1)) for match in found if match)
        return [number for number in numbers if (self.path(number) / STATE_NAME).is_file()]

    def save(self, model: nn.Module, iteration: int, step: int) -> Path:
        """
        Writes a snapshot. It is whole or not there.

        Args:
            model (`nn.Module`): the student.
            iteration (`int`): the iteration that starts.
            step (`int`): optimizer steps done.
        """
        target = self.path(iteration)
        kind = "adapter" if isinstance(model, PeftModel) else "model"
        weights = snapshot_weights(model)
        with whole_folder(target) as aside:
            if kind == "adapter":
                model.save_pretrained(aside, selected_adapters=[ADAPTER_NAME])
            else:
                # Not `save_pretrained`: the names are to be those of the modules, whatever a model renames on saving.
                tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
                save_file(tensors, aside / _WEIGHTS[kind], metadata={"format": "pt"})
                config = copy.deepcopy(model.config)  # as `save_pretrained` of a model writes it
                config.architectures = [type(model).__name__]
                config.dtype = str(next(model.parameters()).dtype).split(".")[1]
                config.save_pretrained(aside)
            state = {
                "kind": kind,
                "iteration": iteration,
                "global_step": step,
                "base": fingerprint(model) if kind == "adapter" else None,
                "sha256": sha256(aside / _WEIGHTS[kind]),
            }
            (aside / STATE_NAME).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        return target

    def keep(self, iterations: set[int]) -> None:
        """Removes all snapshots but those of some iterations, and what an earlier process left unfinished."""
        remove_unfinished(self.folder)
        for iteration in self.iterations():
            if iteration not in iterations:
                shutil.rmtree(self.path(iteration))

    def copy_to(self, folder: Path) -> None:
        """
        Puts the snapshots into a checkpoint. Adapters are copied; whole weights share their space with those here.

        Raises:
            [`ModelError`]: if one is damaged, before a checkpoint with it takes the place of a good one.
        """
        self._copy(self, Snapshots(folder), self._kinds())

    def copy_from(self, folder: Path) -> None:
        """Takes the snapshots of a checkpoint in place of those here."""
        there = Snapshots(folder)
        kinds = there._kinds()
        self.keep(set())
        self._copy(there, self, kinds)

    def _kinds(self) -> dict[int, str]:
        return {iteration: _checked(self.path(iteration))["kind"] for iteration in self.iterations()}

    @staticmethod
    def _copy(source: "Snapshots", target: "Snapshots", kinds: dict[int, str]) -> None:
        for iteration, kind in kinds.items():
            copy_folder(source.path(iteration), target.path(iteration), links=kind == "model")

    @contextmanager
    def activated(self, model: nn.Module, iteration: int) -> Iterator[nn.Module]:
        """
        The student with a snapshot's weights in place of its own, which are back afterwards, also after an error.

        The parameters stay the same objects: what is trained, the active adapter, the optimizer and pending gradients
        do not change, and no second copy of the base exists. An adapter waits beside itself, on its device; whole weights
        wait in the host's memory.

        Args:
            model (`nn.Module`): the student.
            iteration (`int`): the iteration that the snapshot was taken at.

        Raises:
            [`ModelError`]: if the snapshot is damaged, or of another base or adapter.
        """
        folder = self.path(iteration)
        weights = snapshot_weights(model)
        self._check(folder, model, weights)
        waits_on_host = not isinstance(model, PeftModel)
        own = {
            name: tensor.detach().to("cpu" if waits_on_host else tensor.device, copy=True)
            for name, tensor in weights.items()
        }
        try:
            with self._opened(folder, weights) as stored:
                _write(weights, stored.get_tensor)
            # The file is closed by now: mapped, its pages would count as memory in use.
            with _idle_adapter_left_out(model, weights):
                yield model
        finally:
            _write(weights, own.__getitem__)

    def _check(self, folder: Path, model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
        state, kind = _checked(folder), "adapter" if isinstance(model, PeftModel) else "model"
        if state["kind"] != kind:
            raise ModelError(
                f"The snapshot {str(folder)!r} holds the weights of {_article(state['kind'])}, and the student is trained as "
                f"{_article(kind)}. Use another `output_dir`, or train as the run began."
            )
        with self._opened(folder, weights):
            pass  # raises if the shapes do not fit
        if kind == "adapter" and state["base"] != fingerprint(model):
            raise ModelError(
                f"The snapshot {str(folder)!r} was taken on another base model, or with another scale of the adapter. Use "
                "another `output_dir`, or the model and the adapter that the run began with."
            )

    @contextmanager
    def _opened(self, folder: Path, weights: dict[str, torch.Tensor]):
        kind = "adapter" if (folder / _WEIGHTS["adapter"]).is_file() else "model"
        try:
            stored = safe_open(folder / _WEIGHTS[kind], framework="pt")
        except (SafetensorError, OSError) as err:
            raise ModelError(f"The snapshot {str(folder)!r} is damaged ({err}).") from err
        with stored as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if shapes != {name: tuple(tensor.shape) for name, tensor in weights.items()}:
                raise ModelError(
                    f"The snapshot {str(folder)!r} is not of this student: {len(shapes)} weights against {len(weights)}, or "
                    "other shapes. Use another `output_dir`, or the adapter that the run began with."
                )
            yield file


def _checked(folder: Path) -> dict:
    """What a snapshot says of itself; a [`ModelError`] if it is damaged."""
    try:
        state = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
        if sha256(folder / _WEIGHTS[state["kind"]]) != state["sha256"]:
            raise ValueError("its weights are not those that were written")
        return {"base": None, **state}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ModelError(
            f"The snapshot {str(folder)!r} is damaged ({err}). Resume from an earlier checkpoint."
        ) from err


def _article(kind: str) -> str:
    return "an adapter" if kind == "adapter" else "a whole model"


@contextmanager
def _idle_adapter_left_out(model: nn.Module, weights: dict[str, torch.Tensor]) -> Iterator[None]:
    """
    An adapter that adds 0 to every layer, as that of the untrained student does, is not computed. Only the layers' flag is
    changed: PEFT's own switch would also decide anew what requires grad.
    """
    is_plain = isinstance(model, PeftModel) and all(".lora_A." in name or ".lora_B." in name for name in weights)
    is_idle = is_plain and not any(bool(tensor.any()) for name, tensor in weights.items() if ".lora_B." in name)
    layers = [module for module in model.modules() if is_idle and isinstance(module, BaseTunerLayer)]
    flags = [layer._disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, flag in zip(layers, flags, strict=True):
            layer._disable_adapters = flag


@torch.no_grad()
def _write(weights: dict[str, torch.Tensor], value_of: Callable[[str], torch.Tensor]) -> None:
    for name, tensor in weights.items():
        tensor.copy_(value_of(name))
