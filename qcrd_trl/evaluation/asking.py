"""A student is asked every question, for the label and for a rationale."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from ..answers.values import check_task_kind
from ..data.draws import draw
from ..data.prompts import StudentFormat, prompt_ids
from ..data.sources import Rows, rows_of_dataset
from ..errors import ConfigError, DataError
from ..models import is_encoder_decoder, prepare_tokenizer
from ..records import Question
from ..sampling.generate import generate_completions
from ..sampling.questions import Columns, prompt_problem, read_labelled
from ..sampling.self_consistency import text_problem
from .outcome import TASKS, EvaluationResult, TaskKind, Written, check_label, outcome_of


TEMPERATURE = 0.7  # of several samples, if none is given: at which QCRD samples its teacher
EVALUATION_SEED = 4  # tells these draws from the others of a run

# For each task and each question: what the student wrote, sample by sample; `None` in the share of another process.
Answers = dict[str, list[list[Written | None]]]


@dataclass(frozen=True)
class EvaluationSettings:
    """
    How a student is asked, and how its answers are read. [`evaluate_student`] tells what each is.

    Raises:
        [`ConfigError`]: a setting cannot work.
    """

    task_kind: TaskKind
    tasks: Sequence[str] | None = None
    num_samples: int = 1
    temperature: float | None = None
    seed: int = 0
    batch_size: int = 32
    label_max_new_tokens: int = 32
    max_new_tokens: int = 256

    def __post_init__(self):
        check_task_kind(self.task_kind)
        for name in ("num_samples", "batch_size", "label_max_new_tokens", "max_new_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}.")
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(
                f"temperature must be a finite number above 0, got {self.temperature!r}. Leave it out to be greedy."
            )
        if self.temperature is None and self.num_samples > 1:
            object.__setattr__(self, "temperature", TEMPERATURE)
        if self.tasks is not None and (not self.tasks or not set(self.tasks) <= set(TASKS)):
            raise ConfigError(f"tasks must be one or both of {', '.join(TASKS)}, got {self.tasks!r}.")

    def tasks_of(self, form: StudentFormat) -> list[str]:
        """The tasks to ask a student: those that were named, or else those that it was taught."""
        taught = {"label": form.predicts, "rationale": form.explains}
        if self.tasks is None:
            return [task for task in TASKS if taught[task]]
        for task in self.tasks:
            if not taught[task]:
                weight = {"label": "alpha_1", "rationale": "alpha_2"}[task]
                raise ConfigError(
                    f"The student was not taught the {task} task ({weight} was 0 in training), so there is nothing to "
                    f"measure. Leave `tasks` out, or name the other one."
                )
        return [task for task in TASKS if task in self.tasks]

    def seed_of(self, question: str, task: str, sample: int) -> int:
        """Seed of a sample, by the question's id: it depends on no other question."""
        key = int.from_bytes(hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        return draw(1 << 62, self.seed, key, TASKS.index(task), sample, EVALUATION_SEED)


def evaluate_student(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Sequence[Mapping[str, Any]],
    task_kind: TaskKind,
    student_format: StudentFormat | None = None,
    prompt_column: str = "prompt",
    label_column: str = "label",
    choices_column: str | None = None,
    batch_size: int = 32,
    label_max_new_tokens: int = 32,
    max_new_tokens: int = 256,
    progress: bool = True,
    id_column: str = "id",
    tasks: Sequence[str] | None = None,
    num_samples: int = 1,
    temperature: float | None = None,
    seed: int = 0,
) -> EvaluationResult:
    """
    Asks a student every question for the label and for a rationale, greedily or by the vote of several samples.

    Args:
        model (`nn.Module`):
            The student. Its mode and the random state are restored.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset ([`~datasets.Dataset`], [`~qcrd_trl.data.sources.Rows`] or sequence of mappings):
            Questions with their labels. Rows whose prompt or label is null or blank are skipped, with a count.
        task_kind (`str` or `Callable`):
            How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours.
        student_format ([`StudentFormat`], *optional*):
            The prefixes that the student was taught; the default ones if left out.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the labels.
        choices_column (`str`, *optional*):
            Column with the options of a choice, in any form that `qcrd select` reads.
        batch_size (`int`, *optional*, defaults to `32`):
            Texts generated at a time.
        label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a predicted label.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show progress bars.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of a unique key. Where no column `id` exists, or the key is null, the row number is the key.
        tasks (`Sequence[str]`, *optional*):
            `"label"`, `"rationale"` or both. Those that the student was taught if left out.
        num_samples (`int`, *optional*, defaults to `1`):
            Texts a question and task. Of several the most frequent answer counts, as in self-consistency; a tie is no
            answer.
        temperature (`float`, *optional*):
            Sampling temperature. If left out, one text is greedy and several are sampled at 0.7, as QCRD samples its
            teacher.
        seed (`int`, *optional*, defaults to `0`):
            What is sampled is a function of it, the question's id and the sample's number: not of the batch size, nor of
            the other questions.

    Returns:
        [`EvaluationResult`]

    Raises:
        [`DataError`]: naming the column, or the row whose label cannot be read as the task kind, or an id that stands
            twice.
        [`ConfigError`]: a setting cannot work, or a task is named that the student was not taught.
    """
    settings = EvaluationSettings(
        task_kind, tasks, num_samples, temperature, seed, batch_size, label_max_new_tokens, max_new_tokens
    )
    form = student_format or StudentFormat(is_encoder_decoder=is_encoder_decoder(model))
    settings.tasks_of(form)
    columns = Columns(prompt=prompt_column, label=label_column, id=id_column, choices=choices_column)
    questions, skipped = questions_of(dataset, task_kind, columns)
    answers = ask(model, tokenizer, questions, settings, form, progress=progress)
    return outcome_of(questions, answers, task_kind, skipped)


def questions_of(
    dataset: Any, task_kind: TaskKind, columns: Columns, name: str = "The dataset", limit: int | None = None
) -> tuple[list[Question], int]:
    """
    The questions of a dataset that have a prompt and a label, and how many rows have not.

    Args:
        dataset: as in [`evaluate_student`].
        task_kind (`str` or `Callable`): how labels are read.
        columns ([`~qcrd_trl.sampling.questions.Columns`]): where to find what.
        name (`str`, *optional*): what messages call the dataset.
        limit (`int`, *optional*): only the first so many rows.

    Raises:
        [`DataError`]: as [`evaluate_student`], and if there is no question.
    """
    rows = _rows_of(dataset, name)
    if columns.id == "id" and "id" not in rows.column_names:
        columns = Columns(columns.prompt, columns.label, columns.samples, None, columns.choices)
    questions, skipped = [], 0
    for question in islice(_labelled(rows, columns), limit):
        if text_problem(question.label) or prompt_problem(question.prompt):
            skipped += 1
            continue
        check_label(question, task_kind, columns.label)
        questions.append(question)
    if not questions:
        raise DataError(f"0 of {skipped} rows have a prompt and a label to evaluate on.")
    return questions, skipped


def ask(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    settings: EvaluationSettings,
    form: StudentFormat,
    share: tuple[int, int] = (0, 1),
    progress: bool = True,
) -> Answers:
    """
    What a student writes for questions, in batches sorted by length.

    Args:
        questions (`Sequence[Question]`): all questions, on every process the same.
        settings ([`EvaluationSettings`]): how they are asked.
        form ([`StudentFormat`]): the form that the student was taught.
        share (`tuple[int, int]`, *optional*, defaults to `(0, 1)`): `(process, processes)`. [`collect`] puts the shares of
            all processes together.
        model, tokenizer, progress: as in [`evaluate_student`].
    """
    prepare_tokenizer(tokenizer)
    asked: Answers = {}
    for task in settings.tasks_of(form):
        prefix = form.predict_prefix if task == "label" else form.explain_prefix
        prompts = [prompt_ids(question.prompt, prefix, tokenizer, form) for question in questions]
        seeds = None
        if settings.temperature is not None:
            numbers = range(settings.num_samples)
            seeds = [settings.seed_of(question.id, task, number) for question in questions for number in numbers]
        completions = generate_completions(
            model,
            tokenizer,
            [ids for ids in prompts for _ in range(settings.num_samples)],
            settings.label_max_new_tokens if task == "label" else settings.max_new_tokens,
            settings.batch_size,
            desc=f"Asking {prefix or 'without a prefix'}",
            progress=progress,
            temperature=settings.temperature,
            seeds=seeds,
            share=share,
        )
        texts = [None if one is None else Written(one.text, one.is_finished) for one in completions]
        count = settings.num_samples
        asked[task] = [texts[start : start + count] for start in range(0, len(texts), count)]
    return asked


def collect(shares: Sequence[Answers]) -> Answers:
    """The answers of all processes together, of what [`ask`] gave on each."""
    first, *others = shares
    for other in others:
        for task, questions in first.items():
            for mine, theirs in zip(questions, other[task], strict=True):
                mine[:] = [there if here is None else here for here, there in zip(mine, theirs, strict=True)]
    return first


def _rows_of(dataset: Any, name: str) -> Rows:
    if isinstance(dataset, Rows):
        return dataset
    if hasattr(dataset, "column_names"):
        return rows_of_dataset(dataset, name)
    rows = list(dataset)
    return Rows(name, lambda: rows)


def _labelled(rows: Rows, columns: Columns) -> Iterable[Question]:
    if rows.num_rows == 0:
        raise DataError(f"{rows.name} has no rows to evaluate on.")
    return read_labelled(rows, columns)
