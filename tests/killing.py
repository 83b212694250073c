"""
Training runs that are killed at an exact point, resumed, and compared. `from killing import ...`; run by Python, this file
is the driver: it imports everything once and forks a process for each run.
"""

import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_points as at
import numpy as np
import torch
from running import lora, trainer_of, weights
from safetensors.torch import load_file
from tiny import ragged_rows, tiny_llama, tiny_t5, word_tokenizer
from transformers.trainer_utils import get_last_checkpoint

from qcrd_trl import QCRDTrainer
from qcrd_trl.data.store import NegativeStore
from qcrd_trl.files import UNFINISHED, sha256
from qcrd_trl.snapshots import Snapshots


TESTS = Path(__file__).resolve().parent
SAVED = ("negative_generators", "negatives")
CLOCKS = ("time", "per_second", "seconds")

# An iteration every 2 steps, a checkpoint every 3, a log entry every 4, 7 micro-batches of 2 questions an epoch. At step 6
# a checkpoint is written and then iteration 3 begins: snapshot 0, which that checkpoint holds, goes; at step 9
# checkpoint-3 goes.
SHAPE = {
    "max_steps": 10,
    "negative_refresh_steps": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "logging_steps": 4,
    "save_total_limit": 2,
    "per_device_train_batch_size": 2,
    "negative_source": "self",
    "negative_lag": 2,
    "negative_max_new_tokens": 6,
    "negative_batch_size": 3,
    "optim": "adamw_torch",
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
}


def trainer_for(kind: str, folder: Path) -> QCRDTrainer:
    """The run that `kind` names, not yet begun."""
    rows, parts = ragged_rows(14), {"peft_config": lora(lora_dropout=0.2)}
    if kind in ("lora", "often"):
        shape = {**SHAPE, "gradient_accumulation_steps": 2, "num_negatives": 2}
        if (
            kind == "often"
        ):  # more iterations than the lag between two checkpoints: the run has pruned what a resume needs
            shape |= {"max_steps": 7, "negative_refresh_steps": 1}
        return trainer_of(folder, tiny_llama(attention_dropout=0.1), rows, parts=parts, **shape)
    if kind == "epochs":  # of 3 steps, each an iteration with a checkpoint at its end, as by default
        shape = {**SHAPE, "gradient_accumulation_steps": 2, "negative_refresh_steps": None, "save_strategy": "epoch"}
        shape |= {"max_steps": -1, "num_train_epochs": 3}
        return trainer_of(folder, tiny_llama(attention_dropout=0.1), rows[:12], parts=parts, **shape)
    if kind == "full":
        return trainer_of(folder, tiny_llama(attention_dropout=0.3), rows, **{**SHAPE, "negative_source": "both"})
    if kind == "t5":
        return trainer_of(folder, tiny_t5(dropout_rate=0.1), rows, word_tokenizer(adds_eos=True), **SHAPE)
    from transformers import BitsAndBytesConfig

    base = folder.parent / "base"
    tiny_llama(hidden_size=64, intermediate_size=128, num_hidden_layers=1).save_pretrained(base)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return trainer_of(folder, str(base), rows, parts={**parts, "quantization_config": quantization}, **SHAPE)


# ---- What a run came to ----


def run(kind: str, folder: Path, arm: Callable[[QCRDTrainer], None] | None = None) -> dict:
    """Trains from the newest checkpoint, if there is one, to the end or to where `arm` has the process killed."""
    trainer = trainer_for(kind, folder)
    if arm is not None:
        arm(trainer)
    trainer.train(resume_from_checkpoint=bool(folder.is_dir() and get_last_checkpoint(folder)))
    files = [file for name in SAVED for file in sorted((folder / name).rglob("*")) if file.is_file()]
    return {
        "student": weights(trainer.model),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "discriminator": weights(trainer.discriminator),
        "discriminator_optimizer": trainer.discriminator_update.optimizer.state_dict(),
        "store": [(key, dict(vars(negative))) for key, negative in trainer.negatives],
        "iteration": [trainer.iteration, trainer.negatives.iteration],
        "files": {str(file.relative_to(folder)): content(file) for file in files},
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "unfinished": sorted(path.name for path in folder.rglob(f"{UNFINISHED}*")),
        "logs": without_clocks(trainer.state.log_history),
        "random": [torch.get_rng_state(), random.getstate(), list(np.random.get_state())],
    }


def content(file: Path) -> str:
    """What tells a file from another. PEFT writes the modules of an adapter in the order of a set, new in each process."""
    if file.name != "adapter_config.json":
        return sha256(file)
    told = json.loads(file.read_text(encoding="utf-8"))
    return json.dumps({**told, "target_modules": sorted(told["target_modules"])})


