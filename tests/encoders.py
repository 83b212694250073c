"""Encoders small enough to be built anew in a test, with tokenizers that write pairs. `from encoders import ...`."""

from pathlib import Path

import torch
from tiny import SPECIAL, WORDS, tiny_t5
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5EncoderModel


MORE = ["[CLS]", "[SEP]", "[MASK]", "<extra_id_0>"]
ENCODER_WORDS = [*SPECIAL, *MORE, *WORDS[len(SPECIAL) :]]
ENCODER_ID = {word: number for number, word in enumerate(ENCODER_WORDS)}
CLS, SEP = ENCODER_ID["[CLS]"], ENCODER_ID["[SEP]"]


def encoder_ids(text: str) -> list[int]:
    """Ids of a text of known words, as `tiny.ids` gives them for the students."""
    return [ENCODER_ID[word] for word in text.split()]


def pair_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """`bert`: [CLS] question [SEP] rationale [SEP], with token types. `t5`: question </s> rationale </s>."""
    backend = Tokenizer(models.WordLevel(ENCODER_ID, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "bert":
        single, pair = "[CLS] $A [SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
        special = [("[CLS]", CLS), ("[SEP]", SEP)]
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
    else:
        single, pair, special = "$A </s>", "$A </s> $B </s>", [("</s>", ENCODER_ID["</s>"])]
        names, inputs = {"eos_token": "</s>"}, ["input_ids", "attention_mask"]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=inputs,
        model_max_length=64,
        **names,
    )


def tiny_bert(seed: int = 0, **overrides) -> BertModel:
    """With dropout, as every published encoder has it."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": len(ENCODER_WORDS),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "initializer_range": 0.1,
    }
    return BertModel(BertConfig(**{**config, **overrides}))


def save_encoder(folder: Path, kind: str = "bert", **overrides) -> Path:
    """An encoder checkpoint as a user has it: of `bert` the whole model, of `t5` the encoder-decoder."""
    tokenizer = pair_tokenizer(kind)
    model = tiny_bert(**overrides) if kind == "bert" else tiny_t5(vocab_size=len(ENCODER_WORDS), **overrides)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


KINDS = {"bert": BertModel, "t5": T5EncoderModel}
