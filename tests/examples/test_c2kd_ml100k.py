"""The comparison on ml-100k: its plan, what is finished and what is made anew, and its tables."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from trl import ModelConfig

from qcrd_trl.cli.c2kd_configs import StudentConfig, TeacherConfig
from qcrd_trl.cli.c2kd_filters import FilterArguments
from qcrd_trl.cli.c2kd_run import RunArguments
from qcrd_trl.cli.c2kd_train import StudentArguments
from qcrd_trl.cli.common import CommandParser
from qcrd_trl.trainer.filter_config import LayerFilterConfig


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "c2kd_ml100k"


@pytest.fixture
def example(monkeypatch):
    """The modules of the example by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("plan", "parts", "table", "run", "probe", "variants")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def flag(part, name):
    return part.argv[part.argv.index(name) + 1]


def test_students_differ_in_their_method_alone(example):
    """Another number of steps, batch size or seed for one method would decide the comparison."""
    plan = example["plan"]
    parts = {part.name: part for part in plan.plan("inter", "item", plan.Settings(), [0, 1])}
    assert len(parts) == 2 + 2 * (1 + 1 + 6)
    for seed in (0, 1):
        students = [parts[f"{method}-{seed}"] for method in plan.METHODS]
        for name in (
            "--num_train_epochs",
            "--per_device_train_batch_size",
            "--max_history",
            "--train_windows",
            "--seed",
        ):
            assert len({flag(part, name) for part in students}) == 1
        for name in ("--backbone_config", "--learning_rate"):  # SASRec is another model
            assert len({flag(part, name) for part in students if part.name != f"sasrec-{seed}"}) == 1
        for method in ("feature_kd", "logit_kd", "blockwise", "c2kd"):
            # its own seed's teacher
            assert parts[f"{method}-{seed}"].needs == ("data", f"filters-{seed}")
            assert flag(parts[f"{method}-{seed}"], "--teacher_cache").endswith(f"filters-{seed}/teacher_cache")
        assert parts[f"filters-{seed}"].needs == (f"teacher-{seed}",)
        assert flag(parts[f"teacher-{seed}"], "--per_device_train_batch_size") == "32"


def test_students_of_another_size(example):
    """The filters must give states of that width, and the teacher and SASRec must stay what they were."""
    plan = example["plan"]
    settings = plan.with_student(plan.Settings(), 16, 1)
    assert plan.with_student(plan.Settings()) == plan.Settings()
    before = {part.name: part for part in plan.plan("inter", "item", plan.Settings(), [0])}
    parts = {part.name: part for part in plan.plan("inter", "item", settings, [0])}
    student = json.loads(flag(parts["c2kd-0"], "--backbone_config"))
    assert (student["hidden_size"], student["num_hidden_layers"], student["intermediate_size"]) == (16, 1, 40)
    assert flag(parts["filters-0"], "--student_size") == "16"
    same = {name for name in parts if parts[name] == before[name]}
    assert same == {"data", "popularity", "teacher-0", "sasrec-0"}


def test_parts_stand_after_what_they_need(example):
    plan = example["plan"]
    seen = set()
    for part in plan.plan("inter", "item", plan.quick_settings(), [0, 1, 2]):
        assert set(part.needs) <= seen
        seen.add(part.name)


def test_a_key_changes_with_what_is_needed(example):
    """Students of an old teacher would else be counted as those of the new one."""
    plan = example["plan"]

    def keys(settings):
        parts = {part.name: part for part in plan.plan("inter", "item", settings, [0])}
        return {name: plan.key_of(part, parts) for name, part in parts.items()}

    before, after = keys(plan.Settings()), keys(replace(plan.Settings(), teacher_epochs=3))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"teacher-0", "filters-0", "feature_kd-0", "logit_kd-0", "blockwise-0", "c2kd-0"}


@pytest.fixture
def counted(example, monkeypatch, tmp_path):
    """A plan of two parts whose command notes that it ran, and whether it resumed."""
    plan, parts = example["plan"], example["parts"]
    script = tmp_path / "note.py"
    script.write_text(
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "open(folder.parent / 'runs.txt', 'a').write(folder.name + ' ' * ('--resume' in sys.argv) + '\\n')\n"
        "(folder / 'checkpoint-1').mkdir(exist_ok=True)\n"
        "sys.exit(0 if (folder.parent / 'works').exists() else 3)\n"
    )
    popen = parts.subprocess.Popen
    monkeypatch.setattr(
        parts.subprocess,
        "Popen",
        lambda command, **kwargs: popen([command[0], str(script), *command[3:]], **kwargs),
    )
    work = tmp_path / "work"
    work.mkdir()

    def run(setting="1"):
        made = [plan.Part("a", ("{work}/a", setting), trains=True), plan.Part("b", ("{work}/b",), ("a",), trains=True)]
        parts.run_parts(made, work, jobs=2)

    run.work, run.names = work, lambda: (work / "runs.txt").read_text().splitlines()
    return run


def test_finished_parts_are_left_out(counted):
    """A comparison that is started again after a crash must not begin anew, nor keep what has other settings."""
    (counted.work / "works").touch()
    counted()
    assert counted.names() == ["a", "b"]
    assert not list(counted.work.glob("*/checkpoint-*"))
    counted()
    assert counted.names() == ["a", "b"]
    counted("2")
    assert counted.names() == ["a", "b", "a", "b"]


def test_a_part_that_fails_is_resumed(counted, capsys):
    """What depends on a failed part must not run, and its own work so far is not lost."""
    with pytest.raises(SystemExit, match="a failed"):
        counted()
    assert counted.names() == ["a"]
    assert "exit status 3" in capsys.readouterr().out
    (counted.work / "works").touch()
    counted()
    assert counted.names() == ["a", "a ", "b"]


