"""The vLLM sampler, running in this process: `sample.engine = "vllm"`. docs/guide/vllm.md

    the trainer's weights -> into the engine, in memory -> cached prefixes dropped -> one request
    per response, with its own seed

The engine is built from the model's configuration alone and receives its weights before every draw,
so it never samples from old ones. Keys and values of prompts are shared by the responses of a draw
(prefix caching) and dropped with the weights they were computed from.

As in the native sampler, log-probabilities are those of the sampled tokens under the full
distribution at the temperature. vLLM reports them either before the temperature and the top-p and
top-k cut (raw), or after both (processed), and an engine reports only one of them: raw if it was
built for temperature 1, processed otherwise. Where that is not the full distribution, they are nan:
an engine with raw ones has none at any other temperature, one with processed ones none with a cut.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.adapters import is_adapted
from counterpoise.model.load import Policy, require_fast_path
from counterpoise.model.memory_share import memory_share
from counterpoise.sample.kv_budget import CPU_CACHE_BYTES
from counterpoise.sample.vllm_heads import supported_head_width, widen_config, widen_weight
from counterpoise.sample.vllm_host import (
    explain_start_faults,
    import_vllm,
    restored_thread_settings,
)
from counterpoise.types import Ints, Response

CPU_CACHE_ROWS = 256  # rows that the KV cache on a CPU should hold, if memory allows
CPU_BLOCK_TOKENS = 32  # only whole blocks are shared, and vLLM's 128 exceeds many prompts
CPU_PASS_TOKENS = 4096  # tokens of one forward pass


class VLLMSampler:
    """A `Sampler` with one vLLM engine on the policy's device; a process can hold only one.

    `engine` is vLLM's `LLM` and `sampling_params` its `SamplingParams`.
    """

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        decoder = self._decoder = require_fast_path(policy, "sample.engine=vllm")
        if is_adapted(policy.model):
            raise PoiseError(
                "sample.engine=vllm takes full weights only, and here an adapter is trained: set "
                "sample.engine=native, or model.lora_rank=0"
            )
        vllm = import_vllm(device=policy.device.type)
        self.sampling_params = vllm.SamplingParams
        self._head_width = supported_head_width(
            decoder.head_dim, policy.device.type, _model_type(policy)
        )
        self._max_length = min(
            config.sample.max_prompt_tokens + config.sample.max_new_tokens,
            decoder.max_positions,
        )
        self._raw_logprobs = config.sample.temperature == 1
        with tempfile.TemporaryDirectory() as folder, restored_thread_settings():
            self._write_config(policy, folder)
            arguments = self._engine_arguments(policy, config.sample)
            with explain_start_faults("vLLM cannot start"):
                self.engine: Any = vllm.LLM(folder, **arguments)

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
        group_size = len(seeds_PG[0])
        if any(len(seeds) != group_size for seeds in seeds_PG):
            raise ValueError("every prompt needs the same number of seeds")
        self._check_lengths(prompts, config)
        self.load_weights(policy)
        has_logprobs = self._has_logprobs(config)
        requests = [
            {"prompt_token_ids": prompt.tolist()} for prompt in prompts for _ in range(group_size)
        ]
        params = [
            self.sampling_params(
                seed=seed,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                max_tokens=config.max_new_tokens,
                stop_token_ids=list(policy.end_tokens),
                logprobs=0 if has_logprobs else None,
                flat_logprobs=True,
                detokenize=False,
            )
            for seeds in seeds_PG
            for seed in seeds
        ]
        outputs = self.engine.generate(requests, params, use_tqdm=False)
        flat_responses = _responses(policy, outputs, has_logprobs)
        return [
            flat_responses[i : i + group_size] for i in range(0, len(flat_responses), group_size)
        ]

    def close(self) -> None:
        """Free the engine's memory."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.engine.llm_engine.engine_core.shutdown()
        self.engine = None
        cleanup_dist_env_and_memory()

    # -- the engine ------------------------------------------------------------------------------

    def _write_config(self, policy: Policy, folder: str) -> None:
        """Write config.json, which is all that vLLM needs to build the model.

        Tied embeddings are untied: on a CPU vLLM repacks the head's weight only when that weight
        itself is loaded.
        """
        config = deepcopy(policy.decoder.config)
        config.architectures = [type(policy.model).__name__]
        config.tie_word_embeddings = False
        if self._head_width != self._decoder.head_dim:
            widen_config(config, self._decoder.head_dim, self._head_width)
        config.save_pretrained(folder)

    def _engine_arguments(self, policy: Policy, config: SampleConfig) -> dict[str, Any]:
        common = {
            "load_format": "dummy",  # weights come from the trainer
            "skip_tokenizer_init": True,  # tokens in, tokens out
            "trust_remote_code": False,
            "dtype": str(policy.decoder.dtype).removeprefix("torch."),
            "max_model_len": self._max_length,
            "enable_prefix_caching": True,
            "logprobs_mode": "raw_logprobs" if self._raw_logprobs else "processed_logprobs",
            "generation_config": "vllm",  # ignore the model's own temperature and top-p
            "seed": 0,  # unused: every request has its own seed
        }
        if policy.device.type != "cpu":
            share = config.engine_memory * memory_share()
            return common | {"gpu_memory_utilization": share}
        return common | {
            "enforce_eager": True,  # compiling takes longer than most runs on a CPU
            "enable_chunked_prefill": False,  # vLLM 0.32 with seeds fails if a prompt is split
            "max_num_batched_tokens": max(CPU_PASS_TOKENS, self._max_length),
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": self._cache_bytes(),
        }

    def _cache_bytes(self) -> int:
        """Room for CPU_CACHE_ROWS rows within the native sampler's limit, but at least for two."""
        decoder = self._decoder
        bytes_per_token = (
            2 * len(decoder.layers) * decoder.kv_heads * self._head_width * decoder.dtype.itemsize
        )
        bytes_per_row = bytes_per_token * (self._max_length + 2 * CPU_BLOCK_TOKENS)
        return max(2 * bytes_per_row, min(CPU_CACHE_ROWS * bytes_per_row, CPU_CACHE_BYTES))

    def load_weights(self, policy: Policy) -> None:
        """Copy the trainer's weights in memory and drop the prefixes cached under older ones."""
        self.engine.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": self._weights(policy)}
        )
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop the keys and values of older weights")

    def _weights(self, policy: Policy) -> Iterator[tuple[str, Tensor]]:
        d = self._decoder.head_dim
        for name, weight in policy.model.named_parameters():
            yield name, widen_weight(name, weight.detach(), d, self._head_width)
        if policy.decoder.config.tie_word_embeddings:
            yield "lm_head.weight", policy.decoder.unembedding.detach()

    # -- requests and outputs --------------------------------------------------------------------

    def _has_logprobs(self, config: SampleConfig) -> bool:
        """Whether vLLM reports log-probabilities of the full distribution at the temperature."""
        if self._raw_logprobs:
            return config.temperature == 1
        return config.top_p == 1 and config.top_k == 0

    def _check_lengths(self, prompts: Sequence[Ints], config: SampleConfig) -> None:
        longest = max(map(len, prompts)) + config.max_new_tokens
        if longest > self._max_length:
            raise PoiseError(
                f"a prompt and its response may reach {longest} tokens, but vLLM was started for "
                f"{self._max_length}: raise sample.max_prompt_tokens, or lower "
                "sample.max_new_tokens if the model has no more positions"
            )


def _responses(policy: Policy, outputs: Sequence[Any], has_logprobs: bool) -> list[Response]:
    completions = [request.outputs[0] for request in outputs]
    tokens_R = [np.array(completion.token_ids, dtype=np.int32) for completion in completions]
    logprobs_R = [
        np.array(completion.logprobs.logprobs, dtype=np.float32)
        if has_logprobs
        else np.full(len(completion.token_ids), np.nan, dtype=np.float32)
        for completion in completions
    ]
    finished_R = [int(tokens[-1]) in policy.end_tokens for tokens in tokens_R]
    texts_R = policy.decode_rows(tokens_R)
    return [
        Response(*fields) for fields in zip(tokens_R, logprobs_R, texts_R, finished_R, strict=True)
    ]


def _model_type(policy: Policy) -> str:
    model_type: str = policy.decoder.config.model_type
    return model_type
