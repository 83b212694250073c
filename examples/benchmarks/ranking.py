"""How fast all items are ranked for all users, in how much memory, and whether ranks depend on how the work is cut up.

    python examples/benchmarks/ranking.py [--clock cpu] [--json FILE] [--quick]

Random states and weights of d = 64. Three ways take turns, and give ranks of the same scores: the tiles of `target_ranks`, a loop
over users (a float64 product with all items, one user at a time), and one float32 product of all users and all items. Users grow
while the items stay, then items while the users stay. Memory is that of a process of its own. In the second table each item has
copies, so that ties decide ranks.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import measuring
import torch
from measuring import describe, machine, number, table

from qcrd_trl.recommendation.ranking import ITEM_CHUNK, USER_CHUNK, target_ranks, target_ranks_from_scores


WIDTH = 64
GOAL = 100_000  # users and items, on paper
HEADER = ["users", "items", "faster than the loop", "than one product", "seconds", "loop", "one product"]
HEADER += ["MiB", "loop", "one product"]
TIE_HEADER = [
    "tiles of (users, items)",
    "float32 scores",
    "their ranks, the target in its tile",
    "their ranks, the target apart",
    "`target_ranks`",
]
TILES = ((1, 10_000), (64, 1000), (64, 3333), (7, 101), (256, 8192))
PAPER_HEADER = ["100,000 users, 100,000 items", "tiles", "one product"]


def problem(users: int, items: int, copies: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, weights and targets, the same each time."""
    draws = torch.Generator().manual_seed(0)
    weight = torch.randn(items // copies, WIDTH, generator=draws).repeat(copies, 1)
    states = torch.randn(users, WIDTH, generator=draws)
    return states, weight, torch.randint(len(weight), (users,), generator=draws)


def by_loop(states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A user at a time."""
    weight, ranks = weight.double(), torch.empty(len(states), dtype=torch.long)
    for user, target in enumerate(targets.tolist()):
        scores = weight @ states[user].double()
        ranks[user] = 1 + (scores > scores[target]).sum() + (scores[:target] == scores[target]).sum()
    return ranks


def by_one_product(states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """All scores at once."""
    return target_ranks_from_scores(states @ weight.T, targets)


def by_float32_tiles(states, weight, targets, user_chunk: int, item_chunk: int, apart: bool) -> torch.Tensor:
    """
    Tiles of float32 products whose scores are compared as they come, which `target_ranks` does not do. The target's score is that
    of the tile which holds it, or (`apart`) a sum of its own; the target is never before itself.
    """
    ranks, of_target = torch.ones(len(states), dtype=torch.long), (states * weight[targets]).sum(1, keepdim=True)

    def tiles():
        for start in range(0, len(states), user_chunk):
            rows = slice(start, start + user_chunk)
            for first in range(0, len(weight), item_chunk):
                yield rows, first, states[rows] @ weight[first : first + item_chunk].T

    for rows, first, scores in () if apart else tiles():
        places = targets[rows, None] - first
        inside = (places >= 0) & (places < scores.shape[1])
        of_target[rows] = torch.where(inside, scores.gather(1, places.clamp(0, scores.shape[1] - 1)), of_target[rows])
    for rows, first, scores in tiles():
        items = torch.arange(first, first + scores.shape[1])
        above, same = scores > of_target[rows], scores == of_target[rows]
        before = (above | (same & (items < targets[rows, None]))) & (items != targets[rows, None])
        ranks[rows] += before.sum(1)
    return ranks


WAYS: dict[str, Callable] = {"tiles": target_ranks, "the loop": by_loop, "one product": by_one_product}


def peak_of(way: str, users: int, items: int) -> float | None:
    """Peak memory above states, weights and targets, in MiB."""
    given = problem(users, items)
    WAYS[way](*problem(4, 16))
    with measuring.Peak() as peak:
        WAYS[way](*given)
    return peak.mib


def measured(users: int, items: int, repeats: int) -> dict:
    """Times and memory of all ways on one size."""
    given = problem(users, items)
    found = {name: way(*given) for name, way in WAYS.items()}  # a short run of each: warm, and they must agree
    runs = {name: lambda way=way: measuring.timed(lambda: way(*given)) for name, way in WAYS.items()}
    row = {"users": users, "items": items, "times": measuring.in_turns(runs, repeats)}
    row["agree_loop"] = float((found["tiles"] == found["the loop"]).double().mean())
    row["agree_product"] = float((found["tiles"] == found["one product"]).double().mean())
    for name in WAYS:
        row[f"mib_{name}"] = measuring.in_own_process(peak_of, name, users, items)
        for clock in ("wall", "cpu"):
            row[f"{name}_{clock}"] = measuring.median(row["times"][name], clock)
    for clock in ("wall", "cpu"):
        for name in ("the loop", "one product"):
            row[f"faster_than_{name}_{clock}"] = row[f"{name}_{clock}"] / row[f"tiles_{clock}"]
    return row


def ties(users: int, items: int, copies: int) -> list[dict]:
    """Shares of scores and ranks that are others than in one product, by tiles of several shapes, where items have copies."""
    given = problem(users, items, copies)
    states, weight, _ = given
    whole, exact, scores = by_one_product(*given), target_ranks(*given), states @ weight.T
    rows = []
    for chunks in TILES:
        user_chunk, item_chunk = chunks
        parts = [[part @ other.T for other in weight.split(item_chunk)] for part in states.split(user_chunk)]
        found = {
            "scores": (torch.cat([torch.cat(row, 1) for row in parts]), scores),
            "in_tile": (by_float32_tiles(*given, *chunks, apart=False), whole),
            "apart": (by_float32_tiles(*given, *chunks, apart=True), whole),
            "target_ranks": (target_ranks(*given, None, None, *chunks), exact),
        }
        shares = {name: float((one != other).double().mean()) for name, (one, other) in found.items()}
        rows.append({"user_chunk": user_chunk, "item_chunk": item_chunk, **shares})
    return rows


def on_paper(row: dict, clock: str) -> dict:
    """Time and memory of 100,000 users on 100,000 items: time from a measured size, memory from shapes alone."""
    times = GOAL * GOAL / (row["users"] * row["items"])
    given = 4 * 2 * GOAL * WIDTH  # states and weights, float32
    tile = 8 * (USER_CHUNK * ITEM_CHUNK + ITEM_CHUNK * WIDTH + USER_CHUNK * WIDTH)
    return {
        "of_users": row["users"],
        "of_items": row["items"],
        "minutes_tiles": row[f"tiles_{clock}"] * times / 60,
        "minutes_one_product": row[f"one product_{clock}"] * times / 60,
        "multiplications": GOAL * GOAL * WIDTH,
        "mib_given": given / 2**20,
        "mib_tile": tile / 2**20,
        "mib_all_scores": 4 * GOAL * GOAL / 2**20,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", nargs="+", type=int, default=[1000, 2000, 4000], help="on the first of --items")
    parser.add_argument("--items", nargs="+", type=int, default=[10_000, 30_000, 100_000], help="of --fixed_users")
    parser.add_argument("--fixed_users", type=int, default=1000, help="while the items grow")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which all take a turn")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="what the table's times are")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--quick", action="store_true", help="50 to 100 users, 300 to 600 items, once")
    args = parser.parse_args(argv)
    if args.quick:
        args.users, args.items, args.fixed_users, args.repeats = [50, 100], [300, 600], 50, 1
    started = time.perf_counter()
    sizes = [(users, args.items[0]) for users in args.users] + [(args.fixed_users, items) for items in args.items]
    rows = [measured(*size, args.repeats) for size in dict.fromkeys(sizes)]
    tied = ties(args.fixed_users, args.items[0], 4)
    paper = on_paper(rows[-1], args.clock)
    print(table(HEADER, [cells(row, args.clock) for row in rows]) + "\n")
    print("What is another than in one product, where each item has four copies:\n")
    print(table(TIE_HEADER, [tie_cells(row) for row in tied]) + "\n")
    print(table(PAPER_HEADER, paper_cells(paper)) + "\n")
    agree, product = (min(row[name] for row in rows) for name in ("agree_loop", "agree_product"))
    print(f"Ranks that are the loop's: {agree:.2%} or more; those of one product: {product:.2%} or more.")
    here, minutes = machine(), (time.perf_counter() - started) / 60
    print(f"{describe(here)}, {args.clock} clock, d = {WIDTH}, medians of {args.repeats} rounds.")
    print(f"{'QUICK run: not to be quoted. ' if args.quick else ''}{minutes:.1f} minutes in all.")
    if args.json:
        figures = {"settings": vars(args), "machine": here, "minutes": minutes}
        figures |= {"rows": rows, "ties": tied, "on_paper": paper}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def cells(row: dict, clock: str) -> list[str]:
    """A row of the first table."""
    ratios = [number(row[f"faster_than_{name}_{clock}"]) for name in ("the loop", "one product")]
    seconds = [number(row[f"{name}_{clock}"], ".3f") for name in WAYS]
    return [
        f"{row['users']:,}",
        f"{row['items']:,}",
        *ratios,
        *seconds,
        *(number(row[f"mib_{n}"], ".0f") for n in WAYS),
    ]


def tie_cells(row: dict) -> list[str]:
    """A row of the second table."""
    shape = f"({row['user_chunk']}, {row['item_chunk']})"
    return [shape, *(f"{row[name]:.2%}" for name in ("scores", "in_tile", "apart", "target_ranks"))]


def paper_cells(paper: dict) -> list[list[str]]:
    """The third table."""
    minutes = [number(paper[f"minutes_{name}"], ".1f", " minutes") for name in ("tiles", "one_product")]
    given = number(paper["mib_given"], ",.0f", " MiB")
    held = [number(paper[f"mib_{name}"], ",.0f", " MiB") for name in ("tile", "all_scores")]
    return [
        [f"time, from {paper['of_users']:,} users on {paper['of_items']:,} items", *minutes],
        ["states and weights, float32", given, given],
        ["scores at a time, and a tile's weights and states", *held],
    ]


if __name__ == "__main__":
    main()
