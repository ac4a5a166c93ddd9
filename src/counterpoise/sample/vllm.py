"""vLLM in this process in place of the native sampler: `sample.engine = "vllm"`. docs/vllm.md

    the trainer's weights -> into the engine, in memory -> cached prefixes dropped -> one request a
    response, by its own seed

The engine is made from the model's configuration alone and gets its weights before every draw, so
it never samples from old ones. Keys and values of prompts are kept and shared by the responses of a
draw (prefix caching), and forgotten with the weights they were computed by.

Log-probabilities are, as the native sampler's, those of the drawn tokens under the whole
distribution at the temperature. vLLM gives them either before the temperature and the cut by top-p
and top-k, or after both. So at training temperature 1 they are taken before, and otherwise after;
with a cut at another temperature they are neither, and are nan.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.model.load import Policy
from counterpoise.sample.kv_budget import CPU_CACHE_BYTES
from counterpoise.sample.vllm_heads import supported_head_width, widen_config, widen_weight
from counterpoise.sample.vllm_host import import_vllm, restored_thread_settings
from counterpoise.types import Ints, Response

CPU_CACHE_ROWS = 256  # rows for whose keys and values there is room on a CPU, if memory allows
CPU_BLOCK_TOKENS = 32  # tokens of a shared block: vLLM's 128 is longer than many a prompt
CPU_PASS_TOKENS = 4096  # of one pass


class VLLMSampler:
    """A `Sampler`: one engine on the policy's device, and only one at a time in a process."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        vllm = import_vllm()
        self._params = vllm.SamplingParams
        self._width = supported_head_width(
            policy.decoder.head_dim, policy.device.type, _type(policy)
        )
        self._longest = min(
            config.sample.max_prompt_tokens + config.sample.max_new_tokens,
            policy.decoder.config.max_position_embeddings,
        )
        self._before_temperature = config.sample.temperature == 1
        with tempfile.TemporaryDirectory() as folder, restored_thread_settings():
            self._describe(policy, folder)
            try:
                self._engine: Any = vllm.LLM(folder, **self._arguments(policy, config.sample))
            except Exception as fault:  # vLLM raises as it pleases
                raise PoiseError(f"vLLM cannot start: {first_line(fault)}") from fault

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Ints],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:
        """Responses for every prompt, one for each of its seeds."""
        if not prompts:
            return []
        self._check_lengths(prompts, config)
        self._take_weights(policy)
        copies = len(seeds_PG[0])
        known = self._knows(config)
        requests = [{"prompt_token_ids": p.tolist()} for p in prompts for _ in range(copies)]
        params = [
            self._params(
                seed=seed,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                max_tokens=config.max_new_tokens,
                stop_token_ids=list(policy.end_tokens),
                logprobs=0 if known else None,
                flat_logprobs=True,
                detokenize=False,
            )
            for seeds in seeds_PG
            for seed in seeds
        ]
        found = self._engine.generate(requests, params, use_tqdm=False)
        flat = _responses(policy, found, known)
        return [flat[i : i + copies] for i in range(0, len(flat), copies)]

    def close(self) -> None:
        """Give the engine's memory back."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self._engine.llm_engine.engine_core.shutdown()
        self._engine = None
        cleanup_dist_env_and_memory()

    # -- the engine ------------------------------------------------------------------------------

    def _describe(self, policy: Policy, folder: str) -> None:
        """config.json, all that vLLM needs to make the model.

        Tied embeddings are untied: vLLM packs the head on a CPU, and again only where it is loaded.
        """
        config = deepcopy(policy.decoder.config)
        config.architectures = [type(policy.model).__name__]
        config.tie_word_embeddings = False
        if self._width != policy.decoder.head_dim:
            widen_config(config, policy.decoder.head_dim, self._width)
        config.save_pretrained(folder)

    def _arguments(self, policy: Policy, config: SampleConfig) -> dict[str, Any]:
        common = {
            "load_format": "dummy",  # weights come from the trainer
            "skip_tokenizer_init": True,  # tokens in, tokens out
            "trust_remote_code": False,
            "dtype": str(policy.decoder.dtype).removeprefix("torch."),
            "max_model_len": self._longest,
            "enable_prefix_caching": True,
            "logprobs_mode": "raw_logprobs" if self._before_temperature else "processed_logprobs",
            "generation_config": "vllm",  # no temperature or top-p of the model's own
            "seed": 0,  # of what has none of its own: nothing
        }
        if policy.device.type != "cpu":
            return common | {"gpu_memory_utilization": config.engine_memory}
        return common | {
            "enforce_eager": True,  # compiling takes longer than most runs on a CPU
            "enable_chunked_prefill": False,  # with seeds vLLM 0.32 fails on a prompt cut in two
            "max_num_batched_tokens": max(CPU_PASS_TOKENS, self._longest),
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": self._cache_bytes(policy),
        }

    def _cache_bytes(self, policy: Policy) -> int:
        """Room for some hundred rows within the native sampler's limit, and at least for two."""
        decoder = policy.decoder
        token = 2 * len(decoder.layers) * decoder.kv_heads * self._width * decoder.dtype.itemsize
        row = token * (self._longest + 2 * CPU_BLOCK_TOKENS)
        return max(2 * row, min(CPU_CACHE_ROWS * row, CPU_CACHE_BYTES))

    def _take_weights(self, policy: Policy) -> None:
        """The trainer's weights as they are, in memory, and nothing kept of those before."""
        self._engine.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": self._weights(policy)}
        )
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept keys and values of older weights")

    def _weights(self, policy: Policy) -> Iterator[tuple[str, Tensor]]:
        d = policy.decoder.head_dim
        for name, weight in policy.model.named_parameters():
            yield name, widen_weight(name, weight.detach(), d, self._width)
        if policy.decoder.config.tie_word_embeddings:
            yield "lm_head.weight", policy.decoder.unembedding.detach()

    # -- requests and answers --------------------------------------------------------------------

    def _knows(self, config: SampleConfig) -> bool:
        """Whether its log-probabilities are those of the whole distribution, at the temperature."""
        if self._before_temperature:
            return config.temperature == 1
        return config.top_p == 1 and config.top_k == 0

    def _check_lengths(self, prompts: Sequence[Ints], config: SampleConfig) -> None:
        longest = max(map(len, prompts)) + config.max_new_tokens
        if longest > self._longest:
            raise PoiseError(
                f"a prompt and its response may come to {longest} tokens, and vLLM was started for "
                f"{self._longest}: raise sample.max_prompt_tokens, or lower sample.max_new_tokens "
                "where the model has no more positions"
            )


def _responses(policy: Policy, found: Sequence[Any], known: bool) -> list[Response]:
    drawn = [request.outputs[0] for request in found]
    tokens = [np.array(one.token_ids, dtype=np.int32) for one in drawn]
    logprobs = [
        np.array(one.logprobs.logprobs, dtype=np.float32)
        if known
        else np.full(len(one.token_ids), np.nan, dtype=np.float32)
        for one in drawn
    ]
    finished = [int(row[-1]) in policy.end_tokens for row in tokens]
    parts = zip(tokens, logprobs, policy.decode_rows(tokens), finished, strict=True)
    return [Response(*part) for part in parts]


def _type(policy: Policy) -> str:
    kind: str = policy.decoder.config.model_type
    return kind
