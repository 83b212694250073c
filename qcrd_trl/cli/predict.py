"""`qcrd predict`: a trained student's labels and rationales for questions of a file or of standard input."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..answers import TASK_KINDS
from ..errors import ConfigError, DataError
from .common import parse_arguments
from .streams import (
    STREAM,
    RowStream,
    at_least_one,
    cell_of,
    check_output,
    finished_results,
    id_of,
    in_chunks,
    open_output,
)


if TYPE_CHECKING:
    from ..student import RationaleStudent


# Batches that are sorted by length together; a pipe is answered batch by batch.
_BATCHES_AHEAD = 8
# What does not decide what is answered: a run with others of these may go on with a file.
_NOT_SETTINGS = (
    *("input", "output", "input_format", "batch_size", "device", "resume", "overwrite_output"),
    *("prompt_column", "id_column", "choices_column", "trust_remote_code"),
)


@dataclass
class PredictArguments:
    """
    Arguments of `qcrd predict`.

    Args:
        model (`str`):
            Folder of a trained student (full model or adapter), or a Hub name.
        input (`str`, *optional*, defaults to `"-"`):
            Questions: a file, a folder, a Hub name, or `-` for standard input.
        output (`str`, *optional*, defaults to `"-"`):
            JSON Lines file to write, or `-` for standard output.
        input_format (`str`, *optional*, defaults to `"auto"`):
            Format of the questions: `jsonl`, `csv`, `tsv`, or `text` (one a line).
        labels (`bool`, *optional*, defaults to `True`):
            Whether to ask for labels, if the student was taught them.
        explain (`bool`, *optional*, defaults to `False`):
            Whether to ask for rationales.
        num_samples (`int`, *optional*, defaults to `1`):
            Rationales of a question.
        temperature (`float`, *optional*):
            Sampling temperature. Left out: greedy for one sample, 0.7 for several.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.
        task_kind (`str`, *optional*):
            How an answer is read from a text; without it texts alone are written.
        task_callable (`str`, *optional*):
            `module:function` that reads it, in place of `task_kind`.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of their keys; a row without one is known by its number.
        choices_column (`str`, *optional*):
            Column of a choice's options.
        batch_size (`int`, *optional*, defaults to `32`):
            Texts at a time.
        label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a label.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the model.
        load_in_4bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize the model to 4 bits while it is loaded.
        load_in_8bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize it to 8 bits.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        revision (`str`, *optional*):
            Branch, tag or commit of the student's repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
        resume (`bool`, *optional*, defaults to `False`):
            Whether to go on with the output of a run that was stopped.
        overwrite_output (`bool`, *optional*, defaults to `False`):
            Whether to replace the output.
    """

    model: str = field(metadata={"help": "Folder of a trained student, or a Hub name."})
    input: str = field(
        default=STREAM, metadata={"help": "Questions: a file, a folder, a Hub name, or - for standard input."}
    )
    output: str = field(default=STREAM, metadata={"help": "JSON Lines file to write, or - for standard output."})
    input_format: Literal["auto", "jsonl", "csv", "tsv", "text"] = field(
        default="auto", metadata={"help": "Format of the questions; text is one a line."}
    )
    labels: bool = field(default=True, metadata={"help": "Ask for labels."})
    explain: bool = field(default=False, metadata={"help": "Ask for rationales."})
    num_samples: int = field(default=1, metadata={"help": "Rationales of a question."})
    temperature: float | None = field(
        default=None, metadata={"help": "Sampling temperature. Left out: greedy for one sample, 0.7 for several."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the samples."})
    task_kind: str | None = field(
        default=None, metadata={"help": f"How answers are read: one of {', '.join(TASK_KINDS)}."}
    )
    task_callable: str | None = field(default=None, metadata={"help": "module:function, a task kind of your own."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the questions."})
    id_column: str = field(default="id", metadata={"help": "Column of their keys."})
    choices_column: str | None = field(default=None, metadata={"help": "Column of a choice's options."})
    batch_size: int = field(default=32, metadata={"help": "Texts at a time."})
    label_max_new_tokens: int = field(default=32, metadata={"help": "Largest number of tokens of a label."})
    max_new_tokens: int = field(default=256, metadata={"help": "Largest number of tokens of a rationale."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    load_in_4bit: bool = field(default=False, metadata={"help": "Quantize the model to 4 bits."})
    load_in_8bit: bool = field(default=False, metadata={"help": "Quantize the model to 8 bits."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})
    resume: bool = field(default=False, metadata={"help": "Go on with the output of a run that was stopped."})
    overwrite_output: bool = field(default=False, metadata={"help": "Replace the output."})

    def __post_init__(self):
        at_least_one(self, ("num_samples", "batch_size", "label_max_new_tokens", "max_new_tokens"))
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"--temperature must be greater than 0, got {self.temperature}.")
        if not self.explain and (self.num_samples > 1 or self.temperature is not None):
            raise ConfigError("--num_samples and --temperature are of rationales: add --explain.")
        if not self.labels and not self.explain:
            raise ConfigError("--no_labels leaves nothing to ask: add --explain.")
        if self.task_callable is not None and self.task_kind is not None:
            raise ConfigError("--task_kind and --task_callable exclude each other.")
        if self.task_kind is not None and self.task_kind not in TASK_KINDS:
            raise ConfigError(f"Unknown task kind {self.task_kind!r}: expected one of {', '.join(TASK_KINDS)}.")
        if self.load_in_4bit and self.load_in_8bit:
            raise ConfigError("--load_in_4bit and --load_in_8bit exclude each other.")

    def settings_hash(self) -> str:
        """Hash of all that decides what is answered."""
        settings = {name: value for name, value in asdict(self).items() if name not in _NOT_SETTINGS}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class AskedQuestion:
    """A row of the input: its key, the question, and the options of a choice."""

    id: str
    prompt: Any
    choices: Any


def main(argv: Sequence[str]) -> int:
    """
    Asks a student, and writes a line for each question.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Asks a trained student: labels, and with --explain rationales, their answers and their quality."
    (args,) = parse_arguments(argv, PredictArguments, prog="qcrd predict", description=description)
    check_output(args.output, args.overwrite_output, args.resume)
    stream = RowStream(args.input, args.input_format, args.prompt_column)
    done = _done(args) if args.resume else []
    student = _load(args)
    if stream.is_standard and sys.stdin is not None and sys.stdin.isatty():
        print("Reading questions from the terminal, one a line; Ctrl-D ends them.", file=sys.stderr)
    skipped: list[int] = []
    asked = 0
    chunk = args.batch_size * (1 if stream.is_standard else _BATCHES_AHEAD)
    from tqdm import tqdm

    bar = tqdm(total=stream.count, desc="Questions", unit="question", file=sys.stderr, disable=None)
    with bar, open_output(args.output, args.resume) as writer:
        questions = _after(done, _questions(stream, args, skipped), args, bar)
        for some in in_chunks(questions, chunk):
            writer.write(_results(student, some, args))
            asked += len(some)
            bar.update(len(some))
    if skipped:
        rows = ", ".join(map(str, skipped[:5])) + (", ..." if len(skipped) > 5 else "")
        print(
            f"Left out {len(skipped)} rows whose question is null or empty (rows count from 0): {rows}",
            file=sys.stderr,
        )
    if not asked and not done:
        raise DataError(f"{stream.name} has no question.")
    if args.output != STREAM:
        again = f" {len(done)} were there already." if done else ""
        print(f"Wrote the answers to {asked} questions to {args.output}.{again}", file=sys.stderr)
    return 0


