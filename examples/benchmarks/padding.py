"""How many padded tokens a batch of rationales costs, by the number of forward passes it is split into.

    python examples/benchmarks/padding.py --dataset SELECTED --model MODEL

Counts, for batches of questions in random order and grouped by length, the tokens of one drawn positive and all negatives a
question (the preset `qcrd`), and those of the padded tensors. Nothing is run through the model: only its tokenizer is read.
"""

import argparse
import itertools
import random

from qcrd_trl import StudentFormat
from qcrd_trl.data.sources import load_dataset_from
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.models import load_tokenizer, prepare_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_length", type=int, default=1024)
    args = parser.parse_args()
    tokenize = RowTokenizer(prepare_tokenizer(load_tokenizer(args.model)), StudentFormat(max_length=args.max_length))
    rows = [tokenize(row, index) for index, row in enumerate(load_dataset_from(args.dataset))]
    draws = random.Random(0)
    lengths = []
    for row in rows:
        start = len(row["explain_prompt_ids"])
        chosen = [draws.choice(row["positive_ids"])] if row["positive_ids"] else []
        lengths.append([start + len(ids) for ids in chosen + row["negative_ids"]])
    shuffled = list(range(len(rows)))
    draws.shuffle(shuffled)
    window = args.batch_size * 50  # as the Trainer's length-grouped sampler does it
    grouped = []
    for i in range(0, len(shuffled), window):
        grouped += sorted(shuffled[i : i + window], key=lambda j: -rows[j]["length"])
    real = sum(map(sum, lengths))
    print(f"{len(rows)} questions, {real} tokens; padded tokens as a multiple of them:")
    print("order              1 pass  2 passes  4 passes")
    for name, order in (("random", shuffled), ("grouped by length", grouped)):
        cells = []
        for passes in (1, 2, 4):
            padded = 0
            for i in range(0, len(order), args.batch_size):
                batch = sorted(length for j in order[i : i + args.batch_size] for length in lengths[j])
                cuts = [len(batch) * part // passes for part in range(passes + 1)]
                chunks = [batch[a:b] for a, b in itertools.pairwise(cuts) if b > a]
                padded += sum(len(chunk) * chunk[-1] for chunk in chunks)
            cells.append(f"{padded / real:8.2f}")
        print(f"{name:<17} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
