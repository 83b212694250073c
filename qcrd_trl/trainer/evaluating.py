"""The part of [`QCRDTrainer`] that evaluates: the parts of the loss on held-out rows, and the discriminator's AUC."""

import time
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn
from transformers.trainer_utils import EvalLoopOutput

from ..metrics import auc


class EvaluatesRationales:
    """
    Evaluation of a [`QCRDTrainer`], which mixes it in: its meters, scores and clock are used here.

    Predictions are token ids, and each evaluation leaves the random state, the training speed and the training meters as they
    were.
    """

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        if prediction_loss_only:
            return loss.detach(), None, None
        # Token ids, not logits: the latter would not fit for any vocabulary of today.
        return loss.detach(), outputs["predictions"], inputs["labels"]

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        started = time.perf_counter()
        self._meters["eval"].reset()
        self._eval_scores = {True: [], False: []}
        self._evaluating = True
        try:
            # A data loader draws its seed from torch's generator: evaluating must not change the run it interrupts.
            with torch.random.fork_rng(devices=[]):
                output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self._evaluating = False
        parts = self._meters["eval"].compute(self._sum_over_processes)
        scores = {side: gather_object(values) for side, values in self._eval_scores.items()}
        area = auc(scores[True], scores[False])
        if area is not None:
            parts["discriminator_auc"] = area
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in parts.items()})
        self._clock += time.perf_counter() - started  # not a part of the training speed
        return output
