"""Time vLLM's sampling on the same prompts: `poise bench --parts sampler --peers vllm`.

vLLM in its fastest form for GRPO: tokens in and tokens out, one request per prompt for all its
responses, prefix caching, log-probabilities of the sampled tokens as flat arrays, no text. It gets
the weights once, before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.workload import MAX_PROMPT_TOKENS
from counterpoise.model.load import Policy
from counterpoise.sample.vllm import VLLMSampler
from counterpoise.types import Ints


class VLLMPeer:
    """A vLLM engine with the policy's weights; responses have exactly the length they are given."""

    def __init__(self, policy: Policy, setup: SpeedSetup) -> None:
        config = RunConfig()
        config = replace(
            config,
            sample=SampleConfig(
                max_prompt_tokens=MAX_PROMPT_TOKENS, max_new_tokens=setup.plan.iteration.length
            ),
        )
        self._sampler = VLLMSampler(policy, config)
        self._sampler.load_weights(policy)

    def sample(self, prompts: Sequence[Ints], copies: int, length: int) -> int:
        """Sample `copies` responses for every prompt; returns the number of tokens."""
        params = self._sampler.sampling_params(
            n=copies,
            temperature=1.0,
            max_tokens=length,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )
        requests = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        outputs = self._sampler.engine.generate(requests, params, use_tqdm=False)
        return sum(
            len(completion.token_ids) for request in outputs for completion in request.outputs
        )

    def close(self) -> None:
        self._sampler.close()
