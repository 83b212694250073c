"""Pooled hidden states of solutions, each read once and kept on disk.

The states of a frozen model over a solution never change, and the discriminator's pool has no weights: one vector a
solution is all that its head needs.
"""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from qcrd_trl import RationaleDiscriminator, RationaleScorer, StudentFormat
from qcrd_trl.data.collator import DataCollatorForQCRD
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.models import base_model, is_encoder_decoder, load_model, load_tokenizer, prepare_tokenizer
from qcrd_trl.trainer.scoring import flat_pass


@torch.no_grad()
def student_features(
    path: str, prompts: list[str], texts: list[str], max_length: int, bf16: bool, batch_size: int = 16
) -> torch.Tensor:
    """
    What the head of kind `student` reads: the student's last hidden states where they predict the tokens of a solution.

    Args:
        path (`str`): the student.
        prompts (`list[str]`): the question of each solution.
        texts (`list[str]`): the solutions.
        max_length (`int`): tokens of question and solution together; longer solutions are cut.
        bf16 (`bool`): whether the student reads under bfloat16 autocast.
        batch_size (`int`, *optional*, defaults to `16`): solutions at a time.

    Returns:
        `torch.Tensor`: float32, shape `(solutions, hidden_size)`.
    """
    model, tokenizer = load_model(path).eval(), prepare_tokenizer(load_tokenizer(path))
    form = StudentFormat(is_encoder_decoder=is_encoder_decoder(model), max_length=max_length)
    tokenize = RowTokenizer(tokenizer, form)
    rows = [
        tokenize({"prompt": prompt, "label": None, "positive_rationales": [text]}, index)
        for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    collate = DataCollatorForQCRD(tokenizer.pad_token_id, form.is_encoder_decoder)
    head = base_model(model).get_output_embeddings()
    decoder = base_model(model) if form.is_encoder_decoder else None
    pooler = RationaleDiscriminator(head.weight.shape[-1])
    order = sorted(range(len(rows)), key=lambda index: rows[index]["length"])
    features = torch.zeros(len(rows), pooler.input_size)
    for start in tqdm(range(0, len(order), batch_size), desc="Reading with the student"):
        chosen = order[start : start + batch_size]
        batch = collate([rows[index] for index in chosen])
        names = ("rationale_input_ids", "rationale_attention_mask", "rationale_labels")
        one = flat_pass(*(batch[name] for name in names), decoder)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            states = _head_input(model, head, one.inputs)[one.supervised]
        features[chosen] = pooler.pool(states, one.row, len(chosen))
    return features


def encoder_features(path: str, prompts: list[str], texts: list[str], max_length: int) -> torch.Tensor:
    """What the head of kind `encoder` reads of a frozen encoder. Args and return value as for [`student_features`]."""
    scorer = RationaleScorer.from_encoder(path, max_length=max_length, freeze_encoder=True)
    return scorer.pooled(prompts, texts, progress="Reading with the encoder")


def _head_input(model, head, inputs) -> torch.Tensor:
    """What the head is given, without the logits that it would make of it."""
    captured = []

    def capture(module, args):
        captured.append(args[0])
        return (args[0][:, :1],)

    handle = head.register_forward_pre_hook(capture)
    try:
        model(**inputs, use_cache=False)
    finally:
        handle.remove()
    return captured[0]


def kept(folder: str | None, make, path: str, *args, **kwargs) -> torch.Tensor:
    """
    What `make(path, *args, **kwargs)` gives, from the file that an earlier call left in `folder`, if there is one.

    The file's name tells the function, the model's files and everything that was given to it.
    """
    if folder is None:
        return make(path, *args, **kwargs)
    weights = [(file.name, file.stat().st_size) for file in sorted(Path(path).glob("*")) if file.is_file()]
    key = hashlib.sha256(repr((make.__name__, Path(path).name, weights, args, kwargs)).encode()).hexdigest()[:16]
    file = Path(folder, f"{make.__name__}-{key}.safetensors")
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".part")
        save_file({"features": make(path, *args, **kwargs)}, aside)
        aside.replace(file)
    return load_file(file)["features"]
