"""`qcrd select` from a file to a training set."""

import json
import re
import sys

import datasets
import pytest

from qcrd_trl.cli import main as cli
from qcrd_trl.cli.select import SelectArguments, load_callable, select
from qcrd_trl.data.sources import load_dataset_from, load_rows
from qcrd_trl.errors import ConfigError, DataError


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(tmp_path, rows, **settings):
    settings = {"task_kind": "number", "output_dir": str(tmp_path / "out"), **settings}
    report = select(SelectArguments(samples=write_jsonl(tmp_path / "samples.jsonl", rows), **settings))
    return report.as_dict(), list(load_rows(settings["output_dir"]))


def row(key, label, *answers, **extra):
    return {
        "id": key,
        "prompt": f"Question {key}?",
        "label": label,
        "rationales": [f"So {a}." for a in answers],
        **extra,
    }


def test_gold_training_set(tmp_path):
    """The columns are the contract with the trainer: a renamed or missing one trains on nothing."""
    report, out = run(tmp_path, [row("a", "3", 4, 3), row("b", "5", 6, meta="x")])
    assert out == [
        {
            "id": "a",
            "prompt": "Question a?",
            "label": "3",
            "positive_rationales": ["So 3."],
            "negative_rationales": ["So 4."],
            "raw_rationale": "So 4.",
        },
        {
            "id": "b",
            "prompt": "Question b?",
            "label": "5",
            "positive_rationales": [],
            "negative_rationales": ["So 6."],
            "raw_rationale": "So 6.",
        },
    ]
    assert report["rows"]["yield"] == 0.5
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.json", "train.parquet"]


def test_training_set_loads_by_its_folder(tmp_path):
    """`load_dataset(OUT)` must find the data and no columns of the report."""
    _, out = run(tmp_path, [row("2019-01-01", "3", 3)])
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert loaded["train"].to_list() == out == load_dataset_from(tmp_path / "out").to_list()


def test_majority_without_labels(tmp_path):
    """Without gold labels the vote labels; a tie has no label and must not be one."""
    rows = [
        {"prompt": f"q{i}", "rationales": [f"So {a}." for a in votes]}
        for i, votes in enumerate(([1, 1, 2], [1, 2], []))
    ]
    report, out = run(tmp_path, rows, label_source="majority")
    assert [(r["id"], r["label"], r["positive_rationales"]) for r in out] == [("0", "1", ["So 1."])]
    assert report["rows"]["dropped"] == {"tie": 1, "no vote": 1}
    assert report["gold"]["questions"] == 0


def test_majority_reports_against_gold_but_does_not_use_it(tmp_path):
    """Gold labels that leak into a selection without labels make its accuracy a fiction."""
    report, out = run(tmp_path, [row("a", "2", 1, 1, 2), row("b", None, 3)], label_source="majority")
    assert [r["label"] for r in out] == ["1", "3"]
    assert (report["gold"]["questions"], report["gold"]["majority_equals_gold"]) == (1, 0.0)


def test_conversational_prompts_and_other_columns(tmp_path):
    """Messages turned into text would lose the chat template."""
    messages = [{"role": "user", "content": "Where is the money?"}]
    rows = [
        {
            "q": messages,
            "a": "B",
            "key": 7,
            "s": [{"text": "The answer is B.", "status": "ok"}],
            "o": ["tree", "bank"],
        },
        {
            "q": messages,
            "a": "A",
            "key": 8,
            "s": [{"text": "The answer is B.", "status": "ok"}],
            "o": ["tree", "bank"],
        },
    ]
    columns = {
        "prompt_column": "q",
        "label_column": "a",
        "id_column": "key",
        "samples_column": "s",
        "choices_column": "o",
    }
    _, out = run(tmp_path, rows, task_kind="choice", **columns)
    assert [(r["id"], r["prompt"], len(r["positive_rationales"])) for r in out] == [
        ("7", messages, 1),
        ("8", messages, 0),
    ]


def test_long_layout(tmp_path):
    """What a sampler writes, one row a sample, selects like the same samples in one row."""
    rows = [
        {"id": "a", "prompt": "q", "label": "3", "sample_index": i, "text": f"So {answer}.", "status": status}
        for i, (answer, status) in enumerate([(3, "ok"), (4, "ok"), (5, "truncated")])
    ]
    report, out = run(tmp_path, rows, samples_column="text")
    assert (out[0]["positive_rationales"], out[0]["negative_rationales"]) == (["So 3."], ["So 4."])
    assert (report["rows"]["in"], report["samples"]["dropped"]) == (1, {"status truncated": 1})


