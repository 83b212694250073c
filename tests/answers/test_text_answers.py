"""Free-text answers, functions as task kinds, and what is no text."""

import pytest

from qcrd_trl.answers import TASK_KINDS, extract_answer
from qcrd_trl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", "paris"),
        (" PARIS.\n", "paris"),
        ("The answer is Paris.", "paris"),
        ("The answer is the Eiffel Tower.", "eiffel tower"),
        ('The answer is: "New  York".', "new york"),
        ("**Final Answer:** Paris", "paris"),
        ("**Final Answer**\n\nParis", "paris"),
        ("It rains in Lyon.\nAnswer: Paris", "paris"),
        ("The answer is Lyon. Then again, the answer is Paris.", "paris"),
        ("The answer is Paris because it is the capital.", "paris"),
        ("The answer is Paris (the capital of France).", "paris"),
        ("The answer is Paris, not Lyon.", "paris"),
        ("The answer is Mt. Etna.", "mt. etna"),
        ("\\boxed{\\text{Paris}}", "paris"),
        ("Ｐａｒｉｓ", "paris"),
        ("First Lyon.\n\nParis", "paris"),
        ("f(x)", "f(x)"),
        ("(Paris)", "paris"),
        ("-5 °C", "-5 °c"),
        ("Answer: none", None),
        ("Answer: unknown", None),
        ("The answer cannot be determined.", None),
        ("I don't know.", None),
        ("...", None),
        ("", None),
        (None, None),
        ("the", "the"),
    ],
)
def test_text(text, expected):
    """Votes that differ in case, quotes or a full stop only would split a majority."""
    assert extract_answer(text, "text") == expected


def test_function_as_task_kind():
    """A function decides by itself, but is not asked about texts that are empty."""
    asked = []

    def last_word(text):
        asked.append(text)
        return text.split()[-1]

    assert extract_answer("one two", last_word) == "two"
    assert extract_answer(None, last_word) is None
    assert extract_answer(" ", last_word) is None
    assert asked == ["one two"]


@pytest.mark.parametrize("kind", ["numbers", "", None, 3])
def test_unknown_kind(kind):
    """A misspelt kind must not read every text as no vote; the message names the kinds."""
    with pytest.raises(ConfigError, match=r"number.*choice.*nli.*text"):
        extract_answer("5", kind)


@pytest.mark.parametrize("kind", TASK_KINDS)
@pytest.mark.parametrize("text", [5, 5.0, ["The answer is 5."], b"5"])
def test_not_a_text(text, kind):
    """A list of messages printed as text would be read, wrongly, without a complaint."""
    with pytest.raises(TypeError, match="string or None"):
        extract_answer(text, kind)
