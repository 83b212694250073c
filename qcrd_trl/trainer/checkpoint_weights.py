"""Whether a checkpoint's weights are those of the model that is to go on from it."""

from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.utils import SAFE_WEIGHTS_NAME

from ..errors import ModelError


def check_weights(model: nn.Module, checkpoint: str) -> None:
    """
    Raises unless a checkpoint's weights have the names and shapes of the model's. Adapters, and weights in several files, are left
    to whoever loads them.

    Args:
        model (`nn.Module`): the model, without wrappers.
        checkpoint (`str`): folder of the checkpoint.

    Raises:
        [`ModelError`]: naming the first weight that differs.
    """
    file = Path(checkpoint) / SAFE_WEIGHTS_NAME
    if isinstance(model, PeftModel) or not file.is_file():
        return
    try:
        with safe_open(file, "pt") as weights:
            held = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as err:
        raise ModelError(f"{str(file)!r} is damaged: {err}. Resume from another checkpoint.") from err
    state = model.state_dict()
    saved = {state[name].data_ptr() for name in held if name in state}  # tied weights are saved once
    mine = {name: tuple(one.shape) for name, one in state.items() if name in held or one.data_ptr() not in saved}
    if differs := sorted(name for name in {*held, *mine} if held.get(name) != mine.get(name)):
        name = differs[0]
        raise ModelError(
            f"The checkpoint {checkpoint!r} is of another model: of its weights {len(differs)} differ, {name!r} first, of shape "
            f"{held.get(name, 'none')}, here {mine.get(name, 'none')}. Resume with the model and data that it was begun with, or give "
            "another output_dir."
        )
