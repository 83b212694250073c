"""What the teacher cache gives: time and memory of training a student by C2KD, with the teacher loaded and from its cache.

    python examples/benchmarks/teacher_cache.py [--teacher_layers 12 --teacher_width 768] [--json FILE] [--quick]

Item-head mode on made-up sequences of 5 to 51 items. Teacher, layer filters and student are Llamas with random weights: time and
memory do not depend on what they have learned. The runs take turns, each in a process of its own; memory is the peak above the
libraries, from loading the models to the last step, and counts the pages of the cache that the system has mapped. `epochs to pay`
is the time of building the cache divided by what an epoch from it saves. The last column compares the students that come out.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import measuring
from measuring import describe, machine, median, number, table


ITEMS = 1682  # as ml-100k has
HEADER = ["teacher", "cache", "seconds an epoch", "MiB", "seconds to build", "MiB on disk", "epochs to pay"]
HEADER += ["largest difference of a weight"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=512)
    parser.add_argument("--teacher_layers", type=int, nargs="+", default=[6, 12], help="one size a number")
    parser.add_argument("--teacher_width", type=int, nargs="+", default=[256, 768])
    parser.add_argument("--student_layers", type=int, default=2)
    parser.add_argument("--student_width", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which both take a turn")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="what the table's times are")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--quick", action="store_true", help="32 users, a small teacher, once")
    args = parser.parse_args(argv)
    if args.quick:
        args.users, args.teacher_layers, args.teacher_width, args.repeats = 32, [4], [32], 1
    if len(args.teacher_layers) != len(args.teacher_width):
        parser.error("--teacher_layers and --teacher_width need one number for each teacher")
    started = time.perf_counter()
    measuring.quiet()
    sizes = zip(args.teacher_layers, args.teacher_width, strict=True)
    rows = [compare(args, layers, width) for layers, width in sizes]
    here, minutes = machine(), (time.perf_counter() - started) / 60
    print(table(HEADER, [line for row in rows for line in cells(row, args.clock)]))
    print(f"\n{describe(here)}, float32, {args.clock} clock.")
    print(f"{'QUICK run: not to be quoted. ' if args.quick else ''}{minutes:.1f} minutes in all.")
    if args.json:
        figures = {"settings": vars(args), "machine": here, "minutes": minutes, "rows": rows}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def backbone(layers: int, width: int) -> dict:
    """Settings of a Llama."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(width // 64, 2),
        "num_key_value_heads": max(width // 64, 2),
        "max_position_embeddings": 64,
    }


def rows_of(users: int):
    """Sequences of random items and lengths."""
    import torch
    from datasets import Dataset

    draws = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 52, (users,), generator=draws).tolist()
    return Dataset.from_list([{"items": torch.randint(0, ITEMS, (n,), generator=draws).tolist()} for n in lengths])


def compare(args: argparse.Namespace, layers: int, width: int) -> dict:
    """All figures of a teacher."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = measuring.in_own_process(
            save_models, folder, layers, width, args.student_layers, args.student_width
        )
        built = measuring.in_own_process(build, folder, args.users, args.batch_size)
        forms = {
            key: lambda key=key: measuring.in_own_process(train, folder, key, args.users, args.batch_size)
            for key in ("loaded", "cached")
        }
        runs = measuring.in_turns(forms, args.repeats)
        difference = measuring.in_own_process(differ, folder)
    told = f"{layers} layers of {width}, {parameters / 1e6:.1f} M weights"
    return {"teacher": told, "parameters": parameters, "build": built, "runs": runs, "difference": difference}


def save_models(folder: Path, layers: int, width: int, student_layers: int, student_width: int) -> int:
    """Saves teacher, student and filters; the number of the teacher's weights."""
    import torch

    from qcrd_trl.recommendation.item_model import ItemHeadConfig, ItemHeadModel
    from qcrd_trl.recommendation.layer_filters import LayerFilters, default_layers
    from qcrd_trl.recommendation.teacher_states import teacher_fingerprint

    torch.manual_seed(0)
    teacher = ItemHeadModel(ItemHeadConfig(backbone(layers, width), num_items=ITEMS))
    teacher.save_pretrained(folder / "teacher")
    student = ItemHeadModel(ItemHeadConfig(backbone(student_layers, student_width), num_items=ITEMS))
    student.save_pretrained(folder / "student")
    candidates = default_layers(layers)
    filters = LayerFilters(
        candidates, width, student_width, ITEMS, teacher_fingerprint=teacher_fingerprint(teacher.eval())
    )
    filters.save_pretrained(folder / "filters")
    return sum(parameter.numel() for parameter in teacher.parameters())


