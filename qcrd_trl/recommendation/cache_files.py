"""
The files of a teacher cache: states one after the other, and an index that grows behind them.

    cache.json              format, the teacher's fingerprint, layers, dtype, sizes
    head.safetensors        the teacher's output head, float32
    states-00000.bin        (positions, layers, hidden_size) of the cache's dtype, little-endian; one file a writing process
    index-00000.bin         a record a row: its key, where its states begin, how many there are, checksums

States are written before the record that tells of them, and both are only ever appended to: whatever kills a writer leaves
whole rows and perhaps a tail, which readers do not see and the next writer cuts off.
"""

import contextlib
import errno
import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from ..errors import ConfigError, DataError
from ..files import whole_file


FORMAT_NAME, HEAD_NAME = "cache.json", "head.safetensors"
FORMAT, KIND = 1, "teacher_cache"
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
RECORD = np.dtype(
    [("key", "u1", (32,)), ("start", "<u8"), ("count", "<u4"), ("states_crc", "<u4"), ("record_crc", "<u4")]
)
# A killed process loses nothing that it wrote: the system has it. When the machine goes down, these seconds are at stake.
SYNC_SECONDS = 5.0


@dataclass(frozen=True)
class CacheFormat:
    """
    What all files of a cache have in common.

    Attributes:
        fingerprint (`str`): of the teacher, see [`~teacher_states.teacher_fingerprint`].
        layers (`tuple[int, ...]`): candidate layers.
        last_layer (`int`): the last layer, whose states are stored too.
        hidden_size (`int`): width of the states.
        vocab_size (`int`): rows of the head.
        dtype (`str`): of the states.
        scale (`float`), softcap (`float` or `None`): what is done to the head's logits.
        head_sha256 (`str`): of the file with the head.
    """

    fingerprint: str
    layers: tuple[int, ...]
    last_layer: int
    hidden_size: int
    vocab_size: int
    dtype: str
    scale: float = 1.0
    softcap: float | None = None
    head_sha256: str = ""

    @property
    def stored(self) -> tuple[int, ...]:
        """The layers whose states are stored, in their order."""
        return tuple(sorted({*self.layers, self.last_layer}))

    @property
    def position_bytes(self) -> int:
        """Bytes of a position's states."""
        return len(self.stored) * self.hidden_size * ITEM_BYTES[self.dtype]

    @property
    def storage(self) -> np.dtype:
        """The integers that stand for the states in a file: NumPy knows no bfloat16."""
        return np.dtype(f"<i{ITEM_BYTES[self.dtype]}")

    def write(self, folder: Path) -> None:
        """Writes `cache.json`."""
        with whole_file(folder / FORMAT_NAME) as file:
            told = {"kind": KIND, "format": FORMAT, **asdict(self)}
            file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "CacheFormat":
        """
        Reads `cache.json`.

        Raises:
            [`DataError`]: if there is none, or it is damaged or of another kind.
        """
        try:
            told = json.loads((folder / FORMAT_NAME).read_text(encoding="utf-8"))
        except OSError as err:
            raise DataError(
                f"No teacher cache in {str(folder)!r}: expected {FORMAT_NAME} there. Give the teacher together with "
                "teacher_cache once, and the cache is built."
            ) from err
        except ValueError as err:
            raise DataError(f"{FORMAT_NAME} in {str(folder)!r} is damaged: {err}. {REBUILD}") from err
        if not isinstance(told, dict) or told.pop("kind", None) != KIND:
            raise DataError(f"{str(folder)!r} is no teacher cache: its {FORMAT_NAME} is of another kind.")
        if (version := told.pop("format", None)) != FORMAT:
            raise DataError(
                f"The teacher cache {str(folder)!r} is of format {version!r}, and format {FORMAT} is read here. {REBUILD}"
            )
        try:
            found = cls(**{**told, "layers": tuple(told["layers"])})
            _ = found.position_bytes
        except (KeyError, TypeError) as err:
            raise DataError(f"{FORMAT_NAME} in {str(folder)!r} is damaged: {err!r}. {REBUILD}") from err
        return found


