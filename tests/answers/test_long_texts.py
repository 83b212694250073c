"""Texts of a megabyte, as a model in a loop writes them."""

import pytest

from qcrd_trl.answers import extract_answer


FILLERS = [
    "word ",
    "9",
    "9 ",
    "9,",
    " ",
    "\n",
    "=",
    "*",
    "_",
    "#",
    "<<",
    "<a ",
    "\\boxed{",
    "\\frac{",
    "{",
    "}",
    "$",
    "~~",
    "```\n",
    "answer ",
    "the answer is not ",
    "Answer: ",
    "wait, ",
    "#### ",
    "1. x\n",
    "1 1/1 ",
    "9:9",
    "9-",
    "-",
    "9.",
    "one hundred and ",
    ", so ",
    "A: \n",
    "½",
    "\u00a0",
    "\nQ: ",
    "if 9 ",
    "was ",
    "9'",
    "check\n",
    "Check 9.\n",
    "so 9.\n",
    "not 9 ",
    "To find 9.\n",
    "B ",
    "A or ",
    "option b, ",
    "B is correct. ",
    "not neutral ",
    "entails or ",
    "if 9, ",
    "I choose B. ",
    "(",
    "((9) ",
]


@pytest.mark.parametrize("filler", FILLERS)
def test_long_texts_take_linear_time(filler):
    """A pattern that backtracks would hang the whole vote on one degenerate sample: a model in a loop writes these."""
    noise = filler * (1_000_000 // len(filler))
    assert extract_answer(f"{noise}\n\nThe answer is 6.", "number") == 6
    assert extract_answer(f"The answer is 5.\n\n{'word ' * 100_000}", "number") == 5
    for kind in ("number", "choice", "nli", "text"):
        extract_answer(noise, kind)


def test_cue_in_the_middle_of_a_long_text():
    """Only parts of a very long text are read; the part with its answer must be among them."""
    noise = "word " * 100_000
    assert extract_answer(f"{noise}. The answer is 5. {noise}", "number") == 5
