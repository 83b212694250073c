"""Runs the parts of a comparison, several at a time, and leaves out those that are finished."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from plan import WORK, Part, key_of


STARTED, FINISHED, LOG = "started.json", "finished.json", "log.txt"


def run_parts(parts: Sequence[Part], work: Path, jobs: int) -> None:
    """
    Runs what is not finished. A part that was stopped goes on from its last checkpoint; one whose command, or that of a part it
    needs, has changed is made anew.

    Args:
        parts (`Sequence[Part]`): the parts.
        work (`Path`): the comparison's folder.
        jobs (`int`): parts that run at a time, each on one thread.

    Raises:
        `SystemExit`: if a part fails, once those that are running have ended.
    """
    by_name = {part.name: part for part in parts}
    finished = {part.name for part in parts if is_finished(part, by_name, work)}
    todo = [part for part in parts if part.name not in finished]
    print(f"{len(finished)} of {len(parts)} parts are finished")
    running, failed = {}, []
    with ThreadPoolExecutor(jobs) as pool:
        while (todo and not failed) or running:
            for part in [part for part in todo if set(part.needs) <= finished]:
                if len(running) < jobs and not failed:
                    todo.remove(part)
                    running[pool.submit(_run, part, key_of(part, by_name), work)] = part
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                part = running.pop(future)
                if future.result() == 0:
                    finished.add(part.name)
                else:
                    failed.append(part.name)
    if failed:
        raise SystemExit(
            f"{', '.join(failed)} failed: see {LOG} there. The same command goes on from what is finished."
        )


def is_finished(part: Part, by_name: dict[str, Part], work: Path) -> bool:
    """Whether a part was finished with the command that it has now."""
    return _key_in(work / part.name / FINISHED) == key_of(part, by_name)


def times(work: Path, name: str) -> dict[str, float]:
    """`wall_s` and `cpu_s` of a part that is finished."""
    return json.loads((work / name / FINISHED).read_text(encoding="utf-8"))


def _run(part: Part, key: str, work: Path) -> int:
    folder = work / part.name
    started = folder / STARTED
    resumes = part.trains and _key_in(started) == key and any(folder.glob("checkpoint-*"))
    before = times_before(started) if resumes else {"wall_s": 0.0, "cpu_s": 0.0}
    if not resumes and folder.exists():
        shutil.rmtree(folder)
    command = [argument.replace(WORK, str(work)) for argument in part.argv] + ["--resume"] * resumes
    # The folder of the data is written whole, and must not be there before.
    log = work / f"{part.name}.{LOG}" if part.name == "data" else folder / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    if part.name != "data":
        _write(started, {"key": key, **before})
    print(f"{'resumes' if resumes else 'starts'} {part.name}", flush=True)
    began = time.monotonic()
    with open(log, "a" if resumes else "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "qcrd_trl", *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = before["wall_s"] + time.monotonic() - began
    cpu = before["cpu_s"] + usage.ru_utime + usage.ru_stime
    if process.returncode == 0:
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        _write(folder / FINISHED, {"key": key, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1)})
        print(f"finished {part.name} in {wall:.0f} s ({cpu:.0f} s of CPU)", flush=True)
    else:
        if part.name != "data":
            _write(started, {"key": key, "wall_s": wall, "cpu_s": cpu})
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        print(f"failed {part.name}, exit status {process.returncode}:", *tail, sep="\n  ", flush=True)
    return process.returncode


def times_before(started: Path) -> dict[str, float]:
    """Time that a part had taken when it was stopped, where that is known."""
    content = json.loads(started.read_text(encoding="utf-8"))
    return {name: content[name] for name in ("wall_s", "cpu_s")}


def _key_in(path: Path) -> str | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["key"]
    except FileNotFoundError:
        return None


def _write(path: Path, content: dict) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content) + "\n", encoding="utf-8")
    aside.replace(path)
