"""`qcrd select`: sampled rationales to a training set, by self-consistency."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tqdm import tqdm

from ..answers import TASK_KINDS
from ..data.shards import check_shard
from ..data.sources import PEEK, REPORT_FILE, Rows, load_rows
from ..errors import ConfigError, DataError
from ..sampling.chunks import Chunks, Part
from ..sampling.completions import parsing_of
from ..sampling.questions import find_columns, is_samples_file
from ..sampling.report import SelectionReport
from ..sampling.selecting import Selected, SelectionSettings, load_callable, select_chunk
from ..sampling.self_consistency import check_agreement, check_label_source, check_near_duplicates
from ..sampling.workers import map_in_order
from .common import parse_arguments
from .select_output import TRAIN_FILE, TrainingSetWriter, check_output, staging_folder


@dataclass
class SelectArguments:
    """
    Arguments of `qcrd select`.

    Args:
        samples (`str`):
            The sampled rationales: a JSONL, JSON, CSV, TSV or Parquet file, a folder of such files, a saved dataset, or
            the name of a dataset on the Hub. What `qcrd sample` wrote needs no further flag but the task kind.
        output_dir (`str`):
            Where to write `train.parquet` and `report.json`.
        task_kind (`str`, *optional*):
            How the answer of a text is found, one of [`~qcrd_trl.answers.TASK_KINDS`]. Needed unless `task_callable` is
            given.
        label_source (`str`, *optional*, defaults to `"gold"`):
            `"gold"`: positives agree with the label. `"majority"`: they agree with the most frequent answer, which
            becomes the label. `"threshold"`: the same, where enough samples agree.
        min_agreement (`float`, *optional*):
            Share of all samples of a question that must reach its label, in (0, 1]. 0.6 for `"threshold"` if left out.
            With `"gold"`: a question in which fewer do has no positives.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column of the question.
        label_column (`str`, *optional*, defaults to `"label"`):
            Column of the gold answer. Without `label_source="gold"` it may be absent and serves the report only.
        samples_column (`str`, *optional*):
            Column of the samples: a list a row, or one text a row. Left out: `rationales`, or else `text`.
        choices_column (`str`, *optional*):
            Column of the options of a multiple-choice question. Left out: `choices`, if there.
        id_column (`str`, *optional*, defaults to `"id"`):
            Column of a unique key. Where no column `id` exists, the row number is the key.
        split (`str`, *optional*):
            Split to read; the only one or `train` when left out.
        dataset_config (`str`, *optional*):
            Configuration of a dataset on the Hub.
        settings_hash (`str`, *optional*):
            Of a samples file that holds several: the settings whose samples vote.
        max_samples (`int`, *optional*):
            Use only the first so many samples of each question.
        parse_completions (`str`, *optional*, defaults to `"auto"`):
            Whether explanation and answer are told apart (`<Explanation>: ... <Answer>: ...`) and text behind the answer is
            cut: `"always"`, `"never"`, or `"auto"`: in a samples file of `qcrd sample`, and else in texts with these marks.
        near_duplicates (`float`, *optional*, defaults to `1.0`):
            Likeness, in (0, 1], from which a rationale is left out beside one of the same question and side. 1: off.
        discriminator (`str`, *optional*):
            An encoder discriminator, as `qcrd discriminator train` writes it, that scores all rationales kept.
        min_quality (`float`, *optional*):
            Positives that it scores below this, in (0, 1), are left out.
        device (`str`, *optional*):
            Where the discriminator runs; a GPU if there is one when left out.
        task_callable (`str`, *optional*):
            `module:function`, a function of yours from a text to its answer, or `None`.
        num_shards (`int`, *optional*, defaults to `1`):
            How many machines share the questions.
        shard_index (`int`, *optional*, defaults to `0`):
            Which of them this is. The `train.parquet` files of all, together, are that of one machine.
        num_workers (`int`, *optional*):
            Processes that read answers; as many as there are usable cores when left out. The result is the same.
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
        metadata={
            "help": "gold: positives agree with the label; majority: with the most frequent answer; threshold: with the "
            "most frequent answer, where enough samples do."
        },
    )
    min_agreement: float | None = field(
        default=None,
        metadata={"help": "Share of a question's samples that must reach its label; 0.6 for threshold if left out."},
    )
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the question (text or messages)."})
    label_column: str = field(
        default="label", metadata={"help": "Column of the gold answer; may be absent without label_source gold."}
    )
    samples_column: str | None = field(
        default=None,
        metadata={"help": "Column of the samples: a list a row, or one text a row; rationales or text if left out."},
    )
    choices_column: str | None = field(
        default=None, metadata={"help": "Column of the options: letter to text, or a list of texts."}
    )
    id_column: str = field(default="id", metadata={"help": "Column of a unique key; the row number without it."})
    split: str | None = field(default=None, metadata={"help": "Split to read; train or the only one if left out."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a dataset on the Hub."})
    settings_hash: str | None = field(
        default=None, metadata={"help": "The settings whose samples vote, in a samples file that holds several."}
    )
    max_samples: int | None = field(
        default=None, metadata={"help": "Use only the first so many samples of each question; all if left out."}
    )
    parse_completions: str = field(
        default="auto",
        metadata={
            "help": "Whether explanation and answer are told apart and text behind the answer is cut: always, never, or "
            "auto: in a samples file of `qcrd sample`, and in texts with the marks <Explanation> and <Answer>."
        },
    )
    near_duplicates: float = field(
        default=1.0, metadata={"help": "Likeness from which a rationale is left out beside another; 1: off."}
    )
    discriminator: str | None = field(
        default=None, metadata={"help": "Encoder discriminator that scores the rationales kept."}
    )
    min_quality: float | None = field(
        default=None, metadata={"help": "Positives that the discriminator scores below this are left out."}
    )
    device: str | None = field(
        default=None, metadata={"help": "Where the discriminator runs: cuda, cpu, ... Default: a GPU if there is one."}
    )
    task_callable: str | None = field(
        default=None, metadata={"help": "module:function, from a text to its answer or None, in place of a kind."}
    )
    num_shards: int = field(default=1, metadata={"help": "How many machines share the questions."})
    shard_index: int = field(default=0, metadata={"help": "Which of them this is, counted from 0."})
    num_workers: int | None = field(
        default=None, metadata={"help": "Processes that read answers; the usable cores if left out. Same result."}
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
        check_agreement(self.label_source, self.min_agreement)
        check_near_duplicates(self.near_duplicates)
        check_shard(self.num_shards, self.shard_index)
        for name in ("max_samples", "num_workers"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        parsing_of(self.parse_completions, is_samples_file=False)
        if self.min_quality is not None and self.discriminator is None:
            raise ConfigError("min_quality needs scores: name a --discriminator, or leave it out.")
        if self.device is not None and self.discriminator is None:
            raise ConfigError("device is where a --discriminator runs: name one, or leave it out.")
        if self.min_quality is not None and not 0 < self.min_quality < 1:
            raise ConfigError(f"min_quality is a score between 0 and 1, got {self.min_quality}.")


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
    check_output(output, args.overwrite_output_dir)
    if args.task_callable is not None:
        load_callable(args.task_callable)
    scorer = None
    if args.discriminator is not None:
        from ..models import device_of
        from ..rationale_scorer import RationaleScorer

        scorer = RationaleScorer.from_pretrained(args.discriminator).to(device_of(args.device))
    rows = load_rows(args.samples, args.split, args.dataset_config, peek=PEEK)
    report = SelectionReport(args.label_source, dataclasses.asdict(args))
    with staging_folder(output) as folder:
        columns = find_columns(
            rows,
            args.task_kind,
            **{part: getattr(args, f"{part}_column") for part in ("prompt", "label", "samples", "id", "choices")},
            needs_label=args.label_source == "gold",
        )
        chunks = Chunks(rows, columns, Part(args.num_shards, args.shard_index, args.settings_hash), folder)
        with (
            TrainingSetWriter(folder / TRAIN_FILE, with_scores=scorer is not None) as writer,
            closing(_selected(args, rows, chunks)) as results,
            tqdm(total=chunks.num_questions, desc="selecting", unit=" questions", file=sys.stderr) as bar,
        ):
            for selected in results:
                if scorer is not None:
                    from ..sampling.quality import add_scores

                    add_scores(selected, scorer, args.min_quality)
                for source_row, row in selected.rows:
                    writer.write(row, source_row)
                report.merge(selected.report)
                bar.update(selected.num_questions)
        if not report.with_positive and args.num_shards == 1:
            raise DataError(_explain_nothing(report, args))
        (folder / REPORT_FILE).write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
        output.mkdir(parents=True, exist_ok=True)
        for name in (TRAIN_FILE, REPORT_FILE):
            os.replace(folder / name, output / name)
    return report


def _selected(args: SelectArguments, rows: Rows, chunks: Chunks) -> Iterator[Selected]:
    settings = SelectionSettings(
        task_kind=args.task_kind,
        task_callable=args.task_callable,
        label_source=args.label_source,
        label_column=args.label_column,
        max_samples=args.max_samples,
        min_agreement=args.min_agreement,
        near_duplicates=args.near_duplicates,
        parse_completions=parsing_of(args.parse_completions, is_samples_file(rows)),
    )
    return map_in_order(partial(select_chunk, settings), chunks, args.num_workers)


def _explain_nothing(report: SelectionReport, args: SelectArguments) -> str:
    kind = f"task_callable {args.task_callable!r}" if args.task_callable else f"task kind {args.task_kind!r}"
    counts = [f"of {report.samples['total']} samples {report.samples['voting']} have an answer by {kind}"]
    if args.label_source == "gold" and report.gold["questions"]:
        counts.append(f"{report.gold['votes']} equal the label")
    if args.label_source != "gold" and report.ties:
        counts.append(f"{report.ties} votes are tied")
    if report.below_agreement:
        counts.append(f"{report.below_agreement} questions agree too little (--min_agreement)")
    if report.quality["positives"]:
        counts.append(f"{report.quality['positives']} positives are below --min_quality")
    if report.samples_dropped:
        counts.append("not usable: " + ", ".join(f"{n} {reason}" for reason, n in report.samples_dropped.items()))
    if report.rows_dropped:
        counts.append("left out: " + ", ".join(f"{n} {reason}" for reason, n in report.rows_dropped.items()))
    unlabelled = args.label_source == "gold" and report.rows_in and report.rows_dropped["label null"] == report.rows_in
    hint = " No row has a label: --label_source majority makes labels of the votes." if unlabelled else ""
    return (
        f"0 of {report.rows_in} questions have a positive rationale: {'; '.join(counts)}. Check --task_kind, "
        f"--label_column and --samples_column, and that the samples end in their answer.{hint}"
    )
