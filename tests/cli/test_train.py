"""`qcrd train`: from a saved model and a data file to a saved student, and errors in one line."""

import json
import runpy
import sys

import pytest
import torch
import yaml
from datasets import Dataset
from peft import PeftModel
from running import largest_difference, weights
from safetensors.torch import load_file
from tiny import ids, ragged_rows, tiny_llama, tiny_t5, word_tokenizer
from transformers import AutoModelForCausalLM

from qcrd_trl import QCRDTrainer, RationaleDiscriminator, evaluation_callback
from qcrd_trl.cli.main import main
from qcrd_trl.evaluation.outcome import Written
from qcrd_trl.models import load_model


@pytest.fixture
def base(tmp_path):
    """Folder of a tiny student with its tokenizer."""
    tiny_llama().save_pretrained(tmp_path / "base")
    word_tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def data(tmp_path):
    """A training set as Parquet."""
    path = tmp_path / "train.parquet"
    Dataset.from_list(ragged_rows(12)).to_parquet(path)
    return path


def settings(tmp_path, base, data, **more):
    """A YAML file of a short run."""
    values = {
        "model_name_or_path": str(base),
        "dataset": str(data),
        "output_dir": str(tmp_path / "out"),
        "preset": "qcrd",
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "report_plots": False,
        "discriminator_hidden_size": 8,
        "use_cpu": True,
        **more,
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return ["train", "--config", str(path)]


def test_trains_and_saves(tmp_path, base, data, capsys):
    """The command's output is what users keep: the student, its format, its discriminator, its numbers."""
    out = tmp_path / "out"
    assert main(settings(tmp_path, base, data)) == 0
    assert f"Saved the student to {out}" in capsys.readouterr().out
    trained = AutoModelForCausalLM.from_pretrained(out)
    assert largest_difference(weights(trained), weights(tiny_llama())) > 1e-3
    assert RationaleDiscriminator.from_pretrained(out).hidden_size == 8
    assert json.loads((out / "qcrd_format.json").read_text(encoding="utf-8"))["explain_prefix"] == "<Explain>"
    assert json.loads((out / "train_results.json").read_text(encoding="utf-8"))["train_loss"] > 0
    history = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3]
    parts = {"loss/label", "loss/positive", "loss/negative", "loss/discriminator", "quality/positive"}
    assert parts <= next(entry for entry in history if "loss" in entry).keys()


def test_flags_override_the_file(tmp_path, base, data):
    """A sweep changes one flag of a file: the file must not win, and what is not named must stay."""
    argv = settings(tmp_path, base, data, preset="dss", alpha_1=0.25)
    out = tmp_path / "other"
    assert main([*argv, "--output_dir", str(out), "--max_steps", "2", "--alpha_2", "0.75"]) == 0
    assert not (tmp_path / "out").exists()
    state = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == 2
    first = state["log_history"][0]
    assert first["loss"] == pytest.approx(0.25 * first["loss/label"] + 0.75 * first["loss/positive"], abs=1e-5)
    assert not (out / "discriminator").exists()


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_adapter(tmp_path, base, data, family):
    """PEFT wraps an encoder-decoder in a class of its own, and the flag's default is that of decoder-only models."""
    if family == "t5":
        tiny_t5().save_pretrained(base)
        word_tokenizer(adds_eos=True).save_pretrained(base)
    argv = settings(tmp_path, base, data, use_peft=True, lora_r=4, lora_target_modules="all-linear")
    assert main(argv) == 0
    out = tmp_path / "out"
    student = load_model(out)
    assert isinstance(student, PeftModel)
    task = {"llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}[family]
    assert json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))["task_type"] == task
    stored = load_file(out / "adapter_model.safetensors")
    assert any("lora_B" in name for name in stored)
    assert all(value.any() for name, value in stored.items() if "lora_B" in name)


