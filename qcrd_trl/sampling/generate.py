"""Batched generation that leaves the model as it was."""

import copy
import random
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import GenerationConfig, LogitsProcessor, PreTrainedTokenizerBase

from ..models import base_model, is_encoder_decoder, keep_cpu_gradients
from .shrinking import GumbelNoise, generate_shrinking


@dataclass(frozen=True)
class Completion:
    """
    A generated text.

    Attributes:
        text (`str`): without special tokens and surrounding white space.
        num_tokens (`int`): tokens generated, the closing EOS included.
        is_finished (`bool`): whether the model ended it, rather than `max_new_tokens`.
        token_ids (`tuple[int, ...]`): the tokens generated, the closing EOS included.
    """

    text: str
    num_tokens: int
    is_finished: bool
    token_ids: tuple[int, ...] = ()


@torch.no_grad()
def generate_completions(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int = 32,
    desc: str = "Generating",
    progress: bool = True,
    temperature: float | None = None,
    seeds: Sequence[int] | None = None,
    share: tuple[int, int] = (0, 1),
    max_length: int | None = None,
    processors: Sequence[LogitsProcessor] = (),
) -> list[Completion | None]:
    """
    Completions of tokenized prompts, greedy or sampled.

    Prompts are sorted by length, so that batches hold little padding, and given back in their order. Padding is done
    here, on the left for decoder-only models, so the tokenizer's `padding_side` is neither read nor changed.

    Args:
        model (`nn.Module`):
            A model with `generate`. Its mode (training or not, module by module) is restored, also after an error.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Gives the ids of EOS and padding, and decodes.
        prompts (`Sequence[Sequence[int]]`):
            Token ids of each prompt.
        max_new_tokens (`int`):
            Largest number of tokens of a completion.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts at a time.
        desc (`str`, *optional*, defaults to `"Generating"`):
            Label of the progress bar.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show it.
        temperature (`float`, *optional*):
            Samples from the whole distribution at this temperature. Greedy if left out.
        seeds (`Sequence[int]`, *optional*):
            A seed for each prompt, below 2**63: what is sampled for it then depends neither on the random state nor on the
            prompts beside it. Drawn from torch's random state if left out.
        share (`tuple[int, int]`, *optional*, defaults to `(0, 1)`):
            `(process, processes)`: of the batches, only every `processes`-th is generated here, starting at `process`.
        max_length (`int`, *optional*):
            Largest number of tokens of the longest prompt of a batch and a completion together, or of a completion in an
            encoder-decoder model.
        processors (`Sequence[LogitsProcessor]`, *optional*):
            What changes the logits before a token is chosen; rows leave as they end, so that none may depend on its place.

    Returns:
        `list[Completion | None]`: one for each prompt, in their order; `None` for a prompt of another's share.
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    mine = range(share[0], len(batches), share[1])
    completions: list[Completion | None] = [None] * len(prompts)
    config = _generation_config(model, tokenizer, max_new_tokens)
    if temperature is not None and seeds is None:
        seeds = torch.randint(2**62, (len(prompts),)).tolist()
    limits = [limit for limit in (max_length, _positions(model)) if limit is not None]
    keep_cpu_gradients(model)
    bar = tqdm(total=sum(len(batches[i]) for i in mine), desc=desc, disable=not progress, leave=False)
    with preserved_random_state(), inference_mode(model), _own_config_away(model), bar:
        for number in mine:
            chosen = batches[number]
            inputs = pad_prompts(
                [prompts[i] for i in chosen], tokenizer.pad_token_id, left=not is_encoder_decoder(model)
            )
            inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
            noise = None
            if temperature is not None:
                noise = GumbelNoise([seeds[i] for i in chosen], temperature, model.device)
            skip = 1 if is_encoder_decoder(model) else inputs["input_ids"].shape[1]
            limited = copy.deepcopy(config)
            rooms = [max_new_tokens] + [limit if is_encoder_decoder(model) else limit - skip for limit in limits]
            limited.max_new_tokens = max(1, min(rooms))
            for i, ids in zip(chosen, generate_shrinking(model, inputs, limited, noise, processors), strict=True):
                completions[i] = _completion(ids, config.eos_token_id, tokenizer)
            bar.update(len(chosen))
    return completions


def pad_prompts(prompts: Sequence[Sequence[int]], pad_token_id: int, left: bool) -> dict[str, torch.Tensor]:
    """Token ids of several lengths to `input_ids` and `attention_mask`, each of shape `(prompts, longest)`."""
    width = max(len(ids) for ids in prompts)
    input_ids = torch.full((len(prompts), width), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompts):
        place = slice(width - len(ids), width) if left else slice(0, len(ids))
        input_ids[row, place] = torch.tensor(list(ids), dtype=torch.long)
        attention_mask[row, place] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


@contextmanager
def inference_mode(model: nn.Module):
    """Puts a model into eval mode, and every module of it back into its own mode at the end, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def preserved_random_state():
    """Puts the random state of Python, NumPy and torch (the CPU's, every GPU's) back at the end, also after an error."""
    own, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numpy_state)


@contextmanager
def _own_config_away(model: nn.Module):
    """Whatever stays unset in a given configuration would be taken from the model's own."""
    base = base_model(model)
    own = getattr(base, "generation_config", None)
    if own is None:
        yield
        return
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = own


def _positions(model: nn.Module) -> int | None:
    """Positions that the model knows; learned ones end there with an error."""
    known = getattr(base_model(model).config.get_text_config(decoder=True), "max_position_embeddings", None)
    return known if isinstance(known, int) and known > 0 else None


def _generation_config(model: nn.Module, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> GenerationConfig:
    given = getattr(model, "generation_config", None) or GenerationConfig()
    ends = given.eos_token_id if isinstance(given.eos_token_id, list) else [given.eos_token_id]
    ends = sorted({end for end in [*ends, tokenizer.eos_token_id] if end is not None})
    # Written out in full: some versions take what stays unset from elsewhere.
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=given.bos_token_id,
        decoder_start_token_id=given.decoder_start_token_id,
        forced_bos_token_id=None,
    )


def _completion(ids: list[int], ends: list[int], tokenizer: PreTrainedTokenizerBase) -> Completion:
    finished = next((place for place, token in enumerate(ids) if token in ends), None)
    kept = ids if finished is None else ids[: finished + 1]
    text = tokenizer.decode(kept, skip_special_tokens=True).strip()
    return Completion(text, len(kept), finished is not None, tuple(kept))
