"""What the benchmarks of this folder share: runs that take turns, medians, peak memory, the machine, tables."""

import argparse
import contextlib
import ctypes
import gc
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path


os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PACKAGES = ("qcrd_trl", "torch", "transformers", "trl", "peft")
IMPORTS = (*PACKAGES, "qcrd_trl.trainer.qcrd_trainer", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer")
MIB = 2**20


# ---- The command line ----


def parser_of(doc: str, quick: str) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks; `quick` says what `--quick` runs."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--model", required=True, help="the student, an id or path")
    parser.add_argument("--rank", type=int, default=16, help="of the LoRA adapter on all linear layers")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast; float32 if left out")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="what the table's times are")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def report(args: argparse.Namespace, tables: Sequence[str], rows: dict[str, list[dict]], started: float) -> None:
    """Prints the tables with the machine below them, and writes the figures."""
    here = machine()
    print("\n\n".join(tables))
    print(f"\n{describe(here)}, {'bfloat16 autocast' if args.bf16 else 'float32'}, {args.clock} clock.")
    minutes = (time.perf_counter() - started) / 60
    print(f"{'QUICK run: not to be quoted. ' if args.quick else ''}{minutes:.1f} minutes in all.")
    if args.json:
        settings = {**vars(args), "model": Path(args.model).name}
        figures = {"settings": settings, "machine": here, "minutes": minutes, **rows}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float | None, form: str = ".2f", unit: str = "") -> str:
    """A cell: the number, or a dash where there is none."""
    return "–" if value is None else f"{value:{form}}{unit}"


def machine() -> dict:
    """Size of the machine, and versions."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def describe(here: dict) -> str:
    """The machine in a line."""
    place = f"{here['machine']}, {here['cores']} cores, {here['memory_gib']} GiB, {here['threads']} threads"
    device = "" if here["device"] == "cpu" else f"{here['device']}, "
    return f"{device}{place}; Python {here['python']}, " + ", ".join(f"{name} {here[name]}" for name in PACKAGES)


# ---- Time ----


def timed(work: Callable[[], object]) -> dict:
    """Seconds that some work takes, by the wall's clock and by the processor's."""
    synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    synchronize()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def synchronize() -> None:
    """Waits for what a GPU still does."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_turns(runs: dict[str, Callable[[], dict]], repeats: int) -> dict[str, list[dict]]:
    """Results of several runs that take turns: A B A B, and not A A B B."""
    results = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            results[name].append(run())
    return results


def median(times: Sequence[dict], clock: str) -> float:
    """Median seconds."""
    return statistics.median(time[clock] for time in times)


# ---- Memory ----


class Peak:
    """Peak memory of a block above what was in use before it, in MiB; `None` where that cannot be measured."""

    def __enter__(self) -> "Peak":
        import torch

        self.mib, self._on_gpu = None, torch.cuda.is_available()
        trim()  # what was freed must not serve the block
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated() / MIB
        elif sys.platform == "linux":
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
            self._before = status("VmRSS")
        return self

    def __exit__(self, *error) -> None:
        import torch

        if self._on_gpu:
            self.mib = torch.cuda.max_memory_allocated() / MIB - self._before
        elif sys.platform == "linux":
            self.mib = status("VmHWM") - self._before


def trim() -> None:
    """Gives memory that is not used any more back to the system."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def status(name: str) -> float:
    """An entry of this process's status, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def in_own_process(work: Callable, *args) -> object:
    """
    What `work(*args)` gives in a process of its own, which has the libraries loaded and nothing else.

    There memory of a tensor that is freed goes back to the system, and is not kept for the next one, so that the peak is
    that of the tensors alive at a time.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(list(IMPORTS))
    kept = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read when the server of processes starts
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
        if kept is not None:
            os.environ["MALLOC_MMAP_THRESHOLD_"] = kept
    trim()  # the other process needs the room
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=_answer, args=(there, work, args))
    process.start()
    there.close()
    try:
        value, error = here.recv()
    except EOFError:
        value, error = None, "no answer, perhaps for want of memory"
    process.join()
    if error is not None:
        raise RuntimeError(f"A process that measured ended with code {process.exitcode}: {error}")
    return value


def _answer(there, work, args) -> None:
    quiet()
    try:
        answer = (work(*args), None)
    except BaseException:
        answer = (None, traceback.format_exc())
    there.send(answer)
    there.close()


def quiet() -> None:
    """Silences what libraries say of themselves."""
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with contextlib.suppress(ImportError):
        import datasets

        datasets.disable_progress_bars()


# ---- Students ----


def load(path: str):
    """A student in single precision whose weights are in memory of their own, not pages of the file."""
    import torch

    from qcrd_trl.models import load_model

    model = load_model(path, is_trainable=True)
    if torch.cuda.is_available():
        return model.to("cuda")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def lora(rank: int, encoder_decoder: bool = False):
    """An adapter on all linear layers."""
    from peft import LoraConfig

    kind = "SEQ_2_SEQ_LM" if encoder_decoder else "CAUSAL_LM"
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=kind)


def trained(model, training: str, rank: int):
    """The student as it is trained: with a LoRA adapter, or whole."""
    import torch
    from peft import get_peft_model

    from qcrd_trl.models import is_encoder_decoder

    torch.manual_seed(0)
    if training == "lora":
        model = get_peft_model(model, lora(rank, is_encoder_decoder(model)))
    return model.train()


def precision(bf16: bool):
    """Autocast, or nothing."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext()


# ---- One made-up question, scored and differentiated ----


SWITCHES = ("shared_prompt", "selection", "chunked_logits")


def form_of(*values: bool | str) -> dict:
    """The switches of the scoring engine."""
    return dict(zip(SWITCHES, values, strict=True))


