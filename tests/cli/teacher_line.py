"""What the tests of `qcrd sample`, `qcrd select` and `qcrd report` in a row share. `from teacher_line import ...`."""

import json
import sys
from pathlib import Path

import pytest

from qcrd_trl.cli import main as cli


sys.path.insert(0, str(Path(__file__).parents[1] / "sampling"))
serving = pytest.importorskip("serving", reason="the extra `teacher` is not installed")

QUESTIONS = [
    {"id": f"q{i}", "prompt": f"Tom has {i} figs and gets 2. How many?", "label": str(i + 2)} for i in range(6)
]


class Adder(serving.FaultServer):
    """Of five samples of a question, three are right, one forgets the two that are added, one ends at the limit."""

    def default(self, seen):
        start = int(seen.body["messages"][-1]["content"].rpartition("Tom has ")[2].split()[0])
        choices = []
        for number in range(seen.body.get("n", 1)):
            total = start if number == 3 else start + 2
            text = f"<Explanation>: Way {number}: {start} and 2 make {total}.\n<Answer>: {total}"
            choices.append(serving.choice(text, "length" if number == 4 else "stop"))
        return serving.chat_reply(*choices)


def write_questions(path: Path, rows=QUESTIONS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flags(questions: Path, server, output: Path, *more: str, kind: str = "number") -> list[str]:
    return [
        "sample",
        "--dataset",
        str(questions),
        "--teacher_backend",
        "openai",
        "--base_url",
        server.url,
        "--teacher",
        "teacher",
        "--task_kind",
        kind,
        "--output",
        str(output),
        *more,
    ]


def sample(questions: Path, server, output: Path, *more: str, kind: str = "number") -> int:
    return cli.main(flags(questions, server, output, *more, kind=kind))
