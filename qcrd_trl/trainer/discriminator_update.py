"""The discriminator in training: its own optimizer, its gradients shared by all processes, its checkpoints."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers import TrainerState

from ..discriminator import RationaleDiscriminator
from ..errors import ModelError
from .qcrd_config import QCRDConfig


DISCRIMINATOR_FOLDER, OPTIMIZER_NAME = "discriminator", "optimizer.pt"


class DiscriminatorUpdate:
    """
    Trains a [`RationaleDiscriminator`] beside the student.

    Args:
        head (`nn.Module`): the student's language-modelling head, whose input the discriminator reads.
        args ([`QCRDConfig`]): its sizes and rates. `alpha_3 = 0` leaves it as it was initialised.
        accelerator ([`~accelerate.Accelerator`]): device and processes.
    """

    def __init__(self, head: nn.Module, args: QCRDConfig, accelerator: Accelerator):
        self.args = args
        self.accelerator = accelerator
        # The same on every process, and without moving the random state of the student's run.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(args.seed)
            self.discriminator = RationaleDiscriminator(_input_size(head), args.discriminator_hidden_size)
        self.discriminator.to(accelerator.device)
        self.optimizer = torch.optim.AdamW(
            self.discriminator.parameters(),
            lr=args.discriminator_learning_rate,
            weight_decay=args.discriminator_weight_decay,
        )

    def is_due(self, state: TrainerState) -> bool:
        """Whether the discriminator learns from the current optimizer step."""
        return self.args.alpha_3 > 0 and state.global_step % self.args.discriminator_update_interval == 0

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
        parameters = list(self.discriminator.parameters())
        if self.accelerator.num_processes > 1:
            # One flat reduction, also where this process had nothing to learn from.
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
            flat = self.accelerator.reduce(flat, reduction="mean")
            for parameter, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = grad.view_as(parameter).clone()
        # AdamW moves and decays also by a gradient of 0, so a step that taught nothing is left out.
        if any(parameter.grad is not None and parameter.grad.any() for parameter in parameters):
            nn.utils.clip_grad_norm_(parameters, self.args.discriminator_max_grad_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.args.discriminator_learning_rate * self.args.alpha_3_decay**iteration
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def load(self, folder: Path) -> None:
        """Takes over the weights that a checkpoint holds."""
        loaded = RationaleDiscriminator.from_pretrained(folder)
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
            self.optimizer.load_state_dict(state)


def _input_size(head: nn.Module) -> int:
    size = getattr(head, "in_features", None)
    return int(size if size is not None else head.weight.shape[-1])