REBUILD = "Remove the folder and build the cache again."


def shards(folder: Path) -> list[int]:
    """Numbers of the pairs of files in a cache."""
    return sorted(int(path.stem[6:]) for path in folder.glob("index-*.bin") if path.stem[6:].isdigit())


def states_path(folder: Path, shard: int) -> Path:
    """The file with a shard's states."""
    return folder / f"states-{shard:05d}.bin"


def index_path(folder: Path, shard: int) -> Path:
    """The file with a shard's records."""
    return folder / f"index-{shard:05d}.bin"


def _open_mark(folder: Path, shard: int) -> Path:
    """Stands beside a shard while it is written: found there by the next writer, its states are checked first."""
    return folder / f"writing-{shard:05d}"


def read_records(folder: Path, shard: int) -> np.ndarray:
    """The records of a shard up to the first that is not whole; see `RECORD`."""
    data = index_path(folder, shard).read_bytes()
    records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
    for number, record in enumerate(records):
        if zlib.crc32(record.tobytes()[:-4]) != int(record["record_crc"]):
            return records[:number]
    return records


class ShardReader:
    """
    The rows of one shard, memory-mapped.

    Args:
        folder (`Path`): the cache.
        shard (`int`): the number of the shard.
        form ([`CacheFormat`]): the cache's format.

    Raises:
        [`DataError`]: if the file of the states is shorter than the index says, or the index does not hang together.
    """

    def __init__(self, folder: Path, shard: int, form: CacheFormat):
        self.path, self.records = states_path(folder, shard), read_records(folder, shard)
        counts = self.records["count"].astype(np.int64)
        ends = counts.cumsum()
        if not np.array_equal(self.records["start"].astype(np.int64), ends - counts):
            raise DataError(f"{index_path(folder, shard)} is damaged: its rows do not follow each other. {REBUILD}")
        positions = int(ends[-1]) if len(ends) else 0
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < positions * form.position_bytes:
            raise DataError(
                f"{self.path} is cut off: it has {size:,} bytes, and its index tells of {positions * form.position_bytes:,}. "
                "Give the teacher together with teacher_cache, and what is missing is built again."
            )
        shape = (positions, len(form.stored), form.hidden_size)
        self._states = (
            np.memmap(self.path, form.storage, "r", shape=shape) if positions else np.empty(shape, form.storage)
        )
        self._seen = np.zeros(len(self.records), bool)

    def read(self, number: int) -> np.ndarray:
        """
        States of a row, integers of shape `(positions, layers, hidden_size)`; their checksum is compared the first time.

        Raises:
            [`DataError`]: if they are not what was written.
        """
        record = self.records[number]
        start = int(record["start"])
        states = self._states[start : start + int(record["count"])]
        if not self._seen[number]:
            if zlib.crc32(states) != int(record["states_crc"]):
                raise DataError(f"Row {number} of {self.path} is damaged: its checksum is wrong. {REBUILD}")
            self._seen[number] = True
        return states


