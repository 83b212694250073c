"""How the settings of the comparison were chosen: by NDCG@10 on the validation split, never by the test split.

    python examples/c2kd_ml100k/probe.py --interactions ml-100k.inter --items ml-100k.item --work WORK --what teacher student

Each candidate is trained with seeds that the comparison has not (100, 101), without a look at the test split, and printed with
its best epoch. `--what c2kd` and `--what feature_kd` need a teacher of those seeds, which is trained first.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from parts import run_parts, times
from plan import Part, Settings, filter_part, plan, student_part, teacher_part


SEEDS = (100, 101)
# By what is looked for: name of the candidate: fields of the settings, or flags of the method.
CANDIDATES: dict[str, dict[str, dict]] = {
    "teacher": {
        "rate 5e-4": {"teacher_rate": 5e-4},
        "rate 1e-3": {"teacher_rate": 1e-3},
        "rate 1e-3, decay 1": {"teacher_rate": 1e-3, "weight_decay": 1.0},
        "rate 1e-3, 15 epochs": {"teacher_rate": 1e-3, "teacher_epochs": 15},
    },
    "none": {
        "rate 1e-3": {"student_rate": 1e-3},
        "rate 3e-3": {"student_rate": 3e-3},
        "rate 1e-2": {"student_rate": 1e-2},
    },
    "sasrec": {"rate 1e-3": {"sasrec_rate": 1e-3}, "rate 3e-3": {"sasrec_rate": 3e-3}},
    "c2kd": {
        "0.5, 0.5": {},
        "no logits": {"flags": ("--lambda_logit", "0")},
        "normalized features": {"flags": ("--feature_loss", "normalized")},
        "logits 2": {"flags": ("--lambda_logit", "2")},
        "logits 2, T 2": {"flags": ("--lambda_logit", "2", "--temperature", "2")},
        "0.05, 2": {"flags": ("--lambda_feat", "0.05", "--lambda_logit", "2")},
        "orthogonal 0.05": {"flags": ("--lambda_orthogonal", "0.05")},
    },
    "logit_kd": {
        "0.5": {},
        "cross heads": {"flags": ("--logit_distillation", "cross_head")},
        "2": {"flags": ("--lambda_logit", "2")},
        "2, T 2": {"flags": ("--lambda_logit", "2", "--temperature", "2")},
    },
}


def parts_of(what: str, settings: Settings, seeds, interactions: str, items: str) -> dict[str, list[Part]]:
    """The runs of each candidate; those of a method with a teacher need parts of `plan` besides."""
    found = {}
    for number, (name, changes) in enumerate(CANDIDATES[what].items()):
        flags = changes.get("flags", ())
        changed = replace(settings, **{key: value for key, value in changes.items() if key != "flags"})
        if what == "teacher":
            runs = [teacher_part(changed, seed, f"probe-teacher-{number}") for seed in seeds]
        else:
            changed = replace(changed, extra={what: flags})
            runs = [student_part(changed, what, seed, f"probe-{what}-{number}") for seed in seeds]
        found[name] = [replace(run, argv=(*run.argv, "--skip_test")) for run in runs]
    return found


def best_of(folder: Path) -> tuple[float, float]:
    """Best NDCG@10 on the validation split, and its epoch."""
    log = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return max((entry["eval_ndcg@10"], entry["epoch"]) for entry in log if "eval_ndcg@10" in entry)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", required=True)
    parser.add_argument("--items", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--what", nargs="+", default=["teacher", "none", "sasrec"], choices=list(CANDIDATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(argv)
    settings, work = Settings(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    paths = [str(Path(path).resolve()) for path in (args.interactions, args.items)]
    candidates = {what: parts_of(what, settings, args.seeds, *paths) for what in args.what}
    parts = plan(*paths, settings, [], [])[:1]
    if {"c2kd", "logit_kd"} & set(args.what):
        for seed in args.seeds:
            teacher = teacher_part(settings, seed)
            parts += [replace(teacher, argv=(*teacher.argv, "--skip_test")), filter_part(settings, seed)]
    parts += [run for found in candidates.values() for runs in found.values() for run in runs]
    run_parts(parts, work, args.jobs)
    print(f"\nBest NDCG@10 on the validation split, seeds {', '.join(map(str, args.seeds))}\n")
    print(
        "| what | candidate | NDCG@10, mean | by seed | best epochs | CPU, s |\n| --- | --- | ---: | --- | --- | ---: |"
    )
    for what, found in candidates.items():
        for name, runs in found.items():
            best = [best_of(work / run.name) for run in runs]
            seconds = sum(times(work, run.name)["cpu_s"] for run in runs) / len(runs)
            mean = sum(value for value, _ in best) / len(best)
            values = ", ".join(f"{value:.4f}" for value, _ in best)
            epochs = ", ".join(f"{epoch:g}" for _, epoch in best)
            print(f"| {what} | {name} | {mean:.4f} | {values} | {epochs} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
