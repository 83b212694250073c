"""The order of events and of ids, and what is left out on the way."""

import random

import numpy as np
import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.interactions import Interactions, Items
from qcrd_trl.recommendation.sequences import build_sequences, sort_ids


def events(rows, name="x.csv"):
    """Interactions of (user, item, time[, rating]) rows, with ids in the order in which they are met."""
    users, items = (dict.fromkeys(column) for column in list(zip(*rows, strict=True))[:2])
    places = [{one: place for place, one in enumerate(found)} for found in (users, items)]
    return Interactions(
        np.array([places[0][row[0]] for row in rows], np.int32),
        np.array([places[1][row[1]] for row in rows], np.int32),
        np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows], float) if len(rows[0]) > 3 else None,
        list(users),
        list(items),
        name,
    )


def ids_of(built):
    """Each user's items as ids."""
    return {
        user: [built.item_ids[item] for item in items]
        for user, items in zip(built.user_ids, built.sequences, strict=True)
    }


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["10", "9", "-1", "2"], (["-1", "2", "9", "10"], "numbers")),
        (["10", "9", "x"], (["10", "9", "x"], "text")),
        (["1", "01", "001"], (["001", "01", "1"], "numbers")),
        (["2.0", "10"], (["10", "2.0"], "text")),
        (["²", "1"], (["1", "²"], "text")),  # `isdigit`, and no number
        (["9" * 19, "1" * 20], (["1" * 20, "9" * 19], "text")),
        (["é", "z", "Z"], (["Z", "z", "é"], "text")),
        ([], ([], "numbers")),
    ],
)
def test_order_of_ids(ids, expected):
    """It decides every tie, in the data and in the ranking: sorted as text, item 10 would come before item 9."""
    assert sort_ids(ids) == expected


def test_events_in_order_of_time_and_item():
    """Ties in the order of the file would give another test target to everyone who sorted it otherwise."""
    built = build_sequences(events([("a", "10", 5), ("a", "9", 5), ("a", "7", 9), ("a", "8", 1)]), min_length=3)
    assert ids_of(built) == {"a": ["8", "9", "10", "7"]}
    assert [one.tolist() for one in built.timestamps] == [[1, 5, 5, 9]]
    assert built.item_ids == ["7", "8", "9", "10"]
    assert built.sequences[0].dtype == np.int32
    assert built.counts["users_with_tied_targets"] == 0
    tied = build_sequences(events([("a", "10", 5), ("a", "9", 5), ("a", "8", 1)]), min_length=3)
    assert tied.counts["users_with_tied_targets"] == 1


def test_order_of_rows_does_not_matter():
    """Whoever exports the same table twice may get it in two orders, and must get one data set."""
    draw = random.Random(0)
    rows = list({(f"u{draw.randrange(9)}", str(draw.randrange(30)), draw.randrange(20)): None for _ in range(300)})
    built = build_sequences(events(rows), min_length=3)
    assert len(built.sequences) == 9
    for _ in range(5):
        draw.shuffle(rows)
        again = build_sequences(events(rows), min_length=3)
        assert (again.user_ids, again.item_ids, again.counts) == (built.user_ids, built.item_ids, built.counts)
        for name in ("sequences", "timestamps"):
            for one, other in zip(getattr(built, name), getattr(again, name), strict=True):
                np.testing.assert_array_equal(one, other)


def test_short_users_are_left_out_and_counted():
    """Users without a training event, or whose targets are all they have, would count as misses or crash far from here."""
    rows = [("10", str(i), i) for i in range(5)] + [("9", str(i), i) for i in range(4)] + [("8", "1", 1)]
    built = build_sequences(events(rows))
    assert built.user_ids == ["10"]
    wanted = {"interactions": 10, "users_read": 3, "users": 1, "events": 5, "training_events": 3}
    wanted |= {"users_too_short": 2, "events_of_short_users": 5, "items": 5, "items_never_met": 0}
    assert wanted.items() <= built.counts.items()
    assert build_sequences(events(rows), min_length=4).user_ids == ["9", "10"]
    with pytest.raises(DataError, match=r"x\.csv: none of 3 users has 6 events \(the longest has 5\)"):
        build_sequences(events(rows), min_length=6)


