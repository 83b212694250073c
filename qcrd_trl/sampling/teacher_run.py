"""Asking a teacher for what a samples file lacks, whatever the backend, so that nothing is lost or paid twice."""

import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tqdm import tqdm

from ..data.draws import draw, number_of
from ..data.samples_file import SamplesFile
from ..data.shards import shard_of
from ..data.sources import Rows
from ..errors import DataError, TeacherError
from ..records import SAMPLE_STATUSES, Question, TeacherSample
from .chunks import read_questions
from .questions import Columns, prompt_problem
from .teacher_prompts import TeacherPrompt
from .teachers.base import SamplingSettings, Teacher, TeacherCompletion, TeacherRequest


_NO_SAMPLES = "no samples yet"
_PROBLEMS = {"null": "null", "blank": "blank", "lone_surrogate": "not writable as UTF-8 (a lone surrogate)"}


@dataclass(frozen=True)
class TeacherQuestions:
    """
    The questions of a dataset that a teacher is to be asked. Every iteration reads the dataset afresh, row by row.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]): the dataset.
        columns ([`~qcrd_trl.sampling.questions.Columns`]): where to find what; `samples` is not read.
        num_shards (`int`, *optional*, defaults to `1`): how many shards the questions are shared out to.
        shard_index (`int`, *optional*, defaults to `0`): the shard that is asked here.
        max_questions (`int`, *optional*): only the first so many rows, before they are shared out.
    """

    rows: Rows
    columns: Columns
    num_shards: int = 1
    shard_index: int = 0
    max_questions: int | None = None

    def __iter__(self) -> Iterator[Question]:
        names = [*self.rows.column_names, _NO_SAMPLES]
        unanswered = Rows(
            self.rows.name, self._read, names, num_rows=self.rows.num_rows, text_cells=self.rows.text_cells
        )
        columns = Columns(**{**asdict(self.columns), "samples": _NO_SAMPLES})
        for question in read_questions(unanswered, columns)[0]:
            if shard_of(question.id, self.num_shards) == self.shard_index:
                yield question

    def _read(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.rows):
            if self.max_questions is not None and number >= self.max_questions:
                return
            yield {**row, _NO_SAMPLES: []}


@dataclass
class SamplingReport:
    """
    What a run did.

    Attributes:
        questions (`int`): questions that were to be asked.
        wanted (`int`): samples of these that the file is to hold.
        found (`int`): of the wanted, those that it held already.
        statuses (`Counter`): new samples by status.
        prompt_tokens (`int`): tokens read for the new samples, where they are counted.
        completion_tokens (`int`): tokens written.
        interrupted (`bool`): whether Ctrl-C ended it.
    """

    questions: int = 0
    wanted: int = 0
    found: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    interrupted: bool = False

    @property
    def new(self) -> int:
        """Samples written."""
        return sum(self.statuses.values())

    @property
    def held(self) -> int:
        """Wanted samples that the file holds now; failed ones do not count."""
        return self.found + self.new - self.statuses["failed"]

    @property
    def failed_share(self) -> float:
        """Failed samples, as a share of the wanted."""
        return self.statuses["failed"] / self.wanted if self.wanted else 0.0

    def as_text(self) -> str:
        """A few lines for the terminal."""
        counts = ", ".join(f"{self.statuses[status]} {status}" for status in SAMPLE_STATUSES if self.statuses[status])
        lines = [
            f"{self.held} of {self.wanted} samples of {self.questions} questions: {self.found} were there, {self.new} are new"
            + (f" ({counts})" if counts else "")
        ]
        if self.prompt_tokens or self.completion_tokens:
            lines.append(f"tokens of the new ones: {self.prompt_tokens} read, {self.completion_tokens} written")
        return "\n".join(lines)


def check_questions(
    questions: Iterable[Question], prompt: TeacherPrompt, file: SamplesFile, num_samples: int, chat: bool
) -> SamplingReport:
    """
    Looks at every question before any work is done.

    Args:
        questions (`Iterable[Question]`): the questions.
        prompt ([`TeacherPrompt`]): the teacher's template.
        file ([`~qcrd_trl.data.samples_file.SamplesFile`]): the file that holds samples already.
        num_samples (`int`): samples a question.
        chat (`bool`): whether the teacher takes messages.

    Returns:
        [`SamplingReport`]: with the counts of what is wanted and what is there.

    Raises:
        [`DataError`]: a question cannot be asked, an id stands twice, or the file holds samples of another question by its
            id.
    """
    report, unusable = SamplingReport(), []
    for question in questions:
        problem = prompt_problem(question.prompt)
        if problem:
            unusable.append(f"row {question.row}: {_PROBLEMS.get(problem, problem)}")
            continue
        _render(question, prompt, chat)
        file.check_question(question.id, question.prompt, _plain(question.choices))
        report.questions += 1
        report.wanted += num_samples
        report.found += num_samples - len(file.missing(question.id, num_samples))
    if unusable:
        more = f"; and {len(unusable) - 5} more" if unusable[5:] else ""
        raise DataError(
            f"{len(unusable)} questions have no prompt that a teacher can be asked (rows count from 0): "
            f"{'; '.join(unusable[:5])}{more}. Filter them out, or name the right column with --prompt_column."
        )
    return report


