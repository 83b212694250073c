"""How the time of a step grows with the rationales of a question and with the tokens of its prompt.

    python examples/benchmarks/growth.py --model MODEL [--plot FILE.png] [--json FILE] [--quick]

Forward and backward of the rationale loss of one made-up question, as in engine.py, on a student with a LoRA adapter: plain flat
rows, and the scoring engine as it chooses by itself. One of the two sizes grows while the other stays.
"""

import argparse
import time

import measuring
from measuring import form_of, number


FORMS = {"plain": form_of(False, False, False), "auto": form_of("auto", "auto", "auto")}
HEADER = ["n", "P", "times faster", "plain, seconds", "auto, seconds"]


def main(argv: list[str] | None = None) -> None:
    parser = measuring.parser_of(__doc__, "n in {2, 4}, P in {64, 128}, once")
    parser.add_argument("--rationales", nargs="+", type=int, default=[2, 4, 8, 16], help="n, at the first P")
    parser.add_argument(
        "--prompt_tokens", nargs="+", type=int, default=[64, 256, 1024], help="P, at --fixed_rationales"
    )
    parser.add_argument("--fixed_rationales", type=int, default=4, help="n while P grows")
    parser.add_argument("--rationale_tokens", type=int, default=60, help="R")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which both take a turn")
    parser.add_argument("--plot", help="PNG file")
    args = parser.parse_args(argv)
    if args.quick:
        args.rationales, args.prompt_tokens, args.repeats = [2, 4], [64, 128], 1
    started = time.perf_counter()
    measuring.quiet()
    model = measuring.trained(measuring.load(args.model), "lora", args.rank)
    sweeps = {
        "rationales": [(n, args.prompt_tokens[0]) for n in args.rationales],
        "prompt": [(args.fixed_rationales, prompt) for prompt in args.prompt_tokens],
    }
    known: dict[tuple[int, int], dict] = {}
    for n, prompt in dict.fromkeys(size for sizes in sweeps.values() for size in sizes):
        size = (n, prompt, args.rationale_tokens)
        times = measuring.step_times(model, FORMS, size, args.repeats, args.bf16)
        known[n, prompt] = {"n": n, "P": prompt, "times": times}
        for clock in ("wall", "cpu"):
            plain, auto = (measuring.median(times[name], clock) for name in FORMS)
            known[n, prompt] |= {f"plain_{clock}": plain, f"auto_{clock}": auto, f"speedup_{clock}": plain / auto}
    rows = [{"grows": name, **known[size]} for name, sizes in sweeps.items() for size in sizes]
    tables = []
    for name in sweeps:
        grown = [row for row in rows if row["grows"] == name]
        tables.append(measuring.table(HEADER, [cells(row, args.clock) for row in grown]))
    tables.append(f"R = {args.rationale_tokens} tokens a rationale, medians of {args.repeats} rounds.")
    measuring.report(args, tables, {"rows": rows}, started)
    if args.plot:
        plot(rows, args)


def cells(row: dict, clock: str) -> list[str]:
    """A row of the table."""
    names = ("speedup", "plain", "auto")
    return [str(row["n"]), str(row["P"]), *(number(row[f"{name}_{clock}"]) for name in names)]


def plot(rows: list[dict], args: argparse.Namespace) -> None:
    """Both curves, in colours that the colour-blind tell apart, with markers of their own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    looks = {
        "plain": {"color": "#d55e00", "marker": "s", "linestyle": "--"},
        "auto": {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    }
    names = {"plain": "plain flat rows", "auto": "scoring engine (auto)"}
    axes_of = {
        "rationales": ("n", f"rationales a question (prompt of {args.prompt_tokens[0]} tokens)"),
        "prompt": ("P", f"tokens of the prompt ({args.fixed_rationales} rationales)"),
    }
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, (sweep, (key, label)) in zip(axes, axes_of.items(), strict=True):
        grown = [row for row in rows if row["grows"] == sweep]
        for name in FORMS:
            x, y = [row[key] for row in grown], [row[f"{name}_{args.clock}"] for row in grown]
            axis.plot(x, y, label=names[name], **looks[name])
        axis.set_xticks([row[key] for row in grown])
        axis.set(xlabel=label, ylabel="seconds, forward and backward", ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(args.plot, dpi=150)


if __name__ == "__main__":
    main()
