"""`qcrd demo`, on very little data."""

import contextlib
import io
import json
import socket

import datasets
import pytest
import torch
from transformers.utils import logging

from qcrd_trl.cli import main as cli
from qcrd_trl.cli.demo import METHODS, main


class Run:
    """A finished `qcrd demo --quick`."""

    def __init__(self, folder, *flags):
        self.folder = folder
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            self.status = main(["--quick", "--output_dir", str(folder), *flags])
        self.printed = out.getvalue()
        self.results = json.loads((folder / "results.json").read_text(encoding="utf-8"))

    @property
    def numbers(self):
        return {name: value for name, value in self.results.items() if name != "seconds"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def refuse(*args):
        raise AssertionError("the demo reached for the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        return Run(tmp_path_factory.mktemp("demo") / "new" / "folder")


def test_everything_is_written(run):
    """A demo that ends without its results is a waste of two minutes."""
    assert run.status == 0
    assert set(run.results["methods"]) == set(METHODS) == {"label_only", "dss", "qcrd"}
    for method, measured in run.results["methods"].items():
        assert 0 <= measured["label_accuracy"]["value"] <= 1
        assert (measured["answer_accuracy"] is None) == (method == "label_only")
        assert run.results["seconds"][method] > 0
        losses = [entry["nll/label"] for entry in measured["history"]]
        assert losses[-1] < losses[0]  # it trained
    assert "nll/negative" in run.results["methods"]["qcrd"]["history"][-1]
    assert (run.folder / "demo.png").read_bytes()[:4] == b"\x89PNG"
    rows = [json.loads(line) for line in (run.folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == run.results["data"]["training_questions"]


def test_the_table_says_what_was_measured(run):
    """The printed numbers are what a reader keeps, and one run must not look like a proof."""
    for method in METHODS:
        accuracy = run.results["methods"][method]["label_accuracy"]
        line = next(line for line in run.printed.splitlines() if f" {method} " in line)
        assert f"{100 * accuracy['value']:.1f} ± {100 * accuracy['standard_error']:.1f}" in line
    assert "another seed" in run.printed
    assert "far too short" in run.printed


def test_the_standard_error_is_binomial(run):
    """An error bar of another kind would make chance look like an effect, or the reverse."""
    share = run.results["methods"]["dss"]["answer_accuracy"]
    assert share["standard_error"] == pytest.approx((share["value"] * (1 - share["value"]) / 40) ** 0.5)


def test_a_seed_gives_the_same_numbers_again(run, tmp_path):
    """Numbers that differ from run to run could be picked until they please."""
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    datasets.enable_progress_bars()  # whatever was run before in this process
    logging.enable_progress_bar()
    again = Run(tmp_path)
    assert again.numbers == run.numbers
    assert torch.get_num_threads() == threads
    assert not datasets.are_progress_bars_disabled()
    assert logging.is_progress_bar_enabled()


def test_the_students_can_be_evaluated(run, tmp_path, capsys):
    """A saved student that answers otherwise than in the table would be another one."""
    output = tmp_path / "evaluated.json"
    flags = ["--model", str(run.folder / "qcrd"), "--dataset", str(run.folder / "test.jsonl"), "--task_kind", "number"]
    assert cli.main(["evaluate", *flags, "--output", str(output), "--max_new_tokens", "48", "--device", "cpu"]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    for name in ("label_accuracy", "answer_accuracy"):
        assert result[name] == run.results["methods"]["qcrd"][name]["value"]


def test_a_wrong_seed_is_told_at_once(tmp_path, capsys):
    """Torch would refuse it with a traceback, after the data is made."""
    assert cli.main(["demo", "--seed", "-1", "--output_dir", str(tmp_path / "none")]) == 2
    assert "seed must be a whole number" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
