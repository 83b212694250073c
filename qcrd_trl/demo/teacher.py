"""A teacher that errs: noisy rationales for the word problems, as a large model at temperature 0.7 would give them."""

import random
from collections.abc import Sequence

from .task import MAX_VALUE, Problem, Step, Wording, calculate


NUM_SAMPLES = 5
# Some questions mislead the teacher the same way again and again, so that the majority can be wrong; beside that it
# slips now and then. Together about a fifth to a quarter of the samples end in a wrong answer.
MISLEADING_QUESTIONS = 0.25
MISLED_SAMPLES = 0.5
SLIPS_A_STEP = 0.04


def sample_rationales(problems: Sequence[Problem], seed: int, num_samples: int = NUM_SAMPLES) -> list[list[str]]:
    """
    Draws rationales for each problem.

    Args:
        problems (`Sequence[Problem]`):
            The problems.
        seed (`int`):
            The same seed gives the same samples.
        num_samples (`int`, *optional*, defaults to 5):
            Samples a problem.

    Returns:
        `list[list[str]]`: The samples of each problem, in the order in which they were drawn.
    """
    rng = random.Random(f"teacher {seed}")
    return [_samples_of(problem, rng, num_samples) for problem in problems]


def _samples_of(problem: Problem, rng: random.Random, num_samples: int) -> list[str]:
    misread = rng.randrange(len(problem.steps)) if rng.random() < MISLEADING_QUESTIONS else None
    samples = []
    for _ in range(num_samples):
        misled = misread is not None and rng.random() < MISLED_SAMPLES
        steps = _attempt(problem, misread if misled else None, rng)
        answer = steps[-1].result if steps else problem.start
        samples.append(Wording.draw(rng).write(problem.start, steps, answer))
    return samples


def _attempt(problem: Problem, misread: int | None, rng: random.Random) -> list[Step]:
    """Works a problem out step by step; a wrong value is carried on, as it is by whoever does not notice."""
    steps, value = [], problem.start
    for place, (kind, right_step) in enumerate(zip(problem.kinds, problem.steps, strict=True)):
        operation, operand = right_step.operation, value if kind == "*" else right_step.right
        if place == misread and kind == "*":
            operand = 2
        elif place == misread:
            operation = "-" if operation == "+" else "+"
        result = calculate(value, operation, operand)
        if rng.random() < SLIPS_A_STEP:
            result += rng.choice((-1, 1))
        if not 0 <= result <= MAX_VALUE:
            continue  # what cannot be is left out, and the step with it
        steps.append(Step(value, operation, operand, result))
        value = result
    return steps
