"""Tiny students of many architectures, for what must hold in all of them. `from students import ...`."""

import torch
from tiny import BOS, EOS, PAD, VOCAB_SIZE, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)


SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}
WINDOW = 3  # far shorter than a row: a window that is lost, or counted in the shared row, shows


def gemma2():
    """Windowed and full layers in turn, both logits and attention soft-capped."""
    config = {"head_dim": 8, "sliding_window": WINDOW, "attn_implementation": "eager", "final_logit_softcapping": 1.0}
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, **config))


def gemma3():
    """Windowed and full layers in turn, each with rotations of its own."""
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=WINDOW, layer_types=kinds))


def qwen2_windowed():
    config = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, **config))


def gpt_neo():
    """Each second layer sees a window that a mask from outside does not carry."""
    config = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    return GPTNeoForCausalLM(GPTNeoConfig(vocab_size=VOCAB_SIZE, window_size=WINDOW, **config))


def mpt():
    """ALiBi: attention falls with the distance in the row, whatever the positions say."""
    return MptForCausalLM(MptConfig(vocab_size=VOCAB_SIZE, d_model=16, n_heads=2, n_layers=2, max_seq_len=256))


STUDENTS = {
    "llama": tiny_llama,
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen2_windowed": qwen2_windowed,
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=WINDOW)),
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gpt2": tiny_gpt2,
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=0.5)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=5.0)),
    "t5": tiny_t5,
    "bart": tiny_bart,
}
UNSHARED = {"gpt_neo": gpt_neo, "mpt": mpt}


def student(name: str):
    """A student in training mode whose weights are large enough that attention has an effect."""
    torch.manual_seed(0)
    model = {**STUDENTS, **UNSHARED}[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.train()
