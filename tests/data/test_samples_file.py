"""The samples file: what is in it counts once, and what is not ours is never touched."""

import json
import os

import pytest

from qcrd_trl.data.samples_file import SamplesFile, read_samples, settings_hash, settings_path
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.records import TeacherSample


SETTINGS = {"teacher": {"model": "m"}, "sampling": {"temperature": 0.7, "top_p": 1.0}, "seed": 0}
OTHER = {"teacher": {"model": "m"}, "sampling": {"temperature": 1.0, "top_p": 1.0}, "seed": 0}


def sample(id="a", index=0, status="ok", settings=SETTINGS, **changes):
    text = None if status == "failed" else f"text {index}"
    given = {
        **{"id": id, "prompt": f"Question {id}?", "sample_index": index, "text": text, "finish_reason": "stop"},
        **{"status": status, "model": "m", "temperature": 0.7, "seed": 5, "settings_hash": settings_hash(settings)},
        **{"usage": {"completion_tokens": 3}, "label": "3", "choices": {"A": "x"}},
    }
    return TeacherSample(**{**given, **changes})


def write(path, *samples, settings=SETTINGS, **options):
    with SamplesFile(path, settings, **options) as file:
        file.add(samples)
    return path


def keys(path):
    return [(s.id, s.sample_index) for s in read_samples(path)]


def test_hash_by_hand():
    """A hash that depends on the order of keys would ask for everything again after a change of our code."""
    import hashlib

    assert (
        settings_hash({"b": [1, None], "a": "é"}) == hashlib.sha256(rb'{"a":"\u00e9","b":[1,null]}').hexdigest()[:16]
    )
    assert settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1}) != settings_hash({"a": 1, "b": 3})


def test_every_field_comes_back(tmp_path):
    """A text that is repaired on its way to the disk is not what the teacher said: line ends, surrogates, nulls."""
    texts = ["a\r\nb\u2028c\x00", "caf\u00e9 {x}", "half \ud83d", "", None]
    samples = [sample(index=i, text=text, error="e" if text is None else None) for i, text in enumerate(texts)]
    write(tmp_path / "s.jsonl", *samples)
    assert list(read_samples(tmp_path / "s.jsonl")) == samples
    first = (tmp_path / "s.jsonl").read_bytes().split(b"\n")[1]
    assert "café".encode() in first, "escapes make the file unreadable for people"
    assert list(json.loads(first)) == list(TeacherSample.__dataclass_fields__)


def test_what_is_missing(tmp_path):
    """The one question that decides what is paid for."""
    path = write(
        tmp_path / "s.jsonl", sample("a", 0), sample("a", 2), sample("b", 1, "empty"), sample("c", 0, "failed")
    )
    with SamplesFile(path, SETTINGS) as file:
        assert [file.missing(id, 3) for id in "abcd"] == [(1,), (0, 2), (0, 1, 2), (0, 1, 2)]
        assert file.missing("a", 5) == (1, 3, 4)
        assert file.missing("a", 1) == ()
        assert file.count == 3
        assert dict(file.statuses) == {"ok": 2, "empty": 1}
        file.add([sample("a", 1)])
        assert file.missing("a", 3) == ()


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_torn_last_line(tmp_path, cut):
    """A crash in the middle of a write leaves half a line; left there, the next sample would be glued to it."""
    path = write(tmp_path / "s.jsonl", sample("a", 0), sample("a", 1))
    whole = path.read_bytes()
    line = whole.split(b"\n")[1] + b"\n"
    path.write_bytes(whole[: -len(line)] + line[:-cut] if cut > 1 else whole[: -len(line)] + line[:1])
    assert keys(path) == [("a", 0)]
    with SamplesFile(path, SETTINGS) as file:
        torn = path.read_bytes()
        assert file.missing("a", 2) == (1,)
        assert path.read_bytes() == torn, "nothing is changed before there is something to write"
        file.add([sample("a", 1)])
    assert path.read_bytes() == whole


