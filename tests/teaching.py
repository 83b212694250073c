"""
A teacher without a model, whose every served request is noted in a file, and runs of it that are killed. `from teaching
import ...`; run by Python, this file is `qcrd` with that teacher as a further backend.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import qcrd_trl.sampling.teachers as teachers
from qcrd_trl.sampling.teacher_run import sample_seed
from qcrd_trl.sampling.teachers.base import SamplingSettings, Teacher, TeacherCompletion, TeacherStats, status_of


class NotingTeacher(Teacher):
    """
    Answers each request with a text that tells all it was asked with, after it has noted it in a file.

    Args:
        model (`str`): its name; one that starts with `slow` takes its time.
        log (`Path`, *optional*): where to note `[id, sample_index]`, a line a sample; `QCRD_TEST_LOG` if left out.
        answers (`dict`, *optional*): `(text, finish_reason)` by `(id, sample_index)`, in place of its own text.
        failing (`set`, *optional*): keys `(id, sample_index)` that it fails to answer.
        reverse (`bool`, *optional*): whether to answer the last request first.
        at (`dict`, *optional*): what to call before the n-th request is served.
    """

    def __init__(
        self, model="noting", log=None, answers=None, failing=(), reverse=False, at=None, chat=True, **kwargs
    ):
        self.name, self.stats, self.chat = model, TeacherStats(), chat
        self.log = Path(log or os.environ["QCRD_TEST_LOG"])
        self.answers, self.failing, self.reverse, self.at = answers or {}, set(failing), reverse, at or {}
        self.closed = 0
        self.requests = []

    def settings(self):
        return {"backend": "noting", "model": self.name}

    def sample(self, requests, how: SamplingSettings):
        try:
            for number, request in enumerate(reversed(list(requests)) if self.reverse else requests):
                self.at.get(number, lambda: None)()
                self.requests.append(request)
                with self.log.open("a") as file:  # before the answer is given: what is served is paid
                    for index in request.sample_indices:
                        file.write(json.dumps([request.id, index]) + "\n")
                if self.name.startswith("slow"):
                    time.sleep(0.02)
                keys = zip(request.sample_indices, request.seeds, strict=True)
                yield request, [self._complete(request, index, seed, how) for index, seed in keys]
        finally:
            self.closed += 1

    def _complete(self, request, index, seed, how):
        if (request.id, index) in self.failing:
            return TeacherCompletion(index, None, None, "failed", seed=seed, error="HTTP 500 after 5 attempts")
        text, reason = f"So {request.id} {index} {seed} {how.temperature}.", "stop"
        text, reason = self.answers.get((request.id, index), (text, reason))
        usage = {"prompt_tokens": 10, "completion_tokens": 4} if index == request.sample_indices[0] else {}
        return TeacherCompletion(index, text, reason, status_of(text, reason), seed=seed, usage=usage)


def served(log: Path) -> list[tuple[str, int]]:
    """Keys that the teacher has served, in order."""
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def write_questions(path: Path, count: int = 10) -> Path:
    """A dataset of so many questions."""
    rows = [{"id": f"q{i}", "prompt": f"What is {i} + {i}?", "label": str(2 * i)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flags(folder: Path, *more: str, teacher: str = "noting", output: str = "samples.jsonl") -> list[str]:
    """`qcrd sample` on the questions of a folder."""
    return [
        *("sample", "--dataset", str(folder / "questions.jsonl"), "--teacher_backend", "noting", "--teacher", teacher),
        *("--output", str(folder / output), "--num_samples", "4", *more),
    ]


def start(folder: Path, argv: list[str], kill_at: str = "") -> subprocess.Popen:
    """Starts `qcrd` in a process of its own, which kills itself at a point that `_kill_points` knows."""
    tests = Path(__file__).resolve().parent
    path = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "QCRD_TEST_LOG": str(folder / "served"),
        "QCRD_TEST_KILL": kill_at,
    }
    return subprocess.Popen(
        [sys.executable, __file__, *argv], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _kill_points(point: str) -> None:
    """
    `before:N`: before the N-th answer is written; `after:N`: after; `inside:N:B`: when B bytes of it are; `rewriting`: when
    failed samples are being taken out; `renaming`: when the file without them is about to take its name.
    """
    import qcrd_trl.data.samples_file as samples_file

    kind, *numbers = point.split(":")
    write, count = samples_file._write, 0

    def killing_write(file, data):
        nonlocal count
        count += 1
        if kind in ("before", "inside", "after") and count == int(numbers[0]):
            if kind == "inside":
                file.write(data[: int(numbers[1])])
            if kind == "after":
                write(file, data)
            os.kill(os.getpid(), signal.SIGKILL)
        write(file, data)

    samples_file._write = killing_write
    if kind == "rewriting":
        samples_file.os.chmod = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    if kind == "renaming":
        os.replace = lambda *args: os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from qcrd_trl.cli import main as cli
    from qcrd_trl.cli import sample as command

    teachers.BACKENDS["noting"] = ("noting", "NotingTeacher", None)
    command._OPTIONS["noting"] = {}
    failing = {tuple(key) for key in json.loads(os.environ.get("QCRD_TEST_FAILING", "[]"))}
    command.load_teacher = lambda backend, model, **options: NotingTeacher(model, failing=failing, **options)
    if os.environ.get("QCRD_TEST_KILL"):
        _kill_points(os.environ["QCRD_TEST_KILL"])
    sys.exit(cli.main(sys.argv[1:]))


__all__ = ["NotingTeacher", "flags", "sample_seed", "served", "start", "write_questions"]
