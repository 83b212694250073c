"""Results files, seeds taken together, and differences user by user."""

import json

import numpy as np
import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.outcome import RecommendationResult, hit_and_valid, item_set, user_set
from qcrd_trl.recommendation.results import aggregate, compare, read_results, results_of, write_results
from qcrd_trl.statistics import bootstrap_interval, paired_bootstrap


USERS = user_set(["a", "b", "c", "d"], ["1", "2", "3", "4"])
ITEMS = item_set(["1", "2", "3", "4"])


def saved(path, ranks=(1, 2, 6, 0), model="student", method="c2kd", **changes):
    """Results of four users, as `qcrd c2kd evaluate` writes them."""
    values = {
        "task_mode": "item_head",
        "split": "test",
        "ranking": "full",
        "history_masked": False,
        "user_set": USERS,
        "item_set": ITEMS,
        "ks": (1, 5),
        "counts": {"users": len(changes.get("hits", ranks)), "items": 4},
        "ranks": None if ranks is None else np.array(ranks),
    }
    write_results(path, results_of(RecommendationResult(**{**values, **changes}), model, method))
    return path


def test_a_file_gives_back_what_was_measured(tmp_path):
    """Metrics, intervals and ranks stand beside what they are of; a later k can be had from the ranks."""
    path = saved(tmp_path / "new" / "1.json", model=str(tmp_path))
    content = json.loads(path.read_text(encoding="utf-8"))
    # HR@5: ranks 1 and 2 of four. NDCG@5: (1 + 1 / log2(3)) / 4. MRR: (1 + 1/2 + 1/6) / 4.
    assert content["metrics"] == pytest.approx(
        {"hr@1": 0.25, "ndcg@1": 0.25, "hr@5": 0.5, "ndcg@5": 0.4077324, "mrr": 0.4166667}, abs=1e-6
    )
    assert content["intervals"]["hr@5"] == list(bootstrap_interval([1, 1, 0, 0]))
    assert content["ranks"] == [1, 2, 6, 0]
    assert content["model"] == tmp_path.name, "a path of this machine is nobody else's business"
    assert {"qcrd_trl", "torch", "transformers", "numpy", "python"} <= content["versions"].keys()
    assert (content["format"], content["kind"], content["method"]) == (1, "c2kd", "c2kd")
    assert [line for line in path.read_text().splitlines() if '"ranks"' in line] == ['  "ranks": [1, 2, 6, 0]']
    assert read_results(path).per_user["hr@5"].tolist() == [1, 1, 0, 0]
    assert [entry.name for entry in path.parent.iterdir()] == ["1.json"]


def test_written_titles_are_kept(tmp_path):
    """Of generative mode the texts are what shows why nothing was valid."""
    path = saved(
        tmp_path / "g.json",
        None,
        hits=np.array([True, False]),
        valid=np.array([True, True]),
        texts=["é", "b\n"],
    )
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["hits"], content["valid"], content["texts"]) == ([1, 0], [1, 1], ["é", "b\n"])
    assert content["metrics"] == {"hr@1": 0.5, "valid_ratio": 1.0}
    assert read_results(path).per_user["hr@1"].tolist() == [1, 0]


def test_differences_are_paired(tmp_path):
    """Two models that fail on the same users differ by little: an unpaired interval would hide a real difference."""
    one = saved(tmp_path / "1.json", (1, 2, 6, 0))
    other = saved(tmp_path / "2.json", (1, 1, 5, 0), model="other")
    comparison = compare(one, other, seed=3)
    found = {difference.metric: difference for difference in comparison.differences}
    assert found["hr@1"].difference == 0.25
    assert found["hr@1"].interval == paired_bootstrap([1, 0, 0, 0], [1, 1, 0, 0], 3)
    # MRR: (1/2 + (1/5 - 1/6)) / 4. Two users differ, both upwards: 2 of the 4 exchanges are as extreme.
    assert found["mrr"].difference == pytest.approx((0.5 + 1 / 30) / 4)
    assert found["mrr"].p_value == 0.5
    assert comparison.runs[1].models == ["other"]
    assert comparison.runs[0].sd == {}
    assert json.loads(json.dumps(comparison.to_dict()))["kind"] == "c2kd_comparison"


