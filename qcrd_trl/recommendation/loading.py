"""Recommenders by id, path or configuration: models with a head over items, causal language models, and adapters on both."""

import copy
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file

from ..errors import ConfigError, ModelError
from ..models import (
    base_model,
    first_line,
    keep_cpu_gradients,
    load_model,
    load_tokenizer,
    prepare_student,
    reads_with_encoder,
)
from ..repositories import student_folder
from .item_init import scale_items, seeded, set_titles, token_scale
from .item_model import ItemHeadConfig, ItemHeadModel, ItemModel, ItemModelConfig, read_backbone_config
from .sasrec import SASRecConfig, SASRecModel


logger = logging.getLogger(__name__)

TASK_MODES = ("generative", "item_head")
_HUB_KEYS = ("revision", "token", "cache_dir")
# What says that a model is quantized: whoever trains or saves it asks the outermost one.
_QUANTIZED = (
    *("is_quantized", "is_loaded_in_4bit", "is_loaded_in_8bit", "quantization_method", "hf_quantizer"),
    "hf_device_map",
)
# Settings that configurations read, and keep by another name.
_OLD_NAMES = ("model_type", "rope_theta", "rope_scaling", "partial_rotary_factor", "torch_dtype")


class ItemPeftModel(PeftModel):
    """
    An adapter on a model with a head over items. The embeddings of the items, their projection and the head are trained whole
    beside it, and its folder holds them, with the model's configuration as `config.json`.
    """

    def __init__(self, model: ItemModel, peft_config: PeftConfig, adapter_name: str = "default", **kwargs: Any):
        super().__init__(model, peft_config, adapter_name, **kwargs)
        core = self.get_base_model()
        if core.config.tie_items:
            # Each was copied by itself.
            core.head.modules_to_save[adapter_name].weight = core.item_embeddings.modules_to_save[adapter_name].weight

    def save_pretrained(self, save_directory: str, *args: Any, is_main_process: bool = True, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, is_main_process=is_main_process, **kwargs)
        if is_main_process:
            # The base is loaded in full precision unless asked otherwise, however it was in training.
            config = copy.deepcopy(self.get_base_model().config)
            for part in (config, getattr(config, "backbone_config", None)):
                if hasattr(part, "quantization_config"):
                    del part.quantization_config
            config.save_pretrained(save_directory)


def build_recommender(
    task_mode: str,
    source: str | os.PathLike | dict | nn.Module,
    num_items: int | None = None,
    quantization_config: Any = None,
    peft_config: PeftConfig | None = None,
    seed: int = 0,
    init_kwargs: dict[str, Any] | None = None,
    titles: Sequence[str | None] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    item_init: str = "random",
    item_size: int | None = None,
    tie_items: bool | None = None,
    args: Any = None,
) -> nn.Module:
    """
    A recommender ready for training.

    Args:
        task_mode (`str`): `"item_head"` or `"generative"`.
        source (`str`, `os.PathLike`, `dict` or `nn.Module`):
            Id or path of a decoder-only language model (in item-head mode its backbone is taken), of a saved recommender or of an
            adapter; or a configuration with its `model_type`, for random weights: a language model's, or `"qcrd_sasrec"`; or a
            loaded model of the mode.
        num_items (`int`, *optional*): number of items; needed in item-head mode unless `source` is a saved recommender.
        quantization_config (*optional*):
            Quantization of the model that is loaded here; the items' embeddings and the head stay as they are.
        peft_config ([`~peft.PeftConfig`], *optional*): adapter to add. In item-head mode the items' parts are trained along.
        seed (`int`, *optional*, defaults to `0`): fixes all new weights; the global random state is not touched.
        init_kwargs (`dict`, *optional*):
            Further keyword arguments for `from_pretrained`, such as `dtype` (float32 if left out) and `num_hidden_layers`.
        titles (`Sequence`, *optional*): titles of the items by index, `None` where there is none; for `item_init="titles"`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): for the titles; that of `source` if left out.
        item_init (`str`, *optional*, defaults to `"random"`): `"random"` or `"titles"`, see [`set_titles`].
        item_size (`int`, *optional*): width of the embeddings of the items; the backbone's if left out.
        tie_items (`bool`, *optional*): whether the head's weights are the embeddings of the items; as the model's kind does it if
            left out (only SASRec ties).
        args (*optional*): training arguments, of which [`~qcrd_trl.models.prepare_student`] reads some.

    Returns:
        [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`], in training mode.

    Raises:
        [`ConfigError`]: if arguments exclude each other.
        [`ModelError`]: if the model cannot be loaded, or cannot be used in this mode.
    """
    if task_mode not in TASK_MODES:
        raise ConfigError(f"Unknown task_mode {task_mode!r}: expected 'generative' or 'item_head'.")
    if item_init not in ("random", "titles"):
        raise ConfigError(f"Unknown item_init {item_init!r}: expected 'random' or 'titles'.")
    items = {"num_items": num_items, "item_size": item_size, "tie_items": tie_items}
    items = {name: value for name, value in items.items() if value is not None}
    init_kwargs = dict(init_kwargs or {})
    embed = None
    with seeded(seed):
        if isinstance(source, nn.Module):
            if quantization_config is not None or init_kwargs:
                raise ConfigError(
                    "`quantization_config` and `init_kwargs` are used when the model is loaded here. Pass the model as an id or "
                    "a path, or leave them out."
                )
            model = source
        elif isinstance(source, dict):
            if quantization_config is not None or peft_config is not None:
                raise ConfigError(
                    "A model that is made from a configuration has no weights on the disk to be quantized, or to be named by an "
                    "adapter. Save it first, and give its folder; or train it whole."
                )
            model = _from_settings(task_mode, source, items, init_kwargs)
        elif (
            task_mode == "generative"
            or _is_adapter(str(source), init_kwargs)
            or isinstance(_config_of(str(source), init_kwargs), ItemModelConfig)
        ):
            model = load_recommender(source, quantization_config, is_trainable=True, **init_kwargs)
            if peft_config is not None and not isinstance(model, PeftModel):
                _check_whole(model, str(source), init_kwargs)
        else:
            model, embed = _with_backbone(str(source), items, quantization_config, init_kwargs)
        if item_init == "titles":
            if embed is None:
                raise ConfigError(
                    "`item_init='titles'` needs a language model whose token embeddings are read: an id or path of one in item-head "
                    "mode."
                )
            set_titles(model, embed, tokenizer or load_tokenizer(str(source), **_trust(init_kwargs)), titles or ())
        _check_mode(model, task_mode, items)
        return prepare_recommender(model, args, peft_config).train()


