"""Arguments and data that cannot work fail before the first step, with what was got and what to do."""

import pytest
import torch
from c2kd_runs import (
    NUM_ITEMS,
    c2kd_config,
    c2kd_trainer,
    filters_of,
    item_model,
    item_rows,
    teacher_model,
)
from datasets import Dataset
from peft import LoraConfig, get_peft_model

from qcrd_trl import C2KDTrainer, QCRDConfig
from qcrd_trl.errors import ConfigError, DataError, ModelError, TrainingError
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.teacher_states import LiveTeacher, teacher_fingerprint


def attempt(tmp_path, model=None, rows=None, parts=None, **overrides):
    """Builds a trainer of exactly these parts, without those that tests get by default."""
    return C2KDTrainer(
        item_model() if model is None else model,
        args=c2kd_config(tmp_path, **overrides),
        train_dataset=Dataset.from_list(item_rows() if rows is None else rows),
        **(parts or {}),
    )


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "logit_kd", "blockwise"])
def test_a_method_without_its_teacher(tmp_path, method):
    """A distillation term that is left out where there is no teacher makes a baseline of the method."""
    parts = {"layer_filters": filters_of()} if method == "c2kd" else {}
    with pytest.raises(ConfigError, match=f"method='{method}' needs a teacher"):
        attempt(tmp_path, parts=parts, method=method)


def test_parts_that_would_do_nothing(tmp_path):
    """A teacher that is loaded and never read costs its memory and looks like distillation."""
    with pytest.raises(ConfigError, match="would do nothing"):
        attempt(tmp_path, parts={"teacher_model": teacher_model()}, method="none")
    with pytest.raises(ConfigError, match="has no router"):
        attempt(tmp_path, parts={"teacher_model": teacher_model(), "layer_filters": filters_of()}, method="logit_kd")


def test_the_router_needs_filters(tmp_path):
    """Raw states in the place of filtered ones would be of another width, or mean nothing to the student."""
    with pytest.raises(ConfigError, match="needs the layer filters"):
        attempt(tmp_path, parts={"teacher_model": teacher_model()})
    with pytest.raises(ModelError, match="No layer filters"):
        attempt(tmp_path, parts={"teacher_model": teacher_model()}, layer_filters=str(tmp_path / "nowhere"))
    identity = {"teacher_model": teacher_model(8), "layer_filters": LayerFilters.identity((3, 4), 8, NUM_ITEMS)}
    with pytest.raises(ConfigError, match="identity filters are not trained"):
        attempt(tmp_path, parts=identity, filter_target="normed")


def test_filters_of_another_teacher(tmp_path):
    """They fit by their sizes, and turn states into what was never trained on."""
    right, other = teacher_model(), teacher_model(seed=6)
    filters = filters_of()
    filters.teacher_fingerprint = teacher_fingerprint(other)
    with pytest.raises(ModelError, match="trained on another teacher"):
        attempt(tmp_path, parts={"teacher_model": right, "layer_filters": filters})
    filters.teacher_fingerprint = teacher_fingerprint(right)
    attempt(tmp_path, parts={"teacher_model": right, "layer_filters": filters})


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (lambda: filters_of(teacher_size=16), "a teacher's width of 16 instead of 12"),
        (lambda: filters_of(size=6), "a student's width of 6 instead of 8"),
        (lambda: LayerFilters((3, 4), 12, 8, NUM_ITEMS + 1), "items or tokens in number 12 instead of 11"),
        (lambda: filters_of(layers=(3, 9)), "of 1 to 4.*layers of the teacher they were made with"),
    ],
)
def test_filters_of_other_sizes(tmp_path, filters, message):
    """A broadcast would make a plausible loss of some of them."""
    with pytest.raises((ModelError, ConfigError), match=message):
        attempt(tmp_path, parts={"teacher_model": teacher_model(), "layer_filters": filters()})


def test_layers_that_do_not_exist(tmp_path):
    """Layers are counted from 1, so the last is not off by one unseen."""
    parts = {"teacher_model": teacher_model(), "layer_filters": filters_of()}
    with pytest.raises(ConfigError, match="student_layer=3, and the student has 2 layers"):
        attempt(tmp_path, parts=parts, student_layer=3)
    with pytest.raises(ConfigError, match=r"none for \[1\]"):
        attempt(tmp_path, parts=parts, candidate_layers=[1, 2])
    with pytest.raises(ConfigError, match="num_blocks=3"):
        attempt(tmp_path, parts={"teacher_model": teacher_model()}, method="blockwise", num_blocks=3)
    reads = LiveTeacher(teacher_model(), [3], "float32")
    with pytest.raises(ConfigError, match="needs layers"):
        attempt(tmp_path, parts={"teacher_model": reads}, method="blockwise")


