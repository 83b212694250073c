"""The rationale discriminator of QCRD: s = D(x, r) in (0, 1), eq. 1 (Wang et al., EMNLP 2025)."""

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from .errors import ModelError
from .repositories import is_repo_name
from .repositories import student_folder as repository_folder


CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
DISCRIMINATOR_FOLDER = "discriminator"


class RationaleDiscriminator(nn.Module):
    """
    Scores rationales by the hidden states of the model that reads them: max-pool over the rationale's tokens, two
    linear layers, sigmoid (the paper's head; its encoder is replaced by the student, whose states are there already).

    The states are normalised per token before pooling, so that a student whose states are large or scaled does not
    saturate the head. They carry no gradient: the discriminator never moves what it reads.

    Args:
        input_size (`int`):
            Width of the hidden states.
        hidden_size (`int`, *optional*, defaults to `256`):
            Width between the two linear layers. The paper is silent.

    Examples:

    ```python
    >>> import torch
    >>> from qcrd_trl import RationaleDiscriminator

    >>> discriminator = RationaleDiscriminator(input_size=8)
    >>> states, mask = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    >>> discriminator(states, mask).shape
    torch.Size([3])
    ```
    """

    def __init__(self, input_size: int, hidden_size: int = 256):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.dense = nn.Linear(input_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            hidden_states (`torch.Tensor`): shape `(rationales, tokens, input_size)`.
            mask (`torch.Tensor`): the rationale's own tokens, boolean, shape `(rationales, tokens)`.

        Returns:
            `torch.Tensor`: scores in (0, 1), float32, shape `(rationales,)`.
        """
        mask = mask.bool()
        row = torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)
        return self.score_tokens(hidden_states[mask], row[mask], mask.shape[0])

    def score_tokens(self, states: torch.Tensor, row: torch.Tensor, num_rows: int) -> torch.Tensor:
        """
        The same on ragged input: one state a token, and the rationale it belongs to.

        Args:
            states (`torch.Tensor`): shape `(tokens, input_size)`.
            row (`torch.Tensor`): rationale of each token, integers in `[0, num_rows)`, shape `(tokens,)`.
            num_rows (`int`): number of rationales.

        Returns:
            `torch.Tensor`: scores in (0, 1), float32, shape `(num_rows,)`.
        """
        return self.score_pooled(self.pool(states, row, num_rows))

    def pool(self, states: torch.Tensor, row: torch.Tensor, num_rows: int, detach: bool = True) -> torch.Tensor:
        """
        Max over the tokens of each rationale of the normalised states.

        Args:
            states (`torch.Tensor`): shape `(tokens, input_size)`.
            row (`torch.Tensor`): rationale of each token, shape `(tokens,)`.
            num_rows (`int`): number of rationales.
            detach (`bool`, *optional*, defaults to `True`): whether the states are given no gradient. `False` is for an
                encoder that is trained with the head.

        Returns:
            `torch.Tensor`: float32, shape `(num_rows, input_size)`; 0 for a rationale without tokens.
        """
        states = F.layer_norm((states.detach() if detach else states).float(), (self.input_size,))
        pooled = states.new_full((num_rows, self.input_size), float("-inf"))
        pooled = pooled.scatter_reduce(0, row[:, None].expand_as(states), states, reduce="amax")
        return pooled.masked_fill(pooled == float("-inf"), 0.0)  # a rationale without tokens

    def score_pooled(self, pooled: torch.Tensor) -> torch.Tensor:
        """Scores of pooled states, shape `(num_rows,)`, from those of [`~RationaleDiscriminator.pool`]."""
        # Not under autocast: scores are compared and averaged, and the head is too small for speed to matter.
        with torch.autocast(device_type=pooled.device.type, enabled=False):
            return torch.sigmoid(self.score(F.relu(self.dense(pooled))).squeeze(-1))

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Writes `config.json` and `model.safetensors` into `save_directory`, which is made if it is absent."""
        save_head(self, Path(save_directory), kind="student")

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo: str | os.PathLike,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
    ) -> "RationaleDiscriminator":
        """
        Loads a discriminator that [`~RationaleDiscriminator.save_pretrained`] wrote.

        Args:
            path_or_repo (`str` or `os.PathLike`):
                Its folder, or a trained model's folder that holds it as `discriminator/`; or a repository of the Hub that is
                one of these. A path that exists is never taken for a name.
            revision (`str`, *optional*):
                Branch, tag or commit of the repository.
            token (`str` or `bool`, *optional*):
                Token for the Hub; that of `huggingface_hub` if left out.
            cache_dir (`str` or `os.PathLike`, *optional*):
                Where downloads are kept.

        Raises:
            [`ModelError`]: if the folder holds no discriminator of kind `student`, or its files do not belong together.
        """
        folder = find_discriminator(discriminator_path(path_or_repo, revision, token, cache_dir))
        config = read_config(folder)
        if config.get("kind") != "student":
            own = " One with an encoder of its own reads texts: load it with RationaleScorer.from_pretrained."
            raise ModelError(
                f"{str(folder)!r} holds no discriminator of kind 'student': its {CONFIG_NAME} says "
                f"kind={config.get('kind')!r}.{own if config.get('kind') == 'encoder' else ''}"
            )
        return load_head(folder, config)