def _load(args: PredictArguments) -> "RationaleStudent":
    from ..student import RationaleStudent
    from .select import load_callable

    quantization = None
    if args.load_in_4bit or args.load_in_8bit:
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(load_in_4bit=args.load_in_4bit, load_in_8bit=args.load_in_8bit)
    student = RationaleStudent.from_pretrained(
        args.model,
        device=args.device,
        dtype=args.dtype,
        quantization_config=quantization,
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        task_kind=args.task_kind if args.task_callable is None else load_callable(args.task_callable),
        with_discriminator=args.explain,
    )
    form = student.student_format
    if args.explain and not form.explains:
        student.explain([])  # tells why it cannot
    if not form.predicts and not args.explain:
        student.predict([])
    return student


def _questions(stream: RowStream, args: PredictArguments, skipped: list[int]) -> Iterator[AskedQuestion]:
    from ..student_questions import is_blank, question_problem

    for index, row in enumerate(stream):
        prompt = cell_of(row, args.prompt_column, index, stream, "prompt_column")
        if is_blank(prompt):
            skipped.append(index)
            continue
        problem = question_problem(prompt)
        if problem is not None:
            raise DataError(f"{stream.name}, row {index} (rows count from 0) cannot be asked: {problem}.")
        choices = None
        if args.choices_column is not None:
            choices = cell_of(row, args.choices_column, index, stream, "choices_column")
        yield AskedQuestion(id_of(row, args.id_column, index), prompt, choices)


def _done(args: PredictArguments) -> list[dict[str, Any]]:
    done = finished_results(args.output)
    for number, result in enumerate(done):
        if result.get("settings_hash") != args.settings_hash():
            raise ConfigError(
                f"--resume: line {number + 1} of {args.output} was written with other settings. Give the flags of the run "
                "that was stopped, or --overwrite_output."
            )
    return done


def _after(done: Sequence[dict[str, Any]], questions: Iterator[AskedQuestion], args, bar) -> Iterator[AskedQuestion]:
    """The questions that have no result yet. Results come in the order of the questions."""
    for number, result in enumerate(done):
        question = next(questions, None)
        if question is None or (result.get("id"), result.get("prompt")) != (question.id, question.prompt):
            raise ConfigError(
                f"--resume: line {number + 1} of {args.output} is of another question than the input has in its place. Give "
                "the input of the run that was stopped, or --overwrite_output."
            )
        bar.update(1)
    yield from questions


def _results(student: "RationaleStudent", questions: list[AskedQuestion], args: PredictArguments) -> list[dict]:
    prompts = [question.prompt for question in questions]
    choices = None if args.choices_column is None else [question.choices for question in questions]
    results: list[dict[str, Any]] = [{"id": question.id, "prompt": question.prompt} for question in questions]
    if args.labels and student.student_format.predicts:
        answers = student.predict(prompts, choices, args.batch_size, args.label_max_new_tokens)
        for result, answer in zip(results, answers, strict=True):
            result.update(predicted_text=answer.text, predicted=answer.label)
    if args.explain:
        explanations = student.explain(
            prompts,
            args.num_samples,
            args.temperature,
            args.seed,
            choices,
            args.batch_size,
            args.max_new_tokens,
        )
        for result, given in zip(results, explanations, strict=True):
            result.update(
                rationale=given.rationale,
                reached=given.answer,
                quality=given.quality,
                rationale_finished=given.is_finished,
            )
            if args.num_samples > 1:
                result["samples"] = [asdict(sample) for sample in given.samples]
    for result in results:
        result["settings_hash"] = args.settings_hash()
    return results
