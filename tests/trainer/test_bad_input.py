"""What cannot work is refused before training starts, with what was got and what to do."""

import math

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from peft import PromptTuningConfig, get_peft_model
from running import config, lora, trainer_of
from tiny import ragged_rows, tiny_llama, tiny_t5, word_tokenizer
from transformers import TrainingArguments

from qcrd_trl import QCRDConfig, QCRDError, QCRDTrainer
from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.models import prepare_student


def change(**columns):
    """The rows with other values in the third of them."""
    rows = [dict(row) for row in ragged_rows()]
    rows[2].update(columns)
    return rows


def without(*names):
    return [{name: value for name, value in row.items() if name not in names} for row in ragged_rows()]


def test_the_rows_of_these_tests_are_right_but_for_what_they_change(tmp_path):
    """Otherwise each test below could pass for another fault of the same rows."""
    assert len(trainer_of(tmp_path, rows=change()).train_dataset) == 8


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (without("prompt"), ["train_dataset has no column 'prompt'", "'label'", "rename_columns"]),
        (without("positive_rationales"), ["no column 'positive_rationales'", "qcrd select"]),
        (without("prompt", "positive_rationales"), ["'prompt', 'positive_rationales'"]),
        (
            [{**row, "prompt": 3} for row in ragged_rows()],
            ["Row 0", "'prompt'", "a text or a list of messages", "int 3"],
        ),
        ([{**row, "label": 1.5} for row in ragged_rows()], ["Row 0", "'label'", "float 1.5", "Convert"]),
        (
            [{**row, "positive_rationales": "a is so"} for row in ragged_rows()],
            ["Row 0", "'positive_rationales'", "a list of texts", "str 'a is so'"],
        ),
        (
            [{**row, "negative_rationales": [1, 2]} for row in ragged_rows()],
            ["Row 0", "'negative_rationales'", "int 1"],
        ),
        ([{**row, "prompt": [{"role": "user", "content": None}]} for row in ragged_rows()], ["Row 0", "'content'"]),
        (change(prompt="a " * 60), ["Row 2", "'prompt'", "max_length=50", "Raise `max_length`"]),
        (change(label="a " * 60), ["Row 2", "label has 61 tokens", "max_length=50"]),
        (
            [{**row, "positive_rationales": []} for row in ragged_rows(4)],
            ["0 of 4 questions have a positive rationale", "label_only"],
        ),
        (
            [{**row, "prompt": " "} for row in ragged_rows(4)],
            ["none of its 4 rows can be used", "4 rows dropped: prompt null, empty"],
        ),
    ],
    ids=str,
)
def test_rows(tmp_path, rows, named):
    """Met in the middle of a run, a wrong row costs the hours before it; unnamed, the search for it."""
    with pytest.raises(DataError) as error:
        trainer_of(tmp_path, rows=rows, max_length=50)
    for part in named:
        assert part in str(error.value)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, QCRDError)


def test_the_name_of_the_evaluation_set_is_told(tmp_path):
    """Two datasets are given: the message must say which of them is wrong."""
    bad = Dataset.from_list(without("prompt"))
    with pytest.raises(DataError, match="eval_dataset has no column 'prompt'"):
        trainer_of(tmp_path, parts={"eval_dataset": bad})
    with pytest.raises(DataError, match=r"eval_dataset\['held_out'\] has no column"):
        trainer_of(tmp_path, parts={"eval_dataset": {"held_out": bad}})


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Dataset.from_dict({"prompt": [], "label": [], "positive_rationales": []}),
            "train_dataset is empty: it has 0",
        ),
        (ragged_rows(), r"got list.*Dataset.from_list"),
        (DatasetDict({"train": Dataset.from_list(ragged_rows())}), r"dictionary of splits \(train\).*Pass one"),
        ({"train": Dataset.from_list(ragged_rows())}, "dictionary of splits"),
        ("data.json", "must be a `datasets.Dataset`.*got str"),
    ],
    ids=["empty", "list", "DatasetDict", "dict", "str"],
)
def test_datasets(tmp_path, dataset, message):
    """A dataset of another kind would fail deep inside a data loader, or train on the names of its splits."""
    with pytest.raises(DataError, match=message):
        QCRDTrainer(tiny_llama(), config(tmp_path), dataset, processing_class=word_tokenizer())


