"""A tiny student made on the spot: a word-level tokenizer and a decoder-only model with random weights."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .task import words


PAD, EOS, UNK = "<pad>", "</s>", "<unk>"


def build_tokenizer(prefixes: Sequence[str] = ("<Predict>", "<Explain>")) -> PreTrainedTokenizerFast:
    """
    A tokenizer with one token a word of the task.

    Args:
        prefixes (`Sequence[str]`, *optional*, defaults to `("<Predict>", "<Explain>")`):
            The prefixes of the two tasks, ordinary words of the vocabulary.
    """
    vocabulary = {word: index for index, word in enumerate([PAD, EOS, UNK, *prefixes, *words()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def build_student(tokenizer: PreTrainedTokenizerFast, seed: int, hidden_size: int = 64) -> LlamaForCausalLM:
    """
    A Llama of two layers with random weights.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerFast`]):
            Its tokenizer.
        seed (`int`):
            The same seed gives the same weights.
        hidden_size (`int`, *optional*, defaults to 64):
            Width of the model.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
