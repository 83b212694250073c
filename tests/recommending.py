"""A tiny data set for the commands of `qcrd c2kd`, and their short runs. `from recommending import ...`."""

import random
from pathlib import Path

from qcrd_trl.cli.main import main


NUM_USERS, NUM_ITEMS, NUM_EVENTS = 12, 30, 7
SHORT = [
    *("--use_cpu", "--report_to", "none", "--disable_tqdm", "true", "--logging_steps", "1"),
    *(
        "--per_device_train_batch_size",
        "4",
        "--max_history",
        "4",
        "--num_train_epochs",
        "2",
        "--learning_rate",
        "0.01",
    ),
]
BEST = [
    *("--eval_strategy", "epoch", "--save_strategy", "epoch", "--load_best_model_at_end"),
    *("--metric_for_best_model", "eval_ndcg@10"),
]


def llama_config(size: int, layers: int) -> str:
    """A tiny Llama as `--backbone_config` has it."""
    return (
        f'{{"model_type": "llama", "hidden_size": {size}, "num_hidden_layers": {layers}, "num_attention_heads": 2, '
        f'"num_key_value_heads": 2, "intermediate_size": {2 * size}, "max_position_embeddings": 64}}'
    )


def prepare(folder: Path) -> Path:
    """Prepared data of 12 users, each with 7 of 30 items; its folder."""
    draws = random.Random(0)
    lines = ["user_id,item_id,timestamp"]
    for user in range(NUM_USERS):
        items = draws.sample(range(NUM_ITEMS), NUM_EVENTS)
        lines += [f"u{user},{item},{time}" for time, item in enumerate(items)]
    (folder / "interactions.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    titles = [f"{item},film {item}" for item in range(NUM_ITEMS)]
    (folder / "items.csv").write_text("\n".join(["item_id,title", *titles]) + "\n", encoding="utf-8")
    inputs = ["--interactions", str(folder / "interactions.csv"), "--items", str(folder / "items.csv")]
    assert main(["c2kd", "prepare", *inputs, "--output_dir", str(folder / "data")]) == 0
    return folder / "data"


def c2kd(command: str, data: Path, output: Path, *flags: str, short: bool = True) -> int:
    """Runs a command of `qcrd c2kd` that trains, and gives its exit status."""
    return main(
        ["c2kd", command, "--dataset", str(data), "--output_dir", str(output), *flags, *(SHORT if short else [])]
    )
