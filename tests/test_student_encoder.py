"""A student whose discriminator has an encoder of its own, from training to its folder, its scores and its merge."""

import json

import pytest
import torch
from encoders import save_encoder
from saved import QUESTIONS, TAUGHT, trainer_of_kind

from qcrd_trl import RationaleDiscriminator, RationaleScorer, RationaleStudent
from qcrd_trl.cli.main import main
from qcrd_trl.errors import ModelError


NEW = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer of an adapter whose discriminator reads texts, after three steps, and the folder of its student."""
    folder = tmp_path_factory.mktemp("encoder")
    scorer = RationaleScorer.from_encoder(save_encoder(folder / "bert"), hidden_size=8, seed=7)
    scorer.save_pretrained(folder / "pretrained")
    trainer = trainer_of_kind(
        folder,
        "adapter",
        max_steps=3,
        discriminator_model_name_or_path=str(folder / "pretrained"),
        discriminator_encoder_learning_rate=0.02,
    )
    trainer.train()
    trainer.save_model()
    return trainer, folder / "student"


def pairs_of_training(trainer):
    """Question, rationale and score of what the trainer evaluates on."""
    trainer._evaluating = True
    batch = next(iter(trainer.get_eval_dataloader(trainer.eval_dataset)))
    with torch.no_grad():
        trainer.model.eval()
        trainer.discriminator.eval()
        parts, rows, _ = trainer._rationale_task(trainer.model, batch)
    trainer._evaluating = False
    questions = [QUESTIONS[int(batch["question_index"][place])] for place in rows.question.tolist()]
    texts = [trainer.processing_class.decode(one[one != -100], skip_special_tokens=True) for one in rows.labels]
    return questions, texts, parts.scores.tolist()


def test_scores_are_those_of_training(trained):
    """The encoder's scores before training, or those of a head on the student's states, are between 0 and 1 too."""
    trainer, folder = trained
    questions, texts, scores = pairs_of_training(trainer)
    assert sorted(texts) == sorted(
        text for row in TAUGHT for text in row["positive_rationales"] + row["negative_rationales"]
    )
    student = RationaleStudent.from_pretrained(folder, task_kind="number")
    assert isinstance(student.discriminator, RationaleScorer)
    assert student.score(questions, texts, batch_size=5) == pytest.approx(scores, abs=1e-5)
    before = RationaleScorer.from_pretrained(folder.parent / "pretrained").score(questions, texts)
    assert before != pytest.approx(scores, abs=1e-3)
    explanations = student.explain(QUESTIONS, num_samples=2, **NEW)
    samples = [(q, s) for q, e in zip(QUESTIONS, explanations, strict=True) for s in e.samples if s.text]
    assert len(samples) > 4
    found = trainer.discriminator.score([q for q, _ in samples], [s.text for _, s in samples])
    assert [s.quality for _, s in samples] == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("place", ["", "discriminator"])
def test_score(trained, tmp_path, capsys, place):
    """With the student around it and alone."""
    trainer, folder = trained
    questions, texts, scores = pairs_of_training(trainer)
    rows = [{"prompt": q, "rationale": text} for q, text in zip(questions, texts, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["score", "--model", str(folder / place), "--pairs", str(tmp_path / "pairs.jsonl")]) == 0
    found = [json.loads(line)["quality"] for line in capsys.readouterr().out.splitlines()]
    assert found == pytest.approx(scores, abs=1e-5)


def test_merge_and_predict(trained, tmp_path, capsys):
    """A merged student that lost its discriminator, or has another one, answers as before."""
    trainer, folder = trained
    merged = tmp_path / "merged"
    assert main(["merge", "--model", str(folder), "--output_dir", str(merged)]) == 0
    questions, texts, scores = pairs_of_training(trainer)
    assert RationaleStudent.from_pretrained(merged).score(questions, texts) == pytest.approx(scores, abs=1e-5)
    (tmp_path / "questions.txt").write_text("\n".join(QUESTIONS))
    qualities = []
    capsys.readouterr()
    for model in (folder, merged):
        flags = ["--input", str(tmp_path / "questions.txt"), "--explain", "--max_new_tokens", "8"]
        assert main(["predict", "--model", str(model), *flags]) == 0
        qualities.append([json.loads(line)["quality"] for line in capsys.readouterr().out.splitlines()])
    assert len(qualities[0]) == 4
    assert None not in qualities[0]
    assert qualities[1] == pytest.approx(qualities[0], abs=1e-4)


def test_it_is_not_loaded_as_the_other_kind(trained):
    """The other kind would read the student's states with a head that was fitted to the encoder's."""
    with pytest.raises(ModelError, match="kind='encoder'"):
        RationaleDiscriminator.from_pretrained(trained[1])
