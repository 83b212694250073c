"""
Sequential recommendation by a head over items: any decoder-only backbone of transformers, with embeddings of items in the place
of its token embeddings.
"""

import copy
import inspect
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from ..errors import ConfigError, DataError, ModelError


IGNORED = -100


class ItemEmbedding(nn.Embedding):
    """
    Embeddings of the items 0 to N - 1. The id N pads: its embedding is zero, it has no weights, and passes no gradient on.
    """

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        padding = ids == self.num_embeddings
        return super().forward(ids.masked_fill(padding, 0)).masked_fill(padding.unsqueeze(-1), 0.0)


class ItemModelConfig(PretrainedConfig):
    """
    What every model with a head over items knows.

    Args:
        num_items (`int`, *optional*, defaults to `1`): number of items N. The id N pads.
        tie_items (`bool`, *optional*, defaults to `False`): whether the head's weights are the embeddings of the items.
        kwargs: further arguments of [`~transformers.PretrainedConfig`].

    Raises:
        [`ConfigError`]: if there is no item.
    """

    def __init__(self, num_items: int = 1, tie_items: bool = False, **kwargs: Any):
        if num_items < 1:
            raise ConfigError(f"`num_items` must be at least 1, got {num_items}.")
        self.num_items = num_items
        self.tie_items = tie_items
        super().__init__(**{**kwargs, "tie_word_embeddings": tie_items})

    @property
    def pad_item_id(self) -> int:
        """The id that pads."""
        return self.num_items


class ItemHeadConfig(ItemModelConfig):
    """
    Configuration of an [`ItemHeadModel`].

    Args:
        backbone_config ([`~transformers.PretrainedConfig`] or `dict`, *optional*, defaults to that of a Llama):
            Configuration of the backbone; as a dict with its `model_type`. Its vocabulary is dropped (`vocab_size` is 1 here):
            no token is ever read.
        num_items (`int`, *optional*, defaults to `1`): number of items N. The id N pads.
        item_size (`int`, *optional*, defaults to the backbone's width):
            Width of the embeddings of the items. Where it differs from the backbone's a linear map leads from one to the other.
        tie_items (`bool`, *optional*, defaults to `False`): whether the head's weights are the embeddings of the items.
        kwargs: further arguments of [`~transformers.PretrainedConfig`].

    Raises:
        [`ConfigError`]: if the backbone is not decoder-only, or the items are tied at another width than the backbone's.
    """

    model_type = "qcrd_item_head"
    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012 - as transformers declares it

    def __init__(
        self,
        backbone_config: PretrainedConfig | dict | None = None,
        num_items: int = 1,
        item_size: int | None = None,
        tie_items: bool = False,
        **kwargs: Any,
    ):
        self.backbone_config = without_tokens(read_backbone_config(backbone_config or {"model_type": "llama"}))
        width = self.backbone_config.hidden_size
        self.item_size = width if item_size is None else item_size
        if self.item_size < 1:
            raise ConfigError(f"`item_size` must be at least 1, got {item_size}.")
        if tie_items and self.item_size != width:
            raise ConfigError(
                f"`tie_items` needs embeddings of the backbone's width: got item_size={item_size} and a width of {width}. "
                "Leave `item_size` out, or set `tie_items=False`."
            )
        kwargs.setdefault("initializer_range", getattr(self.backbone_config, "initializer_range", 0.02))
        super().__init__(num_items=num_items, tie_items=tie_items, **kwargs)

    @property
    def hidden_size(self) -> int:
        """Width of the backbone's states."""
        return self.backbone_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """Number of the backbone's layers."""
        return self.backbone_config.num_hidden_layers


