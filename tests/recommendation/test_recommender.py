"""A model that is asked by item ids: their order, long and ragged histories, and what is refused."""

import pytest
import torch
from c2kd_runs import NUM_ITEMS, item_model

from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.recommendation.recommender import ItemNames, Recommender


IDS = [f"i{index}" for index in range(NUM_ITEMS)]
NAMES = ItemNames(IDS, [None, *(f"film {index}" for index in range(1, NUM_ITEMS))], max_history=4)


@pytest.fixture(scope="module")
def recommender():
    return Recommender(item_model().eval(), NAMES)


def ids(best):
    return [one.item_id for one in best]


def test_the_best_items(recommender):
    """The scores are those of the history's last position, and each index has its own name."""
    (best,) = recommender.recommend([["i3", "i7"]], k=3)
    with torch.no_grad():
        scores = recommender.model(torch.tensor([[3, 7]])).logits[0, -1]
    assert ids(best) == [f"i{index}" for index in scores.topk(3).indices.tolist()]
    assert [one.score for one in best] == pytest.approx(scores.topk(3).values.tolist())
    every = recommender.recommend([["i3"]], k=100)[0]
    assert {one.item_id: one.title for one in every} == dict(zip(IDS, NAMES.titles, strict=True))


def test_together_as_alone(recommender):
    """Padding must not change what a shorter history gets, nor batches who gets it."""
    histories = [["i1"], ["i2", "i3", "i4"], ["i5", "i6"]]
    together = recommender.recommend(histories, k=4, batch_size=2)
    for history, best in zip(histories, together, strict=True):
        (alone,) = recommender.recommend([history], k=4)
        assert ids(alone) == ids(best)
        assert [one.score for one in alone] == pytest.approx([one.score for one in best], abs=1e-5)


def test_only_the_newest_of_a_long_history_count(recommender):
    """The model was trained on four items: more would be read at positions that it never saw."""
    long = ["i9", "i8", "i1", "i2", "i3", "i4"]
    assert recommender.recommend([long], k=5) == recommender.recommend([long[-4:]], k=5)


def test_masked_history(recommender):
    """All of a history is left out, also what is too old to be read; equal scores come by index."""
    history = ["i9", "i8", "i1", "i2", "i3", "i4"]
    (best,) = recommender.recommend([history], k=100, mask_history=True)
    assert sorted(ids(best)) == sorted(set(IDS) - set(history))


def test_equal_scores_come_by_index():
    """An unstable order would recommend other items on another machine."""
    model = item_model().eval()
    torch.nn.init.zeros_(model.head.weight)
    (best,) = Recommender(model, NAMES).recommend([["i3"]], k=4)
    assert ids(best) == ["i0", "i1", "i2", "i3"]


def test_the_mode_is_as_before():
    """Asking in the middle of training must not switch dropout off."""
    model = item_model().train()
    with pytest.raises(DataError):
        Recommender(model, NAMES).recommend([["x"]])
    Recommender(model, NAMES).recommend([["i1"]])
    assert model.training


def test_saved_and_loaded(tmp_path, recommender):
    """Names of another order beside the weights would recommend other items at the same scores."""
    recommender.model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no items\.json"):
        Recommender.from_pretrained(tmp_path)
    NAMES.save(tmp_path)
    assert ItemNames.load(tmp_path) == NAMES
    loaded = Recommender.from_pretrained(tmp_path)
    assert ids(loaded.recommend([["i3", "i7"]])[0]) == ids(recommender.recommend([["i3", "i7"]])[0])


@pytest.mark.parametrize("content", ["{", '{"format": 2}', '{"format": 1, "item_ids": ["a"]}', "[]"])
def test_damaged_names(tmp_path, content):
    (tmp_path / "items.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be used"):
        ItemNames.load(tmp_path)


def test_names_of_other_data():
    with pytest.raises(ModelError, match=f"scores {NUM_ITEMS} items, and 1 are named"):
        Recommender(item_model(), ItemNames(["a"], ["A"]))


@pytest.mark.parametrize(
    ("histories", "kwargs", "kind", "said"),
    [
        ([["i1"], []], {}, DataError, "History 1 must be a list of at least one"),
        (["i1"], {}, DataError, "History 0 must be a list"),
        ([5], {}, DataError, "History 0 must be a list of at least one item id, got 5"),
        ([["i1", "x"]], {}, DataError, "'x', which is no item"),
        ([["i1"]], {"k": 0}, ConfigError, "`k`"),
        ([["i1"]], {"batch_size": 0}, ConfigError, "`batch_size`"),
    ],
)
def test_what_cannot_be_asked(recommender, histories, kwargs, kind, said):
    with pytest.raises(kind, match=said):
        recommender.recommend(histories, **kwargs)


def test_scores_that_are_no_numbers():
    """Sorted, they come first."""
    model = item_model()
    with torch.no_grad():
        model.head.weight[3] = float("nan")
    with pytest.raises(ModelError, match="no numbers"):
        Recommender(model, NAMES).recommend([["i1"]])
