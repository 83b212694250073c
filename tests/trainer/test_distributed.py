"""Two processes on one machine against one process with a batch of both. Run by torchrun, this file is their script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from running import FAMILIES, largest_difference, logged, lora, record, trainer_of, weights
from tiny import ragged_rows


pytestmark = pytest.mark.slow  # two processes that import everything anew
LIMIT_S = 120  # of waiting for the other process, far below the half hour that is the default


def one_with_negatives():
    """Eight questions of which one has negatives, and half no rationale at all: some process has none of a kind."""
    rows = [{**row, "positive_rationales": ["a is so"], "negative_rationales": []} for row in ragged_rows()]
    rows[0]["negative_rationales"] = ["b", "c c"]
    for row in rows[4:]:
        row["positive_rationales"] = []
    return rows


def alone():
    """Questions of which every second one has many rationales: selection pays for one process and not for the other."""
    rows = [{**row, "positive_rationales": ["a is so"], "negative_rationales": ["b"]} for row in ragged_rows(16)]
    for row in rows[::2]:
        row["negative_rationales"] = [f"b {i} c d e f g" for i in range(9)]
    return rows


ALL = {"shared_prompt": True, "selection": True, "chunked_logits": True}

# name: (family, rows, adapter, questions of a global micro-batch, arguments)
CASES = {
    "qcrd": ("llama", ragged_rows(16), False, 8, {"max_steps": 2}),
    "qcrd_t5": ("t5", ragged_rows(16), False, 8, {"max_steps": 2}),
    "qcrd_accumulated": ("llama", ragged_rows(16), False, 4, {"max_steps": 2, "gradient_accumulation_steps": 2}),
    "qcrd_paper_adapter": ("llama", ragged_rows(16), True, 8, {"max_steps": 2, "preset": "qcrd_paper", "margin": 6.0}),
    "dss": ("llama", ragged_rows(16), False, 8, {"max_steps": 2, "preset": "dss"}),
    "one_with_negatives": ("llama", one_with_negatives(), False, 8, {"max_steps": 3}),
    "savings": ("llama", ragged_rows(16), False, 8, {"max_steps": 2, "preset": "qcrd_paper", "margin": 6.0, **ALL}),
    "savings_auto": ("llama", alone(), True, 8, {"max_steps": 3, "preset": "qcrd_paper", "margin": 6.0}),
    "savings_accumulated_t5": (
        *("t5", ragged_rows(16), False, 4),
        {"max_steps": 2, "gradient_accumulation_steps": 2, "reduction": "min_max", **ALL},
    ),
    "one_with_negatives_adapter": ("t5", one_with_negatives(), True, 8, {"max_steps": 2, "alpha_1": 0.0}),
}


def run(name: str, folder: Path, processes: int) -> dict:
    """Trains a case and evaluates it; what it computed, on this process."""
    family, rows, adapter, batch_size, overrides = CASES[name]
    make, tokenizer = FAMILIES[family]
    torch.manual_seed(0)
    task = "SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM"
    trainer = trainer_of(
        folder / name,
        make(),
        rows,
        tokenizer(),
        {
            "eval_dataset": Dataset.from_list(ragged_rows(8)),
            "peft_config": lora(init_lora_weights=False, task_type=task) if adapter else None,
        },
        per_device_train_batch_size=batch_size // processes,
        per_device_eval_batch_size=8 // processes,
        **({"ddp_timeout": LIMIT_S} if processes > 1 else {}),
        **overrides,
    )
    seen = record(trainer)
    trainer.train()
    clocks = ("runtime", "per_second", "preparation_time")
    metrics = {name: value for name, value in trainer.evaluate().items() if not any(clock in name for clock in clocks)}
    trainer.save_model()
    return {
        "gradients": seen.student,
        "discriminator_gradients": seen.discriminator,
        "weights": weights(trainer.model),
        "discriminator": None if trainer.discriminator is None else weights(trainer.discriminator),
        "logged": logged(trainer),
        "metrics": metrics,
        "world_size": trainer.args.world_size,
    }


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
    """Summed where it should be averaged, by process where it should be by question, a loss is still plausible."""
    one, (first, second) = run(name, tmp_path, 1), (result[name] for result in both[1])
    assert first["world_size"] == second["world_size"] == 2
    assert one["world_size"] == 1
    assert len(one["gradients"]) == CASES[name][-1]["max_steps"]
    for here, there, other in zip(one["gradients"], first["gradients"], second["gradients"], strict=True):
        assert max(grad.abs().max() for grad in here.values()) > 1e-2
        assert largest_difference(here, there) < 2e-6
        assert largest_difference(there, other) == 0
    assert largest_difference(one["weights"], first["weights"]) < 2e-6
    assert largest_difference(first["weights"], second["weights"]) == 0
    assert (one["discriminator"] is None) == (name == "dss")
    if one["discriminator"] is not None:
        # Adam divides a gradient by its own size: where it is near 0, rounding moves a weight by up to the rate.
        assert largest_difference(one["discriminator"], first["discriminator"]) < 1e-5
        assert largest_difference(first["discriminator"], second["discriminator"]) == 0
    for mine, theirs in zip(one["logged"], first["logged"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert one["metrics"] == pytest.approx(first["metrics"], abs=1e-5)
    assert one["metrics"] == pytest.approx(second["metrics"], abs=1e-5)


def test_the_cases_are_what_they_say(both):
    """Negatives that never counted, or a process that always had some, would show nothing."""
    _, (first, second) = both
    assert first["qcrd"]["logged"][0]["loss/negative"] < -1e-3
    entry = first["one_with_negatives"]["logged"][0]
    assert entry["nll/negative"] > 1
    assert entry["loss/discriminator"] > 0
    moved = largest_difference(first["one_with_negatives"]["discriminator"], first["qcrd"]["discriminator"])
    assert moved > 1e-4
    assert second["dss"]["discriminator"] is None


def test_one_process_saves(both):
    """Two processes that write the same file leave one that cannot be read."""
    folder, _ = both
    for name in CASES:
        assert (folder / name / "qcrd_format.json").is_file()
        assert (folder / name / "discriminator").is_dir() == (name != "dss")


if __name__ == "__main__":
    where = Path(sys.argv[1])
    results = {case: run(case, where, 2) for case in CASES}
    torch.save(results, where / f"{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()
