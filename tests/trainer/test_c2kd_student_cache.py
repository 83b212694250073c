"""A student that is trained from the teacher cache is the one that is trained beside the teacher."""

import gc
import weakref

import pytest
import torch
from c2kd_runs import NUM_ITEMS, c2kd_logs, c2kd_trainer, filters_of, item_model, item_rows, teacher_model
from running import largest_difference, weights

from qcrd_trl.recommendation.teacher_cache import CachedTeacher
from qcrd_trl.recommendation.teacher_states import LiveTeacher


METHODS = ("c2kd", "feature_kd", "logit_kd", "blockwise")


def equal_rows(count: int = 16) -> list[dict]:
    draws = torch.Generator().manual_seed(0)
    return [{"items": torch.randint(0, NUM_ITEMS, (6,), generator=draws).tolist()} for _ in range(count)]


def three_ways(folder, method: str, rows: list[dict], **overrides) -> list[dict]:
    """The same run with the teacher loaded, with teacher and cache, and from the cache alone."""
    out = []
    item_model().save_pretrained(folder / "student")
    for has_teacher, has_cache in ((True, False), (True, True), (False, True)):
        parts = {"teacher_model": teacher_model() if has_teacher else None}
        if method == "c2kd":
            parts["layer_filters"] = filters_of()
        trainer = c2kd_trainer(
            folder / "run",
            str(folder / "student"),
            rows,
            parts,
            **{
                "method": method,
                "teacher_cache": str(folder / "cache") if has_cache else None,
                "teacher_dtype": "float16",
                "max_steps": 6,
                "per_device_train_batch_size": 4,
                "per_device_eval_batch_size": 4,
                "lambda_feat": 0.7 if method != "logit_kd" else 0.0,
                "lambda_logit": 0.4 if method in ("c2kd", "logit_kd") else 0.0,
                **overrides,
            },
        )
        assert isinstance(trainer.teacher, CachedTeacher if has_cache else LiveTeacher)
        before = weights(trainer.model)
        trainer.train()
        out.append({"before": before, "after": weights(trainer.model), "logs": c2kd_logs(trainer)})
    return out


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_one_shape_train_the_same_student_bit_for_bit(tmp_path, method):
    """The same rows in batches of the same shape: whatever differs then is the cache's doing."""
    live, built, alone = three_ways(tmp_path, method, equal_rows(), optim="adamw_torch", learning_rate=0.01)
    assert largest_difference(live["before"], live["after"]) > 0.02
    assert largest_difference(live["after"], built["after"]) == 0
    assert largest_difference(live["after"], alone["after"]) == 0
    assert live["logs"] == built["logs"] == alone["logs"]


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7), ("float32", 2.0**-20)])
def test_batches_of_other_shapes_train_the_same_student_up_to_a_rounding(tmp_path, dtype, unit):
    """
    Rows of 2 to 7 items are padded otherwise in the cache's batches than in training. A state then differs by one unit of its
    dtype at most (2^-10 of it in float16, where float32's last bits fall to the other side of a rounding), and a gradient by
    about as much of itself; under plain gradient descent weights differ by no more than that share of the way they went, once
    more for what a step makes of the difference of the steps before.
    """
    live, built, alone = three_ways(tmp_path, "c2kd", item_rows(16), teacher_dtype=dtype)
    way = largest_difference(live["before"], live["after"])
    assert way > 0.02
    assert largest_difference(live["after"], built["after"]) <= 2 * unit * way + 1e-6
    assert largest_difference(built["after"], alone["after"]) == 0


def test_training_from_the_cache_loads_no_teacher(tmp_path, monkeypatch):
    """Nothing fails when a teacher is loaded beside its cache: memory is all that shows it."""
    teacher = teacher_model()
    alive = weakref.ref(teacher)
    parts = {"teacher_model": teacher, "layer_filters": filters_of()}
    c2kd_trainer(tmp_path / "a", rows=equal_rows(), parts=parts, teacher_cache=str(tmp_path / "cache"))
    del teacher, parts
    gc.collect()
    assert alive() is None  # let go once the cache was there

    def fail(*args, **kwargs):
        raise AssertionError("a teacher was loaded")

    monkeypatch.setattr("qcrd_trl.recommendation.teacher.load_recommender", fail)
    monkeypatch.setattr(LiveTeacher, "__init__", fail)
    trainer = c2kd_trainer(
        tmp_path / "b", rows=equal_rows(), parts={"layer_filters": filters_of()}, teacher_cache=str(tmp_path / "cache")
    )
    before = weights(trainer.model)
    trainer.train()
    assert largest_difference(before, weights(trainer.model)) > 0
    assert sum(p.numel() for p in trainer.teacher.head.parameters()) == NUM_ITEMS * 12
