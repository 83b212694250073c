"""`qcrd quality`: how well a trained discriminator tells good rationales from bad ones."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..answers import TASK_KINDS
from ..errors import ConfigError
from ..files import whole_file
from .common import check_output_file, parse_arguments


@dataclass
class QualityArguments:
    """
    Arguments of `qcrd quality`.

    Args:
        model (`str`):
            Folder of a trained student with its discriminator, or a Hub name.
        dataset (`str`):
            Held-out questions with rationales: what `qcrd select` wrote, or any file, folder or Hub name with the columns
            `prompt`, `positive_rationales` and optionally `negative_rationales`.
        output (`str`):
            JSON file to write. The pictures go beside it.
        temperatures (`list[float]`, *optional*, defaults to `[1.5, 2.0]`):
            Temperatures at which the student is sampled.
        num_samples (`int`, *optional*, defaults to `1`):
            Samples of a question at each temperature.
        num_questions (`int`, *optional*):
            Only so many questions, drawn by the seed.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples and of the questions.
        task_kind (`str`, *optional*):
            How an answer is read from a text; tells apart which samples reach the label.
        task_callable (`str`, *optional*):
            `module:function` that reads it, in place of `task_kind`.
        split (`str`, *optional*):
            Split of the dataset.
        dataset_config (`str`, *optional*):
            Configuration of a Hub dataset.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the labels, which may be missing.
        choices_column (`str`, *optional*):
            Column of a choice's options.
        batch_size (`int`, *optional*, defaults to `32`):
            Rationales at a time.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a sample.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the student.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        revision (`str`, *optional*):
            Branch, tag or commit of the student's repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
    """

    model: str = field(metadata={"help": "Folder of a trained student with its discriminator, or a Hub name."})
    dataset: str = field(
        metadata={"help": "Held-out questions with rationales: a folder of `qcrd select`, a file, or a Hub name."}
    )
    output: str = field(metadata={"help": "JSON file to write; the pictures go beside it."})
    temperatures: list[float] = field(
        default_factory=lambda: [1.5, 2.0], metadata={"help": "Temperatures at which the student is sampled."}
    )
    num_samples: int = field(default=1, metadata={"help": "Samples of a question at each temperature."})
    num_questions: int | None = field(default=None, metadata={"help": "Only so many questions, drawn by the seed."})
    seed: int = field(default=0, metadata={"help": "Seed of the samples and of the questions."})
    task_kind: str | None = field(
        default=None, metadata={"help": f"How an answer is read from a text: {', '.join(TASK_KINDS)}."}
    )
    task_callable: str | None = field(default=None, metadata={"help": "module:function, a task kind of your own."})
    split: str | None = field(default=None, metadata={"help": "Split of the dataset."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the questions."})
    label_column: str = field(default="label", metadata={"help": "Column of the labels, which may be missing."})
    choices_column: str | None = field(default=None, metadata={"help": "Column of a choice's options."})
    batch_size: int = field(default=32, metadata={"help": "Rationales at a time."})
    max_new_tokens: int = field(default=256, metadata={"help": "Largest number of tokens of a sample."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})

    def __post_init__(self):
        if self.task_kind is not None and self.task_kind not in TASK_KINDS:
            raise ConfigError(f"Unknown task_kind {self.task_kind!r}: expected one of {', '.join(TASK_KINDS)}.")
        if self.task_kind is not None and self.task_callable is not None:
            raise ConfigError(f"Give task_kind {self.task_kind!r} or task_callable, not both.")
        for name in ("num_samples", "batch_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, got {getattr(self, name)}.")


def main(argv: Sequence[str]) -> int:
    """
    Scores rationales of held-out questions, writes what came out, draws it and prints tables.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = (
        "Measures how well a trained discriminator tells good rationales from bad ones, on held-out questions."
    )
    (args,) = parse_arguments(argv, QualityArguments, prog="qcrd quality", description=description)
    output = Path(args.output).expanduser()
    check_output_file(output)
    # After the flags are known to be right, so that a wrong one is told at once.
    from ..data.sources import load_dataset_from
    from ..plots.quality import plot_quality, plot_reliability
    from ..plots.style import save_figure
    from ..rationale_quality import rationale_quality
    from ..student import RationaleStudent
    from .select import load_callable

    dataset = load_dataset_from(args.dataset, args.split, args.dataset_config)
    student = RationaleStudent.from_pretrained(
        args.model,
        device=args.device,
        dtype=args.dtype,
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        task_kind=args.task_kind if args.task_callable is None else load_callable(args.task_callable),
    )
    result = rationale_quality(
        student,
        dataset,
        args.temperatures,
        args.num_samples,
        args.num_questions,
        args.seed,
        args.prompt_column,
        args.label_column,
        args.choices_column,
        args.batch_size,
        args.max_new_tokens,
        progress=True,
    )
    report = {
        "model": _last_part(args.model),
        **result.as_dict(),
        "arguments": _arguments(args),
        "versions": _versions(),
    }
    with whole_file(output) as aside:
        aside.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    title = f"{report['model']}: {report['questions']:,} held-out questions"
    pictures = []
    for name, draw in (("density", plot_quality), ("reliability", plot_reliability)):
        pictures.append(output.with_name(f"{output.stem}_{name}.png"))
        save_figure(lambda draw=draw: draw(report, title), pictures[-1])
    print_quality(report)
    print(f"wrote {', '.join(map(str, (output, *pictures)))}")
    return 0


def print_quality(report: dict[str, Any]) -> None:
    """Prints the tables of a report of rationale quality."""
    from rich.console import Console
    from rich.table import Table

    from ..plots.quality import label_of

    table = Table(title=f"Quality scores, {report['questions']:,} questions", title_justify="left")
    for heading in ("", "number", "mean", "right", "AUC", "ECE", "Brier"):
        table.add_column(heading, justify="right" if heading else "left")
    for source, found in report["sources"].items():
        against = report["against"].get(source, {})
        reach = found["reach_the_label"]
        table.add_row(
            label_of(source),
            f"{found['scored']:,}",
            _number(found["mean"]),
            "-" if reach is None else f"{100 * reach:.1f} %",
            *(_number(against.get(name)) for name in ("auc", "expected_calibration_error", "brier_score")),
        )
    console = Console()
    console.print(table)
    console.print(
        "right: reaches the label. AUC: the chance that a teacher's positive scores above a rationale of the line. ECE and Brier: error of the score as "
        "the chance of being the positive of the two, half of each.",
        highlight=False,
    )
    varied = report["diversity"]
    if varied["questions_with_several_positives"]:
        console.print(
            f"Positives of a question ({varied['questions_with_several_positives']:,} questions have several): distinct words "
            f"{_number(varied['distinct_1'])}, distinct word pairs {_number(varied['distinct_2'])}, words that two of them share "
            f"{_number(varied['pairwise_similarity'])}.",
            highlight=False,
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _last_part(name: str) -> str:
    """A local path tells nothing to others, and a Hub name has two parts."""
    path = Path(name).expanduser()
    return path.resolve().name if path.exists() else name


def _arguments(args: QualityArguments) -> dict[str, Any]:
    given = {name: value for name, value in asdict(args).items() if name not in ("model", "output", "dataset")}
    return {**given, "dataset": _last_part(args.dataset)}


def _versions() -> dict[str, str]:
    import torch
    import transformers

    from ..version import __version__

    return {
        "qcrd_trl": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
