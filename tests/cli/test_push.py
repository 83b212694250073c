"""`qcrd push`, and `qcrd train` that pushes: from the shell, where a Hub that fails must cost nothing but the push."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from hub_server import TOKEN, Fault, HubServer
from tiny import ragged_rows, tiny_llama, word_tokenizer

from qcrd_trl import RationaleStudent
from qcrd_trl.cli.main import main


def train(tmp_path, *flags):
    """Trains a tiny student by the command, and gives the exit status."""
    tiny_llama().save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    Dataset.from_list(ragged_rows(8)).to_parquet(tmp_path / "train.parquet")
    values = {
        "model_name_or_path": str(tmp_path / "base"), "dataset": str(tmp_path / "train.parquet"), "max_steps": 1,
        "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4, "save_strategy": "no", "report_to": "none",
        "discriminator_hidden_size": 8, "use_cpu": True, "negative_source": "minority", "logging_steps": 1,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return main(["train", "--config", str(tmp_path / "run.yaml"), *flags])


def test_a_push_that_fails_after_training_and_the_next(tmp_path, hub_server, capsys):
    """Training for nothing, or an exit status of 0 for a student that is not where it was to be."""
    out = tmp_path / "out"
    hub_server.faults.append(Fault("/commit/", 413))
    flags = [
        "--push_to_hub",
        "true",
        "--hub_model_id",
        "me/student",
        "--eval_fraction",
        "0.5",
        "--eval_strategy",
        "epoch",
    ]
    assert train(tmp_path, *flags, "--hub_token", TOKEN) == 2
    error = capsys.readouterr().err
    assert f"`qcrd push --model {out} --repo_id me/student`" in error
    assert "The Hub answered 413" in error
    assert TOKEN not in error
    names = {
        "model.safetensors",
        "README.md",
        "trainer_state.json",
        "train_results.json",
        "eval_results.json",
        "plots",
    }
    assert names <= {path.name for path in out.iterdir()}
    assert set(hub_server.files("me/student")) == {".gitattributes"}

    hub_server.faults.clear()
    assert main(["push", "--model", str(out), "--repo_id", "me/student", "--commit_message", "again"]) == 0
    assert f"Pushed the student to {hub_server.url}/me/student/commit/" in capsys.readouterr().out
    assert hub_server.messages("me/student") == ["again"]
    sent = hub_server.files("me/student")
    assert {"model.safetensors", "README.md", "discriminator/model.safetensors", "plots/losses.png"} <= set(sent)
    assert not {"training_args.bin", "trainer_state.json"} & set(sent)  # they name paths of this machine
    assert str(tmp_path) not in sent["README.md"].decode()
    assert hub_server.rejected == []
    assert RationaleStudent.from_pretrained("me/student").explain(["a + 1"])[0].quality is not None


def test_in_a_process_of_its_own(tmp_path, saved_student):
    """As users have it: HF_ENDPOINT and HF_TOKEN in the environment, nothing patched, and a student loaded back."""
    folder = saved_student("adapter")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    load = "from qcrd_trl import RationaleStudent; print(RationaleStudent.from_pretrained('me/student').predict(['a + 1'])[0])"
    with HubServer() as hub:
        env = {
            **os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip
        push = [
            sys.executable,
            "-m",
            "qcrd_trl",
            "push",
            "--model",
            str(folder),
            "--repo_id",
            "student",
            "--private",
            "true",
        ]
        done = subprocess.run(push, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert hub.repos["model", "me/student"].private
        card = hub.files("me/student")["README.md"].decode()
        for line in ('student = RationaleStudent.from_pretrained("me/student")', 'name = "me/student"'):
            assert f"\n{line}\n" in card  # the run was not told of a repository
        loaded = subprocess.run([sys.executable, "-c", load], env=env, capture_output=True, text=True, timeout=300)
    assert loaded.returncode == 0, loaded.stderr
    here = RationaleStudent.from_pretrained(folder).predict(["a + 1"])[0]
    assert loaded.stdout.strip() == str(here)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--model is missing"),
        (["--model", "nowhere"], "--repo_id is missing"),
        (["--model", "nowhere", "--repo_id", "me/x"], "There is no folder 'nowhere'"),
        (["--model", ".", "--repo_id", "me/x"], "No student in"),
        (["--model", ".", "--repo_id", "me/x", "--baselines", "dss"], "--baselines takes NAME=FILE, got 'dss'"),
        (["--model", ".", "--repo_id", "me/x", "--baselines", "dss=a.json"], "need the results of the student"),
        (["--model", "student", "--repo_id", "me/../x"], "name of a repository is USER/NAME"),
    ],
)
def test_what_cannot_be_pushed(tmp_path, monkeypatch, capsys, flags, said):
    """An empty repository, or half a card, under the user's name."""
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    monkeypatch.chdir(tmp_path)
    assert main(["push", *flags]) == 2
    assert said in capsys.readouterr().err


def test_offline(tmp_path, monkeypatch, capsys):
    """What a user who forgot the variable must be told is its name."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert main(["push", "--model", str(tmp_path), "--repo_id", "me/x"]) == 2
    assert "HF_HUB_OFFLINE forbids it" in capsys.readouterr().err
