"""What each saving of the scoring engine gives: time and memory of forward and backward, beside plain flat rows.

    python examples/benchmarks/engine.py --model MODEL [--training lora full] [--json FILE] [--quick]

A step is one made-up question of P tokens with n rationales of R tokens, half of them positives. Measured is forward and
backward of its rationale loss (no label row, no discriminator, no optimizer step). Beside the ratio of the times stands the
ratio that counting tokens allows, with b for what forward and backward cost in forward passes (2 with a frozen base, 3 with
trained weights): plain b n (P + R), shared b (P + n R), shared and selected (P + n R) + b (P + 2 R). `by weights` is the same
with each token counted by the weights it meets: the head serves rationales alone, and an encoder-decoder reads the encoded
question anew for each rationale.

Memory is the peak above the student and its gradients, each figure that of a process of its own. The second student is a
random T5 of the size of t5-small.
"""

import argparse
import time
from pathlib import Path

import measuring
from measuring import ScoringStep, form_of, number


VARIANTS = {
    "plain": form_of(False, False, False),
    "+ shared prompt": form_of(True, False, False),
    "+ selection": form_of(True, True, False),
    "+ no full logits": form_of(True, True, True),
    "auto": form_of("auto", "auto", "auto"),
}
TRAININGS = {"lora": "LoRA", "full": "full"}
T5 = "T5-small-sized"
# What is to be reached, by tokens of the prompt: part of the counted ratio, and memory beside plain.
TIME_GOALS = {60: 0.9, 300: 0.85}
MEMORY_GOALS = {60: 0.5, 300: 0.35}
HEADER = ["student", "training", "n", "P", "variant", "times faster", "counted", "by weights", "to reach"]
HEADER += ["memory", "to reach", "seconds", "MiB"]


