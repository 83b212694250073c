"""Generation whose batch is filled up with new prompts as rows end, so that it stays full as long as there are any."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from ..models import base_model, is_encoder_decoder
from .draws import TokenDraws
from .padding import pad_prompts


PART = 8  # a batch takes in new prompts, or leaves ended rows out, once an eighth of it has ended
ROOM = 64  # columns that are made at a time, at least


class _Window(DynamicLayer):
    """
    Keys and values of a layer in room that is larger than they are: a new column is written beside the others, which are
    not copied. Columns from `start` to `end` are in use; the rows of a batch end at the same column.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: int):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.start, self.end = 0, keys.shape[-2]
        # Zeros, because a column that a mask hides is still multiplied, by 0.
        self._room = [states.new_zeros(rows, *states.shape[1:]) for states in (keys, values)]
        self._show()

    def _show(self) -> None:
        self.keys, self.values = (room[..., self.start : self.end, :] for room in self._room)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        start, self.end = self.end, self.end + key_states.shape[-2]
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[..., start : self.end, :] = states
        self._show()
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.end - self.start

    def leave(self, columns: int) -> None:
        """Leaves the first columns out."""
        self.start += columns
        self._show()

    def make_room(self, columns: int, rows: torch.Tensor | None = None) -> None:
        """Moves what is in use, of some rows or all, to the start of room with as many more columns."""
        length = self.end - self.start
        for place, states in enumerate((self.keys, self.values)):
            count = len(states) if rows is None else len(rows)
            room = states.new_empty(count, *states.shape[1:-2], length + columns, states.shape[-1])
            room[..., :length, :] = states if rows is None else states[rows.to(states.device)]
            self._room[place] = room
        self.start, self.end = 0, length
        self._show()

    def put(self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Puts other states in the place of some rows, up to the column that all end at."""
        for room, states in zip(self._room, (keys, values), strict=True):
            room[rows.to(room.device), ..., self.end - states.shape[-2] : self.end, :] = states


class JoinedRows:
    """
    A batch that rows join and leave while it is generated.

    The states of a prompt that joins are computed with others that join, and put beside the states of the rows that are
    under way, on the left of the column that all go on from.

    Args:
        model (`nn.Module`): a model that [`can_join`] is true of, in eval mode.
        prompts (`Sequence[Sequence[int]]`): token ids, longest first.
        limits (`Sequence[int]`): largest number of new tokens of each, at least 1.
        ends (`Sequence[int]`): tokens that end a row.
        pad (`int`): token that pads.
        slots (`int`): rows at a time.
        seeds (`Sequence[int]`, *optional*): of each prompt, where tokens are drawn; greedy if left out.
        temperature (`float`, *optional*): of the draws.
    """

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        ends: Sequence[int],
        pad: int,
        slots: int,
        seeds: Sequence[int] | None = None,
        temperature: float | None = None,
    ):
        self.model, self.prompts, self.limits, self.ends, self.pad = model, prompts, limits, frozenset(ends), pad
        self._forward = inspect.signature(base_model(model).forward).parameters
        self._seeds, self._temperature = seeds, temperature
        self._slots = min(slots, len(prompts))
        # Prompts are read a few at a time, which are of like length: the longest of a whole batch would pad all of it.
        self._group = max(1, self._slots // PART)
        self._next = 0  # prompt
        self._prompt: list[int | None] = []  # of each row
        self._length: list[int] = []  # columns that each row uses
        self.done: list[list[int]] = [[] for _ in prompts]
        self._ended: Callable[[int], Any] = lambda prompt: None
        self._draws: TokenDraws | None = None

    def run(self, ended: Callable[[int], Any]) -> list[list[int]] | None:
        """
        Generates.

        Args:
            ended (`Callable`): is told of each prompt whose completion has ended.

        Returns:
            `list[list[int]]`: the new tokens of each prompt, or `None` if the model's states are not of the kind that
            can be joined.
        """
        self._ended = ended
        if not self._begin():
            return None
        while True:
            live = [row for row, prompt in enumerate(self._prompt) if prompt is not None]
            free = len(self._prompt) - len(live)
            if free >= self._group or not live:
                if self._next < len(self.prompts):
                    self._join()
                    continue  # it may have ended with its first token
                if not live:
                    return self.done
                self._shrink(live)
            self._step()

    # ---- Rows that come and go ----

    def _begin(self) -> bool:
        chosen = range(self._group)
        cache, mask, logits = self._read(chosen)
        plain = type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)
        if not plain or any(len(layer.keys) != len(chosen) or layer.keys.ndim != 4 for layer in cache.layers):
            return False
        self._device, slots = mask.device, self._slots
        self._cache = copy.copy(cache)
        self._cache.layers = [_Window(layer.keys, layer.values, slots) for layer in cache.layers]
        self._mask = mask.new_zeros(slots, mask.shape[1])
        self._position, self._token = mask.new_zeros(slots), mask.new_zeros(slots)
        self._prompt, self._length = [None] * slots, [0] * slots
        if self._temperature is not None:
            self._draws = TokenDraws([0] * slots, self._temperature, logits.device)
        self._enter(list(chosen), chosen, cache, mask, logits)
        return True

    def _join(self) -> None:
        rows = [row for row, prompt in enumerate(self._prompt) if prompt is None]
        chosen = range(self._next, min(self._next + min(len(rows), self._group), len(self.prompts)))
        self._enter(rows[: len(chosen)], chosen, *self._read(chosen))

    def _read(self, chosen: range) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """States, mask and next logits of some prompts."""
        inputs = pad_prompts([self.prompts[i] for i in chosen], self.pad, left=True)
        inputs = {name: tensor.to(self.model.device) for name, tensor in inputs.items()}
        mask = inputs["attention_mask"]
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        if "logits_to_keep" in self._forward:
            inputs["logits_to_keep"] = 1
        out = self.model(**inputs, use_cache=True)
        # The second is its name in older versions of transformers.
        self._name = "cache" if "cache" in out.keys() else "past_key_values"  # noqa: SIM118 (a mapping of its own kind)
        return out[self._name], mask, out.logits[:, -1]

    def _enter(self, rows: list[int], chosen: range, cache: Any, mask: torch.Tensor, logits: torch.Tensor) -> None:
        place, end = torch.tensor(rows, device=self._device), self._cache.layers[0].end
        for layer, new in zip(self._cache.layers, cache.layers, strict=True):
            layer.put(place, new.keys, new.values)
        # Prompts come longest first, so what joins is not longer than what is there.
        self._mask[place] = 0
        self._mask[place, end - mask.shape[1] : end] = mask
        for row, prompt in zip(rows, chosen, strict=True):
            self._prompt[row], self._length[row] = prompt, len(self.prompts[prompt])
        self._next = chosen.stop
        if self._draws is not None:
            self._draws.start(rows, [self._seeds[i] for i in chosen])
        self._position[place] = torch.tensor([len(self.prompts[i]) for i in chosen], device=self._device)
        self._write(rows, logits)

    def _shrink(self, live: list[int]) -> None:
        rows = torch.tensor(live, device=self._device)
        self._move(rows)
        self._token, self._position = self._token[rows], self._position[rows]
        self._prompt = [self._prompt[row] for row in live]
        self._length = [self._length[row] for row in live]
        if self._draws is not None:
            self._draws.keep(live)

    # ---- A step ----

    def _step(self) -> None:
        length = self._cache.get_seq_length()
        longest = max(used for used, prompt in zip(self._length, self._prompt, strict=True) if prompt is not None)
        for layer in self._cache.layers:
            layer.leave(length - longest)
        if self._cache.layers[0].end == self._mask.shape[1]:
            self._move()
        start, end = self._cache.layers[0].start, self._cache.layers[0].end
        self._mask[:, end] = 1  # also of a row that has ended, which has to attend to something
        out = self.model(
            input_ids=self._token[:, None],
            attention_mask=self._mask[:, start : end + 1],
            position_ids=self._position[:, None],
            use_cache=True,
            **{self._name: self._cache},
        )
        self._position += 1
        self._length = [used + 1 for used in self._length]
        self._write(range(len(self._prompt)), out.logits[:, -1])

    def _move(self, rows: torch.Tensor | None = None) -> None:
        """Makes room on the right, in place of what no row uses on the left."""
        start, end = self._cache.layers[0].start, self._cache.layers[0].end
        columns = max(ROOM, (end - start) // 4)
        for layer in self._cache.layers:
            layer.make_room(columns, rows)
        mask = self._mask[:, start:end] if rows is None else self._mask[rows, start:end]
        self._mask = torch.cat([mask, mask.new_zeros(len(mask), columns)], 1)

    def _write(self, rows: Sequence[int], logits: torch.Tensor) -> None:
        """Notes the next token of some rows, given their logits."""
        scores = logits.float() if self._draws is None else self._draws.ranked(logits, rows)
        tokens = scores.argmax(-1)
        self._token[torch.tensor(rows, device=self._device)] = tokens.to(self._device)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            prompt = self._prompt[row]
            if prompt is None:
                continue
            self.done[prompt].append(token)
            if token in self.ends or len(self.done[prompt]) >= self.limits[prompt]:
                self._prompt[row] = None
                if self._draws is not None:
                    self._draws.stop(row)
                self._ended(prompt)


def can_join(model: nn.Module) -> bool:
    """
    Whether a model is one whose rows are known to be joined exactly: decoder-only, full attention in every layer, positions
    given from outside, and nothing of its own in how it generates.
    """
    base = base_model(model)
    config = getattr(base, "config", None)
    if not isinstance(config, PretrainedConfig) or is_encoder_decoder(model):
        return False
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return False
    names = ("generate", "prepare_inputs_for_generation")
    if any(getattr(type(base), name, None) is not getattr(GenerationMixin, name) for name in names):
        return False
    if "generate" in vars(base) or "generate" in vars(model):
        return False
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    is_windowed = bool(getattr(text, "sliding_window", None)) and not getattr(text, "layer_types", None)
    takes_positions = "position_ids" in inspect.signature(base.forward).parameters
    is_stateless = not getattr(base, "_is_stateful", False)
    return takes_positions and is_stateless and not is_windowed and kinds <= {"full_attention"}