class ScoringStep:
    """
    Forward and backward of the rationale loss of one question, with the reductions of `qcrd_paper`: the likeliest positive
    and the likeliest negative are learned from. The margin is out of reach, so that a negative always has a gradient. There
    is no label row and no discriminator, and all rationales are equally long, so they are scored in a single pass.

    Args:
        model: the student, as trained.
        form (`dict`): the switches of the scoring engine.
        bf16 (`bool`): whether autocast is used.
    """

    def __init__(self, model, form: dict, bf16: bool):
        import torch
        from accelerate import Accelerator

        from qcrd_trl import QCRDConfig
        from qcrd_trl.models import base_model, is_encoder_decoder
        from qcrd_trl.trainer.engine import ScoringEngine

        self.model, self.bf16 = model, bf16
        self._is_encoder_decoder = is_encoder_decoder(model)
        self._vocabulary = base_model(model).get_input_embeddings().weight.shape[0]
        on_cpu = not torch.cuda.is_available()
        self.args = QCRDConfig(
            output_dir="unused",
            preset="qcrd_paper",
            alpha_1=0.0,
            margin=1e6,
            quality_weighting="none",
            discriminator="none",
            negative_source="minority",
            rationale_forward_passes=1,
            report_to="none",
            use_cpu=on_cpu,
            **form,
        )
        self.engine = ScoringEngine(model, self.args, Accelerator(cpu=on_cpu))

    def rows(self, rationales: int, prompt_tokens: int, rationale_tokens: int):
        """A question of random tokens, half of whose rationales are positives."""
        import torch

        from qcrd_trl.data.collator import DataCollatorForQCRD
        from qcrd_trl.trainer.objective import rationale_rows

        draws = torch.Generator().manual_seed(0)
        low = min(10, self._vocabulary // 2)

        def tokens(count):
            return torch.randint(low, self._vocabulary, (count,), generator=draws).tolist()

        texts = [tokens(rationale_tokens) for _ in range(rationales)]
        question = {
            "question_index": 0,
            "predict_prompt_ids": [low],
            "label_ids": [low],
            "explain_prompt_ids": tokens(prompt_tokens),
            "positive_ids": texts[: rationales // 2],
            "negative_ids": texts[rationales // 2 :],
        }
        batch = DataCollatorForQCRD(0, self._is_encoder_decoder)([question])
        device = next(self.model.parameters()).device
        return rationale_rows({name: tensor.to(device) for name, tensor in batch.items()}, self.args, 0)

    def __call__(self, rows) -> None:
        from qcrd_trl.trainer.objective import rationale_parts

        with precision(self.bf16):
            scored = self.engine.rationales(self.model, rows)
            loss = rationale_parts(rows, scored, self.args).contrast(self.args)[0].sum()
            loss = self.engine.differentiate(self.model, rows, scored.nll, loss)
        loss.backward()

    def timed(self, rows) -> dict:
        """Seconds of a step that starts without gradients."""
        self.model.zero_grad()
        return timed(lambda: self(rows))


def step_times(model, forms: dict[str, dict], size: tuple[int, int, int], repeats: int, bf16: bool) -> dict:
    """Times of a step by each form, in turns, after a short one each; `size` is n, P and R."""
    steps = {name: ScoringStep(model, form, bf16) for name, form in forms.items()}
    for step in steps.values():
        step(step.rows(2, 16, 16))
    rows = {name: step.rows(*size) for name, step in steps.items()}
    return in_turns({name: lambda name=name: steps[name].timed(rows[name]) for name in forms}, repeats)


# ---- Training on real questions ----


def questions_of(path: str, count: int) -> list[dict]:
    """
    The first questions of a selected dataset that have a positive rationale, each with a negative: its own wrong ones, or
    else a wrong one of the nearest later question that has any.
    """
    from qcrd_trl.data.sources import load_dataset_from

    rows = load_dataset_from(path).to_list()
    wrong = [index for index, row in enumerate(rows) if row["negative_rationales"]]
    if not wrong:
        raise SystemExit(f"{path}: no question has a negative rationale.")
    chosen = []
    for index, row in enumerate(rows):
        if row["positive_rationales"] and row["label"] is not None:
            giver = next((i for i in wrong if i >= index), wrong[0])
            given = rows[giver]["negative_rationales"]
            kept = {name: row[name] for name in ("prompt", "label", "positive_rationales")}
            chosen.append({**kept, "negative_rationales": given if giver == index else given[:1]})
        if len(chosen) == count:
            break
    return chosen


def spread(rows: list[dict], count: int) -> list[dict]:
    """Some of the questions, at even distances in the order of what their rationales hold, shuffled again."""
    count = min(count, len(rows))
    sides = ("positive_rationales", "negative_rationales")
    ranked = sorted(rows, key=lambda row: sum(len(text) for side in sides for text in row[side]))
    chosen = [ranked[(2 * place + 1) * len(rows) // (2 * count)] for place in range(count)]
    random.Random(0).shuffle(chosen)
    return chosen


def training_arguments(folder: str, bf16: bool) -> dict:
    """What all trainers are given: AdamW, nothing saved, nothing reported."""
    import torch

    return {
        "output_dir": folder,
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "gradient_checkpointing": False,
        "bf16": bf16,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
    }


def timed_training(trainer) -> dict:
    """Seconds of a run from its first step to its last, without what comes before the first."""
    from transformers import PrinterCallback, TrainerCallback

    clock = {}

    class Clock(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            synchronize()
            clock.update(wall=time.perf_counter(), cpu=time.process_time())

        def on_train_end(self, *args, **kwargs):
            synchronize()
            clock.update(wall=time.perf_counter() - clock["wall"], cpu=time.process_time() - clock["cpu"])

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback := Clock())
    trainer.train()
    trainer.remove_callback(callback)
    return clock
