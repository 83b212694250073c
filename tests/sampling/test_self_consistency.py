"""The rules of the vote, each on samples small enough to count by hand."""

import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.records import Sample
from qcrd_trl.sampling.self_consistency import fold_whitespace, select_rationales, text_problem


def says(answer):
    return f"Let me think. The answer is {answer}."


def test_gold_sorts_votes_by_their_value():
    """Comparing texts rather than values would make "18.0" a negative, and the student would unlearn right reasoning."""
    samples = [says("18"), "9 * 2 = 18. The answer is 18.0", "So it is \\boxed{18}.", says("12"), says("20")]
    chosen = select_rationales(samples, task_kind="number", label="18")
    assert chosen.positives == tuple(samples[:3])
    assert chosen.negatives == tuple(samples[3:])
    assert chosen.votes == (("18", 3), ("12", 1), ("20", 1))
    assert (chosen.label, chosen.majority, chosen.tie) == ("18", "18", False)
    assert chosen.agreement == 3 / 5
    assert (chosen.gold_votes, chosen.majority_is_gold) == (3, True)


def test_gold_keeps_the_words_of_the_label():
    """A label rewritten as its value would teach "72" where the user's data says "72.00"."""
    assert select_rationales([says("72")], task_kind="number", label="72.00").label == "72.00"


def test_gold_overrules_the_majority():
    """If the majority decided in gold mode, wrong reasoning would be trained as right at a plausible loss."""
    chosen = select_rationales([says(5), says(5) + " Sure.", says(7)], task_kind="number", label="7")
    assert (chosen.positives, len(chosen.negatives)) == ((says(7),), 2)
    assert (chosen.majority, chosen.majority_is_gold, chosen.gold_votes) == ("5", False, 1)


def test_gold_without_an_agreeing_sample_has_negatives_only():
    """A question nobody got right must not lend its most frequent wrong answer as a positive."""
    chosen = select_rationales([says(5), says(6)], task_kind="number", label="7")
    assert (chosen.positives, chosen.negatives) == ((), (says(5), says(6)))
    assert (chosen.label, chosen.gold_votes, chosen.majority_is_gold) == ("7", 0, False)


def test_gold_is_blind_to_a_tie():
    """A tie is about the vote; with a gold label the agreeing sample is a positive all the same."""
    chosen = select_rationales([says(5), says(7)], task_kind="number", label="7")
    assert chosen.tie
    assert chosen.majority is None
    assert (chosen.positives, chosen.negatives) == ((says(7),), (says(5),))


def test_majority_labels_with_the_most_frequent_answer():
    """The label must be the answer itself: the rationale that happens to come first would teach nonsense."""
    samples = [says(12), says(18), says("18.0"), says("2/3")]
    chosen = select_rationales(samples, task_kind="number", label_source="majority")
    assert (chosen.label, chosen.positives) == ("18", (samples[1], samples[2]))
    assert chosen.negatives == (samples[0], samples[3])
    assert (chosen.gold_votes, chosen.majority_is_gold) == (None, None)


def test_majority_tie_decides_nothing():
    """Breaking a tie by order would train on coin flips: two of four samples are as likely wrong as right."""
    samples = [says(5), says(7), says(7) + " Yes.", says(5) + " Yes.", says(1)]
    chosen = select_rationales(samples, task_kind="number", label_source="majority", label="5")
    assert chosen.tie
    assert (chosen.label, chosen.positives, chosen.negatives, chosen.majority) == (None, (), (), None)
    assert chosen.majority_is_gold is False
    assert chosen.agreement == 2 / 5


def test_majority_of_one_vote():
    """A single vote is no tie."""
    chosen = select_rationales([says(5)], task_kind="number", label_source="majority")
    assert (chosen.label, chosen.positives, chosen.tie) == ("5", (says(5),), False)


@pytest.mark.parametrize(
    ("task_kind", "samples", "votes"),
    [
        ("choice", ["The answer is (F).", "Answer: f", "The answer is G."], (("F", 2), ("G", 1))),
        (
            "nli",
            ["The answer is neutral.", "So: Neutral", "The answer is entailment."],
            (("neutral", 2), ("entailment", 1)),
        ),
        (
            "text",
            ["The answer is New York.", "Answer: new york", "The answer is Paris."],
            (("new york", 2), ("paris", 1)),
        ),
        (lambda text: (len(text),), ["ab", "cd", "e"], (("(2,)", 2), ("(1,)", 1))),
    ],
)
def test_every_kind_votes(task_kind, samples, votes):
    """Compared as if they were numbers, letters and words would never equal anything and every vote would be a tie."""
    chosen = select_rationales(samples, task_kind=task_kind, label_source="majority")
    assert chosen.votes == votes
    assert (chosen.positives, chosen.negatives) == (tuple(samples[:2]), tuple(samples[2:]))


