"""What a token costs a student: multiplications of its forward pass, known from the sizes of its modules."""

import re
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel


# Projections of a decoder that read what the encoder made of the prompt.
_READS_ENCODED = re.compile(
    r"(encdecattention|encoder_attn|cross_?attn|cross_?attention)\.(k|v|k_proj|v_proj|key|value)$"
)


@dataclass(frozen=True)
class TokenWork:
    """
    Multiplications of a forward pass.

    Attributes:
        prompt (`float`): of a prompt's token, which has no head to pay for.
        completion (`float`): of a rationale's token, the head included.
        encoded (`float`): of a prompt's token for each rationale of its own: keys and values of cross-attention, which
            cannot be shared.
        pair (`float`): of two tokens that attention compares, in all layers.
    """

    prompt: float
    completion: float
    encoded: float
    pair: float


def token_work(model: PreTrainedModel) -> TokenWork:
    """
    The work of a student, by the weights that a token meets. Adapters are left out: they are small. The experts of a mixture
    count as if all were asked.

    Args:
        model ([`~transformers.PreTrainedModel`]): the student, without wrappers.
    """
    head, encoder = model.get_output_embeddings(), None
    is_separate = bool(model.config.is_encoder_decoder)
    if is_separate:
        encoder = {id(module) for module in model.get_encoder().modules()}
    prompt = encoded = 0.0
    completion = float(_weights(head))
    for name, module in model.named_modules():
        if module is head or "lora_" in name:
            continue
        size = _weights(module)
        if not is_separate:
            prompt, completion = prompt + size, completion + size
        elif id(module) in encoder:
            prompt += size
        elif _READS_ENCODED.search(name.lower().removesuffix(".base_layer")):
            encoded += size
        else:
            completion += size
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    width = heads * size if size else getattr(config, "hidden_size", 0)
    return TokenWork(prompt, completion, encoded, 2.0 * width * (getattr(config, "num_hidden_layers", None) or 0))


def _weights(module: nn.Module) -> int:
    """Elements of the matrices that a module itself multiplies by, also where they are packed into fewer bytes or split."""
    own = [tensor for tensor in module.parameters(recurse=False) if tensor.ndim >= 2 or hasattr(module, "in_features")]
    if not own or isinstance(module, nn.Embedding):
        return 0
    if isinstance(getattr(module, "in_features", None), int) and isinstance(
        getattr(module, "out_features", None), int
    ):
        return module.in_features * module.out_features
    return sum(tensor.numel() for tensor in own)
