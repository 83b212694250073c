"""The selection benchmark runs, and its made-up samples are what it says."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import pytest


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for module in ("measuring", "selection"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module("selection")


@pytest.fixture
def samples(tmp_path):
    """Six questions with five rationales each."""
    rows = [
        {
            "question": f"Ann has {20 + i} pens and buys {30 + i}. How many has she?",
            "answer": str(50 + 2 * i),
            "rationales": [f"{20 + i} + {30 + i} = {50 + 2 * i}, step {j}." for j in range(5)],
        }
        for i in range(6)
    ]
    path = tmp_path / "rationales.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_runs(script, samples, tmp_path, capsys):
    """A script that fails is found by the first reader of the docs; figures of a selection of nothing would look good."""
    file = tmp_path / "figures.json"
    argv = ["--samples", samples, "--quick", "--num_workers", "1", "--folder", tmp_path, "--json", file]
    script.main([str(arg) for arg in argv])
    printed = capsys.readouterr().out
    assert "QUICK run: not to be quoted" in printed
    assert printed.count("1,000") == 2
    selections = json.loads(file.read_text())["selections"]
    assert [one["layout"] for one in selections] == ["long", "wide"]
    for one in selections:
        assert one["samples"] == 1000
        assert min(one["wall"], one["cpu"], one["samples_a_second"], one["peak_mib"], one["yield"]) > 0
    assert not list(tmp_path.glob("tmp*"))


def test_texts_differ_and_samples_are_scattered(script, samples, tmp_path):
    """Equal texts, or samples side by side, would measure an easier task than the one that is claimed."""
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    texts = [text for row in script.questions(rows, 60) for text in row["rationales"]]
    assert len(set(texts)) > 0.95 * len(texts) == 285
    path = tmp_path / "long.jsonl"
    script.write_long(path, rows, 200)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({(row["id"], row["sample_index"]) for row in written}) == len(written) == 1000
    assert sum(a["id"] == b["id"] for a, b in itertools.pairwise(written)) < 100
    assert (tmp_path / "long.jsonl").read_text().count('"settings_hash": "0000000000000000"') == 1000
