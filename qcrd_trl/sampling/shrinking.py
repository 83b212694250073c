"""Generation whose batch shrinks as rows end, so that few long completions do not keep all others waiting."""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PretrainedConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

from ..models import base_model, is_encoder_decoder
from .draws import TokenDraws


MIN_ROWS = 8  # below this, a step takes as long with fewer rows


class _HalfEnded(StoppingCriteria):
    """Stops a batch as soon as half of its rows have ended."""

    def __init__(self, ends: torch.Tensor):
        self.ends = ends
        self.ended: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        now = torch.isin(input_ids[:, -1], self.ends)
        self.ended = now if self.ended is None else self.ended | now
        return torch.full_like(now, bool(self.ended.sum() * 2 >= len(now)))


def generate_shrinking(
    model: nn.Module,
    inputs: dict[str, torch.Tensor],
    config: GenerationConfig,
    draws: TokenDraws | None = None,
    processors: Sequence[LogitsProcessor] = (),
) -> list[list[int]]:
    """
    What `model.generate` gives, but without the rows that have ended: whenever half of the rows have, generation goes on
    with the others, from the states computed so far (of the encoder, in an encoder-decoder model). Where a model's states are not known to allow it, all rows stay.

    Args:
        model (`nn.Module`): a model with `generate`, in eval mode.
        inputs (`dict[str, torch.Tensor]`): `input_ids` and `attention_mask` of shape `(rows, length)`, padded on the left
            for a decoder-only model.
        config ([`~transformers.GenerationConfig`]): greedy; `max_new_tokens` and `eos_token_id` are read.
        draws ([`TokenDraws`], *optional*): makes samples of it.
        processors (`Sequence[LogitsProcessor]`, *optional*): change the logits before the draws.

    Returns:
        `list[list[int]]`: the new tokens of each row; what follows an EOS is arbitrary.
    """
    separate = is_encoder_decoder(model)
    changing = [*processors, *([] if draws is None else [draws])]
    how = {"logits_processor": LogitsProcessorList(changing)} if changing else {}
    if len(inputs["input_ids"]) < 2 * MIN_ROWS or not can_shrink(model):
        out = model.generate(**inputs, generation_config=copy.deepcopy(config), **how)
        return out[:, 1 if separate else inputs["input_ids"].shape[1] :].tolist()
    mask, sequences = inputs["attention_mask"], inputs["input_ids"]
    ends = torch.tensor(config.eos_token_id, device=sequences.device)
    rows = torch.arange(len(mask), device=mask.device)
    done: list[list[int]] = [[] for _ in rows]
    state: dict = {}
    if separate:
        state["encoder_outputs"] = base_model(model).get_encoder()(input_ids=sequences, attention_mask=mask)
        sequences = sequences.new_full((len(rows), 1), _decoder_start(model, config))
    start, left = sequences.shape[1], config.max_new_tokens
    while True:
        limited = copy.deepcopy(config)
        limited.max_new_tokens, limited.return_dict_in_generate = left, True
        criteria = [_HalfEnded(ends)] if len(rows) >= 2 * MIN_ROWS else []
        out = model.generate(
            **{"decoder_input_ids" if separate else "input_ids": sequences},
            **state,
            **how,
            attention_mask=mask,
            generation_config=limited,
            stopping_criteria=StoppingCriteriaList(criteria),
        )
        left -= out.sequences.shape[1] - sequences.shape[1]
        new = out.sequences[:, start:]
        for row, ids in zip(rows.tolist(), new.tolist(), strict=True):
            done[row] = ids
        goes_on = ~torch.isin(new, ends).any(1)
        if left <= 0 or not goes_on.any():
            return done
        kept = goes_on.nonzero().flatten()
        if draws is not None:
            draws.keep(kept.tolist())
        rows, sequences, mask = rows[kept], out.sequences[kept], mask[kept]
        if separate:
            # The decoder reads again what it has written: `generate` goes on from a decoder's states wrongly.
            state["encoder_outputs"].last_hidden_state = state["encoder_outputs"].last_hidden_state[kept]
        else:
            name = "cache" if hasattr(out, "cache") else "past_key_values"  # older versions of transformers
            state[name] = out[name]
            state[name].batch_select_indices(kept)
            mask = torch.cat([mask, mask.new_ones(len(mask), sequences.shape[1] - mask.shape[1])], 1)


def _decoder_start(model: nn.Module, config: GenerationConfig) -> int:
    if config.decoder_start_token_id is not None:
        return config.decoder_start_token_id
    return base_model(model).config.decoder_start_token_id


def can_shrink(model: nn.Module) -> bool:
    """Whether the states that a model keeps while it generates are known to be cut to some of their rows exactly."""
    config = getattr(base_model(model), "config", None)
    if not isinstance(config, PretrainedConfig):
        return False
    config = config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    is_stateless = not getattr(base_model(model), "_is_stateful", False)
    return is_stateless and kinds <= {"full_attention", "sliding_attention"}
