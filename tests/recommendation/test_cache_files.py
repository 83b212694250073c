"""A teacher cache that is killed, cut off, damaged, or written by two: whole rows stay, nothing is computed twice or mixed up."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cached import cached, collator, item_rows, item_teacher, tokenized
from filelock import FileLock

from qcrd_trl.errors import ConfigError, DataError, TrainingError
from qcrd_trl.recommendation import cache_building, cache_files
from qcrd_trl.recommendation.cache_building import build_cache
from qcrd_trl.recommendation.cache_files import RECORD
from qcrd_trl.recommendation.teacher_cache import CachedTeacher
from qcrd_trl.recommendation.teacher_states import LiveTeacher


ROW_BYTES = 4 * 2 * 16 * 2  # 4 positions, layers 3 and 4, width 16, float16


@pytest.fixture
def rows():
    """Eight different rows of 4 positions each: states of 256 bytes a row."""
    return tokenized(item_rows(8, (5,)))


@pytest.fixture
def whole(tmp_path, rows):
    """A finished cache of the rows, 2 at a time, and what it gives."""
    cache = cached(tmp_path / "whole", LiveTeacher(item_teacher(), [3]), rows, batch_size=2)
    return tmp_path / "whole", content(cache, rows)


def content(cache, rows) -> torch.Tensor:
    return cache.read(collator()([rows[place] for place in range(len(rows))]))[3]


def go_on(folder: Path, rows) -> tuple[torch.Tensor, int]:
    """Builds what is missing, 2 rows at a time; what the cache gives, and how many rows were computed."""
    report = build_cache(LiveTeacher(item_teacher(), [3]), rows, collator(), folder, 2, progress=False)
    return content(CachedTeacher(folder), rows), report.added


def test_the_files_are_what_they_say(whole):
    """The sizes that the other tests cut at."""
    folder, _ = whole
    assert (folder / "states-00000.bin").stat().st_size == 8 * ROW_BYTES
    assert (folder / "index-00000.bin").stat().st_size == 8 * RECORD.itemsize == 8 * 52
    assert not list(folder.glob("writing-*"))


# (bytes that are left of the states, of the index): rows that are whole in both
TORN = {
    "in the states of a batch": (3 * ROW_BYTES + 100, 3 * 52, 3),
    "between states and index": (4 * ROW_BYTES, 2 * 52, 2),
    "in the index": (4 * ROW_BYTES, 2 * 52 + 17, 2),
    "before anything": (0, 0, 0),
    "index ahead of the states": (5 * ROW_BYTES + 8, 8 * 52, 5),
}


@pytest.mark.parametrize("name", TORN)
def test_a_tail_is_cut_off_and_the_rest_goes_on(tmp_path, whole, rows, name):
    """Rows appended behind a torn one are read at shifted places: plausible states of the wrong positions."""
    folder, expected = whole
    states, index, kept = TORN[name]
    os.truncate(folder / "states-00000.bin", states)
    os.truncate(folder / "index-00000.bin", index)
    again, added = go_on(folder, rows)
    assert added == 8 - kept
    assert torch.equal(again, expected)
    assert (folder / "states-00000.bin").stat().st_size == 8 * ROW_BYTES


def test_a_reader_sees_whole_rows_of_a_cache_that_is_being_written(whole, rows):
    """A student that is trained while the cache grows must not read half a row."""
    folder, expected = whole
    os.truncate(folder / "index-00000.bin", 2 * 52 + 17)  # the states are further, as while a batch is written
    cache = CachedTeacher(folder)
    assert len(cache) == 2
    assert torch.equal(content(cache, rows.select([0, 1])), expected[:8])
    with pytest.raises(DataError, match="are not in the teacher cache"):
        content(cache, rows)


def test_after_a_machine_went_down_the_states_are_compared(whole, rows):
    """A file system may keep the length of a file and lose what was in it: zeros are finite states."""
    folder, expected = whole
    with (folder / "states-00000.bin").open("r+b") as file:
        file.seek(6 * ROW_BYTES)
        file.write(bytes(2 * ROW_BYTES))
    (folder / "writing-00000").touch()  # the writer did not end by itself
    again, added = go_on(folder, rows)
    assert added == 2
    assert torch.equal(again, expected)


def test_damage_is_found_when_a_row_is_read(whole, rows):
    """One flipped bit in a state is a state."""
    folder, _ = whole
    data = bytearray((folder / "states-00000.bin").read_bytes())
    data[5 * ROW_BYTES + 3] ^= 1
    (folder / "states-00000.bin").write_bytes(data)
    cache = CachedTeacher(folder)
    content(cache, rows.select(range(5)))
    with pytest.raises(
        DataError, match=r"Row 5 of .*states-00000.bin is damaged: its checksum is wrong\. Remove the folder"
    ):
        content(cache, rows)


def test_states_that_are_cut_off_are_told_when_the_cache_is_opened(whole, rows):
    """A memory map beyond a file's end kills the process without a word."""
    folder, expected = whole
    os.truncate(folder / "states-00000.bin", 7 * ROW_BYTES)
    with pytest.raises(
        DataError, match=r"is cut off: it has 1,792 bytes, and its index tells of 2,048.*is built again"
    ):
        CachedTeacher(folder)
    again, added = go_on(folder, rows)  # the remedy that the error names
    assert (added, torch.equal(again, expected)) == (1, True)


