"""Gold labels, equality and printing."""

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import pytest

from qcrd_trl.answers import answers_equal, format_answer, parse_label
from qcrd_trl.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (18, 18),
        (18.0, 18),
        (0.1, "1/10"),
        (-2.5, "-5/2"),
        (1e-7, "1/10000000"),
        (Decimal("3.50"), "7/2"),
        (Fraction(2, 3), "2/3"),
        ("18", 18),
        ("18.0", 18),
        ("1,234", 1234),
        (" 72\n", 72),
        ("$70,000", 70000),
        ("2/3", "2/3"),
        ("48/2 = <<48/2=24>>24 in May.\n#### 72", 72),
        ("-4", -4),
        (10**30, 10**30),
    ],
)
def test_number_labels(label, expected):
    """A gold label read as another value makes every right sample a negative."""
    assert parse_label(label, "number") == Fraction(expected)


@pytest.mark.parametrize(
    "label", [None, "", "abc", True, float("nan"), float("inf"), [18], {}, "none", Decimal("NaN")]
)
def test_bad_number_labels(label):
    """A row whose label is not a number must be reported, not be trained on without positives."""
    with pytest.raises(DataError, match="label"):
        parse_label(label, "number")


@pytest.mark.parametrize(
    ("label", "expected"),
    [("B", "B"), ("b", "B"), ("(B)", "B"), ("B.", "B"), ("bank", "B"), ("a tree", "A"), ("A", "A")],
)
def test_choice_labels(label, expected):
    """Data sets give the letter, the letter in brackets, or the option itself."""
    assert parse_label(label, "choice", {"A": "a tree", "B": "Bank"}) == expected


@pytest.mark.parametrize("label", ["C", "river", "", None, 1, "A and B"])
def test_bad_choice_labels(label):
    """A letter that the row does not offer is a fault of the data."""
    with pytest.raises(DataError, match="letters A, B"):
        parse_label(label, "choice", {"A": "a tree", "B": "Bank"})


@pytest.mark.parametrize(("label", "expected"), [("entailment", "entailment"), ("Neutral", "neutral")])
def test_nli_labels(label, expected):
    """Case does not matter."""
    assert parse_label(label, "nli") == expected


@pytest.mark.parametrize("label", [0, 1, 2, -1, "0", "yes", None])
def test_bad_nli_labels(label):
    """Class indices mean different classes in different data sets: guessing would swap labels silently."""
    with pytest.raises(DataError, match="entailment, neutral, contradiction"):
        parse_label(label, "nli")


def test_text_and_function_labels():
    """Text labels are folded as extracted texts are; "unknown" may be a gold label."""
    assert parse_label("The Eiffel Tower.", "text") == "eiffel tower"
    assert parse_label("Unknown", "text") == "unknown"
    assert parse_label(1998, "text") == "1998"
    assert parse_label("a b", lambda text: text.split()[0]) == "a"
    for label in (None, "x"):
        with pytest.raises(DataError, match="label"):
            parse_label(label, lambda text: None)


@pytest.mark.parametrize(
    ("a", "b", "kind", "expected"),
    [
        (Fraction(18), 18.0, "number", True),
        ("18", "18.0", "number", True),
        ("\\boxed{18}", 18, "number", True),
        ("12:00", "1:00", "number", False),
        (Fraction(1, 3), 0.333, "number", False),
        (None, None, "number", False),
        (None, 5, "number", False),
        ("abc", "abc", "number", False),
        ("b", "B", "choice", True),
        ("A", "B", "choice", False),
        ("Neutral", "neutral", "nli", True),
        ("The Tower", "tower.", "text", True),
        ("x", "x", str.strip, True),
        (None, None, str.strip, False),
    ],
)
def test_equality(a, b, kind, expected):
    """Votes are counted by value: a lenient comparison merges different answers, a strict one splits equal ones."""
    assert answers_equal(a, b, kind) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Fraction(72), "72"),
        (Fraction(7, 2), "3.5"),
        (Fraction(-7, 2), "-3.5"),
        (Fraction(1, 8), "0.125"),
        (Fraction(-1, 100), "-0.01"),
        (Fraction(2, 3), "2/3"),
        (Fraction(0), "0"),
        (18.0, "18"),
        (5, "5"),
        ("entailment", "entailment"),
        ("B", "B"),
    ],
)
def test_format(value, expected):
    """The label that is trained on is this text; it must be the number as people write it."""
    assert format_answer(value) == expected


def test_format_refuses_none():
    """The text "None" must never become a label."""
    with pytest.raises(TypeError, match="no answer"):
        format_answer(None)


def test_unknown_kind():
    """All entry points check the kind."""
    for call in (lambda: parse_label("5", "num"), lambda: answers_equal(5, 5, "num")):
        with pytest.raises(ConfigError, match="num"):
            call()


def test_no_heavy_imports():
    """Votes are counted on machines without a model library; an import of torch here would cost every command seconds."""
    code = "import sys; import qcrd_trl.answers; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
