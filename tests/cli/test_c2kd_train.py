"""`qcrd c2kd teacher | filters | train`: from prepared data to a student that recommends, and errors in one line."""

import json
import runpy
import sys

import pytest
from recommending import BEST, NUM_ITEMS, c2kd, llama_config, prepare
from running import largest_difference
from safetensors.torch import load_file

from qcrd_trl.cli.main import main
from qcrd_trl.errors import ModelError
from qcrd_trl.recommendation import load_recommender
from qcrd_trl.recommendation.folder import load_data
from qcrd_trl.recommendation.recommender import Recommender


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory):
    """Folder of a trained teacher."""
    folder = tmp_path_factory.mktemp("stage1") / "teacher"
    assert c2kd("teacher", data, folder, "--backbone_config", llama_config(8, 4), *BEST) == 0
    return folder


@pytest.fixture(scope="module")
def filters(data, teacher, tmp_path_factory):
    """Folder of layer filters, with the teacher cache beside it."""
    folder = tmp_path_factory.mktemp("stage2") / "filters"
    flags = ["--teacher", str(teacher), "--student_size", "4", "--teacher_cache", str(folder.parent / "cache")]
    assert c2kd("filters", data, folder, *flags, "--save_strategy", "no") == 0
    return folder


def results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_all_stages(data, teacher, filters, tmp_path):
    """Three commands whose folders do not fit together would each look fine."""
    student, cache = tmp_path / "student", str(filters.parent / "cache")
    flags = ["--backbone_config", llama_config(4, 2), "--layer_filters", str(filters), "--teacher_cache", cache]
    assert c2kd("train", data, student, *flags, *BEST) == 0
    found = results(student)
    assert (found["method"], found["split"], found["task_mode"]) == ("c2kd", "test", "item_head")
    assert found["history_masked"] is False
    assert len(found["ranks"]) == 12
    # The file that was written while training is what the saved student gives.
    output = tmp_path / "again.json"
    again = ["c2kd", "evaluate", "--dataset", str(data), "--model_name_or_path", str(student), "--output", str(output)]
    assert main([*again, "--max_history", "4"]) == 0
    assert json.loads(output.read_text(encoding="utf-8"))["ranks"] == found["ranks"]
    assert {path.name for path in (student / "plots").iterdir()} == {"losses.png", "router.png"}
    card = (student / "README.md").read_text(encoding="utf-8")
    # 5 of 7 events of a user are for training, of which a history of 4 and its target are read.
    assert "12 users, 30 items and 84 events, of which training reads 60" in card
    assert str(tmp_path) not in card
    assert str(data) not in card
    assert "NDCG@10" in card
    history = json.loads((student / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert {"loss/feature", "loss/logit", "router/layer_4"} <= {name for entry in history for name in entry}
    assert sum("eval_ndcg@10" in entry for entry in history) >= 2  # each epoch


def test_the_student_recommends(data, teacher, capsys):
    """Indices of another order would recommend other films, at the same scores."""
    recommender, prepared = Recommender.from_pretrained(teacher), load_data(data)
    (best,) = recommender.recommend([["3", "7"]], k=NUM_ITEMS)
    assert sorted(one.item_id for one in best) == sorted(prepared.item_ids)
    assert all(one.title == f"film {one.item_id}" for one in best)
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    card = (teacher / "README.md").read_text(encoding="utf-8")
    snippet = card.split("```python\n")[1].split("```")[0].replace("'teacher'", repr(str(teacher)))
    exec(compile(snippet, "card", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 10


def test_live_and_cached_teacher_train_alike(data, teacher, filters, tmp_path):
    """A cache of other rows or layers would train another student at a plausible loss."""
    flags = ["--backbone_config", llama_config(4, 2), "--layer_filters", str(filters), "--skip_test"]
    assert c2kd("train", data, tmp_path / "live", *flags, "--teacher", str(teacher)) == 0
    assert c2kd("train", data, tmp_path / "cached", *flags, "--teacher_cache", str(filters.parent / "cache")) == 0
    assert not (tmp_path / "live" / "results.json").exists()
    live, cached = weights(tmp_path / "live"), weights(tmp_path / "cached")
    assert live.keys() == cached.keys()
    assert max((live[name] - cached[name]).abs().max() for name in live) < 1e-5


@pytest.mark.parametrize("method", ["none", "feature_kd", "logit_kd", "blockwise"])
def test_baselines(data, teacher, method, tmp_path):
    """A baseline that is C2KD under another name would be beaten by nobody."""
    flags = ["--backbone_config", llama_config(4, 2), "--method", method]
    flags += [] if method == "none" else ["--teacher", str(teacher)]
    assert c2kd("train", data, tmp_path / "out", *flags) == 0
    assert results(tmp_path / "out")["method"] == method
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    logged = {name for entry in history for name in entry if name.startswith(("loss/", "router/"))}
    expected = {"none": {"loss/task"}, "logit_kd": {"loss/task", "loss/logit"}}
    expected |= {"feature_kd": {"loss/task", "loss/feature"}}
    expected |= {"blockwise": {"loss/task", "loss/feature", "loss/block_task"}}
    assert logged == expected[method]


def test_sasrec(data, tmp_path):
    """The classical reference must be SASRec, not a Llama by that name."""
    sizes = '{"hidden_size": 4, "num_hidden_layers": 1}'
    assert c2kd("train", data, tmp_path / "out", "--method", "sasrec", "--backbone_config", sizes) == 0
    assert results(tmp_path / "out")["method"] == "sasrec"
    model = load_recommender(tmp_path / "out")
    assert type(model).__name__ == "SASRecModel"
    assert (model.config.hidden_size, model.config.max_position_embeddings, model.config.num_items) == (4, 5, 30)


def test_resumed_run(data, tmp_path):
    """A run that begins anew under --resume, or goes on with other draws, ends with another student."""
    flags = ["--backbone_config", llama_config(4, 2), "--method", "none", "--save_strategy", "epoch"]
    assert c2kd("train", data, tmp_path / "whole", *flags) == 0
    stopped = tmp_path / "stopped"
    assert c2kd("train", data, stopped, *flags) == 0
    (last,) = [path for path in stopped.glob("checkpoint-*") if path.name == "checkpoint-6"]
    for path in (*last.iterdir(), last):
        path.unlink() if path.is_file() else path.rmdir()
    (stopped / "model.safetensors").unlink()
    assert c2kd("train", data, stopped, *flags, "--resume") == 0
    whole, resumed = weights(tmp_path / "whole"), weights(stopped)
    assert largest_difference(whole, resumed) == 0


def test_adapter_on_a_saved_teacher(data, teacher, tmp_path):
    """LoRA without the items' parts would leave a head of random weights."""
    flags = ["--model_name_or_path", str(teacher), "--method", "none", "--use_peft", "--lora_r", "2"]
    assert c2kd("train", data, tmp_path / "out", *flags) == 0
    assert (tmp_path / "out" / "adapter_config.json").is_file()
    assert len(Recommender.from_pretrained(tmp_path / "out").recommend([["3"]], k=2)[0]) == 2
    config = tmp_path / "out" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(teacher), str(tmp_path / "moved")))
    with pytest.raises(ModelError, match=r"the base .*moved.*base_model_name_or_path of adapter_config"):
        load_recommender(tmp_path / "out")


def test_as_a_module(data, tmp_path, monkeypatch):
    """`accelerate launch -m qcrd_trl.cli.c2kd_train` gets its flags from the process."""
    flags = ["--dataset", str(data), "--output_dir", str(tmp_path / "out"), "--method", "none", "--use_cpu"]
    flags += ["--backbone_config", llama_config(4, 2), "--max_steps", "1", "--report_to", "none", "--skip_test"]
    monkeypatch.setattr(sys, "argv", ["c2kd_train", *flags])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("qcrd_trl.cli.c2kd_train", run_name="__main__")
    assert ended.value.code == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


LLAMA = ["--backbone_config", llama_config(4, 2)]


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("train", ["--method", "none"], "neither was given"),
        ("train", ["--method", "none", *LLAMA, "--model_name_or_path", "x"], "both were given"),
        ("train", ["--method", "none", "--backbone_config", "missing.json"], "neither a JSON mapping nor a file"),
        ("train", ["--method", "none", "--backbone_config", '{"a": ['], "neither as JSON nor as YAML"),
        ("train", ["--method", "none", "--backbone_config", '{"model_type": "t5"}'], "decoder-only"),
        ("train", ["--method", "sasrec", "--model_name_or_path", "x"], "makes a model of its own"),
        ("train", ["--method", "sasrec", *LLAMA], "'qcrd_sasrec'"),
        ("train", ["--method", "sasrec", "--task_mode", "generative"], "item_head"),
        ("train", ["--method", "sasrec", "--teacher", "x"], "--method sasrec learns the task alone"),
        (
            "train",
            ["--method", "other", *LLAMA],
            "'other': expected one of c2kd, none, feature_kd, logit_kd, blockwise, sasrec",
        ),
        ("train", ["--method", "none", *LLAMA, *BEST[:-1], "ndcg@11"], "choose one of eval_loss, eval_hr@10"),
        ("train", [*LLAMA], "needs a teacher"),
        ("train", [*LLAMA, "--teacher_model_init_kwargs", "{dtype"], "was given '{dtype', which is not JSON"),
        ("train", ["--method", "none", *LLAMA, "--resume"], "no checkpoint"),
        ("train", ["--method", "none", *LLAMA, "--early_stopping_patience", "1"], "--eval_strategy"),
        ("train", ["--method", "none", *LLAMA, "--resume_from_checkpoint", "x"], "'x' is no checkpoint"),
        ("train", ["--method", "none", *LLAMA, "--max_users", "3"], "generative"),
        ("train", ["--method", "none", *LLAMA, "--item_init", "titles"], "no tokenizer"),
        ("train", ["--method", "none", *LLAMA, "--task_mode", "generative"], "no tokenizer"),
        ("teacher", ["--method", "c2kd", *LLAMA], "A teacher learns the task alone"),
        ("filters", ["--student_size", "4"], "no teacher"),
        ("filters", ["--teacher", "x", "--tokenizer", "y"], "--task_mode generative"),
        ("filters", ["--teacher", "x", "--push_to_hub"], "no model"),
    ],
)
def test_errors_in_one_line(data, command, flags, said, tmp_path, capsys):
    """What cannot work is told before hours of training, with the remedy."""
    capsys.readouterr()
    assert c2kd(command, data, tmp_path / "out", *flags, short=False) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert said in told


def test_data_that_is_not_there(tmp_path, capsys):
    """The remedy is the command that prepares data."""
    assert c2kd("train", tmp_path / "none", tmp_path / "out", "--method", "none", *LLAMA) == 2
    assert "qcrd c2kd prepare" in capsys.readouterr().err


def test_the_data_are_no_place_for_a_model(data, capsys):
    """A push would send the users with it."""
    before = sorted(data.iterdir())
    for command, flags in (("teacher", LLAMA), ("filters", ["--teacher", "x", "--student_size", "4"])):
        assert c2kd(command, data, data, *flags) == 2
        assert "output_dir and dataset are one folder" in capsys.readouterr().err
    assert sorted(data.iterdir()) == before
