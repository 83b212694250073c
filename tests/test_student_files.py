"""Where a student lies, on the disk or on the Hub, and its discriminator."""

import json
import shutil
import sys
import types
from typing import ClassVar

import pytest
import torch
from hub_server import Fault
from saved import QUESTIONS
from tiny import tiny_gpt2

from qcrd_trl import RationaleDiscriminator, RationaleStudent
from qcrd_trl.errors import ModelError
from qcrd_trl.hub import push_student
from qcrd_trl.student_files import discriminator_kind, load_discriminator, load_scorer, student_folder


NEW = {"max_new_tokens": 8}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def in_cache(cache, folder, name="me/student", revision="main"):
    """Puts a folder where `huggingface_hub` keeps what it has downloaded."""
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / revision).write_text(COMMIT)


@pytest.fixture
def offline(monkeypatch):
    """The Hub cannot be asked: what there is comes from the cache."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_repository(saved_student, tmp_path, offline):
    """By its name alone, with everything that a folder has: weights, tokenizer, format and discriminator."""
    in_cache(tmp_path / "cache", saved_student("full"))
    student = RationaleStudent.from_pretrained("me/student", cache_dir=tmp_path / "cache")
    here = RationaleStudent.from_pretrained(saved_student("full"))
    assert student.explain(QUESTIONS, **NEW) == here.explain(QUESTIONS, **NEW)
    assert student.explain(QUESTIONS[:1], **NEW)[0].quality is not None
    assert isinstance(load_discriminator("me/student", cache_dir=tmp_path / "cache"), RationaleDiscriminator)


def test_a_revision(saved_student, tmp_path, offline):
    """A tag is another student than the newest one."""
    in_cache(tmp_path / "cache", saved_student("full"), revision="v1")
    student = RationaleStudent.from_pretrained("me/student", revision="v1", cache_dir=tmp_path / "cache")
    assert student.predict(QUESTIONS[:1])[0].text == "1"
    with pytest.raises(ModelError, match="no repository of this name could be had"):
        RationaleStudent.from_pretrained("me/student", cache_dir=tmp_path / "cache")
    with pytest.raises(ModelError, match="at revision 'v2' could be had"):
        RationaleStudent.from_pretrained("me/student", revision="v2", cache_dir=tmp_path / "cache")


def test_what_is_downloaded(tmp_path, monkeypatch):
    """No pickles and no code, nor the snapshots, checkpoints and negatives of the run."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    asked = {}

    def download(name, **kwargs):
        asked.update(kwargs, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert student_folder("me/student", revision="v1", token="t") == tmp_path
    assert (asked["name"], asked["revision"], asked["token"]) == ("me/student", "v1", "t")
    wanted = [
        *("adapter_config.json", "adapter_model.safetensors", "config.json", "model-00001-of-00002.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "spiece.model", "chat_template.jinja", "merges.txt"),
        *("qcrd_format.json", "discriminator/config.json", "discriminator/model.safetensors"),
        *("discriminator/encoder/config.json",),
    ]
    left = [
        *("training_args.bin", "pytorch_model.bin", "modeling_mine.py", "README.md", "plots/loss.png"),
        *("checkpoint-10/model.safetensors", "negative_generators/iteration-0001/adapter_config.json"),
        *("negatives/iteration-0001/state.json", "discriminator/optimizer.pt"),
    ]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*wanted, *left], **patterns)) == wanted
    student_folder("me/student", trust_remote_code=True)
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(left, **patterns)) == ["modeling_mine.py"]


@pytest.mark.parametrize("name", ["./me/student", "/me/student", "me/my/student", "me student", "../student"])
def test_a_path_is_not_looked_for_on_the_hub(name, tmp_path, monkeypatch):
    """A folder's name typed wrong must not be sent anywhere."""
    import huggingface_hub

    (tmp_path / "here").mkdir()  # whatever lies around the folder that the tests are run from
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the Hub"))
    with pytest.raises(ModelError, match=r"There is no folder .*: name the folder"):
        student_folder(name)


