"""Word masking and replacement, and the classes that they balance."""

import random

import pytest

from qcrd_trl.sampling.corruption import CORRUPTIONS, WordPool, balance, corrupt, masked_copy


TEXT = "Tom has 3 apples and\nbuys 4 more, so 3 + 4 = 7."
POOL = WordPool.of(["Ann sells 9 pears", "she had 12 - 5 = 7 left"])


def test_pool():
    """A number replaced by a noun is no reasoning that a student would ever write: too easy to tell."""
    assert WordPool(("9", "12", "5", "7"), ("Ann", "sells", "pears", "she", "had", "-", "=", "left")) == POOL
    rng = random.Random(0)
    assert {POOL.draw("7", rng) for _ in range(200)} == {"9", "12", "5"}
    assert {POOL.draw("pears", rng) for _ in range(300)} == {"Ann", "sells", "she", "had", "-", "=", "left"}
    assert WordPool(("7",), ()).draw("7", rng) is None
    assert WordPool((), ()).draw("a", rng) is None
    assert WordPool(("7",) * 1000 + ("8",), ()).draw("7", rng) == "8"  # rare, but it is there


class Scripted(random.Random):
    """Draws what the test says: the places of `sample`, and the first of what is chosen from."""

    def __init__(self, places=None):
        super().__init__(0)
        self.places = places

    def sample(self, population, k):
        self.asked = (list(population), k)
        return list(population)[:k] if self.places is None else [population[place] for place in self.places]

    def choice(self, seq):
        return seq[0]


def test_corruptions_by_hand():
    """White space that is not kept tells a synthetic negative from a real one at a glance."""
    # 14 words, of which round(0.15 * 14) = 2 are changed: here the second and the sixth, and neither is a number.
    rng = Scripted([1, 5])
    # The first of them gives way to the first number.
    assert corrupt(TEXT, "mask", POOL, rng, mask="[MASK]") == TEXT.replace("3 apples", "[MASK] apples").replace(
        "buys", "[MASK]"
    )
    assert len(rng.asked[0]) == 14
    assert rng.asked[1] == 2
    assert corrupt(TEXT, "replace", POOL, Scripted([1, 5])) == TEXT.replace("3 apples", "9 apples").replace(
        "buys", "Ann"
    )
    # A number is among them already.
    assert corrupt(TEXT, "replace", POOL, Scripted([6, 7])) == TEXT.replace("4 more,", "9 Ann")
    assert corrupt("so", "mask", POOL, Scripted()) == "..."


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_corruption_always_changes_a_number(how):
    """A right sum with another adjective is no negative: it would be taught as one."""
    for seed in range(50):
        changed = corrupt(TEXT, how, POOL, random.Random(seed))
        words = list(zip(TEXT.split(), changed.split(), strict=True))
        different = [word for word, other in words if word != other]
        assert 1 <= len(different) <= 2
        assert any(letter.isdigit() for letter in "".join(different))
        assert changed.count("\n") == 1
        assert corrupt(TEXT, how, POOL, random.Random(seed)) == changed
    assert len({corrupt(TEXT, how, POOL, random.Random(seed)) for seed in range(20)}) > 5


def test_nothing_to_corrupt():
    """The text itself as its own negative teaches that a good rationale is bad."""
    assert corrupt("  \n", "mask", POOL, random.Random(0)) is None
    assert corrupt("7", "replace", WordPool(("7",), ()), random.Random(0)) is None
    with pytest.raises(ValueError, match="Unknown corruption 'drop'"):
        corrupt(TEXT, "drop", POOL, random.Random(0))


def test_masked_copies_keep_the_figures():
    """A positive that lost a figure is a corrupted one by the other name."""
    for seed in range(50):
        copy = masked_copy(TEXT, random.Random(seed), mask="[MASK]")
        assert copy.split().count("[MASK]") == 2
        kept = [word for word, other in zip(TEXT.split(), copy.split(), strict=True) if word == other]
        assert [w for w in TEXT.split() if any(c.isdigit() for c in w)] == [
            w for w in kept if any(c.isdigit() for c in w)
        ]
    assert masked_copy("7 apples", random.Random(0)) == "7 apples"  # nothing would be left to read
    assert masked_copy(TEXT, random.Random(0), share=1.0).split().count("...") == 8  # of 9 words without a digit


@pytest.mark.parametrize(
    ("positives", "negatives", "masked", "corrupted"),
    [(3, 1, 0, 2), (1, 3, 2, 0), (2, 2, 0, 0), (2, 0, 0, 2), (1, 0, 0, 1)],
)
def test_balance(positives, negatives, masked, corrupted):
    """Four of five samples are right: a discriminator that says so of every rationale would look well trained."""
    good = [f"{TEXT} It is {i}." for i in range(positives)]
    bad = [f"It may be {i}." for i in range(negatives)]
    question = balance("a", good, bad, POOL, random.Random(0))
    assert len(question.positives) == len(question.negatives) == max(positives, negatives)
    assert question.positives[:positives] == tuple(good)
    assert question.negatives[:negatives] == tuple(bad)
    assert (question.num_masked, question.num_corrupted) == (masked, corrupted)
    assert not set(question.positives) & set(question.negatives)
    assert all("..." in text for text in question.positives[positives:])
    made = question.negatives[negatives:]
    assert len(set(made)) == corrupted
    assert ["..." in text for text in made] == [True, False, True][:corrupted]  # masked and replaced in turn


def test_what_cannot_be_balanced():
    """A question with negatives alone has nothing to be told apart from."""
    assert balance("a", [], ["b"], POOL, random.Random(0)) is None
    assert balance("a", ["7"], [], WordPool(("7",), ()), random.Random(0)).negatives == ("...",)
    assert balance("a", [" "], [], POOL, random.Random(0)) is None


def test_fewer_corruptions_than_missing():
    """Where corruptions coincide, the sides still have to be of one length."""
    question = balance("a", ["7", "7 "], [], WordPool(("7",), ()), random.Random(0))
    assert len(question.positives) >= len(question.negatives) == question.num_corrupted == 1
