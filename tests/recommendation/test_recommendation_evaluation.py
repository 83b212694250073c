"""Models are evaluated on what each user met next, and left as they were."""

import math
import random

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from recommended import small_data
from tensors import LargestTensor
from tiny import byte_tokenizer, tiny_llama

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation import SASRecConfig, SASRecModel, build_recommender, generation
from qcrd_trl.recommendation.evaluation import evaluate_model
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt


BACKBONE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
}
SEQUENCES = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 0, 1], [7, 8, 9, 7, 8, 3, 6, 2, 0]]


def data_of(**more):
    return small_data(sequences=SEQUENCES, **more)


def item_model(num_items=12):
    return build_recommender("item_head", BACKBONE, num_items)


def sasrec(num_items=12, **settings):
    torch.manual_seed(0)
    return SASRecModel(
        SASRecConfig(num_items=num_items, hidden_size=16, num_hidden_layers=2, initializer_range=0.4, **settings)
    ).eval()


def expected_ranks(model, data, split, masked=False, candidates=False, max_history=None):
    """One user at a time, from the logits of the history alone: nobody has told the model the target."""
    ranks = []
    for user in range(data.num_users):
        history, target = data.history(user, split), data.target(user, split)
        items = torch.tensor(history if max_history is None else history[-max_history:])[None].long()
        with torch.no_grad():
            scores = model(input_ids=items, attention_mask=torch.ones_like(items)).logits[0, -1].tolist()
        among = set(range(data.num_items))
        if masked:
            among -= set(map(int, history))
        if candidates:
            among = set(map(int, data.candidates[split][user]))
        before = sum(
            scores[item] > scores[target] or (scores[item] == scores[target] and item < target)
            for item in among - {target}
        )
        ranks.append(1 + before)
    return ranks


@pytest.mark.parametrize("kind", [item_model, sasrec])
def test_ranks_are_those_of_a_user_alone(kind):
    """The target is the last item of a row: a state that has seen it would make any model good. Padding must not matter."""
    model, data = kind().eval(), data_of()
    seen = set()
    for split in ("validation", "test"):
        for settings in ({}, {"mask_history": True}, {"candidates": True}, {"max_history": 2}):
            expected = expected_ranks(
                model,
                data,
                split,
                settings.get("mask_history", False),
                settings.get("candidates", False),
                settings.get("max_history"),
            )
            for batch_size, item_chunk in ((1, 5), (3, 100), (64, 1)):
                result = evaluate_model(
                    model, data, split, batch_size=batch_size, item_chunk=item_chunk, progress=False, **settings
                )
                assert result.ranks.tolist() == expected, (split, settings, batch_size)
            seen.add(tuple(expected))
            assert (result.split, result.task_mode) == (split, "item_head")
            assert result.ranking == ("candidates" if settings.get("candidates") else "full")
            assert result.history_masked is settings.get("mask_history", False)
    assert len(seen) > 5, "most settings give the same ranks: the test says little"
    assert result.metrics["hr@20"] == 1


def test_some_users_in_their_order():
    """Rows that are sorted by length must come back in the order that they were asked for."""
    model, data = item_model().eval(), data_of()
    everybody = evaluate_model(model, data, progress=False).ranks
    some = evaluate_model(model, data, users=[3, 0, 2], progress=False)
    assert some.ranks.tolist() == everybody[[3, 0, 2]].tolist()
    assert some.counts["users"] == 3