def test_a_stream_needs_max_steps(tmp_path):
    """It has no length, so that nothing says when training ends, nor how the learning rate falls."""
    stream = Dataset.from_list(ragged_rows(6)).to_iterable_dataset()
    with pytest.raises(ValueError, match="max_steps"):
        trainer_of(tmp_path, rows=stream, max_steps=-1)
    empty = IterableDataset.from_generator(lambda: iter(()))
    with pytest.raises(DataError, match="empty"):
        trainer_of(tmp_path, rows=empty)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduction": "median"}, "Unknown reduction 'median': expected one of min_max, max_min, sampling, mean"),
        ({"positive_reduction": "min_max"}, "Unknown positive_reduction 'min_max': expected one of min, max"),
        ({"preset": "best"}, "Unknown preset 'best': expected one of label_only, dss"),
        ({"margin_type": "soft"}, "Unknown margin_type 'soft'"),
        ({"quality_weighting": "softmax"}, "Unknown quality_weighting 'softmax'"),
        ({"discriminator": "t5"}, "Unknown discriminator 't5'"),
        ({"discriminator_loss": "hinge"}, "Unknown discriminator_loss 'hinge'"),
        ({"rationale_source": "all"}, "Unknown rationale_source 'all'"),
        *[({name: math.nan}, f"{name} must be a finite number") for name in ("alpha_1", "alpha_2", "alpha_3", "beta")],
        *[({name: -0.1}, f"{name} must be a finite number of at least 0, got -0.1") for name in ("alpha_1", "margin")],
        ({"beta": math.inf}, "beta must be a finite number of at least 0, got inf"),
        ({"alpha_3_decay": "0.9"}, "alpha_3_decay must be a finite number of at least 0, got '0.9'"),
        ({"discriminator_learning_rate": math.nan}, "discriminator_learning_rate must be a finite number"),
        ({"max_length": 0}, "max_length must be an integer of at least 1, got 0"),
        ({"discriminator_update_interval": 0}, "discriminator_update_interval must be an integer of at least 1"),
        ({"rationale_forward_passes": 1.5}, "rationale_forward_passes must be an integer"),
        ({"alpha_1": 0.0, "alpha_2": 0.0}, "would learn nothing"),
        ({"predict_prefix": "Q:", "explain_prefix": "Q:"}, "could not tell the label task from the rationale task"),
        ({"preset": "dss", "quality_weighting": "printed"}, "needs a discriminator"),
        ({"preset": "dss", "reduction": "weighted_mean"}, "'weighted_mean' needs a discriminator"),
    ],
    ids=str,
)
def test_arguments(tmp_path, arguments, message):
    """A combination that cannot work must fail when it is written down, not when a model of gigabytes is there."""
    with pytest.raises(ConfigError) as error:
        QCRDConfig(output_dir=str(tmp_path), **arguments)
    assert message in str(error.value)


