"""Every kind of source, and every way in which one can be broken."""

import json
import logging

import datasets
import pytest

from qcrd_trl.data import sources
from qcrd_trl.data.sources import load_dataset_from, load_rows
from qcrd_trl.errors import DataError


ROWS = [
    {"id": "a", "prompt": "1 + 1? 😀", "label": "2", "positive_rationales": ["It is 2.", "2"]},
    {"id": "b", "prompt": "1 + 2?\u2028Say.", "label": None, "positive_rationales": []},
]


def write_source(folder, kind):
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    elif kind in ("csv", "tsv"):
        lines = [
            list(ROWS[0]),
            *([r["id"], r["prompt"], r["label"] or "", json.dumps(r["positive_rationales"])] for r in ROWS),
        ]
        cells = [['"' + cell.replace('"', '""') + '"' for cell in line] for line in lines]
        path.write_text("\n".join(("," if kind == "csv" else "\t").join(c) for c in cells), encoding="utf-8")
    elif kind == "parquet":
        datasets.Dataset.from_list(ROWS).to_parquet(path)
    elif kind == "saved":
        datasets.Dataset.from_list(ROWS).save_to_disk(path)
    elif kind == "saved_dict":
        datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(path)
    elif kind == "folder":
        path.mkdir()
        datasets.Dataset.from_list(ROWS).to_parquet(path / "train.parquet")
        (path / "report.json").write_text('{"rows": 2}')
        (path / "README.md").write_text("# rows")
    elif kind == "shards":
        (path / "data").mkdir(parents=True)
        for i, row in enumerate(ROWS):
            (path / "data" / f"train-0000{i}-of-00002.jsonl").write_text(json.dumps(row))
        (path / "data" / "test-00000-of-00001.jsonl").write_text("{}")
    return path


KINDS = ("jsonl", "json", "csv", "tsv", "parquet", "saved", "saved_dict", "folder", "shards")


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_rows(tmp_path, kind):
    """A format that turned null into "None", lost an emoji, or split a line at U+2028 would change the data unseen."""
    rows = load_rows(write_source(tmp_path, kind))
    assert len(rows) == 2
    assert list(rows.column_names) == list(ROWS[0])
    expected = ROWS
    if kind in ("csv", "tsv"):
        assert rows.text_cells
        expected = [{**row, "positive_rationales": json.dumps(row["positive_rationales"])} for row in ROWS]
    assert list(rows) == expected
    assert list(rows) == expected  # a second pass reads afresh


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_dataset(tmp_path, kind):
    """A CSV whose lists stayed text would train on the characters of a JSON string."""
    dataset = load_dataset_from(write_source(tmp_path, kind))
    assert isinstance(dataset, datasets.Dataset)
    assert dataset.to_list() == ROWS


def test_rows_survive_as_they_are(tmp_path):
    """Arrow refuses lone surrogates and mixed types: read through it, one such row would end the whole run."""
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"a": "\\ud83d"}\n\n{"a": 1, "b": null}\r\n{"a": ["\\ud83d\\ude00"]}\n', encoding="utf-8")
    rows = load_rows(path)
    assert rows.column_names == ["a", "b"]
    assert list(rows) == [{"a": "\ud83d"}, {"a": 1, "b": None}, {"a": ["😀"]}]


def test_dataset_reports_rows_it_cannot_hold(tmp_path, caplog):
    """Rows left out without a word would be missed by nobody."""
    path = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": "p", "positive_rationales": ["ok"]},
        {"prompt": "q", "positive_rationales": ["\ud83d"]},
        {"x": 1},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    with caplog.at_level(logging.WARNING):
        dataset = load_dataset_from(path)
    assert dataset.to_list() == [
        {"prompt": "p", "positive_rationales": ["ok"], "x": None},
        {"prompt": None, "positive_rationales": None, "x": 1},
    ]
    assert "left out 1 of 3 rows that hold a lone surrogate" in caplog.text
    assert "(row 1, counted from 0)" in caplog.text


