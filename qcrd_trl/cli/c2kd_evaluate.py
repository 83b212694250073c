"""`qcrd c2kd evaluate`: how good a recommender is, and what a difference of two is worth."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .common import check_output_file, parse_arguments


BASELINES = ("popularity",)
# Flags that a comparison reads; all others are about a model.
COMPARING = ("compare", "output", "seed")
# Flags that say how a model is loaded and run; a baseline has none.
OF_MODELS = (
    *("task_mode", "max_history", "batch_size", "item_chunk", "prompt_file", "max_new_tokens"),
    *("dtype", "load_in_4bit", "device", "revision", "trust_remote_code"),
)


@dataclass
class C2KDEvaluateArguments:
    """
    Arguments of `qcrd c2kd evaluate`.

    Args:
        dataset (`str`, *optional*):
            Folder that `qcrd c2kd prepare` wrote. Needed unless `compare` is given.
        model_name_or_path (`str`, *optional*):
            Folder of a trained recommender (full model or adapter), or a Hub name. It or `baseline` is needed unless
            `compare` is given.
        baseline (`str`, *optional*):
            `popularity`, in place of a model.
        output (`str`, *optional*):
            JSON file to write. Needed unless `compare` is given.
        split (`str`, *optional*, defaults to `"test"`):
            `test` or `validation`.
        mask_history (`bool`, *optional*, defaults to `False`):
            Whether the items that a user met before take no part in the ranking.
        candidates (`bool`, *optional*, defaults to `False`):
            Whether only each user's candidates are ranked, in place of all items. Generative mode always does.
        ks (`list[int]`, *optional*):
            Where the lists of HR@k and NDCG@k end; 1, 5, 10 and 20 if left out.
        max_users (`int`, *optional*):
            Only so many users, drawn with `user_seed`.
        user_seed (`int`, *optional*, defaults to `0`):
            Seed of the draw of users.
        method (`str`, *optional*):
            What the file says that the model was trained by, such as `c2kd`.
        task_mode (`str`, *optional*):
            `item_head` or `generative`; what the model is if left out.
        max_history (`int`, *optional*):
            Largest number of items that the model reads.
        batch_size (`int`, *optional*, defaults to `64`):
            Users at a time.
        item_chunk (`int`, *optional*, defaults to `8192`):
            Items that are scored at a time. It changes no rank.
        prompt_file (`str`, *optional*):
            Generative mode: template of the prompt. What the model was taught if left out.
        max_new_tokens (`int`, *optional*):
            Generative mode: largest number of tokens of a title. Those of the longest candidate if left out.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the model.
        load_in_4bit (`bool`, *optional*, defaults to `False`):
            Whether to quantize the model to 4 bits while it is loaded.
        device (`str`, *optional*):
            Device; the GPU if there is one.
        revision (`str`, *optional*):
            Branch, tag or commit of the repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resamples of the intervals.
        compare (`list[str]`, *optional*):
            Results to compare, in place of evaluating: each with the first. Several seeds of one model are joined by commas;
            one model alone is averaged over its seeds.
    """

    dataset: str | None = field(default=None, metadata={"help": "Folder that `qcrd c2kd prepare` wrote."})
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder of a trained recommender, or a Hub name."}
    )
    baseline: str | None = field(default=None, metadata={"help": "popularity, in place of a model."})
    output: str | None = field(default=None, metadata={"help": "JSON file to write."})
    split: str = field(default="test", metadata={"help": "test or validation."})
    mask_history: bool = field(
        default=False, metadata={"help": "Leave out of the ranking what the user met before the target."}
    )
    candidates: bool = field(
        default=False, metadata={"help": "Rank each user's candidates alone. Generative mode always does."}
    )
    ks: list[int] | None = field(default=None, metadata={"help": "Where lists end. Default: 1 5 10 20."})
    max_users: int | None = field(default=None, metadata={"help": "Only so many users, drawn at random."})
    user_seed: int = field(default=0, metadata={"help": "Seed of that draw."})
    method: str | None = field(
        default=None, metadata={"help": "What the file says that the model was trained by, such as c2kd."}
    )
    task_mode: str | None = field(
        default=None, metadata={"help": "item_head or generative. Default: what the model is."}
    )
    max_history: int | None = field(
        default=None,
        metadata={"help": "Largest number of items that are read. Default: the dataset's, or the prompt's."},
    )
    batch_size: int = field(default=64, metadata={"help": "Users at a time."})
    item_chunk: int = field(default=8192, metadata={"help": "Items scored at a time."})
    prompt_file: str | None = field(
        default=None, metadata={"help": "Generative mode: template. Default: what the model was taught."}
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Generative mode: tokens of a title. Default: those of the longest candidate."},
    )
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or auto."})
    load_in_4bit: bool = field(default=False, metadata={"help": "Quantize the model to 4 bits."})
    device: str | None = field(default=None, metadata={"help": "Device; the GPU if there is one."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})
    seed: int = field(default=0, metadata={"help": "Seed of the resamples of the intervals."})
    compare: list[str] | None = field(
        default=None,
        metadata={"help": "Results to compare with the first of them: A.json B.json, or A1.json,A2.json for seeds."},
    )


def main(argv: Sequence[str]) -> int:
    """
    Evaluates a recommender, writes the results and prints a table; or compares such results.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Measures a recommender by what each user met next: HR@k, NDCG@k and MRR by full ranking."
    (args,) = parse_arguments(argv, C2KDEvaluateArguments, prog="qcrd c2kd evaluate", description=description)
    _check(args)
    if args.output is not None:
        check_output_file(Path(args.output))
    if args.compare is not None:
        from .c2kd_comparison import compare

        return compare(args.compare, args.output, args.seed)
    # After the flags are known to be right, so that a wrong one is told at once.
    from ..recommendation.folder import load_data
    from ..recommendation.prompts import sample_users
    from ..recommendation.results import results_of, write_results
    from ..repositories import shown_name

    data = load_data(args.dataset)
    users = None if args.max_users is None else sample_users(data, args.max_users, args.user_seed)
    started = time.perf_counter()
    if args.baseline is not None:
        from ..recommendation.popularity import evaluate_popularity

        result = evaluate_popularity(data, args.split, args.mask_history, args.candidates, _ks(args), users)
        settings: dict[str, Any] = {}
    else:
        result, settings = _evaluate(args, data, users)
    settings |= {name: getattr(args, name) for name in ("max_users", "user_seed")}
    settings |= {"dataset": shown_name(args.dataset), "fingerprint": data.fingerprint}
    settings["seconds"] = round(time.perf_counter() - started, 1)
    content = results_of(
        result, args.model_name_or_path or args.baseline, args.method or args.baseline, args.seed, settings
    )
    try:
        write_results(args.output, content)
    except OSError:  # such as a full disk: what was measured is told all the same
        _print(content, None)
        raise
    _print(content, args.output)
    return 0


