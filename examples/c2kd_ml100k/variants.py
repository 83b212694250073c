"""What was tried to make C2KD better, after the comparison: other weights and forms of its parts, on the comparison's own teachers.

    python examples/c2kd_ml100k/variants.py --interactions ml-100k.inter --items ml-100k.item --work WORK [--variants ...] [--jobs 2]

WORK is the folder of `run.py`; what is missing of it is made. Each variant is trained as the students there are, with the same seeds.
Chosen with the comparison's outcome in sight, so its tables are exploration and no further evidence.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from parts import run_parts
from plan import Part, Settings, plan, student_part
from probe import best_of

from qcrd_trl.recommendation.results import compare


# By name: the method, and its further flags.
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "features alone": ("c2kd", ("--lambda_logit", "0")),
    "logits alone": ("logit_kd", ("--logit_distillation", "cross_head")),
    "normalized features": ("c2kd", ("--feature_loss", "normalized")),
    "targets behind the norm": ("c2kd", ("--filter_target", "normed")),
    "logits 2": ("c2kd", ("--lambda_logit", "2")),
    "T 2": ("c2kd", ("--temperature", "2")),
    "orthogonal 0.05": ("c2kd", ("--lambda_orthogonal", "0.05")),
    "own heads 2": ("logit_kd", ("--lambda_logit", "2")),
    "own heads 2, router": ("c2kd", ("--logit_distillation", "own_heads", "--lambda_logit", "2")),
}


def parts_of(name: str, settings: Settings, seeds: list[int]) -> list[Part]:
    """The runs of a variant, one a seed."""
    method, flags = VARIANTS[name]
    changed = replace(settings, extra={method: flags})
    slug = name.replace(",", "").replace(".", "").replace(" ", "_")
    return [student_part(changed, method, seed, f"variant-{slug}") for seed in seeds]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", required=True)
    parser.add_argument("--items", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(argv)
    settings, work = Settings(), args.work.resolve()
    paths = [str(Path(path).resolve()) for path in (args.interactions, args.items)]
    runs = {name: parts_of(name, settings, args.seeds) for name in args.variants}
    run_parts([*plan(*paths, settings, args.seeds), *(run for of in runs.values() for run in of)], work, args.jobs)
    of_none = [Part(f"none-{seed}", ()) for seed in args.seeds]
    of_c2kd = [Part(f"c2kd-{seed}", ()) for seed in args.seeds]
    runs = {"student alone": of_none, "C2KD": of_c2kd, **runs}
    compared = compare(*([work / run.name / "results.json" for run in of] for of in runs.values()))
    differences = {one.run: one for one in compared.differences if one.metric == "ndcg@10"}
    print("\nNDCG@10, seeds", ", ".join(map(str, args.seeds)), "\n")
    print("| variant | validation | test | test, less the student alone | p |\n| --- | ---: | ---: | --- | ---: |")
    for number, (name, of) in enumerate(runs.items()):
        validation = sum(best_of(work / run.name)[0] for run in of) / len(of)
        cells = [name, f"{validation:.4f}", f"{compared.runs[number].metrics['ndcg@10']:.4f}", "", ""]
        if number in differences:
            one = differences[number]
            low, high = one.interval
            cells[3:] = f"{one.difference:+.4f} [{low:+.4f}, {high:+.4f}]", f"{one.p_value:.4f}"
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
