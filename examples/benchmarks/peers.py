"""Questions a second and memory of `QCRDTrainer`, beside what users of TRL would run on the same data.

    python examples/benchmarks/peers.py --model MODEL --dataset SELECTED [--measured 200] [--json FILE] [--quick]

SELECTED is what `qcrd select` wrote. Of its questions, the first 200 that have a positive are taken, each with its own
negatives or else one of another question. All trainers get the same student with a LoRA adapter, AdamW, precision and threads:

- SFT: TRL's `SFTTrainer` on all positives, a row each, the loss on the rationale alone. Padded as TRL does it, not packed.
- DPO: TRL's `DPOTrainer` on pairs, one for each positive; a question's negatives take turns in them.
- QCRD: label, positives, negatives and discriminator, by two presets. Negatives are those of the data: none is generated
  (negatives.py tells what that takes).

Measured are whole training steps, optimizer included. The trainers take turns on parts of the data, each part one epoch long;
`--measured` questions are taken, short and long ones alike. Memory is the peak above the loaded student while one part is trained on,
each figure that of a process of its own.
"""

import argparse
import statistics
import tempfile
import time

import measuring
from measuring import number


PEERS = ("SFT", "DPO", "qcrd_paper", "qcrd")
# What QCRD is to reach: times SFT's and DPO's speed, part of SFT's memory.
GOALS = {"SFT": 1.1, "DPO": 2.5, "memory": 0.7}
HEADER = [
    "trainer",
    "times SFT's speed",
    "to reach",
    "times DPO's speed",
    "to reach",
    "memory beside SFT's",
    "to reach",
]
HEADER += ["questions a second", "MiB above the model"]


