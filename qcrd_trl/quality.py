"""The quality of rationales as a trained student's own discriminator sees it: the scores that training computes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from .data.collator import DataCollatorForQCRD
from .discriminator import RationaleDiscriminator
from .losses import LogitForm
from .models import base_model, keep_cpu_gradients
from .sampling.generate import inference_mode, preserved_random_state
from .trainer.head import StudentHead
from .trainer.scoring import score_rows


@dataclass(frozen=True)
class _StatesOnly(StudentHead):
    """A head whose input is read, and whose losses nobody asks for: logits of one state are made in all."""

    form: LogitForm | None = field(default_factory=LogitForm)

    def nll(self, states, targets, dtype, predicts):
        return states.new_zeros(len(states), dtype=torch.float32), None


@torch.no_grad()
def rationale_qualities(
    model: nn.Module,
    discriminator: RationaleDiscriminator,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    pad_token_id: int,
    batch_size: int = 32,
) -> list[float]:
    """
    s = D(x, r) of eq. 1 for tokenized questions and rationales, by one forward pass over them.

    The states that are read are those that training reads: the input of the student's head where it predicts a token of the
    rationale, the closing EOS included.

    Args:
        model (`nn.Module`):
            The student. Its mode is restored, and the random state too.
        discriminator ([`RationaleDiscriminator`]):
            What was trained beside it.
        rows (`Sequence[tuple]`):
            Token ids of a question under the rationale prefix and of a rationale, at least one each.
        pad_token_id (`int`):
            Fills up shorter rows.
        batch_size (`int`, *optional*, defaults to `32`):
            Rationales at a time; they are sorted by length.

    Returns:
        `list[float]`: scores in (0, 1), in the order of the rows.
    """
    base = base_model(model)
    decoder = base if base.config.is_encoder_decoder else None
    head = _StatesOnly(base.get_output_embeddings())
    collator = DataCollatorForQCRD(pad_token_id, decoder is not None)
    keep_cpu_gradients(model)
    order = sorted(range(len(rows)), key=lambda i: -sum(map(len, rows[i])))
    scores = [0.0] * len(rows)
    with preserved_random_state(), inference_mode(model):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = {name: tensor.to(base.device) for name, tensor in collator.rows([rows[i] for i in chosen]).items()}
            scored = score_rows(model, head, **batch, decoder=decoder, predicts=False)
            pooled = discriminator.pool(scored.states, scored.row, len(chosen))
            for i, score in zip(chosen, discriminator.score_pooled(pooled).tolist(), strict=True):
                scores[i] = score
    return scores
