"""Records that pass between the parts of the package: plain, frozen, and free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """
    One text that a teacher drew for a question, as it came.

    Args:
        text (`Any`):
            The text. Whatever is not a usable `str` is counted and left out of the vote, never repaired.
        status (`str`, *optional*, defaults to `"ok"`):
            What the sampler says about it (`ok`, `truncated`, `empty`, `filtered`, `failed`). Only `ok` votes.
    """

    text: Any
    status: str = "ok"


@dataclass(frozen=True)
class Question:
    """
    One question with the samples drawn for it.

    Args:
        row (`int`):
            Number of the (first) row it comes from, counted from 0.
        id (`str`):
            Key that is unique in the dataset.
        prompt (`str` or `list[dict]` or `None`):
            The question, as text or as messages; `None` where the row has none.
        label (`str` or `None`):
            The gold answer in the user's own words; `None` where there is none.
        samples (`tuple[Sample, ...]`):
            The samples in the order in which they were drawn.
        choices (`Mapping[str, str]`, *optional*):
            Letter to option text, for multiple-choice questions.
    """

    row: int
    id: str
    prompt: str | list[dict[str, str]] | None
    label: str | None
    samples: tuple[Sample, ...]
    choices: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Selection:
    """
    What self-consistency makes of the samples of one question.

    Args:
        label (`str` or `None`):
            The gold label as it was given (`label_source="gold"`) or the winning answer (`"majority"`).
        positives (`tuple[str, ...]`):
            Rationales that reach the label, each text once.
        negatives (`tuple[str, ...]`):
            Rationales that reach another answer, each text once, none equal to a positive.
        raw (`str` or `None`):
            The first usable sample, whatever answer it reaches or fails to reach.
        votes (`tuple[tuple[str, int], ...]`):
            The answers and how many samples reach each, most frequent first.
        majority (`str` or `None`):
            The answer with the most votes; `None` without votes or in a tie.
        tie (`bool`):
            Whether two or more answers share the highest count.
        num_samples (`int`):
            All samples that were given.
        abstentions (`int`):
            Usable samples in which no answer was found.
        dropped (`Mapping[str, int]`):
            Samples that could not vote, counted by reason.
        duplicates (`int`):
            Texts left out of `positives` and `negatives` because an equal one is already in.
        gold_votes (`int` or `None`):
            Votes that equal the gold label; `None` without a gold label.
        majority_is_gold (`bool` or `None`):
            Whether the majority equals the gold label (a tie does not); `None` without a gold label.
    """

    label: str | None
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    raw: str | None
    votes: tuple[tuple[str, int], ...]
    majority: str | None
    tie: bool
    num_samples: int
    abstentions: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    gold_votes: int | None = None
    majority_is_gold: bool | None = None

    @property
    def num_votes(self) -> int:
        """Samples that voted."""
        return sum(count for _, count in self.votes)

    @property
    def agreement(self) -> float | None:
        """Share of the votes that the most frequent answer has, in (0, 1]; `None` without votes."""
        return self.votes[0][1] / self.num_votes if self.votes else None

    @property
    def agreement_of_samples(self) -> float | None:
        """Share of all samples that the most frequent answer has, in [0, 1]; `None` without samples."""
        if not self.num_samples:
            return None
        return (self.votes[0][1] if self.votes else 0) / self.num_samples


@dataclass(frozen=True)
class Negative:
    """
    One low-quality rationale that a snapshot of the student generated.

    Attributes:
        text (`str`):
            The rationale, without special tokens.
        token_ids (`tuple[int, ...]`):
            Its tokens as they were drawn; the closing EOS is there only if the student ended it.
        iteration (`int`):
            The iteration that it is a negative of, counted from 0.
        snapshot (`int`):
            The iteration that the generating snapshot was taken at; 0 is the untrained student.
        seed (`int`):
            Seed that it was drawn by.
        temperature (`float`):
            Sampling temperature.
        is_finished (`bool`):
            Whether the student ended it, rather than the limit of new tokens.
        reaches_label (`bool` or `None`):
            Whether its answer is the label, so that it is no negative by its answer; `None` if that was not asked.
        quality (`float` or `None`):
            The discriminator's latest score of it in training, in (0, 1); `None` before it was scored.
    """

    text: str
    token_ids: tuple[int, ...]
    iteration: int
    snapshot: int
    seed: int
    temperature: float
    is_finished: bool
    reaches_label: bool | None = None
    quality: float | None = None


SAMPLE_STATUSES = ("ok", "truncated", "empty", "filtered", "failed")


@dataclass(frozen=True)
class TeacherSample:
    """
    One line of a samples file: a text that a teacher was asked for, and what became of it.

    The key (`id`, `sample_index`, `settings_hash`) stands once in a file.

    Attributes:
        id (`str`):
            Key of the question.
        prompt (`str` or `list[dict]`):
            The question as the user's dataset has it, without the teacher's template.
        sample_index (`int`):
            Number of the sample, counted from 0.
        text (`str` or `None`):
            The completion as it came, never repaired; `None` where there is none.
        finish_reason (`str` or `None`):
            Why the teacher ended it, in the backend's word (`stop`, `length`, `content_filter`).
        status (`str`):
            One of `SAMPLE_STATUSES`. Only `ok` votes; `failed` is asked again by the next run.
        model (`str`):
            Name of the teacher.
        temperature (`float`):
            Sampling temperature.
        seed (`int` or `None`):
            Seed that was asked for.
        settings_hash (`str`):
            Hash of all that decides what is sampled.
        usage (`Mapping[str, int]`):
            `prompt_tokens` and `completion_tokens`, where the backend counts them. Of several samples from one request
            the first carries the prompt's.
        label (`Any`):
            The gold answer of the dataset's row; `None` where there is none.
        choices (`Any`):
            The options of the dataset's row, as it has them; `None` where there are none.
        error (`str` or `None`):
            Why it failed.
    """

    id: str
    prompt: str | list[dict[str, str]]
    sample_index: int
    text: str | None
    finish_reason: str | None
    status: str
    model: str
    temperature: float
    seed: int | None
    settings_hash: str
    usage: Mapping[str, int] = field(default_factory=dict)
    label: Any = None
    choices: Any = None
    error: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """What stands once in a samples file."""
        return self.id, self.sample_index, self.settings_hash


@dataclass(frozen=True)
class Prediction:
    """
    What a student answers to a question under the label prefix.

    Attributes:
        text (`str`):
            The completion, without special tokens.
        label (`str` or `None`):
            The answer read from it; `None` where none was found, or no task kind was given to read it by.
        is_finished (`bool`):
            Whether the student ended it, rather than the limit of new tokens.
    """

    text: str
    label: str | None
    is_finished: bool


@dataclass(frozen=True)
class StudentRationale:
    """
    One rationale that a student writes for a question.

    Attributes:
        text (`str`):
            The rationale, without special tokens.
        answer (`str` or `None`):
            The answer that it reaches; `None` where none was found, or no task kind was given to read it by.
        quality (`float` or `None`):
            The discriminator's score of it, in (0, 1); `None` without a discriminator, or where the text is empty.
        is_finished (`bool`):
            Whether the student ended it, rather than the limit of new tokens.
        temperature (`float` or `None`):
            Sampling temperature; `None` for a greedy one.
        seed (`int` or `None`):
            Seed that it was drawn by; `None` for a greedy one.
    """

    text: str
    answer: str | None
    quality: float | None
    is_finished: bool
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Explanation:
    """
    The rationales that a student writes for a question, and the one that stands for them.

    Attributes:
        samples (`tuple[StudentRationale, ...]`):
            All of them, in the order in which they were drawn; at least one.
        answer (`str` or `None`):
            The answer that most of them reach, in a tie the one that was reached first; `None` where none reaches any.
        best (`int`):
            Place in `samples` of the best one: of those that reach `answer`, that of the highest quality; the first one
            where there is no quality to tell them apart.
    """

    samples: tuple[StudentRationale, ...]
    answer: str | None
    best: int = 0

    @property
    def rationale(self) -> str:
        """Text of the best sample."""
        return self.samples[self.best].text

    @property
    def quality(self) -> float | None:
        """Quality of the best sample, in (0, 1); `None` where it has none."""
        return self.samples[self.best].quality

    @property
    def is_finished(self) -> bool:
        """Whether the student ended the best sample itself."""
        return self.samples[self.best].is_finished
