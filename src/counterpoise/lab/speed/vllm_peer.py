"""Time vLLM's sampling on the same prompts: `poise bench --parts sampler --peers vllm`.

vLLM in its fastest form for GRPO: tokens in and tokens out, one request per prompt for all its
responses, prefix caching, log-probabilities of the sampled tokens as flat arrays, no text. It gets
the weights once, before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.lab.speed.workload import MAX_PROMPT_TOKENS
from counterpoise.model.load import Policy
from counterpoise.sample.vllm import VLLMSampler
from counterpoise.types import Ints


class VLLMPeer:
    """A vLLM engine with the policy's weights; responses have exactly the length they are given."""

    def __init__(self, policy: Policy, max_new_tokens: int) -> None:
        config = RunConfig()
        config = replace(
            config,
            sample=SampleConfig(max_prompt_tokens=MAX_PROMPT_TOKENS, max_new_tokens=max_new_tokens),
        )
        self._sampler = VLLMSampler(policy, config)
        self._sampler.load_weights(policy)

    def sample(self, prompts: Sequence[Ints], copies: int, length: int) -> int:
        """Sample `copies` responses for every prompt; returns the number of tokens."""
        requests = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        return self._generate(requests, [self._params(length, copies) for _ in prompts])

    def sample_lengths(self, prompts: Sequence[Ints], lengths: Sequence[int], copies: int) -> int:
        """Sample a response of each length, `copies` for every prompt in turn."""
        requests = [
            {"prompt_token_ids": prompts[row // copies].tolist()} for row in range(len(lengths))
        ]
        return self._generate(requests, [self._params(length, 1) for length in lengths])

    def _params(self, length: int, copies: int) -> Any:
        return self._sampler.sampling_params(
            n=copies,
            temperature=1.0,
            max_tokens=length,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )

    def _generate(self, requests: Sequence[dict[str, list[int]]], params: Sequence[Any]) -> int:
        outputs = self._sampler.engine.generate(requests, params, use_tqdm=False)
        return sum(
            len(completion.token_ids) for request in outputs for completion in request.outputs
        )

    def close(self) -> None:
        self._sampler.close()