def main(argv: list[str] | None = None) -> None:
    parser = measuring.parser_of(__doc__, "n = 6, P = 60, LoRA, once; memory of plain and auto")
    parser.add_argument("--students", nargs="+", choices=["model", "t5"], default=["model", "t5"])
    parser.add_argument("--training", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--rationales", nargs="+", type=int, default=[6, 16], help="n")
    parser.add_argument("--prompt_tokens", nargs="+", type=int, default=[60, 300], help="P")
    parser.add_argument("--rationale_tokens", type=int, default=60, help="R")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which all variants take a turn")
    args = parser.parse_args(argv)
    if args.quick:
        args.training, args.rationales, args.prompt_tokens, args.repeats = ["lora"], [6], [60], 1
    started = time.perf_counter()
    measuring.quiet()
    rows = [row for student in args.students for training in args.training for row in compare(args, student, training)]
    measuring.report(
        args, [measuring.table(HEADER, [cells(row, args.clock) for row in rows])], {"rows": rows}, started
    )


def compare(args: argparse.Namespace, student: str, training: str) -> list[dict]:
    """All figures of a student that is trained in one way."""
    model = load(args.model, student)
    weights = weights_met(model)
    model = measuring.trained(model, training, args.rank)
    backward = 2 if training == "lora" else 3
    rows = []
    for prompt in args.prompt_tokens:
        for n in args.rationales:
            size = (n, prompt, args.rationale_tokens)
            times = measuring.step_times(model, VARIANTS, size, args.repeats, args.bf16)
            tokens = counted(*size, backward, {"prompt": 1, "rationale": 1, "both": 0})
            by_weights = counted(*size, backward, weights)
            for name in VARIANTS:
                row = {
                    "student": T5 if student == "t5" else Path(args.model).name,
                    "training": training,
                    "n": n,
                    "P": prompt,
                }
                row |= {"variant": name, "times": times[name], "mib": None}
                row |= {"counted": tokens["plain"] / tokens[name]}
                row |= {"by_weights": by_weights["plain"] / by_weights[name]}
                row |= {f"speedup_{c}": ratio(times, name, c) for c in ("wall", "cpu")}
                rows.append(row)
    del model
    for row in rows:
        if args.quick and row["variant"] not in ("plain", "auto"):
            continue
        size = (row["n"], row["P"], args.rationale_tokens)
        form = VARIANTS[row["variant"]]
        try:
            row["mib"] = measuring.in_own_process(
                peak, args.model, student, training, args.rank, form, size, args.bf16
            )
        except RuntimeError as err:
            print(f"no memory figure: {str(err).splitlines()[-1]}", flush=True)
    plain = {(row["n"], row["P"]): row["mib"] for row in rows if row["variant"] == "plain"}
    for row in rows:
        base = plain[row["n"], row["P"]]
        row["memory_ratio"] = row["mib"] / base if row["mib"] and base else None
    return rows


def load(path: str, student: str):
    """The student itself, or a random one of the size of t5-small, without dropout."""
    if student == "model":
        return measuring.load(path)
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(vocab_size=32128, dropout_rate=0.0, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).to("cuda" if torch.cuda.is_available() else "cpu")


def weights_met(model) -> dict[str, int]:
    """
    Weights that a token meets: of a prompt, read once for all rationales; of a rationale, the head included; and of a prompt
    once more for each rationale, where a decoder attends to it.
    """
    from torch import nn

    head = model.get_output_embeddings()
    met = {"prompt": 0, "rationale": head.weight.numel(), "both": 0}
    for name, module in model.named_modules():
        if module is head or not isinstance(module, nn.Linear):
            continue
        size = module.weight.numel()
        if not model.config.is_encoder_decoder:
            met["prompt"] += size
            met["rationale"] += size
        elif name.startswith("encoder"):
            met["prompt"] += size
        elif name.endswith(("EncDecAttention.k", "EncDecAttention.v")):
            met["both"] += size
        else:
            met["rationale"] += size
    return met


def counted(n: int, prompt: int, rationale: int, backward: int, weights: dict[str, int]) -> dict[str, float]:
    """Work of each variant, in tokens or in weights met."""
    question = prompt * weights["prompt"]
    answer = rationale * weights["rationale"] + prompt * weights["both"]
    every, two = question + n * answer, question + 2 * answer
    shared, selected = backward * every, every + backward * two
    return {
        "plain": backward * n * (question + answer),
        "+ shared prompt": shared,
        "+ selection": selected,
        "+ no full logits": selected,
        "auto": min(shared, selected),
    }


def ratio(times: dict[str, list[dict]], name: str, clock: str) -> float:
    """How many times faster than plain."""
    return measuring.median(times["plain"], clock) / measuring.median(times[name], clock)


def peak(path: str, student: str, training: str, rank: int, form: dict, size: tuple, bf16: bool) -> float | None:
    """Peak of a step above the student and its gradients, MiB."""
    step = ScoringStep(measuring.trained(load(path, student), training, rank), form, bf16)
    step(step.rows(2, 16, 16))  # loads code, makes the gradients
    step.model.zero_grad(set_to_none=False)
    rows = step.rows(*size)
    with measuring.Peak() as measured:
        step(rows)
    return measured.mib


def cells(row: dict, clock: str) -> list[str]:
    """A row of the table."""
    is_auto, prompt = row["variant"] == "auto", row["P"]
    selects = row["variant"] in ("+ selection", "+ no full logits")
    goal = TIME_GOALS[prompt] * row["counted"] if is_auto and prompt in TIME_GOALS else None
    less = MEMORY_GOALS.get(prompt) if selects else None
    return [
        row["student"],
        TRAININGS[row["training"]],
        str(row["n"]),
        str(prompt),
        row["variant"],
        number(row[f"speedup_{clock}"]),
        number(row["counted"]),
        number(row["by_weights"]),
        number(goal),
        number(row["memory_ratio"]),
        number(less),
        number(measuring.median(row["times"], clock)),
        number(row["mib"], ".0f"),
    ]


if __name__ == "__main__":
    main()
