"""`qcrd select --discriminator` with one that `qcrd discriminator train` wrote."""

import json

import pytest
from datasets import Dataset
from encoders import save_encoder

from qcrd_trl import RationaleDiscriminator, RationaleScorer
from qcrd_trl.cli.main import main
from qcrd_trl.data.sources import load_rows


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A student's folder, with a discriminator that has learned that good rationales say `so` and bad ones `is`."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [
        {
            "id": f"t{i}",
            "prompt": f"a + {i % 10} b{'.' * (i // 10)}",
            "label": str(i % 7),
            "positive_rationales": [f"{word} {i % 10} so {i % 7} ." for word in "abcde"[i % 3 :]],
            "negative_rationales": [f"{word} {i % 10} is {i % 7} ." for word in "abcde"[i % 3 :]],
        }
        for i in range(24)
    ]
    Dataset.from_list(rows).to_parquet(folder / "selected.parquet")
    argv = ["--dataset", folder / "selected.parquet", "--encoder", save_encoder(folder / "encoder")]
    argv += ["--output_dir", folder / "student" / "discriminator", "--hidden_size", 8, "--max_steps", 80]
    argv += ["--batch_size", 8, "--learning_rate", 1e-2, "--encoder_learning_rate", 1e-3]
    assert main(["discriminator", "train", *map(str, argv)]) == 0
    return folder / "student"


@pytest.fixture
def select(tmp_path):
    """Runs the command on samples of two questions, whose labels are 3 and 5; gives its exit status."""
    samples = {3: ["a 3 so 3 .", "d 3 is 3 .", "e 3 so 4 ."], 5: ["d 5 is 5 .", "e 5 is 6 ."]}
    file = tmp_path / "samples.jsonl"
    rows = [{"id": f"q{n}", "prompt": f"a + {n} b", "label": str(n), "rationales": s} for n, s in samples.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def select(*argv, output="out"):
        given = ["--samples", file, "--task_kind", "number", "--output_dir", tmp_path / output]
        return main(["select", *map(str, [*given, *argv])])

    return select


def test_it_says_what_is_kept(student, select, tmp_path):
    """
    Scores of another text, of another question or the wrong way round leave out what is good, and a training set is none the
    wiser. The answers are right on both sides: what is left out is left out for its text.
    """
    assert select("--discriminator", student, output="all") == 0
    assert select("--discriminator", student / "discriminator", "--min_quality", 0.5) == 0
    scorer = RationaleScorer.from_pretrained(student)
    texts = ["a 3 so 3 .", "d 3 is 3 .", "e 3 so 4 .", "d 5 is 5 .", "e 5 is 6 ."]
    scores = dict(zip(texts, scorer.score(["a + 3 b"] * 3 + ["a + 5 b"] * 2, texts), strict=True))
    assert scores["a 3 so 3 ."] > 0.5 > max(scores["d 3 is 3 ."], scores["d 5 is 5 ."])

    for row in [*load_rows(tmp_path / "all"), *load_rows(tmp_path / "out")]:
        for side in ("positive", "negative"):
            expected = [scores[text] for text in row[f"{side}_rationales"]]
            assert row[f"{side}_scores"] == pytest.approx(expected, abs=1e-5)
    before, after = (list(load_rows(tmp_path / name)) for name in ("all", "out"))
    assert [row["positive_rationales"] for row in before] == [["a 3 so 3 .", "d 3 is 3 ."], ["d 5 is 5 ."]]
    assert [row["positive_rationales"] for row in after] == [["a 3 so 3 ."], []]
    # A negative is no worse for a good score.
    assert [row["negative_rationales"] for row in after] == [["e 3 so 4 ."], ["e 5 is 6 ."]]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["quality"] == {"positives": 2, "questions": 1}
    assert report["settings"]["min_quality"] == 0.5


def test_a_discriminator_of_the_other_kind(select, tmp_path, capsys):
    """One that reads a student's states cannot score a text; said before the samples are read, and with nothing written."""
    RationaleDiscriminator(8).save_pretrained(tmp_path / "discriminator")
    for path, message in (
        (tmp_path / "discriminator", "holds no discriminator of kind 'encoder'"),
        (tmp_path / "none", "none"),
    ):
        assert select("--discriminator", path) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("qcrd select: error: ")
        assert message in last
    assert not (tmp_path / "out").exists()


def test_its_device(student, select, tmp_path, capsys, monkeypatch):
    """A flag that went nowhere would score on the CPU for hours; one without a discriminator says that it does nothing."""
    moved = []
    monkeypatch.setattr(RationaleScorer, "to", lambda self, device: moved.append(device) or self)
    assert select("--discriminator", student, "--device", "cpu") == 0
    assert [str(device) for device in moved] == ["cpu"]
    capsys.readouterr()
    for argv, message in (
        (["--discriminator", student, "--device", "xpu:77"], "The device 'xpu:77' cannot be used here"),
        (["--device", "cpu"], "device is where a --discriminator runs: name one"),
    ):
        assert select(*argv, output="none") == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("qcrd select: error: ")
        assert message in last
    assert not (tmp_path / "none").exists()