def test_memory_is_bounded():
    """Logits of all positions and items, of which one position counts, would be the largest tensor by far."""
    model = item_model(num_items=300).eval()
    with LargestTensor() as largest:
        result = evaluate_model(model, data_of(num_items=300), batch_size=4, item_chunk=10, progress=False)
    assert largest.size == 300 * 16, "more than the weights; all logits would be 4 * 9 * 300"
    assert len(result.ranks) == 4


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_random_state_are_left_alone(monkeypatch, fails):
    """Evaluating in the middle of a run would change its dropout, or train the rest of it in evaluation mode."""
    model, data = sasrec(dropout=0.5), data_of()
    model.train()
    model.backbone.eval()
    modes = [module.training for module in model.modules()]
    states = [torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()]
    if fails:

        def fail(*args, **kwargs):
            torch.rand(1), np.random.rand(), random.random()
            raise RuntimeError("out of memory")

        monkeypatch.setattr("qcrd_trl.recommendation.evaluation.target_ranks", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            evaluate_model(model, data, progress=False)
    else:
        first = evaluate_model(model, data, progress=False).ranks.tolist()
        assert evaluate_model(model, data, progress=False).ranks.tolist() == first
        assert first == expected_ranks(model.eval(), data, "test")
        model.train()
        model.backbone.eval()
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_progress(capsys):
    """A ranking of minutes without a sign of life is stopped by whoever waits for it."""
    evaluate_model(item_model(), data_of())
    assert "Ranking" in capsys.readouterr().err
    evaluate_model(item_model(), data_of(), progress=False)
    assert capsys.readouterr().err == ""


def test_an_adapter_is_evaluated_with_what_it_adds(tmp_path):
    """The head of an adapter's model is a copy: the base's own one would be ranked by, untrained."""
    item_model().save_pretrained(tmp_path)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = build_recommender("item_head", str(tmp_path), 12, peft_config=lora).eval()
    data = data_of()
    before = evaluate_model(model, data, progress=False).ranks.tolist()
    assert before == expected_ranks(model, data, "test")
    with torch.no_grad():
        model.get_base_model().head.modules_to_save["default"].weight.mul_(-1)
    after = evaluate_model(model, data, progress=False).ranks.tolist()
    assert after == expected_ranks(model, data, "test") == [13 - rank for rank in before]


def test_an_adapter_on_the_head_is_refused():
    """Its weights are beside those that are ranked by: the adapter would be left out without a word."""
    model = get_peft_model(item_model(), LoraConfig(r=2, target_modules=["head"], init_lora_weights=False))
    with pytest.raises(ModelError, match=r"head \(Linear\) gives other scores than its weights do.*merge it"):
        evaluate_model(model, data_of(), progress=False)


def test_scores_that_are_not_finite_are_told(caplog):
    """A model that broke has misses for everybody, which looks like a model that learned nothing."""
    model, data = item_model().eval(), data_of()
    with torch.no_grad():
        model.head.weight[5] = math.nan
    result = evaluate_model(model, data, progress=False)
    assert result.ranks.tolist()[0] == 0  # the first user's target is item 5
    assert (result.ranks[1:] > 0).all()
    assert result.counts["not_finite"] == 1
    assert "not finite for 1 of 4 users" in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_precisions(dtype):
    """Half precision has to rank by its own weights, and a double model is ranked in single precision."""
    model = item_model().to(dtype)
    ranks = evaluate_model(model, data_of(), progress=False).ranks.tolist()
    if dtype == torch.float64:
        assert ranks == expected_ranks(model.eval(), data_of(), "test")
    assert all(1 <= rank <= 12 for rank in ranks)


def test_generative_mode_by_hand(monkeypatch):
    """A hit that counted for another candidate, or a title in other letters that did not, moves both metrics."""
    titles = [f"title {number}" for number in range(12)]
    titles[11] = "Title  5"  # a candidate of everybody, which is called as the first user's target is
    texts = ["TITLE 5 ", "title 11", "title 10", ""]  # targets: 5, 1, 1, 0; the others: 11 and 10
    asked = []

    def write(model, tokenizer, rows, *settings):
        asked.append((rows, settings))
        return texts

    monkeypatch.setattr(generation, "recommend_titles", write)
    form = RecommendationPrompt(max_history=2, max_length=99)
    result = evaluate_model(
        tiny_llama(), data_of(titles=titles), tokenizer=byte_tokenizer(), form=form, batch_size=3, max_new_tokens=7
    )
    assert result.hits.tolist() == [True, False, False, False]
    assert result.valid.tolist() == [True, False, True, False]
    assert result.metrics == {"hr@1": 0.25, "valid_ratio": 0.5}
    assert result.texts == texts
    assert result.counts["targets_of_shared_title"] == 1
    assert (result.task_mode, result.ranking, result.ranks) == ("generative", "candidates", None)
    rows, settings = asked[0]
    assert rows[0]["history"] == ["title 3\n", "title 4"]
    assert settings == (3, 7, 99, True)


def test_generative_mode_of_a_model():
    """The whole way, with a model that knows nothing: what it writes is kept, and is no title."""
    tokenizer = byte_tokenizer()
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=1024).train()
    result = evaluate_model(model, data_of(), "validation", tokenizer=tokenizer, users=[1, 0], progress=False)
    assert len(result.texts) == 2
    assert result.metrics == {"hr@1": 0, "valid_ratio": 0}
    assert model.training
    both = evaluate_model(item_model(), data_of(), "validation", candidates=True, users=[1, 0], progress=False)
    assert (both.user_set, both.item_set) == (result.user_set, result.item_set), "the two could not be compared"


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (item_model, {"task_mode": "ranking"}, ConfigError, "got 'ranking'"),
        (item_model, {"split": "train"}, ConfigError, "'validation' or 'test', got 'train'"),
        (item_model, {"batch_size": 0}, ConfigError, "`batch_size` must be at least 1, got 0"),
        (item_model, {"item_chunk": 0}, ConfigError, "`item_chunk` must be at least 1, got 0"),
        (item_model, {"max_history": 0}, ConfigError, "`max_history` must be at least 1, got 0"),
        (item_model, {"ks": (0,)}, ConfigError, "ks must be positive"),
        (item_model, {"users": [9]}, ConfigError, "User 9 does not exist"),
        (item_model, {"candidates": True, "mask_history": True}, ConfigError, "No candidate is in its user's history"),
        (tiny_llama, {}, ConfigError, "needs the model's `tokenizer`"),
        (tiny_llama, {"mask_history": True}, ConfigError, "no item is ranked"),
        (tiny_llama, {"task_mode": "item_head"}, ModelError, r"weight of shape \(33, 16\), and the data 12 items"),
        (lambda: item_model(13), {}, ModelError, r"weight of shape \(13, 16\), and the data 12 items"),
    ],
)
def test_what_cannot_be_evaluated(model, settings, error, message):
    """A model of other items would be ranked by rows that belong to none of them."""
    with pytest.raises(error, match=message):
        evaluate_model(model(), data_of(), progress=False, **settings)
