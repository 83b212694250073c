"""Which titles are equal, and what items without one are called."""

import pytest

from qcrd_trl.recommendation.titles import item_texts, normalise_title


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Toy Story", "  toy\tSTORY\n", True),
        ("Cafe\u0301 Society", "CAFÉ society", True),
        ("Ｓｅ７ｅｎ", "se7en", True),  # full-width letters
        ("Straße", "STRASSE", True),
        ("\u1e9e", "ss", True),  # capital sharp s
        ("Fargo\u00a0(1996)", "fargo (1996)", True),  # no-break space
        ("Toy Story", "Toy Story.", False),
        ("Toy Story", '"Toy Story"', False),
        ("Toy Story", "- Toy Story", False),
        ("Toy Story", "ToyStory", False),
        ("Toy Story", "Toy Story 2", False),
        ("Café", "Cafe", False),
    ],
)
def test_what_is_equal(one, other, equal):
    """A rule that forgives more counts wrong answers as hits; one that forgives less counts right ones as invalid."""
    assert (normalise_title(one) == normalise_title(other)) is equal


def test_normal_form_is_stable():
    """Folding may leave a form that is not normal: the same title would then differ from itself."""
    for text in ("\u1fb3\u0301", "ﬀ", "İstanbul", "Ⅷ"):
        assert normalise_title(normalise_title(text)) == normalise_title(text)


def test_texts_of_items():
    """A title of two lines breaks a list of one line each; an item without title that is left out shifts nothing, but vanishes."""
    found = item_texts(["Toy\n Story ", None, "  ", "toy story", "i1"], ["i0", "i1", "i2", "i3", "i4"])
    assert found.texts == ["Toy Story", "i1", "i2", "toy story", "i1"]
    assert found.num_missing == 2
    assert found.num_shared == 4  # two pairs: the toy stories, and the id that is another's title
    assert item_texts(["a", "b"], ["0", "1"]).num_shared == 0
