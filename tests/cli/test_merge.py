"""`qcrd merge`: an adapter as a full model, from the shell."""

import pytest

from qcrd_trl.cli.main import main
from qcrd_trl.models import load_model


def merge(model, output, *flags):
    return main(["merge", "--model", str(model), "--output_dir", str(output), *map(str, flags)])


def test_writes_a_model_and_says_how_near_it_is(saved_student, tmp_path, capsys):
    """Who trained on a base that was quantized while loading has to be told that the merge is another base."""
    assert merge(saved_student("adapter"), tmp_path / "merged", "--dtype", "bfloat16") == 0
    out = capsys.readouterr().out
    assert f"to {tmp_path / 'merged'} (bfloat16)." in out
    assert "total variation" in out
    assert "load_in_4bit" in out
    assert str(load_model(tmp_path / "merged", dtype="auto").dtype) == "torch.bfloat16"
    assert merge(saved_student("adapter"), tmp_path / "merged") == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
    assert merge(saved_student("adapter"), tmp_path / "merged", "--overwrite_output_dir") == 0


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("full", (), "is a full model: there is no adapter to merge"),
        ("adapter", ("--dtype", "int4"), "Unknown dtype 'int4': expected one of float32, bfloat16"),
        ("adapter", ("--base_model", "./no/base"), "The base './no/base'"),
        ("adapter", ("--output_dir", __file__), "is a file: give a folder"),
    ],
)
def test_what_cannot_work_ends_in_one_line(saved_student, tmp_path, capsys, kind, flags, message):
    """And leaves no folder."""
    assert merge(saved_student(kind), tmp_path / "merged", *flags) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qcrd merge: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "merged").exists()
