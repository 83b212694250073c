"""What generation changes in a model and in the random state, and puts back; the configuration of a greedy search."""

import random
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from .models import base_model


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
def own_config_away(model: nn.Module):
    """Puts a model's own generation configuration aside: what stays unset in a given one would be taken from it."""
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


def known_positions(model: nn.Module) -> int | None:
    """Positions that the model knows; learned ones end there with an error."""
    known = getattr(base_model(model).config.get_text_config(decoder=True), "max_position_embeddings", None)
    return known if isinstance(known, int) and known > 0 else None


def greedy_config(model: nn.Module, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> GenerationConfig:
    """Greedy search of one beam, ended by the EOS of the tokenizer and those of the model's own configuration."""
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
