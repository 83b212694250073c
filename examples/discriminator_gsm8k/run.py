"""Does a discriminator tell right solutions from wrong ones? Real solutions with `is_correct` flags, split by question.

    python examples/discriminator_gsm8k/run.py --solutions SOLUTIONS.jsonl --encoder MODEL --student MODEL [--json FILE]

Each line of the file is a question with its solutions: `question`, and `solutions` with `text` and `is_correct`. The
questions are split into folds; a discriminator learns from the questions of all folds but one, from a right and a wrong solution
of one question (`--pairs any`: of any two), and is judged on every solution of the fold left out. Printed: AUC against `is_correct`
over all held-out solutions, and over pairs of one question alone, each with a 95 % interval (bootstrap over questions).
"""

import argparse
import json
import platform
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from features import encoder_features, kept, student_features
from scipy.stats import bootstrap

from qcrd_trl import RationaleDiscriminator, RationaleScorer
from qcrd_trl.losses import discriminator_loss
from qcrd_trl.metrics import auc
from qcrd_trl.sampling.corruption import BalancedQuestion
from qcrd_trl.scorer_training import ScorerSettings, judge_scores, train_scorer


WAYS = {
    "length": "shorter is better (characters)",
    "frozen": "encoder frozen, head trained",
    "trained": "encoder and head trained",
    "student": "student's states, head trained",
}


@dataclass
class Solutions:
    """All solutions, one entry each: question, text, whether it is right, number of its question."""

    prompts: list[str]
    texts: list[str]
    correct: list[bool]
    question: list[int]

    @classmethod
    def read(cls, path: str, max_questions: int | None) -> "Solutions":
        """The first questions of a file."""
        found = cls([], [], [], [])
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                if max_questions is not None and number >= max_questions:
                    break
                row = json.loads(line)
                for solution in row["solutions"]:
                    found.prompts.append(row["question"])
                    found.texts.append(solution["text"])
                    found.correct.append(bool(solution["is_correct"]))
                    found.question.append(number)
        return found

    def of_question(self, number: int) -> tuple[list[int], list[int]]:
        """Places of its right and of its wrong solutions."""
        places = [i for i, question in enumerate(self.question) if question == number]
        return [i for i in places if self.correct[i]], [i for i in places if not self.correct[i]]


# ---- Scores of held-out solutions, by each discriminator ----


def head_scores(features: torch.Tensor, solutions: Solutions, folds: list[list[int]], args) -> list[float]:
    """A head on fixed features, trained anew for each fold."""
    scores = torch.zeros(len(features))
    for number, (learned, held_out) in enumerate(splits(solutions, folds, args.pairs == "any")):
        torch.manual_seed(args.seed + number)
        head = RationaleDiscriminator(features.shape[1])
        optimizer = torch.optim.AdamW(head.parameters(), lr=args.learning_rate, weight_decay=0.01)
        rng = random.Random(f"{args.seed}/{number}")
        for _ in range(args.head_steps):
            drawn = [learned[i] for i in rng.choices(range(len(learned)), k=args.batch_size)]
            sides = []
            for side in (0, 1):
                scored = head.score_pooled(features[[rng.choice(pair[side]) for pair in drawn]])[:, None]
                sides += [scored, torch.ones_like(scored, dtype=torch.bool)]
            discriminator_loss(args.loss, *sides).mean().backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            scores[held_out] = head.score_pooled(features[held_out])
    return scores.tolist()


def trained_scores(solutions: Solutions, folds: list[list[int]], args) -> list[float]:
    """Encoder and head, trained for each fold as `qcrd discriminator train` does."""
    scores = [0.0] * len(solutions.texts)
    for number, (learned, held_out) in enumerate(splits(solutions, folds)):
        scorer = RationaleScorer.from_encoder(args.encoder, max_length=args.max_length, seed=args.seed + number)
        questions = [
            BalancedQuestion(
                solutions.prompts[right[0]],
                tuple(solutions.texts[i] for i in right),
                tuple(solutions.texts[i] for i in wrong),
                num_masked=0,
                num_corrupted=0,
            )
            for right, wrong in learned
        ]
        settings = ScorerSettings(
            max_steps=args.encoder_steps,
            batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            encoder_learning_rate=args.encoder_learning_rate,
            loss=args.loss,
            seed=args.seed + number,
        )
        train_scorer(scorer, questions, settings)
        found = scorer.score(*([texts[i] for i in held_out] for texts in (solutions.prompts, solutions.texts)))
        for place, score in zip(held_out, found, strict=True):
            scores[place] = score
    return scores


def splits(solutions: Solutions, folds: list[list[int]], any_pair: bool = False):
    """
    Of each fold: pairs of places (right, wrong) of the questions to learn from, or with `any_pair` one pair of all of them,
    and all places of the fold.
    """
    for fold in folds:
        others = [number for other in folds if other is not fold for number in other]
        sides = [solutions.of_question(number) for number in others]
        learned = [pair for pair in sides if pair[0] and pair[1]]
        if any_pair:
            learned = [tuple([place for pair in sides for place in pair[side]] for side in (0, 1))]
        yield learned, [place for number in fold for side in solutions.of_question(number) for place in side]


