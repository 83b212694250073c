"""The trainer's arguments as the commands take them. Not in their modules: what is pickled must be found when those are `__main__`."""

from dataclasses import dataclass, field

from ..errors import ConfigError
from ..trainer.c2kd_config import METHODS, C2KDConfig
from ..trainer.checks import one_of


SASREC = "sasrec"


@dataclass
class StudentConfig(C2KDConfig):
    """[`C2KDConfig`], with one more method: `"sasrec"`, a SASRec that learns the task alone."""

    method: str = field(
        default="c2kd", metadata={"help": "c2kd, none, feature_kd, logit_kd, blockwise, or sasrec: a SASRec, alone."}
    )

    def __post_init__(self):
        one_of("method", self.method, (*METHODS, SASREC))
        self.is_sasrec = self.method == SASREC
        if self.is_sasrec:
            self.method = "none"
            if self.task_mode != "item_head":
                raise ConfigError(f"--method sasrec is for --task_mode item_head, got {self.task_mode!r}.")
        super().__post_init__()


@dataclass
class TeacherConfig(C2KDConfig):
    """[`C2KDConfig`] with `method="none"`: a teacher has no teacher."""

    method: str = field(default="none", metadata={"help": "none: a teacher learns the task alone."})

    def __post_init__(self):
        super().__post_init__()
        if self.uses_teacher:
            raise ConfigError(
                "A teacher learns the task alone: leave --method, --feature_distillation and --logit_distillation out, or train a "
                "student of another teacher by `qcrd c2kd train`."
            )