# ---- Files: a head and its configuration, alone or beside an encoder ----


def save_head(head: RationaleDiscriminator, folder: Path, **config: Any) -> None:
    """Writes `config.json`, with the head's sizes and `config`, and `model.safetensors` into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config, "input_size": head.input_size, "hidden_size": head.hidden_size}
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({k: v.detach().cpu().contiguous() for k, v in head.state_dict().items()}, folder / WEIGHTS_NAME)


def find_discriminator(path: str | os.PathLike) -> Path:
    """The folder of a discriminator of either kind: `path` itself, or `discriminator/` in a trained model's folder."""
    folder = Path(path)
    if not _has_files(folder) or _has_files(folder / "discriminator"):  # a full model has files of the same names
        folder = folder / "discriminator"
    if not _has_files(folder):
        raise ModelError(f"No discriminator in {str(path)!r}: expected {CONFIG_NAME} and {WEIGHTS_NAME} there.")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """What a discriminator's `config.json` says."""
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, got {type(config).__name__}")
    except ValueError as err:
        raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} is damaged: {err}") from err
    return config


def load_head(folder: Path, config: dict[str, Any]) -> RationaleDiscriminator:
    """The head in a folder, in eval mode, of the sizes that its configuration gives."""
    sizes = (config.get("input_size"), config.get("hidden_size"))
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} must give input_size and hidden_size, says {config}.")
    head = RationaleDiscriminator(*sizes)
    try:
        weights = load_file(folder / WEIGHTS_NAME)
    except (SafetensorError, OSError) as err:
        raise ModelError(f"{WEIGHTS_NAME} in {str(folder)!r} is damaged: {err}") from err
    try:
        head.load_state_dict(weights)
    except RuntimeError as err:
        raise ModelError(f"The weights in {str(folder)!r} do not fit their {CONFIG_NAME}: {err}") from err
    return head.eval()


def _has_files(folder: Path) -> bool:
    return (folder / WEIGHTS_NAME).is_file() and (folder / CONFIG_NAME).is_file()


def discriminator_path(
    path_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Path:
    """The folder that a discriminator of either kind is looked for in: a path as it is, a repository once it is here."""
    path = Path(path_or_repo)
    if path.exists() or not is_repo_name(str(path_or_repo)):
        return path
    beside = f"{DISCRIMINATOR_FOLDER}/*"
    folder = repository_folder(path_or_repo, revision, token, cache_dir, only=[beside])
    if (folder / DISCRIMINATOR_FOLDER).is_dir():
        return folder
    files = [CONFIG_NAME, WEIGHTS_NAME, "encoder/*", beside]  # a repository of its own
    return repository_folder(path_or_repo, revision, token, cache_dir, only=files)
