"""A discriminator that reads texts by itself: an encoder, a max-pool over the rationale's tokens, two linear layers."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

from .data.pairs import PairTokenizer
from .data.prompts import Prompt
from .discriminator import (
    CONFIG_NAME,
    RationaleDiscriminator,
    discriminator_path,
    find_discriminator,
    load_head,
    read_config,
    save_head,
)
from .errors import ConfigError, DataError, ModelError
from .files import whole_folder
from .models import first_line, load_tokenizer


ENCODER_FOLDER = "encoder"
DEFAULT_MAX_LENGTH = 512


class RationaleScorer(nn.Module):
    """
    Scores rationales by their texts: s = D(x, r) in (0, 1), eq. 1 of QCRD (Wang et al., EMNLP 2025, section 3.3).

    As in the paper, an encoder reads question and rationale together, its last hidden states are max-pooled and go through
    two linear layers. Beyond the paper, the pool is over the rationale's own tokens, and states are normalised per token
    before it, as in [`RationaleDiscriminator`], which is the head.

    Args:
        encoder ([`~transformers.PreTrainedModel`]):
            The encoder: of BERT's kind, T5's encoder, or any model that gives a `last_hidden_state`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        head ([`RationaleDiscriminator`]):
            Pool and linear layers, of the encoder's width.
        max_length (`int`, *optional*, defaults to `512`):
            Largest number of tokens of a pair. A longer one loses tokens of its question first, see [`PairTokenizer`].
        freeze_encoder (`bool`, *optional*, defaults to `False`):
            Whether the head alone is trained. A frozen encoder keeps no graph, and no dropout either.

    Examples:

    ```python
    >>> from qcrd_trl import RationaleScorer

    >>> scorer = RationaleScorer.from_pretrained("discriminator")  # what `qcrd discriminator train` wrote
    >>> scores = scorer.score(["What is 2 + 3?"] * 2, ["2 + 3 = 5.", "2 + 3 = 6."])
    >>> all(0 < score < 1 for score in scores)
    True
    ```
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        head: RationaleDiscriminator,
        max_length: int = DEFAULT_MAX_LENGTH,
        freeze_encoder: bool = False,
    ):
        super().__init__()
        self.encoder, self.head, self.tokenizer = encoder, head, tokenizer
        self.max_length = max_length
        self.pairs = PairTokenizer(tokenizer, max_length)
        self.freeze_encoder = freeze_encoder
        encoder.requires_grad_(not freeze_encoder)
        for name, parameter in encoder.named_parameters():
            if "pooler" in name.split("."):  # of BERT's kind; no loss of ours reaches it
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> "RationaleScorer":
        """Training mode, in which a frozen encoder still reads without dropout."""
        super().train(mode)
        if self.freeze_encoder:
            self.encoder.eval()
        return self

    def forward(self, rationale_mask: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """
        Args:
            rationale_mask (`torch.Tensor`): the rationale's own tokens, boolean, shape `(pairs, length)`.
            inputs (`torch.Tensor`): what the encoder is given, as [`PairTokenizer.batch`] makes it.

        Returns:
            `torch.Tensor`: scores in (0, 1), float32, shape `(pairs,)`, with gradient to what is trained.
        """
        return self.head.score_pooled(self.pool(rationale_mask, **inputs))

    def pool(self, rationale_mask: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Max over the rationale's tokens of the encoder's normalised states, shape `(pairs, hidden_size)`."""
        if len(rationale_mask) == 0:  # some encoders cannot read a batch of nothing
            return torch.zeros(0, self.head.input_size, device=rationale_mask.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_encoder):
            states = self.encoder(**inputs).last_hidden_state
            row = torch.arange(len(rationale_mask), device=rationale_mask.device)[:, None].expand_as(rationale_mask)
            return self.head.pool(
                states[rationale_mask], row[rationale_mask], len(rationale_mask), detach=self.freeze_encoder
            )

    @torch.no_grad()
    def pooled(
        self,
        prompts: Sequence[Prompt],
        rationales: Sequence[str],
        batch_size: int = 32,
        progress: bool | str = False,
    ) -> torch.Tensor:
        """
        What the head scores, of texts. Args as for [`~RationaleScorer.score`].

        Returns:
            `torch.Tensor`: float32, on the CPU, shape `(rationales, hidden_size)`.
        """
        if len(prompts) != len(rationales):
            raise DataError(
                f"{len(prompts)} prompts and {len(rationales)} rationales: expected one prompt a rationale."
            )
        if batch_size < 1:
            raise ConfigError(f"batch_size must be an integer of at least 1, got {batch_size!r}.")
        device = next(self.parameters()).device
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            pairs = [
                (self.pairs.question_ids(prompt), self.pairs.ids(text))
                for prompt, text in zip(prompts, rationales, strict=True)
            ]
            order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]) + len(pairs[index][1]))
            pooled = torch.zeros(len(pairs), self.head.input_size)
            starts = range(0, len(order), batch_size)
            title = progress if isinstance(progress, str) else "Reading rationales"
            for start in tqdm(starts, desc=title, disable=not progress):
                chosen = order[start : start + batch_size]
                batch = self.pairs.batch([pairs[index] for index in chosen])
                pooled[chosen] = self.pool(**{name: tensor.to(device) for name, tensor in batch.items()}).float().cpu()
            return pooled
        finally:
            for module, mode in modes:
                module.training = mode

    @torch.no_grad()
    def score(
        self,
        prompts: Sequence[Prompt],
        rationales: Sequence[str],
        batch_size: int = 32,
        progress: bool | str = False,
    ) -> list[float]:
        """
        Scores texts, pairs of like length together, without dropout. Mode and random state are as before afterwards.

        Args:
            prompts (`Sequence[str or list[dict]]`):
                The question of each rationale: a text, or messages, of which the contents are read.
            rationales (`Sequence[str]`):
                The rationales.
            batch_size (`int`, *optional*, defaults to `32`):
                Pairs at a time.
            progress (`bool` or `str`, *optional*, defaults to `False`):
                Whether to show a progress bar, or its title.

        Returns:
            `list[float]`: scores in (0, 1), in the order given.

        Raises:
            [`DataError`]: if there are not as many prompts as rationales.
        """
        pooled = self.pooled(prompts, rationales, batch_size, progress)
        return self.head.score_pooled(pooled.to(next(self.parameters()).device)).tolist()

    # ---- Files ----

    @classmethod
    def from_encoder(
        cls,
        path: str | os.PathLike,
        hidden_size: int = 256,
        max_length: int | None = None,
        freeze_encoder: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ) -> "RationaleScorer":
        """
        A new discriminator on a pretrained encoder. Its head is not trained.

        Args:
            path (`str` or `os.PathLike`):
                Hub id or folder of an encoder checkpoint, such as `google-t5/t5-base` (the paper's, of which the encoder is
                read alone) or a model of BERT's kind.
            hidden_size (`int`, *optional*, defaults to `256`):
                Width between the two linear layers. The paper is silent.
            max_length (`int`, *optional*):
                Largest number of tokens of a pair. What the encoder can read, but at most 512, if left out.
            freeze_encoder (`bool`, *optional*, defaults to `False`):
                Whether the head alone is to be trained.
            seed (`int`, *optional*, defaults to `0`):
                Seed of the head's weights. torch's own random state is left as it was.
            kwargs:
                Further keyword arguments for `from_pretrained`; `trust_remote_code` only if it stands there.

        Raises:
            [`ModelError`]: if there is no such model, or no encoder in it.
        """
        path = str(path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = _load_encoder(path, **kwargs)
            head = RationaleDiscriminator(_width(encoder), hidden_size)
        trust = {"trust_remote_code": True} if kwargs.get("trust_remote_code") else {}
        tokenizer = load_tokenizer(path, **trust)
        limit = _longest_input(encoder, tokenizer)
        if max_length is None:
            max_length = min(limit, DEFAULT_MAX_LENGTH)
        elif max_length > limit:
            raise ConfigError(f"max_length={max_length} is more than the {limit} tokens that {path!r} can read.")
        return cls(encoder, tokenizer, head, max_length, freeze_encoder).eval()

    def save_pretrained(self, save_directory: str | os.PathLike, training: dict[str, Any] | None = None) -> None:
        """
        Writes head and configuration into a folder, and encoder and tokenizer into `encoder/` in it, where
        `AutoModel.from_pretrained` finds them too. The folder is whole or as it was before.

        Args:
            save_directory (`str` or `os.PathLike`): the folder. One that is there is replaced.
            training (`dict`, *optional*): what `config.json` is to tell of the training.
        """
        with whole_folder(Path(save_directory)) as folder:
            self.write_files(folder, training)

    def write_files(self, folder: Path, training: dict[str, Any] | None = None) -> None:
        """[`~RationaleScorer.save_pretrained`] into a folder that somebody else puts in place."""
        save_head(
            self.head,
            folder,
            kind="encoder",
            max_length=self.max_length,
            **({"training": training} if training else {}),
        )
        self.encoder.save_pretrained(folder / ENCODER_FOLDER)
        self.tokenizer.save_pretrained(folder / ENCODER_FOLDER)

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo: str | os.PathLike,
        freeze_encoder: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        **kwargs: Any,
    ) -> "RationaleScorer":
        """
        Loads a discriminator that [`~RationaleScorer.save_pretrained`] wrote.

        Args:
            path_or_repo (`str` or `os.PathLike`):
                Its folder, or a trained model's folder that holds it as `discriminator/`; or a repository of the Hub that is
                one of these.
            freeze_encoder (`bool`, *optional*, defaults to `False`):
                Whether the head alone is to be trained further.
            revision (`str`, *optional*):
                Branch, tag or commit of the repository.
            token (`str` or `bool`, *optional*):
                Token for the Hub; that of `huggingface_hub` if left out.
            cache_dir (`str` or `os.PathLike`, *optional*):
                Where downloads are kept.
            kwargs:
                Further keyword arguments for the encoder's `from_pretrained`.

        Raises:
            [`ModelError`]: if the folder holds no discriminator of this kind, or its files do not belong together.
        """
        folder = find_discriminator(discriminator_path(path_or_repo, revision, token, cache_dir))
        config = read_config(folder)
        if config.get("kind") != "encoder":
            raise ModelError(
                f"{str(folder)!r} holds no discriminator of kind 'encoder': its {CONFIG_NAME} says "
                f"kind={config.get('kind')!r}. One of kind 'student' reads the states of a student: load it with "
                "RationaleDiscriminator.from_pretrained."
            )
        max_length = config.get("max_length")
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
            raise ModelError(f"{CONFIG_NAME} in {str(folder)!r} must give max_length, says {config}.")
        head = load_head(folder, config)
        if not (folder / ENCODER_FOLDER).is_dir():
            raise ModelError(f"{str(folder)!r} has lost its encoder: expected it in {ENCODER_FOLDER}/ there.")
        with torch.random.fork_rng(devices=[]):
            encoder = _load_encoder(str(folder / ENCODER_FOLDER), **kwargs)
        if _width(encoder) != head.input_size:
            raise ModelError(
                f"The encoder in {str(folder)!r} has width {_width(encoder)}, but the head reads {head.input_size}."
            )
        trust = {"trust_remote_code": True} if kwargs.get("trust_remote_code") else {}
        tokenizer = load_tokenizer(folder / ENCODER_FOLDER, **trust)
        return cls(encoder, tokenizer, head, max_length, freeze_encoder).eval()

    @classmethod
    def from_either(
        cls,
        path: str | os.PathLike,
        hidden_size: int = 256,
        freeze_encoder: bool = False,
        seed: int = 0,
    ) -> "RationaleScorer":
        """
        A discriminator that was trained, or a new one where `path` is that of an encoder checkpoint; which of the two,
        [`~RationaleScorer.is_trained`] tells. Args and errors are those of [`~RationaleScorer.from_pretrained`] and
        [`~RationaleScorer.from_encoder`].
        """
        if cls.is_trained(path):
            return cls.from_pretrained(path, freeze_encoder)
        return cls.from_encoder(path, hidden_size, freeze_encoder=freeze_encoder, seed=seed)

    @staticmethod
    def is_trained(path: str | os.PathLike) -> bool:
        """Whether a folder is a discriminator's, of whatever kind, rather than that of a model."""
        try:
            return "kind" in read_config(find_discriminator(path))
        except ModelError:
            return False


def _load_encoder(path: str, **kwargs: Any) -> PreTrainedModel:
    kwargs.setdefault("dtype", torch.float32)
    shared = {k: kwargs[k] for k in ("revision", "token", "trust_remote_code", "cache_dir") if k in kwargs}
    try:
        config = AutoConfig.from_pretrained(path, **shared)
        reads_text = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
        if getattr(config, "is_encoder_decoder", False) and not reads_text:
            raise ModelError(
                f"{path!r} is an encoder-decoder ({config.model_type}) whose encoder cannot be loaded alone. Use T5, or an "
                "encoder of BERT's kind."
            )
        auto = AutoModelForTextEncoding if reads_text else AutoModel
        return auto.from_pretrained(path, **kwargs)
    except (OSError, ValueError) as err:
        if isinstance(err, ModelError):
            raise
        raise ModelError(
            f"No discriminator and no encoder could be loaded from {path!r}: {first_line(err)} Expected what `qcrd "
            "discriminator train` wrote, or the id or folder of an encoder checkpoint."
        ) from err


def _width(encoder: PreTrainedModel) -> int:
    return int(encoder.config.hidden_size)


def _longest_input(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that an encoder can read: its positions, less those that its kind keeps free, or what its tokenizer says."""
    limits = [int(tokenizer.model_max_length)]
    positions = getattr(encoder.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        kept_free = 2 if encoder.config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        limits.append(positions - kept_free)
    return min(limits)