def run_teacher(
    teacher: Teacher,
    questions: Iterable[Question],
    prompt: TeacherPrompt,
    how: SamplingSettings,
    file: SamplesFile,
    report: SamplingReport,
    num_samples: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> SamplingReport:
    """
    Asks a teacher for the samples that a file lacks, and appends each answer as it comes.

    What is asked for a sample, its seed included, depends on its question, its number and `seed` alone: neither on the order
    in which answers come, nor on the shard, nor on what was there before.

    Args:
        teacher ([`~qcrd_trl.sampling.teachers.base.Teacher`]): the backend, checked.
        questions (`Iterable[Question]`): the questions, as they were given to [`check_questions`].
        prompt ([`TeacherPrompt`]): the template.
        how ([`~qcrd_trl.sampling.teachers.base.SamplingSettings`]): how to sample.
        file ([`~qcrd_trl.data.samples_file.SamplesFile`]): where to write.
        report ([`SamplingReport`]): what [`check_questions`] gave; it is added to, also when an error ends the run.
        num_samples (`int`, *optional*, defaults to `5`): samples a question (QCRD: 5).
        seed (`int`, *optional*, defaults to `0`): seed of the run.
        progress (`bool`, *optional*, defaults to `True`): whether to show a bar.

    Returns:
        [`SamplingReport`]: the same. `interrupted` where Ctrl-C ended the run; every answer that had come is in the file.

    Raises:
        [`TeacherError`]: the teacher cannot go on. What it answered before is in the file.
    """
    asked: dict[str, Question] = {}
    open_indices: dict[str, set[int]] = {}

    def requests() -> Iterator[TeacherRequest]:
        for question in questions:
            indices = file.missing(question.id, num_samples)
            if not indices:
                continue
            asked[question.id], open_indices[question.id] = question, set(indices)
            seeds = tuple(sample_seed(seed, question.id, index) for index in indices)
            yield TeacherRequest(question.id, _render(question, prompt, teacher.chat), indices, seeds)

    if report.found == report.wanted:
        return report
    file.begin()
    bar = tqdm(
        total=report.wanted,
        initial=report.found,
        desc="sampling",
        unit=" samples",
        file=sys.stderr,
        disable=not progress,
    )
    answers = teacher.sample(requests(), how)
    try:
        for request, completions in answers:
            with _ctrl_c_deferred():
                if request.id not in asked:
                    raise TeacherError(
                        f"The backend answered for {request.id!r}, which it was not asked for (any more)."
                    )
                left = open_indices[request.id]
                samples = [_record(asked[request.id], c, left, teacher, how, file.hash) for c in completions]
                file.add(samples)
                if not left:
                    del asked[request.id], open_indices[request.id]
                _count(report, samples)
                bar.set_postfix(_shown(report, teacher), refresh=False)
                bar.update(len(samples))
        if report.found + report.new < report.wanted:
            lacking = report.wanted - report.found - report.new
            named = f", such as those of {next(iter(open_indices))!r}" if open_indices else ""
            raise TeacherError(
                f"The backend ended without an answer for {lacking} samples{named}: this is a fault of it."
            )
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        bar.close()
        if hasattr(answers, "close"):
            answers.close()
        file.sync()
    return report


def sample_seed(seed: int, id: str, sample_index: int) -> int:
    """Seed of a sample, below 2**31: a pure function of the run's seed, the question's id and the sample's number."""
    return draw(2**31, seed, number_of(id), sample_index)


def _record(
    question: Question,
    completion: TeacherCompletion,
    left: set[int],
    teacher: Teacher,
    how: SamplingSettings,
    settings_hash: str,
) -> TeacherSample:
    if completion.sample_index not in left or completion.status not in SAMPLE_STATUSES:
        raise TeacherError(
            f"The backend gave sample {completion.sample_index} of question {question.id!r} with status "
            f"{completion.status!r}, which was not asked for or is unknown: this is a fault of the backend."
        )
    left.remove(completion.sample_index)
    return TeacherSample(
        id=question.id,
        prompt=question.prompt,
        sample_index=completion.sample_index,
        text=completion.text,
        finish_reason=completion.finish_reason,
        status=completion.status,
        model=teacher.name,
        temperature=how.temperature,
        seed=completion.seed,
        settings_hash=settings_hash,
        usage=dict(completion.usage),
        label=question.label,
        choices=_plain(question.choices),
        error=completion.error,
    )


def _render(question: Question, prompt: TeacherPrompt, chat: bool) -> str | list[dict[str, str]]:
    try:
        return prompt.render(question.prompt, question.choices, chat)
    except DataError as error:
        raise DataError(f"Row {question.row} (rows count from 0) cannot be asked: {error}.") from error


def _plain(choices: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if choices is None else dict(choices)


def _count(report: SamplingReport, samples: list[TeacherSample]) -> None:
    report.statuses.update(sample.status for sample in samples)
    report.prompt_tokens += sum(sample.usage.get("prompt_tokens", 0) for sample in samples)
    report.completion_tokens += sum(sample.usage.get("completion_tokens", 0) for sample in samples)


def _shown(report: SamplingReport, teacher: Teacher) -> dict[str, int]:
    return {
        "errors": report.statuses["failed"],
        "retries": teacher.stats.retries,
        "tokens": report.prompt_tokens + report.completion_tokens,
    }


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """Lets a block end before Ctrl-C takes effect, so that what is counted is what is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came and callable(before):
        before(*came[0])
