"""What the comparison consists of: its settings, and its parts with the commands that make them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


WORK = "{work}"  # stands for the folder of the comparison, which may be moved
METHODS = ("none", "feature_kd", "logit_kd", "blockwise", "c2kd", "sasrec")  # in the order of the table
_NO_TEACHER = ("none", "sasrec")


@dataclass(frozen=True)
class Settings:
    """
    Everything that decides the outcome but the seed. How the values were found is in README.md.

    Args:
        teacher, student, sasrec (`dict`): configurations of the models, with random weights at the start.
        max_history (`int`): items that anything is predicted from.
        batch_size, teacher_batch_size (`int`): rows (users) an optimizer step, of students and filters, and of the teacher.
        teacher_epochs, filter_epochs, student_epochs (`int`): passes over all users; of teacher and students the best one by
            NDCG@10 on the validation split is kept.
        teacher_rate, filter_rate, student_rate, sasrec_rate (`float`): learning rates at their highest.
        candidate_layers (`tuple[int, ...]`): layers of the teacher that have a filter.
        extra (`dict[str, tuple[str, ...]]`): further flags by method.
    """

    teacher: dict = field(
        default_factory=lambda: llama(hidden_size=256, num_hidden_layers=6, heads=4, intermediate_size=672)
    )
    student: dict = field(
        default_factory=lambda: llama(hidden_size=64, num_hidden_layers=2, heads=2, intermediate_size=160)
    )
    sasrec: dict = field(
        default_factory=lambda: {"model_type": "qcrd_sasrec", "hidden_size": 64, "num_hidden_layers": 2}
    )
    max_history: int = 50
    batch_size: int = 32
    teacher_batch_size: int = 32
    teacher_epochs: int = 9
    filter_epochs: int = 5
    student_epochs: int = 15
    teacher_rate: float = 1e-3
    filter_rate: float = 1e-3
    student_rate: float = 1e-3
    sasrec_rate: float = 3e-3
    weight_decay: float = 0.1
    candidate_layers: tuple[int, ...] = (3, 4, 5, 6)
    extra: dict = field(default_factory=dict)


def llama(hidden_size: int, num_hidden_layers: int, heads: int, intermediate_size: int) -> dict:
    """A Llama's configuration."""
    return {
        "model_type": "llama",
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": 512,
    }


def quick_settings() -> Settings:
    """Small enough to see within minutes that all parts run; its numbers mean nothing."""
    return Settings(
        teacher=llama(hidden_size=32, num_hidden_layers=4, heads=2, intermediate_size=64),
        student=llama(hidden_size=16, num_hidden_layers=2, heads=2, intermediate_size=32),
        sasrec={"model_type": "qcrd_sasrec", "hidden_size": 16, "num_hidden_layers": 2},
        max_history=10,
        batch_size=128,
        teacher_batch_size=128,
        teacher_epochs=2,
        filter_epochs=1,
        student_epochs=2,
        candidate_layers=(2, 3, 4),
    )


