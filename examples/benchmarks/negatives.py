"""How fast negatives are generated, beside plain `generate`, and what part of a run they take.

    python examples/benchmarks/negatives.py --model MODEL --dataset SELECTED [--json FILE] [--quick]

Both ways sample from the whole distribution of the same student (with a LoRA adapter, as in training), for the same
questions, in batches of the same size: the callback's sampler, and `model.generate` on batches in the order of the dataset,
padded on the left. Counted are the tokens up to each sample's end, not what pads a batch to its longest sample. MODEL may be
the folder of a trained student, whose samples end where they should. With `--shrinking` a third way takes its turn: the
sampler as it is for models whose batches cannot be filled up, and only shrink.

The part of a run is that of one epoch of the preset `qcrd` at its defaults: one negative a question and epoch.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import measuring
from measuring import number


GOAL = 1.3
HEADER = [
    "temperature",
    "times plain's tokens a second",
    "not filled up",
    "to reach",
    "tokens a second",
    "plain",
    "mean length",
    "plain",
]


def main(argv: list[str] | None = None) -> None:
    parser = measuring.parser_of(__doc__, "8 questions, 24 new tokens, once; the part of a run on 4 questions")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_new_tokens", type=int, default=96)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.5, 0.8])
    parser.add_argument("--repeats", type=int, default=2, help="rounds in which both ways take a turn")
    parser.add_argument("--shrinking", action="store_true", help="also batches that are not filled up")
    parser.add_argument("--run_questions", type=int, default=16, help="of the run whose part is measured; 0: none")
    parser.add_argument("--run_max_new_tokens", type=int, default=256, help="its --negative_max_new_tokens")
    args = parser.parse_args(argv)
    if args.quick:
        args.questions, args.batch_size, args.max_new_tokens, args.repeats = 8, 4, 24, 1
        args.run_questions, args.run_max_new_tokens = 4, 32
    started = time.perf_counter()
    measuring.quiet()
    rows = speeds(args)
    tables = [measuring.table(HEADER, [cells(row, args.clock) for row in rows])]
    tables.append(
        f"{args.questions} questions, batches of {args.batch_size}, at most {args.max_new_tokens} new tokens, medians of "
        f"{args.repeats} rounds."
    )
    run = None
    if args.run_questions:
        run = part_of_run(args)
        tables.append(
            f"Negatives took {100 * run['share']:.0f} % of an epoch of {run['questions']} questions with preset `qcrd` "
            f"({run['negatives_seconds']:.0f} of {run['seconds']:.0f} s; one sample a question, at most "
            f"{args.run_max_new_tokens} new tokens, {run['mean_length']:.0f} in the mean)."
        )
    measuring.report(args, tables, {"rows": rows, "run": run}, started)


def student_of(args: argparse.Namespace):
    """The student as it is trained."""
    from peft import PeftModel

    model = measuring.load(args.model)
    return model if isinstance(model, PeftModel) else measuring.trained(model, "lora", args.rank)


def speeds(args: argparse.Namespace) -> list[dict]:
    """Tokens a second of both ways at each temperature."""
    import torch

    from qcrd_trl import StudentFormat
    from qcrd_trl.data.prompts import prompt_ids
    from qcrd_trl.models import load_tokenizer, prepare_tokenizer
    from qcrd_trl.sampling.generate import pad_prompts
    from qcrd_trl.sampling.negatives import NegativeQuestion, NegativeSampler, NegativeSettings
    from qcrd_trl.snapshots import Snapshots

    model, tokenizer = student_of(args), prepare_tokenizer(load_tokenizer(args.model))
    form = StudentFormat()
    asked = measuring.spread(measuring.questions_of(args.dataset, 200), args.questions)
    prompts = [prompt_ids(row["prompt"], form.explain_prefix, tokenizer, form) for row in asked]

    def sampler(temperature, prompts, tokens):
        how = NegativeSettings(temperature=temperature, max_new_tokens=tokens, batch_size=args.batch_size)
        questions = [NegativeQuestion(str(i), ids) for i, ids in enumerate(prompts)]
        # As the callback does it: from a snapshot, put in place of the student's weights.
        with tempfile.TemporaryDirectory() as folder:
            snapshots = Snapshots(Path(folder))
            snapshots.save(model, 0, 0)
            with snapshots.activated(model, 0), measuring.precision(args.bf16):
                report = NegativeSampler(model, tokenizer, how).sample(questions, 0, 0, progress=False)[1]
        return report.tokens

    def plain(temperature, prompts, tokens):
        total = 0
        model.eval()
        torch.manual_seed(0)
        for start in range(0, len(prompts), args.batch_size):
            inputs = pad_prompts(prompts[start : start + args.batch_size], tokenizer.pad_token_id, left=True)
            inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
            with torch.no_grad(), measuring.precision(args.bf16):
                out = model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=temperature,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=tokens,
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                )
            for ids in out[:, inputs["input_ids"].shape[1] :].tolist():
                end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
                total += end
        return total

    def run(way, temperature):
        tokens = []
        spent = measuring.timed(lambda: tokens.append(way(temperature, prompts, args.max_new_tokens)))
        return {**spent, "tokens": tokens[0]}

    def shrinking(temperature, prompts, tokens):
        with mock.patch("qcrd_trl.sampling.generate.can_join", return_value=False):
            return sampler(temperature, prompts, tokens)

    ways = {"sampler": sampler, "plain": plain} | ({"shrinking": shrinking} if args.shrinking else {})
    rows = []
    for temperature in args.temperatures:
        for way in ways.values():
            way(temperature, prompts[: args.batch_size], 4)
        turns = {name: partial(run, way, temperature) for name, way in ways.items()}
        runs = measuring.in_turns(turns, args.repeats)
        row = {"temperature": temperature, "runs": runs}
        for name in ways:
            row[f"mean_length_{name}"] = statistics.mean(one["tokens"] for one in runs[name]) / len(prompts)
            for clock in ("wall", "cpu"):
                row[f"tokens_per_second_{name}_{clock}"] = statistics.median(
                    one["tokens"] / one[clock] for one in runs[name]
                )
        for clock in ("wall", "cpu"):
            speed = {name: row[f"tokens_per_second_{name}_{clock}"] for name in ways}
            row[f"speedup_{clock}"] = speed["sampler"] / speed["plain"]
            if args.shrinking:
                row[f"speedup_shrinking_{clock}"] = speed["shrinking"] / speed["plain"]
        rows.append(row)
    return rows


def part_of_run(args: argparse.Namespace) -> dict:
    """One epoch of QCRD with the negatives that its own student generates."""
    from datasets import Dataset

    from qcrd_trl import QCRDConfig, QCRDTrainer
    from qcrd_trl.models import load_tokenizer

    rows = measuring.spread(measuring.questions_of(args.dataset, 200), args.run_questions)
    with tempfile.TemporaryDirectory() as folder:
        trainer = QCRDTrainer(
            model=student_of(args),
            args=QCRDConfig(
                **measuring.training_arguments(folder, args.bf16),
                preset="qcrd",
                report_plots=False,
                negative_max_new_tokens=args.run_max_new_tokens,
                per_device_train_batch_size=4,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=load_tokenizer(args.model),
        )
        seconds = measuring.timed_training(trainer)["wall"]
    logged = [entry for entry in trainer.state.log_history if "negatives/seconds" in entry]
    spent = sum(entry["negatives/seconds"] for entry in logged)
    return {
        "questions": len(rows),
        "seconds": seconds,
        "negatives_seconds": spent,
        "share": spent / seconds,
        "mean_length": logged[0]["negatives/mean_length"],
    }


def cells(row: dict, clock: str) -> list[str]:
    """A row of the table."""
    return [
        str(row["temperature"]),
        number(row[f"speedup_{clock}"]),
        number(row.get(f"speedup_shrinking_{clock}")),
        number(GOAL),
        number(row[f"tokens_per_second_sampler_{clock}"], ".1f"),
        number(row[f"tokens_per_second_plain_{clock}"], ".1f"),
        number(row["mean_length_sampler"], ".0f"),
        number(row["mean_length_plain"], ".0f"),
    ]


if __name__ == "__main__":
    main()