def write_run(work, name, ranks, method, best=None):
    """A finished part with results of the given ranks."""
    from qcrd_trl.recommendation.outcome import RecommendationResult
    from qcrd_trl.recommendation.results import results_of, write_results

    ranks = np.array(ranks)
    common = {"task_mode": "item_head", "split": "test", "ranking": "full", "history_masked": False}
    sets = {"user_set": "u", "item_set": "i"}
    counts = {"users": len(ranks), "items": 9, "not_finite": 0}
    result = RecommendationResult(**common, **sets, ranks=ranks, ks=(1, 10), counts=counts)
    write_results(work / name / "results.json", results_of(result, name, method))
    (work / name / "finished.json").write_text(json.dumps({"key": "", "wall_s": 20.0, "cpu_s": 10.0}))
    if best is not None:
        log = [{"step": best, "epoch": best / 5, "loss": 1.0}, {"step": best, "epoch": best / 5, "eval_ndcg@10": 0.1}]
        (work / name / "trainer_state.json").write_text(json.dumps({"best_global_step": best, "log_history": log}))
        save_file({"weight": np.zeros((3, 4), np.float32)}, work / name / "model.safetensors")


def test_tables(example, tmp_path):
    """Means over seeds, and differences user by user; a sign that is turned would make the worse model the better."""
    for name in ("popularity", *(f"{one}-{seed}" for one in ("teacher", "none", "c2kd") for seed in (0, 1))):
        (tmp_path / name).mkdir()
    for seed in (0, 1):
        (tmp_path / f"filters-{seed}").mkdir()
        (tmp_path / f"filters-{seed}" / "finished.json").write_text('{"key": "", "wall_s": 3, "cpu_s": 3}')
    write_run(tmp_path, "popularity", [20, 20, 20, 20], "popularity")
    for seed, ranks in ((0, [1, 20, 20, 20]), (1, [1, 1, 20, 20])):
        write_run(tmp_path, f"none-{seed}", ranks, "none", best=10)
        write_run(tmp_path, f"teacher-{seed}", [1, 1, 1, 1], "none", best=5)
        write_run(tmp_path, f"c2kd-{seed}", [1, 1, 1, 20], "c2kd", best=15)
    found = example["table"].outcome(tmp_path, [0, 1], ["none", "c2kd"])
    alone, student = found["models"]["none"], found["models"]["c2kd"]
    assert alone["metrics"]["hr@10"] == pytest.approx(0.375)
    assert alone["by_seed"]["hr@10"] == [0.25, 0.5]
    assert alone["sd"]["hr@10"] == pytest.approx(0.125 * 2**0.5)
    assert alone["differences"] == {}
    assert student["differences"]["hr@10"]["difference"] == pytest.approx(0.375)
    assert (student["weights"], student["best_epochs"], student["cpu_s"]) == (12, [3.0, 3.0], [10.0, 10.0])
    text = example["table"].markdown(found)
    assert "| student alone | 12 | 0.3750 ± 0.1768 [" in text
    assert "| C2KD | +0.3750 [" in text
    assert "| popularity |  | 0.0000 [0.0000, 0.0000]" in text
    assert "took 1.3 minutes of CPU, of which 3 s a seed" in text  # 7 parts of 10 s, and 2 of 3 s


def test_run_checks_its_arguments(example, capsys):
    for more, said in (
        (["--jobs", "0"], "--jobs"),
        (["--methods", "c2kd"], "--methods must have none"),
        (["--student_width", "18"], "--student_width must be a multiple of 4, got 18"),
        (["--student_layers", "0"], "--student_layers must be a multiple of 1, got 0"),
    ):
        with pytest.raises(SystemExit):
            example["run"].main(["--interactions", "a", "--items", "b", "--work", "w", *more])
        assert said in capsys.readouterr().err


def test_variants_change_their_flags_alone(example):
    """A variant with another schedule, rate or teacher would be compared with C2KD for what it is not."""
    plan, variants = example["plan"], example["variants"]
    settings = plan.Settings()
    names = set()
    for name, (method, flags) in variants.VARIANTS.items():
        for run, seed in zip(variants.parts_of(name, settings, [0, 1]), (0, 1), strict=True):
            of = plan.student_part(settings, method, seed)
            assert run.needs == of.needs
            place = {f"{plan.WORK}/{run.name}", f"{plan.WORK}/{of.name}"}
            assert set(run.argv) - set(of.argv) <= {*flags, *place}
            assert set(of.argv) - set(run.argv) <= place
            assert [part for part in run.argv if part in flags] != []
            names.add(run.name)
    assert len(names) == 2 * len(variants.VARIANTS)


def test_the_flags_of_the_generative_script_exist():
    """A flag that was renamed ends the script at its first command, an hour before anyone looks."""
    script = (FOLDER / "generative.sh").read_text(encoding="utf-8")
    common = re.search(r"COMMON=\((.*?)\)\n", script, re.DOTALL)[1]
    kinds = {
        "teacher": (RunArguments, TeacherConfig, ModelConfig),
        "train": (StudentArguments, StudentConfig, ModelConfig),
        "filters": (FilterArguments, LayerFilterConfig),
    }
    known = {
        name: {flag for action in CommandParser(kind, prog=name)._actions for flag in action.option_strings}
        for name, kind in kinds.items()
    }
    flags = set(re.findall(r"--[a-z]\w*", common))
    assert "--max_history" in flags
    assert {name: flags - accepted for name, accepted in known.items() if flags - accepted} == {}
    assert set(re.findall(r"--[a-z]\w*", script)) <= known["teacher"] | known["train"] | known["filters"] | {
        "--compare",
        "--output",
    }
