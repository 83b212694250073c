"""`qcrd discriminator train`: from what `qcrd select` writes to a discriminator, and its figures."""

import json
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from encoders import save_encoder

from qcrd_trl import RationaleScorer
from qcrd_trl.cli.main import main


ROWS = [
    {
        "id": f"q{i}",
        "prompt": f"a + {i}",
        "label": str(i),
        "positive_rationales": [f"{word} {i} so {i} ." for word in "abcd"],
        "negative_rationales": [f"e {i} is {i} ."] * (i % 2),
    }
    for i in range(10)
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def train(tmp_path, encoder):
    """Runs the command on rows; gives its exit status."""

    def train(*argv, rows=ROWS, output=tmp_path / "out"):
        file = tmp_path / "train.parquet"
        Dataset.from_list(rows).to_parquet(file)
        given = ["--dataset", file, "--encoder", encoder, "--output_dir", output, "--max_steps", 3, "--batch_size", 2]
        return main(["discriminator", "train", *map(str, [*given, *argv])])

    return train


def test_what_it_writes(train, tmp_path, capsys):
    """A folder that does not score, or figures that nobody finds, and the run has to be made again."""
    assert train("--eval_fraction", 0.3) == 0
    out = capsys.readouterr().out
    assert "learns from 7 questions: 28 positives" in out
    assert "held out: 3 questions: 12 positives" in out
    assert "held-out positives against" in out
    assert "real negatives" in out
    scorer = RationaleScorer.from_pretrained(tmp_path / "out")
    assert 0 < scorer.score(["a + 1"], ["a 1 so 1 ."])[0] < 1
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report.keys() == {"settings", "counts", "held_out", "losses"}
    assert len(report["losses"]) == report["settings"]["max_steps"] == 3
    assert report["held_out"].keys() == {"real", "mask", "replace"}
    for figures in report["held_out"].values():
        assert {"auc", "accuracy", "brier", "ece", "bins", "num_positive", "num_negative"} <= figures.keys()
        assert 0 <= figures["auc"] <= 1
    counts = report["counts"]
    assert counts["learned_negatives"] + counts["held_out_negatives"] == 5
    assert counts["corrupted"] == 28 - counts["learned_negatives"]
    assert f"balanced by {counts['corrupted']} corrupted positives" in out
    assert {file.name for file in tmp_path.iterdir()} == {"out", "train.parquet"}


def test_the_same_command_gives_the_same_discriminator(train, tmp_path):
    """A seed that leaves anything to chance."""
    torch.manual_seed(1)
    assert train(output=tmp_path / "one") == 0
    torch.manual_seed(2)
    assert train(output=tmp_path / "two") == 0
    assert train("--seed", 1, output=tmp_path / "three") == 0
    for name in ("model.safetensors", "encoder/model.safetensors"):
        one, two, three = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two", "three"))
        assert one == two != three


def test_a_frozen_encoder_and_learning_on(train, tmp_path, encoder):
    """`--freeze_encoder` that is not heeded spends the memory which it is to save."""
    assert train("--freeze_encoder", output=tmp_path / "one") == 0
    given, kept = (
        RationaleScorer.from_encoder(encoder).encoder,
        RationaleScorer.from_pretrained(tmp_path / "one").encoder,
    )
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in given.state_dict().items())
    assert train("--encoder", tmp_path / "one", output=tmp_path / "two") == 0
    report = json.loads((tmp_path / "two" / "training.json").read_text())
    assert report["settings"]["encoder"] == str(tmp_path / "one")
    assert train("--encoder", tmp_path / "one", "--max_length", 20, output=tmp_path / "three") == 2


def test_a_discriminator_is_replaced_and_nothing_else(train, tmp_path, capsys):
    """A mistyped folder of something else would be gone."""
    (tmp_path / "out").mkdir()
    assert train() == 0
    assert train("--seed", 3) == 0
    assert json.loads((tmp_path / "out" / "training.json").read_text())["settings"]["seed"] == 3
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert train(output=other) == 2
    assert "holds something else than a discriminator" in capsys.readouterr().err
    assert (other / "notes.txt").read_text() == "mine"
    assert train(output=other / "notes.txt") == 2


def test_a_failed_write_leaves_the_old_one(train, tmp_path, monkeypatch, capsys):
    """Half of a new discriminator over the whole old one."""
    assert train() == 0
    before = {f.name: f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()}

    def fail(self, folder, training=None):
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RationaleScorer, "write_files", fail)
    assert train("--seed", 5) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()} == before
    assert {file.name for file in tmp_path.iterdir()} == {"out", "train.parquet"}


def without(name):
    return [{key: value for key, value in row.items() if key != name} for row in ROWS]


@pytest.mark.parametrize(
    ("argv", "rows", "message"),
    [
        ([], without("negative_rationales"), "no column 'negative_rationales'"),
        ([], without("positive_rationales"), "no column 'positive_rationales'"),
        ([], [{**row, "negative_rationales": [""]} for row in ROWS], "has a negative rationale"),
        ([], ROWS[1:2], "There is 1 question only"),
        (["--max_steps", 501], ROWS, "max_steps must lie in 1 to 500"),
        (["--eval_fraction", 1.5], ROWS, "--eval_fraction must lie in"),
        (["--hidden_size", 0], ROWS, "--hidden_size must be at least 1"),
        (["--max_length", 100], ROWS, "max_length=100 is more than the 64 tokens"),
        (["--max_length", 2], ROWS, "leaves no room"),
        (["--max_length", 0], ROWS, "--max_length must be at least 1"),
        (["--encoder", "no/such/model"], ROWS, "No discriminator and no encoder could be loaded from 'no/such/model'"),
        (["--dataset", "no.parquet"], ROWS, "no.parquet does not exist"),
        (["--loss", "hinge"], ROWS, "Unknown loss 'hinge'"),
        (["--device", "abacus"], ROWS, "The device 'abacus' cannot be used here"),
        (["--device", "xpu:77"], ROWS, "The device 'xpu:77' cannot be used here"),
    ],
)
def test_bad_input(train, tmp_path, capsys, monkeypatch, argv, rows, message):
    """An error after an hour of training, or a traceback, for what could be seen at once."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert train(*argv, rows=rows) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("qcrd discriminator: error: ")
    assert message in last
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [([], "no sub-command: expected `qcrd discriminator train"), (["trian"], "unknown sub-command 'trian'")],
)
def test_wrong_usage(capsys, argv, message):
    assert main(["discriminator", *argv]) == 2
    assert message in capsys.readouterr().err


def test_help_needs_no_torch(capsys):
    """Seconds of waiting for a page of text."""
    code = (
        "import sys; from qcrd_trl.cli.main import main; assert main(['discriminator', '--help']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert "train  pretrain one" in child.stdout
    with pytest.raises(SystemExit) as ended:
        main(["discriminator", "train", "--help"])
    assert ended.value.code == 0
    assert "--freeze_encoder" in capsys.readouterr().out