def test_precision_of_the_weights(tmp_path, base, data):
    """The flag is TRL's; its default must not train a student in the precision it happens to be stored in."""
    tiny_llama().to(torch.bfloat16).save_pretrained(base)
    assert main(settings(tmp_path, base, data, max_steps=1)) == 0
    assert load_model(tmp_path / "out", dtype="auto").dtype == torch.float32
    assert main([*settings(tmp_path, base, data, max_steps=1), "--dtype", "bfloat16"]) == 0
    assert load_model(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_a_held_out_share_is_measured(tmp_path, base, data):
    """Questions that are trained on as well would measure memory."""
    argv = settings(tmp_path, base, data, eval_fraction=0.25, eval_strategy="steps", eval_steps=1)
    assert main(argv) == 0
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text(encoding="utf-8"))
    assert results["eval_loss"] > 0
    assert results["eval_loss/label"] > 0
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert len([entry for entry in history if "eval_loss" in entry]) >= 3


def test_accuracies_of_held_out_questions(tmp_path, base, data):
    """The flags of the configuration reach the callback, and the best checkpoint is that of the best accuracy."""
    flags = {"eval_accuracy": True, "task_kind": "number", "eval_max_new_tokens": 5, "eval_max_questions": 2}
    best = {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}
    shape = {"eval_fraction": 0.25, "eval_strategy": "steps", "eval_steps": 1, "preset": "dss_all"}
    argv = settings(tmp_path, base, data, **flags, **best, **shape, metric_for_best_model="answer_accuracy")
    assert main(argv) == 0
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text(encoding="utf-8"))
    measured = [entry["eval_answer_accuracy"] for entry in state["log_history"] if "eval_answer_accuracy" in entry]
    assert len(measured) == 3
    assert state["best_metric"] == max(measured)
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text(encoding="utf-8"))
    assert results["eval_accuracy_questions"] == 2
    assert results["eval_answer_accuracy"] == state["best_metric"]  # of the best model, which was put back


def test_resume(tmp_path, base, data):
    """Stopped after two steps and called again, the run ends as if it had not been stopped."""
    arguments = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
    assert main(settings(tmp_path, base, data, **arguments)) == 0
    whole = weights(load_model(tmp_path / "out"))
    out = tmp_path / "stopped"
    argv = [*settings(tmp_path, base, data, **arguments), "--output_dir", str(out)]
    assert main([*argv, "--max_steps", "2"]) == 0
    assert sorted(p.name for p in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert largest_difference(weights(load_model(out)), whole) > 1e-4
    assert main([*argv, "--resume"]) == 0
    state = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == [1, 2, 3]
    assert largest_difference(weights(load_model(out)), whole) == 0
    discriminators = [RationaleDiscriminator.from_pretrained(folder) for folder in (out, tmp_path / "out")]
    assert largest_difference(*map(weights, discriminators)) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume"], "--resume: there is no checkpoint in"),
        (["--model_name_or_path", "./no/such/model"], "No model could be loaded from './no/such/model'"),
        (["--dataset", "./no/such/data.jsonl"], "./no/such/data.jsonl"),
        (["--reduction", "median"], "Unknown reduction 'median'"),
        (["--preset", "best"], "Unknown preset 'best'"),
        (["--alpha_1", "nan"], "alpha_1 must be a finite number"),
        (["--eval_strategy", "steps"], "needs --eval_dataset or --eval_fraction"),
        (["--eval_accuracy", "--task_kind", "number"], "--eval_accuracy needs --eval_dataset or --eval_fraction"),
        (["--eval_accuracy", "--eval_fraction", "0.5"], "eval_accuracy=True needs `task_kind`"),
        (["--eval_fraction", "0.01"], "--eval_fraction must leave questions on both sides"),
        (["--eval_fraction", "0.5", "--eval_dataset", "x.jsonl"], "exclude each other"),
        (["--max_length", "3"], "Row 0: column 'prompt'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_ends_in_one_line(tmp_path, base, data, capfd, flags, message):
    """A traceback of a hundred lines hides the one flag that is wrong; and no time was to be spent before."""
    assert main([*settings(tmp_path, base, data), *flags]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("qcrd train: error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--alpha_4", "1"], "unrecognized arguments: --alpha_4"),
        (["--max_steps", "many"], "invalid int value: 'many'"),
        (["--dtype", "float33"], "invalid choice: 'float33'"),
    ],
    ids=["unknown", "type", "choice"],
)
def test_flags_that_do_not_exist(tmp_path, base, data, capsys, flags, message):
    """A misspelt flag that is ignored trains another recipe than the one that was asked for."""
    with pytest.raises(SystemExit) as ended:
        main([*settings(tmp_path, base, data), *flags])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    # Building the fixtures shows progress bars; the usage of 200 flags would hide what is wrong with one.
    assert not any("[--" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preset: qcrd\nalpha_9: 1\n", "Unknown key 'alpha_9'"),
        ("preset: [qcrd\n", "is not valid YAML"),
        ("max_steps: many\n", "max_steps"),
    ],
    ids=["key", "syntax", "value"],
)
def test_a_file_that_cannot_work(tmp_path, capsys, text, message):
    """A key that is ignored is a setting that was not made."""
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        status = main(["train", "--config", str(path), "--dataset", "x", "--output_dir", str(tmp_path / "out")])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_model_is_needed(tmp_path, data, capsys):
    """The flag belongs to TRL, where it is optional."""
    assert main(["train", "--dataset", str(data), "--output_dir", str(tmp_path), "--use_cpu"]) == 2
    assert "--model_name_or_path is missing" in capsys.readouterr().err


