"""A reasoning task that needs its steps: three-step word problems over 0 to 9, and a checker of every step."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


NAMES = ("ana", "eva", "cleo", "mia")
THINGS = ("figs", "nuts", "pens", "caps")
GAIN_VERBS = ("finds", "buys", "wins")
LOSS_VERBS = ("eats", "drops", "sells")
MAX_VALUE = 9
MAX_OPERAND = 5
NUM_STEPS = 3

# How a rationale begins, parts its steps and ends; each combination says the same.
OPENINGS = ("", "she has {start} . ", "start : {start} . ")
SEPARATORS = (".", ";")
CLOSINGS = ("the answer is {answer}", "so the answer is {answer}")

_STEP = re.compile(r"(\d+) ([+-]) (\d+) = (\d+) [.;] ")
_RATIONALE = re.compile(
    rf"(?:(?:she has|start :) (?P<start>\d+) \. )?(?P<steps>(?:{_STEP.pattern})*)(?:so )?the answer is (?P<answer>\d+)"
)


@dataclass(frozen=True)
class Step:
    """
    One calculation of a rationale, right or wrong.

    Args:
        left (`int`):
            The number it starts from.
        operation (`str`):
            `"+"` or `"-"`.
        right (`int`):
            The number that is added or taken away.
        result (`int`):
            What the rationale says comes out.
    """

    left: int
    operation: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.operation} {self.right} = {self.result}"


@dataclass(frozen=True)
class Problem:
    """
    A word problem.

    Args:
        question (`str`):
            Its text, words parted by single spaces.
        start (`int`):
            The number it starts from.
        kinds (`tuple[str, ...]`):
            What happens in each step: `"+"`, `"-"`, or `"*"` where the number is doubled.
        steps (`tuple[Step, ...]`):
            The calculation that solves it.
    """

    question: str
    start: int
    kinds: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.steps[-1].result


@dataclass(frozen=True)
class Wording:
    """
    One of the ways to write a rationale down.

    Args:
        opening (`str`):
            One of `OPENINGS`.
        separator (`str`):
            One of `SEPARATORS`.
        closing (`str`):
            One of `CLOSINGS`.
    """

    opening: str = OPENINGS[0]
    separator: str = SEPARATORS[0]
    closing: str = CLOSINGS[0]

    @classmethod
    def draw(cls, rng: random.Random) -> "Wording":
        """Draws one."""
        return cls(rng.choice(OPENINGS), rng.choice(SEPARATORS), rng.choice(CLOSINGS))

    def write(self, start: int, steps: Sequence[Step], answer: int) -> str:
        """Writes a rationale."""
        middle = "".join(f"{step} {self.separator} " for step in steps)
        return self.opening.format(start=start) + middle + self.closing.format(answer=answer)


def calculate(left: int, operation: str, right: int) -> int:
    """Returns `left + right` or `left - right`."""
    return left + right if operation == "+" else left - right


def problems(seed: int) -> Iterator[Problem]:
    """
    Draws word problems without end, no two with the same calculation.

    A part taken for training therefore shares no calculation with the rest: whoever answers the rest has learnt to
    calculate, not by heart. Doubling makes the order of the steps matter, so that adding up the numbers of a question
    does not answer it.

    Args:
        seed (`int`):
            The same seed gives the same problems.

    Yields:
        [`Problem`]: with every running value in `[0, MAX_VALUE]`.
    """
    rng = random.Random(f"problems {seed}")
    seen = set()
    while True:
        problem = _draw(rng)
        if problem is not None and (problem.start, problem.steps) not in seen:
            seen.add((problem.start, problem.steps))
            yield problem


def is_correct(problem: Problem, rationale: str) -> bool:
    """
    Whether a rationale solves a problem with every step right, in any of the wordings.

    Args:
        problem ([`Problem`]):
            The problem.
        rationale (`str`):
            The text. A right answer on wrong, missing or surplus steps is not enough, nor is a text of another form.
    """
    match = _RATIONALE.fullmatch(" ".join(rationale.split()))
    if match is None or match["start"] not in (None, str(problem.start)):
        return False
    steps = tuple(
        Step(int(left), operation, int(right), int(result))
        for left, operation, right, result in _STEP.findall(match["steps"])
    )
    return steps == problem.steps and int(match["answer"]) == problem.answer


def words() -> list[str]:
    """Every word of questions and rationales, in a fixed order."""
    digits = [str(number) for number in range(MAX_VALUE + 1)]
    others = "she has doubles them how many ? . , ; : + - = start so the answer is".split()
    return [*digits, *NAMES, *THINGS, *GAIN_VERBS, *LOSS_VERBS, *others]


def _draw(rng: random.Random) -> Problem | None:
    start = rng.randint(0, MAX_VALUE)
    kinds = tuple(rng.choice("+-*") for _ in range(NUM_STEPS))
    events, steps, value = [], [], start
    for kind in kinds:
        operand = value if kind == "*" else rng.randint(1, MAX_OPERAND)
        operation = "-" if kind == "-" else "+"
        result = calculate(value, operation, operand)
        if operand == 0 or not 0 <= result <= MAX_VALUE:
            return None
        verb = rng.choice(GAIN_VERBS if operation == "+" else LOSS_VERBS)
        events.append("doubles them" if kind == "*" else f"{verb} {operand}")
        steps.append(Step(value, operation, operand, result))
        value = result
    question = f"{rng.choice(NAMES)} has {start} {rng.choice(THINGS)} . she {' , '.join(events)} . how many ?"
    return Problem(question, start, kinds, tuple(steps))