def test_items_must_be_the_same(tmp_path):
    """Item 7 of one set of data is another film than that of another: the KL is that of chance."""
    parts = {"teacher_model": item_model(12, 3, num_items=NUM_ITEMS + 2)}
    with pytest.raises(ModelError, match="scores 13 items and the student 11"):
        attempt(tmp_path, parts=parts, method="logit_kd")
    with pytest.raises(ModelError, match="scores 13 items and the student 11"):
        attempt(tmp_path, parts=parts, method="logit_kd", num_items=NUM_ITEMS)
    backbone = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ConfigError, match="num_items"):
        attempt(tmp_path, backbone, method="none")
    assert attempt(tmp_path, backbone, method="none", num_items=12).num_items == 12
    with_teacher = attempt(tmp_path, backbone, parts={"teacher_model": teacher_model()}, method="logit_kd")
    assert with_teacher.num_items == NUM_ITEMS


def test_one_model_cannot_be_both(tmp_path):
    """To freeze the teacher would freeze the student."""
    model = item_model()
    with pytest.raises(ConfigError, match="share weights, which cannot be both trained and frozen"):
        attempt(tmp_path, model, parts={"teacher_model": model}, method="logit_kd")
    teacher = LiveTeacher(item_model(seed=1), [2], "float32")
    with pytest.raises(ConfigError, match="share weights"):
        attempt(tmp_path, teacher.model, parts={"teacher_model": teacher}, method="logit_kd")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match="share weights"):
        attempt(tmp_path, adapted, parts={"teacher_model": model}, method="logit_kd")


@pytest.mark.parametrize("metric", ["ndcg@11", "eval_ndcg@10"])
def test_the_best_model_is_told_by_a_metric_that_is_measured(tmp_path, metric):
    """The base class looks for it after the first evaluation, an epoch too late."""
    best = {"method": "none", "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": metric}
    rows = Dataset.from_list(item_rows(3))
    several = metric.startswith("eval_")
    with pytest.raises(
        ConfigError, match="eval_a_ndcg@10" if several else "eval_loss, eval_hr@10, eval_ndcg@10, eval_mrr"
    ):
        attempt(tmp_path, parts={"eval_dataset": {"a": rows} if several else rows}, **best)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"items": [1, 2, NUM_ITEMS]}], "item 11 is not one of the 11 items"),
        ([{"items": [-1, 2]}], "item -1"),
        ([{"sequence": [1, 2]}], "no column 'items'"),
        ([{"items": [1]}], "none of its 1 rows"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, rows, message):
    """An item out of range is the padding, or an error of a kernel after an hour."""
    with pytest.raises(DataError, match=message):
        attempt(tmp_path, rows=rows, method="none")


def test_streams(tmp_path):
    """A stream has no length: without max_steps the schedule would be that of nothing."""
    stream = Dataset.from_list(item_rows(12)).to_iterable_dataset()
    with pytest.raises(ConfigError, match="max_steps"):
        c2kd_trainer(tmp_path, rows=stream, max_steps=-1)
    trainer = c2kd_trainer(tmp_path, rows=stream, max_steps=3, per_device_train_batch_size=4)
    trainer.train()
    whole = c2kd_trainer(tmp_path, rows=item_rows(4), max_steps=1, per_device_train_batch_size=4)
    whole.train()
    first, same = (one.state.log_history[0] for one in (trainer, whole))  # its first 4 rows come first
    assert first["loss"] == pytest.approx(same["loss"], rel=1e-5)
    with pytest.raises(ConfigError, match="streaming dataset cannot be cached"):
        c2kd_trainer(
            tmp_path,
            rows=stream,
            parts={"teacher_model": teacher_model()},
            teacher_cache=str(tmp_path / "cache"),
        )


