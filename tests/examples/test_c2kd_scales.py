"""Sizes of the parts of a comparison that was run, read from its folder."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from c2kd_runs import item_model
from recommended import small_data

from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.folder import save_data, train_rows
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.teacher_cache import build_cache
from qcrd_trl.recommendation.teacher_states import LiveTeacher
from qcrd_trl.recommendation.tokens import tokenize_rows


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "c2kd_ml100k"


def test_sizes_are_those_of_the_states(tmp_path, monkeypatch, capsys):
    """States of another layer, or before the norm, would say that the scales fit where they do not."""
    monkeypatch.syspath_prepend(str(FOLDER))
    scales = importlib.import_module("scales")
    data = small_data(sequences=[[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 0, 1, 7], [6, 8, 2, 1, 9, 3, 0]])
    save_data(data, tmp_path / "data")
    teacher = LiveTeacher(item_model(12, 4, 5, num_items=12), [2, 3, 4], "float32")
    torch.manual_seed(1)
    filters = LayerFilters((2, 3, 4), 12, 8, 12, "linear", teacher_fingerprint=teacher.fingerprint)
    with torch.no_grad():
        filters.norm.weight.fill_(3.0)
    filters.save_pretrained(tmp_path / "filters-0")
    rows = tokenize_rows(train_rows(data, 50), "item_head", num_items=12)
    collator = DataCollatorForC2KD(12)
    build_cache(teacher, rows, collator, tmp_path / "filters-0" / "teacher_cache", progress=False)
    item_model(num_items=12).save_pretrained(tmp_path / "none-0")
    monkeypatch.setattr(scales, "USERS", 4)
    scales.main(["--work", str(tmp_path), "--students", "none"])
    sizes, _, *lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    sizes = json.loads(sizes)
    read = teacher.read(collator(list(rows)))
    assert sizes["teacher"]["2"] == pytest.approx(read[2].square().mean().sqrt().item())
    assert sizes["raw"]["3"] == pytest.approx(filters(read)[1].square().mean().sqrt().item())
    assert sizes["normed"]["4"] == pytest.approx(3.0, rel=1e-2)
    assert (
        sum("gradient of feature" in line for line in lines) == 6
    )  # three targets, of a random student and of this one
