"""The samples file: append-only JSON Lines of [`~qcrd_trl.records.TeacherSample`] that survives being killed at any moment."""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from ..errors import ConfigError, DataError
from ..files import whole_file
from ..records import SAMPLE_STATUSES, TeacherSample


# A process that is killed loses nothing that it wrote: the system has it. Only when the machine itself goes down is more at
# stake, and then at most these seconds' answers are asked for again. A flush a line would cost milliseconds each.
SYNC_SECONDS = 5.0
_BEGINNING = b'{"id": "'  # of every line that is written here
_DIGEST = 64  # bits of a question's digest, below the bits of the samples that it has


def settings_hash(settings: Mapping[str, Any]) -> str:
    """First 16 hexadecimal digits of the SHA-256 of settings as canonical JSON."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_path(path: Path) -> Path:
    """Where the settings of a samples file are kept: `{hash: settings}`, as JSON."""
    return path.with_name(f"{path.name}.settings.json")


def read_samples(path: str | os.PathLike) -> Iterator[TeacherSample]:
    """
    The samples of a file, in its order, one at a time. A last line that was cut off is left out.

    Args:
        path (`str` or `os.PathLike`): the file.

    Raises:
        [`DataError`]: a line is damaged.
    """
    path = Path(path)
    with path.open("rb") as file:
        for line in _lines(file, path):
            if line.record is not None:
                yield TeacherSample(**line.record)


class SamplesFile:
    """
    A samples file that a run adds to. Entering it locks the file and reads which samples are there; nothing is changed
    before [`SamplesFile.begin`].

    Only the keys are held in memory, of the samples of these settings: about 100 bytes a question.

    Args:
        path (`str` or `os.PathLike`):
            The file; made if absent.
        settings (`Mapping[str, Any]`):
            All that decides what is sampled, as JSON values, without secrets.
        allow_other_settings (`bool`, *optional*, defaults to `False`):
            Whether the file may hold samples of other settings, which stay and are not reused.
        sync_seconds (`float`, *optional*, defaults to `5.0`):
            Seconds after which what was written is flushed to the disk.

    Raises:
        [`ConfigError`]: another process has it, it holds samples of other settings, or it is a folder; on entering.
        [`DataError`]: a line other than the last is damaged, or a sample stands twice; on entering.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, Any],
        allow_other_settings: bool = False,
        sync_seconds: float = SYNC_SECONDS,
    ):
        self.path = Path(path).expanduser()
        self.settings = json.loads(json.dumps(settings))
        self.hash = settings_hash(self.settings)
        self.allow_other_settings = allow_other_settings
        self.sync_seconds = sync_seconds
        self.statuses: Counter[str] = Counter()
        self._held: dict[str, int] = {}
        self._found = _Found()
        self._lock: FileLock | None = None
        self._file: BinaryIO | None = None
        self._synced = 0.0

    def __enter__(self) -> "SamplesFile":
        if self.path.is_dir():
            raise ConfigError(f"--output {self.path} is a folder: give a file.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{self.path}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"Another process is writing {self.path}. Wait until it ends, or give each its own --output (with "
                "--num_shards and --shard_index, to share the questions out) and put the files together afterwards."
            ) from None
        self._lock = lock
        try:
            if self.path.exists():
                if not os.access(self.path, os.W_OK):
                    raise PermissionError(13, "Permission denied", str(self.path))
                self._scan()
                self._check_settings()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def count(self) -> int:
        """Samples of these settings that the file holds, whatever their status."""
        return sum(self.statuses.values())

    def begin(self) -> None:
        """
        Makes the file ready for more: a last line that was cut off and the failed samples of these settings are taken out,
        and the settings are written beside it. Done once; [`SamplesFile.add`] does it if need be.
        """
        if self._file is not None:
            return
        if self._found.failed:
            self._drop_failed()
        elif self._found.torn is not None:
            with self.path.open("r+b") as file:
                file.truncate(self._found.torn)
                os.fsync(file.fileno())
        self._keep_settings()
        self._file = self.path.open("ab", buffering=0)
        if self._found.unended and not self._found.failed:
            self._file.write(b"\n")
        self._found = _Found()
        self._synced = time.monotonic()

    def missing(self, id: str, num_samples: int) -> tuple[int, ...]:
        """Numbers below `num_samples` of the samples of a question that are not there."""
        held = self._held.get(id, 0) >> _DIGEST
        return tuple(index for index in range(num_samples) if not held >> index & 1)

    def check_question(self, id: str, prompt: Any, choices: Any) -> None:
        """
        Raises:
            [`DataError`]: the file holds samples of another question by this id.
        """
        held = self._held.get(id)
        if held is not None and held & (1 << _DIGEST) - 1 != _digest(prompt, choices):
            raise DataError(
                f"Question {id!r} is not the one that {self.path} holds samples of: its prompt or its choices have "
                "changed. Write to a new --output, or give changed questions new ids."
            )

    def add(self, samples: Sequence[TeacherSample]) -> None:
        """
        Appends samples, in one write. When this returns, killing the process does not lose them.

        Args:
            samples (`Sequence[TeacherSample]`): of these settings, none of which is there.
        """
        self.begin()
        for sample in samples:
            if sample.settings_hash != self.hash:
                raise ValueError(f"a sample of settings {sample.settings_hash} in a file of {self.hash}")
            self._hold(
                asdict(sample), f"sample {sample.sample_index} of question {sample.id!r}, which was to be added,"
            )
        _write(self._file, b"".join(map(_line, samples)))
        self.statuses.update(sample.status for sample in samples)
        if time.monotonic() - self._synced >= self.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Flushes to the disk what was written."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Flushes, closes and unlocks. Safe to call twice."""
        try:
            if self._file is not None:
                self.sync()
                self._file.close()
                self._file = None
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _scan(self) -> None:
        with self.path.open("rb") as file:
            for line in _lines(file, self.path):
                if line.record is None:
                    self._found.torn = line.start
                    continue
                self._found.unended |= not line.ended
                if line.record["settings_hash"] != self.hash:
                    self._found.others[line.record["settings_hash"]] += 1
                elif line.record["status"] == "failed":
                    self._found.failed += 1
                else:
                    self._hold(line.record, f"{self.path}, line {line.number}: this sample")
                    self.statuses[line.record["status"]] += 1

    def _hold(self, record: Mapping[str, Any], name: str) -> None:
        held = self._held.get(record["id"])
        if held is None:
            held = _digest(record["prompt"], record.get("choices"))
        bit = 1 << _DIGEST + record["sample_index"]
        if held & bit:
            raise DataError(
                f"{name} stands in the file already: id {record['id']!r}, sample {record['sample_index']}, settings "
                f"{self.hash}. Were files of the same questions put together? Take one of the two lines out."
            )
        self._held[record["id"]] = held | bit

    def _check_settings(self) -> None:
        if not self._found.others or self.allow_other_settings:
            return
        kept = _read_settings(self.path)
        parts = []
        for other, count in self._found.others.most_common():
            if other in kept:
                differences = _differences(kept[other], self.settings)
                told = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if differences[5:] else "")
            else:
                told = f"{settings_path(self.path).name} does not say which"
            parts.append(f"{count} of settings {other} ({told})")
        raise ConfigError(
            f"{self.path} holds samples of other settings than these ({self.hash}): {'; '.join(parts)}. Write to a new "
            "--output, set the flags as they were, or pass --allow_other_settings to keep both in one file."
        )

    def _drop_failed(self) -> None:
        with whole_file(self.path) as aside, aside.open("wb") as out:
            with self.path.open("rb") as file:
                for line in _lines(file, self.path):
                    record = line.record
                    if record is None or (record["settings_hash"] == self.hash and record["status"] == "failed"):
                        continue
                    out.write(line.data if line.ended else line.data + b"\n")
            out.flush()
            os.chmod(aside, self.path.stat().st_mode)

    def _keep_settings(self) -> None:
        kept = _read_settings(self.path)
        if kept.get(self.hash) != self.settings:
            with whole_file(settings_path(self.path)) as aside:
                text = json.dumps({**kept, self.hash: self.settings}, indent=2, ensure_ascii=False)
                aside.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


