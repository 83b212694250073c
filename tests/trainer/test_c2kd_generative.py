"""C2KD in generative mode: what is learned from texts of several lengths, and that what is learned is what is asked for later."""

import pytest
import torch
from c2kd_runs import c2kd_trainer
from recommended import small_data
from running import weights
from tiny import VOCAB_SIZE, chat_tokenizer, tiny_gpt2, tiny_llama, word_tokenizer

from qcrd_trl.recommendation.generation import recommend_titles
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.outcome import hit_and_valid
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import generative_rows
from qcrd_trl.recommendation.tokens import tokenize_rows


WORDS = ["a", "b c", "d", "e f", "g", "1 2 3", "4", "5 6", "7", "8 9", "0", "+"]
SEQUENCES = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 0, 1, 7], [6, 8, 2, 1, 9, 3, 0]]


def form(chat=False):
    return RecommendationPrompt(prompt="so {history} = {candidates} is", separator=" ", chat=chat)


def rows(split="train", chat=False):
    """Four training rows of several lengths, with answers of one, two and three words."""
    return generative_rows(small_data(WORDS, SEQUENCES), split, form=form(chat))


def teacher():
    """Four layers of another width, with weights so large that its layers differ."""
    return tiny_llama(5, hidden_size=24, num_hidden_layers=4, initializer_range=0.4)


def filters():
    torch.manual_seed(9)
    return LayerFilters((2, 3, 4), 24, 16, VOCAB_SIZE, "linear")


def trainer_of(folder, method="c2kd", model=None, given=None, tokenizer=None, **overrides):
    distils = method != "none"
    parts = {"processing_class": tokenizer or word_tokenizer()}
    parts |= {"teacher_model": teacher()} if distils else {}
    parts |= {"layer_filters": filters()} if method == "c2kd" else {}
    arguments = {"task_mode": "generative", "method": method, **overrides}
    return c2kd_trainer(folder, model or tiny_llama(), given or rows(), parts, **arguments)


def nll_by_hand(model, given, tokenizer):
    """Mean over the answers' tokens, a row at a time, without a collator."""
    total = count = 0
    for row in tokenize_rows(given, "generative", tokenizer):
        answer = sum(label != -100 for label in row["labels"])
        logits = model(torch.tensor([row["input_ids"]])).logits[0, -answer - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(row["input_ids"][-answer:]), reduction="sum")
        count += answer
    return (total / count).item()


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2])
def test_the_task_is_the_answers_alone(tmp_path, build):
    """A loss over the prompt as well teaches to list random candidates; one over rows weights short answers more."""
    model, given = build(), rows()
    expected = nll_by_hand(model, given, word_tokenizer())
    trainer = trainer_of(tmp_path, model=model, given=given)
    trainer.train()
    assert logged(trainer, "loss/task") == [pytest.approx(expected, rel=1e-5)]
    assert logged(trainer, "loss/feature")[0] > 0
    assert logged(trainer, "loss/logit")[0] > 0


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "logit_kd", "blockwise"])
def test_a_student_that_is_its_teacher_costs_nothing(tmp_path, method):
    """A title's positions that are read one to the side of the teacher's leave a rest."""
    parts = {"processing_class": word_tokenizer(), "teacher_model": tiny_llama(5, initializer_range=0.4)}
    if method == "c2kd":
        parts["layer_filters"] = LayerFilters.identity((1, 2), 16, VOCAB_SIZE)
    trainer = c2kd_trainer(
        tmp_path, tiny_llama(5, initializer_range=0.4), rows(), parts, task_mode="generative", method=method
    )
    trainer.train()
    for name in ("loss/feature", "loss/logit"):
        assert logged(trainer, name) in ([], [pytest.approx(0.0, abs=1e-9)])
    assert logged(trainer, "loss/feature") or logged(trainer, "loss/logit")
    assert logged(trainer, "loss/task")[0] > 0.5


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "logit_kd", "blockwise"])
def test_batches_do_not_matter(tmp_path, method):
    """Padding that reaches the router, the imitation or the KL makes the step another one in each batch."""
    whole = trainer_of(tmp_path / "whole", method, per_device_train_batch_size=4)
    parts = trainer_of(tmp_path / "parts", method, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    before = weights(whole.model)
    whole.train()
    parts.train()
    after = weights(whole.model)
    assert any(not torch.equal(before[name], after[name]) for name in after)
    for name, value in weights(parts.model).items():
        torch.testing.assert_close(value, after[name], rtol=1e-4, atol=1e-6)


def test_a_cached_teacher_trains_alike(tmp_path):
    """A cache that is read by another key than it was written by gives each answer the states of another one."""
    live = trainer_of(tmp_path / "live", max_steps=2, per_device_train_batch_size=2)
    live.train()
    arguments = {"max_steps": 2, "per_device_train_batch_size": 2, "teacher_cache": str(tmp_path / "cache")}
    trainer_of(tmp_path / "build", **arguments).train()
    parts = {"processing_class": word_tokenizer(), "layer_filters": filters()}
    cached = c2kd_trainer(tmp_path / "cached", tiny_llama(), rows(), parts, task_mode="generative", **arguments)
    cached.train()
    expected, first = weights(live.model), weights(tiny_llama())
    for name, value in weights(cached.model).items():  # the cache was filled in other batches, which round otherwise
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
        assert not torch.equal(value, first[name])


@pytest.mark.parametrize("chat", [False, True])
def test_what_is_learned_is_what_is_asked_for(tmp_path, chat):
    """
    Asked otherwise than taught (another BOS, separator or end), a model that knows the answers by heart misses them: no number
    would tell it from a bad model.
    """
    tokenizer = chat_tokenizer() if chat else word_tokenizer()
    given = rows(chat=chat)
    steps = {"max_steps": 60, "learning_rate": 0.03, "optim": "adamw_torch", "max_grad_norm": 1.0, "logging_steps": 60}
    trainer = trainer_of(tmp_path, "none", tiny_llama(hidden_size=32), given, tokenizer, **steps)

    def hits():
        texts = recommend_titles(trainer.model, tokenizer, given, batch_size=3, progress=False)
        found = zip(texts, given, strict=True)
        return [hit_and_valid(text, row["candidate_titles"], row["completion"])[0] for text, row in found]

    assert sum(hits()) < 4
    trainer.train()
    assert hits() == [True] * 4