def test_arguments_of_the_machine(tmp_path, monkeypatch):
    """One process on two devices would copy the heads, and gather batches that are of unlike length."""
    with pytest.raises(ConfigError, match="dispatch_batches"):
        c2kd_trainer(tmp_path, method="none", accelerator_config={"dispatch_batches": True})
    args = c2kd_config(tmp_path, method="none")
    monkeypatch.setattr(type(args), "n_gpu", property(lambda self: 2))
    with pytest.raises(ConfigError, match="2 GPUs in one process"):
        C2KDTrainer(item_model(), args=args, train_dataset=Dataset.from_list(item_rows()))


@pytest.mark.parametrize("kind", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_students_are_not_distilled(tmp_path, monkeypatch, kind):
    """Heads that are not sharded would be stepped by a part of their gradient."""
    prepare = C2KDTrainer.create_accelerator_and_postprocess

    def sharded(self):
        prepare(self)
        setattr(self, kind, True)

    monkeypatch.setattr(C2KDTrainer, "create_accelerator_and_postprocess", sharded)
    with pytest.raises(ConfigError, match="FSDP or DeepSpeed is not supported"):
        c2kd_trainer(tmp_path)


def test_objects_that_are_none(tmp_path):
    """What is not asked for is not guessed."""
    with pytest.raises(ConfigError, match="`C2KDConfig`, got QCRDConfig"):
        C2KDTrainer(item_model(), args=QCRDConfig(str(tmp_path), use_cpu=True, report_to="none"))
    with pytest.raises(ModelError, match="got int"):
        attempt(tmp_path, parts={"teacher_model": 3}, method="logit_kd")
    with pytest.raises(ConfigError, match="init_kwargs"):
        attempt(tmp_path, method="none", model_init_kwargs={"dtype": "float32"})
    with pytest.raises(ConfigError, match="teacher_model_init_kwargs"):
        attempt(
            tmp_path,
            parts={"teacher_model": teacher_model()},
            method="logit_kd",
            teacher_model_init_kwargs={"dtype": "float32"},
        )
    teacher_model().save_pretrained(tmp_path / "teacher")
    trainer = attempt(
        tmp_path,
        parts={"teacher_model": str(tmp_path / "teacher")},
        method="logit_kd",
        teacher_model_init_kwargs={"dtype": "bfloat16"},
    )
    assert trainer.teacher.model.dtype == torch.bfloat16


def test_a_cache_alone_must_hold_the_rows(tmp_path):
    """A row that is not there has no teacher to be computed by, in the middle of a run."""
    cache = str(tmp_path / "cache")
    parts = {"layer_filters": filters_of()}
    c2kd_trainer(tmp_path, rows=item_rows(6), parts={**parts, "teacher_model": teacher_model()}, teacher_cache=cache)
    attempt(tmp_path, rows=item_rows(6), parts=parts, teacher_cache=cache).train()
    with pytest.raises(DataError, match="2 of the 8 different rows"):
        attempt(tmp_path, rows=item_rows(8), parts=parts, teacher_cache=cache)
    with pytest.raises(DataError, match="not in the teacher cache"):
        attempt(tmp_path, rows=item_rows(6), parts=parts, teacher_cache=cache, train_positions="last")
    with pytest.raises(DataError, match=r"(?i)cache"):
        attempt(tmp_path, parts=parts, teacher_cache=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="teacher_dtype"):
        attempt(tmp_path, rows=item_rows(6), parts=parts, teacher_cache=cache, teacher_dtype="float16")


def test_a_teacher_whose_states_overflow(tmp_path):
    """Infinity in half precision is a loss of NaN, or one that a filter of NaNs hides."""
    teacher = teacher_model()
    with torch.no_grad():
        teacher.backbone.norm.weight.mul_(1e6)
    trainer = c2kd_trainer(tmp_path, parts={"teacher_model": teacher}, method="logit_kd", teacher_dtype="float16")
    with pytest.raises(TrainingError, match="teacher_dtype='bfloat16'"):
        trainer.train()


def test_a_folder_that_is_read_is_not_written_into(tmp_path):
    """A student in its teacher's place would be the end of the teacher; one in the data's would be pushed with the users."""
    teacher_model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="output_dir and teacher_model are one folder"):
        attempt(tmp_path, parts={"teacher_model": f"{tmp_path}/"}, method="logit_kd")
    with pytest.raises(ConfigError, match="output_dir and model are one folder"):
        attempt(tmp_path, tmp_path, method="none")
    for name in ("layer_filters", "teacher_cache"):
        with pytest.raises(ConfigError, match=f"output_dir and {name} are one folder"):
            c2kd_config(tmp_path, **{name: str(tmp_path)})
