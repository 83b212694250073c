"""Cheap looks before patterns: what they skip could not have matched."""

import json
import random

import pytest

from qcrd_trl.answers import conclusion, cues, extract_answer, numerals
from qcrd_trl.answers.guards import lowered, places_of, spaced_words
from qcrd_trl.answers.normalise import clean, plain_characters


PHRASES = [
    *(
        "The answer is 7.",
        "ans: 7",
        "Answer\n7",
        "A: 7",
        "a : 7",
        "#### 7",
        "Result: 7",
        "Total = 7",
        "so 7 is the answer",
    ),
    *(
        "It cannot be determined.",
        "We can't find it.",
        "could not exactly determine it",
        "unable to say",
        "hard to tell",
    ),
    *(
        "not enough information",
        "insufficient information",
        "No correct answer here",
        "I don't know",
        "we do not know.",
    ),
    *(
        "impossible to solve",
        "not possible to answer",
        "there is no way to infer it",
        "corrected answer: 7",
        "EDIT: 7",
    ),
    *(
        "Wait, no, it is 8.",
        "no, 8",
        "Hold on. 8",
        "Let me recompute: 8",
        "I was wrong.",
        "Actually, 8",
        "my bad",
        "means",
    ),
    *("İt İs İmpossİble to answer 7", "ı don't know", "ANSWER: 7 × 2 = 14", "the relationship : 7", "conclusion =\n7"),
    *(
        "8 + 9 = 17",
        "8+9=17",
        "- 7",
        "= - 7",
        "35 - 15 = 20",
        "35-15=20",
        "(71 - 35)",
        "4 x 10 ^ 3",
        "4 * 10",
        "3 x 7 = 21",
    ),
    *(
        "$70 and $ 5",
        "-$5",
        "Rs 70",
        "70 years 5 months",
        "minus 5",
        "negative 5",
        "5 minus 3",
        "5 times 3",
        "5% of 20",
    ),
    *(
        "7 million",
        "7 million.",
        "7 and a half",
        "5 dollars and 30 cents",
        "12, 13",
        "1, 000",
        "6:13",
        "2/3",
        "1 1/2",
        "3rd",
    ),
    *(
        "by 5",
        "USD 5",
        "5 divided by 2",
        "5k",
        "x 5",
        "9 x 5",
        "v 5.",
        "(5)",
        "( 5 )",
        "5) 6",
        "[5]",
        '"5"',
        "5-3",
        "7 pi",
    ),
    *(
        "Step 2: 7",
        "In day 3. it rained",
        "Question #4: what",
        "not 5 but 6",
        "rather than 5",
        "5 is wrong",
        "too many 5",
    ),
    *(
        "leaving 4 left",
        "none of the apples are left",
        "which is 5",
        "a total of 5",
        "i.e. 5",
        "that is 5",
        "rounded to 5",
    ),
    *(
        "Check: 5 + 2 = 7",
        "We can verify 7",
        "To find 7, add.",
        "because 5 of 7",
        "losing 5 of 7",
        "one half of 7 in all",
    ),
]


def texts():
    draws = random.Random(0)
    return [*PHRASES, *(draws.choice((" ", "\n", ". ", ", ")).join(draws.sample(PHRASES, 3)) for _ in range(1500))]


def test_marks_are_those_of_the_patterns():
    """A guard that says no where its pattern matches would take away an answer, in one text of thousands."""
    patterns = [("box", cues._BOX), ("hash", cues._HASH), ("cue", cues._ANSWER), ("cue", cues._LINE)]
    patterns += [("cue", cues._CORRECTION), ("before", cues._BEFORE), ("heading", cues._OTHER), ("open", cues._OPEN)]
    found = 0
    for text in map(clean, texts()):
        expected = [(match.start(), kind, match.span()) for kind, p in patterns for match in p.finditer(text)]
        expected.sort(key=lambda mark: mark[0])
        assert [(place, kind, match.span()) for place, kind, match in cues._marks(text)] == expected, text
        found += len(expected)
        assert len(cues._retractions(text)) == len(list(cues._RETRACTION.finditer(text)))
    assert found > 1000


def test_plain_numbers_are_read_as_all_others(monkeypatch):
    """The short way may only be taken where the long one gives the same value, place and operator."""
    cases = [(text, numerals.find_numbers(text)) for text in map(clean, texts())]
    plain = sum(
        numerals._plain(text, match) is not None for text, _ in cases for match in numerals._RUN.finditer(text)
    )
    assert plain > 1500
    monkeypatch.setattr(numerals, "_plain", lambda text, match: None)
    monkeypatch.setattr(numerals, "spaced_words", lambda text: None)
    for text, numbers in cases:
        assert numerals.find_numbers(text) == numbers, text


def test_conclusions_do_not_depend_on_the_guards(monkeypatch):
    """The number a text ends on, with every cheap look answering "perhaps"."""
    everything = texts()
    expected = [extract_answer(text, "number") for text in everything]
    assert sum(value is not None for value in expected) > 1000
    for module in (conclusion, cues):
        monkeypatch.setattr(module, "has_any", lambda text, parts: True)
    monkeypatch.setattr(conclusion, "spaced_words", lambda text: None)
    monkeypatch.setattr(conclusion, "_may_say_none_left", lambda part: True)
    conclusion.usable_numbers.cache_clear()
    assert [extract_answer(text, "number") for text in everything] == expected
    conclusion.usable_numbers.cache_clear()


def test_svamp_values(shared_dir, monkeypatch):
    """The same on real rationales, the long way against the short one."""
    path = shared_dir / "data" / "svamp" / "train.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with path.open(encoding="utf-8") as file:
        everything = [text for line in list(file)[:60] for text in json.loads(line)["rationales"]]
    expected = [extract_answer(text, "number") for text in everything]
    monkeypatch.setattr(numerals, "_plain", lambda text, match: None)
    for module in (conclusion, cues):
        monkeypatch.setattr(module, "has_any", lambda text, parts: True)
    for module in (conclusion, numerals):
        monkeypatch.setattr(module, "spaced_words", lambda text: None)
    conclusion.usable_numbers.cache_clear()
    assert [extract_answer(text, "number") for text in everything] == expected
    conclusion.usable_numbers.cache_clear()


def test_helpers():
    """Turkish letters stand for an "i" where case is ignored; places must be those of the text."""
    assert lowered("İS ıt A") == "is it a"
    assert places_of("no, no", ("no", ",")) == [0, 2, 4]
    assert spaced_words("So, it's 5 APPLES.") == "so  it s   apples "
    assert spaced_words("½") is None
    assert plain_characters("½ – 7\tx\r\n\x00y") == "1/2 - 7 x\ny"