def test_max_samples(tmp_path):
    """A study of the number of samples needs the first n, not any n."""
    report, out = run(tmp_path, [row("a", "3", 3, 4, 5)], max_samples=2)
    assert (report["samples"]["total"], out[0]["negative_rationales"]) == (2, ["So 4."])


def test_bad_rows_are_dropped_with_a_count(tmp_path):
    """One half emoji among 700 rows must cost that text, not the run, and must show in the report."""
    long = "So " + "very " * 40_000 + "well, 3."
    rows = [
        {
            "id": "a",
            "prompt": "😀?",
            "label": "3",
            "rationales": [None, "", "So 3. \ud83d", "So 3. 😀", "So 3. 😀", long, 3],
        },
        {"id": "b", "prompt": "\ud83d", "label": "3", "rationales": ["So 3."]},
        {"id": "c", "prompt": None, "label": "3", "rationales": ["So 3."]},
        {"id": "d", "prompt": "q", "label": None, "rationales": ["So 3."]},
        {"id": "e", "prompt": "q", "label": "3", "rationales": None},
        {"id": "f", "prompt": "q", "label": "3"},
    ]
    report, out = run(tmp_path, rows)
    assert report["rows"]["dropped"] == {"prompt lone_surrogate": 1, "prompt null": 1, "label null": 1}
    assert report["samples"]["dropped"] == {"null": 1, "blank": 1, "lone_surrogate": 1, "not_text": 1}
    assert report["samples"]["duplicates_left_out"] == 1
    assert [r["id"] for r in out] == ["a", "e", "f"]
    assert out[0]["positive_rationales"] == ["So 3. 😀", long]
    assert (out[1]["raw_rationale"], out[1]["positive_rationales"]) == (None, [])
    assert "None" not in json.dumps(out)


def test_many_rows_keep_their_order(tmp_path):
    """Rows are written a thousand at a time; the rest after the last thousand must not get lost."""
    _, out = run(tmp_path, [row(i, str(i), i) for i in range(2001)])
    assert [r["id"] for r in out] == [str(i) for i in range(2001)]


def test_nothing_positive_writes_nothing(tmp_path):
    """Four questions without an agreeing sample: trained on, they would silently be label-only fine-tuning."""
    with pytest.raises(
        DataError, match=r"^0 of 4 questions have a positive rationale: of 4 samples 4 have an answer .*0 equal"
    ):
        run(tmp_path, [row(i, "9", 1) for i in range(4)])
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


def test_wrong_label_names_the_row(tmp_path):
    """A label column of another kind would make every sample a negative."""
    with pytest.raises(DataError, match="Column 'label', row 1"):
        run(tmp_path, [row("a", "3", 3), row("b", "unknown", 3)])


def test_mixed_prompts_name_the_row(tmp_path):
    """Text and messages in one column cannot be stored, nor be meant."""
    rows = [row("a", "3", 3), {**row("b", "3", 3), "prompt": [{"role": "user", "content": "q"}]}]
    with pytest.raises(DataError, match=r"Row 1 .* a list of messages, unlike"):
        run(tmp_path, rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_kind": "numbers"}, "Unknown task_kind 'numbers': expected one of number, choice, nli, text"),
        ({"task_kind": None}, "No task_kind was given"),
        ({"label_source": "teacher"}, "Unknown label_source 'teacher': expected one of gold, majority"),
        ({"max_samples": 0}, "max_samples must be at least 1"),
        ({"task_callable": "json:loads"}, "not both"),
        ({"task_callable": "loads", "task_kind": None}, "module:function"),
        ({"task_callable": "json:no", "task_kind": None}, "cannot be imported"),
        ({"task_callable": "no_such_module:f", "task_kind": None}, "cannot be imported"),
        ({"task_callable": "json:__doc__", "task_kind": None}, "not a function"),
    ],
)
def test_wrong_settings(tmp_path, settings, message):
    """Found before the samples are read, not after."""
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, [row("a", "3", 3)], **settings)


def test_missing_label_column(tmp_path):
    """By majority an absent default column is no error; one that was named is."""
    rows = [{"prompt": "q", "rationales": ["So 3."]}]
    with pytest.raises(DataError, match="no column 'label'"):
        run(tmp_path, rows)
    with pytest.raises(DataError, match="no column 'gold'"):
        run(tmp_path, rows, label_source="majority", label_column="gold")


