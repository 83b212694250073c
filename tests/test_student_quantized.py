"""A student on a base that is quantized while it is loaded."""

import pytest
import torch
from datasets import Dataset
from running import config, lora
from saved import QUESTIONS, TAUGHT
from tiny import tiny_llama, word_tokenizer

from qcrd_trl import QCRDTrainer, RationaleStudent
from qcrd_trl.merging import merge_student
from qcrd_trl.models import base_model


@pytest.fixture(scope="module")
def quantization():
    """QLoRA's 4-bit form, where it can be computed."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig

    try:
        import bitsandbytes.functional as functional

        functional.quantize_4bit(torch.ones(64, 64))
    except (ImportError, RuntimeError, OSError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.fixture(scope="module")
def trainer(quantization, tmp_path_factory):
    """A trainer whose adapter has moved on a 4-bit base."""
    folder = tmp_path_factory.mktemp("quantized")
    tiny_llama(hidden_size=64, intermediate_size=128, initializer_range=0.1).save_pretrained(folder / "base")
    word_tokenizer().save_pretrained(folder / "base")
    trainer = QCRDTrainer(
        str(folder / "base"),
        config(folder / "student", optim="adamw_torch", learning_rate=0.02, max_steps=3, beta=0.0),
        Dataset.from_list(TAUGHT),
        quantization_config=quantization,
        peft_config=lora(),
    )
    trainer.train()
    trainer.save_model()
    return trainer


def test_the_student_of_training(trainer, quantization):
    """Loaded as it was trained, it writes and scores what it did in training."""
    student = RationaleStudent.from_pretrained(trainer.args.output_dir, quantization_config=quantization)
    assert base_model(student.model).is_quantized
    here = RationaleStudent(
        trainer.model, trainer.processing_class, trainer.student_format, trainer.discriminator
    ).explain(QUESTIONS, max_new_tokens=8)
    there = student.explain(QUESTIONS, max_new_tokens=8)
    assert [e.rationale for e in there] == [e.rationale for e in here]
    assert [e.quality for e in there] == pytest.approx([e.quality for e in here], abs=1e-5)
    assert trainer.model.training


def test_its_merge_is_on_the_full_base(trainer, tmp_path):
    """The adapter names the base in full precision, so that nothing has to be refused; it is the adapter on that base."""
    merged = merge_student(trainer.args.output_dir, tmp_path / "merged")
    assert merged.difference < 1e-4
    full = RationaleStudent.from_pretrained(trainer.args.output_dir).explain(QUESTIONS, max_new_tokens=8)
    own = RationaleStudent.from_pretrained(merged.folder).explain(QUESTIONS, max_new_tokens=8)
    assert [e.rationale for e in own] == [e.rationale for e in full]
