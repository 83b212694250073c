"""Two processes on one machine against one process with a batch of both, and batches in parts. Run by torchrun, this is the script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from c2kd_runs import c2kd_logs, c2kd_trainer, filters_of, item_model, item_rows, record_c2kd, teacher_model
from datasets import Dataset
from running import largest_difference, lora, weights

from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.teacher_states import LiveTeacher


LIMIT_S = 120  # of waiting for the other process, far below the half hour that is the default

# name: (rows of a global micro-batch, arguments)
CASES = {
    "c2kd": (8, {"max_steps": 2, "lambda_orthogonal": 0.05}),
    "c2kd_accumulated": (4, {"max_steps": 2, "gradient_accumulation_steps": 2}),
    "none": (8, {"max_steps": 2, "method": "none"}),
    "feature_kd": (8, {"max_steps": 2, "method": "feature_kd", "max_grad_norm": 0.5}),
    "logit_kd": (8, {"max_steps": 2, "method": "logit_kd"}),
    "blockwise": (8, {"max_steps": 2, "method": "blockwise"}),
    "cached": (8, {"max_steps": 2}),
    "adapter": (8, {"max_steps": 2}),
}


def run(name: str, folder: Path, processes: int) -> dict:
    """Trains a case and evaluates it; what it computed, on this process."""
    batch_size, overrides = CASES[name]
    cached = {"teacher_cache": str(folder / "cache")} if name == "cached" else {}
    parts = {"teacher_model": teacher_model()} if cached else {}
    model = None
    if name == "adapter":
        model = str(folder / "base")
        if processes == 1:
            item_model().save_pretrained(model)
        parts["peft_config"] = lora(init_lora_weights=False)
        torch.manual_seed(1)
    trainer = c2kd_trainer(
        folder / name,
        model,
        rows=item_rows(16),
        parts={"eval_dataset": Dataset.from_list(item_rows(7, 3)), **parts},  # 7: one row comes twice to two processes
        per_device_train_batch_size=batch_size // processes,
        per_device_eval_batch_size=4 // processes,
        **({"ddp_timeout": LIMIT_S} if processes > 1 else {}),
        **{**overrides, **cached},
    )
    noted = record_c2kd(trainer)
    trainer.train()
    clocks = ("runtime", "per_second", "preparation_time")
    metrics = {key: value for key, value in trainer.evaluate().items() if not any(clock in key for clock in clocks)}
    trainer.save_model()
    return {
        "gradients": noted,
        "weights": weights(trainer.model),
        "heads": weights(trainer.heads),
        "logged": c2kd_logs(trainer),
        "metrics": metrics,
        "router": trainer.router_shares(),
        "world_size": trainer.args.world_size,
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Every case by two processes: a list of what each process computed."""
    folder = tmp_path_factory.mktemp("c2kd_distributed")
    item_model().save_pretrained(folder / "base")
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


@pytest.mark.slow  # two processes that import everything anew
@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(tmp_path, both, name):
    """Heads whose gradients are not averaged drift apart, and a mean by process instead of by position is still plausible."""
    one, (first, second) = run(name, tmp_path, 1), (result[name] for result in both[1])
    assert first["world_size"] == second["world_size"] == 2
    assert one["world_size"] == 1
    assert len(one["gradients"]) == 2
    for here, there, other in zip(one["gradients"], first["gradients"], second["gradients"], strict=True):
        largest = max(grad.abs().max() for grad in here.values())
        assert largest > 1e-2
        assert largest_difference(here, there) < 3e-6 * max(largest, 1)  # float32 has 7 digits
        assert largest_difference(there, other) == 0
    assert largest_difference(one["weights"], first["weights"]) < 3e-6
    assert largest_difference(first["weights"], second["weights"]) == 0
    if one["heads"]:
        assert largest_difference(one["heads"], first["heads"]) < 2e-6
        assert largest_difference(first["heads"], second["heads"]) == 0
    assert bool(one["heads"]) == (name not in ("none", "logit_kd"))
    for mine, theirs in zip(one["logged"], first["logged"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    for result in (first, second):
        assert one["metrics"] == pytest.approx(result["metrics"], abs=1e-6)
        assert one["router"] == pytest.approx(result["router"])
    assert one["metrics"]["eval_mrr"] == first["metrics"]["eval_mrr"]  # of 7 rows, not of 8


@pytest.mark.slow
def test_one_process_saves(both):
    """Two processes that write the same file leave one that cannot be read; heads in the student are exported with it."""
    folder, _ = both
    for name in CASES:
        names = {path.name for path in (folder / name).iterdir()}
        assert {"adapter_model.safetensors" if name == "adapter" else "model.safetensors", "config.json"} <= names
        assert not any("heads" in file for file in names)


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "blockwise", "none"])
def test_a_batch_in_parts_is_the_batch(tmp_path, method):
    """Parts that are means of their own weigh a short row as much as a long one, or the penalty once a micro-batch."""
    orthogonal = {"lambda_orthogonal": 0.3} if method == "c2kd" else {}
    results = []
    for size in (8, 1, 2):
        trainer = c2kd_trainer(
            tmp_path,
            method=method,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=8 // size,
            max_steps=2,
            max_grad_norm=1.0,
            **orthogonal,
        )
        if orthogonal:
            with torch.no_grad():
                trainer.heads.logit_projection.weight.mul_(1.2)
        noted = record_c2kd(trainer)
        trainer.train()
        results.append((noted, weights(trainer.model), weights(trainer.heads), c2kd_logs(trainer)))
    for noted, student, heads, logs in results[1:]:
        for here, there in zip(results[0][0], noted, strict=True):
            assert largest_difference(here, there) < 3e-6
        assert largest_difference(results[0][1], student) < 2e-6
        if heads:
            assert largest_difference(results[0][2], heads) < 2e-6
        for mine, theirs in zip(results[0][3], logs, strict=True):
            assert mine == pytest.approx(theirs, rel=2e-5)
    if orthogonal:
        assert results[0][3][0]["loss/orthogonal"] > 0.5


def test_with_and_without_a_cache(tmp_path):
    """A cache that gives other states than the teacher makes two methods of one."""
    rows, logs, trained = item_rows(16), [], []
    item_model().save_pretrained(tmp_path / "student")
    for parts, cache in (
        ({"teacher_model": teacher_model()}, None),
        ({"teacher_model": teacher_model()}, "cache"),
        ({}, "cache"),
    ):
        trainer = c2kd_trainer(
            tmp_path / "out",
            model=str(tmp_path / "student"),
            rows=rows,
            parts={"layer_filters": filters_of(), **parts},
            teacher_cache=cache and str(tmp_path / cache),
            teacher_dtype="float16",
            max_steps=4,
        )
        trainer.train()
        logs.append(c2kd_logs(trainer))
        trained.append(weights(trainer.model))
        assert isinstance(trainer.teacher, LiveTeacher) == (cache is None)
        assert isinstance(trainer.filters, LayerFilters)
    assert logs[1] == logs[2]
    assert largest_difference(trained[1], trained[2]) == 0
    # A row alone or in a batch may round otherwise in half precision now and then.
    assert largest_difference(trained[0], trained[1]) < 1e-3
    for mine, theirs in zip(logs[0], logs[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    results = {case: run(case, where, 2) for case in CASES}
    torch.save(results, where / f"{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()
