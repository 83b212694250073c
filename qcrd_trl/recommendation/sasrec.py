"""SASRec, the classical reference: a small self-attention network over items, in PyTorch."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from ..errors import ConfigError
from .item_model import ItemEmbedding, ItemModel, ItemModelConfig


class SASRecConfig(ItemModelConfig):
    """
    Configuration of a [`SASRecModel`].

    Args:
        num_items (`int`, *optional*, defaults to `1`): number of items N. The id N pads.
        hidden_size (`int`, *optional*, defaults to `64`): width d.
        num_hidden_layers (`int`, *optional*, defaults to `2`): number of blocks, as in the paper.
        num_attention_heads (`int`, *optional*, defaults to `1`): attention heads a block, as in the paper.
        intermediate_size (`int`, *optional*, defaults to `hidden_size`): inner width of the feed-forward layers.
        max_position_embeddings (`int`, *optional*, defaults to `200`): longest history; the paper's for MovieLens-1M.
        dropout (`float`, *optional*, defaults to `0.2`): dropout in training; the paper's for MovieLens-1M.
        tie_items (`bool`, *optional*, defaults to `True`): whether the head's weights are the embeddings of the items, as in the
            paper.
        initializer_range (`float`, *optional*, defaults to `0.02`): standard deviation of the initial weights.
        layer_norm_eps (`float`, *optional*, defaults to `1e-8`): epsilon of the layer norms.
        kwargs: further arguments of [`~transformers.PretrainedConfig`].

    Raises:
        [`ConfigError`]: if a size is not at least 1, or the heads do not divide the width.
    """

    model_type = "qcrd_sasrec"

    def __init__(
        self,
        num_items: int = 1,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 1,
        intermediate_size: int | None = None,
        max_position_embeddings: int = 200,
        dropout: float = 0.2,
        tie_items: bool = True,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-8,
        **kwargs: Any,
    ):
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = hidden_size if intermediate_size is None else intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if max_position_embeddings < 1:
            raise ConfigError(f"`max_position_embeddings` must be at least 1, got {max_position_embeddings}.")
        if hidden_size % num_attention_heads:
            raise ConfigError(
                f"`num_attention_heads` must divide `hidden_size`, got {num_attention_heads} and {hidden_size}."
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"`dropout` must be in [0, 1), got {dropout}.")
        super().__init__(num_items=num_items, tie_items=tie_items, **kwargs)


class SASRecBlock(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + feed-forward(norm(x)): the paper's section III.B."""

    def __init__(self, config: SASRecConfig):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.feed_forward_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.inner = nn.Linear(size, config.intermediate_size)
        self.outer = nn.Linear(config.intermediate_size, size)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rate = self.dropout if self.training else 0.0
        normed = self.attention_norm(states)
        query, key, value = (
            layer(normed).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        states = states + functional.dropout(self.output(read.transpose(1, 2).flatten(2)), rate)
        inner = functional.dropout(functional.relu(self.inner(self.feed_forward_norm(states))), rate)
        return states + functional.dropout(self.outer(inner), rate)


class SASRecBackbone(nn.Module):
    """The blocks over embeddings `(B, T, d)`, with learned positions before and a norm after them."""

    def __init__(self, config: SASRecConfig):
        super().__init__()
        self.dropout = config.dropout
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(SASRecBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        length = inputs_embeds.shape[1]
        states = inputs_embeds * inputs_embeds.shape[-1] ** 0.5 + self.positions(position_ids)
        states = functional.dropout(states, self.dropout, self.training)
        here = torch.ones(length, length, dtype=torch.bool, device=states.device)
        # Each position sees itself, so that padding on the left has something to see and gives no NaN.
        mask = (attention_mask.bool()[:, None, None] & here.tril()) | torch.eye(length, device=states.device).bool()
        kept = [states]
        for layer in self.layers:
            states = layer(states, mask)
            kept.append(states)
        states = kept[-1] = self.norm(states)
        return BaseModelOutput(last_hidden_state=states, hidden_states=tuple(kept) if output_hidden_states else None)


class SASRecModel(ItemModel):
    """
    SASRec (Kang and McAuley, 2018, Self-Attentive Sequential Recommendation), trained by cross-entropy over all items.

    The paper trains by binary cross-entropy with one sampled negative; cross-entropy over all items is known to be the stronger
    form of the same network, and is the task loss of every other model here. Positions are counted from the first item of the
    history that is read.

    Args:
        config ([`SASRecConfig`]): the configuration.
    """

    config_class = SASRecConfig
    config: SASRecConfig

    def __init__(self, config: SASRecConfig):
        super().__init__(config)
        self.item_embeddings = ItemEmbedding(config.num_items, config.hidden_size)
        self.backbone = SASRecBackbone(config)
        self.head = nn.Linear(config.hidden_size, config.num_items, bias=False)
        self.post_init()

    def max_length(self) -> int:
        return self.config.max_position_embeddings

    def run_backbone(self, **inputs: Any) -> BaseModelOutput:
        names = ("inputs_embeds", "attention_mask", "position_ids", "output_hidden_states")
        return self.backbone(**{name: inputs[name] for name in names})


AutoConfig.register(SASRecConfig.model_type, SASRecConfig)
AutoModel.register(SASRecConfig, SASRecModel)
