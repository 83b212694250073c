"""The student's language-modelling head: what it makes of hidden states, and whether that can be computed in tiles."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from ..losses import LogitForm, head_logits, states_nll


@dataclass(frozen=True)
class StudentHead:
    """
    How the logits of supervised tokens are made.

    Attributes:
        module (`nn.Module`): the head, whose input the discriminator reads.
        form ([`LogitForm`] or `None`): what the model does to the head's output; with it, losses are computed tile by tile.
            `None`: by the model itself, which then holds the logits of all supervised tokens.
        owner (`nn.Module` or `None`): the model whose buffer `final_logits_bias` is added to the logits, if it has one.
    """

    module: nn.Module
    form: LogitForm | None = None
    owner: nn.Module | None = None

    def nll(
        self, states: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype | None, predicts: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Token losses by tiles, and the likeliest tokens; `dtype` is that of the matrix products."""
        form = LogitForm(self.form.scale, self.form.softcap, dtype)
        return states_nll(states, self.module.weight, targets, self.bias(), form, predicts)

    def bias(self) -> torch.Tensor | None:
        """What is added to the logits, shape `(vocabulary,)`."""
        own, added = self.module.bias, getattr(self.owner, "final_logits_bias", None)
        if added is None:
            return own
        return added[0] if own is None else own + added[0]


def tiled_head(model: PreTrainedModel, module: nn.Module) -> tuple[StudentHead, str | None]:
    """
    A head that is computed in tiles where that gives the model's own logits, and otherwise the reason why not.

    Args:
        model ([`~transformers.PreTrainedModel`]): the student, without wrappers. It is run once on a token, without a
            gradient, to compare.
        module (`nn.Module`): its head.
    """
    own = StudentHead(module)
    weight = getattr(module, "weight", None)
    if type(module) is not nn.Linear:
        return own, f"its head is a {type(module).__name__}, not a plain linear layer"
    if not weight.is_floating_point() or weight.ndim != 2:
        return own, "its head is quantized"
    if hasattr(weight, "device_mesh") or weight.numel() == 0 or hasattr(weight, "ds_id"):
        return own, "its head is split up among processes"
    if hasattr(module, "_hf_hook") or module._forward_hooks or module._forward_pre_hooks:
        return own, "its head has hooks"
    head = StudentHead(module, logit_form(model), model)
    return (head, None) if _agrees(model, head) else (own, "its logits are made in a way that is not known here")


def logit_form(model: PreTrainedModel) -> LogitForm:
    """What a model's configuration says of its logits: a factor (Cohere, Granite) and a cap (Gemma 2)."""
    config = model.config.get_text_config(decoder=True)
    scale, softcap = 1.0, getattr(config, "final_logit_softcapping", None)
    if getattr(config, "logits_scaling", None):
        scale = 1.0 / config.logits_scaling
    elif getattr(model, "logit_scale", getattr(config, "logit_scale", None)) is not None:
        scale = float(getattr(model, "logit_scale", getattr(config, "logit_scale", None)))
    return LogitForm(scale, softcap)


# Logits are compared at this size: an unknown cap or bend shows at no smaller one.
_LARGE = 100.0


@torch.no_grad()
def _agrees(model: PreTrainedModel, head: StudentHead) -> bool:
    """Whether two states, one as it comes and one made large, have the model's own logits."""
    seen = {}

    def two_states(module, args):
        state = args[0][:1, :1]
        size = torch.nn.functional.linear(state, module.weight, module.bias).abs().max()
        seen["states"] = torch.cat([state, state * (_LARGE / size.clamp(min=1e-6)).to(state.dtype)], 1)
        device = state.device.type
        seen["dtype"] = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else state.dtype
        return (seen["states"], *args[1:])

    token = torch.ones(1, 1, dtype=torch.long, device=head.module.weight.device)
    inputs = {"input_ids": token, "attention_mask": token}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = token
    handle = head.module.register_forward_pre_hook(two_states)
    try:
        own = model(**inputs, use_cache=False).logits[0].float()
    finally:
        handle.remove()
    if "states" not in seen or own.shape[0] != 2:
        return False
    dtype = seen["dtype"]
    form = LogitForm(head.form.scale, head.form.softcap, dtype)
    ours = head_logits(seen["states"][0], head.module.weight, head.bias(), form)
    own, ours = own.log_softmax(-1), ours.log_softmax(-1)
    tolerance = 1e-4 if dtype == torch.float32 and token.device.type == "cpu" else 3e-2
    return bool(((own - ours).abs().amax(1) <= tolerance * own.abs().amax(1).clamp(min=1.0)).all())
