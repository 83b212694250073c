"""The flag that ends a run which makes no progress, for all commands that train."""

from typing import Any

from transformers import EarlyStoppingCallback

from ..errors import ConfigError


def callbacks_of(script: Any, args: Any) -> list[EarlyStoppingCallback]:
    """Early stopping, where `script.early_stopping_patience` asks for it; `args` are the trainer's arguments."""
    patience = script.early_stopping_patience
    if patience is None:
        return []
    if patience < 1:
        raise ConfigError(f"--early_stopping_patience must be at least 1, got {patience}.")
    if args.eval_strategy == "no" or args.save_strategy == "no" or args.metric_for_best_model is None:
        raise ConfigError(
            "--early_stopping_patience needs evaluations, saves and a metric to tell the best model by: give --eval_strategy, "
            "the same --save_strategy and --metric_for_best_model, and --load_best_model_at_end to keep the best one."
        )
    args.restore_callback_states_from_checkpoint = True  # else a resumed run would begin to count anew
    return [EarlyStoppingCallback(patience)]
