"""Students with an adapter, in 4 bits, under gradient checkpointing and in bfloat16; and models that write titles."""

import pytest
import torch
from c2kd_runs import (
    NUM_ITEMS,
    c2kd_config,
    c2kd_logs,
    c2kd_trainer,
    filters_of,
    item_model,
    item_rows,
    record_c2kd,
    teacher_model,
)
from datasets import Dataset
from peft import PeftModel
from running import largest_difference, lora, moved, weights
from tiny import VOCAB_SIZE, tiny_llama, word_tokenizer
from transformers import BitsAndBytesConfig

from qcrd_trl import C2KDTrainer
from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.loading import load_recommender


ADAMW = {"optim": "adamw_torch", "learning_rate": 0.01}
# The target's title is 1 to 2 words and EOS.
TEXTS = [
    {"prompt": f"a {i} + b c", "completion": title, "row": i}
    for i, title in enumerate(["d e", "f", "g = 1", "a", "b b", "c 2", "d", "e f g"])
]


def saved_student(tmp_path, **overrides):
    item_model(**overrides).save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def four_bit():
    functional = pytest.importorskip("bitsandbytes.functional")
    try:
        functional.quantize_4bit(torch.ones(64, 64))
    except (RuntimeError, OSError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.mark.parametrize("method", ["c2kd", "feature_kd", "blockwise"])
@pytest.mark.parametrize("quantized", [False, True])
def test_an_adapter_and_the_items_are_trained(tmp_path, method, quantized):
    """An adapter that gets no gradient, items that stay as drawn, or a base that moves would be seen in the result alone."""
    size = 64 if quantized else 8
    parts = {"peft_config": lora()}
    if quantized:
        parts["quantization_config"] = four_bit()
    if method == "c2kd":
        parts["layer_filters"] = filters_of(size)
    trainer = c2kd_trainer(
        tmp_path / "run", saved_student(tmp_path, size=size), parts=parts, method=method, max_steps=3, **ADAMW
    )
    assert isinstance(trainer.model, PeftModel)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    trainer.evaluate(Dataset.from_list(item_rows(3, 5)))  # between steps of training, also in 4 bits
    changed = moved(before, {name: p.detach().clone() for name, p in trainer.model.named_parameters()})
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert changed == trained
    assert any("lora_B" in name for name in trained)
    assert any("item_embeddings.modules_to_save" in name for name in trained)
    assert any("head.modules_to_save" in name for name in trained)
    assert not any("original_module" in name or "base_layer" in name for name in trained)
    trainer.save_model()
    loaded = load_recommender(tmp_path / "run", parts.get("quantization_config"))
    items = torch.tensor([[3, 1, 5]])
    assert largest_difference({"scores": loaded(items).logits}, {"scores": trainer.model.eval()(items).logits}) < (
        1e-6 if not quantized else 1e-4
    )


@pytest.mark.parametrize("method", ["c2kd", "blockwise"])
@pytest.mark.parametrize("adapter", [False, True])
def test_gradient_checkpointing_changes_no_gradient(tmp_path, method, adapter):
    """States read within a layer that is run again for its gradient have none, in silence, if they are read wrongly."""
    noted = []
    for checkpoints in (False, True):
        parts = {"peft_config": lora(init_lora_weights=False)} if adapter else {}
        torch.manual_seed(0)
        trainer = c2kd_trainer(
            tmp_path / "run",
            saved_student(tmp_path) if adapter else item_model(),
            parts=parts,
            method=method,
            gradient_checkpointing=checkpoints,
            **({"student_layer": 1} if method == "c2kd" else {}),
        )
        record = record_c2kd(trainer)
        trainer.train()
        noted.append(record[0])
    assert largest_difference(*noted) < 1e-6
    inner = [value for name, value in noted[1].items() if "layers.0." in name]
    assert inner
    assert all(value.abs().max() > 0 for value in inner)
    with pytest.raises(ConfigError, match="use_reentrant"):
        c2kd_trainer(tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})


def test_bfloat16_is_near_to_float32(tmp_path):
    """Losses summed in bfloat16 lose their small parts, and a router in it chooses by rounding."""
    entries = []
    for bf16 in (False, True):
        trainer = c2kd_trainer(tmp_path, bf16=bf16, max_steps=2)
        trainer.train()
        entries.append(c2kd_logs(trainer)[0])
    for name in ("loss", "loss/task", "loss/feature", "loss/logit", "cosine"):
        assert entries[1][name] == pytest.approx(entries[0][name], rel=0.02)
        assert entries[1][name] != entries[0][name]