@pytest.mark.parametrize("samples", [[], ["no idea"], [None, "", "  \n"]])
def test_no_vote(samples):
    """Without votes there is no majority to divide by, and no label named "None"."""
    chosen = select_rationales(samples, task_kind="number", label_source="majority")
    assert (chosen.label, chosen.positives, chosen.negatives, chosen.agreement) == (None, (), (), None)
    assert not chosen.tie


def test_abstentions_are_neither_positive_nor_negative():
    """A sample without an answer as a negative would push down text that may be right up to where it was cut."""
    cut = "Sally first gives away some of her marbles, so we"
    chosen = select_rationales([cut, says(3), says(4)], task_kind="number", label="3")
    assert (chosen.positives, chosen.negatives, chosen.abstentions) == ((says(3),), (says(4),), 1)
    assert chosen.raw == cut
    assert chosen.agreement == 1 / 2
    assert chosen.agreement_of_samples == 1 / 3


def test_unusable_texts_are_counted_by_reason():
    """str(None) votes as the text "None"; a lone surrogate crashes the tokenizer hours later; neither may get through."""
    samples = [None, 7, "", " \t\n", "The answer is 3. \ud83d", says(3), "😀 The answer is 3."]
    chosen = select_rationales(samples, task_kind="number", label="3")
    assert chosen.dropped == {"null": 1, "not_text": 1, "blank": 2, "lone_surrogate": 1}
    assert chosen.positives == tuple(samples[-2:])
    assert (chosen.num_samples, chosen.num_votes, chosen.raw) == (7, 2, says(3))


def test_only_samples_with_status_ok_vote():
    """A truncated sample often ends in a number of its own, which would be taken for its answer."""
    samples = [Sample(says(9), "truncated"), Sample(None, "failed"), Sample(says(3))]
    chosen = select_rationales(samples, task_kind="number", label="3")
    assert (chosen.positives, chosen.negatives) == ((says(3),), ())
    assert chosen.dropped == {"status truncated": 1, "status failed": 1}


def test_duplicates_vote_but_stand_once():
    """Kept twice, one text would weigh double in every mean; not counted, a confident teacher would lose its vote."""
    samples = [says(3), "Let me  think.\nThe answer is 3.", says(4), says(4), says(3) + " Yes."]
    chosen = select_rationales(samples, task_kind="number", label_source="majority")
    assert chosen.votes == (("3", 3), ("4", 2))
    assert (chosen.positives, chosen.negatives) == ((says(3), says(3) + " Yes."), (says(4),))
    assert chosen.duplicates == 2


def test_negative_that_equals_a_positive_but_for_white_space_is_left_out():
    """One text pulled up as a positive and pushed down as a negative trains against itself."""
    texts = ["12\nis the answer", "12\n\nis the answer", "12 is the answer"]
    chosen = select_rationales(texts, task_kind=lambda text: "\n" in text, label_source="majority")
    assert [count for _, count in chosen.votes] == [2, 1]
    assert (chosen.positives, chosen.negatives, chosen.duplicates) == ((texts[0],), (), 2)


def test_long_and_emoji_texts_stay_as_drawn():
    """Texts are selected, never edited: the student is to learn what the teacher wrote."""
    text = "  🧮 " + "step " * 50_000 + "\nThe answer is 3.  "
    assert select_rationales([text], task_kind="number", label="3").positives == (text,)


def test_choice_kind_takes_the_options_of_the_question():
    """Without the row's options, an answer given by its text would not vote at all."""
    choices = {"A": "library", "B": "bank"}
    chosen = select_rationales(
        ["The answer is (B) bank.", "The answer is A."], task_kind="choice", label="B", choices=choices
    )
    assert chosen.votes == (("B", 1), ("A", 1))
    assert chosen.positives == ("The answer is (B) bank.",)


def test_wrong_arguments():
    """A gold selection without labels would silently have no positives at all."""
    with pytest.raises(ConfigError, match="gold, majority"):
        select_rationales(["x"], task_kind="number", label="3", label_source="teacher")
    with pytest.raises(ConfigError, match="needs a label"):
        select_rationales(["x"], task_kind="number")
    with pytest.raises(DataError):
        select_rationales(["x"], task_kind="number", label="unknown")


def test_text_helpers():
    """A pair of surrogates in JSON is one emoji and usable; only half of one is not."""
    assert text_problem("fine 😀") is None
    assert text_problem("\udc00") == "lone_surrogate"
    assert fold_whitespace(" a \n\t b ") == "a b"
