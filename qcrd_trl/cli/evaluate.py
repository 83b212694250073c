"""`qcrd evaluate`: the accuracies of a trained student."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..answers import TASK_KINDS
from ..data.sources import load_dataset_from
from ..errors import ConfigError
from .common import parse_arguments


@dataclass
class EvaluateArguments:
    """
    Arguments of `qcrd evaluate`.

    Args:
        model (`str`):
            Folder of a trained student (full model or adapter), or a Hub name.
        dataset (`str`):
            Questions with their labels: a file, a folder, or a Hub name.
        output (`str`):
            JSON file to write.
        task_kind (`str`, *optional*):
            How an answer is read from a text.
        task_callable (`str`, *optional*):
            `module:function` that reads it, in place of `task_kind`.
        split (`str`, *optional*):
            Split of the dataset.
        dataset_config (`str`, *optional*):
            Configuration of a Hub dataset.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the labels.
        choices_column (`str`, *optional*):
            Column of a choice's options.
        max_questions (`int`, *optional*):
            Only the first so many rows.
        batch_size (`int`, *optional*, defaults to `32`):
            Questions at a time.
        label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a label.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the model.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
    """

    model: str = field(metadata={"help": "Folder of a trained student, or a Hub name."})
    dataset: str = field(metadata={"help": "Questions with their labels: a file, a folder, or a Hub name."})
    output: str = field(metadata={"help": "JSON file to write."})
    task_kind: str | None = field(default=None, metadata={"help": f"One of {', '.join(TASK_KINDS)}."})
    task_callable: str | None = field(default=None, metadata={"help": "module:function, a task kind of your own."})
    split: str | None = field(default=None, metadata={"help": "Split of the dataset."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the questions."})
    label_column: str = field(default="label", metadata={"help": "Column of the labels."})
    choices_column: str | None = field(default=None, metadata={"help": "Column of a choice's options."})
    max_questions: int | None = field(default=None, metadata={"help": "Only the first so many rows."})
    batch_size: int = field(default=32, metadata={"help": "Questions at a time."})
    label_max_new_tokens: int = field(default=32, metadata={"help": "Largest number of tokens of a label."})
    max_new_tokens: int = field(default=256, metadata={"help": "Largest number of tokens of a rationale."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})


def main(argv: Sequence[str]) -> int:
    """
    Evaluates a student, writes the results and prints a table.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Measures a trained student: label accuracy, and accuracy of the answer its rationale reaches."
    (args,) = parse_arguments(argv, EvaluateArguments, prog="qcrd evaluate", description=description)
    _check(args)
    # After the flags are known to be right, so that a wrong one is told at once.
    import torch
    import transformers

    from ..data.prompts import StudentFormat
    from ..evaluation import evaluate_student
    from ..models import load_model, load_tokenizer
    from ..version import __version__
    from .select import load_callable

    dataset = load_dataset_from(args.dataset, args.split, args.dataset_config)
    if args.max_questions is not None:
        dataset = dataset.select(range(min(args.max_questions, len(dataset))))
    trust = {"trust_remote_code": True} if args.trust_remote_code else {}
    model = load_model(args.model, dtype=args.dtype, **trust)
    model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tokenizer = load_tokenizer(args.model, **trust)
    started = time.perf_counter()
    result = evaluate_student(
        model,
        tokenizer,
        dataset,
        args.task_kind if args.task_callable is None else load_callable(args.task_callable),
        StudentFormat.from_pretrained(args.model),
        prompt_column=args.prompt_column,
        label_column=args.label_column,
        choices_column=args.choices_column,
        batch_size=args.batch_size,
        label_max_new_tokens=args.label_max_new_tokens,
        max_new_tokens=args.max_new_tokens,
    )
    seconds = time.perf_counter() - started
    outcome = result.to_dict()
    questions = outcome.pop("questions")
    report = {
        **outcome,
        "seconds": round(seconds, 1),
        "settings": asdict(args),
        "versions": {
            "qcrd_trl": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "questions": questions,
    }
    _write(Path(args.output), report)
    _print(report, args)
    return 0


def _check(args: EvaluateArguments) -> None:
    if args.task_callable is None and args.task_kind not in TASK_KINDS:
        raise ConfigError(f"Unknown task kind {args.task_kind!r}: expected one of {', '.join(TASK_KINDS)}.")
    for name in ("batch_size", "label_max_new_tokens", "max_new_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(args, name)}.")
    if args.max_questions is not None and args.max_questions < 1:
        raise ConfigError(f"--max_questions must be at least 1, got {args.max_questions}.")
    if Path(args.output).is_dir():
        raise ConfigError(f"--output {args.output} is a folder: give a file.")
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)


def _write(path: Path, report: dict) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _print(report: dict, args: EvaluateArguments) -> None:
    from rich.console import Console
    from rich.table import Table

    counts = report["counts"]
    table = Table(title=f"{args.model} on {counts['questions']} questions")
    for heading in ("", "accuracy", "right", "no answer read"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, key, unread in (
        ("label predicted", "label", "no_predicted_answer"),
        ("answer that the rationale reaches", "answer", "no_reached_answer"),
    ):
        table.add_row(
            name,
            f"{100 * report[f'{key}_accuracy']:.1f} %",
            f"{counts[f'{key}_correct']} of {counts['questions']}",
            str(counts[unread]),
        )
    console = Console()
    console.print(table)
    console.print(f"Written to {args.output}", highlight=False)
