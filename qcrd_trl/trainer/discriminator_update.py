"""The discriminator in training: its own optimizer, its gradients shared by all processes, its checkpoints."""

import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers import TrainerState

from ..discriminator import RationaleDiscriminator
from ..errors import ConfigError, ModelError
from ..rationale_scorer import RationaleScorer
from .objective import RationaleRows
from .qcrd_config import QCRDConfig
from .scoring import RowScores, by_length, trimmed


logger = logging.getLogger(__name__)

DISCRIMINATOR_FOLDER, OPTIMIZER_NAME = "discriminator", "optimizer.pt"


class DiscriminatorUpdate:
    """
    Trains a discriminator beside the student: by itself that of kind `student`, a head on the student's states.

    Args:
        head (`nn.Module`): the student's language-modelling head, whose input the discriminator reads.
        args ([`QCRDConfig`]): its sizes and rates. `alpha_3 = 0` leaves it as it was initialised.
        accelerator ([`~accelerate.Accelerator`]): device and processes.
    """

    discriminator: RationaleDiscriminator | RationaleScorer

    def __init__(self, head: nn.Module, args: QCRDConfig, accelerator: Accelerator):
        # The same on every process, and without moving the random state of the student's run.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(args.seed)
            discriminator = RationaleDiscriminator(_input_size(head), args.discriminator_hidden_size)
        self._set_up(discriminator, [(discriminator, args.discriminator_learning_rate)], args, accelerator)

    def _set_up(
        self,
        discriminator: RationaleDiscriminator | RationaleScorer,
        rates: list[tuple[nn.Module, float]],
        args: QCRDConfig,
        accelerator: Accelerator,
    ) -> None:
        self.args, self.accelerator = args, accelerator
        self.discriminator = discriminator.to(accelerator.device)
        self._rates = [rate for _, rate in rates]
        groups = [
            {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate} for module, rate in rates
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=args.discriminator_weight_decay)

    def is_due(self, state: TrainerState) -> bool:
        """Whether the discriminator learns from the current optimizer step."""
        return self.args.alpha_3 > 0 and state.global_step % self.args.discriminator_update_interval == 0

    def scores(self, rows: RationaleRows, scored: RowScores, learns: bool) -> torch.Tensor:
        """
        Scores of the rationales of a batch.

        Args:
            rows ([`RationaleRows`]): the rationales.
            scored ([`RowScores`]): what the student made of them. What is pooled stays there, for the next call.
            learns (`bool`): whether the scores are to have a gradient to the discriminator.

        Returns:
            `torch.Tensor`: in (0, 1), shape `(rationales,)`.
        """
        if scored.pooled is None:
            scored.pooled = self.discriminator.pool(scored.states, scored.row, len(rows.question))
        with torch.set_grad_enabled(learns):
            return self.discriminator.score_pooled(scored.pooled)

    def accumulate(self, loss: torch.Tensor | None) -> None:
        """Adds the gradient of a micro-batch's L_D, divided by the questions of the global batch."""
        if loss is not None and loss.requires_grad:
            loss.backward()

    def step(self, iteration: int) -> None:
        """
        Ends an optimizer step: averages the gradients over processes, clips them and moves the discriminator.

        Adam cancels a constant factor on a loss, so alpha_3's decay is applied where it has an effect: to the learning
        rate.
        """
        parameters = [parameter for parameter in self.discriminator.parameters() if parameter.requires_grad]
        if self.accelerator.num_processes > 1:
            # One flat reduction, also where this process had nothing to learn from.
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
            flat = self.accelerator.reduce(flat, reduction="mean")
            for parameter, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = grad.view_as(parameter).clone()
        # AdamW moves and decays also by a gradient of 0, so a step that taught nothing is left out.
        if any(parameter.grad is not None and parameter.grad.any() for parameter in parameters):
            nn.utils.clip_grad_norm_(parameters, self.args.discriminator_max_grad_norm)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self.args.alpha_3_decay**iteration
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def load(self, folder: Path) -> None:
        """Takes over the weights that a checkpoint holds."""
        loaded = type(self.discriminator).from_pretrained(folder)
        try:
            self.discriminator.load_state_dict(loaded.state_dict())
        except RuntimeError as err:
            raise ModelError(f"The discriminator in {str(folder)!r} is not of this run's size: {err}") from err

    def save_checkpoint(self, folder: Path) -> None:
        """Writes the optimizer's state beside the discriminator, which every saved model has."""
        if self.args.should_save:
            folder = folder / DISCRIMINATOR_FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self.optimizer.state_dict(), folder / OPTIMIZER_NAME)

    def load_checkpoint(self, folder: Path) -> None:
        """Takes over the discriminator and its optimizer's state."""
        folder = folder / DISCRIMINATOR_FOLDER
        self.load(folder)
        if (folder / OPTIMIZER_NAME).is_file():
            state = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
            try:
                self.optimizer.load_state_dict(state)
            except ValueError as err:
                raise ModelError(
                    f"{OPTIMIZER_NAME} in {str(folder)!r} is of a discriminator of which other parts were trained "
                    f"({err}). Resume with the discriminator_encoder_learning_rate that the run was started with, 0 or not."
                ) from err


