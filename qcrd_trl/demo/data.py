"""The demo's data: what the trainer gets, and what its students are asked."""

import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tqdm import tqdm

from ..sampling.self_consistency import select_rationales
from .task import Problem, is_correct, problems
from .teacher import NUM_SAMPLES, sample_rationales


TASK_KIND = "number"


@dataclass
class DemoData:
    """
    Rows to train and to measure on.

    Attributes:
        train (`list[dict]`): training set as [`QCRDTrainer`] takes it.
        test (`list[dict]`): held-out rows with `id`, `prompt` and `label`.
        test_problems (`list[Problem]`): the problems behind them, in their order.
        facts (`dict[str, float]`): counts and shares about teacher and selection.
    """

    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    test_problems: list[Problem]
    facts: dict[str, float]

    @property
    def most_frequent_answer_accuracy(self) -> float:
        """How often the commonest label of the training questions is right on the held-out ones."""
        answer = Counter(row["label"] for row in self.train).most_common(1)[0][0]
        return sum(row["label"] == answer for row in self.test) / len(self.test)


def make_data(num_questions: int, num_test_questions: int, seed: int) -> DemoData:
    """
    Draws problems, samples the teacher, and selects rationales by self-consistency.

    The vote of the samples makes the labels: gold answers serve only to count how often it is right, and to measure on
    the held-out questions. Questions with a tied vote are left out.

    Args:
        num_questions (`int`):
            Questions to sample the teacher on.
        num_test_questions (`int`):
            Held-out questions.
        seed (`int`):
            The same seed gives the same data.

    Returns:
        [`DemoData`]
    """
    drawn = list(islice(problems(seed), num_questions + num_test_questions))
    train_problems, test_problems = drawn[:num_questions], drawn[num_questions:]
    sampled = sample_rationales(train_problems, seed)
    rows, count = [], Counter()
    pairs = zip(train_problems, sampled, strict=True)
    bar = tqdm(pairs, "selecting rationales", num_questions, unit=" questions", file=sys.stderr)
    for index, (problem, texts) in enumerate(bar):
        chosen = select_rationales(texts, task_kind=TASK_KIND, label=str(problem.answer), label_source="majority")
        count["right_samples"] += chosen.gold_votes
        if chosen.label is None:
            continue
        count["right_labels"] += chosen.majority_is_gold
        count["positives"] += len(chosen.positives)
        count["right_positives"] += sum(is_correct(problem, text) for text in chosen.positives)
        count["negatives"] += len(chosen.negatives)
        rows.append(
            {
                "id": f"train-{index}",
                "prompt": problem.question,
                "label": chosen.label,
                "positive_rationales": list(chosen.positives),
                "negative_rationales": list(chosen.negatives),
                "raw_rationale": chosen.raw,
            }
        )
    test = [
        {"id": f"test-{index}", "prompt": problem.question, "label": str(problem.answer)}
        for index, problem in enumerate(test_problems)
    ]
    facts = {
        "questions": num_questions,
        "ties_left_out": num_questions - len(rows),
        "training_questions": len(rows),
        "held_out_questions": len(test),
        "samples_per_question": NUM_SAMPLES,
        "sample_answer_accuracy": count["right_samples"] / (num_questions * NUM_SAMPLES),
        "vote_accuracy": count["right_labels"] / len(rows),
        "positives_per_question": count["positives"] / len(rows),
        "positives_with_every_step_right": count["right_positives"] / count["positives"],
        "negatives_per_question": count["negatives"] / len(rows),
    }
    return DemoData(rows, test, test_problems, facts)
