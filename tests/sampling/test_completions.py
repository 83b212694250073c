"""Completions split into explanation and answer, and what follows the answer cut."""

from fractions import Fraction

import pytest

from qcrd_trl.answers import extract_answer
from qcrd_trl.sampling.completions import (
    ParsedCompletion,
    as_rationale,
    cut_run_on,
    has_marks,
    read_completion,
    split_completion,
)
from qcrd_trl.sampling.self_consistency import select_rationales


@pytest.mark.parametrize(
    "text",
    [
        "<Explanation>: 3 + 4 = 7.\n<Answer>: 7",
        "<explanation> 3 + 4 = 7. <answer> 7",
        "<Explanation>3 + 4 = 7.</Explanation>\n<Answer>7</Answer>",
        "**<Explanation>:** 3 + 4 = 7.\n\n**<Answer>:** 7",
        "**Explanation:** 3 + 4 = 7.\n**Answer:** 7",
        "### Explanation:\n3 + 4 = 7.\n### Answer:\n7",
        "Explanation: 3 + 4 = 7.\nFinal answer: 7\n\nQuestion: What is 8 + 1?\nAnswer: 9",
        "<Explanation>: 3 + 4 = 7.\n<Answer>: 7\n\n<Explanation>: 8 + 1 = 9.\n<Answer>: 9",
        "< Explanation > : 3 + 4 = 7.\n< Answer > : 7\nQ2: and 8?",
        " 3 + 4 = 7.\n<Answer>: 7",  # the prompt ended with the first mark
    ],
)
def test_forms(text):
    """Teachers write the form in many ways; a mark left in a rationale would be learned, a run-on answer would vote."""
    parsed = split_completion(text, "number")
    assert (parsed.explanation, parsed.answer) == ("3 + 4 = 7.", "7")
    assert read_completion(text, "number") == (Fraction(7), "3 + 4 = 7.")


def test_answer_first():
    """An answer in front has its explanation behind it, up to a next question."""
    parsed = split_completion("<Answer>: 7\n<Explanation>: 3 + 4 = 7.\n\nQuestion: 9?", "number")
    assert parsed == ParsedCompletion("3 + 4 = 7.", "7", "answer_explanation")


def test_parts_missing():
    """An answer alone votes but teaches no reasoning; an explanation alone votes by what it concludes."""
    assert split_completion("<Answer>: 7") == ParsedCompletion("", "7", "answer")
    assert read_completion("<Answer>: 7", "number") == (Fraction(7), None)
    assert split_completion("<Explanation>: 3 + 4 = 7.") == ParsedCompletion("3 + 4 = 7.", None, "explanation")
    assert read_completion("<Explanation>: 3 + 4 = 7.", "number") == (Fraction(7), "3 + 4 = 7.")
    assert read_completion("<Explanation>: Hm.\n<Answer>: none", "number") == (None, "Hm.")


@pytest.mark.parametrize(
    "text", ["3 + 4 = 7.", "Answer: 7", "The answer: 7 < 8.", "Explanation: it is 7.", "a < b, b > c: 7"]
)
def test_texts_without_marks_stay_as_they_are(text):
    """What `qcrd select` made of plain rationales must not change by a character."""
    assert not has_marks(text)
    assert split_completion(text) == ParsedCompletion(text, None, "plain")
    assert read_completion(text, "number") == (extract_answer(text, "number"), text)


def test_cut_run_on():
    """A question that the teacher asks itself, and its answer, belong to no rationale of this one."""
    assert cut_run_on("So the answer is 7.\n\nQuestion: What is 9?\nThe answer is 9.") == "So the answer is 7."
    assert cut_run_on("The answer is 7.\n**Q2:** And 9?") == "The answer is 7."
    for kept in ("3 + 4 = 7.", "Let us see.\nQuestion: What is 3 + 4?\nThe answer is 7.", "The answer is 7.\nSo 7."):
        assert cut_run_on(kept) == kept


@pytest.mark.parametrize(
    ("completion", "kind", "choices", "rationale"),
    [
        ("<Explanation>: 3 and 4 more.\n<Answer>: 7", "number", None, "3 and 4 more. The answer is 7."),
        ("<Explanation>: Add 3 to 4\n<Answer>: 7.0", "number", None, "Add 3 to 4. The answer is 7."),
        (
            "<Explanation>: Money is kept there.\n<Answer>: (B) bank",
            "choice",
            {"A": "tree", "B": "bank"},
            "The answer is B.",
        ),
        ("<Explanation>: It follows.\n<Answer>: Entailment", "nli", None, "It follows. The answer is entailment."),
        ("<Explanation>: On the Hudson.\n<Answer>: New York", "text", None, "On the Hudson. The answer is New York."),
    ],
)
def test_every_rationale_reaches_its_answer(completion, kind, choices, rationale):
    """A positive that does not say its answer would be a right rationale for nothing."""
    value, text = read_completion(completion, kind, choices)
    assert text.endswith(rationale)
    assert extract_answer(text, kind, choices) == value


def test_explanation_that_commits_to_another_answer():
    """Reasoning to 8 with the answer 7 below it must not be a positive for 7."""
    parsed = ParsedCompletion("The answer is 8. No doubt.", "7", "explanation_answer")
    text = as_rationale(parsed, Fraction(7), "number")
    assert text is None or extract_answer(text, "number") == 7


def test_function_reads_the_whole_completion():
    """A user's own reader may look at the marks."""
    seen = []
    value, text = read_completion("<Explanation>: a\n<Answer>: b", lambda text: seen.append(text) or text[-1])
    assert (value, seen[0]) == ("b", "<Explanation>: a\n<Answer>: b")
    assert text == "a. The answer is b." or text is None


def test_selection_of_completions():
    """The vote, the rationales and the counts, by hand."""
    samples = [
        "<Explanation>: 3 + 4 = 7.\n<Answer>: 7\n\nQuestion: 1 + 1?\n<Answer>: 2",
        "<Explanation>: 3 + 4 makes 8.\n<Answer>: 8",
        "<Answer>: 7",
        "Plainly 7.",
    ]
    chosen = select_rationales(samples, task_kind="number", label="7", parse_completions=True)
    assert chosen.votes == (("7", 3), ("8", 1))
    assert chosen.positives == ("3 + 4 = 7.", "Plainly 7.")
    assert chosen.negatives == ("3 + 4 makes 8.",)
    assert (chosen.without_explanation, chosen.raw) == (1, "3 + 4 = 7.")
    assert select_rationales(samples, task_kind="number", label="7", parse_completions=None) == chosen
    untouched = select_rationales(samples, task_kind="number", label="7")
    assert set(untouched.positives + untouched.negatives) <= set(samples)
