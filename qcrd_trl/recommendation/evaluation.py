"""How good a recommender is: the rank of what each user met next, or the title that it writes."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import ConfigError
from ..inference import inference_mode, preserved_random_state
from ..models import keep_cpu_gradients
from .collator import DataCollatorForC2KD
from .outcome import RecommendationResult, hit_and_valid
from .prompt_form import RecommendationPrompt
from .ranking import ITEM_CHUNK, candidate_ranks, target_ranks
from .ranking_metrics import KS, check_ks
from .selection import selected_users, sets_of
from .states import check_linear_head, core_model, head_of, linear_head, num_layers, read_positions
from .titles import normalise_title
from .tokens import TASK_MODES, ItemRowTokenizer


if TYPE_CHECKING:
    from .leave_one_out import RecommendationData


logger = logging.getLogger(__name__)


def evaluate_model(
    model: nn.Module,
    data: "RecommendationData",
    split: str = "test",
    task_mode: str | None = None,
    mask_history: bool = False,
    candidates: bool = False,
    max_history: int | None = None,
    batch_size: int = 64,
    item_chunk: int = ITEM_CHUNK,
    ks: Sequence[int] = KS,
    users: Sequence[int] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    form: RecommendationPrompt | None = None,
    max_new_tokens: int | None = None,
    progress: bool = True,
) -> RecommendationResult:
    """
    Evaluates a recommender on what each user met next.

    In item-head mode every user's target is ranked among all items, or among the user's candidates; scores are made in
    tiles of `batch_size` users and `item_chunk` items and never kept (see [`target_ranks`]). In generative mode the model
    writes one title a user, greedily, which is compared with the target's and the candidates'.

    The model's mode (module by module), the random state and the tokenizer are as before afterwards, also after an error.

    Args:
        model (`nn.Module`): an item-head model or SASRec, or a causal language model; bare or with an adapter.
        data ([`RecommendationData`]): the data.
        split (`str`, *optional*, defaults to `"test"`): `"validation"` or `"test"`. The history of a test target includes
            the validation target.
        task_mode (`str`, *optional*): `"item_head"` or `"generative"`. If left out, what the model is.
        mask_history (`bool`, *optional*, defaults to `False`): item-head mode: whether the items that a user met before the
            target, all of them, take no part in the ranking. The target does in any case.
        candidates (`bool`, *optional*, defaults to `False`): item-head mode: whether only each user's candidates are ranked.
        max_history (`int`, *optional*): largest number of items that are read. That of the data's settings in item-head mode,
            that of `form` in generative mode, if left out.
        batch_size (`int`, *optional*, defaults to `64`): users at a time.
        item_chunk (`int`, *optional*, defaults to `8192`): items at a time. It changes no rank.
        ks (`Sequence[int]`, *optional*, defaults to `(1, 5, 10, 20)`): item-head mode: where lists end.
        users (`Sequence[int]`, *optional*): indices of the users; all if left out.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): that of the model; needed in generative mode.
        form ([`RecommendationPrompt`], *optional*): generative mode: the prompt that the model was taught.
        max_new_tokens (`int`, *optional*): generative mode: as in [`recommend_titles`].
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        [`RecommendationResult`]

    Raises:
        [`ConfigError`]: a setting cannot work, or two exclude each other.
        [`ModelError`]: the model's head is not one over these items.

    Example:

    ```python
    >>> from qcrd_trl.recommendation.evaluation import evaluate_model
    >>> result = evaluate_model(load_recommender("student"), load_data("ml-100k-data"))
    >>> result.metrics["ndcg@10"]
    ```
    """
    task_mode = task_mode_of(model) if task_mode is None else task_mode
    if task_mode not in TASK_MODES:
        raise ConfigError(f"`task_mode` must be one of {', '.join(map(repr, TASK_MODES))}, got {task_mode!r}.")
    for name, value in (("batch_size", batch_size), ("item_chunk", item_chunk), ("max_history", max_history)):
        if value is not None and value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}.")
    check_ks(ks)
    chosen = selected_users(data, split, users)
    if task_mode == "generative":
        if mask_history:
            raise ConfigError("In generative mode no item is ranked, and no history masked: leave `mask_history` out.")
        if tokenizer is None:
            raise ConfigError("Generative mode needs the model's `tokenizer`.")
        return _written(model, data, split, chosen, max_history, batch_size, tokenizer, form, max_new_tokens, progress)
    if candidates and mask_history:
        raise ConfigError("No candidate is in its user's history: leave `mask_history` out, or `candidates`.")
    ranks = _ranks(model, data, split, chosen, mask_history, candidates, max_history, batch_size, item_chunk, progress)
    misses = int((ranks == 0).sum())
    if misses:
        logger.warning(
            "The score of the target is not finite for %d of %d users: they count as misses.", misses, len(ranks)
        )
    return RecommendationResult(
        task_mode=task_mode,
        split=split,
        ranking="candidates" if candidates else "full",
        history_masked=mask_history,
        **sets_of(data, split, chosen, candidates),
        ranks=ranks,
        ks=tuple(ks),
        counts={"users": len(chosen), "items": data.num_items, "not_finite": misses},
    )


def task_mode_of(model: nn.Module) -> str:
    """`"item_head"` of a model that has items, else `"generative"`."""
    return "item_head" if getattr(core_model(model).config, "num_items", None) is not None else "generative"


@torch.no_grad()
def _ranks(
    model, data, split, users, mask_history, candidates, max_history, batch_size, item_chunk, progress
) -> np.ndarray:
    from .folder import eval_rows

    core = core_model(model)
    weight, bias = linear_head(model, data.num_items)
    rows = eval_rows(data, split, max_history)
    tokenize = ItemRowTokenizer(data.num_items, train_positions="last", name=f"{split} rows")
    features = [tokenize({"items": items}, number) for number, items in enumerate(rows.select(users)["items"])]
    order = sorted(range(len(users)), key=lambda number: -features[number]["length"])
    collate = DataCollatorForC2KD(pad_token_id=data.num_items)
    last, ranks = num_layers(core), np.empty(len(users), dtype=np.int64)
    keep_cpu_gradients(model)
    bar = tqdm(total=len(users), desc="Ranking", disable=not progress, leave=False)
    with preserved_random_state(), inference_mode(model), bar:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = collate([features[number] for number in chosen])
            batch = {name: batch[name].to(core.device) for name in ("input_ids", "attention_mask", "labels")}
            states = read_positions(model, batch, [last], with_logits=False).states[last].float()
            if start == 0:
                check_linear_head(head_of(model), states[:1], weight, bias)
            targets = [data.target(users[number], split) for number in chosen]
            if candidates:
                listed = data.candidates[split][[users[number] for number in chosen]]
                found = candidate_ranks(states, weight, listed, targets, bias)
            else:
                history = [data.history(users[number], split) for number in chosen] if mask_history else None
                found = target_ranks(states, weight, targets, bias, history, batch_size, item_chunk)
            ranks[chosen] = found.numpy()
            bar.update(len(chosen))
    return ranks


def _written(
    model, data, split, users, max_history, batch_size, tokenizer, form, max_new_tokens, progress
) -> RecommendationResult:
    from .generation import recommend_titles
    from .prompts import generative_rows

    form = form or RecommendationPrompt()
    rows = generative_rows(data, split, max_history, form=form, users=users)
    texts = recommend_titles(model, tokenizer, rows, batch_size, max_new_tokens, form.max_length, progress)
    found = [
        hit_and_valid(text, row["candidate_titles"], row["completion"]) for text, row in zip(texts, rows, strict=True)
    ]
    shared = sum(
        sum(normalise_title(title) == normalise_title(row["completion"]) for title in row["candidate_titles"]) > 1
        for row in rows
    )
    return RecommendationResult(
        task_mode="generative",
        split=split,
        ranking="candidates",
        history_masked=False,
        **sets_of(data, split, users, candidates=True),
        hits=np.array([hit for hit, _ in found]),
        valid=np.array([valid for _, valid in found]),
        texts=texts,
        counts={"users": len(users), "items": data.num_items, "targets_of_shared_title": shared},
    )