def test_items_are_those_of_both_sources():
    """Indices that changed with what is left out of the interactions could not be compared between runs."""
    rows = [("a", "3", 1), ("a", "1", 2), ("a", "5", 3), ("b", "7", 1)]
    built = build_sequences(events(rows), Items(["4", "1", "3"], [None, "One", "Three"], "x.item"), min_length=3)
    assert built.item_ids == ["1", "3", "4", "5", "7"]
    assert built.titles == ["One", "Three", None, None, None]
    wanted = {"items": 5, "items_only_in_interactions": 2, "items_without_title": 3, "items_never_met": 2}
    assert wanted.items() <= built.counts.items()
    assert ids_of(built) == {"a": ["3", "1", "5"]}
    assert build_sequences(events(rows), min_length=3).counts["items_only_in_interactions"] == 0


def test_items_of_another_data_set():
    """`1.0` in one file and `1` in the other would double every item, and no candidate would have a title."""
    with pytest.raises(DataError, match=r"None of the 3 items of x\.csv \(such as '1'\) stands in x\.item"):
        build_sequences(
            events([("a", "1", 1), ("a", "2", 2), ("a", "3", 3)]), Items(["1.0"], ["One"], "x.item"), min_length=3
        )


def test_repeated_items_stay():
    """A user who watches a film again is no mistake; the same event twice may be."""
    rows = [("a", "1", 1), ("a", "1", 2), ("a", "2", 3), ("b", "1", 1), ("b", "2", 2), ("b", "3", 3)]
    built = build_sequences(events(rows), min_length=3)
    assert ids_of(built) == {"a": ["1", "1", "2"], "b": ["1", "2", "3"]}
    assert (built.counts["repeated_items"], built.counts["duplicates_left_out"]) == (1, 0)


def test_duplicates():
    """An event that stands twice predicts itself: the validation target would be the test target."""
    rows = [("a", "1", 1), ("a", "2", 2), ("a", "3", 3), ("a", "3", 3), ("a", "3", 3), ("b", "3", 3)]
    with pytest.raises(
        DataError, match=r"2 of 6 events stand twice .* \(such as user 'a', item '3', time 3\).* 'drop'"
    ):
        build_sequences(events(rows), min_length=3)
    dropped = build_sequences(events(rows), min_length=3, duplicates="drop")
    assert (ids_of(dropped), dropped.counts["duplicates_left_out"]) == ({"a": ["1", "2", "3"]}, 2)
    kept = build_sequences(events(rows), min_length=3, duplicates="keep")
    assert (ids_of(kept), kept.counts["duplicates_left_out"]) == ({"a": ["1", "2", "3", "3", "3"]}, 0)
    with pytest.raises(ConfigError, match="duplicates must be"):
        build_sequences(events(rows), duplicates="first")


def test_low_ratings():
    """Left out before anything else: what was disliked must be no target, and not count for the length."""
    rows = [("a", str(i), i, rating) for i, rating in enumerate([5, 1, 4, 3.9, 4.5])] + [("b", "9", 1, 2)]
    built = build_sequences(events(rows), min_length=3, min_rating=4)
    assert ids_of(built) == {"a": ["0", "2", "4"]}
    assert (built.counts["events_rated_too_low"], built.counts["items"]) == (3, 6)
    rows[3] = ("a", "3", 3, float("nan"))
    with pytest.raises(DataError, match=r"1 of 6 events have no rating .* \(the first in row 3, counted from 0\)"):
        build_sequences(events(rows), min_length=3, min_rating=4)
    assert len(build_sequences(events(rows), min_length=3).sequences[0]) == 5  # ratings that nobody asks for
    with pytest.raises(DataError, match="has no ratings, so that min_rating 4"):
        build_sequences(events([row[:3] for row in rows]), min_rating=4)


def test_too_small_a_minimum():
    """Two events are two targets and nothing to predict them from."""
    with pytest.raises(ConfigError, match=r"min_length must be at least 3 .* got 2"):
        build_sequences(events([("a", "1", 1)]), min_length=2)