def test_last_line_that_lacks_its_line_feed_only(tmp_path):
    """It is whole, so its sample is paid; the next one must not be glued to it."""
    path = write(tmp_path / "s.jsonl", sample("a", 0), sample("a", 1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with SamplesFile(path, SETTINGS) as file:
        assert file.missing("a", 3) == (2,)
        file.add([sample("a", 2)])
    assert keys(path) == [("a", 0), ("a", 1), ("a", 2)]
    path.write_bytes(whole[:-1])
    with SamplesFile(path, SETTINGS) as file:
        file.begin()
        assert path.read_bytes() == whole


def test_failed_and_torn_at_once(tmp_path):
    """The rewrite that drops failed samples drops half a line as well, and nothing else."""
    path = write(tmp_path / "s.jsonl", sample("a", 0), sample("a", 1, "failed"), sample("b", 0))
    keep = [line for line in path.read_bytes().splitlines(True) if b'"failed"' not in line]
    os.chmod(path, 0o640)
    path.write_bytes(path.read_bytes() + b'{"id": "b", "pro')
    with SamplesFile(path, SETTINGS) as file:
        file.begin()
    assert path.read_bytes() == b"".join(keep)
    assert path.stat().st_mode & 0o777 == 0o640


def test_zeros_at_the_end(tmp_path):
    """What some file systems leave of a line when the machine goes down."""
    path = write(tmp_path / "s.jsonl", sample("a", 0))
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 300)
    with SamplesFile(path, SETTINGS) as file:
        file.begin()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "a", "pro\n', "Expecting|Unterminated|Invalid"),
        (b"\n", "Expecting value"),
        (b"[1]\n", "a list, not an object"),
        (b'{"id": "a"}\n', "no 'prompt', 'sample_index'"),
        (b'{"id": "\xff"}\n', "utf-8"),
        (b"some notes of mine", "no sample"),
    ],
)
def test_damaged_lines_and_files_of_others(tmp_path, line, message):
    """Skipped, a damaged line is a sample lost in silence; cut off, a file of another kind is destroyed."""
    path = write(tmp_path / "s.jsonl", sample("a", 0))
    path.write_bytes(path.read_bytes() + line)
    before = path.read_bytes()
    with pytest.raises(DataError, match=rf"s\.jsonl, line 2: .*({message})"), SamplesFile(path, SETTINGS):
        pass
    with pytest.raises(DataError, match="line 2"):
        list(read_samples(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", 3), ("sample_index", -1), ("sample_index", True), ("status", "fine"), ("settings_hash", None)],
)
def test_fields_of_a_wrong_kind(tmp_path, name, value):
    """A number as id would never equal the text that the dataset's id is, and all would be asked again."""
    path = write(tmp_path / "s.jsonl", sample("a", 0))
    record = {**json.loads(path.read_text()), name: value}
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=f"line 1.*{name}"), SamplesFile(path, SETTINGS):
        pass


def test_a_key_twice(tmp_path):
    """Files that were put together twice: one teacher's answer would vote twice."""
    path = write(tmp_path / "s.jsonl", sample("a", 0), sample("a", 1))
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DataError, match=r"line 3: this sample stands in the file already: id 'a', sample 0"):
        SamplesFile(path, SETTINGS).__enter__()
    path = write(tmp_path / "t.jsonl", sample("a", 0))
    with SamplesFile(path, SETTINGS) as file, pytest.raises(DataError, match="which was to be added"):
        file.add([sample("a", 0)])


def test_other_settings(tmp_path):
    """Samples of another temperature that pass for those of this one are a measurement of nothing."""
    path = write(tmp_path / "s.jsonl", sample("a", 0), sample("a", 1))
    before, kept = path.read_bytes(), settings_path(path).read_bytes()
    with pytest.raises(ConfigError) as error, SamplesFile(path, OTHER):
        pass
    assert f"2 of settings {settings_hash(SETTINGS)} (sampling.temperature was 0.7, now 1.0)" in str(error.value)
    assert "--allow_other_settings" in str(error.value)
    assert (path.read_bytes(), settings_path(path).read_bytes()) == (before, kept)
    write(path, sample("a", 0, "failed", OTHER), settings=OTHER, allow_other_settings=True)
    with SamplesFile(path, SETTINGS, allow_other_settings=True) as file:
        assert file.missing("a", 3) == (2,)
        file.add([sample("a", 2)])
    assert path.read_bytes().startswith(before)
    assert [s.status for s in read_samples(path)] == ["ok", "ok", "failed", "ok"], "another run's failures are its own"
    assert json.loads(settings_path(path).read_text()) == {settings_hash(s): s for s in (SETTINGS, OTHER)}


