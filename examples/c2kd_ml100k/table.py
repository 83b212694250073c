"""The outcome of the comparison as tables."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parts import times
from plan import METHODS
from safetensors import safe_open

from qcrd_trl.recommendation.results import compare


METRICS = ("hr@10", "ndcg@10")
NAMES = {
    "popularity": "popularity",
    "teacher": "teacher",
    "none": "student alone",
    "feature_kd": "feature_kd",
    "logit_kd": "logit_kd",
    "blockwise": "blockwise",
    "c2kd": "C2KD",
    "sasrec": "SASRec",
}


def outcome(work: Path, seeds: Sequence[int], methods: Sequence[str] = METHODS, split: str = "test") -> dict[str, Any]:
    """
    Metrics of each model over all seeds, and its differences to the student alone.

    Args:
        work (`Path`): the comparison's folder.
        seeds (`Sequence[int]`): its seeds.
        methods (`Sequence[str]`): its methods, `"none"` among them.

    Returns:
        `dict`: `seeds`, and `models`: by name `metrics`, `intervals` (95 %, bootstrap over users), `sd` (over seeds),
        `by_seed`, `differences` to `"none"` (`difference`, `interval`, `p_value`), `weights`, `best_epochs`, `wall_s`, `cpu_s`.
    """
    names = ["none", "popularity", "teacher", *(method for method in methods if method != "none")]
    runs = {name: ["popularity"] if name == "popularity" else [f"{name}-{seed}" for seed in seeds] for name in names}
    files = {name: [work / run / "results.json" for run in of] for name, of in runs.items()}
    compared = compare(*files.values())
    models: dict[str, Any] = {}
    for number, name in enumerate(names):
        found = compared.runs[number]
        contents = [json.loads(file.read_text(encoding="utf-8")) for file in files[name]]
        models[name] = {
            "metrics": found.metrics,
            "intervals": {metric: list(ends) for metric, ends in found.intervals.items()},
            "sd": found.sd,
            "by_seed": {metric: [content["metrics"][metric] for content in contents] for metric in METRICS},
            "differences": {
                one.metric: {
                    "difference": one.difference,
                    "interval": list(one.interval),
                    "p_value": one.p_value,
                }
                for one in compared.differences
                if one.run == number
            },
            "users": found.users,
            "weights": None if name == "popularity" else weights(work / runs[name][0]),
            "best_epochs": [] if name == "popularity" else [best_epoch(work / run) for run in runs[name]],
            **{kind: [times(work, run)[kind] for run in runs[name]] for kind in ("wall_s", "cpu_s")},
        }
    filters = [times(work, f"filters-{seed}") for seed in seeds if (work / f"filters-{seed}").is_dir()]
    return {
        "seeds": list(seeds),
        "models": models,
        "filters": {kind: [one[kind] for one in filters] for kind in ("wall_s", "cpu_s")},
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The outcome as two Markdown tables and a line on the time."""
    models = found["models"]
    order = [name for name in NAMES if name in models]
    users = models["none"]["users"]
    lines = [
        f"Test split, {users:,} users, full ranking, history not masked, seeds {', '.join(map(str, found['seeds']))}. In brackets the "
        "95 % interval by the bootstrap over users, after ± the standard deviation over seeds.",
        "",
        "| model | weights | HR@10 | NDCG@10 | best epochs | CPU, s |",
        "| --- | ---: | --- | --- | --- | ---: |",
    ]
    for name in order:
        one = models[name]
        cells = [_metric(one, metric) for metric in METRICS]
        weight = "" if one["weights"] is None else f"{one['weights']:,}"
        epochs = ", ".join(f"{epoch:g}" for epoch in one["best_epochs"])
        seconds = sum(one["cpu_s"]) / len(one["cpu_s"])
        lines.append(f"| {NAMES[name]} | {weight} | {cells[0]} | {cells[1]} | {epochs} | {seconds:,.0f} |")
    lines += [
        "",
        "| less the student alone | HR@10 | p | NDCG@10 | p |",
        "| --- | --- | ---: | --- | ---: |",
    ]
    for name in order:
        if name != "none":
            cells = [_difference(models[name]["differences"][metric]) for metric in METRICS]
            lines.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    total = sum(sum(models[name]["cpu_s"]) for name in order) + sum(found["filters"]["cpu_s"])
    filters = found["filters"]["cpu_s"]
    of_filters = (
        f", of which {sum(filters) / len(filters):,.0f} s a seed for filters and teacher cache" if filters else ""
    )
    return "\n".join([*lines, "", f"All parts together took {total / 60:.1f} minutes of CPU{of_filters}."])


def weights(folder: Path) -> int:
    """Number of weights in a saved model; tied ones count once."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                size = 1
                for dimension in file.get_slice(name).get_shape():
                    size *= dimension
                count += size
    return count


def best_epoch(folder: Path) -> float:
    """The epoch whose weights were kept."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    best = state["best_global_step"]
    return next(entry["epoch"] for entry in state["log_history"] if entry["step"] == best and "eval_ndcg@10" in entry)


def _metric(one: Mapping[str, Any], metric: str) -> str:
    low, high = one["intervals"][metric]
    sd = f" ± {one['sd'][metric]:.4f}" if metric in one["sd"] else ""
    return f"{one['metrics'][metric]:.4f}{sd} [{low:.4f}, {high:.4f}]"


def _difference(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['difference']:+.4f} [{low:+.4f}, {high:+.4f}] | {one['p_value']:.4f}"
