"""Two processes on one machine: one cache that both build and read, and the filters of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cached import item_rows, item_teacher
from datasets import Dataset
from filtering import filter_trainer, record_gradients
from running import largest_difference, logged, weights

from qcrd_trl.errors import TrainingError
from qcrd_trl.recommendation import cache_building, cache_files
from qcrd_trl.recommendation.teacher_cache import CachedTeacher


pytestmark = pytest.mark.slow  # two processes that import everything anew
LIMIT_S = 120  # of waiting for the other process

# name: (rows of a global micro-batch, arguments)
CASES = {
    "live": (8, {"max_steps": 2}),
    "accumulated": (4, {"max_steps": 2, "gradient_accumulation_steps": 2}),
    "cached": (8, {"max_steps": 2, "teacher_cache": "cache", "teacher_batch_size": 2}),
    "last": (8, {"max_steps": 2, "train_positions": "last", "optim": "adamw_torch", "learning_rate": 0.01}),
}


def run(name: str, folder: Path, processes: int) -> dict:
    """Trains a case and evaluates it; what it computed, on this process."""
    batch_size, overrides = CASES[name]
    overrides = dict(overrides)
    if "teacher_cache" in overrides:
        overrides["teacher_cache"] = str(folder / overrides["teacher_cache"])
    trainer = filter_trainer(
        folder / name,
        rows=item_rows(16),
        parts={"eval_dataset": Dataset.from_list(item_rows(5))},  # does not divide: a process gets a row twice
        per_device_train_batch_size=batch_size // processes,
        per_device_eval_batch_size=4 // processes,
        teacher_dtype="float32",
        **({"ddp_timeout": LIMIT_S} if processes > 1 else {}),
        **overrides,
    )
    seen = record_gradients(trainer)
    trainer.train()
    clocks = ("runtime", "per_second", "preparation_time")
    metrics = {name: value for name, value in trainer.evaluate().items() if not any(clock in name for clock in clocks)}
    trainer.save_model()
    return {
        "gradients": seen,
        "weights": weights(trainer.layer_filters),
        "logged": logged(trainer),
        "metrics": metrics,
        "world_size": trainer.args.world_size,
        "teacher": type(trainer.teacher).__name__,
    }


def fail_on_one(folder: Path) -> str:
    """The disk of one process is full: what the other is told."""
    if int(os.environ["RANK"]) == 1:

        def full(file, data):
            raise OSError(28, "No space left on device")

        cache_files._write = full
    try:
        filter_trainer(
            folder / "full", teacher_cache=str(folder / "full-cache"), teacher_batch_size=2, ddp_timeout=LIMIT_S
        )
    except TrainingError as err:
        return str(err)
    return "nothing"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Every case by two processes: a list of what each process computed."""
    folder = tmp_path_factory.mktemp("distributed")
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*command, __file__, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(tmp_path, both, name):
    """By process where it should be by position, a loss is still plausible."""
    one, (first, second) = run(name, tmp_path, 1), (result[name] for result in both[1])
    assert first["world_size"] == second["world_size"] == 2
    assert one["teacher"] == first["teacher"] == ("CachedTeacher" if name == "cached" else "LiveTeacher")
    assert len(one["gradients"]) == 2
    for here, there, other in zip(one["gradients"], first["gradients"], second["gradients"], strict=True):
        assert max(grad.abs().max() for grad in here.values()) > 1e-2
        assert largest_difference(here, there) < 2e-6
        assert largest_difference(there, other) == 0
    assert largest_difference(one["weights"], first["weights"]) < (1e-5 if name == "last" else 2e-6)  # Adam
    assert largest_difference(first["weights"], second["weights"]) == 0
    for mine, theirs in zip(one["logged"], first["logged"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert one["metrics"] == pytest.approx(first["metrics"], abs=1e-5)
    assert one["metrics"] == pytest.approx(second["metrics"], abs=1e-5)


def test_the_cache_was_built_by_both(both):
    """Each row once, by one of them; two that compute everything save no time."""
    folder, _ = both
    cache = CachedTeacher(folder / "cache")
    shards = [len(cache_files.read_records(folder / "cache", shard)) for shard in cache_files.shards(folder / "cache")]
    assert len(cache) == sum(shards) == 16 + 5  # the evaluation's rows too, whose last item alone is a target
    assert shards == [11, 10]
    live = item_teacher()
    assert cache.fingerprint == cache_building.LiveTeacher(live, [2]).fingerprint


def test_where_one_process_fails_both_do(both):
    """A process that waits for one that is gone waits for half an hour."""
    _, (first, second) = both
    assert "Process 1 failed: TrainingError: The disk of the teacher cache" in first["full"]
    assert second["full"].startswith("The disk of the teacher cache")


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {name: run(name, Path(sys.argv[1]), 2) for name in CASES}
    results["full"] = fail_on_one(Path(sys.argv[1]))
    torch.save(results, Path(sys.argv[1]) / f"{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()
