"""A trained student, ready to be asked: labels, rationales, the answers they reach and how good they are."""

import logging
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from peft import PeftConfig
from torch import nn
from transformers import PreTrainedTokenizerBase

from .answers import extract_answer
from .answers.values import TaskKind, check_task_kind
from .data.prompts import Prompt, StudentFormat
from .discriminator import RationaleDiscriminator
from .errors import ConfigError, ModelError
from .models import base_model, device_of, is_encoder_decoder, load_model, load_tokenizer, prepare_tokenizer
from .quality import rationale_qualities
from .records import Explanation, Prediction, StudentRationale
from .sampling.generate import Completion, generate_completions
from .student_answers import explanation_of, shown_answer
from .student_files import DISCRIMINATOR_FOLDER, check_student_folder, load_scorer, student_folder
from .student_questions import check_rationales, question_ids, rationale_ids, read_options, sample_seed


logger = logging.getLogger(__name__)

DEFAULT_TEMPERATURE = 0.7  # the paper's for the teacher, which samples several rationales of a question too


class RationaleStudent:
    """
    A trained student that predicts labels and writes rationales, asked in the form that it was taught in.

    Whatever it is asked, the model's mode, the random state and the tokenizer stay as they were.

    Args:
        model (`nn.Module`):
            The student: a [`~transformers.PreTrainedModel`] or a [`~peft.PeftModel`].
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        student_format ([`StudentFormat`], *optional*):
            The prefixes that it was taught; the default ones if left out.
        discriminator ([`RationaleDiscriminator`] or [`~qcrd_trl.rationale_scorer.RationaleScorer`], *optional*):
            What scores its rationales.
        task_kind (`str` or `Callable`, *optional*):
            How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours. Without it
            texts are given as they are, and no answer is read. It is not saved with a student, because it may be a function.

    Raises:
        [`ModelError`]: if the parts do not belong together.

    Examples:

    ```python
    >>> from qcrd_trl import RationaleStudent

    >>> student = RationaleStudent.from_pretrained("smollm2-svamp-qcrd", task_kind="number")
    >>> student.predict(["There are 7 pens and 3 more come. How many are there?"])[0].label
    '10'
    >>> student.explain(["There are 7 pens and 3 more come. How many are there?"])[0].rationale
    '7 + 3 = 10. The answer is 10.'
    ```
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        student_format: StudentFormat | None = None,
        discriminator: Any = None,
        task_kind: TaskKind | None = None,
    ):
        form = student_format or StudentFormat(is_encoder_decoder=is_encoder_decoder(model))
        if form.is_encoder_decoder != is_encoder_decoder(model):
            kinds = {True: "an encoder-decoder", False: "decoder-only"}
            raise ModelError(
                f"The format says that the student is {kinds[form.is_encoder_decoder]}, but {type(base_model(model)).__name__} "
                f"is {kinds[is_encoder_decoder(model)]}: they are not of one student."
            )
        if isinstance(discriminator, RationaleDiscriminator):
            width = _head_width(model)
            if discriminator.input_size != width:
                raise ModelError(
                    f"The discriminator reads hidden states of width {discriminator.input_size}, the student's have {width}: "
                    "they were not trained together."
                )
        if isinstance(discriminator, nn.Module):
            discriminator.to(base_model(model).device)
        if task_kind is not None:
            check_task_kind(task_kind)
        self.model = model
        self.tokenizer = prepare_tokenizer(tokenizer)
        self.student_format = form
        self.discriminator = discriminator
        self.task_kind = task_kind

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo: str | os.PathLike,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = torch.float32,
        quantization_config: Any = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        task_kind: TaskKind | None = None,
        with_discriminator: bool = True,
    ) -> "RationaleStudent":
        """
        Loads a student with its tokenizer, its format and its discriminator.

        Args:
            path_or_repo (`str` or `os.PathLike`):
                Folder of a full model or of an adapter, whose base is then loaded first; or a repository of the Hub.
            device (`str` or `torch.device`, *optional*):
                Device; the GPU if there is one.
            dtype (`str` or `torch.dtype`, *optional*, defaults to `torch.float32`):
                Precision of the weights; `"auto"` for that of the files.
            quantization_config (*optional*):
                Quantization of the model loaded here, for instance a [`~transformers.BitsAndBytesConfig`].
            revision (`str`, *optional*):
                Branch, tag or commit of the student's repository.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether the model may bring code of its own.
            token (`str` or `bool`, *optional*):
                Token for the Hub; that of `huggingface_hub` if left out.
            cache_dir (`str` or `os.PathLike`, *optional*):
                Where downloads of the student's repository are kept.
            task_kind (`str` or `Callable`, *optional*):
                As for the class.
            with_discriminator (`bool`, *optional*, defaults to `True`):
                Whether to load the discriminator, if there is one.

        Raises:
            [`ModelError`]: if there is no student, or one of its parts is damaged.
        """
        folder = student_folder(path_or_repo, revision, token, cache_dir, trust_remote_code)
        is_adapter = check_student_folder(folder, str(path_or_repo))
        form = StudentFormat.from_pretrained(folder)
        if form is None:
            logger.warning(
                "%r does not say in which form its student was taught (it has no qcrd_format.json): the default prefixes are "
                "used.",
                str(path_or_repo),
            )
        trust = {"trust_remote_code": True} if trust_remote_code else {}
        init_kwargs = {"dtype": dtype, **trust}
        base_revision = PeftConfig.from_pretrained(str(folder)).revision if is_adapter else None
        if base_revision is not None:
            init_kwargs["revision"] = base_revision
        device = device_of(device)
        if quantization_config is not None:
            init_kwargs["device_map"] = {"": device}
        model = load_model(folder, quantization_config, **init_kwargs)
        if not getattr(base_model(model), "is_quantized", False):  # quantized weights are where they were loaded to
            model.to(device)
        scorer = None
        if with_discriminator and (folder / DISCRIMINATOR_FOLDER).is_dir():
            scorer = load_scorer(folder, **trust)
        return cls(model.eval(), load_tokenizer(folder, **trust), form, scorer, task_kind)

    # ---- Asking ----

    def predict(
        self,
        questions: Sequence[Prompt],
        choices: Sequence[Any] | None = None,
        batch_size: int = 32,
        max_new_tokens: int = 32,
        progress: bool = False,
    ) -> list[Prediction]:
        """
        Asks for the label of each question, greedily.

        Args:
            questions (`Sequence[str]` or `Sequence[list[dict]]`):
                The questions, without prefix: texts, or conversations for the tokenizer's chat template.
            choices (`Sequence`, *optional*):
                The options of each question, for the task kind `"choice"`: a mapping of letters, or a list of texts.
            batch_size (`int`, *optional*, defaults to `32`):
                Questions at a time.
            max_new_tokens (`int`, *optional*, defaults to `32`):
                Largest number of tokens of a label.
            progress (`bool`, *optional*, defaults to `False`):
                Whether to show a progress bar.

        Returns:
            `list[Prediction]`: one a question, in their order.

        Raises:
            [`DataError`]: naming a question that cannot be asked.
            [`ModelError`]: if the student was not taught labels.
        """
        if not self.student_format.predicts:
            raise ModelError(
                "This student was taught rationales alone (alpha_1=0): it predicts no labels. Ask it to explain, and read "
                "the answer that its rationale reaches."
            )
        options = read_options(choices, questions)
        prompts = self._prompts(questions, self.student_format.predict_prefix)
        completions = self._generate(prompts, max_new_tokens, batch_size, progress)
        return [
            Prediction(completion.text, shown_answer(self._answer(completion.text, given)), completion.is_finished)
            for completion, given in zip(completions, options, strict=True)
        ]

    def explain(
        self,
        questions: Sequence[Prompt],
        num_samples: int = 1,
        temperature: float | None = None,
        seed: int = 0,
        choices: Sequence[Any] | None = None,
        batch_size: int = 32,
        max_new_tokens: int = 256,
        progress: bool = False,
    ) -> list[Explanation]:
        """
        Asks for rationales of each question.

        Their quality is what the discriminator says of the tokens that were generated, as training scores the student's own
        samples. What is sampled depends on the seed, the question and the sample's number alone, not on the other questions
        or the batch size (but for the rounding of sums).

        Args:
            questions (`Sequence[str]` or `Sequence[list[dict]]`):
                As for [`~RationaleStudent.predict`].
            num_samples (`int`, *optional*, defaults to `1`):
                Rationales of a question.
            temperature (`float`, *optional*):
                Sampling temperature, over the whole distribution. Left out: greedy for one sample, 0.7 for several.
            seed (`int`, *optional*, defaults to `0`):
                Seed of the samples.
            choices (`Sequence`, *optional*):
                As for [`~RationaleStudent.predict`].
            batch_size (`int`, *optional*, defaults to `32`):
                Rationales at a time.
            max_new_tokens (`int`, *optional*, defaults to `256`):
                Largest number of tokens of a rationale.
            progress (`bool`, *optional*, defaults to `False`):
                Whether to show a progress bar.

        Returns:
            `list[Explanation]`: one a question, in their order.

        Raises:
            [`DataError`]: naming a question that cannot be asked.
            [`ModelError`]: if the student was not taught rationales.
        """
        self._check_explains()
        if num_samples < 1:
            raise ConfigError(f"`num_samples` must be at least 1, got {num_samples}.")
        if temperature is None and num_samples > 1:
            temperature = DEFAULT_TEMPERATURE
        if temperature is not None and not temperature > 0:
            raise ConfigError(
                f"`temperature` must be greater than 0, got {temperature}. Leave it out for one greedy text."
            )
        options = read_options(choices, questions)
        prompts = self._prompts(questions, self.student_format.explain_prefix)
        repeated = [ids for ids in prompts for _ in range(num_samples)]
        seeds = None
        if temperature is not None:
            seeds = [sample_seed(seed, ids, number) for ids in prompts for number in range(num_samples)]
        completions = self._generate(repeated, max_new_tokens, batch_size, progress, temperature, seeds)
        owners = [question for question in questions for _ in range(num_samples)]
        qualities = self._qualities(owners, repeated, completions, batch_size)
        out = []
        for place, given in enumerate(options):
            mine = range(place * num_samples, (place + 1) * num_samples)
            answers = [self._answer(completions[i].text, given) for i in mine]
            samples = tuple(
                StudentRationale(
                    completions[i].text,
                    shown_answer(answer),
                    qualities[i],
                    completions[i].is_finished,
                    temperature,
                    None if seeds is None else seeds[i],
                )
                for i, answer in zip(mine, answers, strict=True)
            )
            out.append(explanation_of(samples, answers, self.task_kind))
        return out

    def score(
        self, questions: Sequence[Prompt], rationales: Sequence[str], batch_size: int = 32
    ) -> list[float | None]:
        """
        The discriminator's quality of rationales that somebody wrote, as training scores those of its dataset.

        Args:
            questions (`Sequence[str]` or `Sequence[list[dict]]`):
                The question of each rationale, as for [`~RationaleStudent.predict`].
            rationales (`Sequence[str]`):
                The rationales. They are cut where `max_length` of training cuts them.
            batch_size (`int`, *optional*, defaults to `32`):
                Rationales at a time.

        Returns:
            `list[float]`: scores in (0, 1), in the order of the rationales; `None` for one without text.

        Raises:
            [`DataError`]: if the numbers of questions and rationales differ, or naming what cannot be scored.
            [`ModelError`]: if there is no discriminator.
        """
        if self.discriminator is None:
            raise ModelError(
                "There is no discriminator to score rationales with: the student was trained without one, or it was not "
                "loaded (with_discriminator=False)."
            )
        self._check_explains()
        prompts = self._prompts(questions, self.student_format.explain_prefix)
        check_rationales(rationales, len(questions))
        if not isinstance(self.discriminator, RationaleDiscriminator):
            return self._by_scorer(questions, rationales, batch_size)
        ids = rationale_ids(questions, prompts, rationales, self.tokenizer, self.student_format)
        return self._by_student(list(zip(prompts, ids, strict=True)), batch_size)

    # ---- Parts ----

    def _check_explains(self) -> None:
        if not self.student_format.explains:
            raise ModelError(
                "This student was taught labels alone (alpha_2=0, as in the preset label_only): it has learned no rationale. "
                "Ask it to predict, or train one with a preset that has the rationale task."
            )

    def _prompts(self, questions: Sequence[Prompt], prefix: str) -> list[list[int]]:
        known = getattr(base_model(self.model).config.get_text_config(), "max_position_embeddings", None)
        known = known if isinstance(known, int) and known > 0 else None
        return question_ids(questions, prefix, self.tokenizer, self.student_format, known)

    def _generate(
        self, prompts, max_new_tokens, batch_size, progress, temperature=None, seeds=None
    ) -> list[Completion]:
        for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {value}.")
        if not prompts:
            return []
        return generate_completions(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens,
            batch_size,
            progress=progress,
            temperature=temperature,
            seeds=seeds,
        )

    def _qualities(self, questions, prompts, completions: Sequence[Completion], batch_size) -> list[float | None]:
        if self.discriminator is None:
            return [None] * len(completions)
        if not isinstance(self.discriminator, RationaleDiscriminator):
            return self._by_scorer(questions, [completion.text for completion in completions], batch_size)
        rows = [
            (prompt, completion.token_ids if completion.text else ())
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        return self._by_student(rows, batch_size)

    def _by_student(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int) -> list[float | None]:
        chosen = [i for i, (_, ids) in enumerate(rows) if len(ids)]
        scores: list[float | None] = [None] * len(rows)
        found = rationale_qualities(
            self.model, self.discriminator, [rows[i] for i in chosen], self.tokenizer.pad_token_id, batch_size
        )
        for i, score in zip(chosen, found, strict=True):
            scores[i] = score
        return scores

    def _by_scorer(self, questions: Sequence[Prompt], texts: Sequence[str], batch_size: int) -> list[float | None]:
        chosen = [i for i, text in enumerate(texts) if text.strip()]
        scores: list[float | None] = [None] * len(texts)
        if chosen:
            found = self.discriminator.score(
                [questions[i] for i in chosen], [texts[i] for i in chosen], batch_size=batch_size
            )
            for i, score in zip(chosen, found, strict=True):
                scores[i] = float(score)
        return scores

    def _answer(self, text: str, choices: Mapping[str, str] | None) -> Hashable | None:
        return None if self.task_kind is None else extract_answer(text, self.task_kind, choices)


def _head_width(model: nn.Module) -> int:
    head = base_model(model).get_output_embeddings()
    width = getattr(head, "in_features", None)
    return int(head.weight.shape[-1] if width is None else width)
