"""Which option does a text commit to?"""

import pytest

from qcrd_trl.answers import extract_answer
from qcrd_trl.errors import ConfigError


OPTIONS = {"A": "river", "B": "bank", "C": "river bank", "D": "a dog", "E": "The money-lender"}
TEN = {letter: f"word{index}" for index, letter in enumerate("ABCDEFGHIJ")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ANSWER: None of the above", None),
        ("The answer is (C) bank.", "C"),
        ("Based on the text, the correct answer is (D).", "D"),
        ("Answer: **D**", "D"),
        ("The answer is B because a car moves.", "B"),
        ("The answer is B. Note that A is a common distractor.", "B"),
        ("Answer: D, not B", "D"),
        ("Answer seems to be A.\n\nAnswer: A", "A"),
        ("The correct answer is d.", "D"),
        ("The answer is (B). Note that A is a distractor.", "B"),
    ],
)
def test_known_cases(text, expected):
    """Each of these was read wrongly by a comparable tool: a wrong vote turns a good rationale into a negative."""
    assert extract_answer(text, "choice") == expected
    assert extract_answer(text, "choice", dict.fromkeys("ABCD", "")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", "B"),
        ("b", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("(b)", "B"),
        ("B)", "B"),
        ("b)", "B"),
        ("[B]", "B"),
        ("B: it moves", "B"),
        ("B. bank", "B"),
        ("(B) bank", "B"),
        (" A\n", "A"),
        ("A", "A"),
        ("Ｂ", "B"),
        ("Ⓑ", "B"),
        ("**B**", "B"),
        ("*B*", "B"),
        ("`B`", "B"),
        ("\\boxed{B}", "B"),
        ("$\\boxed{\\text{(B)}}$", "B"),
        ("\\boxed{\\mathrm{B}}", "B"),
        ("option C", "C"),
        ("Option C is correct.", "C"),
        ("choice (b)", "B"),
        ("The answer is option c.", "C"),
        ("The answer is choice (b).", "B"),
        ("The answer is: B", "B"),
        ("The answer is:\n\n(B)", "B"),
        ("**Final Answer**\n\nB", "B"),
        ("Final answer: B) 12", "B"),
        ("<answer>B</answer>", "B"),
        ("<Explanation>: A car moves. <Answer>: B", "B"),
        ("ANSWER = C", "C"),
        ("Ans. C", "C"),
        ("#### C", "C"),
        ("Answer: (A) (because it is the only one that moves)", "A"),
        ('The answer is "B".', "B"),
        ("The answer is 'b'.", "B"),
        ("The answer is A.", "A"),
        ("The answer is A because B is wrong.", "A"),
        ("The answer is A, a car.", "A"),
        ("So the best answer is most likely B.", "B"),
        ("I choose B.", "B"),
        ("I would pick (D).", "D"),
        ("I will go with option D.", "D"),
        ("The correct option is B.", "B"),
        ("The correct choice is (C).", "C"),
        ("B is the correct answer.", "B"),
        ("Therefore, B is correct and A is wrong.", "B"),
        ("Thus (C) is the best option.", "C"),
        ("A is wrong, C is wrong, so it must be B.", "B"),
        ("A car moves so the answer is B", "B"),
        ("A car moves. I think a dog does too. So B.", "B"),
        ("The answer is not A but C.", "C"),
        ("The answer is not A. The answer is C.", "C"),
        ("The answer is C rather than A.", "C"),
        ("The answer is A. Wait, a river has no money. The answer is B.", "B"),
        ("Answer: A. Correction: B", "B"),
        ("The answer is A. Actually, it is B.", "B"),
        ("The answer is B.\n\nQ: Which one?\nA) x B) y\nThe answer is A.", "B"),
        ("A) x\nB) y\nC) z\n\nThe answer is C.", "C"),
        ("Answer: A and B", None),
        ("Answer: A, B", None),
        ("Answer: A or B", None),
        ("Both A and C are possible.", None),
        ("Answer: both A and C", None),
        ("Answer: none", None),
        ("Answer: N/A", None),
        ("None of the above.", None),
        ("I cannot determine the answer.", None),
        ("The answer is a dog.", None),
        ("A car moves.", None),
        ("I like it.", None),
        ("The answer is unknown.", None),
        ("", None),
        (None, None),
        ("not A", None),
        ("The answer is not A.", None),
    ],
)
def test_letters(text, expected):
    """The article "A", the pronoun "I" and rejected letters are no votes; a stated letter is, in any dress."""
    assert extract_answer(text, "choice") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is bank.", "B"),
        ("The answer is the bank.", "B"),
        ("The answer is Bank because it holds money.", "B"),
        ("The answer is river bank.", "C"),
        ("The answer is a dog.", "D"),
        ("The answer is a dog, not a river.", "D"),
        ("The answer is money-lender.", "E"),
        ("bank", "B"),
        ("A dog", "D"),
        ("Bank.", "B"),
        ("So it is the river bank.", "C"),
        ("The answer is (C) bank.", "C"),
        ("The answer is not river but bank.", "B"),
        ("The answer is bank rather than river.", "B"),
        ("Answer: river or bank", None),
        ("Answer: F", None),
        ("Answer: **bank**", "B"),
        ("\\boxed{\\text{bank}}", "B"),
        ("The answer is tree.", None),
        ("Answer: b", "B"),
    ],
)
def test_words_of_an_option(text, expected):
    """Models often state the option and not its letter; without the options' words these votes would be lost."""
    assert extract_answer(text, "choice", OPTIONS) == expected


@pytest.mark.parametrize(
    ("text", "choices", "expected"),
    [
        ("The answer is J.", TEN, "J"),
        ("Answer: (I)", TEN, "I"),
        ("The answer is I.", TEN, "I"),
        ("I think the answer is G.", TEN, "G"),
        ("The answer is K.", TEN, None),
        ("The answer is word6.", TEN, "G"),
        ("ANSWER: None of the above", {"A": "x", "B": "None of the above"}, "B"),
        ("Answer: none of the above.", {"A": "x", "B": "None of the above"}, "B"),
        ("Answer: all of the above", {"A": "x", "B": "y", "C": "All of the above"}, "C"),
        ("Answer: 12", {"A": "12", "B": "13"}, "A"),
        ("Answer: same", {"A": "same", "B": "same"}, None),
        ("answer: b", {"a": "x", "b": "y"}, "B"),
        ("The answer is yes.", {"A": "yes", "B": "no"}, "A"),
        ("The answer is no.", {"A": "yes", "B": "no"}, "B"),
        ("Answer: B", {"A": "B", "B": "A"}, "B"),
    ],
)
def test_letters_of_the_row(text, choices, expected):
    """Only the row's own letters count; an option may itself say "none of the above"."""
    assert extract_answer(text, "choice", choices) == expected


@pytest.mark.parametrize("choices", [{}, {"1": "x"}, {"AB": "x"}, ["A", "B"]])
def test_bad_choices(choices):
    """Keys that are no letters could never be matched: every sample would silently abstain."""
    with pytest.raises(ConfigError, match="choices"):
        extract_answer("B", "choice", choices)
