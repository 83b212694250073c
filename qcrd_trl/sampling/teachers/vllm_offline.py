"""The backend `vllm`: vLLM's offline engine in this process (extra `vllm`)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from . import missing_extra
from .base import SamplingSettings, Teacher, TeacherCompletion, TeacherRequest, TeacherStats, status_of
from .tokens import request_ids, too_long


# So many samples are handed to the engine together: enough to keep it busy, and what a crash may lose.
WINDOW = 1024
# What tells where and how fast the engine runs, not what it samples.
_PLACEMENT = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization"),
    *("cpu_offload_gb", "enforce_eager", "max_num_seqs", "max_num_batched_tokens", "disable_log_stats"),
)


class VLLMTeacher(Teacher):
    """
    A model in vLLM's offline engine, with a LoRA adapter perhaps. Each sample is a sequence of its own with its own seed, so
    that it does not depend on which others are asked for; the engine's prefix cache reads a question once.

    Args:
        model (`str`):
            Hub name or folder of a model, or the folder of a LoRA adapter.
        chat (`bool`, *optional*):
            Whether to ask through the tokenizer's chat template. If it has one, if left out.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Precision; `auto` is that of the checkpoint.
        engine_args (`Mapping[str, Any]`, *optional*):
            Further keyword arguments of `vllm.LLM`, such as `tensor_parallel_size` or `quantization`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether the model may bring code of its own.
    """

    def __init__(
        self,
        model: str,
        chat: bool | None = None,
        dtype: str = "auto",
        engine_args: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ):
        try:
            import vllm
        except ModuleNotFoundError as error:
            raise missing_extra("vllm", "vllm", error) from error
        from ...models import load_tokenizer

        self._vllm = vllm
        self.name = model
        self.stats = TeacherStats()
        self._dtype = dtype
        self._engine_args = dict(engine_args or {})
        own = {"model", "dtype", "trust_remote_code", "enable_lora", "seed"} & set(self._engine_args)
        if own:
            raise ConfigError(
                f"--vllm_engine_args must not set {sorted(own)[0]!r}: there is a flag for it, or it is set here."
            )
        self._trust = {"trust_remote_code": True} if trust_remote_code else {}
        self._tokenizer = load_tokenizer(model, **self._trust)
        has_template = bool(getattr(self._tokenizer, "chat_template", None))
        self.chat = has_template if chat is None else chat
        if self.chat and not has_template:
            raise ConfigError(
                f"{model} has no chat template, so it cannot be asked with --prompt_format chat: use plain."
            )
        self._engine: Any = None
        self._adapter: Any = None

    def settings(self) -> dict[str, Any]:
        deciding = {name: value for name, value in self._engine_args.items() if name not in _PLACEMENT}
        return {"backend": "vllm", "model": self.name, "dtype": self._dtype, "engine_args": deciding}

    def check(self) -> None:
        """Starts the engine."""
        if self._engine is not None:
            return
        model, lora = self.name, {}
        if (Path(model) / "adapter_config.json").is_file():
            from peft import PeftConfig
            from vllm.lora.request import LoRARequest

            config = PeftConfig.from_pretrained(model)
            self._adapter = LoRARequest("teacher", 1, str(Path(model).absolute()))
            model, lora = config.base_model_name_or_path, {"enable_lora": True}
            if getattr(config, "r", None):
                lora["max_lora_rank"] = config.r
        self._engine = self._vllm.LLM(model, dtype=self._dtype, **lora, **self._engine_args, **self._trust)

    def sample(
        self, requests: Iterable[TeacherRequest], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        self.check()
        context = self._engine.model_config.max_model_len
        window: list[tuple[TeacherRequest, list[int]]] = []
        waiting = 0
        for request in requests:
            prompt = request_ids(request.prompt, self._tokenizer)
            if len(prompt) >= context:
                yield request, too_long(request, len(prompt), context)
                continue
            window.append((request, prompt))
            waiting += len(request.sample_indices)
            if waiting >= WINDOW:
                yield from self._answer(window, how)
                window, waiting = [], 0
        if window:
            yield from self._answer(window, how)

    def close(self) -> None:
        self._engine = None

    def _answer(
        self, window: list[tuple[TeacherRequest, list[int]]], how: SamplingSettings
    ) -> Iterator[tuple[TeacherRequest, list[TeacherCompletion]]]:
        prompts, params = [], []
        for request, prompt in window:
            for seed in request.seeds:
                prompts.append({"prompt_token_ids": prompt})
                params.append(
                    self._vllm.SamplingParams(
                        n=1,
                        temperature=how.temperature,
                        top_p=how.top_p,
                        max_tokens=how.max_new_tokens,
                        stop=list(how.stop) or None,
                        seed=seed,
                    )
                )
        outputs = iter(self._engine.generate(prompts, params, use_tqdm=False, lora_request=self._adapter))
        for request, prompt in window:
            yield (
                request,
                [self._completion(request, place, prompt, next(outputs)) for place in range(len(request.seeds))],
            )

    def _completion(self, request: TeacherRequest, place: int, prompt: list[int], output: Any) -> TeacherCompletion:
        answer = output.outputs[0]
        index, seed = request.sample_indices[place], request.seeds[place]
        usage = {"prompt_tokens": len(prompt)} if place == 0 else {}
        usage["completion_tokens"] = len(answer.token_ids)
        self.stats.prompt_tokens += usage.get("prompt_tokens", 0)
        self.stats.completion_tokens += usage["completion_tokens"]
        reason = answer.finish_reason
        if reason not in ("stop", "length"):  # abort, error, repetition
            self.stats.errors += 1
            error = f"the engine ended it with finish reason {reason!r}"
            return TeacherCompletion(index, answer.text or None, reason, "failed", seed=seed, usage=usage, error=error)
        return TeacherCompletion(index, answer.text, reason, status_of(answer.text, reason), seed=seed, usage=usage)
