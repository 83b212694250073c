"""Arguments of what a training run tells of itself."""

from dataclasses import dataclass, field

from ..errors import ConfigError
from .checks import at_least_one


@dataclass
class ReportOptions:
    """
    The part of [`QCRDConfig`] that says what is written and drawn of a run, and which rationales are shown while it goes
    on; its docstring tells what each is.
    """

    report_plots: bool = field(
        default=True, metadata={"help": "Write training_log.json and plots/*.png into output_dir after training."}
    )
    log_rationales: bool = field(
        default=False, metadata={"help": "Show some positives, negatives and student samples with their scores."}
    )
    num_rationales_to_log: int = field(
        default=3, metadata={"help": "Questions whose rationales are shown at each iteration, one of each source."}
    )

    def check_report(self) -> None:
        """Raises a [`ConfigError`] for what cannot work."""
        at_least_one("num_rationales_to_log", self.num_rationales_to_log)
        if self.log_rationales and not self.uses_rationales:
            raise ConfigError(
                "log_rationales=True has nothing to show: alpha_2 is 0, so there is no rationale task. Set "
                "log_rationales=False, or alpha_2 above 0."
            )