def build(folder: Path, users: int, batch_size: int) -> dict:
    """Seconds of building the cache, teacher loaded, and its size."""
    from qcrd_trl.recommendation.collator import DataCollatorForC2KD
    from qcrd_trl.recommendation.layer_filters import LayerFilters
    from qcrd_trl.recommendation.loading import load_recommender
    from qcrd_trl.recommendation.teacher_cache import build_cache
    from qcrd_trl.recommendation.teacher_states import LiveTeacher
    from qcrd_trl.recommendation.tokens import tokenize_rows

    layers = LayerFilters.from_pretrained(folder / "filters").layers
    teacher = LiveTeacher(load_recommender(folder / "teacher"), layers)
    rows = tokenize_rows(rows_of(users), "item_head", num_items=ITEMS)
    collator = DataCollatorForC2KD(ITEMS)
    clock = measuring.timed(lambda: build_cache(teacher, rows, collator, folder / "cache", batch_size, progress=False))
    size = sum(path.stat().st_size for path in (folder / "cache").iterdir())
    return {**clock, "mib": size / measuring.MIB}


def train(folder: Path, form: str, users: int, batch_size: int) -> dict:
    """Time of an epoch, and peak memory from loading to its end."""
    import torch
    from safetensors.torch import save_file

    from qcrd_trl.trainer.c2kd_config import C2KDConfig
    from qcrd_trl.trainer.c2kd_trainer import C2KDTrainer

    rows = rows_of(users)
    with measuring.Peak() as measured:
        trainer = C2KDTrainer(
            model=str(folder / "student"),
            teacher_model=str(folder / "teacher") if form == "loaded" else None,
            args=C2KDConfig(
                output_dir=str(folder / "run"),
                layer_filters=str(folder / "filters"),
                teacher_cache=str(folder / "cache") if form == "cached" else None,
                num_train_epochs=1,
                per_device_train_batch_size=batch_size,
                learning_rate=1e-3,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                report_plots=False,
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=rows,
        )
        clock = measuring.timed_training(trainer)
    save_file({name: tensor.cpu().clone() for name, tensor in trainer.model.state_dict().items()}, folder / form)
    return {**clock, "mib": measured.mib}


def differ(folder: Path) -> float:
    """Largest difference of a weight of the two students."""
    from safetensors.torch import load_file

    one, other = load_file(folder / "loaded"), load_file(folder / "cached")
    return max((one[name] - other[name]).abs().max().item() for name in one)


def cells(row: dict, clock: str) -> list[list[str]]:
    """Two rows of the table."""
    seconds = {form: median(times, clock) for form, times in row["runs"].items()}
    memory = {form: max((time["mib"] or 0) for time in times) or None for form, times in row["runs"].items()}
    saved = seconds["loaded"] - seconds["cached"]
    pays = row["build"][clock] / saved if saved > 0 else None
    return [
        [row["teacher"], "no", number(seconds["loaded"]), number(memory["loaded"], ".0f"), "–", "–", "–", "–"],
        [
            *(row["teacher"], "yes", number(seconds["cached"]), number(memory["cached"], ".0f")),
            *(number(row["build"][clock]), number(row["build"]["mib"], ".0f"), number(pays, ".1f")),
            f"{row['difference']:.1e}",
        ],
    ]


if __name__ == "__main__":
    main()