def test_a_teacher_in_bfloat16_is_read(tmp_path):
    """Half of the memory of a large teacher; its head must then take what the student's projection gives."""
    trainer = c2kd_trainer(tmp_path, parts={"teacher_model": teacher_model().bfloat16()}, teacher_dtype="bfloat16")
    trainer.train()
    exact = c2kd_trainer(tmp_path)
    exact.train()
    for name in ("loss/feature", "loss/logit"):
        assert c2kd_logs(trainer)[0][name] == pytest.approx(c2kd_logs(exact)[0][name], rel=0.1)


# ---- Models that write titles ----


def text_trainer(folder, parts=None, model=None, **overrides):
    args = c2kd_config(folder, task_mode="generative", **overrides)
    parts = dict(parts or {})
    parts.setdefault("processing_class", word_tokenizer())
    if args.uses_teacher:
        parts.setdefault("teacher_model", tiny_llama(7, hidden_size=24, num_hidden_layers=4))
    if args.uses_router:
        torch.manual_seed(2)
        parts.setdefault("layer_filters", LayerFilters((3, 4), 24, 16, VOCAB_SIZE))
    return C2KDTrainer(
        tiny_llama() if model is None else model, args=args, train_dataset=Dataset.from_list(TEXTS), **parts
    )


@pytest.mark.parametrize("method", ["c2kd", "none", "feature_kd", "logit_kd", "blockwise"])
def test_generative_mode_trains_titles_alone(tmp_path, method):
    """Prompt tokens that count, or an EOS that does not, teach to write histories, or titles without an end."""
    trainer = text_trainer(tmp_path, method=method, max_steps=2, parts={"eval_dataset": Dataset.from_list(TEXTS[:3])})
    student, tokenizer = tiny_llama(), word_tokenizer()
    total = count = 0
    for row in TEXTS:
        # A plain prompt and its completion are parted by a line break, which this tokenizer does not see.
        prompt, title = tokenizer(row["prompt"]).input_ids, [*tokenizer(row["completion"]).input_ids, 1]
        logits = student(torch.tensor([prompt + title])).logits[0]
        for place, token in enumerate(title):
            total -= logits[len(prompt) + place - 1].log_softmax(0)[token].item()
            count += 1
    trainer.train()
    logs = c2kd_logs(trainer)
    assert logs[0]["loss/task"] == pytest.approx(total / count, rel=1e-5)
    expected = {"c2kd": {"feature", "logit"}, "none": set(), "feature_kd": {"feature"}, "logit_kd": {"logit"}}
    expected["blockwise"] = {"feature", "block_task"}
    assert {name[5:] for name in logs[0] if name.startswith("loss/")} == {"task"} | expected[method]
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] > 0
    assert "eval_hr@10" not in metrics


def test_generative_mode_with_an_adapter(tmp_path):
    """The head and the embeddings of tokens stay as they are: the adapter alone is trained."""
    trainer = text_trainer(tmp_path, {"peft_config": lora()}, max_steps=2, **ADAMW)
    before = weights(trainer.model)
    trainer.train()
    changed = moved(before, weights(trainer.model))
    assert changed
    assert all("lora_" in name for name in changed)


def test_a_larger_padded_vocabulary_is_cut(tmp_path):
    """Models of one family pad their vocabularies to different sizes; no token has the ids beyond."""
    teacher = tiny_llama(7, vocab_size=VOCAB_SIZE + 9, num_hidden_layers=3)
    trainer = text_trainer(tmp_path, {"teacher_model": teacher}, method="logit_kd")
    trainer.train()
    assert c2kd_logs(trainer)[0]["loss/logit"] > 0


def test_another_tokenizer_is_refused(tmp_path):
    """Ids that mean other words to the teacher give it a text of chance, and the student its noise."""
    with pytest.raises(ModelError, match=r"teacher's head has 20 tokens"):
        text_trainer(tmp_path, {"teacher_model": tiny_llama(vocab_size=20)}, method="logit_kd")
    tiny_llama().save_pretrained(tmp_path / "teacher")
    other = word_tokenizer(eos="so")
    other.add_tokens(["z"])
    other.save_pretrained(tmp_path / "teacher")
    with pytest.raises(ModelError, match="other ids"):
        text_trainer(tmp_path, {"teacher_model": str(tmp_path / "teacher")}, method="logit_kd")
    word_tokenizer().save_pretrained(tmp_path / "teacher")
    text_trainer(tmp_path, {"teacher_model": str(tmp_path / "teacher")}, method="logit_kd").train()
    with pytest.raises(ConfigError, match="processing_class"):
        text_trainer(tmp_path, {"processing_class": None}, model=None, method="none")


def test_the_mode_must_be_the_models(tmp_path):
    """A language model's head, 36 tokens wide here, would take items for tokens."""
    with pytest.raises(ModelError, match="item-head mode"):
        text_trainer(tmp_path, {}, item_model(), method="none")
    with pytest.raises(ModelError, match="generative mode"):
        c2kd_trainer(tmp_path, tiny_llama(), method="none", num_items=NUM_ITEMS)