def prepare_recommender(model: nn.Module, args: Any = None, peft_config: PeftConfig | None = None) -> nn.Module:
    """
    [`~qcrd_trl.models.prepare_student`] for a recommender: an adapter on an item-head model takes the items' parts along.

    Args:
        model (`nn.Module`): the recommender.
        args (*optional*): training arguments: `gradient_checkpointing`, its keyword arguments and `fp16` are read.
        peft_config ([`~peft.PeftConfig`], *optional*): adapter to add. It is not changed.

    Raises:
        [`ConfigError`], [`ModelError`]: as `prepare_student` does, and for an adapter that would name no base.
    """
    args = args or SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None, fp16=False)
    if peft_config is None or not isinstance(model, ItemModel):
        return prepare_student(model, args, peft_config)
    if isinstance(model, SASRecModel):
        raise ConfigError("SASRec is small, and trained whole: leave `peft_config` out.")
    if not model.name_or_path:
        raise ConfigError(
            "An adapter names the model that it is for, and this one was neither loaded nor saved. Save it, and load it from "
            "there."
        )
    return prepare_student(model, args, items_along(peft_config, model), wrap=ItemPeftModel)


def items_along(peft_config: PeftConfig, model: ItemModel) -> PeftConfig:
    """A copy of an adapter's configuration that trains the items' parts whole, and finds the layers of the backbone."""
    peft_config = copy.copy(peft_config)
    peft_config.task_type = None  # those of PEFT expect tokens
    peft_config.base_model_name_or_path = model.name_or_path
    peft_config.modules_to_save = sorted({*(peft_config.modules_to_save or []), *model.item_modules})
    if isinstance(peft_config, LoraConfig) and peft_config.target_modules is None:
        kind = getattr(getattr(model.config, "backbone_config", None), "model_type", None)
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind)
        peft_config.target_modules = set(known) if known else "all-linear"
    if isinstance(peft_config, LoraConfig) and peft_config.target_modules == "all-linear":
        peft_config.exclude_modules = peft_config.exclude_modules or model.item_modules
    return peft_config