def test_what_is_no_student(saved_student, tmp_path):
    """Each is told apart, before anything is loaded."""
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "empty", r"No student in .*: expected adapter_config\.json \(an adapter\) or config\.json"),
        (saved_student("full") / "discriminator", "holds a discriminator of kind 'student' and no student"),
        (saved_student("full") / "config.json", "is a file: name the folder"),
    ):
        with pytest.raises(ModelError, match=message):
            RationaleStudent.from_pretrained(path)
    with pytest.raises(ModelError, match="is a folder and has no revision 'v1'"):
        RationaleStudent.from_pretrained(saved_student("full"), revision="v1")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "discriminator/config.json").write_text("{"), r"config\.json in .* is damaged"),
        (
            lambda f: (f / "discriminator/model.safetensors").write_bytes(b"x" * 9),
            r"model\.safetensors in .* is damaged",
        ),
        (lambda f: (f / "discriminator/model.safetensors").unlink(), "No discriminator"),
        (lambda f: (f / "discriminator/config.json").write_text('{"kind": "oracle"}'), "kind='oracle'"),
        (lambda f: RationaleDiscriminator(8).save_pretrained(f / "discriminator"), "width 8, the student's have 16"),
        (lambda f: (f / "qcrd_format.json").write_text("[]"), r"qcrd_format\.json.* is damaged"),
        (lambda f: (f / "config.json").unlink(), r"No student in .*expected"),
        (lambda f: (f / "model.safetensors").unlink(), "No AutoModelForCausalLM could be loaded"),
    ],
    ids=["config", "weights", "no weights", "kind", "width", "format", "no config", "no model"],
)
def test_a_damaged_student(saved_student, tmp_path, damage, message):
    """A part that is left out in silence is a student without quality scores, or one asked in another form."""
    folder = shutil.copytree(saved_student("full"), tmp_path / "student")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        RationaleStudent.from_pretrained(folder)


def test_the_discriminator_of_a_folder(saved_student, tmp_path):
    """Named by the student's folder or by its own; a folder's student is not taken for it."""
    folder = saved_student("full")
    one, other = load_discriminator(folder), load_discriminator(folder / "discriminator")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert discriminator_kind(folder / "discriminator") == "student"
    assert discriminator_kind(folder) is None
    tiny_gpt2().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no discriminator: it was trained without one"):
        load_scorer(tmp_path)
    with pytest.raises(ModelError, match="There is no folder"):
        load_discriminator(tmp_path / "no")


class Scorer:
    """Stands for a discriminator with an encoder of its own."""

    asked: ClassVar[list] = []

    @classmethod
    def from_pretrained(cls, path):
        assert (path / "config.json").is_file()
        return cls()

    def score(self, prompts, rationales, batch_size):
        self.asked += list(zip(prompts, rationales, strict=True))
        return [1 / (1 + len(text)) for text in rationales]


@pytest.fixture
def with_encoder(saved_student, tmp_path, monkeypatch):
    """A student's folder whose discriminator has an encoder of its own."""
    module = types.ModuleType("qcrd_trl.rationale_scorer")
    module.RationaleScorer = Scorer
    monkeypatch.setitem(sys.modules, "qcrd_trl.rationale_scorer", module)
    monkeypatch.setattr(Scorer, "asked", [])
    folder = shutil.copytree(saved_student("full"), tmp_path / "student")
    (folder / "discriminator" / "config.json").write_text(json.dumps({"kind": "encoder"}))
    return folder


def test_an_encoder_of_its_own(with_encoder):
    """It reads texts, not the student's states: the question without prefix and the rationale."""
    student = RationaleStudent.from_pretrained(with_encoder)
    assert student.score(QUESTIONS[:2], ["a is b", " "]) == [pytest.approx(1 / 7), None]
    (explanation,) = student.explain(QUESTIONS[1:2], **NEW)
    assert explanation.quality == pytest.approx(1 / 10)
    assert Scorer.asked == [(QUESTIONS[0], "a is b"), (QUESTIONS[1], "1 + 1 = 2")]


@pytest.mark.parametrize(
    ("request_of", "status", "said"),
    [
        ("/resolve/.*safetensors", None, "Check the network, and load it again"),
        ("GET /api/models", None, "Check the network, and load it again"),
        ("GET /api/models", 401, "log in by `hf auth login`, or set HF_TOKEN"),
        ("/resolve/", 500, "could be had from the Hub"),
    ],
)
def test_a_hub_that_fails_a_download(saved_student, hub_server, request_of, status, said):
    """An error of the client's HTTP library says neither what was loaded nor what to do; the next try goes on."""
    push_student(saved_student("full"), "me/student")
    hub_server.faults.append(Fault(request_of, status))
    for kind in (RationaleStudent, RationaleDiscriminator):
        with pytest.raises(ModelError, match="no repository of this name could be had from the Hub") as caught:
            kind.from_pretrained("me/student")
        assert said in str(caught.value)
    hub_server.faults.clear()
    assert RationaleStudent.from_pretrained("me/student").discriminator is not None
