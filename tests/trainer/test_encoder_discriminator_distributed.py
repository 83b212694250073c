"""A discriminator with an encoder of its own, by two processes and by one. Run by torchrun, this file is their script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from encoders import save_encoder
from generating import NEW_TOKENS
from running import largest_difference, logged, record, trainer_of, weights
from test_distributed import LIMIT_S, one_with_negatives
from tiny import ragged_rows, tiny_llama

from qcrd_trl import RationaleScorer


pytestmark = pytest.mark.slow  # two processes that import everything anew

# A rate of the head at which Adam's division of small gradients by themselves does not show.
WHOLE = {"discriminator_encoder_learning_rate": 1e-5}
GENERATED = {"negative_source": "both", "negative_refresh_steps": 1, "negative_max_new_tokens": NEW_TOKENS}

# name: (rows, questions of a global micro-batch, arguments)
CASES = {
    "head": (ragged_rows(16), 8, {"max_steps": 2}),
    "whole": (ragged_rows(16), 8, {"max_steps": 2, **WHOLE}),
    "accumulated": (ragged_rows(16), 4, {"max_steps": 2, "gradient_accumulation_steps": 2, **WHOLE}),
    "one_with_negatives": (one_with_negatives(), 8, {"max_steps": 2, **WHOLE}),
    "generated": (ragged_rows(16), 8, {"max_steps": 2, **GENERATED, **WHOLE}),
}


def run(name: str, folder: Path, scorer: Path, processes: int) -> dict:
    """Trains a case; what it computed, on this process."""
    rows, batch_size, overrides = CASES[name]
    torch.manual_seed(0)
    trainer = trainer_of(
        folder / name,
        tiny_llama(),
        rows,
        per_device_train_batch_size=batch_size // processes,
        discriminator_model_name_or_path=str(scorer),
        **({"ddp_timeout": LIMIT_S} if processes > 1 else {}),
        **overrides,
    )
    seen = record(trainer)
    trainer.train()
    trainer.save_model()
    return {
        "student_gradients": seen.student,
        "gradients": seen.discriminator,
        "weights": weights(trainer.model),
        "discriminator": weights(trainer.discriminator),
        "logged": logged(trainer),
        "world_size": trainer.args.world_size,
    }


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    made = RationaleScorer.from_encoder(save_encoder(folder / "encoder"), hidden_size=8, seed=7)
    made.save_pretrained(folder / "discriminator")
    return folder / "discriminator"


@pytest.fixture(scope="module")
def both(tmp_path_factory, scorer):
    """Every case by two processes: a list of what each process computed."""
    folder = tmp_path_factory.mktemp("distributed")
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests / "trainer"), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*command, __file__, str(folder), str(scorer)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(tmp_path, scorer, both, name):
    """Gradients that each process keeps to itself make two discriminators, of which one is saved."""
    one, (first, second) = run(name, tmp_path, scorer, 1), (result[name] for result in both[1])
    assert first["world_size"] == second["world_size"] == 2
    assert len(one["gradients"]) == 2
    has_encoder = any(key.startswith("encoder.") for key in one["gradients"][0])
    assert has_encoder == (name != "head")
    for kind, tolerance in (("student_gradients", 5e-6), ("gradients", 1e-5)):
        for here, there, other in zip(one[kind], first[kind], second[kind], strict=True):
            # As they are before the processes share them: their mean is that of the one process.
            if kind == "gradients":
                there = {key: (there[key] + other[key]) / 2 for key in there}
            else:
                assert largest_difference(there, other) == 0
            assert max(grad.abs().max() for grad in here.values()) > 1e-3
            assert largest_difference(here, there) < tolerance
    assert largest_difference(one["weights"], first["weights"]) < 5e-6
    assert largest_difference(first["weights"], second["weights"]) == 0
    # Adam divides a gradient by its own size: where it is near 0, rounding moves a weight by up to the rate, twice.
    assert largest_difference(one["discriminator"], first["discriminator"]) < 5e-5
    assert largest_difference(first["discriminator"], second["discriminator"]) == 0
    pretrained = weights(RationaleScorer.from_pretrained(scorer))
    assert largest_difference(pretrained, first["discriminator"]) > 1e-3
    for mine, theirs in zip(one["logged"], first["logged"], strict=True):
        assert mine == pytest.approx(theirs, abs=2e-5)


def test_one_process_saves(both):
    """Two processes that write the same folder leave one that cannot be read."""
    folder, (first, _) = both
    for name in CASES:
        loaded = RationaleScorer.from_pretrained(folder / name)
        assert largest_difference(weights(loaded), first[name]["discriminator"]) == 0


if __name__ == "__main__":
    where, made = Path(sys.argv[1]), Path(sys.argv[2])
    results = {case: run(case, where, made, 2) for case in CASES}
    torch.save(results, where / f"{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()