def load_recommender(
    path: str | os.PathLike, quantization_config: Any = None, is_trainable: bool = False, **init_kwargs: Any
) -> nn.Module:
    """
    Loads whatever a run has saved: an item-head model, SASRec, a causal language model, or an adapter on one of them.

    Args:
        path (`str` or `os.PathLike`): a folder, or the name of a repository of the Hub.
        quantization_config (*optional*): passed to `from_pretrained`; the items' parts stay as they are.
        is_trainable (`bool`, *optional*, defaults to `False`): whether an adapter is to be trained further.
        init_kwargs: further keyword arguments for `from_pretrained`; `dtype` is float32 if left out.

    Returns:
        [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`], in evaluation mode.

    Raises:
        [`ModelError`]: if there is no such model.
    """
    path = str(path)
    is_adapter = _is_adapter(path, init_kwargs)
    if is_adapter:
        folder = str(student_folder(path, **{key: init_kwargs.pop(key) for key in _HUB_KEYS if key in init_kwargs}))
        config = _config_of(folder, init_kwargs) if (Path(folder) / "config.json").is_file() else None
    else:
        folder, config = path, _config_of(path, init_kwargs)
    if not isinstance(config, ItemModelConfig):
        if reads_with_encoder(folder, **init_kwargs):
            raise ModelError(f"{path!r} holds an encoder-decoder: recommenders are decoder-only.")
        model = load_model(folder, quantization_config, is_trainable, **init_kwargs)
    elif is_adapter:
        adapter = PeftConfig.from_pretrained(folder)
        base = adapter.base_model_name_or_path
        if not base:
            raise ModelError(f"The adapter in {path!r} does not name its base model.")
        try:
            model = _load_base(base, config, quantization_config, init_kwargs)
        except ModelError as err:
            raise ModelError(
                f"The adapter in {path!r} belongs to the base {base!r}, which cannot be loaded: {str(err).rstrip('.')}. If the base "
                "was moved, write where it lies now into base_model_name_or_path of adapter_config.json."
            ) from err
        model = ItemPeftModel.from_pretrained(model, folder, is_trainable=is_trainable, config=adapter)
    else:
        model = _load_items(path, config, quantization_config, init_kwargs)
    return model.train() if is_trainable else model.eval()


def _trust(init_kwargs: dict[str, Any]) -> dict[str, bool]:
    return {"trust_remote_code": True} if init_kwargs.get("trust_remote_code") else {}


def _config_of(source: str, init_kwargs: dict[str, Any]) -> PretrainedConfig:
    known = {key: init_kwargs[key] for key in (*_HUB_KEYS, "trust_remote_code") if key in init_kwargs}
    try:
        return AutoConfig.from_pretrained(source, **known)
    except (OSError, ValueError, KeyError) as err:
        raise ModelError(f"No model could be loaded from {source!r}: {first_line(err)}") from err


def _is_adapter(source: str, init_kwargs: dict[str, Any]) -> bool:
    known = {key: init_kwargs[key] for key in _HUB_KEYS if key in init_kwargs}
    try:
        return find_adapter_config_file(source, **known) is not None
    except (OSError, ValueError) as err:
        raise ModelError(f"No model could be loaded from {source!r}: {first_line(err)}") from err


def _from_settings(
    task_mode: str, settings: dict[str, Any], items: dict[str, Any], init_kwargs: dict[str, Any]
) -> nn.Module:
    if init_kwargs:
        raise ConfigError(
            f"`init_kwargs` are for a model that is loaded: put {', '.join(init_kwargs)} into the configuration, or leave it out."
        )
    settings = dict(settings)
    kind = settings.get("model_type")
    if kind == SASRecConfig.model_type:
        _check_names(SASRecConfig(), settings)
        if task_mode != "item_head" or "item_size" in items or "num_items" not in items:
            raise ConfigError("SASRec is a model of item-head mode; it needs `num_items` and takes no `item_size`.")
        del settings["model_type"]
        return SASRecModel(SASRecConfig(**{**settings, **items}))
    config = read_backbone_config(settings)
    _check_names(read_backbone_config({"model_type": kind}), settings)
    if task_mode == "generative":
        return AutoModelForCausalLM.from_config(config)
    return ItemHeadModel(ItemHeadConfig(config, **_counted(items)))


def _check_names(known: PretrainedConfig, settings: dict[str, Any]) -> None:
    """A setting that a configuration does not know would be kept, and do nothing."""
    unknown = [name for name in settings if not hasattr(known, name) and name not in _OLD_NAMES]
    if unknown:
        raise ConfigError(f"A configuration of model_type={known.model_type!r} has no {unknown[0]!r}.")


def _counted(items: dict[str, Any]) -> dict[str, Any]:
    if "num_items" not in items:
        raise ConfigError("`num_items` is needed in item-head mode: how many items the head scores.")
    return items


