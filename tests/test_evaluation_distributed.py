"""Accuracies with two processes on one machine. Run by torchrun, this file is their script."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from generating import questions, sharp_llama
from killing import TESTS, without_clocks
from running import largest_difference, lora, trainer_of, weights
from tiny import tiny_t5, word_tokenizer

from qcrd_trl import AccuracyCallback


pytestmark = pytest.mark.slow  # two processes that import everything anew
LIMIT_S = 60  # of waiting for the other process
NAMES = ("eval_label_accuracy", "eval_answer_accuracy", "eval_agreement", "eval_accuracy_questions")
# name: (family, adapter, how the student is asked)
CASES = {
    "adapter": ("llama", lora(init_lora_weights=False), {"max_new_tokens": 5}),
    "sampled": ("llama", None, {"max_new_tokens": 5, "num_samples": 3, "temperature": 1.0}),
    "t5": ("t5", None, {"max_new_tokens": 5, "num_samples": 2, "temperature": 3.0}),
}


def trainer_for(name: str, folder: Path, processes: int, measures: bool = True, dropout: float = 0.0):
    family, adapter, asking = CASES[name]
    torch.manual_seed(0)
    adapter = copy.deepcopy(adapter)
    if adapter is not None:
        adapter.lora_dropout = dropout
    model = tiny_t5(dropout_rate=dropout) if family == "t5" else sharp_llama(attention_dropout=dropout)
    trainer = trainer_of(
        folder,
        model,
        questions(8),
        word_tokenizer(adds_eos=family == "t5"),
        # 11 questions in batches of 2: the shares are not of one size.
        {"peft_config": adapter, "eval_dataset": Dataset.from_list(questions(11))},
        per_device_train_batch_size=4 // processes,
        max_steps=3,
        optim="adamw_torch",
        learning_rate=0.02,
        eval_strategy="steps" if measures else "no",
        eval_steps=1,
        ddp_timeout=LIMIT_S,
    )
    if measures:
        trainer.add_callback(AccuracyCallback(trainer, "number", batch_size=2, **asking))
    return trainer


def run(name: str, folder: Path, processes: int, **kwargs) -> dict:
    trainer = trainer_for(name, folder, processes, **kwargs)
    trainer.train()
    (callback,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, AccuracyCallback)] or [None]
    return {
        "world_size": trainer.args.world_size,
        "weights": weights(trainer.model),
        "metrics": [
            {name: entry[name] for name in NAMES}
            for entry in without_clocks(trainer.state.log_history)
            if "eval_agreement" in entry
        ],
        "questions": [] if callback is None else callback.results["eval"].to_dict()["questions"],
    }


def failing(folder: Path, rank: int) -> dict:
    """Process 1 runs out of memory while it asks; the other must not wait for it."""
    trainer = trainer_for("adapter", folder, 2)

    def generate(*args, **kwargs):
        raise RuntimeError("no memory is left here")

    if rank == 1:
        trainer.model.generate = generate
    try:
        trainer.train()
    except Exception as err:
        return {"error": f"{type(err).__name__}: {err}", "step": trainer.state.global_step}
    return {}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes came to."""
    folder = tmp_path_factory.mktemp("distributed")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*command, __file__, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(tmp_path, both, name):
    """Questions that nobody asks count as wrong, and a metric that differs by process stops only one of them early."""
    one, (first, second) = run(name, tmp_path, 1), (told[name] for told in both)
    assert (one["world_size"], first["world_size"], second["world_size"]) == (1, 2, 2)
    assert first["metrics"] == second["metrics"] == one["metrics"]
    assert len(one["metrics"]) == 3
    assert one["metrics"][0]["eval_accuracy_questions"] == 11
    assert first["questions"] == second["questions"] == one["questions"]
    assert len(one["questions"]) == 11
    assert any(question["rationale"] for question in one["questions"])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_without_it(both, name):
    """With dropout, so that each process draws: what is asked on one must not move the draws of either."""
    for told in both:
        measured, plain = told[f"{name}, dropout"], told[f"{name}, dropout, not measured"]
        assert len(measured["metrics"]) == 3
        assert plain["metrics"] == []
        assert largest_difference(measured["weights"], plain["weights"]) == 0
        assert largest_difference(measured["weights"], told[name]["weights"]) > 1e-4


def test_an_error_on_one_process_ends_both(both):
    """The other would wait for its answers, half an hour by default."""
    first, second = (told["failing"] for told in both)
    assert first["error"] == "TrainingError: Process 1 failed: RuntimeError: no memory is left here"
    assert second["error"] == "RuntimeError: no memory is left here"
    assert first["step"] == second["step"] == 1


if __name__ == "__main__":
    where, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    results = {name: run(name, where / name, 2) for name in CASES}
    for name in CASES:
        results[f"{name}, dropout"] = run(name, where / f"{name} d", 2, dropout=0.3)
        results[f"{name}, dropout, not measured"] = run(name, where / f"{name} n", 2, dropout=0.3, measures=False)
    results["failing"] = failing(where / "failing", rank)
    torch.save(results, where / f"{rank}.pt")
    torch.distributed.destroy_process_group()
