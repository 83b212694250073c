"""The model card: its metadata are valid whatever things are called, and its text names nothing of this machine."""

import json
from pathlib import Path

import pytest
import yaml
from hub_server import card_problem
from huggingface_hub import ModelCard, ModelCardData

from qcrd_trl.card_accuracy import Accuracies, Measured, accuracies_of_files, accuracy_text, logged_accuracies
from qcrd_trl.errors import DataError
from qcrd_trl.evaluation.results import question_set
from qcrd_trl.model_card import CardFacts, add_accuracies, is_path, model_card, write_card


def accuracies(dataset="me/svamp"):
    return Accuracies(
        [Measured("this student", 10, dataset, {"label_accuracy": 0.5}, {"label_accuracy": (0.237, 0.763)})]
    )


def read(text):
    """The metadata of a card, as a plain parser of YAML has them."""
    assert card_problem(text, "model") is None
    data = yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n"))
    assert ModelCard(text).data.to_dict() == ModelCardData(**data).to_dict()
    return data


NAMES = [
    "plain", "a: b", "'single' \"double\"", "two\nlines\n---\nkey: value", "🧮 — naïve", "# hash", "- dash", "{x: [1, 2}", "null",
    "yes", "1.0", "&a *b !c", "%d @x `y`", "tab\there\r", "\u2028\x00\x85", "\ud800", "{{ title }}{% raw %}", "[link](x) <b>|x|",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_valid(name):
    """The Hub refuses a whole push for a card whose metadata it cannot read."""
    facts = CardFacts(
        name, "qcrd", base_model=name, datasets=[name], accuracies=accuracies(name), tags=[name], license=name, language=name,
        settings={"negative_source": name}, tasks="t", adapter_type="LORA", is_adapter=True,
    )  # fmt: skip
    text = str(model_card(facts))
    data = read(text)
    assert {"qcrd", "trl", "distillation", "lora"} <= set(data["tags"])
    [model] = data["model-index"]
    assert model["results"][0]["metrics"][0]["value"] == 0.5
    assert ("base_model" in data) == (name in ("plain", "null", "yes", "1.0"))
    assert text.count("\n# ") == 1
    assert "{{ title }}" in text or "{{" not in name
    text.encode("utf-8")


@pytest.mark.parametrize(
    "path", ["/home/me/base", "~/base", "./base", "../base", "C:\\base", "C:base", "data/sets/svamp", "a\\b"]
)
def test_paths_are_left_out(path):
    """The name of a user's machine and folders, published; or a link to somebody else's model of the same name."""
    text = str(model_card(CardFacts("student", "qcrd", base_model=path, datasets=[path])))
    assert path not in text
    assert not {"base_model", "datasets"} & set(read(text))


def test_a_folder_that_is_there_is_a_path(tmp_path, monkeypatch):
    """`models/base` may be a repository or a folder: it is what was loaded."""
    (tmp_path / "models" / "base").mkdir(parents=True)
    assert not is_path("models/base")
    monkeypatch.chdir(tmp_path)
    assert is_path("models/base")


def test_what_a_card_tells(tmp_path):
    """Each fact of the run, where a reader looks for it, and no picture that is not there."""
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "losses.png").touch()
    facts = CardFacts(
        "student", "dss", base_model="google-t5/t5-small", datasets=["me/svamp", "hard: questions"], num_questions=700,
        selection={"rows": {"in": 700, "with_positive": 630}, "samples": {"total": 3500}}, settings={"beta": 0.2, "seed": None},
        steps=1200, epochs=3.0, has_discriminator=True, is_encoder_decoder=True, tasks="Asked so.", qcrd_snippet="x = 1\n",
        plain_snippet="y = 2\n",
    )  # fmt: skip
    write_card(tmp_path, facts)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    data = read(text)
    assert data["base_model"] == "google-t5/t5-small"
    assert data["datasets"] == ["me/svamp"]
    assert data["library_name"] == "transformers"
    assert "model-index" not in data
    assert (
        "trained from [google-t5/t5-small](https://huggingface.co/google-t5/t5-small) by [distilling step-by-step]"
        in text
    )
    assert "[me/svamp](https://huggingface.co/datasets/me/svamp), `hard: questions`" in text
    assert "Trained on 700 questions, 1,200 steps (3 epochs)." in text
    assert (
        "Of 700 questions with 3,500 rationales sampled from the teacher, 630 have a consistent one (a yield of 90.0 %)."
        in text
    )
    assert "| `beta` | 0.2 |" in text
    assert "`seed`" not in text
    assert "](plots/losses.png)" in text
    assert "quality.png" not in text
    assert "```python\nx = 1\n```" in text
    assert "wang2025qcrd" in text
    assert "hsieh2023distilling" in text
    assert "Not measured." in text


