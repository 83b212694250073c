"""Discriminators with an encoder of their own on the Hub: alone, and in the repository of a student."""

import pytest
import torch
from encoders import save_encoder
from huggingface_hub import HfApi
from saved import QUESTIONS, trainer_of_kind

from qcrd_trl import RationaleDiscriminator, RationaleScorer, RationaleStudent
from qcrd_trl.errors import ModelError


TEXTS = ["0 + 1 = 1", "b c d", "1 - 1 = 9 9", "e f"]


@pytest.fixture(scope="module", params=["bert", "t5"])
def scorer_folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    scorer = RationaleScorer.from_encoder(save_encoder(folder / "encoder", request.param), hidden_size=8, seed=7)
    scorer.save_pretrained(folder / "discriminator")
    return folder / "discriminator"


def fetched(hub_server):
    return {name.partition("/resolve/")[2].partition("/")[2] for name in hub_server.requests if "/resolve/" in name}


def test_a_scorer_of_its_own(scorer_folder, hub_server):
    """An encoder that stayed behind, or another one's tokenizer, would score at random; what else lies there is not fetched."""
    HfApi().create_repo("me/scorer")
    HfApi().upload_folder(repo_id="me/scorer", folder_path=scorer_folder)
    HfApi().upload_file(repo_id="me/scorer", path_or_fileobj=b"0", path_in_repo="runs/events")
    there = RationaleScorer.from_pretrained("me/scorer")
    here = RationaleScorer.from_pretrained(scorer_folder)
    assert there.score(QUESTIONS, TEXTS) == here.score(QUESTIONS, TEXTS)
    assert len(set(there.score(QUESTIONS, TEXTS))) == len(TEXTS)
    names = {path.relative_to(scorer_folder).as_posix() for path in scorer_folder.rglob("*") if path.is_file()}
    assert fetched(hub_server) == names
    with pytest.raises(ModelError, match=r"kind='encoder'\. One with an encoder.*RationaleScorer\.from_pretrained"):
        RationaleDiscriminator.from_pretrained("me/scorer")


def test_in_the_repository_of_a_student(tmp_path, scorer_folder, hub_server):
    """The student must come back with the discriminator that trained it, encoder and all, and score as it did at home."""
    trainer = trainer_of_kind(
        tmp_path,
        "adapter",
        hub_model_id="me/student",
        discriminator_model_name_or_path=str(scorer_folder),
        discriminator_encoder_learning_rate=1e-3,
    )
    trainer.train()
    trainer.push_to_hub()
    assert {"discriminator/encoder/model.safetensors", "discriminator/encoder/tokenizer.json"} <= set(
        hub_server.files("me/student")
    )
    student = RationaleStudent.from_pretrained("me/student")
    expected = trainer.discriminator.score(QUESTIONS, TEXTS)
    assert student.score(QUESTIONS, TEXTS) == pytest.approx(expected, abs=1e-6)
    assert expected != RationaleScorer.from_pretrained(scorer_folder).score(QUESTIONS, TEXTS)  # it was trained
    home = RationaleStudent.from_pretrained(tmp_path / "student")
    qualities = [explanation.quality for explanation in student.explain(QUESTIONS)]
    assert qualities == [explanation.quality for explanation in home.explain(QUESTIONS)]
    assert all(0 < quality < 1 for quality in qualities)

    hub_server.requests.clear()
    alone = RationaleScorer.from_pretrained("me/student", cache_dir=tmp_path / "empty")
    assert all(name.startswith("discriminator/") for name in fetched(hub_server))
    assert fetched(hub_server)
    weights = trainer.discriminator.state_dict()
    assert alone.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in alone.state_dict().items())
