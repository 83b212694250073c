"""`qcrd report`: what a samples file, a training set or a training run holds, as tables and pictures."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..answers import TASK_KINDS
from ..data.sources import DATA_SUFFIXES, PEEK, REPORT_FILE, load_rows
from ..data.text_files import suffix
from ..errors import ConfigError, DataError
from ..files import whole_file
from ..run_log import RUN_LOG_FILE, is_run, read_run
from ..sampling.completions import PARSING, parsing_of
from ..sampling.questions import find_columns, is_samples_file
from ..sampling.sample_report import SamplesReport
from ..sampling.sample_rows import samples_of_rows
from ..version import __version__
from .common import parse_arguments
from .report_selection import read_selection, selection_of
from .select import TRAIN_FILE, load_callable


SETTINGS_SUFFIX = ".settings.json"  # `qcrd sample` writes this beside its output
PLOTS_FOLDER = "plots"


@dataclass
class ReportArguments:
    """
    Arguments of `qcrd report`.

    Args:
        samples (`str`):
            What to report on: a samples file (one sample a line, as `qcrd sample` writes it, or one question a row, in any
            format that `qcrd select` reads), the folder that `qcrd select` wrote, or `output_dir` of a training run.
        task_kind (`str`, *optional*):
            How the answer of a text is found, one of [`~qcrd_trl.answers.TASK_KINDS`]. Left out: what
            `SAMPLES.settings.json` says, which `qcrd sample` writes.
        output_dir (`str`, *optional*):
            Folder of the picture. Left out: `plots` beside the samples file, or in the folder.
        json (`str`, *optional*):
            JSON file to write the figures to.
        prompt_column (`str`, *optional*):
            Column of the question; `prompt` if left out.
        label_column (`str`, *optional*):
            Column of the gold answer; `label` if left out and there.
        samples_column (`str`, *optional*):
            Column of the samples: a list a row, or one text a row; `rationales`, or else `text`, if left out.
        choices_column (`str`, *optional*):
            Column of the options of a multiple-choice question; `choices` if left out and there.
        id_column (`str`, *optional*):
            Column of the question's key; `id` if left out and there.
        settings_hash (`str`, *optional*):
            Report only the samples of this settings hash.
        parse_completions (`str`, *optional*, defaults to `"auto"`):
            Whether explanation and answer are told apart, as `qcrd select` does: `"always"`, `"never"`, or `"auto"`.
        split (`str`, *optional*):
            Split to read; the only one or `train` when left out.
        dataset_config (`str`, *optional*):
            Configuration of a dataset on the Hub.
        task_callable (`str`, *optional*):
            `module:function`, a function of yours from a text to its answer, or `None`.
        selection (`str`, *optional*):
            Of a training run, the folder of its training set as `qcrd select` wrote it: votes and agreement are then drawn
            too. `qcrd train` notes them by itself.
    """

    samples: str = field(
        metadata={"help": "Samples file, folder of `qcrd select`, or output_dir of a run; also without --samples."}
    )
    task_kind: str | None = field(
        default=None, metadata={"help": f"How the answer of a text is found: {', '.join(TASK_KINDS)}."}
    )
    output_dir: str | None = field(default=None, metadata={"help": "Folder of the picture; plots beside the samples."})
    json: str | None = field(default=None, metadata={"help": "JSON file to write the figures to."})
    prompt_column: str | None = field(default=None, metadata={"help": "Column of the question; prompt."})
    label_column: str | None = field(default=None, metadata={"help": "Column of the gold answer; label."})
    samples_column: str | None = field(
        default=None, metadata={"help": "Column of the samples (a list a row, or one text a row); rationales or text."}
    )
    choices_column: str | None = field(default=None, metadata={"help": "Column of the options; choices."})
    id_column: str | None = field(default=None, metadata={"help": "Column of the question's key; id."})
    settings_hash: str | None = field(default=None, metadata={"help": "Only the samples of this settings hash."})
    parse_completions: str = field(
        default="auto",
        metadata={
            "help": f"Whether explanation and answer are told apart, as in `qcrd select`: {', '.join(PARSING)}."
        },
    )
    split: str | None = field(default=None, metadata={"help": "Split to read; train or the only one if left out."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a dataset on the Hub."})
    task_callable: str | None = field(
        default=None, metadata={"help": "module:function, from a text to its answer or None, in place of a kind."}
    )
    selection: str | None = field(
        default=None, metadata={"help": "Of a run, the folder that `qcrd select` wrote its training set into."}
    )

    def __post_init__(self):
        if self.task_kind is not None and self.task_kind not in TASK_KINDS:
            raise ConfigError(f"Unknown task_kind {self.task_kind!r}: expected one of {', '.join(TASK_KINDS)}.")
        if self.task_kind is not None and self.task_callable is not None:
            raise ConfigError(f"Give task_kind {self.task_kind!r} or task_callable, not both.")
        parsing_of(self.parse_completions, is_samples_file=False)
        if self.json is not None and Path(self.json).expanduser().is_dir():
            raise ConfigError(f"--json {self.json} is a folder: give a file.")


def main(argv: Sequence[str]) -> int:
    """
    Prints the tables, draws the pictures and writes the figures.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    (args,) = parse_arguments(
        argv,
        ReportArguments,
        prog="qcrd report",
        description="Show what was sampled, selected or trained, as tables and pictures.",
        positional="samples",
    )
    source = Path(args.samples).expanduser()
    kind = kind_of(source)
    folder = _output_folder(args, source)
    if args.json is not None:
        _check_writable(Path(args.json).expanduser().absolute().parent, "--json")
    report, pictures = _REPORTS[kind](args, source, folder)
    if args.json is not None:
        with whole_file(Path(args.json).expanduser()) as aside:
            aside.write_text(json.dumps(report, indent=2, ensure_ascii=True) + "\n", encoding="utf-8")
    written = [str(path) for path in pictures] + ([args.json] if args.json else [])
    print(f"wrote {', '.join(written)}" if written else "wrote nothing: there is nothing to draw")
    return 0


