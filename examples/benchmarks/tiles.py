"""How many logits the scoring engine should hold at a time: the loss of a head by tiles of several sizes.

    python examples/benchmarks/tiles.py --json tiles.json

Makes states and targets of random tokens and takes the losses of all of them, forward and backward, with a frozen head (as
with LoRA) and with one that is trained. Runs of all sizes take turns. Printed: each size's time beside the shortest one's,
with the size that [`~qcrd_trl.losses.states_nll`] takes by itself marked, and the peak of memory above states, weights and
gradients. On a GPU, where there is one, else on the CPU.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from measuring import MIB, Peak, describe, in_turns, machine, median, number, table, timed

from qcrd_trl.losses.logprobs import states_nll, tile_tokens


# Name, width of the states, vocabulary.
HEADS = (
    ("T5-small", 512, 32_128),
    ("SmolLM2-135M", 576, 49_152),
    ("Qwen2.5-0.5B", 896, 151_936),
    ("Gemma-3-1B", 1_152, 262_144),
)
SIZES = {"cpu": range(20, 28), "cuda": range(22, 31)}  # powers of two, in logits
TOKENS = {"cpu": 720, "cuda": 16_384}
REPEATS = {"cpu": 5, "cuda": 21}


class Head:
    """Random states before a head, and targets behind it."""

    def __init__(self, width: int, vocabulary: int, tokens: int, trained: bool, device: str, dtype: torch.dtype):
        draws = torch.Generator().manual_seed(0)
        self.states = torch.randn(tokens, width, generator=draws).to(device, dtype).requires_grad_()
        weight = torch.randn(vocabulary, width, generator=draws).div_(width**0.5)
        self.weight = weight.to(device, dtype).requires_grad_(trained)
        self.targets = torch.randint(vocabulary, (tokens,), generator=draws).to(device)
        self.states.grad = torch.zeros_like(self.states)
        if trained:
            self.weight.grad = torch.zeros_like(self.weight)

    def step(self, tile: int | None) -> None:
        """Forward and backward of all tokens' losses."""
        states_nll(self.states, self.weight, self.targets, tile=tile)[0].sum().backward()


def measure(name: str, width: int, vocabulary: int, trained: bool, args: argparse.Namespace) -> list[dict]:
    """Times and peaks of one head by every size, the one that is taken by itself first."""
    head = Head(width, vocabulary, args.tokens, trained, args.device, args.dtype)
    sizes: dict[int | None, int | None] = {None: None}
    for power in sorted(args.powers):
        sizes[2**power] = max(2**power // vocabulary, 1)
        if sizes[2**power] >= args.tokens:
            break  # larger ones hold all tokens, too
    runs = {size: lambda tile=tile: timed(lambda: head.step(tile)) for size, tile in sizes.items()}
    in_turns(runs, 1)  # buffers and kernels are made
    times = in_turns(runs, args.repeats)
    rows = []
    for size, tile in sizes.items():
        with Peak() as peak:
            head.step(tile)
        tokens = tile_tokens(args.tokens, vocabulary, torch.device(args.device)) if size is None else tile
        row = {"head": name, "trained": trained, "by_itself": size is None, "tokens": tokens}
        row["tile_mib"] = (tokens * vocabulary if size is None else size) * 4 / MIB
        rows.append(row | {"times": times[size], "seconds": median(times[size], args.clock), "mib": peak.mib})
    shortest = min(row["seconds"] for row in rows)
    for row in rows:
        row["beside_shortest"] = row["seconds"] / shortest
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", nargs="+", choices=[name for name, *_ in HEADS], help="all if left out")
    parser.add_argument("--tokens", type=int, help=f"as many as {TOKENS} if left out")
    parser.add_argument(
        "--powers", type=int, nargs="+", help=f"sizes, as powers of two of logits; {SIZES} if left out"
    )
    parser.add_argument("--repeats", type=int, help=f"runs of each size; {REPEATS} if left out")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 states and weights; float32 if left out")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="what the table's times are")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--quick", action="store_true", help="one head, 64 tokens, two sizes")
    args = parser.parse_args(argv)
    started = time.perf_counter()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.dtype = torch.bfloat16 if args.bf16 else torch.float32
    args.tokens = args.tokens or TOKENS[args.device]
    args.powers = list(args.powers or SIZES[args.device])
    args.repeats = args.repeats or REPEATS[args.device]
    if args.quick:
        args.heads, args.tokens, args.powers, args.repeats = args.heads or ["T5-small"], 64, [18, 20], 2
    rows = []
    for name, width, vocabulary in HEADS:
        if args.heads is None or name in args.heads:
            for trained in (False, True):
                print(f"{name}, {'trained' if trained else 'frozen'} head", file=sys.stderr, flush=True)
                rows += measure(name, width, vocabulary, trained, args)
    header = ["head", "", "tile", "tokens a tile", "times the shortest", "ms", "MiB"]
    cells = [
        [
            row["head"],
            "trained" if row["trained"] else "frozen",
            f"{row['tile_mib']:.0f} MiB{' (by itself)' if row['by_itself'] else ''}",
            str(row["tokens"]),
            f"{row['beside_shortest']:.2f}",
            f"{1000 * row['seconds']:.1f}",
            number(row["mib"], ".0f"),
        ]
        for row in rows
    ]
    here = machine()
    print(table(header, cells))
    print(f"\n{describe(here)}, {'bfloat16' if args.bf16 else 'float32'}, {args.tokens} tokens, {args.clock} clock.")
    minutes = (time.perf_counter() - started) / 60
    print(f"{'QUICK run: not to be quoted. ' if args.quick else ''}{minutes:.1f} minutes in all.")
    if args.json:
        settings = {**vars(args), "dtype": str(args.dtype)}
        figures = {"settings": settings, "machine": here, "minutes": minutes, "tiles": rows}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
