"""The configurations of examples/teacher run as its README says, with a tiny model and a small server as the teachers."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from datasets import load_dataset
from tiny import tiny_llama, word_tokenizer

from qcrd_trl.cli import main as cli


ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sampling"))
serving = pytest.importorskip("serving", reason="the extra `teacher` is not installed")


class Solver(serving.FaultServer):
    """Four of five samples are right."""

    def default(self, seen):
        asked = seen.body["messages"][-1]["content"]
        (answer,) = [answer for name, answer in (("figs", 7), ("pens", 12), ("bus", 21)) if name in asked]
        numbers = [answer, answer, answer + 1, answer, answer]
        texts = [f"<Explanation>: By way {i}, {n}.\n<Answer>: {n}" for i, n in enumerate(numbers)]
        return serving.chat_reply(*texts[: seen.body.get("n", 1)])


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands of the README by their beginning, with files written to a folder of the test's."""
    serving.prepare(monkeypatch)
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "examples" / "teacher" / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("qcrd ")]
    assert len(lines) == 5
    moved = [line.replace("samples.jsonl", str(tmp_path / "samples.jsonl")) for line in lines]
    moved = [re.sub(r"\bselected\b", str(tmp_path / "selected"), line) for line in moved]
    return [shlex.split(line)[1:] for line in moved]


def test_server(commands, tmp_path, capsys):
    """An example that does not run is worse than none."""
    _, by_server, *rest = commands
    assert "examples/teacher/server.yaml" in by_server
    with Solver() as server:
        argv = [
            *by_server,
            "--base_url",
            server.url,
            "--teacher",
            "teacher",
            "--output",
            str(tmp_path / "samples.jsonl"),
        ]
        assert cli.main(argv) == 0
        asked = [message["content"] for message in server.seen[0].body["messages"]]
    assert len(asked) == 3  # the example of prompt.yaml, its answer, the question
    assert asked[0].startswith("Solve the problem. Write one calculation a line")
    assert "Problem: A box holds" in asked[0]
    for argv in rest:
        assert cli.main(argv) == 0, argv
    rows = load_dataset("parquet", data_files=str(tmp_path / "selected" / "train.parquet"), split="train")
    assert {(row["id"], len(row["positive_rationales"]), len(row["negative_rationales"])) for row in rows} == {
        ("figs", 4, 1),
        ("pens", 4, 1),
        ("bus", 4, 1),
    }


def test_local(commands, tmp_path):
    """The same template for a model in this process."""
    tiny_llama().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    local = commands[0]
    assert "examples/teacher/local.yaml" in local
    samples = tmp_path / "samples.jsonl"
    argv = ["--teacher", str(tmp_path / "model"), "--output", str(samples), "--device", "cpu", "--max_new_tokens", "4"]
    assert cli.main([*local, *argv]) == 0
    assert len(samples.read_text().splitlines()) == 15
