"""
Sequential recommendation: interactions, sequences, models, teachers and full ranking. Knows no trainer.

The names of the models are imported on first use, so that data can be prepared without torch. Whoever uses
`AutoModel.from_pretrained` on such a model imports its class first: `from qcrd_trl.recommendation import ItemHeadModel`.
"""

from importlib import import_module
from typing import Any


_NAMES = {
    "ItemHeadConfig": "item_model",
    "ItemHeadModel": "item_model",
    "SASRecConfig": "sasrec",
    "SASRecModel": "sasrec",
    "build_recommender": "loading",
    "load_recommender": "loading",
}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_NAMES[name]}", __name__), name)
    globals()[name] = value
    return value
