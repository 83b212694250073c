"""The model card: README.md beside a trained student, which the Hub shows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .card_accuracy import Accuracies, accuracy_results, accuracy_text
from .errors import DataError
from .files import whole_file
from .hub import CARD_FILE
from .markdown import code, one_line, plain
from .repositories import is_path, is_repo_name
from .versions import package_versions


TAGS = ("qcrd", "trl", "distillation", "generated_from_trainer")
PICTURES = ("losses", "accuracy", "quality", "selection")
TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"
_MARKS = ("<!-- accuracy: begin -->", "<!-- accuracy: end -->")

_METHODS = {
    "label_only": "fine-tuning on labels alone",
    "dss": "[distilling step-by-step](https://huggingface.co/papers/2305.02301): labels and one rationale of a teacher a question",
    "dss_all": (
        "[distilling step-by-step](https://huggingface.co/papers/2305.02301) on all rationales that self-consistency kept"
    ),
    "qcrd_paper": "[QCRD](https://huggingface.co/papers/2405.13014), quality-guided contrastive rationale distillation, as printed",
    "qcrd": "[QCRD](https://huggingface.co/papers/2405.13014), quality-guided contrastive rationale distillation",
}
_QCRD = """\
@inproceedings{wang2025qcrd,
    title = {{QCRD}: Quality-guided Contrastive Rationale Distillation for Large Language Models},
    author = {Wang, Wei and Li, Zhaowei and Xu, Qi and Cai, Yiqing and Song, Hang and Qi, Qi and Zhou, Ran and Huang, Zhida and Wang, Tao and Xiao, Li},
    booktitle = {Proceedings of the 2025 Conference on Empirical Methods in Natural Language Processing},
    year = {2025}
}"""
_DSS = """\
@inproceedings{hsieh2023distilling,
    title = {Distilling Step-by-Step! Outperforming Larger Language Models with Less Training Data and Smaller Model Sizes},
    author = {Hsieh, Cheng-Yu and Li, Chun-Liang and Yeh, Chih-Kuan and Nakhost, Hootan and Fujii, Yasuhisa and Ratner, Alex and Krishna, Ranjay and Lee, Chen-Yu and Pfister, Tomas},
    booktitle = {Findings of the Association for Computational Linguistics: ACL 2023},
    year = {2023}
}"""


@dataclass
class CardFacts:
    """
    What a card says. Names may be anything: what would not be a valid name on the Hub, or is a path of this machine, is left
    out.

    Args:
        name (`str`):
            What the model is called.
        preset (`str`):
            Recipe that it was trained by.
        base_model (`str`, *optional*):
            Id or path of the base.
        datasets (`Sequence[str]`, *optional*):
            Names of the training sets. One of the Hub is linked; a path is left out.
        num_questions (`int`, *optional*):
            Questions that it was trained on.
        selection (`Mapping`, *optional*):
            Figures of the training set's `report.json`.
        settings (`Mapping[str, Any]`, *optional*):
            Hyper-parameters; those that are `None` are left out.
        steps, epochs (*optional*):
            Optimizer steps and epochs that were made.
        accuracies (`Accuracies`, *optional*):
            What it gets right, and others beside it.
        is_adapter, is_encoder_decoder, has_discriminator (`bool`, *optional*):
            What lies in the folder.
        adapter_type (`str`, *optional*):
            Kind of the adapter, such as `"LORA"`.
        tasks (`str`, *optional*):
            How it is asked, in a sentence.
        qcrd_snippet, plain_snippet (`str`, *optional*):
            Python code that asks it.
        language, license, tags, pipeline_tag (*optional*):
            Further metadata.
    """

    name: str
    preset: str
    base_model: str | None = None
    datasets: Sequence[str] = ()
    num_questions: int | None = None
    selection: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    epochs: float = 0.0
    accuracies: Accuracies = field(default_factory=Accuracies)
    is_adapter: bool = False
    is_encoder_decoder: bool = False
    has_discriminator: bool = False
    adapter_type: str | None = None
    tasks: str = ""
    qcrd_snippet: str = ""
    plain_snippet: str = ""
    language: str | Sequence[str] | None = None
    license: str | None = None
    tags: Sequence[str] = ()
    pipeline_tag: str | Sequence[str] | None = None


def model_card(facts: CardFacts, pictures: Mapping[str, str] | None = None) -> ModelCard:
    """
    The card of a student.

    Args:
        facts ([`CardFacts`]): what it says.
        pictures (`Mapping[str, str]`, *optional*): links to the pictures of `PICTURES` that there are.
    """
    base, names = _repo(facts.base_model), [one_line(name) for name in facts.datasets if name and not is_path(name)]
    title = one_line(facts.name) or "student"
    on = f" from [{base}](https://huggingface.co/{base})" if base else ""
    sets = ", ".join(f"[{n}](https://huggingface.co/datasets/{n})" if is_repo_name(n) else code(n) for n in names)
    method = _METHODS.get(facts.preset, f"the recipe {code(facts.preset)}")
    summary = (
        f"A student {'adapter ' if facts.is_adapter else ''}that was trained{on} by {method}"
        f"{f', on {sets}' if sets else ''}, with `qcrd_trl`, an extension of [TRL](https://github.com/huggingface/trl)."
    )
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    content = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=_metadata(facts, title, base, names).to_yaml(),
        title=plain(title),
        summary=summary,
        pictures=dict(pictures or {}),
        accuracy=accuracy_text(facts.accuracies),
        asks=facts.tasks,
        qcrd_snippet=facts.qcrd_snippet.rstrip(),
        plain_snippet=facts.plain_snippet.rstrip(),
        plain_libraries="`transformers` and `peft`" if facts.is_adapter else "`transformers`",
        has_discriminator=facts.has_discriminator,
        training=_training(facts),
        settings=[(code(name), _cell(value)) for name, value in facts.settings.items() if value is not None],
        versions=package_versions(),
        citations=[_QCRD] + [_DSS] * facts.preset.startswith("dss"),
    )
    return ModelCard(content.rstrip() + "\n")


def write_card(folder: Path, facts: CardFacts) -> Path:
    """Writes the card of a student into its folder, with links to the pictures that lie there, and gives its place."""
    links = {name: f"plots/{name}.png" for name in PICTURES if (folder / "plots" / f"{name}.png").is_file()}
    return _save(model_card(facts, links), folder)


def add_accuracies(folder: Path, accuracies: Accuracies) -> Path:
    """
    Puts accuracies into a card that is there already, in its text and its metadata, and leaves all else of it as it is.

    Args:
        folder (`Path`): the student's folder.
        accuracies (`Accuracies`): what replaces those that it has.

    Raises:
        [`DataError`]: if there is no card, or it is not one of ours.
    """
    path = folder / CARD_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    begin, end = text.find(_MARKS[0]), text.find(_MARKS[1])
    if not 0 <= begin < end:
        raise DataError(
            f"{path} has no place for accuracies ({_MARKS[0]} and {_MARKS[1]}): it is not the card of `qcrd train`, or they "
            "were removed."
        )
    head = text[: begin + len(_MARKS[0])]
    card = ModelCard(f"{head}\n{accuracy_text(accuracies)}\n{text[end:]}")
    name = card.data.model_name or re.sub(r"^# ", "", next(iter(re.findall(r"^# .+$", text, re.M)), "# student"))
    card.data.model_name = one_line(name)
    card.data.eval_results = _eval_results(accuracies) or None
    if card.data.eval_results is None:
        card.data.model_name = None
    return _save(card, folder)


# ---- Parts ----


def _metadata(facts: CardFacts, title: str, base: str | None, names: Sequence[str]) -> ModelCardData:
    tags = [*TAGS, *facts.tags, (facts.adapter_type or "").lower()]
    results = _eval_results(facts.accuracies)
    pipeline = facts.pipeline_tag or (None if facts.is_encoder_decoder else "text-generation")
    return ModelCardData(
        base_model=base,
        datasets=[name for name in names if is_repo_name(name)] or None,
        eval_results=results or None,
        language=_metadatum(facts.language),
        library_name="peft" if facts.is_adapter else "transformers",
        license=_metadatum(facts.license),
        model_name=title if results else None,
        pipeline_tag=_metadatum(pipeline),
        tags=list(dict.fromkeys(filter(None, map(one_line, tags)))),
    )


def _eval_results(accuracies: Accuracies) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Question answering with rationales",
            dataset_type=name if is_repo_name(name) else "held-out",
            dataset_name=name,
            metric_type="accuracy",
            metric_name=metric,
            metric_value=round(value, 6),
        )
        for name, metric, value in accuracy_results(accuracies)
    ]


def _training(facts: CardFacts) -> str:
    lines = []
    if facts.num_questions is not None:
        lines.append(
            f"Trained on {facts.num_questions:,} questions, {facts.steps:,} steps ({facts.epochs:.4g} epochs)."
        )
    elif facts.steps:
        lines.append(f"Trained for {facts.steps:,} steps.")
    report = facts.selection or {}
    rows, samples = report.get("rows") or {}, report.get("samples") or {}
    if rows.get("in") and rows.get("with_positive") is not None:
        share = 100 * rows["with_positive"] / rows["in"]
        lines.append(
            f"Of {rows['in']:,} questions with {samples.get('total') or 0:,} rationales sampled from the teacher, "
            f"{rows['with_positive']:,} have a consistent one (a yield of {share:.1f} %)."
        )
    return " ".join(lines)


def _save(card: ModelCard, folder: Path) -> Path:
    with whole_file(folder / CARD_FILE) as aside:
        aside.write_text(str(card), encoding="utf-8", errors="replace")
    return folder / CARD_FILE


def _repo(name: str | None) -> str | None:
    return name if name and not is_path(name) and is_repo_name(name) else None


def _metadatum(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return one_line(value or "") or None
    return [one_line(part) for part in value]


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else code(value) if isinstance(value, str) else one_line(value)
