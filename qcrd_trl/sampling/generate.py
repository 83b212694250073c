"""Batched generation that leaves the model as it was."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from ..inference import greedy_config, inference_mode, known_positions, own_config_away, preserved_random_state
from ..models import is_encoder_decoder, keep_cpu_gradients
from .draws import TokenDraws
from .joining import JoinedRows, can_join
from .padding import pad_prompts
from .shrinking import generate_shrinking


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

    Prompts are sorted by length, so that batches hold little padding, and given back in their order. As rows end, a batch is
    filled up with the prompts that follow, where the model's states allow it (see [`can_join`]); elsewhere it shrinks.
    Padding is done here, on the left for decoder-only models, so the tokenizer's `padding_side` is neither read nor changed.

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
            Largest number of tokens of a prompt and its completion together, or of a completion in an encoder-decoder
            model. Where a batch cannot be filled up, its longest prompt counts for all.
        processors (`Sequence[LogitsProcessor]`, *optional*):
            What changes the logits before a token is chosen; rows leave as they end, so that none may depend on its place.
            Batches are not filled up then.

    Returns:
        `list[Completion | None]`: one for each prompt, in their order; `None` for a prompt of another's share.
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches = batches[share[0] :: share[1]]
    mine = [i for batch in batches for i in batch]
    config = greedy_config(model, tokenizer, max_new_tokens)
    if temperature is not None and seeds is None:
        seeds = torch.randint(2**62, (len(prompts),)).tolist()
    limits = [limit for limit in (max_length, known_positions(model)) if limit is not None]

    def room(prompt_tokens: int) -> int:
        used = 0 if is_encoder_decoder(model) else prompt_tokens
        return max(1, min([max_new_tokens, *(limit - used for limit in limits)]))

    keep_cpu_gradients(model)
    tokens: dict[int, list[int]] = {}
    bar = tqdm(total=len(mine), desc=desc, disable=not progress, leave=False)
    with preserved_random_state(), inference_mode(model), own_config_away(model), bar:
        joined = None
        if mine and not processors and can_join(model):
            rows = JoinedRows(
                model,
                [prompts[i] for i in mine],
                [room(len(prompts[i])) for i in mine],
                config.eos_token_id,
                tokenizer.pad_token_id,
                batch_size,
                None if temperature is None else [seeds[i] for i in mine],
                temperature,
            )
            joined = rows.run(lambda prompt: bar.update())
        if joined is not None:
            tokens = dict(zip(mine, joined, strict=True))
        for chosen in [] if joined is not None else batches:
            inputs = pad_prompts(
                [prompts[i] for i in chosen], tokenizer.pad_token_id, left=not is_encoder_decoder(model)
            )
            inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
            draws = None
            if temperature is not None:
                draws = TokenDraws([seeds[i] for i in chosen], temperature, model.device)
            limited = copy.deepcopy(config)
            limited.max_new_tokens = room(inputs["input_ids"].shape[1])
            tokens |= zip(chosen, generate_shrinking(model, inputs, limited, draws, processors), strict=True)
            bar.update(len(chosen))
    ends = config.eos_token_id
    return [_completion(tokens[i], ends, tokenizer) if i in tokens else None for i in range(len(prompts))]


def _completion(ids: list[int], ends: list[int], tokenizer: PreTrainedTokenizerBase) -> Completion:
    finished = next((place for place, token in enumerate(ids) if token in ends), None)
    kept = ids if finished is None else ids[: finished + 1]
    text = tokenizer.decode(kept, skip_special_tokens=True).strip()
    return Completion(text, len(kept), finished is not None, tuple(kept))
