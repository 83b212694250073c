"""Generative mode on real titles with a real tokenizer, where the development data lies."""

import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.interactions import read_interactions, read_items
from qcrd_trl.recommendation.preparing import prepare
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import generative_rows, sample_users
from qcrd_trl.recommendation.tokens import tokenize_rows


@pytest.fixture(scope="module")
def data(shared_dir):
    folder = shared_dir / "ml-100k"
    folder = folder if folder.is_dir() else shared_dir / "data" / "ml-100k"
    if not folder.is_dir():
        pytest.skip(f"no MovieLens data at {folder}")
    return prepare(read_interactions(folder / "ml-100k.inter"), read_items(folder / "ml-100k.item"))


@pytest.fixture(scope="module")
def tokenizer():
    """That of SmolLM2-135M-Instruct, in the folder that QCRD_MODELS_DIR names."""
    kept = os.environ.get("QCRD_MODELS_DIR")
    if not kept:
        pytest.skip("QCRD_MODELS_DIR is not set: no tokenizer of a real model")
    folder = Path(kept) / "smollm2-135m-instruct"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return AutoTokenizer.from_pretrained(folder)


def test_rows_of_all_users(data):
    """Titles with commas, parentheses and accents, users with 737 events: what small data does not have."""
    train = generative_rows(data, "train")
    test = generative_rows(data, "test")
    assert len(train) == len(test) == 943
    for rows, end in ((train, -3), (test, -1)):
        for user, row in enumerate(rows):
            sequence = data.sequences[user]
            assert row["target"] == sequence[end]
            assert row["completion"] in row["candidate_titles"]
            assert row["completion"] in row["prompt"].split("comes next:\n")[1].split("\n")
            assert [data.titles[item] for item in sequence[:end][-20:]] == [
                piece.strip("\n") for piece in row["history"]
            ]
            assert set(row["candidates"]) & set(sequence.tolist()) == {row["target"]}


@pytest.mark.parametrize("chat", [False, True])
def test_tokens_of_a_sample(data, tokenizer, chat):
    """The template's own system message and its ends count too: the limit holds for what the model reads."""
    form = RecommendationPrompt(chat=chat, max_history=100)
    rows = generative_rows(data, "train", examples_per_user=2, users=sample_users(data, 20), form=form)
    tokens = tokenize_rows(rows, "generative", tokenizer, max_length=512)
    assert max(tokens["length"]) <= 512
    free = tokenize_rows(rows, "generative", tokenizer)
    assert max(free["length"]) > 512, "nothing had to be left out"
    for row, raw in zip(tokens, rows, strict=True):
        answer = [label for label in row["labels"] if label != -100]
        assert answer[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(answer[:-1]) == raw["completion"]
        text = tokenizer.decode(row["input_ids"])
        assert all(f"\n{title}\n" in text for title in raw["candidate_titles"])
        assert raw["history"][-1] in text
    batch = DataCollatorForC2KD(tokenizer.pad_token_id)([tokens[i] for i in range(4)])
    assert len(set(batch["keys"])) == 4
