"""Which form of L_D tells good rationales from bad: eq. 2 as printed (ratio) or binary cross-entropy.

    python examples/benchmarks/discriminator_forms.py --dataset SELECTED --model MODEL [--json FILE] [--quick]

SELECTED is what `qcrd select` wrote. The student reads every rationale once, and its hidden states are kept. A
discriminator of each form is then trained on the states of two thirds of the questions and judged on the others, over
several splits; the splits, initial weights and batches are the same for both forms. Printed: AUC on held-out rationales
(mean and standard deviation over splits), and the paired difference.
"""

import argparse
import json
import platform
import statistics
import time

import torch
from tqdm import tqdm

from qcrd_trl import RationaleDiscriminator, StudentFormat
from qcrd_trl.data.collator import DataCollatorForQCRD
from qcrd_trl.data.sources import load_dataset_from
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.losses import discriminator_loss
from qcrd_trl.metrics import auc
from qcrd_trl.models import base_model, is_encoder_decoder, load_model, load_tokenizer, prepare_tokenizer
from qcrd_trl.trainer.scoring import score_rows_by_length


FORMS = ("ratio", "binary")


@torch.no_grad()
def pooled_states(model, tokenizer, dataset, max_questions: int, max_length: int) -> list[tuple]:
    """Max-pooled states of the positives and the negatives of each question that has both."""
    form = StudentFormat(is_encoder_decoder=is_encoder_decoder(model), max_length=max_length)
    tokenize = RowTokenizer(prepare_tokenizer(tokenizer), form)
    rows = (tokenize(row, index) for index, row in enumerate(dataset))
    rows = [row for row in rows if row["positive_ids"] and row["negative_ids"]][:max_questions]
    collate = DataCollatorForQCRD(tokenizer.pad_token_id, form.is_encoder_decoder)
    head = base_model(model).get_output_embeddings()
    pooler = RationaleDiscriminator(head.weight.shape[-1])
    decoder = base_model(model) if form.is_encoder_decoder else None
    questions = []
    for row in tqdm(rows, desc="Reading rationales"):
        batch = collate([row])
        with torch.autocast("cpu", torch.bfloat16):
            scored = score_rows_by_length(
                model,
                head,
                batch["rationale_input_ids"],
                batch["rationale_attention_mask"],
                batch["rationale_labels"],
                decoder,
                num_chunks=2,
            )
        positive = batch["rationale_is_positive"]
        pooled = pooler.pool(scored.states.float(), scored.row, len(positive))
        questions.append((pooled[positive], pooled[~positive]))
    return questions


def train(form: str, questions: list[tuple], steps: int, batch: int, rate: float, seed: int) -> RationaleDiscriminator:
    """A discriminator of one form, trained as the trainer does it."""
    torch.manual_seed(seed)
    discriminator = RationaleDiscriminator(questions[0][0].shape[1])
    optimizer = torch.optim.AdamW(discriminator.parameters(), lr=rate, weight_decay=0.01)
    for _ in range(steps):
        chosen = torch.randint(len(questions), (batch,)).tolist()
        losses = []
        for i in chosen:
            sides = []
            for pooled in questions[i]:
                scores = discriminator.score_pooled(pooled)[None]
                sides += [scores, torch.ones_like(scores, dtype=torch.bool)]
            losses.append(discriminator_loss(form, *sides))
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return discriminator


@torch.no_grad()
def judge(discriminator: RationaleDiscriminator, questions: list[tuple]) -> tuple[float, float]:
    """AUC over all held-out rationales, and the mean score of all of them."""
    scores = [discriminator.score_pooled(torch.cat(side)).tolist() for side in zip(*questions, strict=True)]
    return auc(*scores), statistics.mean(scores[0] + scores[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max_questions", type=int, default=150)
    parser.add_argument("--max_length", type=int, default=384)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="30 questions, 3 splits")
    args = parser.parse_args()
    if args.quick:
        args.max_questions, args.splits = 30, 3
    started = time.perf_counter()
    questions = pooled_states(
        load_model(args.model).eval(),
        load_tokenizer(args.model),
        load_dataset_from(args.dataset),
        args.max_questions,
        args.max_length,
    )
    results = []
    for rate in args.rates:
        for steps in args.steps:
            areas, means = {form: [] for form in FORMS}, {form: [] for form in FORMS}
            for split in range(args.splits):
                order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(split)).tolist()
                cut = 2 * len(order) // 3
                learned, held_out = ([questions[i] for i in part] for part in (order[:cut], order[cut:]))
                for form in FORMS:
                    area, mean = judge(train(form, learned, steps, args.batch_size, rate, split), held_out)
                    areas[form].append(area)
                    means[form].append(mean)
            differences = [b - a for a, b in zip(*(areas[form] for form in FORMS), strict=True)]
            results.append(
                {"rate": rate, "steps": steps, "auc": areas, "mean_score": means, "difference": differences}
            )
    print("rate    steps  ratio AUC      binary AUC     binary - ratio   mean score: ratio, binary")
    for r in results:
        cells = [
            f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for v in (*r["auc"].values(), r["difference"])
        ]
        scores = ", ".join(f"{statistics.mean(v):.2f}" for v in r["mean_score"].values())
        print(f"{r['rate']:<7g} {r['steps']:<5d}  {cells[0]}  {cells[1]}  {cells[2]:>15}   {scores}")
    print(
        f"{len(questions)} questions, {sum(len(p) + len(n) for p, n in questions)} rationales, {args.splits} splits, "
        f"{time.perf_counter() - started:.0f} s, torch {torch.__version__}, {platform.machine()}"
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"settings": vars(args), "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