# ---- What they are worth ----


def judge(scores: list[float], solutions: Solutions, folds: list[list[int]], args) -> dict:
    """
    AUC over all solutions of a fold (mean over folds) and within questions, each with its interval; of scores in (0, 1) also
    accuracy, Brier score and expected calibration error, both sides weighing the same.
    """
    sides = {
        number: tuple([scores[i] for i in side] for side in solutions.of_question(number))
        for fold in folds
        for number in fold
    }
    within = {number: auc(*pair) for number, pair in sides.items()}
    fold_of = {number: place for place, fold in enumerate(folds) for number in fold}
    numbers = np.array(sorted(sides))

    def over_all(chosen) -> float:
        areas = []
        for place in range(len(folds)):
            here = [sides[n] for n in chosen.tolist() if fold_of[n] == place]
            areas.append(auc(*([score for pair in here for score in pair[side]] for side in (0, 1))))
        return float(np.mean([area for area in areas if area is not None]))

    def inside(chosen) -> float:
        return float(np.mean([within[n] for n in chosen.tolist() if within[n] is not None]))

    found = {}
    for name, statistic in (("auc", over_all), ("auc_within", inside)):
        interval = bootstrap(
            (numbers,),
            statistic,
            n_resamples=args.resamples,
            vectorized=False,
            method="percentile",
            random_state=np.random.default_rng(args.seed),
        ).confidence_interval
        found[name] = statistic(numbers)
        found[f"{name}_interval"] = [float(interval.low), float(interval.high)]
    if all(0 <= score <= 1 for score in scores):
        sides = [
            [s for s, right in zip(scores, solutions.correct, strict=True) if right == side] for side in (True, False)
        ]
        figures = judge_scores(*sides)
        found |= {name: figures[name] for name in ("accuracy", "brier", "ece")}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solutions", required=True)
    parser.add_argument("--encoder", required=True, help="id or path of an encoder")
    parser.add_argument("--student", required=True, help="id or path of the student whose states are read")
    parser.add_argument("--max_questions", type=int, help="the first so many; all if left out")
    parser.add_argument("--max_length", type=int, default=256, help="tokens of question and solution together")
    parser.add_argument(
        "--pairs",
        choices=["within", "any"],
        default="within",
        help="a right and a wrong one of one question, or of any",
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=8, help="pairs a step")
    parser.add_argument("--head_steps", type=int, default=200)
    parser.add_argument("--encoder_steps", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="of a head")
    parser.add_argument("--encoder_learning_rate", type=float, default=5e-5)
    parser.add_argument("--loss", default="binary", choices=["binary", "ratio"])
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="the student reads under bfloat16 autocast")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what is judged; all if left out")
    parser.add_argument("--cache", help="folder that keeps what the frozen models read")
    parser.add_argument("--json", help="file for all figures")
    args = parser.parse_args(argv)
    if args.pairs == "any" and "trained" in args.ways:
        parser.error("the encoder is trained on pairs of one question alone: leave trained out of --ways")

    solutions = Solutions.read(args.solutions, args.max_questions)
    numbers = sorted(set(solutions.question))
    random.Random(args.seed).shuffle(numbers)
    folds = [numbers[place :: args.folds] for place in range(args.folds)]
    paired = sum(all(solutions.of_question(number)) for number in numbers)
    print(
        f"{len(numbers)} questions, {len(solutions.texts)} solutions, {sum(solutions.correct)} right; {paired} questions have "
        f"both kinds; {args.folds} folds"
    )
    texts = (solutions.prompts, solutions.texts, args.max_length)

    def by_encoder() -> list[float]:
        return head_scores(kept(args.cache, encoder_features, args.encoder, *texts), solutions, folds, args)

    def by_student() -> list[float]:
        features = kept(args.cache, student_features, args.student, *texts, args.bf16)
        return head_scores(features, solutions, folds, args)

    ways = {
        "length": lambda: [-float(len(text)) for text in solutions.texts],
        "frozen": by_encoder,
        "trained": lambda: trained_scores(solutions, folds, args),
        "student": by_student,
    }
    rows = {}
    print(f"{'':34}AUC, all solutions      AUC, within questions   accuracy  Brier   ECE     seconds")
    for way in args.ways:
        started, name = time.perf_counter(), WAYS[way]
        found = judge(ways[way](), solutions, folds, args)
        found["seconds"] = time.perf_counter() - started
        rows[name] = found
        cells = [
            f"{found[key]:.3f} [{found[f'{key}_interval'][0]:.3f}, {found[f'{key}_interval'][1]:.3f}]"
            for key in ("auc", "auc_within")
        ]
        cells += [f"{found[key]:.3f}" if key in found else "-" for key in ("accuracy", "brier", "ece")]
        widths = (24, 24, 10, 8, 8)
        line = "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"{name:<34}{line}{found['seconds']:.0f}", flush=True)
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads")
    if args.json:
        figures = {"settings": vars(args), "questions": len(numbers), "solutions": len(solutions.texts), "rows": rows}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
