"""Rows of generative mode: who stands in which history, among which candidates."""

import logging

import pytest
from recommended import small_data

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import generative_rows, sample_users, shorten_history, unique_titles


def pairs(rows):
    """(user, titles of the history, target) of each row."""
    return [(row["user_id"], [piece.strip() for piece in row["history"]], row["target"]) for row in rows]


def named(*items):
    return [f"title {item}" for item in items]


def test_held_out_rows():
    """A history with its own target, or the test's history for the validation, measures memory."""
    data = small_data()
    test = generative_rows(data, "test")
    assert pairs(test) == [("u0", named(0, 1, 2, 3, 4), 5), ("u1", named(5, 4, 3, 2), 1), ("u2", named(1, 0), 1)]
    assert test["completion"] == named(5, 1, 1)
    assert test["candidates"] == [[11, 5, 10], [11, 1, 10], [11, 1, 10]]
    assert test["candidate_titles"][0] == named(11, 5, 10)
    assert pairs(generative_rows(data, "validation")) == [
        ("u0", named(0, 1, 2, 3), 4),
        ("u1", named(5, 4, 3), 2),
        ("u2", named(1), 0),
    ]


def test_training_rows_are_the_latest_targets_first():
    """A training row whose target is held out trains on the test; u2 has one training event, so no target."""
    data = small_data()
    every = [("u0", named(0, 1, 2), 3), ("u0", named(0, 1), 2), ("u0", named(0), 1)]
    every += [("u1", named(5, 4), 3), ("u1", named(5), 4)]
    assert pairs(generative_rows(data, "train", examples_per_user=None)) == every
    assert pairs(generative_rows(data, "train", examples_per_user=2)) == [every[0], every[1], every[3], every[4]]
    assert pairs(generative_rows(data, "train")) == [every[0], every[3]]


def test_history_is_cut_at_its_beginning():
    """The oldest titles say least about the next one."""
    rows = generative_rows(small_data(), "test", max_history=2)
    assert [history for _, history, _ in pairs(rows)] == [named(3, 4), named(3, 2), named(1, 0)]
    form = RecommendationPrompt(max_history=1)
    assert pairs(generative_rows(small_data(), "test", form=form))[0][1] == named(4)
    assert pairs(generative_rows(small_data(), "test", max_history=3, form=form))[0][1] == named(2, 3, 4)


def test_candidates_of_training_rows():
    """A candidate that the user chooses later, held-out targets among them, would be taught as a wrong answer."""
    data = small_data(num_items=40)
    places = set()
    for seed in range(5):
        for row in generative_rows(data, "train", examples_per_user=None, seed=seed, num_candidates=10):
            candidates = row["candidates"]
            met = set(data.sequences[int(row["user_id"][1])].tolist())
            assert len(set(candidates)) == 10
            assert set(candidates) & met == {row["target"]}
            assert all(0 <= item < 40 for item in candidates)
            assert row["prompt"].index(f"\ntitle {row['target']}\n") > 0
            places.add(candidates.index(row["target"]))
    assert len(places) > 4, "the target's place in the list would give it away"
    assert len(generative_rows(data, "train")[0]["candidates"]) == 3  # as many as the test has


def test_only_seed_and_user_decide():
    """Candidates that come from one stream of random numbers change for all users when one is left out."""
    data = small_data(num_items=200)
    keys = ("user_id", "target", "candidates", "prompt")

    def rows(**arguments):
        made = generative_rows(data, "train", examples_per_user=None, num_candidates=20, **arguments)
        return [{key: row[key] for key in keys} for row in made]

    every = rows()
    assert rows() == every
    assert rows(users=[1]) == [row for row in every if row["user_id"] == "u1"]
    assert rows(users=[1, 0]) == [row for row in every if row["user_id"] == "u1"] + [
        row for row in every if row["user_id"] == "u0"
    ]
    other = rows(seed=1)
    assert [row["target"] for row in other] == [row["target"] for row in every]
    assert all(a["candidates"] != b["candidates"] for a, b in zip(other, every, strict=True))
    assert len({tuple(row["candidates"]) for row in every}) == len(every)


