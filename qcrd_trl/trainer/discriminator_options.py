"""Arguments of the discriminator."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..losses import DISCRIMINATOR_LOSSES
from .checks import at_least_one, not_negative, one_of


DISCRIMINATORS = ("student", "encoder", "none")


@dataclass
class DiscriminatorOptions:
    """
    The part of [`QCRDConfig`] that says which discriminator scores the rationales, and how it learns; its docstring tells
    what each is.
    """

    discriminator: str | None = field(
        default=None, metadata={"help": "student, encoder or none. Default: the preset's."}
    )
    discriminator_model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A discriminator of `qcrd discriminator train`, or an encoder for a new one."},
    )
    discriminator_encoder_learning_rate: float = field(
        default=0.0, metadata={"help": "Learning rate of the discriminator's own encoder. 0: its head alone learns."}
    )
    discriminator_loss: str | None = field(
        default=None, metadata={"help": "ratio (eq. 2 as printed) or binary. Default: the preset's."}
    )
    discriminator_hidden_size: int = field(default=256, metadata={"help": "Width between the two linear layers."})
    discriminator_learning_rate: float = field(default=1e-3, metadata={"help": "The discriminator's learning rate."})
    discriminator_weight_decay: float = field(default=0.01, metadata={"help": "The discriminator's weight decay."})
    discriminator_max_grad_norm: float = field(default=1.0, metadata={"help": "Norm its gradients are clipped to."})
    discriminator_update_interval: int = field(
        default=1, metadata={"help": "Optimizer steps between two updates of the discriminator."}
    )

    def resolve_discriminator(self, recipe: dict[str, Any]) -> None:
        """
        Sets what was left out and a recipe leaves open: the kind that a given path asks for, and the loss.

        Args:
            recipe (`dict[str, Any]`): a preset's arguments, before they are taken over.

        Raises:
            [`ConfigError`]: if a path was given and the recipe has no discriminator.
        """
        if self.discriminator_loss is None:
            self.discriminator_loss = recipe.get("discriminator_loss", "ratio")
        if self.discriminator_model_name_or_path is None or self.discriminator is not None:
            return
        if recipe["discriminator"] == "none":
            raise ConfigError(
                f"preset={self.preset!r} has no discriminator, so discriminator_model_name_or_path would do nothing. Leave "
                "it out, or set discriminator='encoder' and what is to use its scores (quality_weighting)."
            )
        self.discriminator = "encoder"

    def check_discriminator(self) -> None:
        """Raises a [`ConfigError`] for what cannot work, and for arguments that exclude each other."""
        kind, path = self.discriminator, self.discriminator_model_name_or_path
        rate = self.discriminator_encoder_learning_rate
        one_of("discriminator", kind, DISCRIMINATORS)
        one_of("discriminator_loss", self.discriminator_loss, DISCRIMINATOR_LOSSES)
        for name in ("learning_rate", "encoder_learning_rate", "weight_decay", "max_grad_norm"):
            not_negative(f"discriminator_{name}", getattr(self, f"discriminator_{name}"))
        for name in ("hidden_size", "update_interval"):
            at_least_one(f"discriminator_{name}", getattr(self, f"discriminator_{name}"))
        if kind == "encoder" and not path:
            raise ConfigError(
                "discriminator='encoder' needs discriminator_model_name_or_path: a folder that `qcrd discriminator train` "
                "wrote, or the id or path of an encoder."
            )
        if kind != "encoder" and path is not None:
            raise ConfigError(
                f"discriminator_model_name_or_path={path!r} is not used by discriminator={kind!r}. Leave one of them out."
            )
        if kind != "encoder" and rate:
            raise ConfigError(
                f"discriminator_encoder_learning_rate={rate} has no encoder to train: discriminator={kind!r} has none of "
                "its own. Set discriminator_model_name_or_path."
            )
        if kind != "none":
            return
        if self.quality_weighting != "none":
            raise ConfigError(
                f"quality_weighting={self.quality_weighting!r} needs a discriminator. Set discriminator='student' or "
                "quality_weighting='none'."
            )
        if "weighted_mean" in (self.positive_reduction, self.negative_reduction) and self.alpha_2 > 0:
            raise ConfigError("The reduction 'weighted_mean' needs a discriminator. Set discriminator='student'.")
