"""A question and a rationale as one input of an encoder: special tokens, what is cut, which tokens are the rationale's."""

import itertools
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ..errors import ConfigError, ModelError
from .prompts import Prompt, is_conversational


class PairTokenizer:
    """
    Token ids of (question, rationale) pairs for a discriminator that reads texts.

    The question comes first and the rationale second, with the special tokens of the tokenizer's own form for pairs. A
    pair longer than `max_length` loses tokens of its question first, from the beginning, because what is asked stands at
    its end; once no question is left, the rationale is cut at its end.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The encoder's tokenizer, a fast one.
        max_length (`int`):
            Largest number of tokens of a pair, special tokens included.

    Attributes:
        pad_token_id (`int`): what `input_ids` are filled with.

    Raises:
        [`ModelError`]: if the tokenizer is a slow one, or writes pairs in another form than this.
        [`ConfigError`]: if `max_length` leaves no room for a rationale.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int):
        if not tokenizer.is_fast:
            raise ModelError(
                f"{type(tokenizer).__name__} does not tell which of a pair's tokens are the rationale's. Use an encoder with "
                "a fast tokenizer (tokenizer.json)."
            )
        self.tokenizer, self.max_length = tokenizer, max_length
        self._before, self._between, self._after, self._types = _pair_form(tokenizer)
        room = max_length - len(self._before) - len(self._between) - len(self._after)
        if room < 1:
            raise ConfigError(f"max_length={max_length} leaves no room for a rationale beside the special tokens.")
        self._room = room
        pad = tokenizer.pad_token_id
        self.pad_token_id = tokenizer.eos_token_id if pad is None else pad
        if self.pad_token_id is None:
            raise ModelError("The encoder's tokenizer has neither a pad token nor an eos token to pad with.")

    def ids(self, text: str) -> list[int]:
        """Token ids of one text, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def question_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a question: its text, or the contents of its messages, a line each."""
        return self.ids(question_text(prompt))

    def batch(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, torch.Tensor]:
        """
        Pads pairs of token ids on the right.

        Args:
            pairs (`Sequence[tuple[Sequence[int], Sequence[int]]]`): ids of the question and of the rationale, without
                special tokens, as [`~PairTokenizer.question_ids`] and [`~PairTokenizer.ids`] give them.

        Returns:
            `dict[str, torch.Tensor]`, each of shape `(pairs, length)`: `input_ids`, `attention_mask`, `rationale_mask`
            (boolean: the rationale's own tokens), and `token_type_ids` where the tokenizer has them.
        """
        joined = [self._joined(question, rationale) for question, rationale in pairs]
        width = max([len(ids) for ids, _ in joined], default=1)
        batch = {
            "input_ids": torch.full((len(joined), width), self.pad_token_id, dtype=torch.long),
            "attention_mask": torch.zeros(len(joined), width, dtype=torch.long),
            "rationale_mask": torch.zeros(len(joined), width, dtype=torch.bool),
        }
        if self._types is not None:
            batch["token_type_ids"] = torch.zeros(len(joined), width, dtype=torch.long)
        for row, (ids, start) in enumerate(joined):
            end = len(ids) - len(self._after)
            batch["input_ids"][row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            batch["attention_mask"][row, : len(ids)] = 1
            batch["rationale_mask"][row, start:end] = True
            if self._types is not None:
                kinds = _types_of(self._types, start, end, len(self._between))
                batch["token_type_ids"][row, : len(ids)] = torch.tensor(kinds, dtype=torch.long)
        return batch

    def _joined(self, question: Sequence[int], rationale: Sequence[int]) -> tuple[list[int], int]:
        """Ids of a pair that fits, and where its rationale starts."""
        rationale = list(rationale[: self._room])
        left = self._room - len(rationale)
        question = list(question[max(len(question) - left, 0) :])
        start = len(self._before) + len(question) + len(self._between)
        return [*self._before, *question, *self._between, *rationale, *self._after], start


def question_text(prompt: Prompt) -> str:
    """The text of a question: of a conversation the contents of its messages, a line each."""
    if is_conversational(prompt):
        return "\n".join(str(message["content"]) for message in prompt)
    return prompt


def _pair_form(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int], list[list[int]] | None]:
    """Special tokens before, between and after the texts of a pair, and the token types of all five parts."""
    probe = "a"
    encoded = tokenizer(probe, probe)
    owners, ids = encoded.sequence_ids(0), list(encoded["input_ids"])
    first = [place for place, owner in enumerate(owners) if owner == 0]
    second = [place for place, owner in enumerate(owners) if owner == 1]
    if not first or not second or first[-1] > second[0] or ids[first[0] : first[-1] + 1] != _bare(tokenizer, probe):
        raise ModelError(f"{type(tokenizer).__name__} does not write a pair as one text after the other.")
    cuts = [0, first[0], first[-1] + 1, second[0], second[-1] + 1, len(ids)]
    parts = list(itertools.pairwise(cuts))
    types = encoded.get("token_type_ids")
    kinds = None if types is None else [list(types[start:end]) for start, end in parts]
    before, _, between, _, after = (ids[start:end] for start, end in parts)
    return before, between, after, kinds


def _bare(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _types_of(kinds: list[list[int]], start: int, end: int, between: int) -> list[int]:
    before, first, middle, second, after = kinds
    num_question = start - between - len(before)
    return [*before, *[first[0]] * num_question, *middle, *[second[0]] * (end - start), *after]