def read_backbone_config(config: PretrainedConfig | dict) -> PretrainedConfig:
    """
    A copy of a backbone's configuration, of a dict by its `model_type`.

    Raises:
        [`ConfigError`]: if there is no such type, a setting is refused, or the model is not a decoder-only one of texts.
    """
    if isinstance(config, dict):
        settings = dict(config)
        kind = settings.pop("model_type", None)
        try:
            config = AutoConfig.for_model(str(kind), **copy.deepcopy(settings))
        except (ValueError, TypeError, StrictDataclassError) as err:
            said = " ".join(str(err).split())[:300].rstrip(".")
            raise ConfigError(
                f"No backbone of model_type={kind!r} could be configured: {said}. Expected a dict such as "
                '{"model_type": "llama", "hidden_size": 64, ...}.'
            ) from err
    else:
        config = copy.deepcopy(config)
    sees_ahead = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if sees_ahead or getattr(config, "is_encoder_decoder", False) or not hasattr(config, "num_hidden_layers"):
        raise ConfigError(
            f"The backbone must be a decoder-only language model, got model_type={config.model_type!r}. For a model of several "
            "modalities take that of its text part."
        )
    return config


def without_tokens(config: PretrainedConfig) -> PretrainedConfig:
    """Makes a backbone's configuration one that has no vocabulary and names no place, in place."""
    config.vocab_size = 1
    config.name_or_path = ""  # a part's is written into config.json, and may be a path
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    config.use_cache = False
    config.tie_word_embeddings = False
    return config


