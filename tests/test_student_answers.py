"""Which of several rationales stands for a question."""

import pytest

from qcrd_trl.records import StudentRationale
from qcrd_trl.student_answers import explanation_of


def explain(*samples, task_kind="number"):
    """An explanation of `(value, quality)` samples."""
    records = tuple(
        StudentRationale(f"text {place}", None if value is None else str(value), quality, True)
        for place, (value, quality) in enumerate(samples)
    )
    return explanation_of(records, [value for value, _ in samples], task_kind)


@pytest.mark.parametrize(
    ("samples", "answer", "best"),
    [
        ([(7, 0.4)], "7", 0),
        ([(7, 0.4), (8, 0.9), (7, 0.5)], "7", 2),  # of the majority, the better one; 0.9 is of another answer
        ([(7, 0.5), (8, 0.9), (7, 0.5)], "7", 0),  # the first of two alike
        ([(8, 0.1), (7, 0.9)], "8", 0),  # a tie: the one that was reached first
        ([(None, 0.9), (7, 0.2)], "7", 1),  # no answer has no vote
        ([(None, 0.2), (None, 0.9)], None, 1),  # no answer at all: the better one
        ([(7, None), (8, None), (8, None)], "8", 1),  # no quality: the first that reaches it
        ([(7, None), (7, 0.1)], "7", 1),  # an empty text beside another
        ([(7, 0.1), ("7.0", 0.3), (8, 0.9)], "7", 1),  # compared by value
    ],
)
def test_the_majority_and_the_best_of_it(samples, answer, best):
    """A rationale that argues for another answer than the one given contradicts it in front of the user."""
    explanation = explain(*samples)
    assert (explanation.answer, explanation.best) == (answer, best)
    assert explanation.rationale == f"text {best}"
    assert explanation.quality == samples[best][1]
    assert explanation.is_finished


def test_without_a_task_kind_the_best_stands():
    """There is no answer to vote by."""
    explanation = explain((None, 0.2), (None, 0.7), task_kind=None)
    assert (explanation.answer, explanation.best) == (None, 1)
