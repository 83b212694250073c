"""What the embeddings of items begin with."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..errors import ConfigError
from .item_model import ItemHeadModel


logger = logging.getLogger(__name__)

_CHUNK = 8192


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws from a seed within the block, and leaves the global random state as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def token_scale(embed: nn.Module, vocab_size: int) -> float:
    """Root mean square of the entries of a language model's token embeddings, as its layers read them."""
    device = next(embed.parameters()).device
    total, count = 0.0, 0
    for start in range(0, vocab_size, _CHUNK):
        rows = embed(torch.arange(start, min(start + _CHUNK, vocab_size), device=device)).double()
        total += rows.square().sum().item()
        count += rows.numel()
    return (total / count) ** 0.5


@torch.no_grad()
def scale_items(model: ItemHeadModel, scale: float) -> None:
    """
    Draws embeddings of the items anew, so that the backbone reads entries of the root mean square `scale`: that of the token
    embeddings it was trained with. A linear map between differing widths keeps the scale.
    """
    if hasattr(model, "item_projection"):
        nn.init.normal_(model.item_projection.weight, std=model.config.item_size**-0.5)
    nn.init.normal_(model.item_embeddings.weight, std=scale)


@torch.no_grad()
def set_titles(
    model: ItemHeadModel,
    embed: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    titles: Sequence[str | None],
) -> None:
    """
    Lets the embedding of each item with a title begin as the mean of the language model's own embeddings of the title's tokens
    (without special tokens), and the others at random. All means are multiplied by one factor, so that their root mean square
    is that of the token embeddings: a mean is shorter than what it is the mean of.

    Args:
        model ([`ItemHeadModel`]): its embeddings of items are set, in place.
        embed (`nn.Module`): the language model's token embeddings, as its layers read them.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the language model's tokenizer.
        titles (`Sequence`): titles of all items by index; `None` or blank where there is none.

    Raises:
        [`ConfigError`]: if the titles are not one an item, none has a token, or the widths differ.
    """
    count = model.config.num_items
    if len(titles) != count:
        raise ConfigError(f"`titles` must be one an item: got {len(titles)} titles and {count} items.")
    if model.config.item_size != model.config.hidden_size:
        raise ConfigError("`item_init='titles'` needs embeddings of the backbone's width: leave `item_size` out.")
    weight = model.item_embeddings.weight
    device = next(embed.parameters()).device
    tokens = tokenizer([(title or "").strip() for title in titles], add_special_tokens=False).input_ids
    found = [item for item, ids in enumerate(tokens) if ids]
    means = [embed(torch.tensor(tokens[item], device=device)).float().mean(0) for item in found]
    if not found:
        raise ConfigError("`item_init='titles'` needs titles: none of the items has one. Use item_init='random'.")
    means = torch.stack(means)
    scale = token_scale(embed, embed.num_embeddings)
    means *= scale / means.square().mean().sqrt()
    weight[torch.tensor(found, device=weight.device)] = means.to(weight)
    if len(found) < count:
        logger.warning("%d of %d items have no title: their embeddings begin at random.", count - len(found), count)
