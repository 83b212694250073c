"""`qcrd score`: what a saved discriminator says of (question, rationale) pairs."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, DataError, ModelError
from .common import parse_arguments
from .streams import STREAM, RowStream, at_least_one, cell_of, check_output, id_of, in_chunks, open_output


_BATCHES_AHEAD = 8  # batches that are sorted by length together

Score = Callable[[list[Any], list[str]], list[float | None]]


@dataclass
class ScoreArguments:
    """
    Arguments of `qcrd score`.

    Args:
        model (`str`):
            Folder of a trained student with its discriminator, or of a discriminator; or a Hub name.
        pairs (`str`):
            Questions with rationales: a file, a folder, a Hub name, or `-` for JSON Lines on standard input.
        output (`str`, *optional*, defaults to `"-"`):
            JSON Lines file to write, or `-` for standard output.
        input_format (`str`, *optional*, defaults to `"auto"`):
            Format of the pairs: `jsonl`, `csv` or `tsv`.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the questions.
        rationale_column (`str`, *optional*, defaults to `"rationale"`):
            Column of the rationales: a text, or a list of texts, such as `positive_rationales`.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of the questions' keys; a row without one is known by its number.
        batch_size (`int`, *optional*, defaults to `32`):
            Rationales at a time.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the student.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        revision (`str`, *optional*):
            Branch, tag or commit of the repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
        overwrite_output (`bool`, *optional*, defaults to `False`):
            Whether to replace the output.
    """

    model: str = field(metadata={"help": "Folder of a trained student or of its discriminator, or a Hub name."})
    pairs: str = field(metadata={"help": "Questions with rationales: a file, a folder, a Hub name, or -."})
    output: str = field(default=STREAM, metadata={"help": "JSON Lines file to write, or - for standard output."})
    input_format: Literal["auto", "jsonl", "csv", "tsv"] = field(
        default="auto", metadata={"help": "Format of the pairs."}
    )
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the questions."})
    rationale_column: str = field(
        default="rationale", metadata={"help": "Column of the rationales: a text, or a list of texts."}
    )
    id_column: str = field(default="id", metadata={"help": "Column of the questions' keys."})
    batch_size: int = field(default=32, metadata={"help": "Rationales at a time."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})
    overwrite_output: bool = field(default=False, metadata={"help": "Replace the output."})

    def __post_init__(self):
        at_least_one(self, ("batch_size",))
        if self.prompt_column == self.rationale_column:
            raise ConfigError(f"--prompt_column and --rationale_column both name {self.prompt_column!r}.")


@dataclass(frozen=True)
class Pair:
    """A question and one of its rationales, by the rationale's place in its cell."""

    id: str
    prompt: Any
    rationale: str
    index: int


def main(argv: Sequence[str]) -> int:
    """
    Scores pairs, and writes a line for each.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Scores rationales with a saved discriminator: the quality in (0, 1) that training weights them by."
    (args,) = parse_arguments(argv, ScoreArguments, prog="qcrd score", description=description)
    check_output(args.output, args.overwrite_output)
    stream = RowStream(args.pairs, args.input_format, args.prompt_column)
    score = load_score(args)
    from tqdm import tqdm

    count = 0
    empty: list[int] = []
    chunk = args.batch_size * (1 if stream.is_standard else _BATCHES_AHEAD)
    bar = tqdm(desc="Rationales", unit="rationale", file=sys.stderr, disable=None)
    with bar, open_output(args.output) as writer:
        for some in in_chunks(_pairs(stream, args, empty), chunk):
            qualities = score([pair.prompt for pair in some], [pair.rationale for pair in some])
            writer.write(
                {
                    "id": pair.id,
                    "prompt": pair.prompt,
                    "rationale": pair.rationale,
                    "rationale_index": pair.index,
                    "quality": quality,
                }
                for pair, quality in zip(some, qualities, strict=True)
            )
            count += len(some)
            bar.update(len(some))
    if empty:
        rows = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        print(
            f"Left out {len(empty)} rows without a question or a rationale (rows count from 0): {rows}",
            file=sys.stderr,
        )
    if not count:
        raise DataError(f"{stream.name} has no question with a rationale.")
    if args.output != STREAM:
        print(f"Wrote the quality of {count} rationales to {args.output}.", file=sys.stderr)
    return 0


def load_score(args: ScoreArguments) -> Score:
    """
    What scores rationales: a discriminator with an encoder of its own, or the student whose hidden states it reads.

    Raises:
        ModelError: there is no discriminator, or no student for one that needs it.
    """
    from ..student_files import DISCRIMINATOR_FOLDER, discriminator_kind, load_scorer, student_folder

    folder = student_folder(args.model, args.revision, trust_remote_code=args.trust_remote_code)
    place = folder / DISCRIMINATOR_FOLDER if (folder / DISCRIMINATOR_FOLDER).is_dir() else folder
    if discriminator_kind(place) == "encoder":
        from ..models import device_of

        device = device_of(args.device)
        scorer = load_scorer(place, **({"trust_remote_code": True} if args.trust_remote_code else {}))
        scorer.to(device)
        return lambda prompts, rationales: scorer.score(prompts, rationales, batch_size=args.batch_size)
    from ..student import RationaleStudent

    load_scorer(folder)  # tells what is wrong before the student is loaded
    student = RationaleStudent.from_pretrained(
        _student_of(folder, args.model),
        device=args.device,
        dtype=args.dtype,
        trust_remote_code=args.trust_remote_code,
    )
    return lambda prompts, rationales: student.score(prompts, rationales, args.batch_size)


def _student_of(folder: Path, name: str) -> Path:
    from ..student_files import DISCRIMINATOR_FOLDER, check_student_folder, discriminator_kind

    if discriminator_kind(folder) is None:
        return folder
    parent = folder.resolve().parent
    if folder.resolve().name == DISCRIMINATOR_FOLDER:
        try:
            check_student_folder(parent, str(parent))
            return parent
        except ModelError:
            pass  # told below, in the words of what was named
    raise ModelError(
        f"The discriminator in {name!r} reads the hidden states of the student that it was trained with, which is not beside "
        "it. Name the student's folder, which holds the discriminator."
    )


def _pairs(stream: RowStream, args: ScoreArguments, empty: list[int]) -> Iterator[Pair]:
    from ..data.prompts import has_lone_surrogate
    from ..student_questions import is_blank, question_problem

    for index, row in enumerate(stream):
        prompt = cell_of(row, args.prompt_column, index, stream, "prompt_column")
        cell = cell_of(row, args.rationale_column, index, stream, "rationale_column")
        where = f"{stream.name}, row {index} (rows count from 0)"
        texts = cell if isinstance(cell, (list, tuple)) else [cell]
        if any(text is not None and not isinstance(text, str) for text in texts):
            raise DataError(
                f"{where}: column {args.rationale_column!r} must hold a text or a list of texts, got {cell!r:.80}."
            )
        if any(text is not None and has_lone_surrogate(text) for text in texts):
            raise DataError(
                f"{where}: column {args.rationale_column!r} holds a lone surrogate, which no tokenizer can take."
            )
        kept = [(place, text) for place, text in enumerate(texts) if text is not None and text.strip()]
        if is_blank(prompt) or not kept:
            empty.append(index)
            continue
        problem = question_problem(prompt)
        if problem is not None:
            raise DataError(f"{where} cannot be asked: {problem}.")
        for place, text in kept:
            yield Pair(id_of(row, args.id_column, index), prompt, text, place)
