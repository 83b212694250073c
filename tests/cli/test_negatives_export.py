"""`qcrd negatives export`: the generated negatives of a run as a dataset."""

import json
import shutil
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from running import lora, trainer_of
from tiny import ragged_rows

from qcrd_trl.callbacks import NEGATIVES_FOLDER
from qcrd_trl.cli import negatives as command
from qcrd_trl.cli.main import main
from qcrd_trl.cli.negatives import COLUMNS
from qcrd_trl.data.store import ROWS_NAME, STATE_NAME, NegativeStore
from qcrd_trl.records import Negative


SEED = (1 << 62) - 1  # the largest that is drawn: a float would round it
# What a CSV file has to quote, letters outside ASCII, and figures that look like a number.
TEXTS = ['it is "3", so', "first\nthen 4", "42", "π ≈ 3\rso"]
MESSAGES = [{"role": "system", "content": "Think."}, {"role": "user", "content": "a + 1, π?"}]


def negative(text, iteration, **overrides):
    given = {"snapshot": max(iteration - 1, 0), "seed": SEED, "temperature": 1.5, "is_finished": True}
    return Negative(text=text, token_ids=(9, 1), iteration=iteration, **{**given, **overrides})


def write_store(folder, iteration, texts, prompt="a + 1", **overrides):
    """A store with one question a text, q0, q1, ..."""
    store = NegativeStore()
    found = {f"q{i}": [negative(text, iteration, **overrides)] for i, text in enumerate(texts)}
    store.replace(iteration, found, dict.fromkeys(found, prompt))
    store.save(folder)


def write_run(folder, *iterations, prompt="a + 1"):
    """A run's folder with two negatives in each iteration."""
    for number in iterations:
        texts = [f"{number} is", f"{number} so"]
        write_store(folder / NEGATIVES_FOLDER / f"iteration-{number:04d}", number, texts, prompt)
    return folder


def export(*argv):
    return main(["negatives", "export", *map(str, argv)])


