"""Distil reasoning from a large language model into a small one: QCRD as a Hugging Face Trainer."""

from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__


# Public names and where they live. They are imported on first use, so that `import qcrd_trl` and `qcrd --help` do not
# wait for torch.
_NAMES = {
    "AccuracyCallback": "qcrd_trl.evaluation_callback",
    "AnswerAccuracy": "qcrd_trl.answer_metrics",
    "AnswerAgreement": "qcrd_trl.answer_metrics",
    "C2KDConfig": "qcrd_trl.trainer.c2kd_config",
    "C2KDTrainer": "qcrd_trl.trainer.c2kd_trainer",
    "DataCollatorForQCRD": "qcrd_trl.data.collator",
    "QCRDConfig": "qcrd_trl.trainer.qcrd_config",
    "QCRDError": "qcrd_trl.errors",
    "QCRDTrainer": "qcrd_trl.trainer.qcrd_trainer",
    "RationaleDiscriminator": "qcrd_trl.discriminator",
    "RationaleScorer": "qcrd_trl.rationale_scorer",
    "RationaleStudent": "qcrd_trl.student",
    "SelfAdversarialCallback": "qcrd_trl.callbacks",
    "StudentFormat": "qcrd_trl.data.prompts",
    "compare_results": "qcrd_trl.evaluation",
    "evaluate_student": "qcrd_trl.evaluation",
    "extract_answer": "qcrd_trl.answers",
    "select_rationales": "qcrd_trl.sampling.self_consistency",
}

__all__ = [
    "AccuracyCallback",
    "AnswerAccuracy",
    "AnswerAgreement",
    "C2KDConfig",
    "C2KDTrainer",
    "DataCollatorForQCRD",
    "QCRDConfig",
    "QCRDError",
    "QCRDTrainer",
    "RationaleDiscriminator",
    "RationaleScorer",
    "RationaleStudent",
    "SelfAdversarialCallback",
    "StudentFormat",
    "__version__",
    "compare_results",
    "evaluate_student",
    "extract_answer",
    "select_rationales",
]

if TYPE_CHECKING:
    from .answer_metrics import AnswerAccuracy, AnswerAgreement
    from .answers import extract_answer
    from .callbacks import SelfAdversarialCallback
    from .data.collator import DataCollatorForQCRD
    from .data.prompts import StudentFormat
    from .discriminator import RationaleDiscriminator
    from .errors import QCRDError
    from .evaluation import compare_results, evaluate_student
    from .evaluation_callback import AccuracyCallback
    from .rationale_scorer import RationaleScorer
    from .sampling.self_consistency import select_rationales
    from .student import RationaleStudent
    from .trainer.c2kd_config import C2KDConfig
    from .trainer.c2kd_trainer import C2KDTrainer
    from .trainer.qcrd_config import QCRDConfig
    from .trainer.qcrd_trainer import QCRDTrainer


def __getattr__(name: str):
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
