"""What a model in generative mode recommends: the titles that it writes, greedily, with nothing of it changed."""

import logging
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import ConfigError, ModelError
from ..inference import greedy_config, inference_mode, known_positions, own_config_away, preserved_random_state
from ..models import is_encoder_decoder, keep_cpu_gradients
from .collator import stack_rows
from .tokens import answer_ids, check_dataset, fitting_prompt_ids


logger = logging.getLogger(__name__)


@torch.no_grad()
def recommend_titles(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    progress: bool = True,
) -> list[str]:
    """
    The text that a model answers each prompt with, by greedy search.

    Prompts are sorted by length, so that batches hold little padding (on the left), and answered in their order. The model's
    mode (module by module), its generation configuration, the random state and the tokenizer are as before afterwards, also
    after an error; its active adapter is used and not changed.

    Args:
        model (`nn.Module`):
            A decoder-only model with `generate`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            That of the model.
        rows ([`~datasets.Dataset`]):
            Rows of [`~recommendation.prompts.generative_rows`].
        batch_size (`int`, *optional*, defaults to `16`):
            Prompts at a time.
        max_new_tokens (`int`, *optional*):
            Largest number of tokens of an answer, its EOS included. As many as the longest candidate has if left out, so that
            every one can be written and a longer answer is none of them anyway.
        max_length (`int`, *optional*):
            Largest number of tokens of a prompt and `max_new_tokens` together, at most the positions that the model knows. A prompt
            that is longer loses its oldest history first.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.

    Returns:
        `list[str]`: an answer for each row, without special tokens and surrounding white space.

    Raises:
        [`ConfigError`]: a number below 1.
        [`ModelError`]: an encoder-decoder, or a tokenizer without EOS.
        [`DataError`]: a column is missing, or a prompt does not fit even without its history.
    """
    for name, value in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    if is_encoder_decoder(model):
        raise ModelError("Generative mode needs a decoder-only model, got an encoder-decoder.")
    if tokenizer.eos_token_id is None:
        raise ModelError("The tokenizer has no eos token: an answer would have no end. Set `tokenizer.eos_token`.")
    check_dataset(rows, ("prompt", "candidate_titles"), "rows")
    longest = _longest_candidate(tokenizer, rows)
    if max_new_tokens is None:
        max_new_tokens = longest
    elif max_new_tokens < longest:
        logger.warning(
            "The longest candidate has %d tokens, of which only max_new_tokens=%d can be written.",
            longest,
            max_new_tokens,
        )
    prompts = _prompts(tokenizer, rows, max_new_tokens, max_length, known_positions(model))
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    config = greedy_config(model, tokenizer, max_new_tokens)
    config.pad_token_id = pad
    keep_cpu_gradients(model)
    texts: dict[int, str] = {}
    bar = tqdm(total=len(prompts), desc="Recommending", disable=not progress, leave=False)
    with preserved_random_state(), inference_mode(model), own_config_away(model), bar:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            inputs = [prompts[i] for i in chosen]
            input_ids = stack_rows(inputs, pad, left=True)
            mask = stack_rows([[1] * len(ids) for ids in inputs], 0, left=True)
            generated = model.generate(
                input_ids=input_ids.to(model.device), attention_mask=mask.to(model.device), generation_config=config
            )
            for i, tokens in zip(chosen, generated[:, input_ids.shape[1] :].tolist(), strict=True):
                texts[i] = _text(tokens, config.eos_token_id, tokenizer)
            bar.update(len(chosen))
    return [texts[i] for i in range(len(prompts))]


def _prompts(tokenizer, rows, max_new_tokens: int, max_length: int | None, positions: int | None) -> list[list[int]]:
    limits = [limit for limit in (max_length, positions) if limit is not None]
    limit = min(limits) if limits else None
    room = None if limit is None else limit - max_new_tokens
    prompts, dropped = [], []
    for index, row in enumerate(rows):
        ids, left_out = fitting_prompt_ids(row, index, tokenizer, room, "rows", limit, "answer")
        prompts.append(ids)
        dropped.append(left_out)
    if any(dropped):
        logger.warning(
            "%d of %d prompts lost their oldest history (%d items in all), to fit in %d tokens with their answer.",
            *(sum(count > 0 for count in dropped), len(prompts), sum(dropped), limit),
        )
    return prompts


def _longest_candidate(tokenizer: PreTrainedTokenizerBase, rows: Dataset) -> int:
    """Tokens of the longest candidate with its EOS."""
    first: dict[str, Any] = {}
    for row in rows:
        for title in row["candidate_titles"]:
            first.setdefault(title, row["prompt"])
    return max((len(answer_ids(prompt, title, tokenizer)) for title, prompt in first.items()), default=1)


def _text(tokens: list[int], ends: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    finished = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokenizer.decode(tokens[:finished], skip_special_tokens=True).strip()