def _evaluate(args: C2KDEvaluateArguments, data: Any, users: list[int] | None) -> tuple[Any, dict[str, Any]]:
    """The result of a model, and what decided it beside the data."""
    import torch
    from transformers import BitsAndBytesConfig

    from ..models import device_of, load_tokenizer
    from ..recommendation.evaluation import evaluate_model, task_mode_of
    from ..recommendation.loading import load_recommender
    from ..recommendation.prompt_form import RecommendationPrompt, load_prompt_form
    from ..repositories import student_folder

    device = device_of(args.device)
    trust = {"trust_remote_code": True} if args.trust_remote_code else {}
    folder = student_folder(args.model_name_or_path, args.revision, **trust)
    quantization = {}
    if args.load_in_4bit:
        quantization["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    model = load_recommender(folder, dtype=args.dtype, **quantization, **trust)
    if not args.load_in_4bit:
        model = model.to(device)
    mode = args.task_mode or task_mode_of(model)
    tokenizer = form = None
    if mode == "generative":
        tokenizer = load_tokenizer(folder, **trust)
        if args.prompt_file is not None:
            form = load_prompt_form(args.prompt_file, chat=tokenizer.chat_template is not None)
        else:
            taught = RecommendationPrompt.from_pretrained(folder)
            form = taught or RecommendationPrompt(chat=tokenizer.chat_template is not None)
    elif args.prompt_file is not None or args.max_new_tokens is not None:
        raise ConfigError(
            "--prompt_file and --max_new_tokens are of generative mode, and the model has a head over items."
        )
    result = evaluate_model(
        model,
        data,
        args.split,
        mode,
        mask_history=args.mask_history,
        candidates=args.candidates,
        max_history=args.max_history,
        batch_size=args.batch_size,
        item_chunk=args.item_chunk,
        ks=_ks(args),
        users=users,
        tokenizer=tokenizer,
        form=form,
        max_new_tokens=args.max_new_tokens,
    )
    settings = {name: getattr(args, name) for name in OF_MODELS if name not in ("revision", "prompt_file")}
    settings |= {"task_mode": mode, "device": str(device), "prompt_form": None if form is None else asdict(form)}
    return result, settings


def _ks(args: C2KDEvaluateArguments) -> tuple[int, ...]:
    from ..recommendation.ranking_metrics import KS

    return KS if args.ks is None else tuple(args.ks)


def _check(args: C2KDEvaluateArguments) -> None:
    given = [one.name for one in fields(args) if getattr(args, one.name) != one.default]
    if args.compare is not None:
        other = [name for name in given if name not in COMPARING]
        if other:
            raise ConfigError(
                f"--compare reads results that are there and evaluates nothing: leave --{other[0]} out, or --compare."
            )
        return
    for name in ("dataset", "output"):
        if getattr(args, name) is None:
            raise ConfigError(f"--{name} is missing. (To compare results that are there, give --compare.)")
    if (args.model_name_or_path is None) == (args.baseline is None):
        raise ConfigError("Give --model_name_or_path or --baseline popularity: one of the two.")
    if args.baseline is not None:
        if args.baseline not in BASELINES:
            raise ConfigError(f"Unknown baseline {args.baseline!r}: expected {', '.join(BASELINES)}.")
        other = [name for name in given if name in OF_MODELS]
        if other:
            raise ConfigError(f"--{other[0]} is of models, and --baseline {args.baseline} is none: leave it out.")
    if args.split not in ("test", "validation"):
        raise ConfigError(f"--split must be test or validation, got {args.split!r}.")
    if args.candidates and args.mask_history:
        raise ConfigError("No candidate is in its user's history: leave --mask_history out, or --candidates.")
    if args.task_mode not in (None, "item_head", "generative"):
        raise ConfigError(f"--task_mode must be item_head or generative, got {args.task_mode!r}.")
    if args.ks is not None:
        from ..recommendation.ranking_metrics import check_ks

        check_ks(args.ks)
    for name in ("batch_size", "item_chunk", "max_history", "max_new_tokens", "max_users"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}.")


def _print(content: dict[str, Any], output: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    counts = content["counts"]
    among = f"{counts['items']} items" if content["ranking"] == "full" else "the candidates"
    masked = ", history masked" if content["history_masked"] else ""
    table = Table()
    for heading in ("metric", "value", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for name, value in content["metrics"].items():
        low, high = content["intervals"][name]
        table.add_row(name, f"{value:.6f}", f"{low:.4f} to {high:.4f}")
    console = Console()
    console.print(
        f"{content['model']}: {counts['users']} users, {content['split']}, among {among}{masked}",
        highlight=False,
        markup=False,
    )
    console.print(table)
    if counts.get("not_finite"):
        console.print(f"{counts['not_finite']} targets have a score that is not finite: misses.", highlight=False)
    if counts.get("targets_of_shared_title"):
        console.print(
            f"{counts['targets_of_shared_title']} targets share their title with another candidate: naming it is a hit.",
            highlight=False,
        )
    if output is not None:
        console.print(f"Written to {output}", highlight=False)
