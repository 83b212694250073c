"""The card of a recommender: what it tells, and what it must not."""

import pytest
from huggingface_hub import ModelCard

from qcrd_trl.recommendation.card import RecommenderFacts, recommender_card, write_recommender_card


RESULTS = {
    "split": "test",
    "task_mode": "item_head",
    "history_masked": False,
    "counts": {"users": 943},
    "metrics": {"hr@10": 0.125, "ndcg@10": 0.0625},
    "intervals": {"hr@10": [0.1, 0.15], "ndcg@10": [0.05, 0.075]},
}
COUNTS = {"users": 943, "items": 1682, "events": 100000, "train_events": 98114}


def facts(**more):
    given = {"name": "student", "method": "c2kd", "datasets": ["user/ml-100k"], "counts": COUNTS, "results": RESULTS}
    return RecommenderFacts(**{**given, "history": ["50", "181"], "settings": {"learning_rate": 0.001}, **more})


def test_what_it_tells():
    """Numbers without their intervals, or of another split, would be taken for more than they are."""
    text = str(recommender_card(facts(teacher="user/teacher", repo="user/student", steps=750, epochs=25.0)))
    assert "943 users, 1,682 items and 100,000 events, of which training reads 98,114" in text
    assert "| HR@10 | 0.1250 | 0.1000 to 0.1500 |" in text
    assert "| NDCG@10 | 0.0625 | 0.0500 to 0.0750 |" in text
    assert "On the test split of 943 users by full ranking" in text
    assert "(items of the history are not left out)" in text
    assert "[user/teacher](https://huggingface.co/user/teacher)" in text
    assert "| `learning_rate` | 0.001 |" in text
    assert "750 steps (25 epochs)" in text
    assert "Recommender.from_pretrained('user/student')" in text
    assert "2025.findings-acl.917" in text


def test_metadata_is_read_by_the_hub():
    card = ModelCard(str(recommender_card(facts(tags=["llama"]))))
    assert card.data.datasets == ["user/ml-100k"]
    assert {"c2kd", "sequential-recommendation", "llama"} <= set(card.data.tags)
    assert [(one.metric_type, one.metric_value) for one in card.data.eval_results] == [
        ("hr@10", 0.125),
        ("ndcg@10", 0.0625),
    ]


@pytest.mark.parametrize("path", ["/home/somebody/data", "~/data", "../data", "C:\\data"])
def test_no_path_of_this_machine(path):
    """A card is public: it must not tell who trained where."""
    text = str(recommender_card(facts(datasets=[path], base_model=path, teacher=path)))
    assert path not in text
    assert "somebody" not in text


def test_sasrec_is_called_by_its_name():
    text = str(recommender_card(facts(method="sasrec")))
    assert "SASRec" in text
    assert "kang2018sasrec" in text
    assert "Cross-layer" not in text


def test_a_model_that_writes_titles():
    """Its HR@1 is among candidates: beside a full ranking it would look far too good."""
    results = {**RESULTS, "task_mode": "generative", "metrics": {"hr@1": 0.5, "valid_ratio": 0.9}, "intervals": {}}
    text = str(recommender_card(facts(task_mode="generative", results=results, is_adapter=True)))
    assert "among each user's candidates" in text
    assert "full ranking" not in text
    assert "recommend_titles(" in text
    assert "A sequential recommender: a adapter" not in text


def test_not_measured():
    text = str(recommender_card(facts(results=None, counts={})))
    assert "not measured" in text
    assert "| metric |" not in text


def test_odd_names_break_nothing():
    """A name is Markdown of somebody else's: it must not become a heading, a link or YAML."""
    text = str(recommender_card(facts(name="a\n# b | [c](d)", datasets=["x\n---"])))
    assert "\n# b" not in text
    assert ModelCard(text).data.tags


def test_written_with_the_router(tmp_path):
    """A link to a picture that is not there shows as broken on the Hub."""
    assert "router.png" not in write_recommender_card(tmp_path, facts()).read_text(encoding="utf-8")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "router.png").write_bytes(b"png")
    assert "(plots/router.png)" in write_recommender_card(tmp_path, facts()).read_text(encoding="utf-8")
