"""The lines that load and ask a trained student: with this package, and without it by transformers and PEFT alone."""

import json
import re

from transformers import PreTrainedTokenizerBase

from .data.prompts import StudentFormat


# The lines that say where the student is.
_LOADED = re.compile(
    r'^(student = RationaleStudent\.from_pretrained\(|name = )"(?:[^"\\\n]|\\.)*"(\)?)$', re.MULTILINE
)
QUESTION = "There are 7 pens in a box and 3 more are put in. How many pens are there?"


def qcrd_snippet(name: str, student_format: StudentFormat | None = None, question: str = QUESTION) -> str:
    """
    Python code that asks a student by [`RationaleStudent`].

    Args:
        name (`str`): repository or folder of the student.
        student_format ([`StudentFormat`], *optional*): tells which tasks it was taught.
        question (`str`, *optional*): what it is asked.
    """
    form = student_format or StudentFormat()
    lines = [
        "from qcrd_trl import RationaleStudent",
        "",
        f"student = RationaleStudent.from_pretrained({_quoted(name)})",
        f"question = {_quoted(question)}",
    ]
    if form.predicts:
        lines.append("print(student.predict([question])[0].text)")
    if form.explains:
        lines += [
            "explanation = student.explain([question])[0]",
            "print(explanation.rationale, explanation.quality)",
        ]
    return "\n".join(lines) + "\n"


def plain_snippet(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    student_format: StudentFormat,
    is_adapter: bool = False,
    is_conversational: bool = False,
    question: str = QUESTION,
    max_new_tokens: int = 256,
) -> str:
    """
    Python code that asks a student where this package is not installed, and gets the same greedy texts.

    It defines `ask(prefix, question)` and prints an answer under each prefix that the student was taught.

    Args:
        name (`str`):
            Repository or folder of the student.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer, as it was trained with: whether it closes every text with EOS is tried out.
        student_format ([`StudentFormat`]):
            Its format.
        is_adapter (`bool`, *optional*, defaults to `False`):
            Whether it is an adapter on a base, rather than a full model.
        is_conversational (`bool`, *optional*, defaults to `False`):
            Whether it was trained on conversations, by the tokenizer's chat template.
        question (`str`, *optional*):
            What it is asked.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of an answer.
    """
    form, reads_apart = student_format, student_format.is_encoder_decoder
    auto = "AutoModelForSeq2SeqLM" if reads_apart else "AutoModelForCausalLM"
    start = "    decoder_start_token_id=model.generation_config.decoder_start_token_id,"
    lines = ["from peft import PeftConfig, PeftModel"] if is_adapter else []
    base = "PeftConfig.from_pretrained(name).base_model_name_or_path" if is_adapter else "name"
    lines += [
        f"from transformers import {auto}, AutoTokenizer, GenerationConfig",
        "",
        f"name = {_quoted(name)}",
        "tokenizer = AutoTokenizer.from_pretrained(name)",
        f'model = {auto}.from_pretrained({base}, dtype="float32")',
        "# Plain greedy decoding: what the model's own configuration may say of sampling or penalties is left out.",
        "model.generation_config = GenerationConfig(",
        f"    max_new_tokens={max_new_tokens},",
        "    eos_token_id=tokenizer.eos_token_id,",
        "    pad_token_id=tokenizer.pad_token_id,",
        *([start] if reads_apart else []),
        ")",
        *(["model = PeftModel.from_pretrained(model, name)"] if is_adapter else []),
        "model.eval()",
        "",
        "",
        "def ask(prefix, question):",
        *(f"    {line}" for line in _ask(tokenizer, form, is_conversational)),
        "",
        "",
        f"question = {_quoted(question)}",
    ]
    taught = [form.predict_prefix] * form.predicts + [form.explain_prefix] * form.explains
    lines += [f"print(ask({_quoted(prefix)}, question))" for prefix in taught]
    return "\n".join(lines) + "\n"


def named_anew(card: str, name: str) -> str:
    """
    A model card whose lines load the student from another place: written by a run that was not told of a repository, they name
    the run's folder.

    Args:
        card (`str`): the card; one without our lines is given as it is.
        name (`str`): repository or folder of the student.
    """
    if "from qcrd_trl import RationaleStudent" not in card:
        return card
    return _LOADED.sub(lambda match: f"{match[1]}{_quoted(name)}{match[2]}", card)


def _ask(tokenizer: PreTrainedTokenizerBase, form: StudentFormat, is_conversational: bool) -> list[str]:
    asked = 'f"{prefix} {question}"'
    if not (form.predict_prefix and form.explain_prefix):
        asked = f"({asked} if prefix else question)"
    if is_conversational:
        lines = [
            f'messages = [{{"role": "user", "content": {asked}}}]',
            "text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)",
        ]
    elif form.is_encoder_decoder:
        lines = [f"text = {asked}"]
    else:
        lines = [f"text = {asked} + {_quoted(form.response_separator)}"]
    special = "add_special_tokens=False, " if is_conversational else ""
    lines.append(f'inputs = tokenizer(text, {special}return_tensors="pt", return_token_type_ids=False)')
    if not form.is_encoder_decoder and not is_conversational and _closes_texts(tokenizer):
        lines.append("inputs = {key: ids[:, :-1] for key, ids in inputs.items()}  # less the EOS at the end")
    lines += [
        "inputs = {key: ids.to(model.device) for key, ids in inputs.items()}",
        "output = model.generate(**inputs)[0]",
    ]
    if not form.is_encoder_decoder:
        lines.append('output = output[inputs["input_ids"].shape[1] :]')
    return [*lines, "return tokenizer.decode(output, skip_special_tokens=True).strip()"]


def _closes_texts(tokenizer: PreTrainedTokenizerBase) -> bool:
    ids = tokenizer("a")["input_ids"]
    return len(ids) > 1 and ids[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