def test_output_folder_is_not_overwritten_unasked(tmp_path):
    """A training set replaced by accident takes the provenance of every model trained on it along."""
    rows = [row("a", "3", 3)]
    run(tmp_path, rows)
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite_output_dir"):
        run(tmp_path, rows)
    _, out = run(tmp_path, [row("b", "3", 3)], overwrite_output_dir=True)
    assert [r["id"] for r in out] == ["b"]
    with pytest.raises(DataError):
        run(tmp_path, [row("c", "3", 4)], overwrite_output_dir=True)
    assert [r["id"] for r in load_rows(tmp_path / "out")] == ["b"]  # a failed run leaves what was there
    with pytest.raises(ConfigError, match="is a file"):
        run(tmp_path, rows, output_dir=str(tmp_path / "samples.jsonl"))


def test_task_callable(tmp_path, monkeypatch):
    """A function beside the user's data is found though the command lies elsewhere."""
    (tmp_path / "my_answers.py").write_text("def last_word(text):\n    return text.split()[-1].strip('.') or None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert load_callable("my_answers:last_word")("it is red.") == "red"
    rows = [{"prompt": "q", "label": "red", "rationales": ["it is red.", "I say blue."]}]
    _, out = run(tmp_path, rows, task_kind=None, task_callable="my_answers:last_word")
    assert (out[0]["positive_rationales"], out[0]["negative_rationales"]) == (["it is red."], ["I say blue."])


def test_command(tmp_path, capsys):
    """From the shell: YAML with a flag over it, a table on stdout, the progress bar on stderr, status 0 or 2."""
    samples = write_jsonl(tmp_path / "samples.jsonl", [row("a", "3", 3, 4)])
    config = tmp_path / "select.yaml"
    config.write_text(f"samples: {samples}\ntask_kind: nli\nlabel_source: majority\noutput_dir: {tmp_path / 'out'}\n")
    flags = ["--task_kind", "number", "--label-source", "gold"]
    assert cli.main(["select", "--config", str(config), *flags]) == 0
    out, err = capsys.readouterr()
    assert "with a positive (yield)" in out
    assert "selecting" in err
    assert "1/1" in err
    settings = json.loads((tmp_path / "out" / "report.json").read_text())["settings"]
    assert (settings["task_kind"], settings["label_source"]) == ("number", "gold")
    assert cli.main(["select", "--config", str(config), *flags]) == 2
    assert "qcrd select: error: output_dir" in capsys.readouterr().err


def test_svamp(tmp_path, shared_dir, capsys):
    """
    Real samples: a rule that broke would move these shares far.

    The last number of a sample equals the label in 67 % of them. Reading what the text commits to must find at least as
    many ("90 dollars left after spending 38"), and cannot find many more than either reading taken together.
    """
    samples = shared_dir / "data" / "svamp" / "train.jsonl"
    if not samples.is_file():
        pytest.skip(f"no {samples}")
    rows = list(load_rows(samples))
    last = []
    for row in rows:
        for text in row["rationales"]:
            found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)[-1:]
            last.append([float(number.replace(",", "")) for number in found] == [float(row["answer"])])
    assert sum(last) / len(last) == pytest.approx(0.67, abs=0.01)

    argv = ["--samples", str(samples), "--prompt_column", "question", "--label_column", "answer"]
    argv += ["--samples_column", "rationales", "--task_kind", "number", "--output_dir", str(tmp_path / "out")]
    assert cli.main(["select", *argv, "--label_source", "gold"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["rows"]["in"], report["rows"]["out"], report["samples"]["total"]) == (700, 700, 7000)
    assert sum(last) / len(last) <= report["gold"]["share_of_samples"] <= 0.77
    assert 0.85 <= report["gold"]["majority_equals_gold"] <= 0.93
    assert 667 <= report["rows"]["with_positive"] < 700  # by the last number, 33 questions have no right sample
    assert report["samples"]["abstained"] < 0.02 * 7000
    assert len(load_rows(tmp_path / "out")) == 700

    argv += ["--label_source", "majority", "--max_samples", "3", "--overwrite_output_dir"]
    assert cli.main(["select", *argv]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rows"]["out"] == 700 - report["rows"]["dropped"]["tie"]
    capsys.readouterr()
