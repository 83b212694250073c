"""Peak memory of generating negatives from a snapshot of the student: in place on its own base, or by a second model.

    python examples/benchmarks/generator_memory.py [--model MODEL] [--json FILE]

Each figure is that of a fresh process. It loads the student, takes two steps of AdamW with a snapshot in between, and
samples negatives: from the student as it is (`student alone`), from the snapshot put in place as `Snapshots.activated` does
it, or from a second model that was loaded from the base and the snapshot. Printed: the peak while sampling, and the
difference to the student alone; medians of runs that take turns.

On a GPU that is what torch allocated there. On the CPU (Linux) it is resident memory, and of it what no file backs: pages of
a mapped file count as resident while it is open, but the system drops them when it needs room. All weights are copied out
of the file they are loaded from, as moving a model to a GPU does; otherwise two models of one file would share their pages.
MODEL is a decoder-only model; a random one of 57 million parameters if left out.
"""

import argparse
import ctypes
import gc
import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace


KINDS = {
    "lora": "LoRA, fp32 base",
    "lora_nf4": "LoRA, 4-bit base (NF4, double quantization)",
    "full": "full fine-tuning, fp32",
}
MODES = {"alone": "student alone", "in_place": "+ snapshot in place", "second": "+ second model"}
MEASURES = {
    "resident": "resident memory",
    "anonymous": "resident memory that no file backs",
    "allocated": "GPU memory allocated by torch",
}
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batch_size", type=int, default=8, help="samples at a time; two batches are sampled")
    parser.add_argument("--prompt_tokens", type=int, default=64)
    parser.add_argument("--max_new_tokens", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16, help="of the LoRA adapter on all linear layers")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--child", choices=["build", *MODES], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "build":
        build_model(Path(args.model))
    elif args.child:
        print(json.dumps(measure(args, args.kinds[0], args.child)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(args, Path(folder))


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Runs all processes, prints the table and writes the figures."""
    started = time.perf_counter()
    given = args.model
    if args.model is None:
        args.model = str(folder / "model")
        run_child(args, args.kinds[0], "build")
    results, failed = {}, {}
    for kind in args.kinds:
        runs = {mode: [] for mode in MODES}
        try:
            for _ in range(args.runs):
                for mode in MODES:
                    runs[mode].append(run_child(args, kind, mode))
        except RuntimeError as err:
            if kind != "lora_nf4":
                raise
            failed[kind] = str(err)
            continue
        if {run["tokens"] for run in runs["in_place"]} != {run["tokens"] for run in runs["second"]}:
            print(f"{KINDS[kind]}: in place and the second model did not sample the same tokens", file=sys.stderr)
        results[kind] = runs
    if not results:
        raise SystemExit("; ".join(failed.values()))
    measures = [name for name in MEASURES if any(name in run for runs in results.values() for run in runs["alone"])]
    medians = {
        kind: {name: {mode: statistics.median(run[name] for run in runs[mode]) for mode in MODES} for name in measures}
        for kind, runs in results.items()
    }
    print(f"peak while sampling, MiB (difference to the student alone), median of {args.runs} processes")
    width = max(map(len, KINDS.values()))
    for name in measures:
        print(f"\n{MEASURES[name]:<{width}}  " + "  ".join(f"{mode:>19}" for mode in MODES.values()))
        for kind, values in medians.items():
            alone, *others = values[name].values()
            cells = [f"{alone:.0f}", *(f"{value:.0f} ({value - alone:+.0f})" for value in others)]
            print(f"{KINDS[kind]:<{width}}  " + "  ".join(f"{cell:>19}" for cell in cells))
    for kind, reason in failed.items():
        print(f"{KINDS[kind]}: not measured ({reason})")
    sizes = next(iter(results.values()))["alone"][0]
    machine = {
        "device": sizes["device"],
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }
    print(
        f"\n{given or 'random model'}: {sizes['parameters'] / 1e6:.0f} million parameters, batches of {args.batch_size} of "
        f"{args.prompt_tokens} + {args.max_new_tokens} tokens, LoRA rank {args.rank}, {time.perf_counter() - started:.0f} s"
    )
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "child"} | {"model": given}
        report = {"settings": settings, "machine": machine, "mib": medians, "runs": results, "failed": failed}
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def run_child(args: argparse.Namespace, kind: str, mode: str) -> dict:
    """What one fresh process measured."""
    names = ("model", "batch_size", "prompt_tokens", "max_new_tokens", "rank")
    flags = [part for name in names for part in (f"--{name}", str(getattr(args, name)))]
    command = [sys.executable, __file__, *flags, "--kinds", kind, "--child", mode]
    # A fixed threshold: memory of a tensor that is freed goes back to the system, and is not kept for the next one.
    child = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    )
    if child.returncode:
        raise RuntimeError(f"{kind}, {mode}: {(child.stderr.strip() or 'no message').splitlines()[-1]}")
    return json.loads(child.stdout.splitlines()[-1]) if mode != "build" else {}


def measure(args: argparse.Namespace, kind: str, mode: str) -> dict:
    """Loads, trains for two steps, samples, and gives the peaks of the sampling."""
    import torch
    from peft import LoraConfig, PeftModel

    from qcrd_trl.models import base_model, load_tokenizer, prepare_student, prepare_tokenizer
    from qcrd_trl.sampling.negatives import NegativeQuestion, NegativeSampler, NegativeSettings
    from qcrd_trl.snapshots import Snapshots

    torch.manual_seed(0)
    tokenizer = prepare_tokenizer(load_tokenizer(args.model))
    adapter = None
    if kind != "full":
        adapter = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    settings = SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None, fp16=False)
    student = prepare_student(load(args.model, kind), settings, adapter)
    size = base_model(student).get_input_embeddings().weight.shape[0]
    prompts = torch.randint(10, size, (2 * args.batch_size, args.prompt_tokens))
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-3)
    row = prompts[:1, :8].to(student.device)
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(Path(folder))
        student.train()
        for step in range(2):
            student(input_ids=row, labels=row).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                snapshots.save(student, 0, 1)
        generator = student
        if mode == "second" and adapter is None:
            generator = load(str(snapshots.path(0)), kind)
        elif mode == "second":
            generator = PeftModel.from_pretrained(load(args.model, kind), snapshots.path(0))
        questions = [NegativeQuestion(str(i), ids) for i, ids in enumerate(prompts.tolist())]
        how = NegativeSettings(max_new_tokens=args.max_new_tokens, batch_size=args.batch_size)
        sampler = NegativeSampler(generator, tokenizer, how)
        with Peak() as peak:
            if mode == "in_place":
                with snapshots.activated(student, 0):
                    kept, _ = sampler.sample(questions, 1, 0, progress=False)
            else:
                kept, _ = sampler.sample(questions, 1, 0, progress=False)
    tokens = json.dumps([(place, negative.token_ids) for place, negative in kept])
    return {
        **peak.mib,
        "tokens": hashlib.sha256(tokens.encode()).hexdigest(),
        "parameters": sum(p.numel() for p in student.parameters()) if adapter is None else count(args.model),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def load(path: str, kind: str):
    """A model whose weights are in memory of their own."""
    import torch

    from qcrd_trl.models import load_model

    quantization = None
    if kind == "lora_nf4":
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    model = load_model(path, quantization)
    if torch.cuda.is_available():
        return model.to("cuda")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype.is_floating_point:  # quantized ones were made here
            tensor.data = tensor.data.clone()
    return model


class Peak:
    """Peaks within a block, in MiB."""

    def __enter__(self) -> "Peak":
        import torch

        self.mib, self._on_gpu = {}, torch.cuda.is_available()
        gc.collect()
        if self._on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return self
        if sys.platform != "linux":
            raise SystemExit("measuring a part of a process needs Linux, or a GPU")
        ctypes.CDLL(None).malloc_trim(0)  # what was freed must not serve the block
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
        self._ended, self._anonymous = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        import torch

        if self._on_gpu:
            self.mib = {"allocated": torch.cuda.max_memory_allocated() / MIB}
            return
        self._ended.set()
        self._thread.join()
        self.mib = {"resident": status("VmHWM"), "anonymous": self._anonymous}

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self._anonymous = max(self._anonymous, status("RssAnon"))


def status(name: str) -> float:
    """An entry of this process's status, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def build_model(folder: Path) -> None:
    """A random Llama and a tokenizer of one token a word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<s>", "<unk>"])}
    words.update({f"w{number}": number for number in range(len(words), config.vocab_size)})
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)


def count(path: str) -> int:
    """Parameters of a model, without loading it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).num_parameters()


def version(package: str) -> str | None:
    """Installed version of a package, if it is there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
