"""`qcrd sample` is killed for real, at many points, and goes on."""

import json
import signal
import time
from collections import Counter

import pytest
from teaching import flags, served, start, write_questions

from qcrd_trl.data.samples_file import read_samples


KEYS = {(f"q{i}", index) for i in range(10) for index in range(4)}


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def key_counts(folder, output="samples.jsonl"):
    return Counter((sample.id, sample.sample_index) for sample in read_samples(folder / output))


def whole_lines(path):
    """Keys that stand in a file, read without the package."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {(record["id"], record["sample_index"]) for record in map(json.loads, lines)}


@pytest.mark.parametrize(
    "point", ["before:1", "inside:1:1", "inside:3:700", "inside:7:900", "before:7", "after:7", "after:10"]
)
def test_killed_and_run_again(tmp_path, point):
    """A sample that stands twice votes twice, one that is lost is paid twice, and a torn line makes the file unreadable."""
    write_questions(tmp_path / "questions.jsonl")
    status, _, _ = finish(start(tmp_path, flags(tmp_path), kill_at=point))
    assert status == -signal.SIGKILL
    kept, paid = whole_lines(tmp_path / "samples.jsonl"), served(tmp_path / "served")
    number = int(point.split(":")[1])
    assert len(paid) == 4 * number
    if point.startswith("inside:1:"):
        assert (tmp_path / "samples.jsonl").stat().st_size == 1
    elif point.startswith("inside"):
        assert not (tmp_path / "samples.jsonl").read_bytes().endswith(b"\n")
        assert len(kept) > 4 * (number - 1), "of the answer that was being written, its whole lines are kept"
    else:
        assert len(kept) == 4 * (number - point.startswith("before"))

    status, out, err = finish(start(tmp_path, flags(tmp_path)))
    assert status == 0, err
    assert key_counts(tmp_path) == Counter(dict.fromkeys(KEYS, 1))
    again = served(tmp_path / "served")[len(paid) :]
    assert not kept & set(again), "what was in the file was asked for again"
    assert set(again) == KEYS - kept
    assert f"{len(kept)} were there, {40 - len(kept)} are new" in out


def test_killed_from_outside_again_and_again(tmp_path):
    """A point that nobody thought of: eight kills at times that are not chosen lose and double nothing."""
    write_questions(tmp_path / "questions.jsonl", 150)
    keys = {(f"q{i}", index) for i in range(150) for index in range(4)}
    kills = 0
    for wait in (0.31, 0.53, 0.17, 0.41, 0.29, 0.47, 0.23, 0.61):
        before = whole_lines(tmp_path / "samples.jsonl")
        process = start(tmp_path, flags(tmp_path, teacher="slow"))
        begun = served(tmp_path / "served")
        while len(served(tmp_path / "served")) == len(begun) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        kills += finish(process)[0] == -signal.SIGKILL
        assert before <= whole_lines(tmp_path / "samples.jsonl")
        assert not before & set(served(tmp_path / "served")[len(begun) :])
    assert kills >= 4, "hardly a run was killed: the test shows nothing"
    status, _, err = finish(start(tmp_path, flags(tmp_path, teacher="slow")))
    assert status == 0, err
    assert key_counts(tmp_path) == Counter(dict.fromkeys(keys, 1))
    repeated = sum(count - 1 for count in Counter(served(tmp_path / "served")).values())
    assert repeated <= 4 * kills, "more than the one request in flight was paid again by a kill"


@pytest.mark.parametrize("point", ["rewriting", "renaming"])
def test_killed_while_failed_samples_are_taken_out(tmp_path, monkeypatch, point):
    """The one moment at which the whole file is written anew: half of it in its place would be a loss of all that was paid."""
    write_questions(tmp_path / "questions.jsonl")
    monkeypatch.setenv("QCRD_TEST_FAILING", json.dumps([["q3", 1], ["q8", 0]]))
    assert finish(start(tmp_path, flags(tmp_path)))[0] == 0
    before = (tmp_path / "samples.jsonl").read_bytes()
    assert before.count(b'"failed"') == 2
    monkeypatch.delenv("QCRD_TEST_FAILING")
    status, _, _ = finish(start(tmp_path, flags(tmp_path), kill_at=point))
    assert status == -signal.SIGKILL
    assert (tmp_path / "samples.jsonl").read_bytes() == before
    status, _, err = finish(start(tmp_path, flags(tmp_path)))
    assert status == 0, err
    assert key_counts(tmp_path) == Counter(dict.fromkeys(KEYS, 1))
    assert set(served(tmp_path / "served")[40:]) == {("q3", 1), ("q8", 0)}
    assert {sample.status for sample in read_samples(tmp_path / "samples.jsonl")} == {"ok"}
    assert [path.name for path in tmp_path.glob("_unfinished*")] == []


def test_ctrl_c_ends_with_the_count(tmp_path):
    """An interrupted run that says nothing looks as if all were lost; a status of 0 lets a script go on with half."""
    write_questions(tmp_path / "questions.jsonl", 400)
    process = start(tmp_path, flags(tmp_path, teacher="slow"))
    while len(served(tmp_path / "served")) < 40 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130
    written = sum(key_counts(tmp_path).values())
    assert 36 <= written < 1600
    assert f"stopped by Ctrl-C: {written} of 1600 samples of 400 questions: 0 were there, {written} are new" in err
    assert "Run the same command again to go on" in err
    assert "Traceback" not in err
    assert (tmp_path / "samples.jsonl").read_bytes().endswith(b"\n")


def test_two_writers_of_one_file(tmp_path):
    """Two runs at a time would each ask for everything, and each sample would stand twice."""
    write_questions(tmp_path / "questions.jsonl", 400)
    first = start(tmp_path, flags(tmp_path, teacher="slow"))
    while not served(tmp_path / "served") and first.poll() is None:
        time.sleep(0.01)
    status, _, err = finish(start(tmp_path, flags(tmp_path, teacher="slow")))
    first.kill()
    finish(first)
    assert status == 2
    assert "Another process is writing" in err
    assert "--num_shards" in err
    assert max(Counter(served(tmp_path / "served")).values()) == 1
