"""
A training run of demo size with its report, and the quality of its discriminator on held-out questions.

    python examples/reports/demo_run.py --output_dir demo-run

Writes `demo-run/plots/*.png` and `demo-run/quality/*`, prints the tables of `qcrd quality`. Some minutes on one core.
`--negative_source both` gives the discriminator the teacher's negatives too.
"""

import argparse
import json
from pathlib import Path

from datasets import Dataset

from qcrd_trl import QCRDConfig, QCRDTrainer
from qcrd_trl.cli.main import main as qcrd
from qcrd_trl.demo.data import TASK_KIND, make_data
from qcrd_trl.demo.student import build_student, build_tokenizer


MAX_NEW_TOKENS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="demo-run")
    parser.add_argument("--negative_source", default="self")
    parser.add_argument("--questions", type=int, default=700)
    parser.add_argument("--held_out", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    # Questions whose samples tie are left out, so there are some less; the last ones are held out, with their rationales.
    rows = make_data(args.questions, 1, args.seed).train
    train, held_out = rows[: -args.held_out], rows[-args.held_out :]
    tokenizer = build_tokenizer()
    trainer = QCRDTrainer(
        model=build_student(tokenizer, args.seed),
        args=QCRDConfig(
            output_dir=args.output_dir,
            preset="qcrd",
            negative_source=args.negative_source,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            warmup_steps=20,
            logging_steps=5,
            rationale_forward_passes=1,
            negative_max_new_tokens=MAX_NEW_TOKENS,
            negative_batch_size=250,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            seed=args.seed,
        ),
        train_dataset=Dataset.from_list(train),
        eval_dataset=Dataset.from_list(held_out),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()
    path = Path(args.output_dir) / "held_out.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in held_out), encoding="utf-8")
    output = Path(args.output_dir) / "quality" / "quality.json"
    flags = ["--model", args.output_dir, "--dataset", str(path), "--output", str(output), "--task_kind", TASK_KIND]
    qcrd(["quality", *flags, "--max_new_tokens", str(MAX_NEW_TOKENS)])


if __name__ == "__main__":
    main()
