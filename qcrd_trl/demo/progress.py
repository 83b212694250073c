"""One progress bar a training run."""

import sys

from tqdm import tqdm
from transformers import TrainerCallback


class TrainingBar(TrainerCallback):
    """
    Shows the steps of a training run and the newest loss on one line, which stays.

    Args:
        description (`str`):
            What stands before the bar.
    """

    def __init__(self, description: str):
        self.description = description
        self.bar: tqdm | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = tqdm(total=state.max_steps, desc=self.description, unit=" steps", file=sys.stderr)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.bar.set_postfix(loss=f"{logs['loss']:.3f}", refresh=False)

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()
