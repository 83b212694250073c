"""The file that an evaluation leaves, and what the results of several models, or seeds, say together."""

import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..files import whole_file
from ..repositories import shown_name
from ..statistics import bootstrap_interval, paired_bootstrap, sign_flip_p
from ..version import __version__
from .outcome import RecommendationResult, values_of


logger = logging.getLogger(__name__)

FORMAT, KIND = 1, "c2kd"
_AGAIN = "Evaluate the model again with this version."
_PER_USER = ("ranks", "hits", "valid", "texts")  # one entry a user
# What makes two results answers to the same question.
_SAME = ("split", "ranking", "history_masked", "user_set", "item_set")


@dataclass(frozen=True)
class RecommendationFile:
    """
    The results of one evaluation, as read from a file.

    Attributes:
        path (`Path`): the file.
        content (`dict[str, Any]`): what it holds.
        per_user (`dict[str, numpy.ndarray]`): values of each metric by user.
    """

    path: Path
    content: dict[str, Any]
    per_user: dict[str, np.ndarray]


@dataclass
class RecommendationRun:
    """
    One model: the results of one evaluation, or of several training seeds.

    Attributes:
        models (`list[str]`): name of each model evaluated.
        files (`list[str]`): name of each file.
        method (`str` or `None`): what trained it.
        users (`int`): how many users.
        metrics (`dict[str, float]`): each metric: of several seeds, the mean.
        intervals (`dict[str, tuple[float, float]]`): their 95 % intervals by the bootstrap over users, of several seeds with
            each user's mean. They say nothing of other seeds.
        sd (`dict[str, float]`): standard deviation of the metric over the seeds (n - 1); empty of one.
    """

    models: list[str]
    files: list[str]
    method: str | None
    users: int
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    sd: dict[str, float] = field(default_factory=dict)


@dataclass
class RecommendationDifference:
    """
    By how much a run is better than the first in one metric.

    Attributes:
        run (`int`): number of the run, counted from 0; the first is 0.
        metric (`str`): such as `"ndcg@10"`.
        difference (`float`): the run's value less the first's.
        interval (`tuple[float, float]`): its 95 % interval by the paired bootstrap over users.
        p_value (`float`): two-sided, of the paired permutation test.
    """

    run: int
    metric: str
    difference: float
    interval: tuple[float, float]
    p_value: float


@dataclass
class RecommendationComparison:
    """
    Several models on the same users.

    Attributes:
        seed (`int`): seed of the resamples.
        runs (`list[RecommendationRun]`): the models.
        differences (`list[RecommendationDifference]`): each later run against the first, metric by metric.
        notes (`list[str]`): what to keep in mind.
    """

    seed: int
    runs: list[RecommendationRun]
    differences: list[RecommendationDifference]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain types, for JSON."""
        return {"format": FORMAT, "kind": f"{KIND}_comparison", **asdict(self)}


def results_of(
    result: RecommendationResult,
    model: str,
    method: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    What the file of an evaluation holds.

    Args:
        result ([`RecommendationResult`]): what came out.
        model (`str`): id or path of the model, or the baseline's name. Of a local path the last part is kept.
        method (`str`, *optional*): what trained it, such as `"c2kd"`.
        seed (`int`, *optional*, defaults to `0`): of the resamples of the intervals.
        settings (`Mapping`, *optional*): whatever else decides the outcome.
    """
    per_user = result.per_user
    content = {
        "format": FORMAT,
        "kind": KIND,
        "model": shown_name(model),
        "method": method,
        "task_mode": result.task_mode,
        "split": result.split,
        "ranking": result.ranking,
        "history_masked": result.history_masked,
        "metrics": result.metrics,
        "intervals": {name: bootstrap_interval(values, seed) for name, values in per_user.items()},
        "counts": dict(result.counts),
        "seed": seed,
        "ks": [int(k) for k in result.ks],
        "user_set": result.user_set,
        "item_set": result.item_set,
        "settings": dict(settings or {}),
        "versions": {"qcrd_trl": __version__, "python": platform.python_version(), **_versions()},
    }
    for name in _PER_USER:
        values = getattr(result, name)
        if values is not None:
            content[name] = values.astype(int).tolist() if isinstance(values, np.ndarray) else list(values)
    return content


def write_results(path: str | Path, content: Mapping[str, Any]) -> None:
    """Writes results as JSON, what there is one of a user on one line. The file is whole or not there."""
    lists = {name: content[name] for name in _PER_USER if name in content}
    rest = {name: value for name, value in content.items() if name not in lists}
    text = json.dumps(rest, indent=2, ensure_ascii=False, allow_nan=False)
    if lists:
        lines = [f"  {json.dumps(name)}: {json.dumps(values, ensure_ascii=False)}" for name, values in lists.items()]
        text = text.removesuffix("\n}") + ",\n" + ",\n".join(lines) + "\n}"
    with whole_file(Path(path)) as aside:
        aside.write_text(text + "\n", encoding="utf-8", errors="replace")


