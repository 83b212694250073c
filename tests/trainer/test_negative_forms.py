"""Families of students, adapters and whole weights, templates and precisions: one refresh after another in each."""

from contextlib import nullcontext

import pytest
import torch
from generating import generating, kept_snapshots, questions, rationales_scored, refreshes, shortfall, watch
from peft import PeftModel
from running import lora, moved, weights
from tiny import (
    CHAT_TEMPLATE,
    EOS,
    chat_tokenizer,
    ids,
    pad_is_eos_tokenizer,
    t5_tokenizer,
    tiny_bart,
    tiny_gpt2,
    tiny_llama,
    tiny_t5,
    word_tokenizer,
)

import qcrd_trl.trainer.qcrd_trainer as module
from qcrd_trl.trainer.objective import rationale_rows


MODELS = {"llama": tiny_llama, "gpt2": tiny_gpt2, "t5": tiny_t5, "bart": tiny_bart}
CHAT = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in questions()]


def student(name):
    """Weights large enough that it prefers some words, and others after a few steps."""
    model = MODELS[name]()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def adapter(name, **overrides):
    task = "CAUSAL_LM" if name in ("llama", "gpt2") else "SEQ_2_SEQ_LM"
    targets = {"t5": ["q", "v", "wi"], "gpt2": ["c_attn", "c_fc"]}.get(name, "all-linear")
    return lora(task_type=task, fan_in_fan_out=name == "gpt2", target_modules=targets, **overrides)


# (family, arguments of its adapter or None, tokenizer, rows, arguments)
CASES = {
    "llama": ("llama", None, word_tokenizer, questions(), {}),
    "llama, adapter, chat": ("llama", {}, chat_tokenizer, CHAT, {}),
    "llama, adapter, pad is eos": ("llama", {}, pad_is_eos_tokenizer, questions(), {}),
    "llama, chat, pad is eos, bf16": (
        "llama", None, lambda: word_tokenizer(pad="</s>", adds_bos=True, chat_template=CHAT_TEMPLATE), CHAT,
        {"bf16": True},
    ),
    "gpt2": ("gpt2", None, word_tokenizer, questions(), {}),
    "gpt2, adapter, checkpointing": ("gpt2", {}, word_tokenizer, questions(), {"gradient_checkpointing": True}),
    "gpt2, adapter, whole tied head": ("gpt2", {"modules_to_save": ["lm_head"]}, word_tokenizer, questions(), {}),
    "llama, adapter of weights and directions": ("llama", {"use_dora": True}, word_tokenizer, questions(), {}),
    "t5": ("t5", None, t5_tokenizer, questions(), {}),
    "t5, adapter, bf16": ("t5", {}, t5_tokenizer, questions(), {"bf16": True}),
    "bart, checkpointing": ("bart", None, word_tokenizer, questions(), {"gradient_checkpointing": True}),
    "bart, adapter": ("bart", {}, word_tokenizer, questions(), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_negatives_of_every_form(tmp_path, monkeypatch, case):
    """Positions, a template or tied weights that generation reads otherwise make negatives of no student of the run."""
    name, adapts, tokenizer, rows, overrides = CASES[case]
    tokenizer = tokenizer()
    adapted = adapts is not None
    parts = {"peft_config": adapter(name, **adapts)} if adapted else None
    trainer = generating(
        tmp_path, student(name), rows, processing_class=tokenizer, parts=parts, max_steps=3, num_negatives=2,
        per_device_train_batch_size=8, **overrides,
    )  # fmt: skip
    before = weights(trainer.model)
    there = watch(trainer, lambda state: list(trainer.negatives))
    at_start = watch(trainer, lambda state: weights(trainer.model))
    scored = rationales_scored(trainer, monkeypatch)
    trainer.train()
    assert refreshes(trainer) == [(0, 0, 0), (1, 1, 0), (2, 2, 1)]
    assert kept_snapshots(tmp_path) == [1, 2]

    prompts = {row["id"]: row["explain_prompt_ids"] for row in trainer.train_dataset}
    assert len(there[2]) > 4
    short = []
    for number in (1, 2):
        folder = tmp_path / "negative_generators" / f"iteration-{number:04d}"
        model = PeftModel.from_pretrained(student(name), folder) if adapted else MODELS[name]().from_pretrained(folder)
        mine = weights(model)
        assert mine.keys() == at_start[number].keys()
        assert not moved(at_start[number], mine)
        with torch.autocast("cpu", torch.bfloat16) if "bf16" in overrides else nullcontext():
            short.append(max(shortfall(model, prompts[key], n) for key, n in there[2]))
    # bfloat16 has 8 bits, and rounds otherwise in a batch.
    assert short[0] < (0.1 if "bf16" in overrides else 1e-4)
    assert short[1] > 0.5

    for negatives, found in zip(there, scored, strict=True):
        expected: dict[str, list] = {}
        for key, n in negatives:
            expected.setdefault(f"{key} -", []).append(n.token_ids)
        assert {key: side for key, side in found.items() if "-" in key} == expected
    changed = moved(before, weights(trainer.model))
    assert changed == {key for key in before if ".default" in key} if adapted else len(changed) > len(before) // 2


def test_a_negative_follows_its_prompt_in_the_loss(tmp_path, monkeypatch):
    """A negative under the label's prefix, or that attends to padding, is scored as a text that nobody wrote."""
    trainer = generating(
        tmp_path, rows=CHAT, processing_class=chat_tokenizer(), max_steps=1, per_device_train_batch_size=8,
    )  # fmt: skip
    seen = []
    monkeypatch.setattr(module, "rationale_rows", lambda *args: seen.append(rationale_rows(*args)) or seen[-1])
    trainer.train()
    [rows] = seen
    found = [
        tokens[mask == 1].tolist()
        for tokens, mask, positive in zip(rows.input_ids, rows.attention_mask, rows.is_positive, strict=True)
        if not positive
    ]
    prompts = {row["id"]: row["prompt"][0]["content"] for row in CHAT}
    assert len(trainer.negatives) > 4
    assert sorted(found) == sorted(
        ids(f"<s> <|user|> <Explain> {prompts[key]} </s> <|assistant|>") + list(n.token_ids)
        for key, n in trainer.negatives
    )


def test_the_eos_that_ended_a_negative_is_kept_and_padding_is_not(tmp_path):
    """Where EOS pads too, a text that is told from its padding by the token never ends, or ends many times."""
    trainer = generating(
        tmp_path, student("llama"), processing_class=pad_is_eos_tokenizer(), max_steps=1, negative_max_new_tokens=12,
        per_device_train_batch_size=8,
    )  # fmt: skip
    trainer.train()
    assert trainer.processing_class.pad_token_id == EOS
    negatives = [n for _, n in trainer.negatives]
    assert {n.is_finished for n in negatives} == {True, False}
    for n in negatives:
        assert (n.token_ids.count(EOS), n.token_ids[-1] == EOS) == (n.is_finished, n.is_finished)
        assert n.is_finished or len(n.token_ids) == 12
