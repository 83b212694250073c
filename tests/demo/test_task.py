"""The word problems and the checker of their rationales."""

import re
from itertools import islice, product

import pytest

from qcrd_trl.demo.task import CLOSINGS, MAX_VALUE, OPENINGS, SEPARATORS, Problem, Step, Wording, is_correct, problems


# 2 + 1 = 3, doubled 6, less 4 is 2.
PROBLEM = Problem(
    question="ana has 2 figs . she finds 1 , doubles them , drops 4 . how many ?",
    start=2,
    kinds=("+", "*", "-"),
    steps=(Step(2, "+", 1, 3), Step(3, "+", 3, 6), Step(6, "-", 4, 2)),
)


def drawn(seed, count=300):
    return list(islice(problems(seed), count))


@pytest.mark.parametrize(
    "text",
    [
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . the answer is 2",
        "she has 2 . 2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . so the answer is 2",
        "start : 2 . 2 + 1 = 3 ; 3 + 3 = 6 ; 6 - 4 = 2 ; the answer is 2",
        " 2 + 1 = 3 .  3 + 3 = 6 . 6 - 4 = 2 .\nthe answer is 2 ",
    ],
)
def test_right_rationales_are_accepted(text):
    """A checker that rejects a wording would report students that reason well as failing."""
    assert is_correct(PROBLEM, text)


def test_every_wording_of_drawn_problems_is_accepted():
    """The teacher draws among all wordings: one that the checker does not know would count as noise."""
    wordings = [Wording(*parts) for parts in product(OPENINGS, SEPARATORS, CLOSINGS)]
    assert len(wordings) == 12
    for problem in drawn(3):
        texts = {wording.write(problem.start, problem.steps, problem.answer) for wording in wordings}
        assert len(texts) == 12
        assert all(is_correct(problem, text) for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        "2 + 1 = 4 . 4 + 4 = 8 . 8 - 4 = 4 . the answer is 4",  # a slip, carried on
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 3 . the answer is 2",  # a slip, right answer
        "2 + 1 = 3 . 3 + 2 = 5 . 5 - 4 = 1 . the answer is 1",  # doubling misread
        "2 - 1 = 1 . 1 + 1 = 2 . 2 + 4 = 6 . the answer is 6",  # operations mixed up
        "2 + 1 = 3 . 3 + 3 = 6 . the answer is 6",  # a step is missing
        "6 - 4 = 2 . the answer is 2",  # right answer, steps missing
        "the answer is 2",  # right answer, no step
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . 2 + 0 = 2 . the answer is 2",  # a step too many
        "1 + 2 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . the answer is 2",  # starts from the wrong number
        "she has 3 . 2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . the answer is 2",  # says the wrong start
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . the answer is 6",  # another answer than was worked out
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 .",  # no answer
        "2 + 1 = 3 . 3 + 3 = 6 . 6 - 4 = 2 . the answer is 2 . the answer is 2",  # rambles on
        "3 + 3 = 6 . 2 + 1 = 3 . 6 - 4 = 2 . the answer is 2",  # steps in another order
        "",
    ],
)
def test_wrong_rationales_are_rejected(text):
    """A checker that looks at the answer alone would call lucky guesses reasoning."""
    assert not is_correct(PROBLEM, text)


def test_a_question_says_its_calculation():
    """A question whose numbers or verbs do not match its label would teach nonsense at a plausible loss."""
    for problem in drawn(4):
        match = re.fullmatch(r"(\w+) has (\d) (\w+) \. she (.*) \. how many \?", problem.question)
        value = int(match[2])
        assert value == problem.start
        for event, step in zip(match[4].split(" , "), problem.steps, strict=True):
            verb, operand = event.split()
            if verb in ("finds", "buys", "wins"):
                value += int(operand)
            elif verb in ("eats", "drops", "sells"):
                value -= int(operand)
            else:
                assert event == "doubles them"
                value *= 2
            assert step.result == value
            assert 0 <= value <= MAX_VALUE
        assert problem.answer == value


def test_no_calculation_comes_twice():
    """Held-out questions that repeat a training calculation would measure memory."""
    calculations = {(problem.start, problem.steps) for problem in drawn(5, 1500)}
    assert len(calculations) == 1500


def test_problems_depend_on_the_seed_alone():
    """Two runs of the demo could not be compared."""
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_no_answer_is_common():
    """If one answer were frequent, a student that learnt nothing would look good."""
    answers = [problem.answer for problem in drawn(6, 1500)]
    assert max(answers.count(answer) for answer in range(MAX_VALUE + 1)) < 0.2 * len(answers)
