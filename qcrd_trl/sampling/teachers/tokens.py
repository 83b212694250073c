"""What the two backends that run a model themselves share: questions to token ids, and what does not fit."""

from transformers import PreTrainedTokenizerBase

from ...data.prompts import StudentFormat, is_conversational, prompt_ids
from ...errors import DataError
from .base import TeacherCompletion, TeacherRequest


def request_ids(
    prompt: str | list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, is_encoder_decoder: bool = False
) -> list[int]:
    """
    Token ids of a prompt as the model is to continue it, with at most one BOS token.

    Raises:
        [`DataError`]: the tokenizer's chat template refuses the messages.
    """
    from jinja2 import TemplateError

    form = StudentFormat("", "", response_separator="", is_encoder_decoder=is_encoder_decoder)
    try:
        return prompt_ids(prompt, "", tokenizer, form)
    except TemplateError as error:
        system = is_conversational(prompt) and prompt[0].get("role") == "system"
        remedy = " It may refuse system messages: leave --system_prompt out." if system else ""
        raise DataError(f"The teacher's chat template refuses a prompt ({error}).{remedy}") from error


def too_long(request: TeacherRequest, tokens: int, room: int) -> list[TeacherCompletion]:
    """Answers for a prompt that leaves no room for a completion."""
    error = f"the prompt has {tokens} tokens and leaves no room in the teacher's context of {room}"
    return [
        TeacherCompletion(index, None, None, "failed", seed=seed, error=error)
        for index, seed in zip(request.sample_indices, request.seeds, strict=True)
    ]