def main(argv: list[str] | None = None) -> None:
    parser = measuring.parser_of(__doc__, "one part of 2 questions")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--questions", type=int, default=200, help="of the dataset")
    parser.add_argument("--measured", type=int, default=12, help="of them, those that are trained on")
    parser.add_argument("--part", type=int, default=4, help="questions that a trainer trains on in its turn")
    parser.add_argument("--per_step", type=int, default=2, help="questions a step of QCRD")
    parser.add_argument(
        "--rows_per_step", type=int, default=8, help="rows a step of SFT, pairs of DPO; 8 is TRL's default"
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.measured = args.part = 2
    started = time.perf_counter()
    measuring.quiet()
    questions = measuring.spread(measuring.questions_of(args.dataset, args.questions), args.measured)
    parts = [questions[start : start + args.part] for start in range(0, len(questions), args.part)]
    with tempfile.TemporaryDirectory() as folder:
        # The longest part: the peak is that of the widest step.
        longest = max(parts, key=lambda part: sum(len(text) for row in part for text in row["positive_rationales"]))
        sizes = (args.rank, args.per_step, args.rows_per_step, args.bf16)
        memory = {
            name: measuring.in_own_process(peak, name, args.model, longest, sizes, f"{folder}/{name}-memory")
            for name in PEERS
        }
        times = speeds(args, parts, folder)
    rows = [row(name, times, memory, parts) for name in PEERS]
    positives = statistics.mean(len(question["positive_rationales"]) for question in questions)
    negatives = statistics.mean(len(question["negative_rationales"]) for question in questions)
    note = (
        f"{len(questions)} of {args.questions} questions in {len(parts)} parts, {positives:.2f} positives and "
        f"{negatives:.2f} negatives a question; a step is {args.per_step} questions (QCRD), {args.rows_per_step} rows (SFT) "
        f"or pairs (DPO). Ratios are medians over the parts."
    )
    text = measuring.table(HEADER, [cells(one, args.clock) for one in rows])
    measuring.report(args, [text, note], {"rows": rows}, started)


def speeds(args: argparse.Namespace, parts: list[list[dict]], folder: str) -> dict[str, list[dict]]:
    """Times of each part by each trainer, after a step of each on a question."""
    trainers = {}
    for name in PEERS:
        model = measuring.trained(measuring.load(args.model), "lora", args.rank)
        sizes = (args.per_step, args.rows_per_step, args.bf16)
        trainers[name] = trainer_of(name, model, args.model, [*parts, parts[0][:1]], sizes, f"{folder}/{name}")
        trainers[name](len(parts))
    times = {name: [] for name in PEERS}
    for part in range(len(parts)):
        for name in PEERS:
            times[name].append(trainers[name](part))
    return times


def trainer_of(name: str, model, path: str, parts: list[list[dict]], sizes: tuple[int, int, bool], folder: str):
    """A function that trains on a part, by its number, and tells how long that took."""
    from datasets import Dataset

    from qcrd_trl.models import load_tokenizer, prepare_tokenizer

    per_step, rows_per_step, bf16 = sizes
    shared = measuring.training_arguments(folder, bf16)
    tokenizer = prepare_tokenizer(load_tokenizer(path))
    if name in ("SFT", "DPO"):
        from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

        config, trainer = (SFTConfig, SFTTrainer) if name == "SFT" else (DPOConfig, DPOTrainer)
        rows = [rows_of_positives(part) if name == "SFT" else pairs(part) for part in parts]
        config = config(**shared, per_device_train_batch_size=rows_per_step)
    else:
        from qcrd_trl import QCRDConfig, QCRDTrainer

        trainer, rows = QCRDTrainer, parts
        config = QCRDConfig(
            **shared, preset=name, report_plots=False, negative_source="minority", per_device_train_batch_size=per_step
        )
    everything = Dataset.from_list([row for part in rows for row in part])
    trainer = trainer(model=model, args=config, train_dataset=everything, processing_class=tokenizer)
    tokenized, starts = trainer.train_dataset, [sum(map(len, rows[:part])) for part in range(len(rows))]

    def train(part: int) -> dict:
        trainer.train_dataset = tokenized.select(range(starts[part], starts[part] + len(rows[part])))
        return measuring.timed_training(trainer)

    return train


def question_of(row: dict) -> str:
    """The question as QCRD asks it for a rationale."""
    return f"<Explain> {row['prompt']}\n"


def rows_of_positives(part: list[dict]) -> list[dict]:
    """A row for each positive."""
    return [{"prompt": question_of(row), "completion": text} for row in part for text in row["positive_rationales"]]


def pairs(part: list[dict]) -> list[dict]:
    """A pair for each positive, the negatives of its question in turns."""
    return [
        {
            "prompt": question_of(row),
            "chosen": text,
            "rejected": row["negative_rationales"][i % len(row["negative_rationales"])],
        }
        for row in part
        for i, text in enumerate(row["positive_rationales"])
    ]


def peak(name: str, path: str, part: list[dict], sizes: tuple[int, int, int, bool], folder: str) -> float | None:
    """Peak above the loaded student while it trains on a part, MiB."""
    rank, per_step, rows_per_step, bf16 = sizes
    model = measuring.trained(measuring.load(path), "lora", rank)
    step = measuring.ScoringStep(model, measuring.form_of(False, False, False), bf16)
    step(step.rows(2, 16, 16))  # loads code
    model.zero_grad()
    with measuring.Peak() as measured:
        trainer_of(name, model, path, [part], (per_step, rows_per_step, bf16), folder)(0)
    return measured.mib


def row(name: str, times: dict[str, list[dict]], memory: dict[str, float | None], parts: list[list[dict]]) -> dict:
    """The figures of a trainer."""
    questions = sum(map(len, parts))
    figures = {"trainer": name, "times": times[name], "mib": memory[name]}
    for clock in ("wall", "cpu"):
        figures[f"questions_per_second_{clock}"] = questions / sum(time[clock] for time in times[name])
        for other in ("SFT", "DPO"):
            ratios = [theirs[clock] / ours[clock] for theirs, ours in zip(times[other], times[name], strict=True)]
            figures[f"speed_beside_{other}_{clock}"] = statistics.median(ratios)
    figures["memory_ratio"] = memory[name] / memory["SFT"] if memory[name] and memory["SFT"] else None
    return figures


def cells(row: dict, clock: str) -> list[str]:
    """A row of the table."""
    is_ours = row["trainer"] not in ("SFT", "DPO")
    goals = GOALS if is_ours else dict.fromkeys(GOALS)
    return [
        f"QCRD, preset `{row['trainer']}`" if is_ours else f"TRL {row['trainer']}",
        number(row[f"speed_beside_SFT_{clock}"]),
        number(goals["SFT"]),
        number(row[f"speed_beside_DPO_{clock}"]),
        number(goals["DPO"]),
        number(row["memory_ratio"]),
        number(goals["memory"]),
        number(row[f"questions_per_second_{clock}"], ".3f"),
        number(row["mib"], ".0f"),
    ]


if __name__ == "__main__":
    main()