@dataclass
class _Found:
    """What a file holds beside the samples of the settings at hand."""

    others: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    torn: int | None = None  # where a last line that was cut off begins
    unended: bool = False  # the last line is whole but for its line feed


@dataclass
class _Line:
    number: int
    start: int
    data: bytes
    record: dict[str, Any] | None  # None: cut off

    @property
    def ended(self) -> bool:
        return self.data.endswith(b"\n")


def _lines(file: BinaryIO, path: Path) -> Iterator[_Line]:
    start = 0
    for number, data in enumerate(file, 1):
        try:
            record = _parse(data)
        except ValueError as error:
            cut = data.rstrip(b"\0")  # zeros: a machine that went down before the text reached the disk
            if data.endswith(b"\n") or not (cut.startswith(_BEGINNING) or _BEGINNING.startswith(cut)):
                raise DataError(
                    f"{path}, line {number}: no sample ({error}). If the file is one of samples, mend or remove this line; "
                    "its sample will be asked for again."
                ) from None
            record = None
        yield _Line(number, start, data, record)
        start += len(data)


_FIELDS = tuple(TeacherSample.__dataclass_fields__)
_NEEDED = (
    "id",
    "prompt",
    "sample_index",
    "text",
    "finish_reason",
    "status",
    "model",
    "temperature",
    "seed",
    "settings_hash",
)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, not an object")
    lacking = [name for name in _NEEDED if name not in record]
    if lacking:
        raise ValueError(f"no {', '.join(map(repr, lacking))}")
    index = record["sample_index"]
    if not isinstance(record["id"], str) or not isinstance(record["settings_hash"], str):
        raise ValueError("'id' and 'settings_hash' must be texts")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**20:
        raise ValueError(f"'sample_index' must be a whole number from 0, got {index!r}")
    if record["status"] not in SAMPLE_STATUSES:
        raise ValueError(f"'status' must be one of {', '.join(SAMPLE_STATUSES)}, got {record['status']!r}")
    return {name: record[name] for name in _FIELDS if name in record}


def _line(sample: TeacherSample) -> bytes:
    record = asdict(sample)
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 cannot hold but a JSON escape can
        return json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def _write(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _digest(prompt: Any, choices: Any) -> int:
    text = json.dumps([prompt, choices], ensure_ascii=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_DIGEST // 8).digest(), "big")


def _read_settings(path: Path) -> dict[str, Any]:
    place = settings_path(path)
    if not place.exists():
        return {}
    try:
        kept = json.loads(place.read_bytes())
    except ValueError as error:
        raise DataError(f"{place} is damaged ({error}). Remove it: it only tells what each hash stands for.") from None
    return kept if isinstance(kept, dict) else {}


def _differences(one: Any, other: Any, name: str = "") -> list[str]:
    """What two settings differ in, by name: `sampling.temperature was 0.7, now 1.0`."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        found = [_differences(one.get(key), other.get(key), f"{name}.{key}" if name else key) for key in names]
        return [line for lines in found for line in lines]
    return [] if one == other else [f"{name} was {_shown(one)}, now {_shown(other)}"]


def _shown(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}..."