def test_missing_titles_are_counted(caplog):
    """Items without title that were left out would give another candidate list than other modes have."""
    titles = ["zero", None, " ", *named(*range(3, 12))]
    with caplog.at_level(logging.WARNING):
        rows = generative_rows(small_data(titles), "test")
    assert "2 of 12 items have no title and go by their id." in caplog.text
    assert pairs(rows)[0][1][:3] == ["zero", "i1", "i2"]
    assert rows["completion"][1] == "i1"
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        generative_rows(small_data(), "test")
    assert not caplog.records


def test_equal_titles_among_candidates(caplog):
    """Two lines that read the same ask which of them: the answer names both."""
    titles = named(*range(12))
    titles[11] = "TITLE  5"
    with caplog.at_level(logging.WARNING):
        rows = generative_rows(small_data(titles), "test")
    assert "1 of 3 test rows have candidates of equal titles, which are listed once" in caplog.text
    assert rows[0]["candidates"] == [11, 5, 10]
    assert rows[0]["candidate_titles"] == ["TITLE 5", "title 5", "title 10"]
    listed = rows[0]["prompt"].split("comes next:\n")[1].split("\n\n")[0]
    assert listed == "TITLE 5\ntitle 10"
    assert unique_titles(["a", "b", "A ", "c", "b"]) == ["a", "b", "c"]


@pytest.mark.parametrize("chat", [False, True])
def test_shorten_history(chat):
    """What is cut at the wrong place leaves half a title, or cuts the candidates."""
    form = RecommendationPrompt(prompt="A {history} B {candidates} title 0", system="S", separator=", ", chat=chat)
    row = generative_rows(small_data(), "validation", form=form)[0]

    def text(prompt):
        return prompt[-1]["content"] if chat else prompt.removeprefix("S\n\n")

    listed = "title 11, title 4, title 10 title 0"
    assert text(row["prompt"]) == f"A title 0, title 1, title 2, title 3 B {listed}"
    assert text(shorten_history(row, 1)) == f"A title 1, title 2, title 3 B {listed}"
    assert text(shorten_history(row, 3)) == f"A title 3 B {listed}"
    assert text(shorten_history(row, 4)) == f"A  B {listed}"
    if chat:
        assert shorten_history(row, 1)[0] == row["prompt"][0] == {"role": "system", "content": "S"}


def test_sampled_users():
    """Two runs on other samples cannot be compared user by user."""
    data = small_data(sequences=[[i, i + 1, i + 2] for i in range(7)])
    drawn = sample_users(data, 3, seed=1)
    assert drawn == sample_users(data, 3, seed=1) == sorted(set(drawn))
    assert len(drawn) == 3
    assert len({tuple(sample_users(data, 3, seed=seed)) for seed in range(8)}) > 2
    assert sample_users(data, 7) == sample_users(data, 99) == list(range(7))
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        sample_users(data, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "must be one of 'train', 'validation', 'test', got 'dev'"),
        ({"max_history": 0}, "`max_history` must be at least 1, got 0"),
        ({"examples_per_user": 0}, "`examples_per_user` must be at least 1"),
        ({"num_candidates": 0}, "`num_candidates` must lie between 1 and the number of items .12., got 0"),
        ({"num_candidates": 13}, "got 13"),
        ({"users": [3]}, r"no user 3: the data has 3 \(0 to 2\)"),
        ({"users": [-1]}, "no user -1"),
    ],
)
def test_bad_arguments(arguments, message):
    """An index that is not there would come as a bare IndexError, or silently be the last user."""
    with pytest.raises(ConfigError, match=message):
        generative_rows(small_data(), **{"split": "train", **arguments})


def test_bad_data():
    """What cannot be drawn is said before hours of training."""
    with pytest.raises(
        DataError, match=r"'u0' has met 6 of 12 items: there are no 9 others .* Choose fewer candidates"
    ):
        generative_rows(small_data(), "train", num_candidates=10)
    with pytest.raises(DataError, match=r"no train row in generative mode.*none has two training events"):
        generative_rows(small_data(sequences=[[1, 2, 3]]), "train")
    with pytest.raises(DataError, match="no test row"):
        generative_rows(small_data(), "test", users=[])