def loaded(path):
    kind = {".jsonl": "json"}.get(path.suffix, path.suffix[1:])
    return load_dataset(kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a run of three steps, each an iteration, with a checkpoint after the second."""
    folder = tmp_path_factory.mktemp("run")
    trainer = trainer_of(
        folder,
        rows=ragged_rows(),
        parts={"peft_config": lora()},
        negative_source="self",
        negative_refresh_steps=1,
        negative_max_new_tokens=8,
        negative_lag=1,
        num_negatives=2,
        max_steps=3,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
    )
    trainer.train()
    return folder


def test_a_run(run, tmp_path, capsys):
    """Iterations left out, or quality dropped on the way, would be taken for what the run generated."""
    assert export(run) == 0
    path = run / "negatives.parquet"
    rows = loaded(path)
    assert tuple(rows.column_names) == COLUMNS
    prompts = {row["id"]: row["prompt"] for row in ragged_rows()}
    expected = []
    for iteration in range(3):
        for key, n in NegativeStore.load(run / "negatives" / f"iteration-{iteration:04d}"):
            row = {**vars(n), "id": key, "prompt": prompts[key], "negative": n.text}
            expected.append({name: row[name] for name in COLUMNS})
    assert rows.to_list() == expected
    assert [(row["iteration"], row["snapshot"]) for row in expected[:1] + expected[-1:]] == [(0, 0), (2, 1)]
    assert {row["iteration"] for row in expected} == {0, 1, 2}
    assert all(row["temperature"] == 1.5 and 0 < row["quality"] < 1 for row in expected)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Wrote {len(expected)} negatives of iterations 0 to 2 to {path}"


def test_a_checkpoint(run, tmp_path, capsys):
    """Its store lies in another place than those of the run, and is of one iteration."""
    (checkpoint,) = run.glob("checkpoint-*")
    store = NegativeStore.load(checkpoint / NEGATIVES_FOLDER)
    path = tmp_path / "new" / "two.jsonl"  # in a folder that is made
    assert export(checkpoint, "--output", path) == 0
    assert [(row["id"], row["negative"]) for row in loaded(path)] == [(key, n.text) for key, n in store]
    assert f"of iteration {store.iteration} to" in capsys.readouterr().out
    assert export(checkpoint, "--output", path, "--iteration", store.iteration + 1) == 2


@pytest.mark.parametrize("prompt", ["a + 1", MESSAGES], ids=["plain", "conversational"])
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".json", ".csv", ".JSON"])
def test_every_format_loads(tmp_path, ending, prompt):
    """A text with a line break that splits a row in two, or a seed rounded to a float, is found by nobody."""
    folder = tmp_path / NEGATIVES_FOLDER / "iteration-0002"
    write_store(folder, 2, TEXTS, prompt, quality=0.25, reaches_label=False, is_finished=False)
    path = tmp_path / f"out{ending}"
    assert export(tmp_path, "--output", path) == 0
    rows = loaded(path if ending.islower() else path.rename(tmp_path / "renamed.json"))
    assert rows["negative"] == TEXTS
    assert rows["id"] == ["q0", "q1", "q2", "q3"]
    assert rows["seed"] == [SEED] * 4
    assert (rows["iteration"], rows["snapshot"]) == ([2] * 4, [1] * 4)
    assert (rows["quality"], rows["temperature"]) == ([0.25] * 4, [1.5] * 4)
    assert (rows["is_finished"], rows["reaches_label"]) == ([False] * 4, [False] * 4)
    prompts = rows["prompt"]
    assert (
        [json.loads(p) for p in prompts] == [prompt] * 4 if ending == ".csv" and prompt is MESSAGES else [prompt] * 4
    )
    assert tuple(rows.column_names) == COLUMNS


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".json", ".csv"])
def test_what_was_not_scored_is_null(tmp_path, ending):
    """A 0 or a text in its place would be read as a score."""
    write_run(tmp_path, 0)
    path = tmp_path / f"out{ending}"
    assert export(tmp_path, "--output", path) == 0
    assert loaded(path)["quality"] == loaded(path)["reaches_label"] == [None, None]


def test_iterations_in_order(tmp_path, capsys):
    """By name, iteration 10000 would come before 9999, and a copy or an unfinished folder would count as one."""
    run = write_run(tmp_path, 3, 9999, 10000, 0, 1)
    stores = run / NEGATIVES_FOLDER
    for name in ("_unfinished-iteration-0004", "iteration-0001 (copy)"):
        shutil.copytree(stores / "iteration-0001", stores / name)
    assert export(run) == 0
    assert pq.read_table(run / "negatives.parquet")["iteration"].to_pylist()[::2] == [0, 1, 3, 9999, 10000]
    assert "Wrote 10 negatives of iterations 0 to 1, 3, 9999 to 10000 to" in capsys.readouterr().out
    assert export(run, "--iteration", "3") == 0
    assert pq.read_table(run / "negatives.parquet")["negative"].to_pylist() == ["3 is", "3 so"]


def test_an_iteration_without_negatives(tmp_path, capsys):
    """Its column of prompts has no type, which would break those of a run with messages."""
    run = write_run(tmp_path, 0, 2, prompt=MESSAGES)
    write_store(run / NEGATIVES_FOLDER / "iteration-0001", 1, [])
    assert export(run) == 0
    assert loaded(run / "negatives.parquet")["prompt"] == [MESSAGES] * 4
    assert "of iterations 0, 2 to" in capsys.readouterr().out
    assert export(run, "--iteration", "1") == 2
    assert "no negatives of iteration 1: no sample became one" in capsys.readouterr().err


def test_a_yaml_file(tmp_path):
    """As for every command; the folder may stand in it too."""
    config = tmp_path / "export.yaml"
    config.write_text(f"output_dir: {write_run(tmp_path / 'run', 0, 1)}\niteration: 0\n", encoding="utf-8")
    output = tmp_path / "out.parquet"
    assert export("--config", config, "--output", output, "--iteration", "1") == 0
    assert set(pq.read_table(output)["iteration"].to_pylist()) == {1}


def damage(folder):
    path = folder / NEGATIVES_FOLDER / "iteration-0001" / ROWS_NAME
    path.write_bytes(path.read_bytes()[:-20])


def lose_state(folder):
    (folder / NEGATIVES_FOLDER / "iteration-0001" / STATE_NAME).unlink()


@pytest.mark.parametrize(
    ("flags", "change", "message"),
    [
        (["--output", "out.txt"], None, "out.txt must end in one of .parquet, .jsonl, .json, .csv"),
        (["--output", "out"], None, "out must end in one of .parquet"),
        (["--output", "made.json"], None, "made.json is a folder: give a file"),
        (["--iteration", "2"], None, "There is no iteration 2 in run: it has iterations 0 to 1."),
        (["--iteration", "-1"], None, "There is no iteration -1"),
        ([], damage, "iteration-0001' is damaged"),
        ([], lose_state, "There is no store of negatives in"),
        ([], lambda run: shutil.rmtree(run), "run is no folder"),
        ([], lambda run: shutil.rmtree(run / "negatives"), "negative_source self, both or fixed"),
        ([], lambda run: [shutil.rmtree(path) for path in (run / "negatives").iterdir()], "no generated negatives"),
    ],
)
def test_what_cannot_work_ends_in_one_line(tmp_path, monkeypatch, capsys, flags, change, message):
    """A file with a part of the negatives, left by an export that failed, would be taken for all of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.json").mkdir()
    run = write_run(tmp_path / "run", 0, 1)
    if change:
        change(run)
    before = sorted(tmp_path.rglob("*"))
    assert export("run", *flags) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("qcrd negatives: error: ")
    assert message in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, capsys, ending):
    """An earlier export that is half overwritten is lost, and nothing shows that the half is not the whole."""
    run = write_run(tmp_path / "run", 0)
    path = tmp_path / f"out{ending}"
    path.write_text("an earlier export", encoding="utf-8")

    def write_half(rows, file):
        if ending == ".parquet":
            file.write_bytes(b"half")
        else:
            file.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "_write_lines", write_half)
    monkeypatch.setattr(command.pq, "write_table", write_half)
    assert export(run, "--output", path) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "an earlier export"
    assert {file.name for file in tmp_path.iterdir()} == {"run", path.name}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no sub-command: expected `qcrd negatives export OUTPUT_DIR`"),
        (["exprt", "run"], "unknown sub-command 'exprt'"),
        (["export"], "the following arguments are required: OUTPUT_DIR"),
        (["export", "run", "other"], "unrecognized arguments: other"),
        (["export", "run", "--iter", "1"], "unrecognized arguments: --iter 1"),
        (["export", "run", "--iteration", "one"], "invalid int value: 'one'"),
    ],
)
def test_wrong_usage(capsys, argv, message):
    """A limit that is not understood must not export everything."""
    try:
        status = main(["negatives", *argv])
    except SystemExit as ended:
        status = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert (status, len(lines)) == (2, 1)
    assert lines[0].startswith("qcrd negatives")
    assert message in lines[0]


def test_help(capsys):
    """Of the command and of the sub-command: who does not find `export` has only the folders."""
    assert main(["negatives", "--help"]) == 0
    assert "export OUTPUT_DIR" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["negatives", "export", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(
        part in out for part in ("usage: qcrd negatives export", "OUTPUT_DIR", "--output", "--iteration", ".csv")
    )
    assert "--output_dir" not in out


def test_needs_no_torch(tmp_path):
    """Seconds of waiting, and gigabytes where it is installed with a GPU's libraries, for what reads a table."""
    code = (
        "import sys; from qcrd_trl.cli.main import main; assert main(sys.argv[1:]) == 0; "
        "heavy = {'torch', 'peft', 'datasets'} & set(sys.modules); assert not heavy, heavy"
    )
    argv = [sys.executable, "-c", code, "negatives", "export", str(write_run(tmp_path, 0))]
    child = subprocess.run(argv, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert (tmp_path / "negatives.parquet").is_file()
