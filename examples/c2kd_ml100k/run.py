"""C2KD against its baselines on ml-100k: one teacher and six students a seed, measured by full ranking.

    python examples/c2kd_ml100k/run.py --interactions ml-100k.inter --items ml-100k.item --work WORK [--seeds 0 1 2] [--jobs 2]

Each part is a command of `qcrd c2kd` with a folder of its own in WORK, with its log; finished parts are not run again, and one that
was stopped goes on from its last epoch. At the end the tables are printed, and written to WORK/tables.md and WORK/outcome.json.
"""

import argparse
import json
from pathlib import Path

from parts import run_parts
from plan import METHODS, Settings, plan, quick_settings, with_student
from table import markdown, outcome


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", required=True, help="ml-100k's interactions, such as ml-100k.inter")
    parser.add_argument("--items", required=True, help="its items, such as ml-100k.item")
    parser.add_argument("--work", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="training seeds (default: 0 1 2)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="methods of the students")
    parser.add_argument("--jobs", type=int, default=2, help="parts that run at a time, each on one thread")
    parser.add_argument("--student_width", type=int, help="width of the students' states, in place of 64")
    parser.add_argument("--student_layers", type=int, help="their layers, in place of 2")
    parser.add_argument("--quick", action="store_true", help="tiny models, one seed: to see that everything runs")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {args.jobs}")
    for name, step in (("student_width", 4), ("student_layers", 1)):  # two heads, each of an even width
        value = getattr(args, name)
        if value is not None and (value < step or value % step):
            parser.error(f"--{name} must be a multiple of {step}, got {value}")
    if "none" not in args.methods:
        parser.error("--methods must have none, which all others are compared with")
    seeds = args.seeds or ([0] if args.quick else [0, 1, 2])
    settings = quick_settings() if args.quick else Settings()
    if args.student_width is not None or args.student_layers is not None:
        settings = with_student(settings, args.student_width, args.student_layers)
    paths = [str(Path(path).resolve()) for path in (args.interactions, args.items)]
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    run_parts(plan(*paths, settings, seeds, args.methods), work, args.jobs)
    found = outcome(work, seeds, args.methods)
    (work / "outcome.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    text = markdown(found)
    (work / "tables.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