def test_dataset_of_mixed_types_names_the_row(tmp_path):
    """Arrow's own message names neither the column nor the row."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"label": "2"}\n{"label": null}\n{"label": 3}\n')
    with pytest.raises(DataError, match="column 'label' mixes types: str in row 0, int in row 2"):
        load_dataset_from(path)
    path.write_text('{"label": "\\ud83d"}\n')
    with pytest.raises(DataError, match="none of its 1 rows"):
        load_dataset_from(path)


def test_json_lines_under_the_name_json(tmp_path):
    """Many public datasets name JSON Lines .json."""
    path = tmp_path / "rows.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert list(load_rows(path)) == [{"a": 1}, {"a": 2}]


def test_very_long_csv_cell(tmp_path):
    """The csv module refuses cells over 128 KiB by default."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "x" * 300_000 + ",\n")
    assert list(load_rows(path)) == [{"a": "x" * 300_000, "b": None}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', r"rows\.jsonl, line 2: not valid JSON"),
        ("rows.jsonl", b'{"a": 1}\n\n[1]\n', r"rows\.jsonl, line 3: expected an object .* got list"),
        ("rows.jsonl", b'{"a": "\xff"}\n', r"rows\.jsonl, line 1: not UTF-8"),
        ("rows.jsonl", b"\n \n", "has no rows"),
        ("rows.jsonl", b"[" * 100_000, r"rows\.jsonl, line 1: not valid JSON"),
        ("rows.json", b"", "has no rows"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.json", b'[{"a": 1},\n {"a" 2}]', r"rows\.json: not valid JSON .*line 2"),
        ("rows.json", b'[{"a": 1}, 2]', r"rows\.json, item 1: expected an object"),
        ("rows.csv", b"", "has no rows"),
        ("rows.csv", b"a,b\n", "has no rows"),
        ("rows.csv", b"a,b\n1,2\n1,2,3\n", r"rows\.csv, line 3: 3 cells, but the header names 2"),
        ("rows.csv", b'a,b\n1,"2\n3,4\n', r"rows\.csv, line 3: not valid CSV"),
        ("rows.csv", b"a,a\n1,2\n", "empty or stands twice"),
        ("rows.csv", b"a\n\xff\n", "not UTF-8"),
        ("rows.parquet", b"no parquet", "cannot be read as Parquet"),
        ("rows.txt", b"text", r"no data file: expected one of \.jsonl"),
    ],
)
def test_unreadable_files_name_the_place(tmp_path, name, content, message):
    """A broken line found hours into a run, or skipped in silence, costs more than the run."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_rows(path)


def test_empty_datasets(tmp_path):
    """Zero rows would show up as a division by zero far from here."""
    empty = datasets.Dataset.from_dict({"a": []})
    empty.save_to_disk(tmp_path / "saved")
    empty.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="has no rows"):
        load_rows(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="is empty or cannot be read"):
        load_rows(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="holds no data file"):
        load_rows(tmp_path / "folder")


def test_missing_paths_are_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    """A typing error in a path must not wait for the network."""
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("asked the Hub"))
    for name in ("trian.jsonl", "./data", str(tmp_path / "no"), "a/b/c"):
        with pytest.raises(DataError, match="does not exist"):
            load_rows(name)


def test_splits(tmp_path):
    """The wrong split trained on is a leak that no number shows."""
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"split": split}))
    assert list(load_rows(tmp_path)) == [{"split": "train"}]
    assert list(load_rows(tmp_path, split="validation")) == [{"split": "validation"}]
    assert list(load_rows(tmp_path / "validation.jsonl", split="validation")) == [{"split": "validation"}]
    with pytest.raises(DataError, match=r"no split 'test'\. The splits are: train, validation"):
        load_rows(tmp_path, split="test")
    with pytest.raises(DataError, match="one file and has no split 'test'"):
        load_rows(tmp_path / "train.jsonl", split="test")
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "test.jsonl").write_text("{}")
    with pytest.raises(DataError, match="several splits and no split was named"):
        load_rows(tmp_path)
    (tmp_path / "test.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"several files for one split: test\.csv, test\.jsonl"):
        load_rows(tmp_path, split="test")
    with pytest.raises(DataError, match="no configuration"):
        load_rows(tmp_path, config_name="main")


def test_splits_of_saved_datasets(tmp_path):
    """As above, for `save_to_disk`."""
    one = datasets.Dataset.from_list([{"a": 1}])
    datasets.DatasetDict({"train": one, "dev": datasets.Dataset.from_list([{"a": 2}])}).save_to_disk(tmp_path / "dict")
    one.save_to_disk(tmp_path / "one")
    assert list(load_rows(tmp_path / "dict")) == [{"a": 1}]
    assert list(load_rows(tmp_path / "dict", split="dev")) == [{"a": 2}]
    with pytest.raises(DataError, match=r"no split 'test'\. The splits are: train, dev"):
        load_rows(tmp_path / "dict", split="test")
    with pytest.raises(DataError, match="no split 'dev'"):
        load_rows(tmp_path / "one", split="dev")


def test_hub(monkeypatch):
    """Offline there is no Hub; what is passed to it and what becomes of its errors still counts."""
    features = datasets.Features({"label": datasets.ClassLabel(names=["entailment", "neutral"])})
    data = datasets.Dataset.from_dict({"label": [1, 0, -1]}, features=features)
    calls = []

    def load_dataset(name, config_name, split, streaming):
        calls.append((name, config_name, split, streaming))
        if name == "no/where":
            raise ConnectionError("Couldn't reach\nthe Hub")
        if streaming:
            return datasets.IterableDatasetDict({"train": data.to_iterable_dataset()})
        return data if split else datasets.DatasetDict({"train": data})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    names = [{"label": "neutral"}, {"label": "entailment"}, {"label": None}]
    assert list(load_rows("esnli")) == names
    assert list(load_rows("some/nli", split="test", config_name="plain")) == names
    stream = load_rows("esnli", streaming=True)
    assert list(stream) == names
    assert stream.num_rows is None
    assert calls == [("esnli", None, None, False), ("some/nli", "plain", "test", False), ("esnli", None, None, True)]
    with pytest.raises(DataError, match=r"no path that exists, and the Hub gave no dataset .*Couldn't reach the Hub"):
        load_rows("no/where")


def test_no_import_of_torch():
    """Reading a file must stay quick; torch alone takes seconds."""
    assert "torch" not in vars(sources)