def test_as_a_module_for_launchers(tmp_path, base, data, monkeypatch):
    """`accelerate launch -m qcrd_trl.cli.train` and torchrun start the file, not the command."""
    monkeypatch.setattr(sys, "argv", ["train.py", *settings(tmp_path, base, data, max_steps=1)[1:]])
    monkeypatch.delitem(sys.modules, "qcrd_trl.cli.train", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("qcrd_trl.cli.train", run_name="__main__")
    assert ended.value.code == 0
    assert load_model(tmp_path / "out")(torch.tensor([ids("a")])).logits.isfinite().all()


def asking(**more):
    """A run that asks its questions at each step, stops early and keeps the best student."""
    each = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"metric_for_best_model": "eval_answer_accuracy", "load_best_model_at_end": True}
    asks = {"eval_accuracy": True, "task_kind": "number", "eval_max_new_tokens": 4, "eval_label_max_new_tokens": 4}
    return {
        **each,
        **best,
        **asks,
        "early_stopping_patience": 2,
        "lr_scheduler_type": "constant",
        "max_steps": 6,
        **more,
    }


def scripted(monkeypatch, rights):
    """Makes the student answer so many of its questions rightly at each evaluation, in turn."""

    def ask(model, tokenizer, questions, settings, form, share, progress):
        right = rights.pop(0)
        texts = [[Written(one.label if i < right else "none", True)] for i, one in enumerate(questions)]
        return {"label": texts, "rationale": [list(written) for written in texts]}

    monkeypatch.setattr(evaluation_callback, "ask", ask)


