"""Whether an architecture can share prompts exactly: what its configuration says, and a trial on a few tokens."""

import inspect
import re
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from .cached_prompt import score_on_cache
from .head import StudentHead
from .scoring import flat_passes, score_passes
from .shared_prompt import MaskForm, shared_passes


# Compared with flat rows, losses and gradients, on models of these types.
_TRIED = {
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text", "phi3", "olmo2", "smollm3"),
    *("granite", "gpt2", "gpt_neox", "gptj", "opt", "falcon", "deepseek_v3", "cohere2", "gpt_oss"),
}
# Of those without `layer_types`, the ones that make a single windowed mask.
_ONE_WINDOW = {"mistral", "mixtral", "phi3"}
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_ATTENTION = ("eager", "sdpa")
# A setting that an unknown architecture's attention, or what it has in place of one, may come from.
_DOUBTFUL = re.compile(
    r"window|local_att|attention_types|chunk|alibi|conv|ssm|mamba|recurr|linear_att|block_types|spars"
)
_HARMLESS = {"max_window_layers", "use_sliding_window", "sliding_window_pattern", "chunk_size_feed_forward"}


def mask_form(model: PreTrainedModel) -> tuple[MaskForm | None, str | None]:
    """
    The masks that a student takes for shared rows, or `None` and the reason why it can take none.

    Args:
        model ([`~transformers.PreTrainedModel`]): the student, without wrappers. For an encoder-decoder there is nothing
            to be masked, and any form serves.
    """
    if model.config.is_encoder_decoder:
        if not (callable(getattr(model, "get_encoder", None)) and callable(getattr(model, "get_decoder", None))):
            return None, "it does not tell its encoder from its decoder"
        return MaskForm(), None
    config = model.config.get_text_config(decoder=True)
    kind, settings = config.model_type, config.to_dict()
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in _ATTENTION:
        return None, f"its attention implementation {implementation!r} takes no mask of that form; sdpa and eager do"
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return None, f"{type(model).__name__} takes no position_ids"
    if settings.get("alibi") or settings.get("use_bidirectional_attention"):
        return None, "its attention depends on more than positions"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if not layer_types <= _LAYER_TYPES:
        return None, f"it has layers of the kind {', '.join(sorted(layer_types - _LAYER_TYPES))}"
    window = getattr(config, "sliding_window", None)
    if kind not in _TRIED:
        doubtful = [name for name, value in settings.items() if value and _DOUBTFUL.search(name)]
        doubtful = [name for name in doubtful if name not in _HARMLESS and not (layer_types and "window" in name)]
        if doubtful:
            return None, f"its configuration has {doubtful[0]}, and {kind} has not been tried"
    if "sliding_attention" in layer_types:
        return MaskForm(window, by_layer=True, width=config.hidden_size), None
    return MaskForm(None if layer_types or kind not in _ONE_WINDOW else window, width=config.hidden_size), None


@torch.no_grad()
def shares_exactly(
    model: PreTrainedModel, head: StudentHead, form: MaskForm, dtype: torch.dtype, cached: bool = False
) -> bool:
    """
    Whether rows of a few tokens that share a prompt give the hidden states of flat rows.

    Args:
        model ([`~transformers.PreTrainedModel`]): the student, without wrappers and without dropout.
        head ([`StudentHead`]): its head.
        form ([`MaskForm`]): what [`mask_form`] gave.
        dtype (`torch.dtype`): type of the attention.
        cached (`bool`, *optional*, defaults to `False`): whether to share by a cache in place of a mask.
    """
    device = model.get_input_embeddings().weight.device
    vocabulary = model.get_input_embeddings().weight.shape[0]
    prompts, completions, question = (5, 5, 3), (4, 7, 2), torch.tensor([0, 0, 1], device=device)
    is_separate = model.config.is_encoder_decoder
    width = 5 if is_separate else 12
    input_ids = torch.zeros(3, width, dtype=torch.long)
    mask, labels = torch.zeros_like(input_ids), torch.full((3, 12), -100)
    for row, (p, c) in enumerate(zip(prompts, completions, strict=True)):
        start = torch.arange(p) * 7 + 11 * question[row].cpu()
        ids = torch.cat([start, torch.arange(c) * 5 + 3 * row + 1]) % vocabulary
        shown = ids[:p] if is_separate else ids
        input_ids[row, : len(shown)], mask[row, : len(shown)] = shown, 1
        labels[row, (0 if is_separate else p) :][:c] = ids[p:]
    rows = [tensor.to(device) for tensor in (input_ids, mask, labels)]
    decoder = model if is_separate else None
    flat = score_passes(model, head, flat_passes(*rows, decoder), 3, decoder, predicts=False)
    try:
        if cached:
            shared = score_on_cache(model, head, *rows, question)
        else:
            passes = shared_passes(*rows, question, form, dtype, decoder)
            shared = score_passes(model, head, passes, 3, decoder, predicts=False)
    except Exception:  # whatever a mask or cache of an unusual form meets in code that is not ours
        return False
    if shared is None:
        return False
    states = [scored.states[scored.row.argsort(stable=True)].float() for scored in (flat, shared)]
    exact = dtype == states[0].dtype == torch.float32 and not getattr(model, "is_quantized", False)
    tolerance = (1e-4 if device.type == "cpu" else 1e-2) if exact else 5e-2
    return bool((states[0] - states[1]).abs().max() <= tolerance * states[0].abs().max())


@contextmanager
def evaluating(model: nn.Module):
    """Without dropout, each module as it was afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