def kind_of(source: Path) -> str:
    """
    What lies at a path.

    Args:
        source (`Path`): a file, a folder, or a name on the Hub.

    Returns:
        `str`: `"selection"` for a folder that `qcrd select` wrote, `"run"` for one of a training run, else `"samples"`.

    Raises:
        DataError: a folder that is neither.
    """
    if not source.is_dir():
        return "samples"
    if (source / REPORT_FILE).is_file() and (source / TRAIN_FILE).is_file():
        return "selection"
    if is_run(source):
        return "run"
    names = [path.name for path in source.iterdir()] + [path.name for path in source.glob("data/*")]
    if {"dataset_dict.json", "state.json"}.isdisjoint(names) and not any(
        suffix(Path(name)) in DATA_SUFFIXES and name != REPORT_FILE for name in names
    ):
        raise DataError(
            f"{source} is nothing to report on: expected a samples file, a folder of them, a folder that `qcrd select` "
            f"wrote ({TRAIN_FILE} and {REPORT_FILE}), or that of a training run ({RUN_LOG_FILE}, or a checkpoint)."
        )
    return "samples"


# Samples


def report_samples(args: ReportArguments, notes: list[str] | None = None) -> dict[str, Any]:
    """
    Counts a samples file, in one pass over a JSON Lines file and without keeping its texts.

    Args:
        args ([`ReportArguments`]): the settings.
        notes (`list[str]`, *optional*): gets what the reader of the report should know about the file.

    Returns:
        `dict`: see [`~qcrd_trl.sampling.sample_report.SamplesReport.as_dict`].

    Raises:
        ConfigError: no task kind is known.
        DataError: the source cannot be used; the message names the line or the row.
    """
    source = Path(args.samples).expanduser()
    notes = [] if notes is None else notes
    task_kind = _task_kind(args, source)
    rows = load_rows(args.samples, args.split, args.dataset_config, peek=PEEK, note=notes.append)
    columns = find_columns(
        rows,
        task_kind,
        **{part: getattr(args, f"{part}_column") for part in ("prompt", "label", "samples", "id", "choices")},
    )
    report = SamplesReport(task_kind, parsing_of(args.parse_completions, is_samples_file(rows)))
    others: set[str] = set()
    with tqdm(total=rows.num_rows, desc="reading", unit=" rows", file=sys.stderr) as bar:
        for question, sample in samples_of_rows(rows, columns):
            bar.update(question.row + 1 - bar.n)
            if args.settings_hash is not None and (sample or {}).get("settings_hash") != args.settings_hash:
                others.add(str((sample or {}).get("settings_hash")))
                continue
            report.add(question, sample)
    described = report.as_dict()
    if not described["questions"]:
        if others:
            raise DataError(
                f"{source} has no sample of settings hash {args.settings_hash!r}; it has: {', '.join(sorted(others))}."
            )
        raise DataError(f"{source} has no rows.")
    if report.repeated:
        notes.append(f"{report.repeated:,} samples stand more than once; each is counted once.")
    return described


