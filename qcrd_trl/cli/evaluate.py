"""`qcrd evaluate`: the accuracies of a trained student, and what a difference of two is worth."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..answers import TASK_KINDS
from ..data.sources import load_rows
from ..errors import ConfigError
from .common import check_output_file, parse_arguments
from .comparison import compare


# Flags that a comparison reads; all others are about a student.
COMPARING = ("compare", "output", "seed", "allow_settings")


@dataclass
class EvaluateArguments:
    """
    Arguments of `qcrd evaluate`.

    Args:
        model (`str`, *optional*):
            Folder of a trained student (full model or adapter), or a Hub name. Needed unless `compare` is given.
        dataset (`str`, *optional*):
            Questions with their labels: a file, a folder, or a Hub name. Needed unless `compare` is given.
        output (`str`, *optional*):
            JSON file to write. Needed unless `compare` is given.
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
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of a unique key. Where no column `id` exists, the row number is the key.
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
        revision (`str`, *optional*):
            Branch, tag or commit of the repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
        tasks (`list[str]`, *optional*):
            `label`, `rationale` or both; what the student was taught if left out.
        num_samples (`int`, *optional*, defaults to `1`):
            Texts a question and task, of which the most frequent answer counts.
        temperature (`float`, *optional*):
            Sampling temperature. If left out, one text is greedy and several are sampled at 0.7.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples, and of the resamples of a comparison.
        compare (`list[str]`, *optional*):
            Results to compare, in place of evaluating: each with the first. Several seeds of one student are joined by
            commas.
        allow_settings (`bool`, *optional*, defaults to `False`):
            Whether to compare results of other samples, temperatures or limits.
    """

    model: str | None = field(default=None, metadata={"help": "Folder of a trained student, or a Hub name."})
    dataset: str | None = field(
        default=None, metadata={"help": "Questions with their labels: a file, a folder, or a Hub name."}
    )
    output: str | None = field(default=None, metadata={"help": "JSON file to write."})
    task_kind: str | None = field(default=None, metadata={"help": f"One of {', '.join(TASK_KINDS)}."})
    task_callable: str | None = field(default=None, metadata={"help": "module:function, a task kind of your own."})
    split: str | None = field(default=None, metadata={"help": "Split of the dataset."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the questions."})
    label_column: str = field(default="label", metadata={"help": "Column of the labels."})
    choices_column: str | None = field(default=None, metadata={"help": "Column of a choice's options."})
    id_column: str = field(default="id", metadata={"help": "Column of a unique key; the row number without it."})
    max_questions: int | None = field(default=None, metadata={"help": "Only the first so many rows."})
    batch_size: int = field(default=32, metadata={"help": "Questions at a time."})
    label_max_new_tokens: int = field(default=32, metadata={"help": "Largest number of tokens of a label."})
    max_new_tokens: int = field(default=256, metadata={"help": "Largest number of tokens of a rationale."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})
    tasks: list[str] | None = field(
        default=None, metadata={"help": "label, rationale or both; what the student was taught if left out."}
    )
    num_samples: int = field(
        default=1, metadata={"help": "Texts a question and task, of which the most frequent answer counts."}
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Sampling temperature; if left out, one text is greedy, several at 0.7."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the samples, and of a comparison's resamples."})
    compare: list[str] | None = field(
        default=None,
        metadata={"help": "Results to compare with the first of them: A.json B.json, or A1.json,A2.json for seeds."},
    )
    allow_settings: bool = field(
        default=False, metadata={"help": "Compare results of other samples, temperatures or limits, too."}
    )


def main(argv: Sequence[str]) -> int:
    """
    Evaluates a student, writes the results and prints a table; or compares such results.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Measures a trained student: label accuracy, and accuracy of the answer its rationale reaches."
    (args,) = parse_arguments(argv, EvaluateArguments, prog="qcrd evaluate", description=description)
    _check(args)
    if args.output is not None:
        check_output_file(Path(args.output))
    if args.compare is not None:
        return compare(args.compare, args.output, args.seed, args.allow_settings)
    # After the flags are known to be right, so that a wrong one is told at once.
    from ..data.prompts import StudentFormat
    from ..evaluation import EvaluationSettings, results_of, write_results
    from ..evaluation.asking import ask, questions_of
    from ..evaluation.outcome import outcome_of
    from ..models import device_of
    from ..repositories import shown_name
    from ..sampling.questions import Columns
    from ..student import RationaleStudent
    from ..student_files import check_student_folder, student_folder
    from .select import load_callable

    settings = EvaluationSettings(
        args.task_kind if args.task_callable is None else load_callable(args.task_callable),
        args.tasks,
        args.num_samples,
        args.temperature,
        args.seed,
        args.batch_size,
        args.label_max_new_tokens,
        args.max_new_tokens,
    )
    device = device_of(args.device)
    # A repository is downloaded first: the form that its student was taught lies in it.
    folder = student_folder(args.model, args.revision, trust_remote_code=args.trust_remote_code)
    check_student_folder(folder, args.model)
    settings.tasks_of(StudentFormat.from_pretrained(folder) or StudentFormat())
    rows = load_rows(args.dataset, args.split, args.dataset_config)
    columns = Columns(
        prompt=args.prompt_column, label=args.label_column, id=args.id_column, choices=args.choices_column
    )
    questions, skipped = questions_of(rows, settings.task_kind, columns, limit=args.max_questions)
    student = RationaleStudent.from_pretrained(
        folder, device, args.dtype, trust_remote_code=args.trust_remote_code, with_discriminator=False
    )
    form = student.student_format
    started = time.perf_counter()
    answers = ask(student.model, student.tokenizer, questions, settings, form)
    result = outcome_of(questions, answers, settings.task_kind, skipped)
    told = {name: value for name, value in asdict(args).items() if name not in ("model", *COMPARING)}
    told |= {"dataset": shown_name(args.dataset), "device": str(device), "temperature": settings.temperature}
    told |= {
        "tasks": list(answers),
        "student_format": asdict(form),
        "seconds": round(time.perf_counter() - started, 1),
    }
    report = results_of(result, args.model, args.seed, told)
    write_results(args.output, report)
    _print(report, args)
    return 0


