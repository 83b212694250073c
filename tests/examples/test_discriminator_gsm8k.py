"""The script that judges discriminators on labelled solutions: its splits, its intervals, and that it runs."""

import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import save_encoder
from tiny import byte_tokenizer, tiny_llama

from qcrd_trl import RationaleDiscriminator
from qcrd_trl.data.prompts import StudentFormat
from qcrd_trl.metrics import auc


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "discriminator_gsm8k"


@pytest.fixture
def run(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("features", "run"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("run")


def write(path, count=12):
    """Questions whose right solutions say `so`; every third has right ones alone, and question 0 wrong ones alone."""
    lines = []
    for i in range(count):
        texts = [(f"{word} {i % 10} so .", True) for word in "ab"] + [(f"c {i % 10} is .", False)] * (i % 3 > 0)
        if i == 0:
            texts = [("d is .", False), ("e is .", False)]
        solutions = [{"text": text, "is_correct": right, "model": "m"} for text, right in texts]
        lines.append(json.dumps({"id": i, "question": f"a + {i % 10}", "answer": "1", "solutions": solutions}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_splits(run, tmp_path):
    """A question on both sides of a split measures memory, and one that is judged twice counts twice."""
    solutions = run.Solutions.read(write(tmp_path / "s.jsonl"), None)
    folds = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    judged = []
    for fold, (learned, held_out) in zip(folds, run.splits(solutions, folds), strict=True):
        assert {solutions.question[i] for i in held_out} == set(fold)
        for right, wrong in learned:
            assert {solutions.question[i] for i in [*right, *wrong]} - set(fold)
            assert all(solutions.correct[i] for i in right)
            assert right
            assert wrong
            assert not any(solutions.correct[i] for i in wrong)
        assert len(learned) == sum(1 for n in range(12) if n not in fold and n % 3)
        judged += held_out
    assert sorted(judged) == list(range(len(solutions.texts)))


def test_figures(run, tmp_path):
    """An interval over solutions in place of questions is too narrow, as those of a question are alike."""
    solutions = run.Solutions.read(write(tmp_path / "s.jsonl"), None)
    folds = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    args = type("Args", (), {"resamples": 200, "seed": 0})
    right = run.judge([float(c) for c in solutions.correct], solutions, folds, args)
    assert right["auc"] == right["auc_within"] == 1
    assert right["auc_interval"] == [1, 1]
    rng = random.Random(0)
    scores = [rng.random() for _ in solutions.texts]
    found = run.judge(scores, solutions, folds, args)
    areas = []
    for fold in folds:
        places = [i for i, n in enumerate(solutions.question) if n in fold]
        areas.append(auc(*([scores[i] for i in places if solutions.correct[i] == side] for side in (True, False))))
    assert found["auc"] == pytest.approx(np.mean(areas))
    assert found["auc_interval"][0] < found["auc"] < found["auc_interval"][1]
    # Scores that differ by the question alone say nothing within one.
    by_question = run.judge([float(n) for n in solutions.question], solutions, folds, args)
    assert by_question["auc_within"] == 0.5


@pytest.mark.slow
def test_runs(run, tmp_path, capsys):
    """A figure of the README comes from here."""
    student = tmp_path / "student"
    tokenizer = byte_tokenizer()
    tiny_llama(vocab_size=len(tokenizer)).save_pretrained(student)
    tokenizer.save_pretrained(student)
    encoder = save_encoder(tmp_path / "encoder")
    argv = ["--solutions", write(tmp_path / "s.jsonl"), "--encoder", encoder, "--student", student, "--folds", 2]
    argv += ["--head_steps", 60, "--encoder_steps", 2, "--max_length", 64, "--resamples", 50, "--learning_rate", 0.01]
    argv += [
        "--ways",
        "length",
        "frozen",
        "trained",
        "student",
        "--cache",
        tmp_path / "cache",
        "--json",
        tmp_path / "out.json",
    ]
    run.main([str(part) for part in argv])
    printed = capsys.readouterr().out
    assert "12 questions, 32 solutions, 22 right; 8 questions have both kinds; 2 folds" in printed
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 4
    for name, row in rows.items():
        assert name in printed
        assert all(0 <= value <= 1 for key in ("auc", "auc_within") for value in [row[key], *row[f"{key}_interval"]])
    assert rows["encoder frozen, head trained"]["auc"] > 0.8  # the texts differ by a word
    assert len(list((tmp_path / "cache").iterdir())) == 2
    run.main([str(part) for part in argv])
    again = json.loads((tmp_path / "out.json").read_text())["rows"]
    for row in (*rows.values(), *again.values()):
        del row["seconds"]
    assert rows == again


def test_student_features_are_those_of_the_trainer(run, tmp_path):
    """States one position late, or of the prompt, would be judged in place of what the discriminator reads in training."""
    features = importlib.import_module("features")
    tokenizer = byte_tokenizer()
    model = tiny_llama(vocab_size=len(tokenizer)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = features.student_features(str(tmp_path), ["a + 1", "b"], ["is 2", "so it is"], 64, False)
    for prompt, text, row in zip(["a + 1", "b"], ["is 2", "so it is"], found, strict=True):
        form = StudentFormat()
        start = tokenizer(f"{form.explain_prefix} {prompt}{form.response_separator}")["input_ids"]
        ids = [*start, *tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            states = model.model(torch.tensor([ids])).last_hidden_state[0, len(start) - 1 : -1]
        pooled = RationaleDiscriminator(16).pool(states, torch.zeros(len(states), dtype=torch.long), 1)[0]
        torch.testing.assert_close(row, pooled, rtol=1e-5, atol=1e-5)