def with_student(settings: Settings, width: int | None = None, layers: int | None = None) -> Settings:
    """The settings with students (but SASRec) of another size; what is left out stays."""
    width = settings.student["hidden_size"] if width is None else width
    layers = settings.student["num_hidden_layers"] if layers is None else layers
    return replace(
        settings, student=llama(hidden_size=width, num_hidden_layers=layers, heads=2, intermediate_size=5 * width // 2)
    )


@dataclass(frozen=True)
class Part:
    """
    One command of `qcrd`.

    Args:
        name (`str`): what it is called; its folder within that of the comparison.
        argv (`tuple[str, ...]`): the command's arguments, with `WORK` for that folder.
        needs (`tuple[str, ...]`): parts that must be finished before.
        trains (`bool`): whether it is a training run, which can be resumed.
    """

    name: str
    argv: tuple[str, ...]
    needs: tuple[str, ...] = ()
    trains: bool = False


def plan(interactions: str, items: str, settings: Settings, seeds: Sequence[int], methods: Sequence[str] = METHODS):
    """
    The parts of the comparison, each after those that it needs.

    Args:
        interactions, items (`str`): files of ml-100k.
        settings ([`Settings`]): the settings.
        seeds (`Sequence[int]`): training seeds, of teacher and students.
        methods (`Sequence[str]`): methods of the students.

    Returns:
        `list[Part]`: the parts.
    """
    data = ("--interactions", interactions, "--items", items, "--max_history", str(settings.max_history))
    parts = [
        Part("data", ("c2kd", "prepare", *data, "--output_dir", f"{WORK}/data")),
        Part(
            "popularity",
            ("c2kd", "evaluate", "--dataset", f"{WORK}/data", "--baseline", "popularity", "--split", "test", "--output",
             f"{WORK}/popularity/results.json"),
            ("data",),
        ),
    ]  # fmt: skip
    # A teacher is the longest part, and three or more wait for it: all of them first.
    parts += [teacher_part(settings, seed) for seed in seeds]
    parts += [student_part(settings, method, seed) for seed in seeds for method in methods if method in _NO_TEACHER]
    for seed in seeds:
        if set(methods) - set(_NO_TEACHER):
            parts.append(filter_part(settings, seed))
        parts += [student_part(settings, method, seed) for method in methods if method not in _NO_TEACHER]
    return parts


def teacher_part(settings: Settings, seed: int, name: str = "teacher") -> Part:
    """Training of a teacher."""
    settings = replace(settings, batch_size=settings.teacher_batch_size)
    return _training(
        "teacher",
        name,
        settings,
        seed,
        settings.teacher,
        settings.teacher_epochs,
        settings.teacher_rate,
        (),
        ("data",),
    )


def student_part(settings: Settings, method: str, seed: int, name: str | None = None) -> Part:
    """Training of a student."""
    flags, needs = ["--method", method], ["data"]
    if method not in _NO_TEACHER:  # the teacher itself is not loaded
        flags += ["--teacher_cache", f"{WORK}/filters-{seed}/teacher_cache"]
        needs.append(f"filters-{seed}")
    if method == "c2kd":
        flags += ["--layer_filters", f"{WORK}/filters-{seed}"]
    flags += settings.extra.get(method, ())
    model, rate = settings.student, settings.student_rate
    if method == "sasrec":
        model, rate = settings.sasrec, settings.sasrec_rate
    return _training("train", name or method, settings, seed, model, settings.student_epochs, rate, flags, needs)


def filter_part(settings: Settings, seed: int) -> Part:
    """Training of the layer filters, which writes the teacher cache."""
    folder = f"{WORK}/filters-{seed}"
    argv = (
        *("c2kd", "filters", "--dataset", f"{WORK}/data", "--teacher", f"{WORK}/teacher-{seed}"),
        *("--teacher_cache", f"{folder}/teacher_cache", "--student_size", str(settings.student["hidden_size"])),
        *("--candidate_layers", *map(str, settings.candidate_layers)),
        *("--num_train_epochs", str(settings.filter_epochs), "--learning_rate", str(settings.filter_rate)),
        *("--save_strategy", "epoch", "--save_total_limit", "1", "--output_dir", folder),
        *_common(settings, seed),
    )
    return Part(f"filters-{seed}", argv, (f"teacher-{seed}",), trains=True)


def key_of(part: Part, parts: dict[str, Part]) -> str:
    """What a part's outcome depends on, in short: its command and those of the parts that it needs."""
    needed = [key_of(parts[name], parts) for name in part.needs]
    return hashlib.sha256(json.dumps([part.argv, needed]).encode()).hexdigest()[:16]


def _training(command, name, settings, seed, model, epochs, rate, flags, needs) -> Part:
    argv = (
        *("c2kd", command, "--dataset", f"{WORK}/data", "--backbone_config", json.dumps(model), *flags),
        *("--num_train_epochs", str(epochs), "--learning_rate", str(rate), "--eval_strategy", "epoch"),
        *("--save_strategy", "epoch", "--save_total_limit", "1", "--load_best_model_at_end"),
        *("--metric_for_best_model", "eval_ndcg@10", "--output_dir", f"{WORK}/{name}-{seed}"),
        *_common(settings, seed),
    )
    return Part(f"{name}-{seed}", argv, tuple(needs), trains=True)


def _common(settings: Settings, seed: int) -> tuple[str, ...]:
    return (
        *(
            "--max_history",
            str(settings.max_history),
            "--train_windows",
            "all",
            "--per_device_train_batch_size",
            str(settings.batch_size),
        ),
        *("--per_device_eval_batch_size", "128", "--weight_decay", str(settings.weight_decay), "--warmup_steps", "30"),
        *("--seed", str(seed), "--logging_steps", "10", "--use_cpu", "--report_to", "none", "--disable_tqdm", "true"),
    )
