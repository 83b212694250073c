"""An adapter merged into its base: a full model that loads without PEFT."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from torch import nn
from transformers import AutoConfig

from .data.prompts import FORMAT_NAME
from .errors import ConfigError, ModelError
from .files import whole_folder
from .models import base_model, is_encoder_decoder, load_model, load_tokenizer
from .sampling.generate import inference_mode
from .student_files import DISCRIMINATOR_FOLDER, check_student_folder, student_folder


logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16", "auto")
_PROBE_TOKENS = 64
# Largest total variation, in [0, 1], between the next-token distributions of adapter and merged model.
_TOLERANCE = {"float32": 1e-3}
_ROUNDED_TOLERANCE = 0.2


@dataclass(frozen=True)
class MergedModel:
    """
    What a merge wrote.

    Attributes:
        folder (`Path`): the full model.
        base (`str`): the base that the adapter was merged into.
        dtype (`str`): precision of the weights written.
        difference (`float`): largest total variation, in [0, 1], between the distributions of the next token that adapter
            and written model have along a row of tokens from all over the vocabulary.
    """

    folder: Path
    base: str
    dtype: str
    difference: float


def merge_student(
    path_or_repo: str | os.PathLike,
    output_dir: str | os.PathLike,
    base: str | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> MergedModel:
    """
    Writes a student that is an adapter as a full model, with its tokenizer, format, generation configuration and
    discriminator. The folder is whole or not there.

    It is merged in float32, and rounded to `dtype` at the end. What was written is loaded again and compared with the
    adapter on its base.

    Args:
        path_or_repo (`str` or `os.PathLike`):
            The adapter: a folder, or a repository of the Hub.
        output_dir (`str` or `os.PathLike`):
            Folder to write.
        base (`str`, *optional*):
            The base in full precision, if it is not the one that the adapter names.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the weights written: one of `DTYPES`; `"auto"` for that of the base.
        overwrite (`bool`, *optional*, defaults to `False`):
            Whether a folder that is there is replaced.
        revision (`str`, *optional*):
            Branch, tag or commit of the adapter's repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether the base may bring code of its own.

    Returns:
        [`MergedModel`]

    Raises:
        [`ConfigError`]: if the folder cannot be written.
        [`ModelError`]: if there is no adapter, its base is quantized, or the merged model is another one.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"Unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}.")
    folder, output = student_folder(path_or_repo, revision, trust_remote_code=trust_remote_code), Path(output_dir)
    if not check_student_folder(folder, str(path_or_repo)):
        raise ModelError(f"{str(path_or_repo)!r} is a full model: there is no adapter to merge. Use it as it is.")
    config = PeftConfig.from_pretrained(str(folder))
    base, base_revision = base or config.base_model_name_or_path, None if base else config.revision
    if not base:
        raise ModelError(f"The adapter in {str(path_or_repo)!r} does not name its base model. Give it (--base_model).")
    _check_output(output, [folder, Path(base)], overwrite)
    trust = {"trust_remote_code": True} if trust_remote_code else {}
    revised = {} if base_revision is None else {"revision": base_revision}
    base_config = _base_config(base, **trust, **revised)
    quantization = getattr(base_config, "quantization_config", None)
    if quantization is not None:
        raise ModelError(
            f"The base {base!r} is quantized ({_method(quantization)}): merged weights would be rounded to it again, and "
            "what the adapter learned be lost in part. Name the same model in full precision with --base_model, and the "
            "precision to write with --dtype."
        )
    if dtype == "auto":
        dtype = str(getattr(base_config, "dtype", None) or torch.float32).removeprefix("torch.")
    model = load_model(base, dtype=torch.float32, **trust, **revised)
    try:
        model = PeftModel.from_pretrained(model, str(folder))
    except (RuntimeError, ValueError) as err:
        raise ModelError(f"The adapter in {str(path_or_repo)!r} does not fit the base {base!r}: {err}") from err
    tokenizer = load_tokenizer(folder, **trust)
    probe = _probe(model)
    before = _next_token(model, probe)
    try:
        merged = model.merge_and_unload(safe_merge=True)
    except (AttributeError, NotImplementedError, ValueError) as err:
        raise ModelError(f"An adapter of kind {config.peft_type} cannot be merged: {err}") from err
    merged.to(getattr(torch, dtype))
    with whole_folder(output) as aside:
        merged.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        if (folder / FORMAT_NAME).is_file():
            shutil.copyfile(folder / FORMAT_NAME, aside / FORMAT_NAME)
        if (folder / DISCRIMINATOR_FOLDER).is_dir():
            leave = shutil.ignore_patterns("optimizer.pt")  # of a checkpoint
            shutil.copytree(folder / DISCRIMINATOR_FOLDER, aside / DISCRIMINATOR_FOLDER, ignore=leave)
        del model, merged
        after = _next_token(load_model(aside, dtype=torch.float32, **trust), probe)
        difference = 0.5 * (before - after).abs().sum(-1).max().item()
        if not difference <= _TOLERANCE.get(dtype, _ROUNDED_TOLERANCE):
            raise ModelError(
                f"The merged model is another one than the adapter on its base: the distributions of the next token differ "
                f"by {difference:.3g} (total variation). An adapter on an embedding that is tied to the head cannot be "
                "merged: use it as an adapter."
            )
    return MergedModel(output, base, dtype, difference)


def _check_output(output: Path, sources: list[Path], overwrite: bool) -> None:
    for source in sources:
        if source.exists() and output.resolve() in (source.resolve(), *source.resolve().parents):
            raise ConfigError(f"--output_dir {output} holds what is merged ({source}): give another folder.")
    if output.is_file():
        raise ConfigError(f"--output_dir {output} is a file: give a folder.")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise ConfigError(f"--output_dir {output} is not empty: give another folder, or --overwrite_output_dir.")


def _base_config(base: str, **kwargs: Any) -> Any:
    try:
        return AutoConfig.from_pretrained(base, **kwargs)
    except (OSError, ValueError) as err:
        raise ModelError(
            f"The base {base!r} that the adapter names cannot be loaded: {' '.join(str(err).split())[:200]} Name it with "
            "--base_model."
        ) from err


def _method(quantization: Any) -> str:
    config = quantization if isinstance(quantization, dict) else quantization.to_dict()
    for bits in ("4", "8"):
        if config.get(f"load_in_{bits}bit"):
            return f"{bits}-bit, {config.get('quant_method', 'bitsandbytes')}"
    return str(config.get("quant_method", "unknown method"))


def _probe(model: nn.Module) -> dict[str, torch.Tensor]:
    """A row of tokens from all over the vocabulary, so that every kind of weight has a part in what follows."""
    rows = base_model(model).get_input_embeddings().weight.shape[0]
    positions = getattr(base_model(model).config, "max_position_embeddings", None) or _PROBE_TOKENS
    ids = torch.linspace(0, rows - 1, min(_PROBE_TOKENS, rows, positions)).long().unsqueeze(0)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = ids.flip(1)
    return inputs


@torch.no_grad()
def _next_token(model: nn.Module, probe: dict[str, torch.Tensor]) -> torch.Tensor:
    with inference_mode(model):
        return model(**probe, use_cache=False).logits[0].float().softmax(-1)
