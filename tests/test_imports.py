"""Who may import whom: read from the sources, and seen in a fresh interpreter."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qcrd_trl


PACKAGE = "qcrd_trl"
ROOT = Path(qcrd_trl.__file__).parent
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors", "tokenizers"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, is_package: bool = False) -> set[str]:
    """
    Full names of what a module imports, at its top or inside a function, with `import_module("...")` and `__import__`;
    names under `if TYPE_CHECKING:` are not imported. `from .a import b` counts as `a` and `a.b`.
    """
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".")
                here = here[: len(here) - node.level + is_package]
                base = ".".join([*here, base] if base else here)
            found.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                found.add(str(node.args[0].value))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def is_in(name: str, *places: str) -> bool:
    """Whether a full name is one of the places, or lies within one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
GRAPH = {
    module: imports_of(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    for module, path in SOURCES.items()
}


def all_imports(start: str, graph: dict[str, set[str]]) -> set[str]:
    """What a module imports, and what the modules of the package that it imports do, to the end."""
    seen, todo = set(), [start]
    while todo:
        for name in graph[todo.pop()]:
            if name in seen:
                continue
            seen.add(name)
            # The package's own front gives names lazily: to import a part of it does not import the others.
            if name in graph and name != PACKAGE:
                todo.append(name)
                parent = name.rpartition(".")[0]
                if parent in graph and parent != PACKAGE and parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
    return seen


TRAINER_PARTS = (
    *(
        "checkpoints",
        "discriminator_options",
        "discriminator_update",
        "hub",
        "hub_options",
        "meter",
        "negatives",
        "objective",
        "presets",
        "qcrd_config",
        "report_options",
        "rows",
        "score_counts",
        "scoring",
    ),
    *("accuracy_options", "architecture", "cached_prompt", "checks", "engine", "evaluating", "head", "shared_prompt"),
)

# (modules, what they never import, directly or through others). A name with a dot in front is one of the package's.
RULES = [
    (
        (".records", ".errors", ".answers", ".version", ".diversity", ".markdown", ".repositories"),
        (*HEAVY, "numpy", "scipy"),
    ),
    ((".run_log",), (*(HEAVY - {"safetensors"}), "numpy", "scipy", ".trainer", ".callbacks", ".cli")),
    (
        (".losses",),
        (
            *(HEAVY - {"torch"}),
            *(".data", ".sampling", ".recommendation"),
            ".trainer",
            ".models",
            ".cli",
            ".callbacks",
        ),
    ),
    (
        (".discriminator",),
        (*(HEAVY - {"torch", "safetensors"}), ".data", ".sampling", ".trainer", ".models", ".cli", ".callbacks"),
    ),
    # What a trained student is used by needs the trainer's forward passes, and neither trainer nor callbacks need it.
    (
        (".student", ".student_files", ".student_questions", ".student_answers", ".quality", ".merging", ".snippets"),
        (".cli", ".callbacks", ".demo", ".trainer.qcrd_trainer", ".trainer.engine"),
    ),
    ((".trainer", ".callbacks"), (".student", ".merging")),
    ((".sampling", ".data"), (".trainer", ".callbacks", ".cli")),
    # Pictures take plain values: who has them passes them.
    ((".plots",), (*(HEAVY - {"safetensors"}), ".data", ".sampling", ".trainer", ".models", ".cli", ".callbacks")),
    # The loss and its settings know nothing of who makes the rationales. The trainer attaches the callback that does,
    # and the callback knows a trainer only by what it is given.
    (
        tuple(f".trainer.{name}" for name in TRAINER_PARTS),
        (
            *(
                ".sampling",
                ".callbacks",
                ".evaluation",
                ".evaluation_callback",
                ".report_callback",
                ".rationale_tables",
            ),
            *(".snapshots", ".cli", ".demo"),
        ),
    ),
    (
        (".callbacks", ".callback_setup", ".evaluation", ".evaluation_callback", ".snapshots", ".models"),
        (".trainer", ".cli", ".demo"),
    ),
    # They know a trainer by what they are given; to score rationales they read the student as it does.
    ((".report_callback", ".rationale_tables"), (".trainer.qcrd_trainer", ".evaluation", ".cli", ".demo")),
    ((".rationale_quality",), (".trainer.qcrd_trainer", ".cli", ".demo")),
    ((".trainer",), (".cli", ".demo")),
    # A run against a server needs no model here.
    (
        tuple(
            f".sampling.teachers.{name}"
            for name in (
                *("base", "concurrency", "server_errors"),
                *("openai_asking", "openai_policy", "openai_replies", "openai_server"),
            )
        ),
        (*HEAVY, "numpy", "scipy"),
    ),
    ((".rationale_scorer",), (".trainer", ".sampling", ".callbacks", ".cli", ".demo")),
    ((".scorer_training",), (".trainer", ".callbacks", ".cli", ".demo")),
    ((".recommendation",), (".trainer", ".cli", ".callbacks", ".sampling", ".demo")),
    # The loss of C2KD and its settings know no report, no card and no sampling.
    (
        tuple(f".trainer.{name}" for name in ("c2kd_config", "c2kd_heads", "c2kd_objective", "c2kd_setup")),
        (".sampling", ".callbacks", ".evaluation", ".report_callback", ".snapshots", ".trainer.qcrd_config", ".cli"),
    ),
    (
        tuple(
            f".recommendation.{name}"
            for name in ("candidates", "columns", "interactions", "leave_one_out", "preparing", "sequences")
        ),
        tuple(HEAVY - {"datasets"}),
    ),
    # What reads results, or ranks by popularity, needs no model.
    (
        tuple(
            f".recommendation.{name}" for name in ("outcome", "popularity", "ranking_metrics", "results", "selection")
        ),
        tuple(HEAVY - {"safetensors"}),
    ),
    ((".statistics",), (*HEAVY, ".evaluation", ".cli", ".trainer")),
    ((".answers", ".records", ".metrics", ".answer_metrics", ".demo", ".files", ".negative_options"), (".cli",)),
]
# What the trainer attaches callbacks for, it does not do itself.
DIRECT = {
    ".trainer.qcrd_trainer": (".evaluation", ".sampling"),
    ".trainer.c2kd_trainer": (".evaluation", ".sampling", ".callbacks", ".trainer.qcrd_trainer"),
}


def full(name: str) -> str:
    return PACKAGE + name if name.startswith(".") else name


def broken_rules(graph: dict[str, set[str]]) -> list[str]:
    broken = []
    for modules, forbidden in RULES:
        places = [full(name) for name in forbidden]
        for module in graph:
            if is_in(module, *map(full, modules)):
                broken += [f"{module} imports {name}" for name in all_imports(module, graph) if is_in(name, *places)]
    for module, forbidden in DIRECT.items():
        places = [full(name) for name in forbidden]
        broken += [f"{full(module)} imports {name}" for name in graph[full(module)] if is_in(name, *places)]
    return sorted(broken)


def test_the_package_keeps_its_rules():
    """One convenient import turns a pure function into one that needs a trainer, and nothing fails until it is reused."""
    assert broken_rules(GRAPH) == []
    for modules, _ in RULES[:-1]:
        for name in modules:
            assert any(is_in(module, full(name)) for module in GRAPH), f"{name} is gone: the rule holds vacuously"


def test_answers_need_only_the_standard_library():
    """The extractor is to be usable where nothing else is installed."""
    foreign = set()
    for module in GRAPH:
        if is_in(module, f"{PACKAGE}.answers"):
            foreign |= {
                name
                for name in all_imports(module, GRAPH)
                if not is_in(name, f"{PACKAGE}.answers", f"{PACKAGE}.errors")
                and name.partition(".")[0] not in sys.stdlib_module_names
            }
    assert foreign == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("losses.contrast", "import transformers"),
        ("losses.contrast", "import transformers.utils as u"),
        ("losses.contrast", "def f():\n    from ..trainer import presets"),
        ("losses.contrast", "from ..data.tokenize import draw"),
        ("discriminator", "from .trainer.qcrd_config import QCRDConfig"),
        ("discriminator", "from . import trainer"),
        ("records", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("errors", "from torch import nn"),
        ("answers.number", "import importlib\nimportlib.import_module('torch')"),
        ("answers.number", "from qcrd_trl.losses import ratio_loss"),  # torch comes through another module
        ("sampling.negatives", "from ..trainer.qcrd_trainer import QCRDTrainer"),
        ("data.store", "import qcrd_trl.trainer"),
        ("trainer.objective", "from ..sampling.generate import generate_completions"),
        ("trainer.objective", "from ..evaluation import evaluate_student"),  # which imports sampling
        ("trainer.qcrd_config", "from .. import callbacks"),
        ("callbacks", "from .trainer.qcrd_trainer import QCRDTrainer"),
        ("snapshots", "from .trainer.meter import Meter"),
        ("trainer.qcrd_trainer", "from ..evaluation import evaluate_student"),
        ("trainer.qcrd_trainer", "from ..sampling.generate import generate_completions"),
        ("trainer.rows", "from ..evaluation_callback import AccuracyCallback"),
        ("losses.c2kd", "from ..recommendation.states import label_positions"),
        ("recommendation.states", "from ..trainer.meter import Meter"),
        ("trainer.c2kd_objective", "from ..report_callback import RunReportCallback"),
        ("trainer.c2kd_trainer", "from .qcrd_trainer import QCRDTrainer"),
        ("evaluation_callback", "from .trainer.qcrd_trainer import QCRDTrainer"),
        ("statistics", "from .evaluation import outcome"),
        ("trainer.qcrd_trainer", "from ..cli import common"),
        ("rationale_scorer", "from .sampling.corruption import corrupt"),
        ("scorer_training", "from .trainer.qcrd_config import QCRDConfig"),
        ("plots.samples", "from ..sampling.sample_report import AGREEMENT_BINS"),
        ("evaluation.asking", "from ..cli.common import parse_arguments"),
    ],
)
def test_the_check_sees_a_violation(module, source):
    """A checker that misses relative, late or indirect imports would pass whatever the package does."""
    name = f"{PACKAGE}.{module}"
    changed = {**GRAPH, name: imports_of(source, name)}
    assert any(line.startswith(f"{name} imports") for line in broken_rules(changed)), broken_rules(changed)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("losses.contrast", "import torch\nfrom dataclasses import dataclass\nfrom .quality import ratio_loss"),
        ("answers.number", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("trainer.qcrd_trainer", "from ..data.tokenize import draw\nfrom ..losses import ratio_loss"),
        ("sampling.negatives", "from ..data.text_files import parse_cell\nfrom ..models import load_model"),
    ],
)
def test_the_check_lets_the_rest_pass(module, source):
    """A checker that flags everything would be switched off."""
    name = f"{PACKAGE}.{module}"
    changed = {**GRAPH, name: imports_of(source, name)}
    assert not [line for line in broken_rules(changed) if line.startswith(name)]


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT.parent)
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import qcrd_trl; dir(qcrd_trl); qcrd_trl.__version__",
        "import qcrd_trl; qcrd_trl.extract_answer('The answer is 3.', 'number'); qcrd_trl.QCRDError",
        "import qcrd_trl.answers, qcrd_trl.records, qcrd_trl.errors",
        "import qcrd_trl.sampling.teachers.openai_server",
    ],
)
def test_light_parts_do_not_load_torch(statement):
    """`qcrd --help` and the answer extractor would take seconds, and need what they do not use."""
    loaded = loaded_after(statement)
    assert PACKAGE in loaded
    assert not loaded & HEAVY


def test_pure_parts_load_torch_alone():
    """What the sources do not show: a module that is imported may pull in the trainer's libraries."""
    loaded = loaded_after("import qcrd_trl.losses, qcrd_trl.discriminator; qcrd_trl.RationaleDiscriminator(4)")
    assert "torch" in loaded
    assert not loaded & {"transformers", "trl", "peft", "accelerate", "datasets", "tokenizers"}


def test_public_names_exist():
    """A name in `__all__` whose module moved is found by the first user, not by an import of the package."""
    for name in qcrd_trl.__all__:
        assert getattr(qcrd_trl, name) is not None
    assert dir(qcrd_trl) == sorted(qcrd_trl.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = qcrd_trl.no_such_name