def test_seeds_are_averaged_user_by_user(tmp_path):
    """Seeds counted as further users would make intervals narrower than the data are."""
    files = [saved(tmp_path / f"{seed}.json", ranks) for seed, ranks in enumerate([(1, 2, 6, 0), (1, 1, 1, 0)])]
    run = aggregate(files, seed=1)
    assert run.metrics["hr@1"] == 0.5  # 1/4 and 3/4
    assert run.sd["hr@1"] == pytest.approx(0.5 / 2**0.5)
    assert run.intervals["hr@1"] == bootstrap_interval([1, 0.5, 0.5, 0], 1)
    assert (run.users, run.files, run.method) == (4, ["0.json", "1.json"], "c2kd")
    (tmp_path / "none-0").mkdir()
    one = saved(tmp_path / "none-0" / "results.json", (1, 2, 6, 0), method="none")
    comparison = compare(one, files)
    assert comparison.runs[0].files == ["none-0/results.json"]  # what runs write has one name in all of their folders
    assert comparison.differences[0].difference == 0.25
    assert [run.method for run in comparison.runs] == ["none", "c2kd"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_set": user_set(["a", "b", "c", "d"], ["1", "2", "3", "3"])}, "other users or targets"),
        ({"user_set": user_set(["b", "a", "c", "d"], ["1", "2", "3", "4"])}, "other users or targets"),
        ({"item_set": item_set(["1", "2", "3", "5"])}, "other items or candidates"),
        ({"split": "validation"}, "other splits .split is 'test' and 'validation'"),
        ({"history_masked": True}, "other masks of the history .history_masked is False and True"),
        ({"ranking": "candidates"}, "other rankings .ranking is 'full' and 'candidates'"),
    ],
)
def test_what_answers_another_question_is_refused(tmp_path, changes, message):
    """HR@10 with the history masked is nearly twice that without: the difference would be taken for the model's."""
    one, other = saved(tmp_path / "1.json"), saved(tmp_path / "2.json", **changes)
    with pytest.raises(DataError, match=message):
        compare(one, other)
    with pytest.raises(DataError, match=message):
        aggregate([one, other])


def test_candidates_in_another_order_are_the_same_candidates():
    """They are shuffled for the prompt; ranks do not depend on it."""
    candidates = np.array([[1, 2], [2, 0]])
    assert item_set(["a", "b", "c"], candidates) == item_set(["a", "b", "c"], candidates[:, ::-1])
    assert item_set(["a", "b", "c"], candidates) != item_set(["a", "b", "c"], candidates[::-1])
    assert item_set(["a", "b", "c"]) != item_set(["a", "c", "b"])


def test_only_shared_metrics_are_compared(tmp_path):
    """A generative model and one with a head over items have HR@1 among candidates in common, and nothing else."""
    changes = {"ranking": "candidates"}
    ranked = saved(tmp_path / "r.json", **changes)
    hits = np.array([True, True, False, False])
    written = saved(tmp_path / "w.json", None, hits=hits, valid=hits, texts=[""] * 4, **changes)
    comparison = compare(ranked, written)
    assert [(one.metric, one.difference) for one in comparison.differences] == [("hr@1", 0.25)]
    other = saved(tmp_path / "o.json", ks=(5,), **changes)
    with pytest.raises(ConfigError, match=r"o\.json.*w\.json have no metric in common"):
        compare(other, written)


def test_a_file_given_twice_is_told(tmp_path):
    """The same seed twice looks like two."""
    path = saved(tmp_path / "1.json")
    assert (
        compare([path, path], path).notes
        == ["1.json is given more than once: it does not count as further evidence."] * 2
    )
    with pytest.raises(ConfigError, match="one file or more, got none"):
        compare([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "There are no results at"),
        ("{", "is not JSON"),
        ({"kind": "other"}, "does not hold the results of `qcrd c2kd evaluate`"),
        ({"format": 2}, "has the format 2, and 1 is expected"),
        ({"ranks": [1, 2, 6]}, "is damaged.*not one value a user"),
        ({"ranks": [1, 2, 6, 1]}, "is damaged.*hr@1 is not what its users give"),
        ({"ranks": [1, 2, 6, -1]}, "is damaged.*Ranks must be whole numbers"),
        ({"ranks": None}, "is damaged"),
        ({"user_set": ...}, "is damaged.*user_set"),
    ],
)
def test_damaged_files_are_told(tmp_path, change, message):
    """A file that was edited by hand would be compared as if it had been measured."""
    path = tmp_path / "1.json"
    if isinstance(change, str):
        path.write_text(change)
    elif change is not None:
        content = {**json.loads(saved(path).read_text()), **change}
        content = {name: value for name, value in content.items() if value is not ...}
        path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_results(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Toy Story", (True, True)),
        ("  toy\tSTORY\n", (True, True)),
        ("Ｔｏｙ Story", (True, True)),  # full width, which NFKC folds
        ("Heat", (False, True)),
        ("Toy Story (1995)", (False, False)),
        ("The answer is Toy Story", (False, False)),
        ("", (False, False)),
        (" \n", (False, False)),
    ],
)
def test_titles_are_matched_exactly(text, found):
    """A text that only contains a title would make a model that repeats the list right every time."""
    assert hit_and_valid(text, ["Heat", "Toy Story", ""], "Toy Story") == found


def test_a_title_that_candidates_share():
    """No text can tell them apart: naming it is a hit, whichever of them is the target."""
    assert hit_and_valid("hamlet", ["Hamlet", "HAMLET", "Heat"], "HAMLET") == (True, True)
