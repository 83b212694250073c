"""`qcrd c2kd` in generative mode: the history as titles, and the title that is written."""

import json

import pytest
from recommending import c2kd, prepare
from tiny import tiny_llama, word_tokenizer

from qcrd_trl.recommendation.prompt_form import RecommendationPrompt


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny language model with its tokenizer, of four layers."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama(num_hidden_layers=4).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def test_all_stages(data, base, tmp_path):
    """Prompts of another form at each stage would train the student on states of other texts."""
    mode = ["--task_mode", "generative", "--max_users", "5", "--max_length", "200"]
    model = ["--model_name_or_path", str(base)]
    teacher, filters, student = tmp_path / "teacher", tmp_path / "filters", tmp_path / "student"
    assert c2kd("teacher", data, teacher, *model, *mode, "--skip_test") == 0
    assert RecommendationPrompt.from_pretrained(teacher).max_history == 4
    size = json.loads((base / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    flags = ["--teacher", str(teacher), *mode]
    assert c2kd("filters", data, filters, *flags, "--student_size", str(size)) == 0
    flags += ["--layer_filters", str(filters), *model, "--max_new_tokens", "3"]
    assert c2kd("train", data, student, *flags, "--use_peft", "--lora_r", "2") == 0
    found = json.loads((student / "results.json").read_text(encoding="utf-8"))
    assert (found["task_mode"], found["ranking"]) == ("generative", "candidates")
    assert len(found["texts"]) == 5
    card = (student / "README.md").read_text(encoding="utf-8")
    assert "recommend_titles(" in card
    assert str(base) not in card


def test_items_alone_are_not_asked_by_titles(data, base, tmp_path, capsys):
    """Flags of the other mode would do nothing."""
    flags = ["--task_mode", "generative", "--method", "none", "--model_name_or_path", str(base), "--item_size", "4"]
    assert c2kd("train", data, tmp_path / "out", *flags, short=False) == 2
    assert "--item_size" in capsys.readouterr().err
