"""Pushes of a trainer to a Hub, by the real client, and what is loaded back from there."""

import json
import logging
from pathlib import Path

import pytest
import torch
import yaml
from hub_server import READER, TOKEN, Fault
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM
from saved import questions_of, trainer_of_kind
from transformers import AutoModelForSeq2SeqLM

from qcrd_trl import RationaleDiscriminator, RationaleStudent
from qcrd_trl.errors import HubError
from qcrd_trl.files import sha256


QUICK = {"max_steps": 1, "logging_steps": 1}


def trained(folder, kind="adapter", **overrides):
    trainer = trainer_of_kind(folder, kind, **{**QUICK, **overrides})
    trainer.train()
    return trainer


def checksums(folder):
    return {path.relative_to(folder).as_posix(): sha256(path) for path in folder.rglob("*") if path.is_file()}


def told(student, questions):
    return [
        (p.text, e.rationale, e.quality)
        for p, e in zip(student.predict(questions), student.explain(questions), strict=True)
    ]


@pytest.mark.parametrize("kind", ["adapter", "full_t5"])
def test_a_student_comes_back(tmp_path, hub_server, kind):
    """What is pushed must be all that a student is: one without its format or discriminator loads, and answers otherwise."""
    steps = {"adapter": 3, "full_t5": 60}[kind]  # it has learned to say something
    trainer = trained(tmp_path, kind, hub_model_id="me/student", report_plots=True, max_steps=steps)
    trainer.push_to_hub()
    sent = hub_server.files("me/student")
    weights = {
        "adapter": {"adapter_config.json", "adapter_model.safetensors"},
        "full_t5": {"model.safetensors", "config.json", "generation_config.json"},
    }[kind]
    pictures = {name for name in sent if name.startswith("plots/")}
    assert "plots/losses.png" in pictures
    assert set(sent) - pictures == weights | {
        *(
            ".gitattributes",
            "README.md",
            "qcrd_format.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "training_log.json",
        ),
        *("discriminator/config.json", "discriminator/model.safetensors"),
    }
    secret = [name for name, content in sent.items() if TOKEN.encode() in content]
    places = {name for name, content in sent.items() if str(tmp_path).encode() in content}
    assert (secret, places) == (
        [],
        {"adapter_config.json"} if kind == "adapter" else set(),
    )  # PEFT's: where the base lies
    assert hub_server.rejected == []

    questions = questions_of(kind)
    here = told(RationaleStudent.from_pretrained(tmp_path / "student"), questions)
    there = RationaleStudent.from_pretrained("me/student")
    assert told(there, questions) == here
    assert all(quality is not None for _, _, quality in here)
    plain = (AutoPeftModelForCausalLM if kind == "adapter" else AutoModelForSeq2SeqLM).from_pretrained("me/student")
    mine = there.model.state_dict()
    assert plain.state_dict().keys() == mine.keys()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in plain.state_dict().items())
    discriminator = RationaleDiscriminator.from_pretrained("me/student")
    trained_one = trainer.discriminator.state_dict()
    assert all(torch.equal(tensor, trained_one[name]) for name, tensor in discriminator.state_dict().items())


def test_the_discriminator_alone(tmp_path, hub_server):
    """A scorer of a few kB must not fetch the whole student, and may have a repository of its own."""
    trainer = trained(tmp_path, hub_model_id="me/student")
    trainer.push_to_hub()
    hub_server.requests.clear()
    RationaleDiscriminator.from_pretrained("me/student")
    fetched = {name.partition("/resolve/")[2].partition("/")[2] for name in hub_server.requests if "/resolve/" in name}
    assert fetched == {"discriminator/config.json", "discriminator/model.safetensors"}

    from huggingface_hub import HfApi

    HfApi().create_repo("me/scorer")
    HfApi().upload_folder(repo_id="me/scorer", folder_path=tmp_path / "student" / "discriminator")
    alone = RationaleDiscriminator.from_pretrained("me/scorer").state_dict()
    assert all(torch.equal(tensor, alone[name]) for name, tensor in trainer.discriminator.state_dict().items())


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_pushes_while_training(tmp_path, hub_server, strategy):
    """Whoever loads the repository of a run that goes on must get a whole student, not weights without a format."""
    trainer = trainer_of_kind(
        tmp_path, "adapter", max_steps=2, save_strategy="steps", save_steps=1, push_to_hub=True, hub_model_id="me/student",
        hub_strategy=strategy, hub_always_push=True, hub_token=TOKEN,
    )  # fmt: skip
    trainer.train()
    sent = set(hub_server.files("me/student"))
    whole = {
        "adapter_model.safetensors",
        "qcrd_format.json",
        "discriminator/model.safetensors",
        "tokenizer.json",
        "README.md",
    }
    folders = {"checkpoint": ["last-checkpoint"], "all_checkpoints": ["checkpoint-1", "checkpoint-2"]}.get(
        strategy, []
    )
    assert {name.split("/")[0] for name in sent if "checkpoint" in name} == set(folders)
    for folder in folders:
        resuming = {
            "optimizer.pt",
            "trainer_state.json",
            "scheduler.pt",
            "discriminator/optimizer.pt",
            "adapter_config.json",
        }
        assert {f"{folder}/{name}" for name in resuming} <= sent
        assert f"{folder}/README.md" not in sent
    assert (whole <= sent) == (strategy != "end")
    assert hub_server.rejected == []
    assert trainer.args.hub_token == TOKEN
    for file in tmp_path.rglob("training_args.bin"):
        assert TOKEN.encode() not in file.read_bytes()
    assert not any("training_args.bin" in name for name in sent)
    trainer.save_model()
    assert whole <= set(hub_server.files("me/student"))


