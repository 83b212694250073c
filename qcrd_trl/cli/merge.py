"""`qcrd merge`: an adapter merged into its base, as a full model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .common import parse_arguments


@dataclass
class MergeArguments:
    """
    Arguments of `qcrd merge`.

    Args:
        model (`str`):
            The adapter: folder of a trained student, or a Hub name.
        output_dir (`str`):
            Folder of the full model.
        base_model (`str`, *optional*):
            The base in full precision, if it is not the one that the adapter names.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Precision of the weights written: `float32`, `bfloat16`, `float16`, or `auto` for that of the base.
        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Whether to replace the folder.
        revision (`str`, *optional*):
            Branch, tag or commit of the adapter's repository.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether the base may bring code of its own.
    """

    model: str = field(metadata={"help": "The adapter: folder of a trained student, or a Hub name."})
    output_dir: str = field(metadata={"help": "Folder of the full model."})
    base_model: str | None = field(
        default=None, metadata={"help": "The base in full precision, if it is not the one that the adapter names."}
    )
    dtype: str = field(
        default="float32", metadata={"help": "Precision of the weights written: float32, bfloat16, float16 or auto."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the folder."})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the adapter's repository."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let the base bring code of its own."})


def main(argv: Sequence[str]) -> int:
    """
    Merges an adapter and says how near the result is.

    Args:
        argv (`Sequence[str]`): flags.

    Returns:
        `int`: exit status, 0.
    """
    description = "Merges a student's adapter into its base, and writes a full model that loads without PEFT."
    (args,) = parse_arguments(argv, MergeArguments, prog="qcrd merge", description=description)
    from ..merging import merge_student

    merged = merge_student(
        args.model,
        args.output_dir,
        args.base_model,
        args.dtype,
        args.overwrite_output_dir,
        args.revision,
        args.trust_remote_code,
    )
    print(f"Wrote {args.model}, merged into {merged.base}, to {merged.folder} ({merged.dtype}).")
    print(
        f"The distributions of the next token differ from the adapter's by at most {merged.difference:.1e} (total variation)."
    )
    print(
        "If the adapter was trained on a base that was quantized while it was loaded (load_in_4bit, load_in_8bit), it saw "
        "weights that differ a little from those it is merged into: compare the two with `qcrd evaluate`."
    )
    return 0
