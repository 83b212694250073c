"""Two processes: one report, of what both scored. Run by torchrun, this file is their script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import trainer_of
from tiny import ragged_rows

from qcrd_trl.run_log import SOURCES, read_run


pytestmark = pytest.mark.slow  # two processes that import everything anew


def run(folder: Path, processes: int) -> None:
    trainer = trainer_of(
        folder, rows=ragged_rows(16), report_plots=True, log_rationales=True, negative_source="both", max_steps=4,
        negative_max_new_tokens=4, per_device_train_batch_size=8 // processes, ddp_timeout=120,
    )  # fmt: skip
    trainer.train()


def test_two_processes_give_the_report_of_one(tmp_path):
    """A process that waits for a table that the other does not make would hang; counts of one alone would be half."""
    tests = Path(__file__).resolve().parent
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    child = subprocess.run(
        [*command, __file__, str(tmp_path / "two")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    run(tmp_path / "one", 1)
    one, two = read_run(tmp_path / "one"), read_run(tmp_path / "two")
    assert two.source == "training_log.json"
    assert two.scores["iteration"] == one.scores["iteration"] == 1
    counts = [{source: sum(log.scores["counts"][source]) for source in SOURCES} for log in (one, two)]
    assert counts[0] == counts[1]
    assert min(counts[0].values()) > 0
    assert two.settings["world_size"] == 2
    assert child.stdout.count("Step 0") == child.stdout.count("Step 2") == 1  # the main process alone shows rationales
    assert sorted(path.name for path in (tmp_path / "two" / "plots").iterdir()) == ["losses.png", "quality.png"]


if __name__ == "__main__":
    run(Path(sys.argv[1]), 2)