REFUSALS = {
    401: "hf auth login",
    403: "Use a token with write permission",
    404: "Check the name",
    409: "wait for it and push again",
    413: "the largest of them",
    500: "fault of its own",
}


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A trained student that is pushed again and again."""
    return trained(tmp_path_factory.mktemp("pushed"))


@pytest.mark.parametrize(
    ("request_of", "status"),
    [("/commit/", status) for status in REFUSALS]
    + [
        ("preupload", 404),
        ("preupload", 500),
        ("PUT /lfs", 413),
        ("PUT /lfs", None),
        ("/commit/", None),
        ("preupload", None),
    ],
)
def test_a_refused_push(trained_once, hub_server, request_of, status):
    """A student that took days must survive its push, and the user must learn what to do, without the token being shown."""
    trainer, folder = trained_once, trained_once.args.output_dir
    trainer.hub_model_id = None
    trainer.save_model()
    before = checksums(Path(folder))
    hub_server.faults.append(Fault(request_of, status))
    with pytest.raises(HubError) as caught:
        trainer.push_to_hub(token=TOKEN)
    text = str(caught.value)
    assert "me/student" in text
    assert (f"The Hub answered {status}" if status else "Check the network") in text
    assert REFUSALS.get(status, "not sent twice") in text
    assert f"`qcrd push --model {folder} --repo_id me/student`" in text
    assert TOKEN not in text
    after = checksums(Path(folder))
    assert {name for name in before if before[name] != after.get(name)} <= {
        "README.md",
        "training_args.bin",
    }  # written anew
    assert set(hub_server.files("me/student")) == {".gitattributes"}
    hub_server.faults.clear()
    trainer.push_to_hub(token=TOKEN)
    assert "adapter_model.safetensors" in hub_server.files("me/student")


@pytest.mark.parametrize(("token", "status"), [("hf_" + "wrong" * 6, 401), (READER, 403)], ids=["unknown", "reader"])
def test_a_token_that_may_not_write(tmp_path, hub_server, token, status):
    """Known before training, not after it."""
    with pytest.raises(HubError, match=f"make or find the repository .*me/student.*answered {status}") as caught:
        trainer_of_kind(tmp_path, "adapter", push_to_hub=True, hub_model_id="me/student", hub_token=token)
    assert token not in str(caught.value)


def test_pushes_that_fail_while_training(tmp_path, hub_server, caplog):
    """Training goes on; what failed is told with the command that mends it, and the push in the end has everything."""
    hub_server.faults.append(Fault("/commit/", 500))
    trainer = trainer_of_kind(
        tmp_path, "adapter", max_steps=2, save_strategy="steps", save_steps=1, push_to_hub=True, hub_model_id="me/student",
        hub_strategy="every_save", hub_always_push=True,
    )  # fmt: skip
    with caplog.at_level(logging.ERROR, logger="qcrd_trl"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert "The Hub answered 500" in caplog.text
    assert "qcrd push --model" in caplog.text
    with pytest.raises(HubError):
        trainer.save_model()
    assert (tmp_path / "student" / "adapter_model.safetensors").is_file()
    hub_server.faults.clear()
    trainer.push_to_hub()
    assert "adapter_model.safetensors" in hub_server.files("me/student")


def test_the_card_wins_over_that_of_peft(tmp_path, hub_server, caplog):
    """PEFT's card names the path of the base, and the Hub refuses it for that."""
    trainer = trained(tmp_path)
    trainer.dataset_name = str(tmp_path)
    trainer.push_to_hub(dataset_name='svamp: "hard" 🧮', tags="math", license="apache-2.0")
    text = hub_server.files("me/student")["README.md"].decode()
    assert (tmp_path / "student" / "README.md").read_text(encoding="utf-8") == text
    data = yaml.safe_load(text.split("---\n")[1])
    assert {"qcrd", "trl", "distillation", "math", "lora"} <= set(data["tags"])
    assert "base_model" not in data
    assert "datasets" not in data
    assert data["license"] == "apache-2.0"
    assert str(tmp_path) not in text
    assert "🧮" in text
    assert ModelCard(text).data.library_name == "peft"
    assert "The base of this adapter is the local folder" in caplog.text
    trainer.save_model()
    assert "# student" in (tmp_path / "student" / "README.md").read_text(encoding="utf-8")
    json.loads((tmp_path / "student" / "adapter_config.json").read_text())
