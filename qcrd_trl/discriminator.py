"""The rationale discriminator of QCRD: s = D(x, r) in (0, 1), eq. 1 (Wang et al., EMNLP 2025)."""

import json
import os
from pathlib import Path

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

    def pool(self, states: torch.Tensor, row: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Max over the tokens of each rationale of the normalised states, shape `(num_rows, input_size)`."""
        states = F.layer_norm(states.detach().float(), (self.input_size,))
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
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"kind": "student", "input_size": self.input_size, "hidden_size": self.hidden_size}
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file({k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}, folder / WEIGHTS_NAME)

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
            [`ModelError`]: if the folder holds no discriminator, or its files do not belong together.
        """
        path = discriminator_path(path_or_repo, revision, token, cache_dir)
        folder = Path(path)
        if not (folder / WEIGHTS_NAME).is_file() or not (folder / CONFIG_NAME).is_file():
            folder = folder / "discriminator"
        elif (folder / "discriminator" / WEIGHTS_NAME).is_file():
            folder = folder / "discriminator"  # a full model's folder has files of the same names
        if not (folder / WEIGHTS_NAME).is_file() or not (folder / CONFIG_NAME).is_file():
            raise ModelError(f"No discriminator in {str(path)!r}: expected {CONFIG_NAME} and {WEIGHTS_NAME} there.")
        try:
            config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
            kind, sizes = config.get("kind"), (config.get("input_size"), config.get("hidden_size"))
        except (ValueError, AttributeError) as err:
            raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} is damaged: {err}") from err
        if kind != "student":
            raise ModelError(
                f"{str(folder)!r} holds no discriminator of kind 'student': its {CONFIG_NAME} says kind={kind!r}."
            )
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} must give input_size and hidden_size, says {config}.")
        discriminator = cls(*sizes)
        try:
            weights = load_file(folder / WEIGHTS_NAME)
        except (SafetensorError, OSError) as err:
            raise ModelError(f"{WEIGHTS_NAME} in {str(folder)!r} is damaged: {err}") from err
        try:
            discriminator.load_state_dict(weights)
        except RuntimeError as err:
            raise ModelError(f"The weights in {str(folder)!r} do not fit their {CONFIG_NAME}: {err}") from err
        return discriminator.eval()


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
    files = [CONFIG_NAME, WEIGHTS_NAME, beside]  # a repository of its own
    return repository_folder(path_or_repo, revision, token, cache_dir, only=files)