def test_other_settings_that_nobody_kept(tmp_path):
    """Without the file beside it the error must still tell that there are others."""
    path = write(tmp_path / "s.jsonl", sample("a", 0))
    settings_path(path).unlink()
    with pytest.raises(ConfigError, match=r"s\.jsonl\.settings\.json does not say which"), SamplesFile(path, OTHER):
        pass
    settings_path(path).write_text("{")
    with pytest.raises(DataError, match="is damaged"), SamplesFile(path, OTHER):
        pass


def test_changed_question(tmp_path):
    """A dataset that was mended under the same ids: the old answers are answers to another question."""
    path = write(tmp_path / "s.jsonl", sample("a", 0))
    with SamplesFile(path, SETTINGS) as file:
        file.check_question("a", "Question a?", {"A": "x"})
        file.check_question("b", "Whatever?", None)
        for prompt, choices in (("Question b?", {"A": "x"}), ("Question a?", {"A": "y"}), ("Question a?", None)):
            with pytest.raises(DataError, match="have changed"):
                file.check_question("a", prompt, choices)


def test_lock(tmp_path):
    """Within one process too; and a lock that outlives its run would lock the user out."""
    path = tmp_path / "deep" / "s.jsonl"
    with SamplesFile(path, SETTINGS), pytest.raises(ConfigError, match="Another process is writing"):
        SamplesFile(path, SETTINGS).__enter__()
    write(path, sample())
    path.write_bytes(b"no sample\n")
    for _ in range(2):  # the error lets go of the lock
        with pytest.raises(DataError, match="line 1"):
            SamplesFile(path, SETTINGS).__enter__()


def test_places_that_cannot_be_written(tmp_path):
    """Found after the first answer is paid for, it is too late."""
    with pytest.raises(ConfigError, match="is a folder"), SamplesFile(tmp_path, SETTINGS):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), SamplesFile(tmp_path / "file" / "s.jsonl", SETTINGS):
        pass
    with pytest.raises(OSError), SamplesFile("/proc/no/s.jsonl", SETTINGS):
        pass


def test_is_flushed_to_the_disk_at_intervals(tmp_path, monkeypatch):
    """Never: a machine that goes down takes hours of paid answers; at each line: every answer waits for the disk."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    with SamplesFile(tmp_path / "s.jsonl", SETTINGS, sync_seconds=1000) as file:
        file.begin()
        before = len(synced)
        for index in range(5):
            file.add([sample(index=index)])
            assert (tmp_path / "s.jsonl").read_bytes().count(b"\n") == index + 1, "not even a kill may lose it"
        assert len(synced) == before
        file.sync_seconds = 0
        file.add([sample(index=5)])
        assert len(synced) == before + 1
    assert len(synced) == before + 2


def test_a_disk_that_takes_part_of_a_write(tmp_path):
    """The system may write less than it is given; the rest must follow."""

    class Grudging:
        def __init__(self):
            self.data = b""

        def write(self, data):
            self.data += bytes(data[:3])
            return min(3, len(data))

    from qcrd_trl.data.samples_file import _write

    file = Grudging()
    _write(file, b"0123456789")
    assert file.data == b"0123456789"


def test_needs_no_torch():
    """A server's client on a small machine must not wait for torch, nor need it."""
    import subprocess
    import sys

    code = (
        "import sys; import qcrd_trl.data.samples_file, qcrd_trl.data.shards, qcrd_trl.cli.sample, "
        "qcrd_trl.sampling.teacher_run; assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
