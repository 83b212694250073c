"""What the discriminator costs: whole training steps with and without it.

    python examples/benchmarks/discriminator.py --model MODEL --dataset SELECTED [--json FILE] [--quick]

Preset `qcrd_paper` on a student with a LoRA adapter, with the negatives of the data. Both runs score the same rationales of the
same questions; without the discriminator there are no quality weights. The runs take turns, a step each time.
"""

import argparse
import statistics
import tempfile
import time

import measuring
from measuring import number


FORMS = {
    "without": {"discriminator": "none", "quality_weighting": "none"},
    "kind `student`": {"discriminator": "student"},
}
GOAL = 1.05
HEADER = ["discriminator", "time beside without", "at most", "seconds a step"]


def main(argv: list[str] | None = None) -> None:
    parser = measuring.parser_of(__doc__, "steps of one question, twice")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--per_step", type=int, default=4, help="questions a step")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each")
    args = parser.parse_args(argv)
    if args.quick:
        args.per_step, args.repeats = 1, 2
    started = time.perf_counter()
    measuring.quiet()
    questions = measuring.spread(measuring.questions_of(args.dataset, 200), args.per_step)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: trainer_of(args, name, questions, folder) for name in FORMS}
        runs = {name: lambda name=name: measuring.timed_training(trainers[name]) for name in FORMS}
        measuring.in_turns(runs, 1)
        times = measuring.in_turns(runs, args.repeats)
    rows = []
    for name in FORMS:
        row = {"discriminator": name.replace("`", ""), "times": times[name]}
        for clock in ("wall", "cpu"):
            pairs = zip(times[name], times["without"], strict=True)
            row[f"ratio_{clock}"] = statistics.median(ours[clock] / theirs[clock] for ours, theirs in pairs)
        rows.append(row)
    text = [
        [
            name,
            number(row[f"ratio_{args.clock}"], ".3f"),
            number(None if name == "without" else GOAL),
            number(measuring.median(row["times"], args.clock)),
        ]
        for name, row in zip(FORMS, rows, strict=True)
    ]
    note = f"Steps of {len(questions)} questions; the ratio is the median of {args.repeats} pairs of steps."
    measuring.report(args, [measuring.table(HEADER, text), note], {"rows": rows}, started)


def trainer_of(args: argparse.Namespace, name: str, questions: list[dict], folder: str):
    """A trainer whose epoch is a single step."""
    from datasets import Dataset

    from qcrd_trl import QCRDConfig, QCRDTrainer
    from qcrd_trl.models import load_tokenizer

    return QCRDTrainer(
        model=measuring.trained(measuring.load(args.model), "lora", args.rank),
        args=QCRDConfig(
            **measuring.training_arguments(folder, args.bf16),
            preset="qcrd_paper",
            report_plots=False,
            negative_source="minority",
            per_device_train_batch_size=args.per_step,
            **FORMS[name],
        ),
        train_dataset=Dataset.from_list(questions),
        processing_class=load_tokenizer(args.model),
    )


if __name__ == "__main__":
    main()
