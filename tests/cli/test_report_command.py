"""`qcrd report` from a file or a folder to a table, a picture and figures."""

import json
import struct
import subprocess
import sys

import pytest

from qcrd_trl.cli import main as cli
from qcrd_trl.cli.report import ReportArguments, report_samples
from qcrd_trl.errors import ConfigError, DataError


ROWS = [
    {"id": key, "prompt": f"{key}?", "label": label, "sample_index": i, "text": text, "status": status}
    | {"settings_hash": "h", "model": "m", "temperature": 0.7, "usage": {"completion_tokens": 4}}
    for i, texts in enumerate([("So 3.", "So 6.", "So 1."), ("So 3.", "So 6", "So 2."), ("So 4.", None, "no idea")])
    for key, label, text, status in zip("abc", "351", texts, ["ok", "ok" if texts[1] else "failed", "ok"], strict=True)
]


def write(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(capsys, *argv, status=0):
    assert cli.main(["report", *map(str, argv)]) == status
    return capsys.readouterr()


def shown(out):
    """The tables' rows: name to the other cells."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_command(tmp_path, capsys):
    """Table, picture and figures from one line, though the flag stands behind the file."""
    samples = write(tmp_path / "samples.jsonl")
    captured = run(capsys, samples, "--task_kind", "number", "--json", tmp_path / "out" / "report.json")
    table = shown(captured.out)
    assert table["questions"] == ["3", ""]
    assert table["samples"] == ["9", ""]
    assert table["status ok"] == ["8", "88.9 %"]
    assert table["status failed"] == ["1", "11.1 %"]
    assert table["ok, answer read (votes)"] == ["7", "77.8 %"]
    assert table["questions with a majority (yield)"] == ["2", "66.7 %"]
    assert table["questions with a tie"] == ["1", "33.3 %"]
    assert table["with a majority, which is right"] == ["1", "50.0 %"]
    assert table["with a right sample (yield by gold)"] == ["2", "66.7 %"]
    assert table["completion tokens used"] == ["36", ""]
    assert table["votes of the most frequent answer, mean"] == ["72.2 %", ""]  # 2/3, 1 and 1/2
    assert table["100 % (unanimous)"] == ["1", "33.3 %"]
    assert table["characters"] == ["8", "5.1", "5.0", "7", "7"]
    assert table["tokens"] == ["9", "4.0", "4.0", "4", "4"]
    assert all(len(line) <= 80 for line in captured.out.splitlines() if "│" in line)
    assert "reading" in captured.err
    data = (tmp_path / "plots" / "samples.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert (width > 1200, height > 900, len(data) > 30_000) == (True, True, True)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["kind"], report["questions"], report["arguments"]["task_kind"]) == ("samples", 3, "number")
    assert report["yield"]["majority_right"] == 1


def test_the_same_from_every_layout_and_format(tmp_path, capsys):
    """Long or wide, JSONL or CSV or Parquet: one set of samples has one report."""
    import datasets

    wide = [
        {
            "id": key,
            "prompt": f"{key}?",
            "label": label,
            "rationales": [{k: row[k] for k in ("text", "status", "usage")} for row in ROWS if row["id"] == key],
        }
        for key, label in zip("abc", "351", strict=True)
    ]
    write(tmp_path / "long.jsonl")
    write(tmp_path / "wide.jsonl", wide)
    cells = [{**row, "usage": json.dumps(row["usage"])} for row in ROWS]
    datasets.Dataset.from_list(cells).to_csv(tmp_path / "long.csv")
    datasets.Dataset.from_list(wide).to_parquet(tmp_path / "wide.parquet")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "train.jsonl")
    found = []
    for name in ("long.jsonl", "wide.jsonl", "long.csv", "wide.parquet", "folder"):
        report = report_samples(ReportArguments(samples=str(tmp_path / name), task_kind="number"))
        found.append({key: value for key, value in report.items() if key != "settings"})
    capsys.readouterr()
    assert found[0]["samples"] == 9
    assert found[0]["agreement"]["ties"] == 1
    for other in found[1:]:
        assert other == found[0]


def test_column_flags(tmp_path, capsys):
    """The flags are those of `qcrd select`."""
    rows = [{"key": 1, "q": "?", "a": "3", "s": ["So 3."], "status": "x"}]
    argv = ["--samples", write(tmp_path / "s.jsonl", rows), "--task_kind", "number", "--prompt_column", "q"]
    argv += ["--label_column", "a", "--samples_column", "s", "--id_column", "key", "--output_dir", tmp_path / "out"]
    assert shown(run(capsys, *argv).out)["with a majority, which is right"] == ["1", "100.0 %"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["s.png"]


def test_kind_from_the_settings_beside_the_samples(tmp_path, capsys):
    """Who sampled with a task kind need not say it again; a wrong one would read other answers."""
    samples = write(tmp_path / "samples.jsonl")
    beside = tmp_path / "samples.jsonl.settings.json"
    assert "there is no samples.jsonl.settings.json that says it" in run(capsys, samples, status=2).err
    beside.write_text(json.dumps({"h": {"task_kind": "number"}}))
    assert shown(run(capsys, samples).out)["ok, answer read (votes)"] == ["7", "77.8 %"]
    assert run(capsys, samples, "--task_kind", "nli", status=2).err.count("cannot be read as one of entailment") == 1
    beside.write_text(json.dumps({"h": {"task_kind": "number"}, "g": {"task_kind": "nli"}}))
    assert "names the task kinds ['nli', 'number']" in run(capsys, samples, status=2).err
    assert run(capsys, samples, "--settings_hash", "h")
    for wrong in ("{", "[]", '{"h": {}}', '{"h": 1}'):
        beside.write_text(wrong)
        assert "does not say the task kind" in run(capsys, samples, status=2).err


def test_several_settings(tmp_path, capsys):
    """Each settings hash has its line; one can be had alone."""
    samples = write(tmp_path / "s.jsonl", [*ROWS, *[{**row, "settings_hash": "g", "text": "So 3."} for row in ROWS]])
    table = shown(run(capsys, samples, "--task_kind", "number").out)
    assert table["h"] == ["m", "9", "88.9 %", "72.2 %", "66.7 %", "50.0 %"]
    assert table["g"] == ["m", "9", "88.9 %", "100.0 %", "100.0 %", "33.3 %"]
    assert table["samples"] == ["18", ""]
    table = shown(run(capsys, samples, "--task_kind", "number", "--settings_hash", "g").out)
    assert (table["samples"], "h" in table) == (["9", ""], False)
    error = run(capsys, samples, "--task_kind", "number", "--settings_hash", "x", status=2).err
    assert "no sample of settings hash 'x'; it has: g, h." in error


def test_torn_line_is_noted(tmp_path, capsys):
    """A run that is still going on has a report, which says what is left out."""
    path = tmp_path / "s.jsonl"
    write(path)
    path.write_text(path.read_text()[:-20])
    captured = run(capsys, path, "--task_kind", "number", "--json", tmp_path / "r.json")
    assert "line 9: left out, the last line of this samples file is cut off" in " ".join(captured.out.split())
    assert shown(captured.out)["samples"] == ["8", ""]
    assert len(json.loads((tmp_path / "r.json").read_text())["notes"]) == 1


def select(tmp_path, capsys):
    rows = [
        {"id": "a", "prompt": "a?", "label": "3", "rationales": ["So 3.", "And 3.", "So 4."]},  # 2 of 3
        {"id": "b", "prompt": "b?", "label": "5", "rationales": ["So 6."]},  # 0 of 1
        {"id": "c", "prompt": "c?", "label": "1", "rationales": ["So 1."]},  # 1 of 1
        {"id": "d", "prompt": "d?", "label": "1", "rationales": []},
    ]
    samples, out = write(tmp_path / "wide.jsonl", rows), tmp_path / "selected"
    assert cli.main(["select", "--samples", samples, "--task_kind", "number", "--output_dir", str(out)]) == 0
    capsys.readouterr()
    return out


def test_training_set(tmp_path, capsys):
    """What `qcrd select` wrote: its own figures, not a second count."""
    out = select(tmp_path, capsys)
    captured = run(capsys, out, "--json", tmp_path / "r.json")
    table = shown(captured.out)
    assert table["with a positive (yield)"] == ["2", "50.0 %"]
    assert table["questions with 2 positives (m)"] == ["1", "25.0 %"]
    assert table["questions with 1 negatives (k)"] == ["2", "50.0 %"]
    assert (out / "plots" / "selection.png").stat().st_size > 20_000
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["kind"] == "selection"
    assert report["questions_by_share_of_positives"] == [1, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    assert report["rows"] == json.loads((out / "report.json").read_text())["rows"]
    import datasets  # the picture lies in the folder, and the folder is the training set as before

    assert len(datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))["train"]) == 4


def test_wrong_training_sets(tmp_path, capsys):
    """Flags that do nothing, and a file of the same name that is no report."""
    out = select(tmp_path, capsys)
    assert "leave out --task_kind" in run(capsys, out, "--task_kind", "number", status=2).err
    for text, message in (("{", "cannot be read"), ("{}", "it has no agreement, gold")):
        (out / "report.json").write_text(text)
        assert message in run(capsys, out, status=2).err
    parts = "rows samples agreement gold positives_per_question negatives_per_question".split()
    (out / "report.json").write_text(json.dumps({part: {} for part in parts}))
    (out / "train.parquet").write_bytes(b"no parquet")
    assert "train.parquet cannot be read as a training set" in run(capsys, out, status=2).err


def test_wrong_sources(tmp_path, capsys):
    """Every one is an error of one line and status 2, and writes nothing."""
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "torn.jsonl").write_text('{"id":')
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.jsonl").write_text('{"id": \n{"id": "a", "text": "1"}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "report.json").write_text("{}")
    for name, message in (
        ("empty.jsonl", "empty.jsonl has no rows"),
        ("torn.jsonl", "torn.jsonl, line 1: not valid JSON"),
        ("missing.jsonl", "missing.jsonl does not exist"),
        ("notes.txt", "is no data file: expected one of .jsonl"),
        ("bad.jsonl", "bad.jsonl, line 1: not valid JSON"),
        ("folder", "folder is nothing to report on: expected a samples file"),
    ):
        error = run(capsys, tmp_path / name, "--task_kind", "number", "--output_dir", tmp_path / "out", status=2).err
        assert message in error
        assert error.splitlines()[-1].startswith("qcrd report: error: ")
    assert not (tmp_path / "out").exists()
    assert "missing.jsonl does not exist" in run(capsys, tmp_path / "missing.jsonl", status=2).err
    assert "There is no missing here, and no task_kind was given" in run(capsys, "missing", status=2).err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task_kind", "numbers"], "Unknown task_kind 'numbers': expected one of number, choice, nli, text"),
        (["--task_kind", "number", "--task_callable", "json:loads"], "not both"),
        (["--task_kind", "number", "--json", "."], "--json . is a folder"),
        (["--task_kind", "number", "--output_dir", "s.jsonl/plots"], "s.jsonl is a file"),
        (["--task_kind", "number", "--json", "s.jsonl/x.json"], "s.jsonl is a file"),
    ],
)
def test_wrong_settings(tmp_path, capsys, monkeypatch, argv, message):
    """Found before a million samples are read."""
    write(tmp_path / "s.jsonl", [{"text": "never read", "id": None}])
    monkeypatch.chdir(tmp_path)
    assert message in run(capsys, "s.jsonl", *argv, status=2).err


def test_a_folder_without_permission(tmp_path, capsys, monkeypatch):
    """A picture that cannot be saved after an hour of reading."""
    samples = write(tmp_path / "s.jsonl", [{"text": "never read", "id": None}])
    monkeypatch.setattr("os.access", lambda path, mode: False)
    error = run(capsys, samples, "--task_kind", "number", status=2).err
    assert "cannot be written: no permission" in error
    assert "--output_dir" in error


def test_the_file_with_and_without_its_flag(tmp_path, capsys):
    """Which of two files the report is of must not be a guess."""
    samples = write(tmp_path / "s.jsonl")
    config = tmp_path / "report.yaml"
    config.write_text("samples: missing.jsonl\ntask_kind: number\n")
    run(capsys, "--config", config, samples)
    run(capsys, samples, "--config", config)
    run(capsys, "--config", config, "--samples", samples)
    config.write_text(f"samples: {samples}\ntask_kind: number\n")
    run(capsys, "--config", config)
    for argv, message in (
        ([samples, "--samples", samples], "argument SAMPLES: given twice, once with --samples"),
        ([samples, f"--samples={samples}"], "given twice"),
        ([], "the following argument is required: SAMPLES"),
        ([samples, "other"], "unrecognized arguments: other"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["report", *argv])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_help_is_light():
    """The picture's library is loaded when a picture is drawn."""
    code = (
        "import sys; from qcrd_trl.cli.main import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[SAMPLES]" in result.stdout


def test_own_function(tmp_path, capsys, monkeypatch):
    """A task kind of the user's own reads the report's answers too."""
    (tmp_path / "my_own_answers.py").write_text("def last_word(text):\n    return text.split()[-1]\n")
    monkeypatch.chdir(tmp_path)
    rows = [{"id": "a", "label": "red", "rationales": ["it is red", "or red", "blue"]}]
    argv = [write(tmp_path / "s.jsonl", rows), "--task_callable", "my_own_answers:last_word"]
    assert shown(run(capsys, *argv).out)["60 to 80 %"] == ["1", "100.0 %"]


def test_no_kind_and_errors_of_the_library(tmp_path):
    """From Python the same errors are exceptions."""
    with pytest.raises(ConfigError, match="No task_kind was given"):
        report_samples(ReportArguments(samples=write(tmp_path / "s.jsonl")))
    with pytest.raises(DataError, match="does not exist"):
        report_samples(ReportArguments(samples=str(tmp_path / "no.jsonl"), task_kind="number"))


def same_votes(tmp_path, capsys, *argv):
    """The figures of the report, after it was held against what the selection counted on the same file."""
    run(capsys, "--samples", *argv, "--json", tmp_path / "r.json", "--output_dir", tmp_path / "plots")
    select = ["select", "--samples", *map(str, argv), "--output_dir", str(tmp_path / "out"), "--overwrite_output_dir"]
    assert cli.main([*select, "--num_workers", "1"]) == 0
    capsys.readouterr()
    got = json.loads((tmp_path / "r.json").read_text())
    want = json.loads((tmp_path / "out" / "report.json").read_text())
    assert got["samples"] == want["samples"]["total"]
    assert got["answers"]["voting"] == want["samples"]["voting"]
    assert got["answers"]["without_answer"] == want["samples"]["abstained"]
    assert {name: n for name, n in got["statuses"].items() if n} == want["samples"]["statuses"]
    for name in ("ties", "questions_without_votes", "mean_majority_share_of_votes"):
        assert got["agreement"][name] == want["agreement"][name]
    assert got["yield"]["majority_right_share"] == want["gold"]["majority_equals_gold"]
    return got


COMPLETIONS = {
    "a": [  # label 7; read whole, the third says 12
        ("<Explanation>: 3 + 4 = 7. The answer is 7.\n<Answer>: 8", "ok"),
        ("<Explanation>: 3 + 4 = 7.\n<Answer>: 7\n\nQuestion: And 4 + 5?\n<Answer>: 9", "ok"),
        ("**Answer:** 7\n**Explanation:** 3 + 4, not 3 * 4. The answer is 12.", "ok"),
        ("<Explanation>: 3 + 4 = 7.\n<Answer>: 7 and then", "truncated"),
    ],
    "b": [  # label 5
        ("2 + 3 = 5. So the answer is 5.\nQuestion: What is 8 + 1?\nThe answer is 9.", "ok"),
        (" 2 + 3 = 5.\n<Answer>: 5", "ok"),
        ("<Explanation>: 2 + 3 is unknown to me.\n<Answer>: none", "ok"),
        (None, "failed"),
    ],
}


def test_completions_vote_as_they_do_in_the_selection(tmp_path, capsys):
    """Read whole, a completion votes with what stands behind its answer: the report would promise another training set."""
    rows = [
        {"id": key, "prompt": f"{key}?", "label": label, "sample_index": i, "text": text, "status": status}
        | {"settings_hash": "h"}
        for key, label in (("a", "7"), ("b", "5"))
        for i, (text, status) in enumerate(COMPLETIONS[key])
    ]
    samples = write(tmp_path / "s.jsonl", [*rows, rows[0]])  # one stands twice
    got = same_votes(tmp_path, capsys, samples, "--task_kind", "number")
    assert (got["samples"], got["answers"]["voting"], got["answers"]["without_answer"]) == (8, 5, 1)
    assert got["votes_per_question"]["for_reference"] == {"2": 2}
    assert got["agreement"]["mean_majority_share_of_votes"] == pytest.approx((2 / 3 + 1) / 2, abs=1e-6)
    whole = same_votes(tmp_path, capsys, samples, "--task_kind", "number", "--parse_completions", "never")
    assert whole["votes_per_question"]["for_reference"] == {"1": 1, "2": 1}
    wide = [
        {"id": key, "prompt": "?", "label": label, "rationales": [text for text, _ in COMPLETIONS[key]]}
        for key, label in (("a", "7"), ("b", "5"))
    ]
    for parsing in ("auto", "always", "never"):  # by their marks, all, none
        argv = (write(tmp_path / "w.jsonl", wide), "--task_kind", "number", "--parse_completions", parsing)
        same_votes(tmp_path, capsys, *argv)


def test_choices_vote_as_they_do_in_the_selection(tmp_path, capsys):
    """An option's text is a vote for its letter only for the command that looks at the options."""
    row = {"id": "a", "prompt": "?", "label": "B", "choices": {"A": "tree", "B": "bank"}}
    row["rationales"] = ["The answer is bank.", "The answer is B.", "The answer is A."]
    got = same_votes(tmp_path, capsys, write(tmp_path / "s.jsonl", [row]), "--task_kind", "choice")
    assert got["votes_per_question"]["for_reference"] == {"2": 1}


@pytest.mark.parametrize("form", ["plain", "completions"])
def test_svamp(tmp_path, shared_dir, capsys, form):
    """Real samples: the report and the selection count the same votes."""
    samples = shared_dir / "data" / "svamp" / "train.jsonl"
    if not samples.is_file():
        pytest.skip(f"no {samples}")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()[:60]]
    if form == "completions":
        marks = (
            "{}",
            "<Explanation>: {}",
            "<Explanation>: {}\n<Answer>: 4",
            "{}\n\nQuestion: And now?\nThe answer is 3.",
        )
        for row in rows:
            row["rationales"] = [marks[i % 4].format(text) for i, text in enumerate(row["rationales"])]
    argv = [write(tmp_path / "s.jsonl", rows), "--task_kind", "number", "--parse_completions"]
    argv += ["always" if form == "completions" else "auto"]
    argv += ["--prompt_column", "question", "--label_column", "answer", "--samples_column", "rationales"]
    assert same_votes(tmp_path, capsys, *argv)["samples"] == 600
