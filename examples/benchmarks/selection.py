"""How fast `qcrd select` is, and how much memory it takes, as the samples grow from ten thousand to a million.

    python examples/benchmarks/selection.py --samples SVAMP/train.jsonl --json selection.json

Makes samples files out of real rationales, five a question: every number of two and more digits in a text and in its
question is drawn anew, so that no text stands twice (a reader that remembered texts would be measured at nothing). The long
layout is what `qcrd sample` writes, with the samples of a question scattered among those of its neighbours as a concurrent
sampler leaves them; the wide one has a question a line. Each selection runs in a process of its own, whose memory, and that
of all its workers, is read ten times a second. Only the selection is timed, from its start to its end, imports included.
"""

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import describe, machine, table

from qcrd_trl.data.sources import load_rows


SAMPLES_A_QUESTION = 5
SIZES = (10_000, 100_000, 1_000_000)
IN_FLIGHT = 64  # questions that a sampler has under way at a time
_NUMBER = re.compile(r"(?<![\d.,])\d{2,6}(?![\d.,]\d)")


def questions(rows: list[dict], count: int) -> Iterator[dict]:
    """Made-up questions with five rationales each, all numbers of two and more digits drawn anew."""
    draws = random.Random(0)
    for number in range(count):
        row = rows[number % len(rows)]
        shift = draws.randrange(10**6)

        def redraw(match: re.Match, shift: int = shift) -> str:
            digits = match.group()
            low = 10 ** (len(digits) - 1)
            return str(low + (int(digits) * 7919 + shift) % (9 * low))

        texts = draws.sample(row["rationales"], SAMPLES_A_QUESTION)
        yield {
            "id": f"q-{number:07d}",
            "prompt": _NUMBER.sub(redraw, row["question"]),
            "label": _NUMBER.sub(redraw, str(row["answer"])),
            "rationales": [_NUMBER.sub(redraw, text) for text in texts],
        }


def write_wide(path: Path, rows: list[dict], count: int) -> None:
    """One row a question."""
    with path.open("w", encoding="utf-8") as file:
        for question in questions(rows, count):
            file.write(json.dumps(question, ensure_ascii=False) + "\n")


def write_long(path: Path, rows: list[dict], count: int) -> None:
    """One row a sample, as `records.TeacherSample` is written, the samples of 64 questions in a random order."""
    draws = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        flight: list[str] = []

        def land(keep: int) -> None:
            while len(flight) > keep:
                place = draws.randrange(len(flight))
                flight[place], flight[-1] = flight[-1], flight[place]
                file.write(flight.pop())

        for question in questions(rows, count):
            for index, text in enumerate(question["rationales"]):
                sample = {
                    **{name: question[name] for name in ("id", "prompt")},
                    **{"sample_index": index, "text": text, "finish_reason": "stop", "status": "ok"},
                    **{"model": "teacher", "temperature": 0.7, "seed": index, "settings_hash": "0" * 16},
                    "usage": {"prompt_tokens": 120, "completion_tokens": 90},
                    **{"label": question["label"], "choices": None, "error": None},
                }
                flight.append(json.dumps(sample, ensure_ascii=False) + "\n")
            land(IN_FLIGHT * SAMPLES_A_QUESTION)
        land(0)


def memory_of(process: int) -> int:
    """Resident bytes of a process and of all that it started, shared pages counted for each."""
    total, todo = 0, [process]
    while todo:
        one = todo.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * resource.getpagesize()
            for thread in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
        except (OSError, IndexError):
            continue  # it has ended
    return total


def measure(path: Path, samples: int, workers: int | None, folder: Path) -> dict:
    """Runs one selection; seconds by the wall's clock, processor seconds of all processes, peak memory of all."""
    command = [sys.executable, "-m", "qcrd_trl", "select", "--samples", str(path), "--task_kind", "number"]
    command += ["--output_dir", str(folder / "selected"), "--overwrite_output_dir"]
    if workers is not None:
        command += ["--num_workers", str(workers)]
    peak, done = 0, threading.Event()
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, memory_of(child.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = child.communicate()
    wall = time.perf_counter() - started
    done.set()
    watcher.join()
    if child.returncode:
        raise RuntimeError(f"qcrd select ended with {child.returncode}: {errors[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads((folder / "selected" / "report.json").read_text(encoding="utf-8"))
    if report["samples"]["total"] != samples:
        raise RuntimeError(f"{report['samples']['total']} samples were read, not {samples}")
    return {
        "samples": samples,
        "wall": wall,
        "cpu": cpu,
        "samples_a_second": samples / wall,
        "samples_a_cpu_second": samples / cpu,
        "peak_mib": peak / 2**20,
        "file_mib": path.stat().st_size / 2**20,
        "yield": report["rows"]["yield"],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", required=True, help="JSONL with question, answer and rationales, such as SVAMP's")
    parser.add_argument("--num_workers", type=int, help="as of `qcrd select`")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"numbers of samples; {SIZES} if left out")
    parser.add_argument("--folder", help="where to write the samples; the system's temporary folder if left out")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--quick", action="store_true", help="a thousand samples")
    args = parser.parse_args(argv)
    started = time.perf_counter()
    rows = [row for row in load_rows(args.samples) if len(row["rationales"]) >= SAMPLES_A_QUESTION]
    results = []
    for samples in args.sizes or ((1000,) if args.quick else SIZES):
        for layout, write in (("long", write_long), ("wide", write_wide)):
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                path = Path(folder) / "samples.jsonl"
                write(path, rows, samples // SAMPLES_A_QUESTION)
                result = {"layout": layout, "load": os.getloadavg()[0]}
                result |= measure(path, samples - samples % SAMPLES_A_QUESTION, args.num_workers, Path(folder))
                results.append(result)
                print(f"{layout} {samples}: {result['wall']:.1f} s", file=sys.stderr, flush=True)
    header = ["samples", "layout", "seconds", "samples a second", "CPU seconds", "samples a CPU second", "peak memory"]
    cells = [
        [
            f"{one['samples']:,}",
            one["layout"],
            f"{one['wall']:.1f}",
            f"{one['samples_a_second']:,.0f}",
            f"{one['cpu']:.1f}",
            f"{one['samples_a_cpu_second']:,.0f}",
            f"{one['peak_mib']:.0f} MiB",
        ]
        for one in results
    ]
    here = machine()
    print(table(header, cells))
    minutes = (time.perf_counter() - started) / 60
    print(f"\n{describe(here)}. {'QUICK run: not to be quoted. ' if args.quick else ''}{minutes:.1f} minutes in all.")
    if args.json:
        figures = {
            "settings": {**vars(args), "samples": Path(args.samples).name},
            "machine": here,
            "selections": results,
        }
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
