"""The vLLM sampler: continuous batching, a prefix cache, and weights that change in place.

The engine runs in the process that makes it and moves on when it is polled. What it samples
depends on the request's seed alone, not on its neighbours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mempo.draws import generator
from mempo.policies.codec import Codec
from mempo.policies.distribution import Sampling
from mempo.samplers.generating import Generating
from mempo.types import Completion, FinishReason, Request

_WORKER = "mempo.samplers.vllm_worker.PolicyWorker"


class VllmSampler(Generating):
    """Decodes with vLLM's engine.

    Args:
        model: folder or hub name of the policy.
        tokenizer: folder of the codec's tokenizer, by which vLLM finds stop strings.
        codec: the policy's tokenizer.
        stop: strings that end a completion; they stay in its ids.
        dtype: 'float32' or 'bfloat16'.
        max_tokens: of prompt and output together.
        batch_size: sequences that are decoded at once.
        cache_gib: memory of the KV cache; 0 is 1 on CPU, on a GPU what vLLM takes by itself.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Path,
        codec: Codec,
        *,
        stop: Sequence[str],
        dtype: str,
        max_tokens: int,
        batch_size: int,
        cache_gib: float,
    ):
        # Read when vllm is imported: the engine lives in this process, and its threads are ours.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
        import torch
        from vllm import EngineArgs, LLMEngine

        _let_be_scanned()
        on_cpu = not torch.cuda.is_available()
        self.stop = list(stop)
        self.end_ids = sorted({codec.eos_id, *_end_ids_of(model)})
        chosen_dtype: Any = dtype  # a Literal of vLLM's own
        cache = cache_gib or (1.0 if on_cpu else 0.0)
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                tokenizer=str(tokenizer),
                dtype=chosen_dtype,
                max_model_len=max_tokens,
                max_num_seqs=batch_size,
                enable_prefix_caching=True,
                # vLLM 0.32 winds back the draws of a prompt that is begun, which on CPU it cannot.
                enable_chunked_prefill=not on_cpu,
                enforce_eager=on_cpu,
                generation_config="vllm",  # what is sampled is what the settings say
                logprobs_mode="processed_logprobs",
                worker_extension_cls=_WORKER,
                disable_log_stats=True,
                kv_cache_memory_bytes=int(cache * 2**30) or None,
            )
        )

    def submit(self, number: int, request: Request, sampling: Sampling) -> None:
        """Begin with a request; `number` tells its completion from the others'."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if request.without_ids is not None:
            raise ValueError("a memory weight at inference needs rollout.engine=transformers")
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=request.max_tokens,
            seed=int(generator(*request.key).integers(2**63)),
            stop=self.stop,
            stop_token_ids=self.end_ids,
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt: Any = {"prompt_token_ids": request.prompt_ids}
        self.engine.add_request(str(number), prompt, params)

    def poll(self) -> list[tuple[int, Completion]]:
        """Decode for a moment; what is finished since the last call, by number."""
        finished = [out for out in self.engine.step() if out.finished]
        return [(int(out.request_id), self._completion(out)) for out in finished]

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget the requests of these numbers, which are all on their way."""
        self.engine.abort_request([str(number) for number in numbers])

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """[T - 1] log-probs of ids[1:], each after what stands before it, at temperature 1."""
        from vllm import SamplingParams

        prompt: Any = {"prompt_token_ids": list(ids)}
        self.engine.add_request("probe", prompt, SamplingParams(max_tokens=1, prompt_logprobs=0))
        finished: list[Any] = []
        while not finished:
            finished = [out for out in self.engine.step() if out.finished]
        rows = finished[0].prompt_logprobs[1:]
        return [row[i].logprob for row, i in zip(rows, ids[1:], strict=True)]

    def load(self, weights: Path) -> str:
        """Take new weights in place and forget the prefixes of the old; their digest."""
        (digest,) = set(self.engine.collective_rpc("load_policy", args=(str(weights),)))
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept the prefix cache of the old weights: requests still run")
        return digest

    def _completion(self, out: Any) -> Completion:
        (best,) = out.outputs
        ids = list(best.token_ids)
        logprobs = [at[i].logprob for at, i in zip(best.logprobs, ids, strict=True)]
        reason: FinishReason = "length"
        if best.finish_reason == "stop":
            reason = "stop" if isinstance(best.stop_reason, str) else "eos"
        return Completion(ids, logprobs, reason, out.num_cached_tokens or 0)


def _end_ids_of(model: str) -> list[int]:
    """Ids that end a generation by the model's own settings, if it has any."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return []
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def _let_be_scanned() -> None:
    """Make llvmlite, where it is loaded, bear vLLM's look at every attribute of every module.

    vLLM 0.32 asks each for `__dict__`, and llvmlite's wrapper of its C library answers to any
    name, that one too, with a C function (bm25s loads it through numba).
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    wrapper = getattr(ffi, "_lib_wrapper", None)
    if wrapper is None:
        return
    function_of = wrapper.__getattr__

    def getattr_of(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return function_of(self, name)

    wrapper.__getattr__ = getattr_of
