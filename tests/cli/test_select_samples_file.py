"""`qcrd select` on what `qcrd sample` writes, in several processes and shards."""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qcrd_trl.cli import main as cli
from qcrd_trl.cli import select as select_module
from qcrd_trl.cli.select import SelectArguments, select
from qcrd_trl.data.sources import load_rows
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.records import TeacherSample
from qcrd_trl.sampling.report import SelectionReport


def sample(question, index, answer, status="ok", settings="aaaa", **extra):
    text = None if answer is None else f"<Explanation>: it makes {answer}.\n<Answer>: {answer}"
    return dataclasses.asdict(
        TeacherSample(
            **{"id": f"q{question}", "prompt": f"Question {question}?", "sample_index": index, "text": text},
            **{"finish_reason": "stop", "status": status, "model": "teacher", "temperature": 0.7, "seed": index},
            **{"settings_hash": settings, "label": str(question), **extra},
        )
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def many(count=2300, per=3):
    """Questions whose first samples say the label, the last one something else; the samples scattered."""
    rows = [sample(q, i, q if i < per - 1 else q + 1) for q in range(count) for i in range(per)]
    return [row for start in range(per) for row in rows[start::per]]


def run(tmp_path, rows, name="out", **settings):
    samples = rows if not isinstance(rows, list) else write(tmp_path / "samples.jsonl", rows)
    settings = {"task_kind": "number", "output_dir": str(tmp_path / name), **settings}
    report = select(SelectArguments(samples=str(samples), **settings))
    return report.as_dict(), list(load_rows(settings["output_dir"]))


def test_needs_only_the_task_kind(tmp_path, capsys):
    """The two commands are one pipeline: columns, marks, statuses and numbering fit without a flag."""
    rows = [
        sample(7, 1, 8),
        sample(9, 0, 9),
        sample(7, 0, 7),
        sample(7, 2, 7.0),
        sample(7, 3, 7, "truncated"),
        sample(7, 4, None, "failed"),
        sample(9, 1, None, "filtered"),
    ]
    path = write(tmp_path / "samples.jsonl", rows)
    argv = ["select", "--samples", str(path), "--task_kind", "number", "--output_dir", str(tmp_path / "out")]
    assert cli.main(argv) == 0
    capsys.readouterr()
    first, second = load_rows(tmp_path / "out")
    assert first == {
        "id": "q7",
        "prompt": "Question 7?",
        "label": "7",
        "positive_rationales": ["it makes 7.", "it makes 7.0."],
        "negative_rationales": ["it makes 8."],
        "raw_rationale": "it makes 7.",
    }
    assert (second["id"], second["positive_rationales"]) == ("q9", ["it makes 9."])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["samples"]["statuses"] == {"ok": 4, "truncated": 1, "failed": 1, "filtered": 1}
    assert report["samples"]["dropped"] == {"status truncated": 1, "status failed": 1, "status filtered": 1}


def test_choices_come_along(tmp_path):
    """An answer in the words of an option would not vote without the options of its row."""
    rows = [
        sample(1, 0, "bank", label="B", choices=["tree", "bank"]),
        sample(1, 1, "A", label="B", choices=["tree", "bank"]),
    ]
    for row in rows:
        row["label"] = "B"
    _, (out,) = run(tmp_path, rows, task_kind="choice")
    assert out["positive_rationales"] == ["it makes bank."]
    assert len(out["negative_rationales"]) == 1


def test_marks_can_be_kept(tmp_path):
    """Whoever trains on the teacher's form asks for it."""
    _, (out,) = run(tmp_path, [sample(7, 0, 7)], parse_completions="never")
    assert out["positive_rationales"] == ["<Explanation>: it makes 7.\n<Answer>: 7"]


def test_torn_last_line(tmp_path, caplog):
    """A sampler killed while it wrote loses the sample in flight, not the file; a broken line elsewhere is an error."""
    rows = [sample(7, 0, 7), sample(7, 1, 8), sample(7, 2, 7)]
    path = write(tmp_path / "samples.jsonl", rows)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with caplog.at_level(logging.WARNING):
        report, _ = run(tmp_path, path)
    assert report["samples"]["total"] == 2
    assert caplog.text.count("line 3: left out, the last line of this samples file is cut off") == 1
    path.write_bytes(whole[:-1])  # whole but for its line feed
    assert run(tmp_path, path, "whole")[0]["samples"]["total"] == 3
    path.write_bytes(whole[:-40] + b"\n")
    with pytest.raises(DataError, match="line 3: not valid JSON"):
        run(tmp_path, path, "ended")
    path.write_bytes(whole[: len(whole) // 3 - 20] + whole[len(whole) // 3 :])
    with pytest.raises(DataError, match="not valid JSON"):
        run(tmp_path, path, "inside")
    path.write_text('{"id": 1, "prompt": "p", "label": "7", "rationales": ["So 7."]}\n{"id": 2, "pro')
    with pytest.raises(DataError, match="line 2: not valid JSON"):  # no file that is appended to
        run(tmp_path, path, "other")


def test_several_settings(tmp_path):
    """The error names what there is, and the flag that chooses."""
    rows = [sample(7, 0, 7), sample(7, 0, 8, settings="bbbb")]
    with pytest.raises(DataError, match=r"aaaa \(1 rows\), bbbb \(1 rows\).*--settings_hash"):
        run(tmp_path, rows)
    assert not (tmp_path / "out").exists()
    _, (out,) = run(tmp_path, rows, settings_hash="aaaa")
    assert (out["positive_rationales"], out["negative_rationales"]) == (["it makes 7."], [])


def test_no_labels_names_the_remedy(tmp_path):
    """A dataset without gold labels is selected by its votes."""
    rows = [sample(7, 0, 7, label=None)]
    rows[0]["label"] = None
    with pytest.raises(DataError, match="--label_source majority"):
        run(tmp_path, rows)
    assert run(tmp_path, rows, label_source="majority")[1][0]["label"] == "7"


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, layout):
    """A training set that depends on the machine's cores could not be made again."""
    rows = many()
    if layout == "wide":
        rows = [
            {"id": f"q{q}", "prompt": "p", "label": str(q), "rationales": [f"So {q}.", f"So {q + 1}."]}
            for q in range(2300)
        ]
    files, reports = set(), []
    for workers in (1, 2, None):
        report, out = run(tmp_path, rows, f"out-{workers}", num_workers=workers)
        files.add((tmp_path / f"out-{workers}" / "train.parquet").read_bytes())
        reports.append({key: value for key, value in report.items() if key != "settings"})
    assert len(files) == 1
    assert reports[0] == reports[1] == reports[2]
    assert [row["id"] for row in out] == [f"q{q}" for q in range(2300)]


def test_shards_together_are_the_whole(tmp_path):
    """Four machines must make the training set, and the report, of one."""
    rows = many(60)
    whole_report, whole = run(tmp_path, rows)
    tables, merged = [], None
    for shard in range(4):
        run(tmp_path, rows, f"shard-{shard}", num_shards=4, shard_index=shard)
        tables.append(pq.read_table(tmp_path / f"shard-{shard}" / "train.parquet"))
        part = SelectionReport.from_dict(json.loads((tmp_path / f"shard-{shard}" / "report.json").read_text()))
        if merged is None:
            merged = part
        else:
            merged.merge(part)
    assert all(table.num_rows for table in tables)
    together = sorted(pa.concat_tables(tables).to_pylist(), key=lambda row: int(row["id"][1:]))
    assert together == whole
    left, right = merged.as_dict(), whole_report
    assert left.pop("settings") != right.pop("settings")
    assert left == right


def test_empty_shard_is_an_empty_file(tmp_path):
    """A shard without a question must not stop the other machines, nor the join of their files."""
    samples = write(tmp_path / "samples.jsonl", [sample(7, 0, 7)])
    tables = []
    for shard in range(2):
        output = tmp_path / f"shard-{shard}"
        settings = {"task_kind": "number", "num_shards": 2, "shard_index": shard}
        select(SelectArguments(samples=str(samples), output_dir=str(output), **settings))
        tables.append(pq.read_table(output / "train.parquet"))
    assert sorted(table.num_rows for table in tables) == [0, 1]
    assert pa.concat_tables(tables).num_rows == 1


def test_bad_row_in_a_worker_names_it(tmp_path):
    """The error of another process must say as much as that of this one."""
    rows = many()
    rows[4000]["label"] = ["not", "a", "label"]
    with pytest.raises(DataError, match="Column 'label', row 4000"):
        run(tmp_path, rows, num_workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


def test_failing_function_names_the_row(tmp_path, monkeypatch):
    """A user's reader that fails on one text of a million: which?"""
    (tmp_path / "my_reader.py").write_text("def read(text):\n    return 1 // (len(text) - 9)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    rows = [{"prompt": "q", "label": "1234567890", "rationales": ["a" * 10, text]} for text in ("a" * 12, "a" * 9)]
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"Row 1 .*my_reader:read failed by ZeroDivisionError"):
            run(tmp_path, rows, task_kind=None, task_callable="my_reader:read", num_workers=workers)


class Scorer:
    """A stand-in: a rationale of a single-digit answer is poor."""

    path = None

    @classmethod
    def from_pretrained(cls, path):
        cls.path = path
        return cls()

    def to(self, device):
        return self

    def score(self, prompts, rationales, batch_size=32):
        assert all(prompt.startswith("Question") for prompt in prompts)
        return [0.25 if len(text) < len("it makes 10.") else 0.75 for text in rationales]


@pytest.fixture
def scorer(monkeypatch):
    """The module of the discriminator, with a stand-in in it."""
    module = type(sys)("qcrd_trl.rationale_scorer")
    module.RationaleScorer = Scorer
    monkeypatch.setitem(sys.modules, "qcrd_trl.rationale_scorer", module)


def test_discriminator(tmp_path, scorer):
    """Poor positives are left out and counted, all scores kept; training reads the set as any other."""
    rows = [sample(q, i, a) for q in (7, 12) for i, a in enumerate((q, q, 999))]
    report, (first, second) = run(tmp_path, rows, discriminator="some/path", min_quality=0.5)
    assert Scorer.path == "some/path"
    assert (first["label"], first["positive_rationales"], first["positive_scores"]) == ("7", [], [])
    assert (second["positive_rationales"], second["positive_scores"]) == (["it makes 12."], [0.75])
    assert second["negative_scores"] == [0.75]
    assert report["quality"] == {"positives": 1, "questions": 1}
    assert report["rows"]["with_positive"] == 1
    with pytest.raises(DataError, match="1 positives are below --min_quality"):
        run(tmp_path, rows[:3], "none", discriminator="some/path", min_quality=0.5)


def test_training_ignores_the_scores(tmp_path, scorer):
    """Extra columns that reached the collator would break the first batch."""
    from tiny import byte_tokenizer

    from qcrd_trl.data.dataset import prepare_dataset
    from qcrd_trl.data.prompts import StudentFormat
    from qcrd_trl.data.sources import load_dataset_from
    from qcrd_trl.data.tokenize import RowTokenizer

    run(tmp_path, [sample(12, i, a) for i, a in enumerate((12, 5))], discriminator="some/path")
    dataset = load_dataset_from(tmp_path / "out")
    assert "positive_scores" in dataset.column_names
    prepared = prepare_dataset(dataset, RowTokenizer(byte_tokenizer(), StudentFormat()))
    assert "positive_scores" not in prepared.column_names
    assert len(prepared[0]["positive_ids"]) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_quality": 0.5}, "needs scores: name a --discriminator"),
        ({"min_quality": 5.0, "discriminator": "x"}, "between 0 and 1, got 5.0"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
        ({"num_shards": 2, "shard_index": 2}, "--shard_index must be from 0 to 1"),
        ({"parse_completions": "yes"}, "expected one of auto, always, never"),
        ({"label_source": "majority", "min_agreement": 0.5}, "use label_source='threshold'"),
        ({"near_duplicates": 0.0}, "above 0 and at most 1"),
    ],
)
def test_wrong_settings(tmp_path, settings, message):
    """Found before the samples are read."""
    with pytest.raises(ConfigError, match=message):
        SelectArguments(samples="none", output_dir=str(tmp_path), task_kind="number", **settings)


def test_ctrl_c_leaves_nothing(tmp_path):
    """A selection that is stopped leaves no process, no half of a training set and no rows on the disk."""
    (tmp_path / "slow_reader.py").write_text(
        "import time\n\ndef read(text):\n    time.sleep(0.001)\n    return text[-1]\n"
    )
    rows = [{"id": i, "prompt": "p", "label": "7", "rationales": ["So 7"] * 5} for i in range(6000)]
    write(tmp_path / "samples.jsonl", rows)
    command = [sys.executable, "-m", "qcrd_trl", "select", "--samples", "samples.jsonl", "--output_dir", "out"]
    command += ["--task_callable", "slow_reader:read", "--num_workers", "2"]
    paths = os.pathsep.join(
        filter(None, (str(select_module.__file__).rpartition("/qcrd_trl/")[0], os.environ.get("PYTHONPATH")))
    )
    child = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.time() + 60
    while time.time() < deadline and len(_family(child.pid)) < 2:
        time.sleep(0.2)
    workers = _family(child.pid)
    assert len(workers) >= 2
    time.sleep(1)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, errors = child.communicate(timeout=90)
    assert child.returncode == 130
    assert b"stopped by Ctrl-C" in errors
    assert b"Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "samples.jsonl",
        "slow_reader.py",
    ]
    deadline = time.time() + 10
    while time.time() < deadline and any(map(_runs, workers)):
        time.sleep(0.1)
    assert not any(map(_runs, workers))


def _family(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        pytest.skip("no /proc here to see the processes by")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