def without_clocks(entries: list[dict]) -> list[dict]:
    """Log entries less what the clock says."""
    return [{k: v for k, v in entry.items() if not any(clock in k for clock in CLOCKS)} for entry in entries]


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of what is not exactly equal in two results."""
    if type(one) is not type(other):
        return [name]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{name}.{key}" for key in one.keys() ^ other.keys()]
        return [found for key in one for found in differences(one[key], other[key], f"{name}.{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{name} ({len(one)} or {len(other)})"]
        return [f for i, pair in enumerate(zip(one, other, strict=True)) for f in differences(*pair, f"{name}.{i}")]
    same = torch.equal(one, other) if torch.is_tensor(one) else np.array_equal(one, other)
    return [] if same else [name]


def look(folder: Path) -> dict:
    """What stands in the output folder of a run that was killed."""
    newest = get_last_checkpoint(folder)
    return {
        "broken": {path.name: broken(path) for path in sorted(folder.glob("checkpoint-*")) if broken(path)},
        "newest": newest and Path(newest).name,
        "unfinished": sorted(path.name for path in folder.rglob(f"{UNFINISHED}*")),
        "snapshots": Snapshots(folder / SAVED[0]).iterations(),
        "held": Snapshots(Path(newest) / SAVED[0]).iterations() if newest else [],
    }


def broken(checkpoint: Path) -> str | None:
    """What a checkpoint lacks of all that a run needs to go on from it."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        assert checkpoint.name == f"checkpoint-{state['global_step']}"
        assert json.loads((checkpoint / "meters_0.json").read_text(encoding="utf-8"))
        name = "adapter_model" if (checkpoint / "adapter_config.json").is_file() else "model"
        for file in (f"{name}.safetensors", "discriminator/model.safetensors"):
            assert load_file(checkpoint / file)
        for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "discriminator/optimizer.pt"):
            assert torch.load(checkpoint / file, weights_only=False)
        assert len(NegativeStore.load(checkpoint / SAVED[1]))
        snapshots = Snapshots(checkpoint / SAVED[0])
        assert snapshots.iterations()
        for number in snapshots.iterations():
            told = json.loads((snapshots.path(number) / "snapshot.json").read_text(encoding="utf-8"))
            assert sha256(snapshots.path(number) / f"{name}.safetensors") == told["sha256"]
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    return None


# ---- The driver ----


LORA = (
    *(at.in_a_step, at.in_generation, at.in_a_snapshot, at.after_pruning, at.in_the_history, at.after_a_refresh),
    *(at.after_the_model, at.after_the_optimizer, at.among_the_parts, at.before_the_name, at.after_the_name),
    *(at.in_the_rotation, at.in_pruning, at.at_the_end, at.in_the_first_iteration),
)
# name: (run, where its processes are killed, one after the other)
SCENARIOS: dict[str, tuple[str, tuple[Callable, ...]]] = {
    **{kind: (kind, ()) for kind in ("lora", "often", "epochs", "full", "t5", "four_bit")},
    **{f"lora, {point.__name__}": ("lora", (point,)) for point in LORA},
    "lora, twice": ("lora", (at.in_a_step, at.in_generation)),
    "lora, in_resuming": ("lora", (at.in_a_step, at.in_resuming)),
    "often, in_a_step": ("often", (at.in_a_step,)),
    **{f"epochs, {point.__name__}": ("epochs", (point,)) for point in (at.in_a_step, at.in_generation)},
    **{f"full, {point.__name__}": ("full", (point,)) for point in (at.in_generation, at.in_a_snapshot)},
    **{f"t5, {point.__name__}": ("t5", (point,)) for point in (at.among_the_parts, at.after_a_refresh)},
    **{f"four_bit, {point.__name__}": ("four_bit", (point,)) for point in (at.in_a_step, at.in_generation)},
}


def start(script: str, *arguments: str | Path) -> subprocess.CompletedProcess:
    """Runs a file in a new process, which inherits nothing, with the builders of the tests at hand."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def forked(work: Callable[[], Any], file: Path) -> int:
    """Exit status of a process that writes the result of `work` into a file; -9 if it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.save(work(), file)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def cannot_quantize() -> str | None:
    """Why there are no 4-bit weights here, if there are none."""
    try:
        import bitsandbytes.functional as functional

        functional.quantize_4bit(torch.ones(64, 64))
    except (ImportError, RuntimeError, OSError) as err:
        return f"bitsandbytes cannot quantize here: {err}"
    return None


def play(folder: Path, name: str) -> dict:
    """One scenario: how its processes ended, what was there after each that was killed, and what the last came to."""
    kind, arms = SCENARIOS[name]
    place, file = folder / name, folder / "told.pt"
    out = {"codes": [], "found": []}
    if kind == "four_bit" and forked(cannot_quantize, file) == 0 and torch.load(file):
        return {"skipped": torch.load(file)}
    for arm in (*arms, None):
        out["codes"].append(forked(lambda arm=arm: run(kind, place, arm), file))
        if arm is not None:
            forked(lambda: look(place), file)
            out["found"].append(torch.load(file, weights_only=False))
    return {**out, "result": torch.load(file, weights_only=False)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "alone":
        kind, place, arm = sys.argv[2], Path(sys.argv[3]), getattr(at, sys.argv[4], None)
        torch.save(run(kind, place, arm), place.parent / "alone.pt")
    else:
        results = {name: play(Path(sys.argv[1]), name) for name in sys.argv[2:] or SCENARIOS}
        torch.save(results, Path(sys.argv[1]) / "results.pt")