def test_arguments_of_another_class(tmp_path):
    """`TrainingArguments` have no alphas: the trainer would fail at the first step."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(ConfigError, match="must be a `QCRDConfig`, got TrainingArguments"):
        QCRDTrainer(tiny_llama(), args, Dataset.from_list(ragged_rows()), processing_class=word_tokenizer())


@pytest.mark.parametrize("name", ["quantization_config", "model_init_kwargs"])
def test_arguments_for_loading_with_a_loaded_model(tmp_path, name):
    """Ignored, they would leave the model in full precision while the user counts on four bits."""
    given = {"dtype": "bfloat16"}
    parts, overrides = ({name: given}, {}) if name == "quantization_config" else ({}, {name: given})
    with pytest.raises(ConfigError, match="when the model is loaded here"):
        trainer_of(tmp_path, parts=parts, **overrides)


def test_tokenizers(tmp_path):
    """Without an end, a student is taught to talk on for ever."""
    with pytest.raises(ModelError, match="no eos token and no pad token"):
        trainer_of(tmp_path, processing_class=word_tokenizer(pad=None, eos=None))
    with pytest.raises(ModelError, match=r"no eos token: .*Set `tokenizer.eos_token`"):
        trainer_of(tmp_path, processing_class=word_tokenizer(eos=None))
    trainer = trainer_of(tmp_path, processing_class=word_tokenizer(pad=None))
    assert trainer.processing_class.pad_token == "</s>"
    with pytest.raises(ModelError, match="chat template"):
        trainer_of(tmp_path, rows=[{**row, "prompt": [{"role": "user", "content": "a"}]} for row in ragged_rows()])


def test_no_tokenizer_for_a_model_without_one(tmp_path):
    """A model built in a script has none beside it, and the message must not be that of a Hub request."""
    with pytest.raises(ModelError, match=r"(?i)tokenizer"):
        QCRDTrainer(tiny_llama(), config(tmp_path), Dataset.from_list(ragged_rows()))


@pytest.mark.parametrize(
    ("model", "parts", "message"),
    [
        (lambda: get_peft_model(tiny_llama(), lora(), adapter_name="mine"), {}, "named 'mine'.*'default'"),
        (
            lambda: get_peft_model(tiny_llama(), lora(inference_mode=True)),
            {},
            "No parameter of the model requires grad",
        ),
        (lambda: tiny_llama().requires_grad_(False), {}, "No parameter of the model requires grad"),
        (lambda: get_peft_model(tiny_llama(), lora()), {"peft_config": lora()}, "`PeftModel` already"),
        (lambda: torch.nn.Linear(2, 2), {}, "must be an id, a path, a `PreTrainedModel` or a `PeftModel`, got Linear"),
        (lambda: tiny_llama().model, {}, "no language-modelling head"),
        (
            tiny_llama,
            {"peft_config": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)},
            "Prompt learning",
        ),
        (lambda: "./no/such/folder", {}, "No model could be loaded from './no/such/folder'"),
    ],
    ids=["adapter_name", "frozen_adapter", "frozen", "two_configs", "module", "no_head", "prompt_learning", "unknown"],
)
def test_students(tmp_path, model, parts, message):
    """A student that cannot move, or whose checkpoints are not found again, trains for hours for nothing."""
    with pytest.raises((ModelError, ConfigError), match=message):
        trainer_of(tmp_path, model(), parts=parts)


def test_an_adapter_that_is_no_peft_model(tmp_path):
    """Saved by another way, it would be missing from every checkpoint."""
    model = tiny_llama()
    model._hf_peft_config_loaded = True  # as `model.add_adapter` leaves it, where versions of PEFT allow that
    with pytest.raises(ModelError, match="not a `PeftModel`"):
        trainer_of(tmp_path, model)


@pytest.mark.parametrize(("make", "warns"), [(tiny_t5, True), (tiny_llama, False)])
def test_half_precision_and_t5(tmp_path, caplog, make, warns):
    """T5 overflows in fp16; the loss becomes NaN after hours, and nothing says why."""
    args = config(tmp_path)
    args.fp16 = True  # which the arguments themselves refuse on a machine without a GPU
    prepare_student(make(), args)
    assert ("overflow in fp16" in caplog.text) == warns


def test_rows_that_are_dropped_are_counted(tmp_path, caplog):
    """Left out in silence, nobody knows what the student was taught."""
    rows = change(prompt="", positive_rationales=["a", "a", "", None, "a  "], negative_rationales=["a"])
    rows[4].update(positive_rationales=["b", "b ", "", "d " * 60], negative_rationales=[" b"])
    trainer = trainer_of(tmp_path, rows=rows, max_length=50)
    assert len(trainer.train_dataset) == 7
    for part in (
        "1 rows dropped: prompt",
        "1 rationales dropped: null, empty",
        "1 rationales dropped: equal to another",
        "1 negatives dropped: equal to a positive",
        "1 rationales cut at max_length",
    ):
        assert part in caplog.text
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0
