"""`qcrd discriminator train`: pretrains a discriminator that reads texts, on what `qcrd select` wrote."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .common import parse_arguments


REPORT_NAME = "training.json"

HELP = """\
usage: qcrd discriminator [-h] train --dataset SELECTED --encoder MODEL --output_dir DIR ...

A discriminator with an encoder of its own, which scores rationales by their texts.

commands:
  train  pretrain one on a teacher's positives and negatives, and measure it on held-out questions

`qcrd discriminator train --help` shows its flags."""


@dataclass
class DiscriminatorArguments:
    """
    Arguments of `qcrd discriminator train`. Where nothing is said of the paper (QCRD, Wang et al., EMNLP 2025), it is
    silent.

    Args:
        dataset (`str`):
            Training set: what `qcrd select` wrote, or any file, folder or Hub name with the columns `prompt`,
            `positive_rationales` and `negative_rationales`.
        encoder (`str`):
            Id or path of the encoder: `google-t5/t5-base` (the paper's), a model of BERT's kind, or a discriminator that is
            to learn on.
        output_dir (`str`):
            Folder to write, which takes its name once it is whole. One that holds a discriminator is replaced.
        split (`str`, *optional*):
            Split of the training set.
        dataset_config (`str`, *optional*):
            Its configuration, for a Hub dataset.
        eval_fraction (`float`, *optional*, defaults to `0.2`):
            Share of the questions that are held out and measured on.
        max_steps (`int`, *optional*, defaults to `500`):
            Optimizer steps, at most 500 (paper).
        batch_size (`int`, *optional*, defaults to `16`):
            Questions a step; one positive and one negative are drawn of each.
        learning_rate (`float`, *optional*, defaults to `1e-3`):
            Learning rate of the head.
        encoder_learning_rate (`float`, *optional*, defaults to `5e-5`):
            Learning rate of the encoder.
        freeze_encoder (`bool`, *optional*, defaults to `False`):
            Whether the head alone learns: faster and in less memory. The paper trains both.
        loss (`str`, *optional*, defaults to `"binary"`):
            `"binary"` cross-entropy, or `"ratio"` (eq. 2).
        warmup_share (`float`, *optional*, defaults to `0.1`):
            Share of the steps in which the learning rates rise.
        weight_decay (`float`, *optional*, defaults to `0.01`):
            Weight decay of its AdamW.
        max_grad_norm (`float`, *optional*, defaults to `1.0`):
            The gradient is clipped to this norm.
        corrupted_share (`float`, *optional*, defaults to `0.15`):
            Share of the words that are masked or replaced where a class is filled up.
        hidden_size (`int`, *optional*, defaults to `256`):
            Width between the two linear layers.
        max_length (`int`, *optional*):
            Largest number of tokens of question and rationale together. What the encoder can read, at most 512, if left
            out.
        eval_batch_size (`int`, *optional*, defaults to `32`):
            Pairs scored at a time.
        seed (`int`, *optional*, defaults to `0`):
            Decides the split, the corruptions, the order and the weights of the new head.
        device (`str`, *optional*):
            Such as `cuda` or `cpu`. The first GPU if there is one, if left out.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether an encoder may bring code of its own.
    """

    dataset: str = field(metadata={"help": "Training set: a folder of `qcrd select`, a file, or a Hub name."})
    encoder: str = field(metadata={"help": "Id or path of an encoder, such as google-t5/t5-base."})
    output_dir: str = field(metadata={"help": "Folder to write the discriminator to."})
    split: str | None = field(default=None, metadata={"help": "Split of the training set."})
    dataset_config: str | None = field(default=None, metadata={"help": "Its configuration, for a Hub dataset."})
    eval_fraction: float = field(default=0.2, metadata={"help": "Share of the questions that are held out."})
    max_steps: int = field(default=500, metadata={"help": "Optimizer steps, at most 500."})
    batch_size: int = field(default=16, metadata={"help": "Questions a step, of each a positive and a negative."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Learning rate of the head."})
    encoder_learning_rate: float = field(default=5e-5, metadata={"help": "Learning rate of the encoder."})
    freeze_encoder: bool = field(default=False, metadata={"help": "Train the head alone."})
    loss: str = field(default="binary", metadata={"help": "binary cross-entropy, or ratio (eq. 2 of the paper)."})
    warmup_share: float = field(default=0.1, metadata={"help": "Share of the steps in which the rates rise."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "The gradient is clipped to this norm."})
    corrupted_share: float = field(
        default=0.15, metadata={"help": "Share of the words that are masked or replaced to balance the classes."}
    )
    hidden_size: int = field(default=256, metadata={"help": "Width between the two linear layers."})
    max_length: int | None = field(
        default=None, metadata={"help": "Largest number of tokens of a pair. Default: the encoder's, at most 512."}
    )
    eval_batch_size: int = field(default=32, metadata={"help": "Pairs scored at a time."})
    seed: int = field(default=0, metadata={"help": "Seed of split, corruptions, order and new weights."})
    device: str | None = field(default=None, metadata={"help": "cuda, cpu, ... Default: a GPU if there is one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let an encoder bring code of its own."})

    def __post_init__(self):
        if self.hidden_size < 1:
            raise ConfigError(f"--hidden_size must be at least 1, got {self.hidden_size}.")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"--max_length must be at least 1, got {self.max_length}.")
        if not 0 < self.eval_fraction < 1:
            raise ConfigError(f"--eval_fraction must lie in (0, 1), got {self.eval_fraction}.")


def main(argv: Sequence[str]) -> int:
    """
    Runs the sub-command and returns the exit status.

    Args:
        argv (`Sequence[str]`): the sub-command and its arguments.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(HELP)
        return 0
    if name != "train":
        got = f"unknown sub-command {name!r}" if name else "no sub-command"
        raise ConfigError(
            f"{got}: expected `qcrd discriminator train --dataset SELECTED --encoder MODEL --output_dir DIR` (`qcrd "
            "discriminator --help` tells more)."
        )
    description = "Pretrains a discriminator that scores rationales by their texts."
    (args,) = parse_arguments(
        argv[1:], DiscriminatorArguments, prog="qcrd discriminator train", description=description
    )
    return train(args)


def train(args: DiscriminatorArguments) -> int:
    """Trains, measures and writes a discriminator."""
    from ..scorer_training import (
        ScorerSettings,
        balanced_questions,
        judge_scorer,
        judged_questions,
        mask_word,
        split_questions,
        train_scorer,
    )

    settings = ScorerSettings(**{name: getattr(args, name) for name in ScorerSettings.__dataclass_fields__})
    output = _free_folder(Path(args.output_dir).expanduser())
    questions = judged_questions(_rows(args))
    learned, held_out = split_questions(questions, args.eval_fraction, args.seed)
    scorer = _scorer(args)
    mask = mask_word(scorer.tokenizer)
    balanced = balanced_questions(learned, args.corrupted_share, args.seed, mask)
    counts = _counts(learned, held_out, balanced)
    print(_described(counts))
    losses = train_scorer(scorer, balanced, settings)
    figures = judge_scorer(scorer, held_out, settings, mask)
    print(_table(figures))
    report = {
        "settings": {**asdict(args), **asdict(settings)},
        "counts": counts,
        "held_out": figures,
        "losses": losses,
    }
    _save(scorer, output, report)
    print(f"Saved the discriminator to {output}, with all figures in {REPORT_NAME}")
    return 0


def _rows(args: DiscriminatorArguments):
    from ..data.dataset import check_columns
    from ..data.sources import load_dataset_from
    from ..errors import DataError

    dataset = load_dataset_from(args.dataset, args.split, args.dataset_config)
    check_columns(dataset, rationales=True, name=args.dataset)
    for name in ("positive_rationales", "negative_rationales"):
        if name not in dataset.column_names:
            raise DataError(
                f"{args.dataset} has no column {name!r}; its columns are {', '.join(map(repr, dataset.column_names))}. A "
                "discriminator learns from both sides: make the training set with `qcrd select`."
            )
    return dataset


def _scorer(args: DiscriminatorArguments):
    from ..models import device_of
    from ..rationale_scorer import RationaleScorer

    device = device_of(args.device)
    trust = {"trust_remote_code": True} if args.trust_remote_code else {}
    if RationaleScorer.is_trained(args.encoder):
        if args.max_length is not None:
            raise ConfigError("--max_length is that of the discriminator which learns on: leave it out.")
        scorer = RationaleScorer.from_pretrained(args.encoder, args.freeze_encoder, **trust)
    else:
        scorer = RationaleScorer.from_encoder(
            args.encoder, args.hidden_size, args.max_length, args.freeze_encoder, args.seed, **trust
        )
    return scorer.to(device)


def _free_folder(path: Path) -> Path:
    """The folder to write, unless it holds something that nobody asked to replace."""
    from ..rationale_scorer import RationaleScorer

    if path.exists() and not path.is_dir():
        raise ConfigError(f"--output_dir {path} is a file.")
    if path.is_dir() and any(path.iterdir()) and not RationaleScorer.is_trained(path):
        raise ConfigError(f"--output_dir {path} holds something else than a discriminator: name another folder.")
    return path


def _save(scorer, output: Path, report: dict[str, Any]) -> None:
    from ..files import whole_folder

    with whole_folder(output) as folder:
        scorer.write_files(folder)
        text = json.dumps(report, indent=2, ensure_ascii=False)
        (folder / REPORT_NAME).write_text(text + "\n", encoding="utf-8")


def _counts(learned, held_out, balanced) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, part in (("learned", learned), ("held_out", held_out)):
        counts[f"{name}_questions"] = len(part)
        counts[f"{name}_positives"] = sum(len(q.positives) for q in part)
        counts[f"{name}_negatives"] = sum(len(q.negatives) for q in part)
    counts["not_learned_questions"] = len(learned) - len(balanced)
    counts["masked_copies"] = sum(q.num_masked for q in balanced)
    counts["corrupted"] = sum(q.num_corrupted for q in balanced)
    return counts


def _described(counts: dict[str, int]) -> str:
    lines = [
        f"learns from {counts['learned_questions']} questions: {counts['learned_positives']} positives, "
        f"{counts['learned_negatives']} negatives",
        f"balanced by {counts['corrupted']} corrupted positives as negatives and {counts['masked_copies']} masked copies of "
        "positives",
        f"held out: {counts['held_out_questions']} questions: {counts['held_out_positives']} positives, "
        f"{counts['held_out_negatives']} negatives",
    ]
    if counts["not_learned_questions"]:
        lines.insert(2, f"left out: {counts['not_learned_questions']} questions without a positive")
    return "\n".join(lines)


def _table(figures: dict[str, dict[str, Any]]) -> str:
    names = {"real": "real negatives", "mask": "masked positives", "replace": "positives, words replaced"}
    columns = ("num_positive", "num_negative", "auc", "accuracy", "brier", "ece", "mean_positive", "mean_negative")
    rows = [("held-out positives against", "good", "bad", "AUC", "accuracy", "Brier", "ECE", "mean good", "mean bad")]
    for name, found in figures.items():
        cells = [str(found[c]) if c.startswith("num") else f"{found[c]:.3f}" for c in columns]
        rows.append((names[name], *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += ["", "reliability against real negatives, both sides weighing the same: score, share of good, weight"]
    for one in figures["real"]["bins"]:
        lines.append(
            f"  {one['low']:.1f} to {one['high']:.1f}  {one['mean_score']:.3f}  {one['share_positive']:.3f}  {one['weight']:.3f}"
        )
    return "\n".join(lines)
