"""The short ways of cleaning give what the long one gives."""

import re

import pytest

from qcrd_trl.answers import normalise
from qcrd_trl.answers.sentences import sentences


TEXTS = [
    "She has 7 + 5 = 12 apples.\nSo, 12.",
    "  6 * 7 = **42**  \n\n\n\n- *42* apples ",
    "cost $$ 5 | 6 | 7",
    "| a | b |\n|---|---|\n> 3\n# Result\n#### 3",
    "- 5\n* 6 * 7",
    "12 × 3 = 36 ÷ 2, about £5 or €5 at 20° ≈ 5 }",
    "a \n b\n c",
    "tab\there  and there",
    "_5_ `6` ~~7~~ <b>8</b> \\boxed{9} {10} ½ ² − x",
    "",
    "\n",
    '#5 isn\'t 6^2 [x]; "y" (z)?! a:b @ 3% & more, 1/2',
]


@pytest.mark.parametrize("text", TEXTS)
def test_tidy_texts_are_cleaned_as_others(monkeypatch, text):
    """A character that is taken for one that no step changes would stay in the text, and change its answer."""
    short = normalise.clean(text)
    monkeypatch.setattr(normalise, "_TIDY", re.compile("(?!)"))
    assert normalise.clean(text) == short


def test_tidy_characters_stay_what_they_are():
    """The set holds nothing that a step replaces wherever it stands."""
    tidy = [chr(code) for code in range(0x3000) if normalise._TIDY.fullmatch(chr(code))]
    assert len(tidy) > 90
    for char in tidy:
        assert normalise.plain_characters(char) == char
        assert char == "*" or normalise.strip_markup(f"a{char}1") == f"a{char}1"
    for char in "\t\r\x00\\`_<{~−½²中\u200b":
        assert not normalise._TIDY.fullmatch(char)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 9])
def test_first_sentences(limit):
    """They are those of the whole split."""
    text = "One. Two!\n\nThree is no. 4. Mr. A. B said so.\nFive"
    assert sentences(text, limit) == sentences(text)[:limit]
