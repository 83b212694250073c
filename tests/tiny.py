"""Tokenizers and models small enough to be built anew in a test, and rows to train them on. `from tiny import ...`."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)


PAD, EOS, BOS, UNK = range(4)
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
WORDS = [
    *SPECIAL,
    *("<Predict>", "<Explain>", "<|user|>", "<|assistant|>", "<|system|>"),
    *("a", "b", "c", "d", "e", "f", "g", "is", "so", "+", "-", "=", ".", "None"),
    *(str(digit) for digit in range(10)),
]
ID = {word: number for number, word in enumerate(WORDS)}
VOCAB_SIZE = len(WORDS)

# Writes BOS itself and closes each turn with EOS and a line break, as many published templates do.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def ids(text: str) -> list[int]:
    """Ids of a text of known words, written without a tokenizer: `ids("a + 1 </s>")`."""
    return [ID[word] for word in text.split()]


def word_tokenizer(
    pad: str | None = "<pad>",
    eos: str | None = "</s>",
    bos: str | None = None,
    adds_bos: bool = False,
    adds_eos: bool = False,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """One token a word of `WORDS`; a post-processor adds BOS or EOS where asked (`adds_bos` sets `bos_token` too)."""
    backend = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos or adds_eos:
        single = ["<s>"] * adds_bos + ["$A"] + ["</s>"] * adds_eos
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(single), special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        eos_token=eos,
        bos_token="<s>" if adds_bos else bos,
        unk_token="<unk>",
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def pad_is_eos_tokenizer() -> PreTrainedTokenizerFast:
    """Pads with EOS, as SmolLM2 does."""
    return word_tokenizer(pad="</s>")


def bos_tokenizer() -> PreTrainedTokenizerFast:
    """Puts BOS before every text."""
    return word_tokenizer(adds_bos=True)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Puts BOS before every text, and so does its chat template."""
    return word_tokenizer(adds_bos=True, chat_template=CHAT_TEMPLATE)


def t5_tokenizer() -> PreTrainedTokenizerFast:
    """Puts EOS after every text, as T5 does."""
    return word_tokenizer(adds_eos=True)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte of UTF-8, so that every text can be read back from its ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def tiny_llama(seed: int = 0, vocab_size: int = VOCAB_SIZE, **overrides) -> LlamaForCausalLM:
    """Decoder-only, rotary positions, head not tied, no dropout."""
    config = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**config, **overrides}))


def tiny_gpt2(seed: int = 0, vocab_size: int = VOCAB_SIZE, **overrides) -> GPT2LMHeadModel:
    """Decoder-only, learned positions, head tied to the embeddings, no dropout."""
    config = {
        "vocab_size": vocab_size,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 256,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(**{**config, **overrides}))


def tiny_t5(seed: int = 0, vocab_size: int = VOCAB_SIZE, **overrides) -> T5ForConditionalGeneration:
    """Encoder-decoder, relative positions, scaled tied head, no dropout."""
    config = {
        "vocab_size": vocab_size,
        "d_model": 16,
        "d_ff": 32,
        "d_kv": 8,
        "num_layers": 2,
        "num_heads": 2,
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "dropout_rate": 0.0,
    }
    torch.manual_seed(seed)
    return T5ForConditionalGeneration(T5Config(**{**config, **overrides}))


def tiny_bart(seed: int = 0, vocab_size: int = VOCAB_SIZE, **overrides) -> BartForConditionalGeneration:
    """Encoder-decoder, learned positions, a bias on the logits, no dropout."""
    config = {
        "vocab_size": vocab_size,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 256,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    }
    torch.manual_seed(seed)
    return BartForConditionalGeneration(BartConfig(**{**config, **overrides}))


def ragged_rows(count: int = 8) -> list[dict]:
    """Questions with 0 to 2 positives and 0 to 3 negatives of different lengths, and a column that nobody asked for."""
    return [
        {
            "prompt": f"a + {i % 10}",
            "label": str(i % 10),
            "positive_rationales": [f"a is {i % 10} so {j}" + " ." * i for j in range(i % 3)],
            "negative_rationales": [f"b = {j} c" + " d" * j for j in range((i + 1) % 4)],
            "id": f"q{i}",
            "meta": i,
        }
        for i in range(count)
    ]