def test_an_index_that_does_not_hang_together(whole):
    """Records of another cache's index are whole by their own checksums."""
    folder, _ = whole
    data = (folder / "index-00000.bin").read_bytes()
    (folder / "index-00000.bin").write_bytes(data[52:])
    with pytest.raises(DataError, match="its rows do not follow each other"):
        CachedTeacher(folder)


@pytest.mark.parametrize("after", [0, 300, 600, 1100, 1500])
def test_a_full_disk(tmp_path, whole, rows, monkeypatch, after):
    """What was written is kept, the torn row is not, and the same command goes on once there is room."""
    _, expected = whole
    room, write = [after], cache_files._write

    def limited(file, data):
        if len(data) > room[0]:
            write(file, data[: room[0]])
            room[0] = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(data)
        write(file, data)

    monkeypatch.setattr(cache_files, "_write", limited)
    kept = after // (2 * (ROW_BYTES + 52)) * 2  # batches of 2 rows, states and records
    with pytest.raises(
        TrainingError, match=rf"is full: .*\. {kept} of 8 rows were written here and are kept\. Make room"
    ):
        build_cache(LiveTeacher(item_teacher(), [3]), rows, collator(), tmp_path / "c", 2, progress=False)
    assert len(CachedTeacher(tmp_path / "c")) == kept
    monkeypatch.undo()
    again, added = go_on(tmp_path / "c", rows)
    assert (added, torch.equal(again, expected)) == (8 - kept, True)


def test_another_process_that_builds_is_told_of(tmp_path, whole, rows):
    """Two writers of one file shift each other's rows."""
    folder, _ = whole
    live = LiveTeacher(item_teacher(), [3])
    with FileLock(folder / "index-00000.lock"), pytest.raises(ConfigError, match="Another process is building"):
        build_cache(live, tokenized(item_rows(9, (6,))), collator(), folder, progress=False)
    assert len(CachedTeacher(folder)) == 8
    with FileLock(folder / "index-00000.lock"):  # runs that only read a finished cache are in nobody's way
        assert build_cache(live, rows, collator(), folder, progress=False).added == 0


def test_a_cache_can_be_copied_and_moved(tmp_path, whole, rows):
    """Built where the teacher fits, used where the student is trained."""
    folder, expected = whole
    shutil.move(shutil.copytree(folder, tmp_path / "copy"), tmp_path / "moved")
    assert torch.equal(content(CachedTeacher(tmp_path / "moved"), rows), expected)


def test_rows_of_several_shards_are_one_cache(tmp_path, whole, rows):
    """What two processes wrote must be found whichever of them wrote it, and one process must go on from it."""
    _, expected = whole
    live, folder = LiveTeacher(item_teacher(), [3]), tmp_path / "shared"
    build_cache(live, rows.select([]), collator(), folder, progress=False)
    form = cache_building.CacheFormat.read(folder)
    todo, _ = cache_building._to_compute(folder, rows, collator(), False)

    class Rank:
        process_index, num_processes = 1, 2

    batches = [todo[start : start + 2] for start in range(0, 8, 2)]
    cache_building._compute(live, rows, collator(), batches[1::2], folder, form, Rank, None)
    assert len(CachedTeacher(folder)) == 4
    again, added = go_on(folder, rows)
    assert (added, torch.equal(again, expected)) == (4, True)
    assert cache_files.shards(folder) == [0, 1]


# ---- Killed ----

# Where a process is killed: (the call of `_write` that it does not come back from, whole rows by then). Each batch of 2 rows is
# two calls, states and index.
KILLS = {2: 0, 3: 2, 8: 6}


@pytest.mark.parametrize("call", KILLS)
def test_killed_and_gone_on(tmp_path, whole, rows, call):
    """SIGKILL in the middle of a write: the rows before it are there, and the end is the same byte for byte."""
    folder, expected = whole
    script = Path(__file__)
    tests = script.resolve().parents[1]
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "killed"), str(call)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    assert (tmp_path / "killed" / "writing-00000").exists()
    again, added = go_on(tmp_path / "killed", rows)
    assert added == 8 - KILLS[call]
    assert torch.equal(again, expected)
    for name in ("states-00000.bin", "index-00000.bin", "head.safetensors", "cache.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (folder / name).read_bytes()


def build_and_die(folder: Path, call: int) -> None:
    """Builds the cache until a call of `_write`, which writes a third of what it is given and does not come back."""
    write, calls = cache_files._write, []

    def fatal(file, data):
        calls.append(len(data))
        if len(calls) == call:
            write(file, data[: len(data) // 3])
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        write(file, data)

    cache_files._write = fatal
    rows = tokenized(item_rows(8, (5,)))
    build_cache(LiveTeacher(item_teacher(), [3]), rows, collator(), folder, 2, progress=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    build_and_die(Path(sys.argv[1]), int(sys.argv[2]))
