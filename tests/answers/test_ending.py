"""The number of a text that announces none: the short ways to it give what the long ones do."""

import json
import random

import pytest

from qcrd_trl.answers import conclusion, ending, extract_answer, number


# Sentences as rationales have them, among them each that a short way has to leave to a long one.
BEGINNINGS = [
    "",
    "1. Ann has 5.",
    "Ann has 12 apples.",
    "To find the rest, we subtract.",
    "Check: 5 + 4 = 9.",
    "8 - 3 = 5\n",
]
BEGINNINGS += [
    "She has 4. Here is why.",
    "Total = 5 + 2\n",
    "We can't find 7.",
    "This is because 5 + 4 = 9.",
    "x = 3\n",
]
ENDS = [
    *(
        "Therefore, Ann has 12 apples left.",
        "So 12 - 5 = 7 apples.",
        "12 - 5 = 7, which leaves 8 pears",
        "It is step 2.",
    ),
    *(
        "That is 7 (not 8).",
        "(12 - 5 = 7)",
        "no 3 apples are left",
        "There are none left.",
        "1,200 / 4 = $300.50 a day",
    ),
    *("He has 7, so he needs 3 + 2 = 5, meaning 4 more.", "So there are 7 apples and two pears.", "x = 4 or x = 5"),
    *("7 apples, rather than 8", "5 + 2 = 7 is wrong", "12 = x", "2 >= 1", "=> 7", "5 != 6", "Note that 5 were red."),
    *("Thus 24 got off, which is 48 more than the 39 that got on.", "Let's check: 7 + 5 = 12.", "She bought seven."),
    *("7 million", "3 1/2", "at 7:30", "he paid 5 dollars and 30 cents", "She is 3rd.", "v2.5", "B12", "4 x 5", "- 7"),
    *(
        "Answer 7 or 8",
        "We need 3.",
        "Ann has 1 approx. 5 each",
        'He said "5."',
        "Is it 5? 6!",
        "5 ÷ 2 = 2.5",
        "5 ≈ 6",
    ),
]


def texts():
    draws = random.Random(0)
    for _ in range(2500):
        beginning = draws.choice((" ", "\n")).join(draws.sample(BEGINNINGS, draws.randrange(3)))
        yield (
            beginning
            + draws.choice((" ", "\n", "\n\n"))
            + draws.choice((" ", "\n")).join(draws.sample(ENDS, draws.randrange(1, 3)))
        )


def long_way(monkeypatch):
    """Nothing is plain, and everything may be a commit: what is left are the readers that the short ways stand in for."""
    monkeypatch.setattr(number, "cannot_commit", lambda text, low: False)
    monkeypatch.setattr(ending, "_deciding", lambda sentence, text: None)
    monkeypatch.setattr(ending, "_plain_number", lambda sentence: None)
    monkeypatch.setattr(conclusion, "behind_last_sign", lambda text: None)
    monkeypatch.setattr(conclusion, "_could_lose", lambda best, numbers, costs: True)


def test_short_ways_give_what_the_long_ones_give(monkeypatch):
    """A condition that is missing would change votes of texts in one form, and nothing else would show it."""
    everything = list(texts())
    expected = [extract_answer(text, "number") for text in everything]
    assert len(set(expected)) > 12
    long_way(monkeypatch)
    for text, value in zip(everything, expected, strict=True):
        assert extract_answer(text, "number") == value, text


def test_short_ways_on_real_rationales(shared_dir, monkeypatch):
    """The same on SVAMP; and most of its rationales are read in a short way, which is what those are for."""
    path = shared_dir / "data" / "svamp" / "train.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with path.open(encoding="utf-8") as file:
        everything = [text for line in list(file)[100:200] for text in json.loads(line)["rationales"]]
    expected = [extract_answer(text, "number") for text in everything]
    last = [ending._last_sentence(text) for text in everything]
    assert sum(ending._plain_number(sentence) is not None for sentence in last) > 0.6 * len(last)
    long_way(monkeypatch)
    assert [extract_answer(text, "number") for text in everything] == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 - 4 = 3 pens, so 5 pens are missing.", 5),  # the clause behind the equation counts
        ("Ann has 3 pens. To see why, 7 - 3 = 4.", 4),  # the way disagrees, and has an equation
        ("Ann has 3 pens. To see why, count them: 9 pens less those lost.", 3),  # it has none
        ("Ann has 3 pens. To see why, 7 - 3 = 4. So she has 4 pens.", 4),  # a conclusion is never passed over
        ("There are no pens left.", 0),
    ],
)
def test_last_sentences(text, value):
    """What decides where the last sentence alone does not."""
    assert extract_answer(text, "number") == value


@pytest.mark.parametrize(
    "text",
    ["a. b", "One. Two", "It is approx. 5 m", "He left! Bye", 'Go. "So." Ann left.', "x\n y", "5. 6.", "A. B. C."],
)
def test_last_sentence_is_that_of_the_whole_split(text):
    """It is cut off without splitting what stands before it."""
    assert ending._last_sentence(text) == ending.sentences(text)[-1]
