"""`qcrd sample`: rationales from a teacher, into a samples file that outlives being killed."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..answers import TASK_KINDS
from ..data.samples_file import SamplesFile
from ..data.shards import check_shard
from ..data.sources import load_rows
from ..errors import ConfigError, QCRDError
from ..sampling.questions import find_columns
from ..sampling.teacher_prompts import TeacherPrompt, load_prompt
from ..sampling.teacher_run import SamplingReport, TeacherQuestions, check_questions, run_teacher
from ..sampling.teachers import BACKENDS, load_teacher
from ..sampling.teachers.base import SamplingSettings, Teacher
from .common import parse_arguments


PROMPT_FORMATS = ("auto", "chat", "plain")

# Flags that only some backends take, as the argument of their class; a flag left out is not passed on.
_OPTIONS = {
    "transformers": {
        "batch_size": "batch_size",
        "dtype": "dtype",
        "device": "device",
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "trust_remote_code": "trust_remote_code",
    },
    "openai": {
        "base_url": "base_url",
        "max_concurrency": "max_concurrency",
        "request_timeout": "timeout",
        "max_retries": "max_retries",
        "api_key_env": "api_key_env",
    },
    "vllm": {"dtype": "dtype", "vllm_engine_args": "engine_args", "trust_remote_code": "trust_remote_code"},
}


@dataclass
class SampleArguments:
    """
    Arguments of `qcrd sample`.

    Args:
        dataset (`str`):
            Questions: a JSONL, JSON, CSV, TSV or Parquet file, a folder of such files, a saved dataset, or a Hub name.
        teacher_backend (`str`):
            `"transformers"`: a model in this process. `"openai"`: any server with an OpenAI-compatible interface. `"vllm"`:
            vLLM's offline engine.
        teacher (`str`):
            The teacher's model: a Hub name or a folder, or the name that the server knows it by.
        output (`str`):
            Samples file (JSON Lines) to write or to go on with.
        task_kind (`str`, *optional*, defaults to `"text"`):
            What is asked for, one of [`~qcrd_trl.answers.TASK_KINDS`]; it chooses the built-in template.
        num_samples (`int`, *optional*, defaults to `5`):
            Samples a question (QCRD: 5).
        temperature (`float`, *optional*, defaults to `0.7`):
            Sampling temperature (QCRD: 0.7); 0 is greedy and takes one sample.
        top_p (`float`, *optional*, defaults to `1.0`):
            Nucleus; 1 is the whole distribution. The paper is silent.
        max_new_tokens (`int`, *optional*, defaults to `512`):
            Largest number of tokens of a sample. The paper is silent.
        stop (`list[str]`, *optional*):
            Texts that end a sample. The beginning of a next question for plain texts, none for chat, if left out.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the run.
        base_url (`str`, *optional*):
            Address of the server (openai), such as `http://localhost:8000/v1`.
        max_concurrency (`int`, *optional*):
            Requests in flight (openai).
        request_timeout (`float`, *optional*):
            Seconds that an answer may take (openai).
        max_retries (`int`, *optional*):
            How often a request is repeated (openai).
        api_key_env (`str`, *optional*):
            Name of the environment variable that has the server's key (openai); `OPENAI_API_KEY` if left out.
        batch_size (`int`, *optional*):
            Samples at a time (transformers).
        dtype (`str`, *optional*):
            Precision (transformers, vllm): `float32`, `bfloat16`, `float16`, or `auto`, that of the checkpoint.
        device (`str`, *optional*):
            Device (transformers); the GPU if there is one.
        load_in_4bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize the teacher to 4 bits (transformers).
        load_in_8bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize the teacher to 8 bits (transformers).
        vllm_engine_args (`dict` or `str`, *optional*):
            Further arguments of `vllm.LLM`, as JSON or as a mapping in the YAML file.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own (transformers, vllm).
        prompt_format (`str`, *optional*, defaults to `"auto"`):
            `"chat"`: messages. `"plain"`: one text that the teacher goes on with. `"auto"`: chat, but plain for a local
            model without chat template.
        system_prompt (`str`, *optional*):
            System message; none if left out, since some models refuse it.
        prompt_file (`str`, *optional*):
            Template in place of the built-in one.
        few_shot_file (`str`, *optional*):
            Examples in place of the built-in ones.
        num_few_shot (`int`, *optional*):
            How many examples to show; all of a file, or else none, if left out.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the gold answers, which are kept with the samples and never shown to the teacher. May be absent.
        choices_column (`str`, *optional*):
            Column of the options of a multiple-choice question. Left out: `choices`, if there and `task_kind` is `"choice"`.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of a unique key. Where no column `id` exists, the row number is the key.
        split (`str`, *optional*):
            Split to read; the only one or `train` when left out.
        dataset_config (`str`, *optional*):
            Configuration of a dataset on the Hub.
        max_questions (`int`, *optional*):
            Only the first so many rows.
        num_shards (`int`, *optional*, defaults to `1`):
            How many runs share the questions.
        shard_index (`int`, *optional*, defaults to `0`):
            Which of them this is.
        allow_other_settings (`bool`, *optional*, defaults to `False`):
            Whether the file may hold samples of other settings, which stay as they are.
        max_failed_share (`float`, *optional*, defaults to `0.1`):
            Exit status 1 where more than this share of the samples failed.
    """

    dataset: str = field(
        metadata={
            "help": "Questions: JSONL, JSON, CSV, TSV or Parquet file, folder of such, saved dataset, or Hub name."
        }
    )
    teacher_backend: str = field(metadata={"help": f"One of {', '.join(BACKENDS)}."})
    teacher: str = field(metadata={"help": "The teacher's model: Hub name, folder, or its name on the server."})
    output: str = field(metadata={"help": "Samples file (JSON Lines) to write or to go on with."})
    task_kind: str = field(default="text", metadata={"help": f"What is asked for: {', '.join(TASK_KINDS)}."})
    num_samples: int = field(default=5, metadata={"help": "Samples a question."})
    temperature: float = field(default=0.7, metadata={"help": "Sampling temperature; 0 is greedy."})
    top_p: float = field(default=1.0, metadata={"help": "Nucleus; 1 is the whole distribution."})
    max_new_tokens: int = field(default=512, metadata={"help": "Largest number of tokens of a sample."})
    stop: list[str] | None = field(default=None, metadata={"help": "Texts that end a sample."})
    seed: int = field(default=0, metadata={"help": "Seed of the run."})
    base_url: str | None = field(default=None, metadata={"help": "openai: address of the server, ending in /v1."})
    max_concurrency: int | None = field(default=None, metadata={"help": "openai: requests in flight."})
    request_timeout: float | None = field(default=None, metadata={"help": "openai: seconds an answer may take."})
    max_retries: int | None = field(default=None, metadata={"help": "openai: how often a request is repeated."})
    api_key_env: str | None = field(
        default=None, metadata={"help": "openai: environment variable that has the key (OPENAI_API_KEY)."}
    )
    batch_size: int | None = field(default=None, metadata={"help": "transformers: samples at a time (16)."})
    dtype: str | None = field(
        default=None, metadata={"help": "transformers, vllm: float32, bfloat16, float16 or auto (the checkpoint's)."}
    )
    device: str | None = field(default=None, metadata={"help": "transformers: device; the GPU if there is one."})
    load_in_4bit: bool = field(default=False, metadata={"help": "transformers: quantize the teacher to 4 bits."})
    load_in_8bit: bool = field(default=False, metadata={"help": "transformers: quantize the teacher to 8 bits."})
    vllm_engine_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "vllm: further arguments of vllm.LLM, as JSON."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "transformers, vllm: let a model bring code of its own."}
    )
    prompt_format: str = field(
        default="auto", metadata={"help": "chat, plain, or auto: plain for a local model without chat template."}
    )
    system_prompt: str | None = field(default=None, metadata={"help": "System message; none if left out."})
    prompt_file: str | None = field(
        default=None, metadata={"help": "Template: YAML, or a text file that holds {question}."}
    )
    few_shot_file: str | None = field(default=None, metadata={"help": "Examples: YAML, JSON or JSON Lines."})
    num_few_shot: int | None = field(default=None, metadata={"help": "Examples to show; all of a file, or none."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the question (text or messages)."})
    label_column: str = field(default="label", metadata={"help": "Column of the gold answer; may be absent."})
    choices_column: str | None = field(
        default=None, metadata={"help": "Column of the options: letter to text, or a list of texts."}
    )
    id_column: str = field(default="id", metadata={"help": "Column of a unique key; the row number without it."})
    split: str | None = field(default=None, metadata={"help": "Split to read; train or the only one if left out."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a dataset on the Hub."})
    max_questions: int | None = field(default=None, metadata={"help": "Only the first so many rows."})
    num_shards: int = field(default=1, metadata={"help": "How many runs share the questions."})
    shard_index: int = field(default=0, metadata={"help": "Which of them this is, from 0."})
    allow_other_settings: bool = field(
        default=False, metadata={"help": "Let the file hold samples of other settings too."}
    )
    max_failed_share: float = field(
        default=0.1, metadata={"help": "Exit status 1 where more than this share of the samples failed."}
    )

    def __post_init__(self):
        for name, known in (
            ("teacher_backend", BACKENDS),
            ("task_kind", TASK_KINDS),
            ("prompt_format", PROMPT_FORMATS),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"Unknown {name} {getattr(self, name)!r}: expected one of {', '.join(known)}.")
        for name in ("num_samples", "max_new_tokens", "batch_size", "max_concurrency", "max_questions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} must be at least 1, got {value}.")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature must be at least 0, got {self.temperature}.")
        if self.temperature == 0 and self.num_samples > 1:
            raise ConfigError(
                f"At --temperature 0 all {self.num_samples} samples of a question would be equal: pass --num_samples 1, or a "
                "higher temperature."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p must be above 0 and at most 1, got {self.top_p}.")
        if not 0 <= self.max_failed_share <= 1:
            raise ConfigError(f"--max_failed_share must be from 0 to 1, got {self.max_failed_share}.")
        if self.stop is not None and not all(self.stop):
            raise ConfigError("--stop must not hold an empty text, which would end every sample at once.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed must be from 0 to 2**63 - 1, got {self.seed}.")
        if self.load_in_4bit and self.load_in_8bit:
            raise ConfigError("Give load_in_4bit or load_in_8bit, not both.")
        check_shard(self.num_shards, self.shard_index)
        taken = _OPTIONS[self.teacher_backend]
        for name in (name for options in _OPTIONS.values() for name in options):
            if name not in taken and getattr(self, name) not in (None, False):
                backends = " and ".join(backend for backend, options in _OPTIONS.items() if name in options)
                raise ConfigError(f"--{name} is of the backend {backends}: {self.teacher_backend} has no use for it.")
        if isinstance(self.vllm_engine_args, str):
            try:
                self.vllm_engine_args = json.loads(self.vllm_engine_args)
            except ValueError as error:
                raise ConfigError(f"--vllm_engine_args is not JSON: {error}.") from error
        if not isinstance(self.vllm_engine_args, dict | None):
            raise ConfigError('--vllm_engine_args must be a JSON object such as {"tensor_parallel_size": 2}.')


def main(argv: Sequence[str]) -> int:
    """
    Samples rationales, and prints what became of them.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: 0; 1 where too many samples failed; 130 after Ctrl-C.
    """
    (args,) = parse_arguments(
        argv, SampleArguments, prog="qcrd sample", description="Sample rationales from a teacher, a few a question."
    )
    report = sample(args)
    if report.interrupted:
        print(f"\nqcrd sample: stopped by Ctrl-C: {report.as_text()}\n{_how_to_go_on(args)}", file=sys.stderr)
        return 130
    print(f"{report.as_text()}\nin {args.output}")
    if report.failed_share > args.max_failed_share:
        print(
            f"qcrd sample: {report.statuses['failed']} of {report.wanted} samples failed, more than --max_failed_share "
            f"{args.max_failed_share}; their lines in {args.output} say why. The same command asks for them again.",
            file=sys.stderr,
        )
        return 1
    return 0


def sample(args: SampleArguments) -> SamplingReport:
    """
    Samples rationales into `args.output`.

    Args:
        args ([`SampleArguments`]): the settings.

    Returns:
        [`~qcrd_trl.sampling.teacher_run.SamplingReport`]: what was done; its `interrupted` tells of Ctrl-C.

    Raises:
        [`ConfigError`], [`DataError`]: before any sample is asked for.
        [`TeacherError`]: the teacher cannot be reached, or cannot go on.
    """
    rows = load_rows(args.dataset, args.split, args.dataset_config)
    columns = find_columns(
        rows,
        args.task_kind,
        **{part: getattr(args, f"{part}_column") for part in ("prompt", "label", "choices", "id")},
    )
    prompt = load_prompt(
        args.task_kind,
        columns.choices is not None,
        args.prompt_file,
        args.few_shot_file,
        args.num_few_shot,
        args.system_prompt,
    )
    questions = TeacherQuestions(rows, columns, args.num_shards, args.shard_index, args.max_questions)
    teacher = _teacher(args)
    try:
        stop = prompt.stop(teacher.chat) if args.stop is None else tuple(args.stop)
        how = SamplingSettings(args.temperature, args.top_p, args.max_new_tokens, stop)
        with SamplesFile(args.output, _settings(args, teacher, prompt, how), args.allow_other_settings) as file:
            report = check_questions(questions, prompt, file, args.num_samples, teacher.chat)
            if not report.wanted:
                file.begin()  # a shard without a question has its file too, so that all can be put together
            if report.found == report.wanted:
                return report
            teacher.check()
            try:
                return run_teacher(
                    teacher, questions, prompt, how, file, report, num_samples=args.num_samples, seed=args.seed
                )
            except (QCRDError, OSError):
                print(f"\nqcrd sample: {report.as_text()}\n{_how_to_go_on(args)}", file=sys.stderr)
                raise
    finally:
        teacher.close()


def _teacher(args: SampleArguments) -> Teacher:
    options = {theirs: getattr(args, ours) for ours, theirs in _OPTIONS[args.teacher_backend].items()}
    options = {name: value for name, value in options.items() if value is not None}
    if args.prompt_format != "auto":
        options["chat"] = args.prompt_format == "chat"
    if args.teacher_backend == "openai":
        options.setdefault("base_url", None)  # the one that the environment names
    return load_teacher(args.teacher_backend, args.teacher, **options)


def _settings(args: SampleArguments, teacher: Teacher, prompt: TeacherPrompt, how: SamplingSettings) -> dict[str, Any]:
    """All that decides what is sampled for a question."""
    return {
        "teacher": teacher.settings(),
        "sampling": {
            "temperature": how.temperature,
            "top_p": how.top_p,
            "max_new_tokens": how.max_new_tokens,
            "stop": list(how.stop),
        },
        "prompt": prompt.settings(),
        "task_kind": args.task_kind,
        "chat": teacher.chat,
        "seed": args.seed,
    }


def _how_to_go_on(args: SampleArguments) -> str:
    return (
        f"What came is in {Path(args.output)}. Run the same command again to go on; nothing of it is asked for again."
    )
