"""Loading students: encoder-decoder and decoder-only, full models and adapters, quantized or not."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .errors import ConfigError, ModelError


logger = logging.getLogger(__name__)


def load_student(
    model: str | os.PathLike | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    args: Any,
    quantization_config: Any = None,
    peft_config: Any = None,
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """
    A student ready for training, and its tokenizer, from what a trainer is given.

    Args:
        model (`str` or `os.PathLike` or `nn.Module`): id, path or loaded model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): that of the model's id or path if left out.
        args ([`QCRDConfig`]): `model_init_kwargs` and what [`prepare_student`] reads.
        quantization_config (*optional*): quantization of the model loaded here.
        peft_config ([`~peft.PeftConfig`], *optional*): adapter to add.

    Raises:
        [`ModelError`], [`ConfigError`]: as [`load_model`], [`prepare_tokenizer`] and [`prepare_student`] do.
    """
    init_kwargs = dict(args.model_init_kwargs or {})
    if isinstance(model, (str, os.PathLike)):
        name = str(model)
        model = load_model(model, quantization_config, is_trainable=True, **init_kwargs)
    else:
        name = getattr(getattr(model, "config", None), "_name_or_path", "")
        if quantization_config is not None or init_kwargs:
            raise ConfigError(
                "`quantization_config` and `model_init_kwargs` are used when the model is loaded here. Pass the model as "
                "an id or a path, or leave them out."
            )
    if tokenizer is None:
        trust = {"trust_remote_code": True} if init_kwargs.get("trust_remote_code") else {}
        tokenizer = load_tokenizer(name, **trust)
    tokenizer = prepare_tokenizer(tokenizer)
    model = prepare_student(model, args, peft_config)
    rows = base_model(model).get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        logger.warning(
            "The tokenizer has %d tokens and the model embeds %d: are they of one model?", len(tokenizer), rows
        )
    return model, tokenizer


def load_model(
    path: str | os.PathLike, quantization_config: Any = None, is_trainable: bool = False, **init_kwargs
) -> PreTrainedModel | PeftModel:
    """
    Loads a student by id or path.

    Args:
        path (`str` or `os.PathLike`):
            Hub id or folder of a model, or of a PEFT adapter, whose base model is then loaded first.
        quantization_config (*optional*):
            Passed to `from_pretrained`, for instance a [`~transformers.BitsAndBytesConfig`].
        is_trainable (`bool`, *optional*, defaults to `False`):
            Whether an adapter is to be trained further.
        init_kwargs:
            Further keyword arguments for `from_pretrained`; `trust_remote_code` only if it stands there.

    Returns:
        [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`].

    Raises:
        [`ModelError`]: if there is no such model, or it is neither an encoder-decoder nor a causal language model.
    """
    path = str(path)
    if (Path(path) / "adapter_config.json").is_file():
        base = PeftConfig.from_pretrained(path).base_model_name_or_path
        if not base:
            raise ModelError(
                f"The adapter in {path!r} does not name its base model. Load it with PEFT and pass the model."
            )
        return PeftModel.from_pretrained(
            load_model(base, quantization_config, **init_kwargs), path, is_trainable=is_trainable
        )
    if quantization_config is not None:
        init_kwargs["quantization_config"] = quantization_config
    # Full precision unless asked otherwise: an optimizer that steps bfloat16 weights loses small updates.
    init_kwargs.setdefault("dtype", torch.float32)
    if isinstance(init_kwargs["dtype"], str) and init_kwargs["dtype"] != "auto":
        init_kwargs["dtype"] = _dtype(init_kwargs["dtype"])
    auto = AutoModelForSeq2SeqLM if reads_with_encoder(path, **init_kwargs) else AutoModelForCausalLM
    try:
        return auto.from_pretrained(path, **init_kwargs)
    except (OSError, ValueError) as err:
        raise ModelError(f"No {auto.__name__} could be loaded from {path!r}: {first_line(err)}") from err


def reads_with_encoder(path: str | os.PathLike, **init_kwargs) -> bool:
    """Whether the model of an id or path is an encoder-decoder; `init_kwargs` as for [`load_model`]."""
    shared = {k: init_kwargs[k] for k in ("revision", "token", "trust_remote_code", "cache_dir") if k in init_kwargs}
    path = str(path)
    if (Path(path) / "adapter_config.json").is_file():
        return reads_with_encoder(PeftConfig.from_pretrained(path).base_model_name_or_path, **shared)
    try:
        config = AutoConfig.from_pretrained(path, **shared)
    except (OSError, ValueError) as err:
        raise ModelError(f"No model could be loaded from {path!r}: {first_line(err)}") from err
    return bool(getattr(config, "is_encoder_decoder", False))


def load_tokenizer(path: str | os.PathLike, **kwargs) -> PreTrainedTokenizerBase:
    """Loads a student's tokenizer by id or path; an adapter's folder without one gives that of its base model."""
    path = str(path)
    try:
        return AutoTokenizer.from_pretrained(path, **kwargs)
    except (OSError, ValueError) as err:
        if (Path(path) / "adapter_config.json").is_file():
            return load_tokenizer(PeftConfig.from_pretrained(path).base_model_name_or_path, **kwargs)
        raise ModelError(f"No tokenizer could be loaded from {path!r}: {first_line(err)}") from err


def prepare_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """
    Checks a tokenizer, and lets EOS pad where there is no padding token. The vocabulary is not touched.

    Raises:
        [`ModelError`]: if there is no EOS token, so that a completion would have no end.
    """
    if tokenizer.eos_token_id is None:
        also = " and no pad token" if tokenizer.pad_token_id is None else ""
        raise ModelError(
            f"The tokenizer has no eos token{also}: a completion would have no end. Set `tokenizer.eos_token` to the token "
            "that the model ends its texts with."
        )
    if tokenizer.pad_token_id is None:
        logger.info("The tokenizer has no pad token: its eos token %r pads.", tokenizer.eos_token)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prepare_student(
    model: PreTrainedModel | PeftModel, args: Any, peft_config: Any = None, wrap: Callable = get_peft_model
) -> nn.Module:
    """
    Checks a student and gives it the adapter it is trained by.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The student.
        args ([`QCRDConfig`]):
            Training arguments: `gradient_checkpointing` and its keyword arguments are read.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to add; full fine-tuning if left out.
        wrap (`Callable`, *optional*, defaults to [`~peft.get_peft_model`]):
            What adds it: a function of the model and `peft_config`.

    Raises:
        [`ModelError`]: if the model cannot be trained as it is.
        [`ConfigError`]: if arguments exclude each other.
    """
    if isinstance(model, PeftModel):
        check_adapter(model, peft_config)
    elif not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"`model` must be an id, a path, a `PreTrainedModel` or a `PeftModel`, got {type(model).__name__}."
        )
    elif getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            "The model carries an adapter that is not a `PeftModel`. Load it with `PeftModel.from_pretrained`."
        )
    quantized = bool(getattr(model, "is_quantized", False) or getattr(base_model(model), "is_quantized", False))
    if quantized:
        keep_cpu_gradients(model)
    if quantized and not isinstance(model, PeftModel):
        if peft_config is None:
            raise ModelError(
                "A quantized model cannot be trained itself: pass `peft_config` to train an adapter on it."
            )
        model = prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=args.gradient_checkpointing,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs or {"use_reentrant": False},
        )
    if peft_config is not None:
        if getattr(peft_config, "is_prompt_learning", False):
            raise ConfigError(
                "Prompt learning shifts the positions of a row: use LoRA or another adapter in the layers."
            )
        model = wrap(model, peft_config)
    if isinstance(model, PeftModel) and args.gradient_checkpointing:
        # Otherwise no input of a checkpointed layer requires grad, and the adapter silently gets none.
        model.enable_input_require_grads()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("No parameter of the model requires grad. Load an adapter with `is_trainable=True`.")
    if base_model(model).get_output_embeddings() is None:
        raise ModelError(
            f"{type(base_model(model)).__name__} has no language-modelling head to score rationales with."
        )
    if args.fp16 and base_model(model).config.model_type in ("t5", "mt5", "umt5", "longt5"):
        logger.warning("T5 models overflow in fp16: losses may become NaN. Use bf16=True, or full precision.")
    return model


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model under a PEFT wrapper, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the student reads its prompt with an encoder."""
    return bool(getattr(base_model(model).config, "is_encoder_decoder", False))


def keep_cpu_gradients(model: nn.Module) -> None:
    """
    Keeps 4-bit layers trainable on CPUs with AVX512_BF16. There the first forward without gradient in eval mode repacks
    the weights for a kernel that has no backward, and the gradients of later steps are silently wrong.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_adapter(model: PeftModel, peft_config: Any = None) -> None:
    """Raises an error for an adapter that checkpoints would not find again, or for a second one to be added."""
    if peft_config is not None:
        raise ConfigError("The model is a `PeftModel` already: leave `peft_config` out, or pass the base model.")
    active = model.active_adapter if isinstance(model.active_adapter, str) else ", ".join(model.active_adapter)
    if active != "default":
        raise ModelError(
            f"The trained adapter is named {active!r}, but checkpoints are only found again under the name 'default'. Load "
            "or create it with `adapter_name='default'`."
        )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"Unknown dtype {name!r}: expected 'auto', 'float32', 'bfloat16' or 'float16'.")
    return dtype


def device_of(name: str | torch.device | None = None) -> torch.device:
    """A device by its name, the GPU if there is one where none is given. A [`ConfigError`] tells that it cannot be used."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as err:  # torch raises either for a device that is not there
        raise ConfigError(f"The device {str(name)!r} cannot be used here: {first_line(err)}") from err
    return device


def first_line(err: BaseException) -> str:
    """What an error says first: those of the Hub go on for a page."""
    return str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