class ShardWriter:
    """
    Appends rows to a shard. Entering it locks the shard.

    Args:
        folder (`Path`): the cache.
        shard (`int`): the number of the shard; each process that writes has its own.
        form ([`CacheFormat`]): the cache's format.

    Raises:
        [`ConfigError`]: if another process has it, on entering.
    """

    def __init__(self, folder: Path, shard: int, form: CacheFormat):
        self.folder, self.shard, self.form = folder, shard, form
        self._lock = lock_of(folder, shard)

    def __enter__(self) -> "ShardWriter":
        take(self._lock, self.folder)
        try:
            mend(self.folder, self.shard, self.form)
            _open_mark(self.folder, self.shard).touch()
            self._index = index_path(self.folder, self.shard).open("ab", buffering=0)
            self._states = states_path(self.folder, self.shard).open("ab", buffering=0)
            self._next = self._states.tell() // self.form.position_bytes
            self._synced = time.monotonic()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind, *error) -> None:
        try:
            with self._index, self._states:
                if kind is None:
                    self._sync()
            if kind is None:
                _open_mark(self.folder, self.shard).unlink()
        finally:
            self._lock.release()

    def add(self, keys: Sequence[bytes], rows: Sequence[np.ndarray]) -> None:
        """
        Appends rows. When this returns, killing the process does not lose them.

        Args:
            keys (`Sequence[bytes]`): 32 bytes each.
            rows (`Sequence[np.ndarray]`): states of each, integers of shape `(positions, layers, hidden_size)`.

        Raises:
            `OSError`: if the disk is full. What was whole before is kept.
        """
        records = np.zeros(len(keys), RECORD)
        for place, (key, states) in enumerate(zip(keys, rows, strict=True)):
            records[place]["key"] = np.frombuffer(key, np.uint8)
            records[place]["start"], records[place]["count"] = self._next, len(states)
            records[place]["states_crc"] = zlib.crc32(np.ascontiguousarray(states))
            records[place]["record_crc"] = zlib.crc32(records[place].tobytes()[:-4])
            self._next += len(states)
        whole = self._states.tell(), self._index.tell()
        try:
            _write(self._states, b"".join(np.ascontiguousarray(states).tobytes() for states in rows))
            _write(self._index, records.tobytes())
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self._sync()
        except OSError:
            for file, size in zip((self._index, self._states), (whole[1], whole[0]), strict=True):
                with contextlib.suppress(OSError):  # the next writer cuts the tail off
                    file.truncate(size)
            raise

    def _sync(self) -> None:
        os.fsync(self._states.fileno())
        os.fsync(self._index.fileno())
        self._synced = time.monotonic()


def mend(folder: Path, shard: int, form: CacheFormat) -> None:
    """
    Cuts off what a writer left unfinished. The lock of the shard is held.

    The states of a shard whose writer did not end by itself are compared with their checksums: after a machine went down,
    a file may have the length but not the content.
    """
    index, states = index_path(folder, shard), states_path(folder, shard)
    for path in (index, states):
        path.touch()
    records, size = read_records(folder, shard), states.stat().st_size
    checks = _open_mark(folder, shard).exists()
    whole, end = 0, 0
    with states.open("rb") as file:
        for record in records:
            length = int(record["count"]) * form.position_bytes
            if int(record["start"]) * form.position_bytes != end or end + length > size:
                break
            if checks and zlib.crc32(file.read(length)) != int(record["states_crc"]):
                break
            whole, end = whole + 1, end + length
    for path, length in ((index, whole * RECORD.itemsize), (states, end)):
        if path.stat().st_size != length:
            with path.open("r+b") as file:
                file.truncate(length)
                os.fsync(file.fileno())
    _open_mark(folder, shard).unlink(missing_ok=True)


def is_clean(folder: Path, shard: int, form: CacheFormat) -> bool:
    """Whether a shard's writer ended by itself, and its files have the sizes that belong together. No lock is needed."""
    records, states = read_records(folder, shard), states_path(folder, shard)
    return (
        not _open_mark(folder, shard).exists()
        and index_path(folder, shard).stat().st_size == len(records) * RECORD.itemsize
        and (states.stat().st_size if states.exists() else 0) == int(records["count"].sum()) * form.position_bytes
    )


def lock_of(folder: Path, shard: int) -> FileLock:
    """The lock of a shard."""
    return FileLock(folder / f"index-{shard:05d}.lock")


def take(lock: FileLock, folder: Path) -> None:
    """Takes a lock, or raises a [`ConfigError`] at once if another process has it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"Another process is building the teacher cache {str(folder)!r}. Wait until it ends: what it has built is then "
            "read. The processes of one launch share the work by themselves."
        ) from None


@contextlib.contextmanager
def all_locked(folder: Path) -> Iterator[list[int]]:
    """Holds the locks of all shards that there are; gives their numbers."""
    with contextlib.ExitStack() as stack:
        found = shards(folder)
        for shard in found:
            lock = lock_of(folder, shard)
            take(lock, folder)
            stack.callback(lock.release)
        yield found


def is_full(error: OSError) -> bool:
    """Whether a write failed because there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _write(file, data: bytes) -> None:
    """All of the data, also where a write takes a part of it only."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