def evaluation(path, outcomes, dataset="svamp.jsonl"):
    """A file of `qcrd evaluate` with a question an outcome."""
    questions = [
        {"id": f"q{i}", "label": "1", "predicted_text": "1", "predicted": "1" if right else "2", "label_correct": right,
         "rationale": None, "reached": None, "answer_correct": None, "rationale_finished": None, "samples": None}
        for i, right in enumerate(outcomes)
    ]  # fmt: skip
    content = {
        "format": 1, "model": "student", "label_accuracy": sum(outcomes) / len(outcomes), "answer_accuracy": None,
        "agreement": None, "intervals": {"label_accuracy": [0.1, 0.9]}, "counts": {"questions": len(outcomes)}, "seed": 0,
        "question_set": question_set((q["id"], q["label"]) for q in questions), "settings": {"dataset": dataset},
        "versions": {}, "questions": questions,
    }  # fmt: skip
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_accuracies_of_files(tmp_path):
    """Figures of another student in the student's place, or a difference with its sign turned."""
    own = evaluation(tmp_path / "own.json", [True, True, True, False], dataset="/home/me/svamp.jsonl")
    worse = evaluation(tmp_path / "dss.json", [True, False, False, False])
    write_card(tmp_path, CardFacts("student", "qcrd"))
    added = (tmp_path / "README.md").read_text(encoding="utf-8") + "\nMy own words.\n"
    (tmp_path / "README.md").write_text(added, encoding="utf-8")
    add_accuracies(tmp_path, accuracies_of_files(own, {"dss": worse}))
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| this student | 4 | 75.0 % (10.0 to 90.0) |" in text
    assert "| `dss` | 4 | 25.0 % (10.0 to 90.0) |" in text
    assert "Against `dss`, label: +50.0 points (95 % interval" in text
    assert "on `svamp.jsonl`" in text
    assert "/home/me" not in text
    assert text.endswith("\nMy own words.\n")
    [model] = read(text)["model-index"]
    [result] = model["results"]
    assert (model["name"], result["metrics"][0]["value"], result["dataset"]["name"]) == (
        "student",
        0.75,
        "svamp.jsonl",
    )
    add_accuracies(tmp_path, accuracies_of_files(worse))
    again = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "75.0 %" not in again
    assert read(again)["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.25
    assert again.count("<!-- accuracy: begin -->") == 1


def test_files_that_do_not_belong_together(tmp_path):
    """Accuracies on other questions beside each other are no comparison."""
    own = evaluation(tmp_path / "own.json", [True, False])
    other = evaluation(tmp_path / "other.json", [True, False, True])
    with pytest.raises(DataError, match="question"):
        accuracies_of_files(own, {"dss": other})
    with pytest.raises(DataError, match=r"Baselines \(dss\) need the results of the student"):
        accuracies_of_files(None, {"dss": other})
    with pytest.raises(DataError, match="no place for accuracies"):
        add_accuracies(tmp_path, accuracies())


def test_logged_accuracies():
    """The last evaluation is of the student that is saved; of 10 questions, 5 right: (0.237, 0.763) by Wilson's formula."""
    log = [
        {"step": 1, "eval_label_accuracy": 0.1, "eval_accuracy_questions": 10},
        {"step": 2, "eval_label_accuracy": 0.5, "eval_answer_accuracy": 0.0, "eval_accuracy_questions": 10},
        {"step": 2, "eval_hard_label_accuracy": 1.0, "eval_hard_accuracy_questions": 4},
        {"step": 3, "loss": 1.0},
    ]
    found = logged_accuracies(log)
    assert [(m.dataset, m.questions, m.values) for m in found.own] == [
        ("held-out questions", 10, {"label_accuracy": 0.5, "answer_accuracy": 0.0}),
        ("hard", 4, {"label_accuracy": 1.0}),
    ]
    low, high = found.own[0].intervals["label_accuracy"]
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert (
        "| this student | `held-out questions` | 10 | 50.0 % (23.7 to 76.3) | 0.0 % (0.0 to 27.8) |"
        in accuracy_text(found)
    )
    assert logged_accuracies([{"step": 1, "loss": 1.0}]).own == []


def test_the_template_is_installed():
    """A wheel without it fails at the end of training."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'qcrd_trl = ["templates/*.md"]' in text