def read_results(path: str | Path) -> RecommendationFile:
    """
    Reads the results of an evaluation.

    Raises:
        [`DataError`]: the file is not there, holds something else, or is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There are no results at {path}: give a file that `qcrd c2kd evaluate` wrote.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise DataError(f"{path} is not JSON ({err}): give a file that `qcrd c2kd evaluate` wrote.") from err
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise DataError(f"{path} does not hold the results of `qcrd c2kd evaluate`.")
    if content.get("format") != FORMAT:
        raise DataError(f"{path} has the format {content.get('format')!r}, and {FORMAT} is expected. {_AGAIN}")
    try:
        per_user = values_of(content.get("ranks"), content.get("hits"), content.get("valid"), content["ks"])
        if any(values.shape != (content["counts"]["users"],) for values in per_user.values()):
            raise ValueError("it has not one value a user")
        for name, mean in content["metrics"].items():
            if not abs(per_user[name].mean() - mean) < 1e-9:
                raise ValueError(f"{name} is not what its users give")
        for name in (*_SAME, "model", "method", "settings"):
            content[name]
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise DataError(f"{path} is damaged ({type(err).__name__}: {err}). {_AGAIN}") from err
    return RecommendationFile(path, content, per_user)


def aggregate(files: str | Path | Sequence[str | Path], seed: int = 0) -> RecommendationRun:
    """
    The results of one model trained with several seeds, averaged user by user.

    Args:
        files (`str` or `Path`, or sequence of them): files that `qcrd c2kd evaluate` wrote, one a seed.
        seed (`int`, *optional*, defaults to `0`): of the resamples.

    Returns:
        [`RecommendationRun`]

    Raises:
        [`DataError`]: a file cannot be read, or they are of other users, items, splits or masks.
        [`ConfigError`]: they have no metric in common.
    """
    return compare(files, seed=seed).runs[0]


def compare(
    first: str | Path | Sequence[str | Path], *others: str | Path | Sequence[str | Path], seed: int = 0
) -> RecommendationComparison:
    """
    Compares the results of several models, user by user, each later one with the first.

    Args:
        first (`str` or `Path`, or sequence of them):
            A file that `qcrd c2kd evaluate` wrote; several are one model trained with several seeds, whose values are
            averaged user by user.
        others:
            The same for each further model.
        seed (`int`, *optional*, defaults to `0`):
            Of the resamples.

    Returns:
        [`RecommendationComparison`]

    Raises:
        [`DataError`]: a file cannot be read, or two are of other users, targets, items, candidates, splits or masks.
        [`ConfigError`]: a model and the first have no metric in common.

    Example:

    ```python
    >>> from qcrd_trl.recommendation.results import compare
    >>> comparison = compare(["alone-1.json", "alone-2.json"], ["c2kd-1.json", "c2kd-2.json"])
    >>> comparison.differences[0].interval
    ```
    """
    groups = [[read_results(path) for path in _files(group)] for group in (first, *others)]
    everything = [results for group in groups for results in group]
    for results in everything[1:]:
        _check_same(everything[0], results)
    runs, values = [], []
    for group in groups:
        names = [name for name in group[0].per_user if all(name in results.per_user for results in group)]
        if not names:
            raise ConfigError(f"{_paths(group)} have no metric in common.")
        by_seed = {name: np.array([results.per_user[name] for results in group]) for name in names}
        values.append({name: both.mean(axis=0) for name, both in by_seed.items()})
        runs.append(_run(group, by_seed, seed))
    differences = []
    for number in range(1, len(groups)):
        names = [name for name in values[0] if name in values[number]]
        if not names:
            raise ConfigError(f"{_paths(groups[0] + groups[number])} have no metric in common.")
        differences += [_difference(number, name, values[0][name], values[number][name], seed) for name in names]
    return RecommendationComparison(seed, runs, differences, _repeated(everything))


def _files(group: str | Path | Sequence[str | Path]) -> list[Path]:
    files = [Path(group)] if isinstance(group, (str, Path)) else [Path(path) for path in group]
    if not files:
        raise ConfigError("A model to compare needs one file or more, got none.")
    return files


def _check_same(one: RecommendationFile, other: RecommendationFile) -> None:
    words = {
        "split": "other splits",
        "ranking": "other rankings",
        "history_masked": "other masks of the history",
        "user_set": "other users or targets",
        "item_set": "other items or candidates",
    }
    for name in _SAME:
        here, there = one.content[name], other.content[name]
        if here != there:
            shown = "" if name.endswith("_set") else f" ({name} is {here!r} and {there!r})"
            raise DataError(
                f"{one.path} and {other.path} are of {words[name]}{shown}: their difference would say nothing. Evaluate both "
                "in one way, on one dataset."
            )


def _paths(group: Sequence[RecommendationFile]) -> str:
    return ", ".join(str(results.path) for results in group)


def _shown(path: Path) -> str:
    """A file's name; with its folder's where all runs name it alike."""
    return f"{path.parent.name}/{path.name}" if path.name == "results.json" and path.parent.name else path.name


def _run(group: list[RecommendationFile], by_seed: dict[str, np.ndarray], seed: int) -> RecommendationRun:
    contents = [results.content for results in group]
    methods = {content["method"] for content in contents}
    run = RecommendationRun(
        [content["model"] for content in contents],
        [_shown(results.path) for results in group],
        methods.pop() if len(methods) == 1 else None,
        contents[0]["counts"]["users"],
    )
    for name, values in by_seed.items():  # (seeds, users)
        run.metrics[name] = float(values.mean())
        run.intervals[name] = bootstrap_interval(values.mean(axis=0), seed)
        if len(values) > 1:
            run.sd[name] = float(values.mean(axis=1).std(ddof=1))
    return run


def _difference(number: int, metric: str, first: np.ndarray, other: np.ndarray, seed: int) -> RecommendationDifference:
    return RecommendationDifference(
        run=number,
        metric=metric,
        difference=float((other - first).mean()),
        interval=paired_bootstrap(first, other, seed),
        p_value=sign_flip_p(first, other, seed),
    )


def _repeated(everything: list[RecommendationFile]) -> list[str]:
    paths = [results.path.resolve() for results in everything]
    twice = [path for number, path in enumerate(paths) if paths.index(path) < number]
    notes = [f"{path.name} is given more than once: it does not count as further evidence." for path in twice]
    for note in notes:
        logger.warning(note)
    return notes


def _versions() -> dict[str, str]:
    found = {}
    for name in ("numpy", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