def _check(args: EvaluateArguments) -> None:
    if args.compare is not None:
        defaults = EvaluateArguments()
        given = [name for name in vars(defaults) if getattr(args, name) != getattr(defaults, name)]
        other = [name for name in given if name not in COMPARING]
        if other:
            raise ConfigError(
                f"--compare reads results that are there and evaluates nothing: leave --{other[0]} out, or --compare."
            )
        return
    for name in ("model", "dataset", "output"):
        if getattr(args, name) is None:
            raise ConfigError(f"--{name} is missing. (To compare results that are there, give --compare.)")
    if args.task_callable is None and args.task_kind not in TASK_KINDS:
        raise ConfigError(f"Unknown task kind {args.task_kind!r}: expected one of {', '.join(TASK_KINDS)}.")
    for name in ("batch_size", "label_max_new_tokens", "max_new_tokens", "num_samples"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(args, name)}.")
    if args.max_questions is not None and args.max_questions < 1:
        raise ConfigError(f"--max_questions must be at least 1, got {args.max_questions}.")


def _print(report: dict, args: EvaluateArguments) -> None:
    from rich.console import Console
    from rich.table import Table

    counts, settings = report["counts"], report["settings"]
    table = Table(title=f"{report['model']} on {counts['questions']} questions")
    for heading in ("", "accuracy", "95 % interval", "right", "no answer read"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, metric, key, unread in (
        ("label predicted", "label_accuracy", "label_correct", "no_predicted_answer"),
        ("answer that the rationale reaches", "answer_accuracy", "answer_correct", "no_reached_answer"),
        ("agreement of the two", "agreement", "agrees", None),
    ):
        if report[metric] is None:
            table.add_row(name, "not measured")
            continue
        low, high = (f"{100 * end:.1f}" for end in report["intervals"][metric])
        share = f"{counts[key]} of {counts['questions']}"
        table.add_row(
            name,
            f"{100 * report[metric]:.1f} %",
            f"{low} to {high}",
            share,
            "" if unread is None else str(counts[unread]),
        )
    console = Console()
    console.print(table)
    if settings["num_samples"] > 1:
        ties = ", ".join(
            f"{counts[key]} {key.replace('_', ' ')}" for key in ("label_ties", "answer_ties") if key in counts
        )
        console.print(
            f"By the vote of {settings['num_samples']} samples a question at temperature {settings['temperature']}; a tie is "
            f"no answer ({ties}).",
            highlight=False,
        )
    for task, weight in (("label", "alpha_1"), ("rationale", "alpha_2")):
        if not settings["student_format"]["predicts" if task == "label" else "explains"]:
            console.print(f"The student was not taught the {task} task ({weight} = 0): not measured.", highlight=False)
    console.print(f"Written to {args.output}", highlight=False)
