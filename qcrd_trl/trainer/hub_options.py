"""Arguments of what goes to the Hub beside the student."""

from dataclasses import dataclass, field

from ..errors import ConfigError
from ..repositories import is_repo_name


@dataclass
class HubOptions:
    """The part of [`QCRDConfig`] that says what else goes to the Hub; its docstring tells what each is."""

    hub_dataset_id: str | None = field(
        default=None,
        metadata={"help": "Dataset repository that each push sends the training set and the generated negatives to."},
    )

    def check_hub(self) -> None:
        """Raises a [`ConfigError`] for what cannot work."""
        for name in ("hub_model_id", "hub_dataset_id"):
            value = getattr(self, name)
            if value is not None and not is_repo_name(value):
                raise ConfigError(f"`{name}` must be the name of a repository, USER/NAME, got {value!r}.")