class EncoderDiscriminatorUpdate(DiscriminatorUpdate):
    """
    Trains a discriminator that has an encoder of its own.

    It reads without dropout, also while it learns: one pass then gives both its gradient and the scores that weight the
    student's loss, which are to be no random ones. No process waits for another in it, so their passes may differ in number.

    Args:
        scorer ([`RationaleScorer`]): the discriminator, as [`load_scorer`] gives it.
        args ([`QCRDConfig`]): its rates.
        accelerator ([`~accelerate.Accelerator`]): device and processes.
    """

    def __init__(self, scorer: RationaleScorer, args: QCRDConfig, accelerator: Accelerator):
        rates = [(scorer.head, args.discriminator_learning_rate)]
        if not scorer.freeze_encoder:
            rates.append((scorer.encoder, args.discriminator_encoder_learning_rate))
        self._set_up(scorer.eval(), rates, args, accelerator)

    def scores(self, rows: RationaleRows, scored: RowScores, learns: bool) -> torch.Tensor:
        scorer = self.discriminator
        if rows.pairs is None:
            raise ConfigError(
                "The data collator gives no discriminator_input_ids, which a discriminator with an encoder of its own reads. "
                "Leave data_collator out, or make the one you pass with `pairs=trainer.discriminator_pairs`."
            )
        learns_encoder = learns and not scorer.freeze_encoder
        if scored.pooled is None or learns_encoder:
            with torch.set_grad_enabled(learns_encoder):
                scored.pooled = self._pool(rows.pairs)
        with torch.set_grad_enabled(learns):
            return scorer.head.score_pooled(scored.pooled)

    def _pool(self, pairs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Pooled states of all rationales, those of like length read together."""
        used = pairs["attention_mask"] != 0
        chunks = [part for part in by_length(used.sum(1), self.args.rationale_forward_passes) if len(part)]
        if not chunks:
            return self.discriminator.pool(**pairs)
        parts = [
            self.discriminator.pool(**{name: trimmed(tensor[part], used[part]) for name, tensor in pairs.items()})
            for part in chunks
        ]
        return torch.cat(parts)[torch.cat(chunks).argsort()]


def load_scorer(args: QCRDConfig) -> RationaleScorer | None:
    """The discriminator that `discriminator_model_name_or_path` names, where the recipe has one with an encoder."""
    if args.discriminator != "encoder" or not args.uses_rationales:
        return None
    path = args.discriminator_model_name_or_path
    if args.should_log and not RationaleScorer.is_trained(path):
        logger.warning(
            "%s is no pretrained discriminator: it is read as an encoder, and the head on it is new. `qcrd discriminator "
            "train` pretrains one.",
            path,
        )
    return RationaleScorer.from_either(
        path,
        hidden_size=args.discriminator_hidden_size,
        freeze_encoder=args.discriminator_encoder_learning_rate == 0,
        seed=args.seed,
    )


def update_of(
    scorer: RationaleScorer | None, head: nn.Module, args: QCRDConfig, accelerator: Accelerator
) -> DiscriminatorUpdate | None:
    """What trains the discriminator of a recipe, or `None` where it has none. Args as for the two classes."""
    if scorer is not None:
        return EncoderDiscriminatorUpdate(scorer, args, accelerator)
    if args.discriminator == "student" and args.uses_rationales:
        return DiscriminatorUpdate(head, args, accelerator)
    return None


def _input_size(head: nn.Module) -> int:
    size = getattr(head, "in_features", None)
    return int(size if size is not None else head.weight.shape[-1])