def _task_kind(args: ReportArguments, source: Path) -> Any:
    if args.task_callable is not None:
        return load_callable(args.task_callable)
    if args.task_kind is not None:
        return args.task_kind
    path = source.with_name(source.name + SETTINGS_SUFFIX)
    expected = f"expected --task_kind, one of {', '.join(TASK_KINDS)}, or --task_callable module:function"
    if not source.exists() or not path.is_file():
        raise _missing_kind(source, path, expected)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        kinds = {key: value["task_kind"] for key, value in settings.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} does not say the task kind ({type(error).__name__}: {error}): {expected}.") from error
    chosen = {kind for key, kind in kinds.items() if args.settings_hash in (None, key)}
    if len(chosen) != 1 or not chosen <= set(TASK_KINDS):
        raise ConfigError(f"{path} names the task kinds {sorted(map(str, chosen))}: {expected}.")
    return chosen.pop()


def _missing_kind(source: Path, path: Path, expected: str) -> Exception:
    if not source.exists() and (source.suffix or os.sep in str(source)):
        return DataError(f"{source} does not exist.")
    if not source.exists():
        return ConfigError(
            f"There is no {source} here, and no task_kind was given for a dataset of the Hub: {expected}."
        )
    return ConfigError(f"No task_kind was given, and there is no {path.name} that says it: {expected}.")


def _samples(args: ReportArguments, source: Path, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    if args.selection is not None:
        raise ConfigError(f"--selection goes with a training run, and {source} is none: leave it out.")
    notes: list[str] = []
    report = report_samples(args, notes)
    # After everything was read, so that a wrong file is told at once.
    from ..plots.samples import plot_samples
    from ..plots.style import save_figure
    from .report_tables import print_samples

    print_samples(report, args.samples, notes)
    picture = folder / f"{source.name.partition('.')[0] or 'samples'}.png"
    title = f"{source.name}: {report['samples']:,} samples of {report['questions']:,} questions"
    save_figure(lambda: plot_samples(report, title), picture)
    return {"kind": "samples", **_provenance(args), "notes": notes, **report}, [picture]


# A training set


def _selection(args: ReportArguments, source: Path, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    _refuse_flags(args, f"{source} is a training set, whose report.json has the figures", "the samples file")
    report, shares = read_selection(source)
    from ..plots.samples import plot_selection
    from ..plots.style import save_figure
    from .report_tables import print_selection

    print_selection(report, args.samples)
    picture = folder / "selection.png"
    title = f"{source.resolve().name}: {report['rows']['out']:,} questions with {report['rows']['with_positive']:,} that have a positive"
    save_figure(lambda: plot_selection(report, shares, title), picture)
    return {"kind": "selection", **_provenance(args), "questions_by_share_of_positives": shares, **report}, [picture]


# A run


def _run(args: ReportArguments, source: Path, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    _refuse_flags(args, f"{source} is a training run", "the samples file", allowed=("selection",))
    run = read_run(source)
    if args.selection is not None:
        run.selection = selection_of(Path(args.selection).expanduser())
    from ..plots.runs import save_run_plots
    from .report_run import print_run

    print_run(run, args.samples)
    pictures = save_run_plots(run, folder, source.resolve().name)
    return {"kind": "run", **_provenance(args), **run.as_dict()}, pictures


_REPORTS = {"samples": _samples, "selection": _selection, "run": _run}


# Output


def _provenance(args: ReportArguments) -> dict[str, Any]:
    given = {name: value for name, value in asdict(args).items() if value is not None}
    return {"arguments": given, "versions": {"qcrd_trl": __version__}}


def _refuse_flags(args: ReportArguments, why: str, other: str, allowed: Sequence[str] = ()) -> None:
    known = ("samples", "output_dir", "json", *allowed)
    defaults = {part.name: part.default for part in fields(args)}
    given = [name for name, value in asdict(args).items() if value != defaults[name] and name not in known]
    if given:
        raise ConfigError(f"{why}: leave out --{', --'.join(given)}, or name {other}.")


def _output_folder(args: ReportArguments, source: Path) -> Path:
    if args.output_dir is not None:
        folder = Path(args.output_dir).expanduser()
    elif source.exists():
        folder = (source if source.is_dir() else source.parent) / PLOTS_FOLDER
    else:
        folder = Path(PLOTS_FOLDER)
    _check_writable(folder, "output_dir")
    return folder


def _check_writable(folder: Path, name: str) -> None:
    """Before the samples are read, which may take minutes."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{name} {folder} cannot be made: {existing} is a file. Name another folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{name} {folder} cannot be written: no permission for {existing}. Name another with --output_dir."
        )