class ItemModel(PreTrainedModel):
    """
    What the models with a head over items have in common: `item_embeddings`, a `backbone` that reads embeddings, and `head`.
    """

    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _tied_weights_keys = {"head.weight": "item_embeddings.weight"}  # noqa: RUF012 - as transformers declares it

    @property
    def item_modules(self) -> list[str]:
        """Names of the modules that are trained whole beside an adapter, and never quantized."""
        names = ("item_embeddings", "item_projection", "head")
        return [name for name in names if hasattr(self, name)]

    def get_input_embeddings(self) -> nn.Module:
        return self.item_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.item_embeddings = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value

    def embed_items(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The backbone's inputs `(B, T, d)` of items `(B, T)`."""
        return self.item_embeddings(input_ids)

    def max_length(self) -> int | None:
        """The longest sequence that the backbone's positions are made for."""
        raise NotImplementedError

    def run_backbone(self, **inputs: Any) -> Any:
        """The backbone's output, with `last_hidden_state` and, on demand, `hidden_states`."""
        return self.backbone(**inputs)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        positions: tuple[torch.Tensor, torch.Tensor] | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """
        Scores of every item as the next one.

        Args:
            input_ids (`torch.Tensor` of shape `(B, T)`): items 0 to N - 1, padded by N on either side.
            attention_mask (`torch.Tensor` of shape `(B, T)`, *optional*): 1 at items, 0 at padding; where the ids are not N if
                left out.
            labels (`torch.Tensor` of shape `(B, T)`, *optional*):
                Items to be predicted, -100 elsewhere, not shifted: position t predicts label t + 1.
            output_hidden_states (`bool`, *optional*): whether to give the states of every layer.
            positions (two `torch.Tensor` of shape `(P,)`, *optional*):
                Rows and columns that are scored; all if left out.
            num_items_in_batch (`int`, *optional*):
                What the sum of the losses is divided by, as [`~transformers.Trainer`] passes it; the number of labels if left
                out.
            kwargs: passed to the backbone.

        Returns:
            [`~transformers.modeling_outputs.CausalLMOutput`]: `logits` of shape `(B, T, N)`, or `(P, N)` with `positions`; `loss`
            if there are labels: the mean cross-entropy in nats; `hidden_states` on demand: L + 1 of shape `(B, T, d)`, the last
            after the final norm.

        Raises:
            [`DataError`]: if an id is no item, or a sequence is too long.
        """
        self._check(input_ids, labels)
        if attention_mask is None:
            attention_mask = (input_ids != self.config.num_items).long()
        # Counted from a row's first item: padding on the left moves nothing.
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        read = self.run_backbone(
            inputs_embeds=self.embed_items(input_ids),
            attention_mask=attention_mask,
            position_ids=position_ids,
            output_hidden_states=bool(output_hidden_states),
            **kwargs,
        )
        states = read.last_hidden_state
        logits = self.score(states if positions is None else states[tuple(positions)])
        loss = None
        if labels is not None:
            row, column = torch.nonzero(labels[:, 1:] != IGNORED, as_tuple=True)
            scores = logits[row, column] if positions is None else self.score(states[row, column])
            total = functional.cross_entropy(scores.float(), labels[row, column + 1], reduction="sum")
            loss = total / (max(row.numel(), 1) if num_items_in_batch is None else num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=read.hidden_states)

    def score(self, states: torch.Tensor) -> torch.Tensor:
        """Scores `(..., N)` of all items by states `(..., d)`."""
        return self.head(states.to(self.head.weight.dtype))

    def _check(self, input_ids: torch.Tensor, labels: torch.Tensor | None) -> None:
        count = self.config.num_items
        for name, ids, last in (("input_ids", input_ids, count), ("labels", labels, count - 1)):
            wrong = None if ids is None else ids[(ids < 0) | (ids > last)]
            if wrong is not None and name == "labels":
                wrong = wrong[wrong != IGNORED]
            if wrong is not None and wrong.numel():
                also = f", and {count} pads" if name == "input_ids" else ", and -100 is no label"
                raise DataError(
                    f"`{name}` holds {wrong[0].item()}, but the model knows the items 0 to {count - 1}{also}. Is it of this data "
                    "set?"
                )
        limit = self.max_length()
        if limit is not None and input_ids.shape[1] > limit:
            raise DataError(
                f"A sequence has {input_ids.shape[1]} items, but the model's positions end at {limit}. Lower the maximum length of "
                "the history."
            )


class ItemHeadModel(ItemModel):
    """
    A decoder-only backbone that reads items and scores every item as the next one.

    The embedding of an item takes the place of a token's embedding (`inputs_embeds`): the backbone's own token embeddings are
    dropped. The head is linear, without a bias.

    Args:
        config ([`ItemHeadConfig`]): the configuration.
        backbone ([`~transformers.PreTrainedModel`], *optional*):
            A loaded backbone to be taken over; its token embeddings are dropped from it. One with random weights by
            `config.backbone_config` if left out.

    Example:

        >>> model = ItemHeadModel(ItemHeadConfig({"model_type": "llama", "hidden_size": 64}, num_items=1682))
        >>> model(torch.tensor([[3, 7, 1682]])).logits.shape  # 1682 pads
        torch.Size([1, 3, 1682])
    """

    config_class = ItemHeadConfig
    config: ItemHeadConfig
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: ItemHeadConfig, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        if backbone is None:
            backbone = AutoModel.from_config(config.backbone_config)
        config.backbone_config = without_tokens(backbone.config)
        parameters = inspect.signature(backbone.forward).parameters
        if "inputs_embeds" not in parameters:
            raise ModelError(f"{type(backbone).__name__} reads no `inputs_embeds`: it cannot read items.")
        self._reads = {name for name in ("position_ids", "use_cache") if name in parameters}
        backbone.set_input_embeddings(nn.Identity())
        width = config.hidden_size
        self.item_embeddings = ItemEmbedding(config.num_items, config.item_size)
        if config.item_size != width:
            self.item_projection = nn.Linear(config.item_size, width, bias=False)
        self.backbone = backbone
        self.head = nn.Linear(width, config.num_items, bias=False)
        self.post_init()

    def embed_items(self, input_ids: torch.Tensor) -> torch.Tensor:
        embedded = self.item_embeddings(input_ids)
        if self.config.item_size != self.config.hidden_size:
            embedded = self.item_projection(embedded)
        return embedded.to(self.backbone.dtype)

    def max_length(self) -> int | None:
        return getattr(self.config.backbone_config, "max_position_embeddings", None)

    def run_backbone(self, **inputs: Any) -> Any:
        inputs["use_cache"] = False  # a history is read once
        for name in {"position_ids", "use_cache"} - self._reads:
            del inputs[name]
        return self.backbone(**inputs)

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> None:
        """
        As [`~transformers.PreTrainedModel.save_pretrained`].

        Raises:
            [`ModelError`]: if the backbone alone was quantized, so that the whole could not be loaded again.
        """
        if getattr(self.backbone, "is_quantized", False) and not hasattr(self.config, "quantization_config"):
            raise ModelError("A backbone that was quantized while it was loaded is not saved: save the adapter on it.")
        super().save_pretrained(save_directory, **kwargs)


AutoConfig.register(ItemHeadConfig.model_type, ItemHeadConfig)
AutoModel.register(ItemHeadConfig, ItemHeadModel)