def _with_backbone(
    source: str, items: dict[str, Any], quantization_config: Any, init_kwargs: dict[str, Any]
) -> tuple[ItemHeadModel, nn.Module]:
    """A model with a head over items on the backbone of a language model, and the token embeddings that it had."""
    _counted(items)
    read_backbone_config(_config_of(source, init_kwargs))  # refuses what is not decoder-only
    backbone = _load(AutoModel, source, quantization_config, init_kwargs)
    embed = backbone.get_input_embeddings()
    scale = token_scale(embed, backbone.config.vocab_size)
    model = _on_backbone(ItemHeadConfig(backbone.config, **items), backbone, source)
    scale_items(model, scale)
    return model, embed


def _on_backbone(config: ItemHeadConfig, backbone: nn.Module, source: str) -> ItemHeadModel:
    model = ItemHeadModel(config, backbone)
    model.name_or_path = config.name_or_path = source
    for name in model.item_modules:
        getattr(model, name).to(backbone.device)
    for name in _QUANTIZED:
        if hasattr(backbone, name):
            setattr(model, name, getattr(backbone, name))
    if getattr(model, "is_quantized", False):
        keep_cpu_gradients(model)
    return model


def _load_base(base: str, config: ItemModelConfig, quantization_config: Any, init_kwargs: dict[str, Any]) -> ItemModel:
    """The model that an adapter is for: `config` is that of the model that it was trained on."""
    own = _config_of(base, init_kwargs)
    if isinstance(own, ItemModelConfig):
        if own.num_items != config.num_items:
            raise ModelError(
                f"The adapter is for {config.num_items} items, but its base {base!r} has {own.num_items}: was it saved anew?"
            )
        return _load_items(base, own, quantization_config, init_kwargs)
    backbone_config = copy.deepcopy(config.backbone_config)
    for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(backbone_config, name, getattr(own, name, None))
    backbone = _load(AutoModel, base, quantization_config, {**init_kwargs, "config": backbone_config})
    return _on_backbone(config, backbone, base)


def _load_items(
    source: str, config: ItemModelConfig, quantization_config: Any, init_kwargs: dict[str, Any]
) -> ItemModel:
    if quantization_config is not None:
        if isinstance(config, SASRecConfig):
            raise ConfigError("SASRec is too small to be quantized: leave `quantization_config` out.")
        quantization_config = copy.deepcopy(quantization_config)
        skipped = getattr(quantization_config, "llm_int8_skip_modules", None) or []
        quantization_config.llm_int8_skip_modules = [*skipped, "item_embeddings", "item_projection", "head"]
    model = _load(AutoModel, source, quantization_config, init_kwargs)
    if quantization_config is not None:
        keep_cpu_gradients(model)
    return model


def _load(auto: Any, source: str, quantization_config: Any, init_kwargs: dict[str, Any]) -> Any:
    # Full precision unless asked otherwise: an optimizer that steps bfloat16 weights loses small updates.
    arguments = {"dtype": torch.float32, **init_kwargs}
    if quantization_config is not None:
        arguments["quantization_config"] = quantization_config
    try:
        return auto.from_pretrained(source, **arguments)
    except (OSError, ValueError) as err:
        raise ModelError(f"No {auto.__name__} could be loaded from {source!r}: {first_line(err)}") from err


def _check_whole(model: nn.Module, source: str, init_kwargs: dict[str, Any]) -> None:
    """An adapter's folder names its base, which is loaded whole."""
    configs = _config_of(source, init_kwargs), model.config
    whole, own = (getattr(config, "num_hidden_layers", None) for config in configs)
    if whole != own:
        raise ConfigError(
            f"{source!r} has {whole} layers, and an adapter would name it as the base of a model of {own}. Save the model of {own} "
            "layers by `save_pretrained`, and give its folder; or train it whole."
        )


def _check_mode(model: nn.Module, task_mode: str, items: dict[str, Any]) -> None:
    core = base_model(model)
    has_items = isinstance(core, ItemModel)
    if has_items != (task_mode == "item_head"):
        other = "item-head" if has_items else "generative"
        raise ModelError(
            f"{type(core).__name__} is a model of {other} mode, but task_mode={task_mode!r}. Give the id or path of a language "
            "model, from which either is made."
        )
    for name, value in items.items():
        own = getattr(core.config, name, None)
        if has_items and own != value:
            raise ModelError(
                f"The model has {name}={own}, expected {value}: was it trained on other data or settings?"
            )
