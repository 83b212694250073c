"""Training rows to token ids, once and up front, with every row checked and everything left out counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import DataError
from .draws import draw
from .pairs import PairTokenizer
from .prompts import StudentFormat, completion_ids, has_lone_surrogate, is_conversational, prompt_ids


RATIONALE_SOURCES = ("selected", "raw")

# What a discriminator with an encoder of its own reads.
DISCRIMINATOR_COLUMNS = ("discriminator_prompt_ids", "discriminator_positive_ids", "discriminator_negative_ids")

# What a row may lose, in the words of the report.
COUNTERS = {
    "no_prompt": "rows dropped: prompt null, empty or not writable as UTF-8",
    "nothing_to_learn": "rows dropped: neither a label nor a rationale",
    "empty": "rationales dropped: null, empty or without a token",
    "not_utf8": "texts dropped: lone surrogates, not writable as UTF-8",
    "duplicate": "rationales dropped: equal to another of the row up to white space",
    "equal_to_positive": "negatives dropped: equal to a positive up to white space",
    "truncated": "rationales cut at max_length",
}


def fold_white_space(text: str) -> str:
    """The text with runs of white space as one space: the identity of a rationale."""
    return " ".join(text.split())


@dataclass
class RowTokenizer:
    """
    Callable for [`datasets.Dataset.map`] (with indices) that turns a row into token ids.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The student's tokenizer.
        form ([`StudentFormat`]):
            The student's format.
        rationales (`bool`, *optional*, defaults to `True`):
            Whether rationales are learned; `False` for label-only training, which then needs no rationale column.
        source (`str`, *optional*, defaults to `"selected"`):
            `"selected"`: the positives and negatives of the row. `"raw"`: one unfiltered sample as the only positive,
            that of the column `raw_rationale`, or else one drawn from all rationales of the row.
        seed (`int`, *optional*, defaults to `0`):
            Seed of that draw, which depends on the row's index alone.
        pairs ([`~data.pairs.PairTokenizer`], *optional*):
            That of a discriminator with an encoder of its own. It reads rationales as the row has them, uncut.

    Returns:
        `dict`: `question_index`, `predict_prompt_ids`, `label_ids` (empty: no label task), `explain_prompt_ids`,
        `positive_ids` and `negative_ids` (a list of ids for each rationale), `length` (tokens of the longest row),
        `id`, with `pairs` also `discriminator_prompt_ids`, `discriminator_positive_ids` and `discriminator_negative_ids`
        (without special tokens, one list of ids for each of `positive_ids` and `negative_ids`), and a counter `n_...` for each of `COUNTERS`.

    Raises:
        [`DataError`]: naming the row and the column, for a value of the wrong type or a prompt too long.
    """

    tokenizer: PreTrainedTokenizerBase
    form: StudentFormat
    rationales: bool = True
    source: str = "selected"
    seed: int = 0
    pairs: PairTokenizer | None = None

    def __call__(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        counts = dict.fromkeys(COUNTERS, 0)
        prompt = self._prompt(row.get("prompt"), index)
        label = self._text(row.get("label"), index, "label", counts)
        out = {
            "question_index": index,
            "id": str(index if row.get("id") is None else row["id"]),
            "predict_prompt_ids": [],
            "label_ids": [],
            "explain_prompt_ids": [],
            "positive_ids": [],
            "negative_ids": [],
        }
        if self.pairs is not None:
            out |= {name: [] for name in DISCRIMINATOR_COLUMNS}
        if prompt is None:
            counts["no_prompt"] += 1
        else:
            out["predict_prompt_ids"] = prompt_ids(prompt, self.form.predict_prefix, self.tokenizer, self.form)
            out["label_ids"] = self._label_ids(prompt, label, out["predict_prompt_ids"], index)
            if self.rationales:
                self._add_rationales(out, prompt, row, index, counts)
            if not (out["label_ids"] or out["positive_ids"] or out["negative_ids"]):
                counts["nothing_to_learn"] += 1
        out["length"] = self._length(out)
        return {**out, **{f"n_{name}": value for name, value in counts.items()}}

    def _add_rationales(self, out, prompt, row, index, counts) -> None:
        positives = self._texts(row.get("positive_rationales"), index, "positive_rationales", counts)
        negatives = self._texts(row.get("negative_rationales"), index, "negative_rationales", counts)
        if self.source == "raw":
            positives, negatives = self._raw(row, positives, negatives, index, counts), []
        if self.pairs is not None:
            out["discriminator_prompt_ids"] = self.pairs.question_ids(prompt)
        prefix = self.form.explain_prefix
        out["explain_prompt_ids"] = start = prompt_ids(prompt, prefix, self.tokenizer, self.form)
        room = self._room(start, index, "prompt") if positives or negatives else None
        known = set()
        for name, texts in (("positive_ids", positives), ("negative_ids", negatives)):
            seen = set()
            for text in texts:
                key = fold_white_space(text)
                if name == "negative_ids" and key in known:
                    counts["equal_to_positive"] += 1
                    continue
                if key in seen:
                    counts["duplicate"] += 1
                    continue
                ids = completion_ids(prompt, prefix, text, self.tokenizer, self.form)
                if not ids:
                    counts["empty"] += 1
                    continue
                seen.add(key)
                if room is not None and len(ids) > room:
                    ids = ids[:room]
                    counts["truncated"] += 1
                out[name].append(ids)
                if self.pairs is not None:
                    out[f"discriminator_{name}"].append(self.pairs.ids(text))
            known |= seen

    def _raw(self, row, positives, negatives, index, counts) -> list[str]:
        if row.get("raw_rationale") is not None:
            return self._texts([row["raw_rationale"]], index, "raw_rationale", counts)
        everything = [*positives, *negatives]
        return [everything[draw(len(everything), self.seed, index)]] if everything else []

    def _prompt(self, prompt, index):
        if prompt is None:
            return None
        if is_conversational(prompt):
            for message in prompt:
                if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                    raise DataError(
                        f"Row {index}: column 'prompt' must be a text or a list of messages with a 'role' and a text "
                        f"as 'content', got the message {message!r:.80}."
                    )
            if prompt and not any(message.get("role") == "user" for message in prompt):
                raise DataError(
                    f"Row {index}: column 'prompt' has no message of role 'user', which the task's prefix goes before."
                )
            texts = [message["content"] for message in prompt]
        elif isinstance(prompt, str):
            texts = [prompt]
        else:
            raise _wrong_type(index, "prompt", "a text or a list of messages", prompt)
        usable = any(text.strip() for text in texts) and not any(map(has_lone_surrogate, texts))
        return prompt if usable else None

    def _text(self, text, index, column, counts) -> str | None:
        if text is None:
            return None
        if not isinstance(text, str):
            raise _wrong_type(index, column, "a text or null", text)
        if has_lone_surrogate(text):
            counts["not_utf8"] += 1
            return None
        return text if text.strip() else None

    def _texts(self, texts, index, column, counts) -> list[str]:
        if texts is None:
            return []
        if isinstance(texts, (str, bytes)) or not isinstance(texts, (list, tuple)):
            raise _wrong_type(index, column, "a list of texts", texts)
        kept = []
        for text in texts:
            before = counts["not_utf8"]
            usable = self._text(text, index, column, counts)
            if usable is not None:
                kept.append(usable)
            elif counts["not_utf8"] == before:
                counts["empty"] += 1
        return kept

    def _label_ids(self, prompt, label, start, index) -> list[int]:
        if label is None:
            return []
        ids = completion_ids(prompt, self.form.predict_prefix, label, self.tokenizer, self.form)
        room = self._room(start, index, "prompt")
        if room is not None and len(ids) > room:
            # A label that is cut teaches a wrong answer, so it is never cut.
            raise DataError(
                f"Row {index}: the label has {len(ids)} tokens and its prompt {len(start)}, which do not fit in "
                f"max_length={self.form.max_length}. Raise `max_length`, or filter such rows out."
            )
        return ids

    def _room(self, start, index, column) -> int | None:
        """Tokens left for a completion, at least one."""
        limit = self.form.max_length
        if limit is None:
            return None
        used = 0 if self.form.is_encoder_decoder else len(start)
        if len(start) > limit or used >= limit:
            raise DataError(
                f"Row {index}: column '{column}' has {len(start)} tokens with its prefix, which leaves no room for a "
                f"completion in max_length={limit}. Raise `max_length`, or filter such rows out."
            )
        return limit - used

    def _length(self, out) -> int:
        longest = [len(out["predict_prompt_ids"]) + len(out["label_ids"])]
        longest += [len(out["explain_prompt_ids"]) + len(ids) for ids in out["positive_ids"] + out["negative_ids"]]
        return max(longest)


def _wrong_type(index: int, column: str, expected: str, got: Any) -> DataError:
    return DataError(
        f"Row {index}: column '{column}' must hold {expected}, got {type(got).__name__} {got!r:.60}. Convert the "
        "column before training."
    )
