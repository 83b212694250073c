"""Tiny runs that generate their own negatives, and what happens in them. `from generating import ...`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from running import lora, trainer_of
from tiny import PAD, ids, tiny_llama
from torch import nn
from transformers import TrainerCallback

from qcrd_trl.records import Negative
from qcrd_trl.sampling.negatives import NegativeSampler


LORA = {"peft_config": lora()}
NEW_TOKENS = 8


def sharp_llama(**overrides: Any) -> nn.Module:
    """A student with preferences: after a few steps it samples other tokens by the same seed."""
    return tiny_llama(**{"initializer_range": 0.4, **overrides})


def questions(count: int = 8) -> list[dict]:
    """Questions of several lengths, each with one or two positives and a negative of its own."""
    return [
        {
            "prompt": "a + " * (i % 3 + 1) + str(i % 10),
            "label": str(i % 10),
            "positive_rationales": [f"a is {i % 10} so {j}" for j in range(i % 2 + 1)],
            "negative_rationales": [f"b = {i % 10} c"],
            "id": f"q{i}",
        }
        for i in range(count)
    ]


def generating(folder: Path | str, model: nn.Module | None = None, rows: Any = None, **overrides: Any):
    """
    A trainer whose student moves far at each of four steps of 2 of 8 questions, so that no two snapshots sample alike;
    an iteration is a step.
    """
    arguments = {
        "negative_source": "self",
        "negative_max_new_tokens": NEW_TOKENS,
        "negative_refresh_steps": 1,
        "negative_lag": 1,
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "optim": "adamw_torch",
        "learning_rate": 0.05,
    }
    model = sharp_llama() if model is None else model
    return trainer_of(folder, model, questions() if rows is None else rows, **{**arguments, **overrides})


class Watch(TrainerCallback):
    """
    Calls a function at the start of each step; what it gives is kept in `seen`.

    A callback that a trainer gets by its argument `callbacks` comes before the one that generates; one that is added
    later comes after it.
    """

    def __init__(self, look):
        self.look, self.seen = look, []

    def on_step_begin(self, args, state, control, **kwargs):
        self.seen.append(self.look(state))


def watch(trainer: Any, look) -> list:
    """What a function of the trainer's state gives at the start of each step, after negatives were generated."""
    callback = Watch(look)
    trainer.add_callback(callback)
    return callback.seen


def texts(store: Iterable[tuple[str, Negative]]) -> dict[str, list[str]]:
    """The negatives of each question."""
    out: dict[str, list[str]] = {}
    for key, negative in store:
        out.setdefault(key, []).append(negative.text)
    return out


def refreshes(trainer: Any) -> list[tuple[int, int, int]]:
    """`(step, iteration, snapshot)` of each refresh, as it was logged."""
    return [
        (entry["step"], entry["negatives/iteration"], entry["negatives/snapshot"])
        for entry in trainer.state.log_history
        if "negatives/iteration" in entry
    ]


def kept_snapshots(folder: Path) -> list[int]:
    """Iterations that there is a folder of, by its name alone."""
    names = [path.name for path in (folder / "negative_generators").glob("*")]
    assert all(re.fullmatch(r"iteration-\d{4}", name) for name in names), names
    return sorted(int(name[10:]) for name in names)


def questions_sampled(monkeypatch: Any) -> list[list[str]]:
    """Notes the ids of the questions of each refresh, in order."""
    out, sample = [], NegativeSampler.sample

    def noted(self, questions, *args, **kwargs):
        out.append(sorted(question.id for question in questions))
        return sample(self, questions, *args, **kwargs)

    monkeypatch.setattr(NegativeSampler, "sample", noted)
    return out


def questions_trained(trainer: Any) -> list[list[str]]:
    """Notes the ids of the questions of every micro-batch that a loss is computed of."""
    out, compute_loss = [], trainer.compute_loss
    names = dict(zip(trainer.train_dataset["question_index"], trainer.train_dataset["id"], strict=True))

    def noted(model, inputs, *args, **kwargs):
        out.append([names[index] for index in inputs["question_index"].tolist()])
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = noted
    return out


def rationales_scored(trainer: Any, monkeypatch: Any) -> list[dict[str, list[tuple[int, ...]]]]:
    """Notes the rationales of every micro-batch that reach the loss: token ids by question and side, as in `"q1 -"`."""
    import qcrd_trl.trainer.qcrd_trainer as module

    out, rationale_rows = [], module.rationale_rows

    def noted(batch, *args, **kwargs):
        rows = rationale_rows(batch, *args, **kwargs)
        found: dict[str, list[tuple[int, ...]]] = {}
        for question, side, labels in zip(rows.question, rows.is_positive, rows.labels, strict=True):
            key = f"q{batch['question_index'][question]} {'+' if side else '-'}"
            found.setdefault(key, []).append(tuple(labels[labels != -100].tolist()))
        out.append(found)
        return rows

    monkeypatch.setattr(module, "rationale_rows", noted)
    return out


@torch.no_grad()
def shortfall(model: nn.Module, prompt: list[int], negative: Negative) -> float:
    """
    By how much the tokens of a negative fall short of those that a model would draw: 0 but for rounding if they are its
    own. A draw is the largest of logits / temperature - log e, with exponential e of each negative from its own seed.
    """
    model.eval()
    tokens = list(negative.token_ids)
    if model.config.is_encoder_decoder:
        decoder = [model.config.decoder_start_token_id, *tokens[:-1]]
        logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([decoder])).logits[0]
    else:
        logits = model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    generator = np.random.Generator(np.random.SFC64(negative.seed))
    worst = 0.0
    for row, token in zip(logits.float(), tokens, strict=True):
        drawn = row / negative.temperature - torch.tensor(generator.standard_exponential(len(row))).log()
        worst = max(worst, (drawn.max() - drawn[token]).item())
    return worst


def scripted(trainer: Any, completions: dict[str, list[str]], monkeypatch: Any, on_call=lambda: None) -> None:
    """Makes a decoder-only student answer each question by words of ours, in turn, padded to the longest of a batch."""
    keys = {tuple(row["explain_prompt_ids"]): row["id"] for row in trainer.train_dataset}
    left = {key: list(answers) for key, answers in completions.items()}

    def generate(input_ids, attention_mask, **kwargs):
        on_call()
        drawn = [
            ids(left[keys[tuple(row[mask == 1].tolist())]].pop(0))
            for row, mask in zip(input_ids, attention_mask, strict=True)
        ]
        width = max(map(len, drawn))
        return torch.cat([input_ids, torch.tensor([row + [PAD] * (width - len(row)) for row in drawn])], 1)

    monkeypatch.setattr(trainer.model, "generate", generate)
