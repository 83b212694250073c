"""The log of a training run as it lies beside the student: what `qcrd report` shows of a run, and what is drawn of it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import DataError
from .files import whole_file
from .version import __version__


RUN_LOG_FILE = "training_log.json"
TRAINER_STATE_FILE = "trainer_state.json"
METER_FILES = "meters_*.json"  # of a checkpoint, one a process
SCORES = "scores"  # what they call the counts of the discriminator's scores
# Who wrote a rationale that the discriminator scores.
SOURCES = ("teacher_positive", "teacher_negative", "student_sample")
SCORE_BINS = 50  # of equal width, from 0 to 1
PICTURES = (
    "losses.png",
    "quality.png",
    "accuracy.png",
    "selection.png",
    "router.png",
)  # what is drawn of a run, where there is something
_FORMAT = 1


@dataclass
class RunLog:
    """
    What a training run logged.

    Args:
        log_history (`list[dict]`):
            The trainer's log, entry by entry, each with its `step`.
        global_step (`int`):
            Optimizer steps that were made.
        scores (`dict`, *optional*):
            How the discriminator scored the rationales of the latest iteration while it trained: `iteration`, and `counts`,
            of each of `SOURCES` how many lie in each of `SCORE_BINS` equal bins from 0 to 1.
        selection (`dict`, *optional*):
            What is known of the training set: `report`, the figures of its `report.json`, and `shares`, its questions by the
            share of their rationales that are positives, in ten equal bins.
        settings (`dict`, *optional*):
            The recipe that the run was started with.
        source (`str`, *optional*):
            Name of the file that it was read from.
    """

    log_history: list[dict[str, Any]]
    global_step: int
    scores: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The log as plain types; numbers that JSON does not know are null."""
        plain = {name: value for name, value in asdict(self).items() if name != "source"}
        return _strict({"format": _FORMAT, **plain, "versions": {"qcrd_trl": __version__}})

    def write(self, folder: Path) -> Path:
        """Writes `training_log.json` into a folder, whole or not at all, and gives its place."""
        path = Path(folder) / RUN_LOG_FILE
        with whole_file(path) as aside:
            aside.write_text(json.dumps(self.as_dict(), allow_nan=False) + "\n", encoding="utf-8")
        return path


def is_run(folder: Path) -> bool:
    """Whether a folder holds the log of a run, or a checkpoint of one."""
    return any(path.is_file() for path in _places(folder))


def read_run(folder: Path) -> RunLog:
    """
    Reads the log of a run: that which goes furthest of `training_log.json`, which a run writes in the end, the trainer's
    state beside it, and the newest checkpoint.

    Args:
        folder (`Path`): `output_dir` of the run, or one of its checkpoints.

    Raises:
        [`DataError`]: if there is no log, or it is damaged.
    """
    runs = [_read(path) for path in _places(folder) if path.is_file()]
    if not runs:
        raise DataError(
            f"{folder} holds no log of a run: expected {RUN_LOG_FILE}, {TRAINER_STATE_FILE} or a checkpoint-* with one."
        )
    run = max(runs, key=lambda run: run.global_step)  # of equal ones the first
    if not run.log_history:
        raise DataError(f"{Path(folder) / run.source} has an empty log: nothing was logged before the run ended.")
    if run.selection is None:
        run.selection = next((other.selection for other in runs if other.selection is not None), None)
    return run


def _places(folder: Path) -> list[Path]:
    folder = Path(folder)
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    newest = sorted(checkpoints, key=lambda path: int(path.name[11:]))[-1:]
    return [folder / RUN_LOG_FILE, *(place / TRAINER_STATE_FILE for place in (folder, *newest))]


def _read(path: Path) -> RunLog:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("format", _FORMAT) != _FORMAT:
            raise ValueError(f"format {stored['format']!r} is not {_FORMAT}: another version of qcrd_trl wrote it")
        history, step = stored["log_history"], int(stored["global_step"])
        if not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in history):
            raise ValueError("an entry of log_history has no step")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no log of a run, or damaged ({type(error).__name__}: {error}).") from error
    name = path.name if path.parent.name[:11] != "checkpoint-" else f"{path.parent.name}/{path.name}"
    scores = stored.get("scores") if path.name == RUN_LOG_FILE else _scores_of_checkpoint(path.parent)
    return RunLog(history, step, scores, stored.get("selection"), stored.get("settings") or {}, name)


def _scores_of_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The counts of all processes, which a checkpoint keeps apart."""
    found = []
    for path in sorted(folder.glob(METER_FILES)):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")).get(SCORES) or {})
        except (ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({type(error).__name__}: {error}).") from error
    found = [part for part in found if part.get("counts")]
    latest = max((part["iteration"] for part in found), default=None)
    counts = [part["counts"] for part in found if part["iteration"] == latest]
    if not counts:
        return None
    summed = {source: [sum(column) for column in zip(*(part[source] for part in counts), strict=True)] for source in counts[0]}  # fmt: skip
    return {"iteration": latest, "counts": summed}


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_strict(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return _strict(value.item()) if hasattr(value, "item") else str(value)  # what a user logged by hand
