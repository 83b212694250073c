"""The states and scores of a model at the positions that predict a target, read in one pass."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from ..errors import ConfigError, ModelError
from .item_model import IGNORED


@dataclass
class PositionStates:
    """
    What a model computes at the P positions of a batch that predict a target, row by row.

    Args:
        states (`dict` of `int` to `torch.Tensor` of shape `(P, d)`):
            States by layer, 1 to L, as the `hidden_states` of transformers: those of layer L are after the final norm.
        logits (`torch.Tensor` of shape `(P, V)`, *optional*): scores in float32.
    """

    states: dict[int, torch.Tensor]
    logits: torch.Tensor | None


def label_positions(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The positions that predict a target. Labels are not shifted: position t predicts label t + 1.

    Args:
        labels (`torch.Tensor` of shape `(B, T)`): targets, -100 where nothing is to be predicted.

    Returns:
        two `torch.Tensor` of shape `(P,)`: rows and columns, row by row, with `labels[row, column + 1] != -100`.
    """
    row, column = torch.nonzero(labels[:, 1:] != IGNORED, as_tuple=True)
    return row, column


def read_positions(
    model: nn.Module, batch: Mapping[str, Any], layers: Sequence[int], with_logits: bool = True
) -> PositionStates:
    """
    States and scores of a model at a batch's label positions. The model is called once, and its head sees only these positions.

    Args:
        model (`nn.Module`): an item-head model or a causal language model, bare or under PEFT or DDP.
        batch (`Mapping`): `input_ids`, `attention_mask` and `labels`, each of shape `(B, T)`; other keys are not read.
        layers (`Sequence[int]`): layers 1 to L whose states are wanted; no other layer's are kept.
        with_logits (`bool`, *optional*, defaults to `True`): whether the scores are wanted.

    Returns:
        [`PositionStates`].

    Raises:
        [`ConfigError`]: if there is no such layer.
        [`ModelError`]: if the states cannot be read.
    """
    core = core_model(model)
    last = num_layers(core)
    wrong = [layer for layer in layers if not 1 <= layer <= last]
    if wrong:
        raise ConfigError(f"The model has the layers 1 to {last}, got layer {wrong[0]}.")
    row, column = label_positions(batch["labels"])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask") if batch.get(name) is not None}
    reads = inspect.signature(type(core).forward).parameters
    if "attention_mask" in inputs and "position_ids" in reads:
        # Counted from a row's first token, as in generation: padding on the left moves nothing.
        inputs["position_ids"] = (inputs["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    if "use_cache" in reads:
        inputs["use_cache"] = False

    kept: dict[int, torch.Tensor] = {}
    at = (row, column) if with_logits else (row[:0], column[:0])
    with ExitStack() as hooks:
        hooks.enter_context(_keep_layers(core, [layer for layer in layers if layer != last], kept))
        hooks.enter_context(_keep_last(core, last, kept))
        hooks.enter_context(_only_positions(head_of(core), at))
        logits = model(**inputs).logits
    missing = [layer for layer in layers if layer not in kept]
    if missing:
        raise ModelError(f"{type(core).__name__} gave no states of layer {missing[0]}.")
    _check_gradients(core, kept)
    states = {layer: kept[layer][row, column] for layer in sorted(set(layers))}
    if not with_logits:
        return PositionStates(states, None)
    return PositionStates(states, logits.reshape(-1, logits.shape[-1]).float())


def core_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model under PEFT, DDP, other wrappers that call it `module`, and `torch.compile`."""
    while not isinstance(model, (PreTrainedModel, PeftModel)):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            raise ModelError(f"Expected a model of transformers, got {type(model).__name__}.")
        model = inner
    return model.get_base_model() if isinstance(model, PeftModel) else model


def head_of(model: nn.Module) -> nn.Module:
    """
    The output head of a model: from states of shape `(..., d)` to scores of shape `(..., V)`.

    Raises:
        [`ModelError`]: if it has none.
    """
    core = core_model(model)
    head = core.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(core).__name__} has no output head.")
    return head


def linear_head(model: nn.Module, num_items: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    What items are ranked by: weight `(num_items, d)` and bias `(num_items,)`, if any, of the head, in single precision at most.

    Args:
        model (`nn.Module`): an item-head model, wrapped or not.
        num_items (`int`): items that are ranked.

    Raises:
        [`ModelError`]: if the head is no plain linear layer over these items.
    """
    head = head_of(model)
    weight, bias = getattr(head, "weight", None), getattr(head, "bias", None)
    if weight is None or weight.dim() != 2 or not weight.is_floating_point() or len(weight) != num_items:
        shape = "no weight" if weight is None else f"a weight of shape {tuple(weight.shape)}"
        raise ModelError(
            f"The model's head has {shape}, and the data {num_items} items. Evaluate it on the data that it was trained on; a "
            'language model is evaluated with task_mode="generative".'
        )
    return tuple(
        None if part is None else part.detach().float() if part.dtype == torch.float64 else part.detach()
        for part in (weight, bias)
    )


def check_linear_head(head: nn.Module, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """
    Raises a [`ModelError`] where the head gives other scores than the weight and bias that are ranked by: an adapter on it would
    be left out without a word.

    Args:
        head (`nn.Module`): what the model makes scores with.
        state (`torch.Tensor`): states to compare the scores of, `(num_states, d)`.
        weight, bias: those of [`linear_head`].
    """
    given = head(state.to(head.weight.dtype)).float()
    product = nn.functional.linear(state.double(), weight.double(), None if bias is None else bias.double())
    finite = given.isfinite() & product.isfinite()
    apart = (given - product)[finite].abs()
    if len(apart) and apart.max() > 0.02 * product[finite].abs().max() + 1e-6:
        raise ModelError(
            f"The head ({type(head).__name__}) gives other scores than its weights do. If an adapter is on it, merge it first."
        )


def num_layers(model: nn.Module) -> int:
    """Number of layers L of a model."""
    return core_model(model).config.num_hidden_layers


def hidden_size(model: nn.Module) -> int:
    """Width d of a model's states."""
    return core_model(model).config.hidden_size


def layers_of(model: nn.Module) -> Sequence[nn.Module]:
    """
    The modules of a model's layers, in order.

    Raises:
        [`ModelError`]: if they are not found.
    """
    core = core_model(model)
    for module in core.modules():  # from the outside inwards
        if isinstance(module, nn.ModuleList) and len(module) == num_layers(core):
            return module
    raise ModelError(
        f"{type(core).__name__} has no list of its {num_layers(core)} layers: their states cannot be read."
    )


def _check_gradients(core: PreTrainedModel, kept: dict[int, torch.Tensor]) -> None:
    """Reentrant checkpointing runs a layer without gradient: what is read within it would silently teach nothing."""
    if not (core.training and torch.is_grad_enabled()):
        return
    layers = layers_of(core) if len(kept) > 1 else []
    for layer, states in kept.items():
        if (
            states.requires_grad
            or layer > len(layers)
            or not getattr(layers[layer - 1], "gradient_checkpointing", False)
        ):
            continue
        if any(parameter.requires_grad for parameter in layers[layer - 1].parameters()):
            raise ModelError(
                f"The states of layer {layer} carry no gradient under this gradient checkpointing: set "
                "gradient_checkpointing_kwargs={'use_reentrant': False}."
            )


@contextmanager
def _keep_layers(core: PreTrainedModel, layers: Sequence[int], kept: dict[int, torch.Tensor]) -> Iterator[None]:
    def keep(layer):
        def hook(module, args, output):
            kept[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [layers_of(core)[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _keep_last(core: PreTrainedModel, last: int, kept: dict[int, torch.Tensor]) -> Iterator[None]:
    def hook(module, args, output):
        kept[last] = output[0]

    handle = core.base_model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _only_positions(head: nn.Module, at: tuple[torch.Tensor, torch.Tensor]) -> Iterator[None]:
    """Lets a head see `(1, P, d)` of the `(B, T, d)` that it is given."""

    def hook(module, args):
        return (args[0][at].unsqueeze(0), *args[1:])

    handle = head.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
