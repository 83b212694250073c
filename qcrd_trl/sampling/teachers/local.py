"""The backend `transformers`: a model in this process, in batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import LogitsProcessor, PreTrainedTokenizerBase, TopPLogitsWarper

from ...errors import ConfigError
from ...models import base_model, is_encoder_decoder, load_model, load_tokenizer, prepare_tokenizer, reads_with_encoder
from ..generate import Completion, generate_completions
from .base import SamplingSettings, Teacher, TeacherCompletion, TeacherRequest, TeacherStats, status_of
from .tokens import request_ids, too_long


# So many batches' requests are sorted by length together: batches hold little padding, and few questions wait.
WINDOW_BATCHES = 16


@dataclass(frozen=True)
class _Row:
    """One sample that is to be drawn."""

    request: TeacherRequest
    place: int
    prompt: list[int]
    limit: int  # new tokens, by the settings and the context


class LocalTeacher(Teacher):
    """
    A causal or encoder-decoder model of transformers, full or with a PEFT adapter, quantized or not.

    What is sampled depends on the seed of the sample alone, not on the batch that it is in, up to rounding: batches of other
    shapes add in another order, which shows in half precision.

    Args:
        model (`str`):
            Hub name or folder of a model or of an adapter.
        batch_size (`int`, *optional*, defaults to `16`):
            Samples at a time.
        chat (`bool`, *optional*):
            Whether to ask through the tokenizer's chat template. If it has one, if left out.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Precision; `auto` is that of the checkpoint.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        load_in_4bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize to 4 bits by bitsandbytes (NF4).
        load_in_8bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize to 8 bits.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether the model may bring code of its own.
    """

    def __init__(
        self,
        model: str,
        batch_size: int = 16,
        chat: bool | None = None,
        dtype: str = "auto",
        device: str | None = None,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        trust_remote_code: bool = False,
    ):
        if batch_size < 1:
            raise ConfigError(f"--batch_size must be at least 1, got {batch_size}.")
        if load_in_4bit and load_in_8bit:
            raise ConfigError("Give load_in_4bit or load_in_8bit, not both.")
        self.name = model
        self.stats = TeacherStats()
        self.batch_size = batch_size
        self._dtype, self._device = dtype, device
        self._bits = 4 if load_in_4bit else 8 if load_in_8bit else None
        self._trust = {"trust_remote_code": True} if trust_remote_code else {}
        self._tokenizer = prepare_tokenizer(load_tokenizer(model, **self._trust))
        self._separate = reads_with_encoder(model, **self._trust)
        has_template = bool(getattr(self._tokenizer, "chat_template", None)) and not self._separate
        self.chat = has_template if chat is None else chat
        if self.chat and not has_template:
            raise ConfigError(
                f"{model} has no chat template, so it cannot be asked with --prompt_format chat: use plain, or a model "
                "that is made for chat."
            )
        self._model: nn.Module | None = None

    def settings(self) -> dict[str, Any]:
        return {"backend": "transformers", "model": self.name, "dtype": self._dtype, "quantization_bits": self._bits}

    def check(self) -> None:
        """Loads the model."""
        if self._model is not None:
            return
        quantization = None
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        placed = {}
        if self._bits is not None:
            quantization = _quantization(self._bits)
            placed = {"device_map": {"": device}}  # quantized weights are made where they stay
        self._model = load_model(self.name, quantization, dtype=self._dtype, **placed, **self._trust)
        if quantization is None:
            self._model.to(device)
        self._model.eval()

    def sample(
        self, requests: Iterable[TeacherRequest], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        self.check()
        requests = iter(requests)
        while True:
            window: list[_Row] = []
            while len(window) < WINDOW_BATCHES * self.batch_size and (request := next(requests, None)) is not None:
                prompt = request_ids(request.prompt, self._tokenizer, self._separate)
                limit = self._limit(len(prompt), how.max_new_tokens)
                if limit < 1:
                    yield request, too_long(request, len(prompt), self._context)
                    continue
                window += [_Row(request, place, prompt, limit) for place in range(len(request.sample_indices))]
            if not window:
                return
            for batch in _batches(window, self.batch_size):
                yield from self._answer(batch, how)

    def close(self) -> None:
        self._model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def _context(self) -> int | None:
        known = getattr(base_model(self._model).config.get_text_config(decoder=True), "max_position_embeddings", None)
        return known if isinstance(known, int) and known > 0 else None

    def _limit(self, prompt_tokens: int, max_new_tokens: int) -> int:
        context = self._context
        if context is None:
            return max_new_tokens
        if is_encoder_decoder(self._model):
            return 0 if prompt_tokens > context else min(max_new_tokens, context - 1)
        return min(max_new_tokens, context - prompt_tokens)

    def _answer(
        self, batch: Sequence[_Row], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        is_greedy = how.temperature == 0
        processors: list[LogitsProcessor] = []
        if how.top_p < 1 and not is_greedy:
            processors.append(Nucleus(how.top_p, how.temperature))
        if how.stop:
            processors.append(EndAtStop(how.stop, self._tokenizer, 1 if self._separate else None))
        completions = generate_completions(
            self._model,
            self._tokenizer,
            [row.prompt for row in batch],
            min(row.limit for row in batch),
            batch_size=len(batch),
            progress=False,
            temperature=None if is_greedy else how.temperature,
            seeds=None if is_greedy else [row.request.seeds[row.place] for row in batch],
            processors=processors,
        )
        answers: dict[str, tuple[TeacherRequest, list[TeacherCompletion]]] = {}
        for row, completion in zip(batch, completions, strict=True):
            answer = answers.setdefault(row.request.id, (row.request, []))[1]
            answer.append(self._completion(row, completion, how))
        yield from answers.values()

    def _completion(self, row: _Row, completion: Completion, how: SamplingSettings) -> TeacherCompletion:
        text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        places = [place for place in map(text.find, how.stop) if place >= 0]
        finish_reason = "stop" if places or completion.is_finished else "length"
        text = text[: min(places)] if places else text
        # The prompt's tokens are counted once for a request, as servers do.
        usage = {"prompt_tokens": len(row.prompt)} if row.place == 0 else {}
        usage["completion_tokens"] = completion.num_tokens
        self.stats.prompt_tokens += usage.get("prompt_tokens", 0)
        self.stats.completion_tokens += completion.num_tokens
        index, seed = row.request.sample_indices[row.place], row.request.seeds[row.place]
        return TeacherCompletion(index, text, finish_reason, status_of(text, finish_reason), seed=seed, usage=usage)


class Nucleus(LogitsProcessor):
    """
    Leaves the likeliest tokens whose probabilities at a temperature add up to `top_p`, and their logits as they are, so that
    the sampling that follows divides them by the temperature itself.

    Args:
        top_p (`float`): in (0, 1).
        temperature (`float`): sampling temperature.
    """

    def __init__(self, top_p: float, temperature: float):
        self._warper = TopPLogitsWarper(top_p)
        self._temperature = temperature

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        left_out = self._warper(input_ids, scores.float() / self._temperature) == -torch.inf
        return scores.masked_fill(left_out, -torch.inf)


class EndAtStop(LogitsProcessor):
    """
    Makes EOS the only next token of a row that has written a stop text, so that it ends and its batch shrinks. Where exactly
    the text is cut is decided afterwards.

    Args:
        stop (`Sequence[str]`): the texts.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the model's tokenizer.
        start (`int`, *optional*): where new tokens start; the width of what it sees first if left out. One batch only.
    """

    def __init__(self, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase, start: int | None = None):
        self._stop, self._tokenizer, self._start = tuple(stop), tokenizer, start
        # A token is at least a byte, and one that ends with a stop text's first byte may begin the tail.
        self._tail = max(len(text.encode()) for text in stop) + 1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._start is None:
            self._start = input_ids.shape[1]
        new = input_ids[:, max(self._start, input_ids.shape[1] - self._tail) :]
        if not new.shape[1]:
            return scores
        texts = self._tokenizer.batch_decode(new, skip_special_tokens=True)
        ended = [row for row, text in enumerate(texts) if any(stop in text for stop in self._stop)]
        if ended:
            scores = scores.clone()
            scores[ended] = -torch.inf
            scores[ended, self._tokenizer.eos_token_id] = 0.0
        return scores


def _batches(window: Sequence[_Row], batch_size: int) -> Iterator[list[_Row]]:
    """
    Batches of like lengths. Rows whose context ends before `max_new_tokens` are only together with equally long ones, and
    those that have room enough with others that do, so that no row's limit depends on another's length.
    """
    rows = sorted(window, key=lambda row: -len(row.prompt))  # stable: the order of the requests among equals
    batch: list[_Row] = []
    for row in rows:
        if batch and (len(batch) == batch_size or row.limit != batch[0].limit):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _quantization(bits: int) -> Any:
    from transformers import BitsAndBytesConfig

    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
