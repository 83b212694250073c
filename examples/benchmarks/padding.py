"""What part of the tokens is padding, by the order of the questions and the number of forward passes.

    python examples/benchmarks/padding.py --dataset SELECTED --model MODEL

Counts, for batches of questions in random order and grouped by length, the padded tensors of one epoch: label rows, and
rationale rows with and without a shared prompt (all positives and negatives). Nothing is run through the model: only its
tokenizer is read.
"""

import argparse

import torch
from torch.utils.data import RandomSampler

from qcrd_trl import StudentFormat
from qcrd_trl.data.collator import DataCollatorForQCRD
from qcrd_trl.data.length_grouping import LengthGroupedSampler
from qcrd_trl.data.sources import load_dataset_from
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.models import load_tokenizer, prepare_tokenizer
from qcrd_trl.trainer.scoring import flat_passes
from qcrd_trl.trainer.shared_prompt import MaskForm, shared_passes


def padding_of(rows: list[dict], order: list[int], batch_size: int, passes: int) -> dict[str, list[int]]:
    """Tokens and places of the tensors of an epoch: of label rows, flat rationales and shared rationales."""
    collator, counts = DataCollatorForQCRD(0), {name: [0, 0] for name in ("labels", "flat", "shared")}

    def add(name, used, places):
        counts[name][0] += int(used)
        counts[name][1] += places

    for start in range(0, len(order), batch_size):
        batch = collator([rows[i] for i in order[start : start + batch_size]])
        add("labels", batch["attention_mask"].sum(), batch["attention_mask"].numel())
        parts = [batch[f"rationale_{name}"] for name in ("input_ids", "attention_mask", "labels")]
        for one in flat_passes(*parts, num_passes=passes):
            add("flat", one.inputs["attention_mask"].sum(), one.inputs["input_ids"].numel())
        for one in shared_passes(*parts, batch["rationale_question"], MaskForm(), torch.float32, num_passes=passes):
            add("shared", 0, one.inputs["input_ids"].numel())
        for i in order[start : start + batch_size]:
            # Each rationale repeats the prompt's last token in place of its own.
            completions = rows[i]["positive_ids"] + rows[i]["negative_ids"]
            prompt = len(rows[i]["explain_prompt_ids"]) - 1 if completions else 0
            add("shared", prompt + sum(map(len, completions)), 0)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max_length", type=int, default=1024)
    args = parser.parse_args()
    tokenize = RowTokenizer(prepare_tokenizer(load_tokenizer(args.model)), StudentFormat(max_length=args.max_length))
    rows = [tokenize(row, index) for index, row in enumerate(load_dataset_from(args.dataset))]
    print(f"{len(rows)} questions; part of the places that is padding, in percent:")
    print("questions  order              passes  labels  flat  shared  shared and labels  of those, of labels")
    for batch_size in (8, 16):
        shuffled = list(RandomSampler(rows, generator=torch.Generator().manual_seed(0)))
        grouped = LengthGroupedSampler([row["length"] for row in rows], batch_size).order(0)
        for name, order in (("random", shuffled), ("grouped by length", grouped)):
            for passes in (1, 2, 4):
                counts = padding_of(rows, order, batch_size, passes)
                counts["both"] = [a + b for a, b in zip(counts["labels"], counts["shared"], strict=True)]
                labels, places = counts["labels"], counts["both"][1]
                shares = [100 * (1 - used / wide) for used, wide in counts.values()]
                shares.append(100 * (labels[1] - labels[0]) / places)
                cells = "  ".join(f"{share:6.1f}" for share in shares)
                print(f"{batch_size:>9}  {name:<17}  {passes:>6}  {cells}", flush=True)


if __name__ == "__main__":
    main()
