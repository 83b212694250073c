"""The model card of a recommender: README.md beside an item-head model, SASRec, or a model that writes titles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..files import whole_file
from ..hub import CARD_FILE
from ..markdown import code, one_line, plain
from ..repositories import is_path, is_repo_name
from ..versions import package_versions


TEMPLATE = Path(__file__).parents[1] / "templates" / "recommender_card.md"
ROUTER_PICTURE = "plots/router.png"
TAGS = ("c2kd", "trl", "distillation", "sequential-recommendation", "generated_from_trainer")

_C2KD = "[C2KD](https://aclanthology.org/2025.findings-acl.917), cross-layer and cross-head knowledge distillation"
_METHODS = {
    "c2kd": _C2KD,
    "none": "the task alone",
    "feature_kd": "feature distillation: imitation of the teacher's last layer",
    "logit_kd": "logit distillation: the Kullback-Leibler divergence from the teacher's scores",
    "blockwise": "block-wise feature distillation in the form of [SLMRec](https://huggingface.co/papers/2405.17890)",
    "sasrec": "the task alone, as the classical reference [SASRec](https://huggingface.co/papers/1808.09781)",
}
_CITED_C2KD = """\
@inproceedings{chen2025c2kd,
    title = {{C2KD}: Cross-layer and Cross-head Knowledge Distillation for Small Language Model-based Recommendation},
    author = {Chen, Xiao and Ma, Changyi and Fan, Wenqi and Zhang, Zhaoxiang and Li, Qing},
    booktitle = {Findings of the Association for Computational Linguistics: ACL 2025},
    pages = {17827--17838},
    year = {2025},
    url = {https://aclanthology.org/2025.findings-acl.917}
}"""
_CITED_SASREC = """\
@inproceedings{kang2018sasrec,
    title = {Self-Attentive Sequential Recommendation},
    author = {Kang, Wang-Cheng and McAuley, Julian},
    booktitle = {IEEE International Conference on Data Mining},
    year = {2018}
}"""


@dataclass
class RecommenderFacts:
    """
    What a recommender's card says. What is a path of this machine is left out.

    Args:
        name (`str`):
            What the model is called.
        method (`str`):
            `"c2kd"`, `"none"`, `"feature_kd"`, `"logit_kd"`, `"blockwise"` or `"sasrec"`.
        task_mode (`str`):
            `"item_head"` or `"generative"`.
        repo (`str`, *optional*):
            Name that the snippet loads; `name` if left out.
        base_model, teacher (`str`, *optional*):
            Ids of the base model and of the teacher.
        datasets (`Sequence[str]`, *optional*):
            Names of the data.
        counts (`Mapping[str, int]`, *optional*):
            `users`, `items`, `events` of the data, and `train_events`, those of them that training reads.
        history (`Sequence[str]`, *optional*):
            Ids of items that the snippet asks with.
        settings (`Mapping[str, Any]`, *optional*):
            Hyper-parameters; those that are `None` are left out.
        results (`Mapping`, *optional*):
            Results in the form of [`~qcrd_trl.recommendation.results`].
        steps, epochs (*optional*):
            Optimizer steps and epochs that were made.
        parameters (`int`, *optional*):
            Number of the model's weights.
        is_adapter (`bool`, *optional*):
            Whether the folder holds an adapter.
        language, license, tags (*optional*):
            Further metadata.
    """

    name: str
    method: str
    task_mode: str = "item_head"
    repo: str | None = None
    base_model: str | None = None
    teacher: str | None = None
    datasets: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    history: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] | None = None
    steps: int = 0
    epochs: float = 0.0
    parameters: int | None = None
    is_adapter: bool = False
    language: str | Sequence[str] | None = None
    license: str | None = None
    tags: Sequence[str] = ()


def recommender_card(facts: RecommenderFacts, router_picture: str | None = None) -> ModelCard:
    """
    The card of a recommender.

    Args:
        facts ([`RecommenderFacts`]): what it says.
        router_picture (`str`, *optional*): link to the picture of the router.
    """
    base, teacher = _repo(facts.base_model), _repo(facts.teacher)
    names = [one_line(name) for name in facts.datasets if name and not is_path(name)]
    title = one_line(facts.name) or "recommender"
    metrics = dict((facts.results or {}).get("metrics") or {})
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    content = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=_metadata(facts, title, base, names, metrics).to_yaml(),
        title=plain(title),
        summary=_summary(facts, base, teacher, names),
        router_picture=router_picture,
        data=_data(facts),
        results=_results_text(facts.results),
        rows=_rows(facts.results),
        use=_use(facts),
        snippet=snippet(facts),
        training=_training(facts),
        settings=[(code(name), _cell(value)) for name, value in facts.settings.items() if value is not None],
        versions=package_versions(),
        citations=[_CITED_SASREC] if facts.method == "sasrec" else [_CITED_C2KD],
    )
    return ModelCard(content.rstrip() + "\n")


def write_recommender_card(folder: Path, facts: RecommenderFacts) -> Path:
    """Writes the card into a model's folder, with a link to the router's picture if it lies there, and gives its place."""
    picture = ROUTER_PICTURE if (Path(folder) / ROUTER_PICTURE).is_file() else None
    with whole_file(Path(folder) / CARD_FILE) as aside:
        aside.write_text(str(recommender_card(facts, picture)), encoding="utf-8", errors="replace")
    return Path(folder) / CARD_FILE


def snippet(facts: RecommenderFacts) -> str:
    """Python code that asks the model."""
    repo = facts.repo or facts.name
    if facts.task_mode == "item_head":
        return f"""\
from qcrd_trl.recommendation.recommender import Recommender

recommender = Recommender.from_pretrained({repo!r})
(best,) = recommender.recommend([{list(facts.history)!r}], k=10)  # ids of items, the oldest first
for item in best:
    print(item.item_id, item.title, item.score)"""
    return f"""\
from transformers import AutoTokenizer

from qcrd_trl.recommendation.generation import recommend_titles
from qcrd_trl.recommendation.loading import load_recommender
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.repositories import student_folder

folder = student_folder({repo!r})
model, tokenizer = load_recommender(folder), AutoTokenizer.from_pretrained(folder)
form = RecommendationPrompt.from_pretrained(folder)
row = form.render(["Star Wars", "The Empire Strikes Back"], ["Return of the Jedi", "Toy Story"])
print(recommend_titles(model, tokenizer, [row])[0])"""


# ---- Parts ----


def _metadata(
    facts: RecommenderFacts, title: str, base: str | None, names: Sequence[str], metrics: Mapping[str, float]
) -> ModelCardData:
    results = [
        EvalResult(
            task_type="other",
            task_name="Sequential recommendation",
            dataset_type=name if is_repo_name(name) else "held-out",
            dataset_name=name,
            metric_type=metric,
            metric_name=metric.upper(),
            metric_value=round(float(value), 6),
        )
        for name in names[:1] or ["held-out users"]
        for metric, value in metrics.items()
    ]
    return ModelCardData(
        base_model=base,
        datasets=[name for name in names if is_repo_name(name)] or None,
        eval_results=results or None,
        language=facts.language,
        library_name="peft" if facts.is_adapter else "transformers",
        license=facts.license,
        model_name=title if results else None,
        pipeline_tag="text-generation" if facts.task_mode == "generative" else None,
        tags=list(dict.fromkeys([*TAGS, *filter(None, map(one_line, facts.tags))])),
    )


def _summary(facts: RecommenderFacts, base: str | None, teacher: str | None, names: Sequence[str]) -> str:
    kind = {"item_head": "scores every item as the next one", "generative": "writes the title of the next item"}
    what = "an adapter that" if facts.is_adapter else "a model that"
    on = f", from [{base}](https://huggingface.co/{base})" if base else ""
    of = f", of the teacher [{teacher}](https://huggingface.co/{teacher})" if teacher else ""
    sets = ", ".join(f"[{n}](https://huggingface.co/datasets/{n})" if is_repo_name(n) else code(n) for n in names)
    method = _METHODS.get(facts.method, f"the method {code(facts.method)}")
    return (
        f"A sequential recommender: {what} {kind[facts.task_mode]}, given what a user met so far. Trained{on} by {method}{of}"
        f"{f', on {sets}' if sets else ''}, with `qcrd_trl`, an extension of [TRL](https://github.com/huggingface/trl)."
    )


def _data(facts: RecommenderFacts) -> str:
    counts = facts.counts
    if not counts:
        return "How much data it was trained on is not recorded."
    trained = f", of which training reads {counts['train_events']:,}" if "train_events" in counts else ""
    return (
        f"{counts['users']:,} users, {counts['items']:,} items and {counts['events']:,} events{trained}. Leave-one-out: the last "
        "event of each user is for the test, the one before it for validation."
    )


def _results_text(results: Mapping[str, Any] | None) -> str:
    if results is None:
        return "It was not measured on held-out items yet: `qcrd c2kd evaluate` does so."
    parts = [f"On the {results['split']} split"]
    parts.append(f"of {results['counts']['users']:,} users")
    if results["task_mode"] == "generative":
        parts.append("by exact match of the title that it writes among each user's candidates")
    else:
        masked = "left out" if results["history_masked"] else "not left out"
        parts.append(f"by full ranking over all items (items of the history are {masked})")
    return " ".join(parts) + ", with 95 % intervals by the bootstrap over users."


def _rows(results: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if results is None:
        return []
    intervals = results.get("intervals") or {}
    return [
        (
            plain(name.upper()),
            f"{value:.4f}",
            "" if intervals.get(name) is None else f"{intervals[name][0]:.4f} to {intervals[name][1]:.4f}",
        )
        for name, value in results["metrics"].items()
    ]


def _use(facts: RecommenderFacts) -> str:
    if facts.task_mode == "item_head":
        return "`items.json` names the items. With `qcrd_trl` installed:"
    return "`recommendation_prompt.json` holds the prompt that it was trained with. With `qcrd_trl` installed:"


def _training(facts: RecommenderFacts) -> str:
    parts = []
    if facts.parameters is not None:
        parts.append(f"{facts.parameters:,} weights.")
    if facts.steps:
        parts.append(f"Trained for {facts.steps:,} steps ({facts.epochs:.4g} epochs).")
    return " ".join(parts) or "Steps are not recorded."


def _repo(name: str | None) -> str | None:
    return name if name and not is_path(name) and is_repo_name(name) else None


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else code(value) if isinstance(value, str) else one_line(value)