def measured(folder):
    """Step and answer accuracy of each evaluation, as the run's report has them."""
    log = json.loads((folder / "out" / "training_log.json").read_text(encoding="utf-8"))
    found = [entry for entry in log["log_history"] if "eval_loss" in entry]
    assert all(entry["eval_accuracy_questions"] == 4 for entry in found)  # else there is no interval
    return [(entry["step"], round(4 * entry["eval_answer_accuracy"])) for entry in found]


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "resumed"])
def test_early_stopping_and_the_best_student(tmp_path, base, monkeypatch, killed):
    """A resumed run that counted anew would go on; the best student's accuracy, told last, is not that of the last step."""
    rows = [{"prompt": f"a + {i}", "label": str(i), "positive_rationales": [f"a = {i}"]} for i in range(4)]
    Dataset.from_list(rows).to_json(tmp_path / "rows.jsonl")
    rights = [1, 3, 2, 2, 3]
    scripted(monkeypatch, rights)
    more = {"eval_dataset": str(tmp_path / "rows.jsonl"), "report_plots": True, "negative_source": "minority"}
    argv = settings(tmp_path, base, tmp_path / "rows.jsonl", **asking(**more))
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(QCRDTrainer, "_save_checkpoint", stopping(QCRDTrainer._save_checkpoint, 3))
            with pytest.raises(Killed):
                main(argv)
        argv += ["--resume"]
    assert main(argv) == 0
    assert rights == []
    assert measured(tmp_path) == [
        (1, 1),
        (2, 3),
        (3, 2),
        (4, 2),
        (2, 3),
    ]  # 4 is two after the best; then the best again
    kept = weights(load_model(tmp_path / "out"))
    assert largest_difference(kept, weights(load_model(tmp_path / "out" / "checkpoint-2"))) == 0
    assert largest_difference(kept, weights(load_model(tmp_path / "out" / "checkpoint-4"))) > 0
    assert (tmp_path / "out" / "plots" / "accuracy.png").is_file()


class Killed(BaseException):
    """No error that the command could make a line of."""


def stopping(save, step):
    """Ends a run as a kill would, behind the checkpoint of a step."""

    def saved(trainer, *args, **kwargs):
        save(trainer, *args, **kwargs)
        if trainer.state.global_step == step:
            raise Killed

    return saved


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"early_stopping_patience": 0}, "--early_stopping_patience must be at least 1, got 0"),
        (
            {"eval_strategy": "no", "load_best_model_at_end": False},
            "--early_stopping_patience needs evaluations, saves and a metric",
        ),
        (
            {"metric_for_best_model": None, "load_best_model_at_end": False},
            "--early_stopping_patience needs evaluations, saves and a metric",
        ),
        ({"alpha_2": 0.0, "preset": "label_only"}, "metric_for_best_model='eval_answer_accuracy' is never measured"),
    ],
    ids=["patience", "no evaluation", "no metric", "not taught"],
)
def test_early_stopping_that_cannot_work(tmp_path, base, data, capsys, more, message):
    """Found at the end of the first epoch, it has cost the first epoch; never found, all of them."""
    assert main(settings(tmp_path, base, data, **asking(eval_fraction=0.25, **more))) == 2
    assert message in capsys.readouterr().err


def test_a_run_reports_its_training_set(tmp_path, base):
    """Votes and agreement are in the folder that is trained on: who looks at the run later may not have it."""
    selected = tmp_path / "selected"
    selected.mkdir()
    Dataset.from_list(ragged_rows(12)).to_parquet(selected / "train.parquet")
    report = {
        "rows": {"in": 14, "out": 12, "with_positive": 8, "yield": 0.57},
        "samples": {"total": 70},
        "agreement": {"mean_majority_share_of_votes": 0.75},
        "gold": {"majority_equals_gold": 0.5, "share_of_samples": 0.5},
        "positives_per_question": {"0": 4, "1": 4, "2": 4},
        "negatives_per_question": {"0": 3, "1": 3, "2": 3, "3": 3},
    }
    (selected / "report.json").write_text(json.dumps({**report, "settings": {"input": str(tmp_path)}}))
    assert main(settings(tmp_path, base, selected, report_plots=True, max_steps=1, eval_fraction=0.25)) == 0
    log = json.loads((tmp_path / "out" / "training_log.json").read_text(encoding="utf-8"))
    assert log["selection"]["report"] == report
    # m of m + k: 0/1, 1/3, 2/5, 0/0, 1/2, 2/4, 0/3, 1/1, 2/3, 0/2, 1/4, 2/2
    assert log["selection"]["shares"] == [3, 0, 1, 1, 1, 2, 1, 0, 0, 2]
    assert any("eval_loss" in entry for entry in log["log_history"])  # after training, as the command does it
    pictures = sorted(path.name for path in (tmp_path / "out" / "plots").iterdir())
    assert pictures == ["losses.png", "quality.png", "selection.png"]
