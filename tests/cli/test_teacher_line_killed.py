"""A run against a server that is killed, and run again: what the server was asked, and what the file holds."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from teacher_line import Adder, flags, write_questions

from qcrd_trl.data.samples_file import read_samples


CONCURRENCY = 4


def start(argv: list[str]) -> subprocess.Popen:
    """`qcrd` in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *proxies)}
    return subprocess.Popen(
        [sys.executable, "-m", "qcrd_trl", *argv],
        env={**environment, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Waiting(Adder):
    """Says when so many requests have come."""

    def __init__(self, number: int, delay: float = 0.02):
        super().__init__(delay=delay)
        self.number, self.reached = number, threading.Event()

    def default(self, seen):
        if len(self.seen) >= self.number:
            self.reached.set()
        return super().default(seen)


def asked(server: Adder) -> list[int]:
    """The questions of the requests, by their numbers."""
    return [int(seen.body["messages"][-1]["content"].rpartition("Tom has ")[2].split()[0]) for seen in server.seen]


def keys(path: Path) -> list[tuple[str, int]]:
    return [(one.id, one.sample_index) for one in read_samples(path)]


def test_killed_and_run_again_against_a_server(tmp_path):
    """Every request that was answered is paid: asked again after a kill, a run of a day costs two."""
    rows = [{"id": f"q{i}", "prompt": f"Tom has {i} figs and gets 2. How many?"} for i in range(120)]
    questions = write_questions(tmp_path / "questions.jsonl", rows)
    samples = tmp_path / "samples.jsonl"
    more = ("--num_samples", "3", "--max_concurrency", str(CONCURRENCY))
    with Waiting(20) as server:
        for stop in (20, 60):
            server.number = stop
            server.reached.clear()
            process = start(flags(questions, server, samples, *more))
            assert server.reached.wait(300), process.communicate()[1]
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            whole = [line for line in samples.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            kept = {json.loads(line)["id"] for line in whole}
            assert 0 < len(kept) < 120
            before = len(server.seen)
            held = sum(question not in kept for question in {f"q{i}" for i in asked(server)})
            assert held <= CONCURRENCY  # asked and not kept: in flight
        process = start(flags(questions, server, samples, *more))
        out, error = process.communicate(timeout=600)
        assert process.returncode == 0, error
        assert not kept & {f"q{i}" for i in asked(server)[before:]}  # nothing that was kept is asked for again
        assert len(server.seen) <= 120 + 2 * CONCURRENCY
        assert "360 of 360 samples of 120 questions" in out
    assert sorted(keys(samples)) == sorted((f"q{i}", index) for i in range(120) for index in range(3))


def test_ctrl_c_with_requests_in_flight(tmp_path):
    """Requests that go on in their threads would keep the process, or end it with a traceback and without the count."""
    rows = [{"id": f"q{i}", "prompt": f"Tom has {i} figs and gets 2. How many?"} for i in range(120)]
    questions, samples = write_questions(tmp_path / "questions.jsonl", rows), tmp_path / "samples.jsonl"
    with Waiting(30) as server:
        process = start(flags(questions, server, samples, "--max_concurrency", str(CONCURRENCY)))
        assert server.reached.wait(300), process.communicate()[1]
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert "Traceback" not in error
    assert f"stopped by Ctrl-C: {len(keys(samples))} of 600 samples" in error
