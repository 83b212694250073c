"""The interface of every teacher backend: requests in, completions out, in any order."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TeacherRequest:
    """
    What a teacher is asked for one question.

    Attributes:
        id (`str`):
            Key of the question.
        prompt (`str` or `list[dict]`):
            The question in the teacher's template: messages for a chat model, a text for a plain one.
        sample_indices (`tuple[int, ...]`):
            The samples that are wanted, by their numbers.
        seeds (`tuple[int, ...]`):
            A seed for each, below 2**31.
    """

    id: str
    prompt: str | list[dict[str, str]]
    sample_indices: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class TeacherCompletion:
    """
    What a teacher answered for one sample.

    Attributes:
        sample_index (`int`):
            Number of the sample.
        text (`str` or `None`):
            The completion as it came.
        finish_reason (`str` or `None`):
            The backend's word for why it ended.
        status (`str`):
            One of `records.SAMPLE_STATUSES`.
        seed (`int` or `None`):
            The seed that it was asked for with; `None` where the backend takes one for several samples and this is not the first.
        usage (`Mapping[str, int]`):
            `prompt_tokens`, `completion_tokens`; empty where they are not counted.
        error (`str` or `None`):
            Why it failed, without secrets.
    """

    sample_index: int
    text: str | None
    finish_reason: str | None
    status: str
    seed: int | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class SamplingSettings:
    """
    How a teacher samples; the same for every backend.

    Args:
        temperature (`float`, *optional*, defaults to `0.7`): sampling temperature (QCRD: 0.7); 0 is greedy.
        top_p (`float`, *optional*, defaults to `1.0`): nucleus; 1 is the whole distribution.
        max_new_tokens (`int`, *optional*, defaults to `512`): largest number of tokens of a completion.
        stop (`tuple[str, ...]`, *optional*): texts that end a completion; they are not part of it.
    """

    temperature: float = 0.7
    top_p: float = 1.0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()


def status_of(text: str | None, finish_reason: str | None) -> str:
    """
    What becomes of a completion that came: `filtered` if a content filter ended it, `truncated` if the limit of tokens did
    (also before any text), `empty` without text, else `ok`.
    """
    if finish_reason == "content_filter":
        return "filtered"
    if finish_reason in ("length", "max_tokens", "model_length"):  # servers have words of their own
        return "truncated"
    return "ok" if text is not None and text.strip() else "empty"


@dataclass
class TeacherStats:
    """What a backend counts while it runs, for the progress bar and the report."""

    retries: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Teacher(ABC):
    """
    A backend. It is made once, checked once, and asked for all samples of a run.

    Attributes:
        name (`str`): the model's name, as records carry it.
        stats ([`TeacherStats`]): counts so far.
        chat (`bool`): whether it takes messages (the default) or plain texts.
    """

    name: str
    stats: TeacherStats
    chat: bool = True

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What of the backend decides the texts (its kind, model, quantization): part of the settings hash. JSON values."""

    def check(self) -> None:  # noqa: B027
        """
        Finds out, before any work, whether it can be reached, takes its key and knows its model.

        Raises:
            [`TeacherError`]: naming what is wrong and the remedy.
        """

    @abstractmethod
    def sample(
        self, requests: Iterable[TeacherRequest], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        """
        Answers requests, each as soon as it is done, in any order. Every sample asked for comes back once: one that cannot
        be had has status `failed`. The samples of a request may come in parts. Requests are drawn from the iterable as there
        is room, so it may be long.

        The iterator may be closed early (Ctrl-C): what is in flight is given up then.

        Raises:
            [`TeacherError`]: what would make every other request fail too (wrong key, unknown model, server gone).
        """

    def close(self) -> None:  # noqa: B027
        """Lets go of connections and memory. Safe to call twice."""
