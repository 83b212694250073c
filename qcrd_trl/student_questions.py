"""What a student is asked, checked and tokenized: questions, their options, and rationales that somebody wrote."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from .data.draws import draw
from .data.prompts import Prompt, StudentFormat, completion_ids, has_lone_surrogate, is_conversational, prompt_ids
from .errors import DataError
from .sampling.questions import prompt_problem, read_choices


SAMPLE_SEED = 4  # tells these draws from those of training

_PROBLEMS = {
    "null": "it is null",
    "blank": "it is empty",
    "lone_surrogate": "it holds a lone surrogate, which no tokenizer can take",
}


def question_ids(
    questions: Sequence[Prompt],
    prefix: str,
    tokenizer: PreTrainedTokenizerBase,
    form: StudentFormat,
    num_positions: int | None = None,
) -> list[list[int]]:
    """
    Token ids of questions under one of the two prefixes.

    Args:
        questions (`Sequence[str]` or `Sequence[list[dict]]`):
            The questions, without prefix.
        prefix (`str`):
            The task's prefix.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The student's tokenizer.
        form ([`StudentFormat`]):
            The student's format.
        num_positions (`int`, *optional*):
            Positions that the student knows.

    Raises:
        [`DataError`]: naming the question that cannot be asked.
    """
    check_list(questions, "questions")
    # A decoder's completion needs a place behind the question.
    limit = None if num_positions is None else num_positions - (not form.is_encoder_decoder)
    out = []
    for place, question in enumerate(questions):
        where = f"Question {place} (counted from 0)"
        problem = question_problem(question)
        if problem is not None:
            raise DataError(f"{where} cannot be asked: {problem}.")
        ids = prompt_ids(question, prefix, tokenizer, form)
        if limit is not None and len(ids) > limit:
            raise DataError(
                f"{where} has {len(ids)} tokens with its prefix, but the student knows {num_positions} positions: shorten it."
            )
        out.append(ids)
    return out


def question_problem(question: Any) -> str | None:
    """Says why a question cannot be asked, and `None` where it can."""
    if question is None:
        return _PROBLEMS["null"]
    if is_conversational(question):
        for message in question:
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                return f"a message must have a 'role' and a text as 'content', got {message!r:.80}"
        if question and not any(message.get("role") == "user" for message in question):
            return "it has no message of role 'user', which the task's prefix goes before"
    elif not isinstance(question, str):
        return f"expected a text or a list of messages, got {type(question).__name__} {question!r:.60}"
    problem = prompt_problem(list(question) if is_conversational(question) else question)
    return None if problem is None else _PROBLEMS[problem]


def check_rationales(rationales: Sequence[str], num_questions: int) -> None:
    """Raises a [`DataError`] unless there is one text for each question."""
    check_list(rationales, "rationales")
    if num_questions != len(rationales):
        raise DataError(f"Got {num_questions} questions and {len(rationales)} rationales: give a question for each.")
    for place, text in enumerate(rationales):
        if not isinstance(text, str) or has_lone_surrogate(text):
            raise DataError(
                f"Rationale {place} (counted from 0) must be a text that UTF-8 can hold, got {type(text).__name__} "
                f"{text!a:.60}."
            )


def rationale_ids(
    questions: Sequence[Prompt],
    prompts: Sequence[Sequence[int]],
    rationales: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    form: StudentFormat,
) -> list[list[int]]:
    """
    Token ids of rationales, cut where training cuts them; none for one without text.

    Args:
        questions (`Sequence[str]` or `Sequence[list[dict]]`): the question of each.
        prompts (`Sequence[Sequence[int]]`): its ids, as [`question_ids`] gives them.
        rationales (`Sequence[str]`): the texts.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the student's tokenizer.
        form ([`StudentFormat`]): the student's format.

    Raises:
        [`DataError`]: naming a question that leaves no room for a rationale in `max_length`.
    """
    out = []
    for place, (question, start, text) in enumerate(zip(questions, prompts, rationales, strict=True)):
        ids = completion_ids(question, form.explain_prefix, text, tokenizer, form) if text.strip() else []
        if form.max_length is not None:
            room = form.max_length - (0 if form.is_encoder_decoder else len(start))
            if room < 1 or len(start) > form.max_length:
                raise DataError(
                    f"Question {place} (counted from 0) has {len(start)} tokens with its prefix, which leaves no room for a "
                    f"rationale in the max_length={form.max_length} of the student's training."
                )
            ids = ids[:room]
        out.append(ids)
    return out


def sample_seed(seed: int, prompt: Sequence[int], number: int) -> int:
    """Seed of a question's sample: the same whatever is asked beside it, and in whichever order."""
    key = int.from_bytes(hashlib.sha256(",".join(map(str, prompt)).encode()).digest()[:8], "big")
    return draw(1 << 62, seed, key, number, SAMPLE_SEED)


def read_options(choices: Sequence[Any] | None, questions: Sequence[Prompt]) -> list[Mapping[str, str] | None]:
    """The options of each question, letter to text; `None` for a question without."""
    check_list(questions, "questions")
    if choices is None:
        return [None] * len(questions)
    if len(choices) != len(questions):
        raise DataError(f"Got {len(questions)} questions and {len(choices)} sets of choices: give one for each.")
    return [read_choices(cell, row=place) for place, cell in enumerate(choices)]


def check_list(values: Any, name: str) -> None:
    """Raises a [`DataError`] for a single text or conversation, whose parts would be taken for several."""
    is_text = isinstance(values, str)
    is_conversation = isinstance(values, (list, tuple)) and len(values) > 0 and isinstance(values[0], Mapping)
    if is_text or is_conversation:
        what = "text" if is_text else "conversation"
        raise DataError(f"`{name}` must be a list, got a single {what}: put it into a list.")


def is_blank(question: Any) -> bool:
    """Whether there is no question at all: null, or nothing but white space."""
    if question is None or isinstance(question, str):
        return question is None or not question.strip()
    return is_conversational(question) and all(
        isinstance(message, Mapping) and isinstance(message.get("content"), str) and not message["content"].strip()
        for message in question
    )
