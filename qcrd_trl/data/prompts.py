"""How a question and a text become token ids: the two task prefixes, chat templates, the end of a completion.

Training and generation both come here, so that a student is asked exactly as it was taught.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import DataError, ModelError


FORMAT_NAME = "qcrd_format.json"

Prompt = str | list[dict[str, Any]]


def is_conversational(prompt: Any) -> bool:
    """Whether a prompt is a list of messages rather than a text."""
    return isinstance(prompt, (list, tuple))


def has_lone_surrogate(text: str) -> bool:
    """Whether a text cannot be written as UTF-8, so that no tokenizer and no file can take it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


@dataclass(frozen=True)
class StudentFormat:
    """
    The form in which a student gets its questions.

    Args:
        predict_prefix (`str`, *optional*, defaults to `"<Predict>"`):
            Plain text before a question that asks for the label (QCRD, section 3). The vocabulary is not touched.
        explain_prefix (`str`, *optional*, defaults to `"<Explain>"`):
            Plain text before a question that asks for a rationale.
        response_separator (`str`, *optional*, defaults to `"\\n"`):
            Between a standard prompt and its completion in a decoder-only student. Chat templates and encoder-decoder
            students do not use it.
        is_encoder_decoder (`bool`, *optional*, defaults to `False`):
            Whether the student reads the prompt with an encoder.
        max_length (`int`, *optional*):
            Largest number of tokens of prompt and completion together, or of each in an encoder-decoder student.
        predicts (`bool`, *optional*, defaults to `True`):
            Whether the student was taught the label task.
        explains (`bool`, *optional*, defaults to `True`):
            Whether it was taught the rationale task.
    """

    predict_prefix: str = "<Predict>"
    explain_prefix: str = "<Explain>"
    response_separator: str = "\n"
    is_encoder_decoder: bool = False
    max_length: int | None = None
    predicts: bool = True
    explains: bool = True

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Writes the format beside a student's weights, where evaluation finds it."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (Path(save_directory) / FORMAT_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike) -> "StudentFormat | None":
        """Reads the format that a trained student's folder holds, or gives `None` where there is none."""
        file = Path(path) / FORMAT_NAME
        if not file.is_file():
            return None
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as err:
            raise ModelError(f"{str(file)!r} is damaged ({err}). Remove it to use the default format.") from err


def prompt_ids(prompt: Prompt, prefix: str, tokenizer: PreTrainedTokenizerBase, form: StudentFormat) -> list[int]:
    """
    Token ids of a question under one of the two prefixes, up to where the completion starts.

    Args:
        prompt (`str` or `list[dict]`):
            The question, standard or conversational. In a conversation the prefix goes before the last user message.
        prefix (`str`):
            The task's prefix.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The student's tokenizer.
        form ([`StudentFormat`]):
            The student's format.

    Returns:
        `list[int]`: ids with at most one BOS token; with a closing EOS only where an encoder reads them.
    """
    if is_conversational(prompt):
        text = _render_chat(tokenizer, with_prefix(prompt, prefix), add_generation_prompt=True)
        # The template writes every special token itself: adding them again would double the BOS.
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    # A BOS token that the text begins with stays first: the prefix goes behind it.
    start = tokenizer.bos_token if tokenizer.bos_token and prompt.startswith(tokenizer.bos_token) else ""
    text = start + with_prefix(prompt[len(start) :].lstrip() if start else prompt, prefix)
    ids = list(tokenizer(text if form.is_encoder_decoder else text + form.response_separator)["input_ids"])
    eos, bos = tokenizer.eos_token_id, tokenizer.bos_token_id
    while not form.is_encoder_decoder and eos is not None and eos != bos and len(ids) > 1 and ids[-1] == eos:
        ids.pop()  # some tokenizers close every text, but the completion is still to come
    while bos is not None and len(ids) > 1 and ids[0] == bos and ids[1] == bos:
        ids.pop(0)  # the text began with the BOS token already
    return ids


def completion_ids(
    prompt: Prompt, prefix: str, text: str, tokenizer: PreTrainedTokenizerBase, form: StudentFormat
) -> list[int]:
    """
    Token ids of what the student is to answer, with the token that ends it.

    Args:
        prompt (`str` or `list[dict]`): the question the text answers; a chat template may need it.
        prefix (`str`): the task's prefix.
        text (`str`): the label or the rationale.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the student's tokenizer.
        form ([`StudentFormat`]): the student's format.

    Returns:
        `list[int]`: ids that follow those of [`prompt_ids`]; empty if the text has no token of its own.
    """
    eos = tokenizer.eos_token_id
    if form.is_encoder_decoder:
        ids = list(tokenizer(text_target=text)["input_ids"])
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    elif is_conversational(prompt):
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = _chat_completion_ids(with_prefix(prompt, prefix), text, tokenizer)
    else:
        bare = ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not bare:
        return []
    return ids if ids and ids[-1] == eos else [*ids, eos]


def with_prefix(prompt: Prompt, prefix: str) -> Prompt:
    """The prompt with a task's prefix: before the text, or before the last user message of a conversation."""
    if not is_conversational(prompt):
        return f"{prefix} {prompt}" if prefix else prompt
    messages = [dict(message) for message in prompt]
    for message in reversed(messages):
        if message.get("role") == "user":
            message["content"] = f"{prefix} {message['content']}" if prefix else message["content"]
            return messages
    raise DataError("A conversational prompt needs a message of role 'user', which the task's prefix goes before.")


def _chat_completion_ids(messages: list[dict], text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    before = _render_chat(tokenizer, messages, add_generation_prompt=True)
    whole = _render_chat(tokenizer, [*messages, {"role": "assistant", "content": text}], add_generation_prompt=False)
    if not whole.startswith(before):
        # The template writes past turns otherwise than it opens the next one; what is generated is the text itself.
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    ids = list(tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"])
    eos = tokenizer.eos_token_id
    if eos in ids:
        last = len(ids) - 1 - ids[::-1].index(eos)
        if not tokenizer.decode(ids[last + 1 :]).strip():
            ids = ids[: last + 1]  # the line break that templates write after the turn is never generated
    return ids


def _render_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict], add_generation_prompt: bool) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "The prompts are conversations, but the tokenizer has no chat template. Set `tokenizer.chat_template`, use "
            "an instruct model's tokenizer, or give the prompts as texts."
        )
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
