"""`qcrd select`: sampled rationales to a training set, by self-consistency."""

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from ..answers import TASK_KINDS
from ..data.sources import REPORT_FILE, load_rows
from ..errors import ConfigError, DataError
from ..records import Question, Selection
from ..sampling.questions import Columns, prompt_problem, read_questions
from ..sampling.report import SelectionReport
from ..sampling.self_consistency import check_label_source, select_rationales, text_problem
from .common import parse_arguments


TRAIN_FILE = "train.parquet"
_ROWS_A_WRITE = 1000
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@dataclass
class SelectArguments:
    """
    Arguments of `qcrd select`.

    Args:
        samples (`str`):
            The sampled rationales: a JSONL, JSON, CSV, TSV or Parquet file, a folder of such files, a saved dataset, or
            the name of a dataset on the Hub.
        output_dir (`str`):
            Where to write `train.parquet` and `report.json`.
        task_kind (`str`, *optional*):
            How the answer of a text is found, one of [`~qcrd_trl.answers.TASK_KINDS`]. Needed unless `task_callable` is
            given.
        label_source (`str`, *optional*, defaults to `"gold"`):
            `"gold"`: positives agree with the label. `"majority"`: they agree with the most frequent answer, which
            becomes the label.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the question.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the gold answer. With `label_source="majority"` it may be absent and serves the report only.
        samples_column (`str`, *optional*, defaults to `"rationales"`):
            Column of the samples: a list a row, or one text a row.
        choices_column (`str`, *optional*):
            Column of the options of a multiple-choice question.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of a unique key. Where no column `id` exists, the row number is the key.
        split (`str`, *optional*):
            Split to read; the only one or `train` when left out.
        dataset_config (`str`, *optional*):
            Configuration of a dataset on the Hub.
        max_samples (`int`, *optional*):
            Use only the first so many samples of each question.
        task_callable (`str`, *optional*):
            `module:function`, a function of yours from a text to its answer, or `None`.
        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Whether to replace what an earlier run wrote.
    """

    samples: str = field(
        metadata={"help": "JSONL, JSON, CSV, TSV or Parquet file, folder of such, saved dataset, or Hub name."}
    )
    output_dir: str = field(metadata={"help": f"Folder to write {TRAIN_FILE} and {REPORT_FILE} to."})
    task_kind: str | None = field(
        default=None, metadata={"help": f"How the answer of a text is found: {', '.join(TASK_KINDS)}."}
    )
    label_source: str = field(
        default="gold",
        metadata={"help": "gold: positives agree with the label; majority: with the most frequent answer."},
    )
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the question (text or messages)."})
    label_column: str = field(
        default="label", metadata={"help": "Column of the gold answer; may be absent with majority."}
    )
    samples_column: str = field(
        default="rationales", metadata={"help": "Column of the samples: a list a row, or one text a row."}
    )
    choices_column: str | None = field(
        default=None, metadata={"help": "Column of the options: letter to text, or a list of texts."}
    )
    id_column: str = field(default="id", metadata={"help": "Column of a unique key; the row number without it."})
    split: str | None = field(default=None, metadata={"help": "Split to read; train or the only one if left out."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a dataset on the Hub."})
    max_samples: int | None = field(
        default=None, metadata={"help": "Use only the first so many samples of each question; all if left out."}
    )
    task_callable: str | None = field(
        default=None, metadata={"help": "module:function, from a text to its answer or None, in place of a kind."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace what an earlier run wrote."})

    def __post_init__(self):
        kinds = ", ".join(TASK_KINDS)
        if self.task_callable is None and self.task_kind not in TASK_KINDS:
            got = "No task_kind was given" if self.task_kind is None else f"Unknown task_kind {self.task_kind!r}"
            raise ConfigError(f"{got}: expected one of {kinds}, or --task_callable module:function.")
        if self.task_callable is not None and self.task_kind not in (None, "custom"):
            raise ConfigError(f"Give task_kind {self.task_kind!r} or task_callable, not both.")
        check_label_source(self.label_source)
        if self.max_samples is not None and self.max_samples < 1:
            raise ConfigError(f"max_samples must be at least 1, got {self.max_samples}.")


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    (args,) = parse_arguments(
        argv, SelectArguments, prog="qcrd select", description="Turn sampled rationales into a training set."
    )
    report = select(args)
    print(report.as_text())
    print(f"\nwrote {Path(args.output_dir) / TRAIN_FILE} and {REPORT_FILE}")
    return 0


def select(args: SelectArguments) -> SelectionReport:
    """
    Selects rationales and writes the training set.

    Args:
        args ([`SelectArguments`]):
            The settings.

    Returns:
        [`~qcrd_trl.sampling.report.SelectionReport`]: The report, which is also written.

    Raises:
        ConfigError: a setting cannot work.
        DataError: the source cannot be used, or no question has a positive rationale; nothing is written then.
    """
    output = Path(args.output_dir).expanduser()
    _check_output(output, args.overwrite_output_dir)
    task_kind = args.task_kind if args.task_callable is None else load_callable(args.task_callable)
    rows = load_rows(args.samples, args.split, args.dataset_config)
    columns = _columns(args, rows.column_names)
    questions, total = read_questions(rows, columns)
    report = SelectionReport(args.label_source, dataclasses.asdict(args))
    with _staging_folder(output) as folder:
        with _Writer(folder / TRAIN_FILE) as writer:
            for question in tqdm(questions, total=total, desc="selecting", unit=" questions", file=sys.stderr):
                row = _select_one(question, args, task_kind, columns, report)
                if row is not None:
                    writer.write(row, question.row)
        if not report.with_positive:
            raise DataError(_explain_nothing(report, args))
        (folder / REPORT_FILE).write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
        output.mkdir(parents=True, exist_ok=True)
        for name in (TRAIN_FILE, REPORT_FILE):
            os.replace(folder / name, output / name)
    return report


def load_callable(name: str) -> Callable[[str], Any]:
    """
    Imports a function given as `module:function`; modules of the working directory are found too.

    Args:
        name (`str`):
            The name.

    Returns:
        `Callable`: The function.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"task_callable must be module:function, got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"task_callable {name!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigError(f"task_callable {name!r} is a {type(function).__name__}, not a function.")
    return function


def _columns(args: SelectArguments, present: list[str]) -> Columns:
    """A column that has its default name may be absent where nothing depends on it."""
    optional_label = args.label_source == "majority" and args.label_column == "label"
    return Columns(
        prompt=args.prompt_column,
        label=None if optional_label and args.label_column not in present else args.label_column,
        samples=args.samples_column,
        id=None if args.id_column == "id" and "id" not in present else args.id_column,
        choices=args.choices_column,
    )


def _select_one(
    question: Question, args: SelectArguments, task_kind: Any, columns: Columns, report: SelectionReport
) -> dict[str, Any] | None:
    """Returns the row for the training set, or `None` for a question that is left out; counts either in the report."""
    problem = prompt_problem(question.prompt)
    if problem:
        return report.drop("prompt", problem)
    label_problem = text_problem(question.label)
    if label_problem and (args.label_source == "gold" or label_problem == "lone_surrogate"):
        return report.drop("label", label_problem)
    try:
        selection: Selection = select_rationales(
            question.samples[: args.max_samples],
            task_kind=task_kind,
            label=question.label,
            choices=question.choices,
            label_source=args.label_source,
        )
    except DataError as error:
        raise DataError(f"Column {columns.label!r}, row {question.row} (rows count from 0): {error}") from error
    if not report.add(selection):
        return None
    return {
        "id": question.id,
        "prompt": question.prompt,
        "label": selection.label,
        "positive_rationales": list(selection.positives),
        "negative_rationales": list(selection.negatives),
        "raw_rationale": selection.raw,
    }


def _explain_nothing(report: SelectionReport, args: SelectArguments) -> str:
    kind = f"task_callable {args.task_callable!r}" if args.task_callable else f"task kind {args.task_kind!r}"
    counts = [f"of {report.samples['total']} samples {report.samples['voting']} have an answer by {kind}"]
    if args.label_source == "gold" and report.gold["questions"]:
        counts.append(f"{report.gold['votes']} equal the label")
    if args.label_source == "majority" and report.ties:
        counts.append(f"{report.ties} votes are tied")
    if report.samples_dropped:
        counts.append("not usable: " + ", ".join(f"{n} {reason}" for reason, n in report.samples_dropped.items()))
    if report.rows_dropped:
        counts.append("left out: " + ", ".join(f"{n} {reason}" for reason, n in report.rows_dropped.items()))
    return (
        f"0 of {report.rows_in} questions have a positive rationale: {'; '.join(counts)}. Check --task_kind, "
        f"--label_column and --samples_column, and that the samples end in their answer."
    )


def _check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output_dir {output} is a file: name a folder.")
    if not overwrite and output.is_dir() and any(path.name[0] != "." for path in output.iterdir()):
        raise ConfigError(f"output_dir {output} is not empty: name a new one, or pass --overwrite_output_dir.")


@contextlib.contextmanager
def _staging_folder(output: Path) -> Iterator[Path]:
    """A folder on the same disk as `output`, from which finished files are renamed; gone afterwards, whatever happens."""
    existing = next(path for path in (output, *output.absolute().parents) if path.is_dir())
    folder = Path(tempfile.mkdtemp(prefix=".qcrd-select-", dir=existing))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Writer:
    """Writes rows to Parquet, so many at a time, with the same types whatever the first rows hold."""

    def __init__(self, path: Path):
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[dict[str, Any]] = []
        self._prompt_type: type | None = None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def write(self, row: dict[str, Any], source_row: int) -> None:
        kind = type(row["prompt"])
        self._prompt_type = self._prompt_type or kind
        if kind is not self._prompt_type:
            raise DataError(
                f"Row {source_row} (rows count from 0): its prompt is {'a text' if kind is str else 'a list of messages'}"
                f", unlike the prompts before it. Write all of them in one form."
            )
        self._rows.append(row)
        if len(self._rows) >= _ROWS_A_WRITE:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        texts = pa.list_(pa.string())
        schema = pa.schema(
            {
                "id": pa.string(),
                "prompt": pa.string() if self._prompt_type is str else _MESSAGES,
                "label": pa.string(),
                "positive_rationales": texts,
                "negative_rationales": texts,
                "raw_rationale": pa.string(),
            }
        )
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=schema))
        self._rows = []
