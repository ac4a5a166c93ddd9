"""A rollout server for verl on the CPU: requests are gathered and sampled by our native sampler.

Server    a Ray actor with the model: generate(prompt) -> tokens and log-probabilities
Replica   starts one        Weights   in the trainer's process: sends it the new weights
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.model.load import load_policy
from counterpoise.sample.native import sample

GATHER_SECONDS = 0.2  # requests that come within it share a batch
APART_SECONDS = 0.01  # between two answers


class Server:
    def __init__(self, path: str, max_new_tokens: int, rank: int, late_answers: int) -> None:
        torch.set_num_threads(1)
        self.policy = load_policy(ModelConfig(name=path, device="cpu", dtype="float32"))
        self.max_new_tokens, self.rank = max_new_tokens, rank
        # How many answers wait until the trainer has sent weights again (the long ones of the first
        # batches): a count and an event, so that the speed of the machine decides nothing.
        self.late_answers = late_answers
        self.late: list[tuple[asyncio.Future[TokenOutput], TokenOutput]] = []
        self.drawn = 0
        self.version: int | None = None  # of the weights: the trainer's step
        self.waiting: list[tuple[list[int], float, asyncio.Future[TokenOutput]]] = []
        self.loop: asyncio.Task[None] | None = None

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        temperature = sampling_params.get("temperature", 1.0)
        self.waiting.append((list(prompt_ids), temperature, answer))
        if self.loop is None or self.loop.done():
            self.loop = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(GATHER_SECONDS)
            if not self.waiting:
                return
            batch, self.waiting = self.waiting, []
            outputs = await asyncio.to_thread(self._sample, [p for p, _, _ in batch], batch[0][1])
            answered = list(zip((answer for _, _, answer in batch), outputs, strict=True))
            # As a server does that decodes many: the short ones first.
            answered.sort(key=lambda pair: len(pair[1].token_ids))
            num_on_time = max(0, len(answered) - (self.late_answers - len(self.late)))
            self.late += answered[num_on_time:]
            for answer, output in answered[:num_on_time]:
                answer.set_result(output)
                await asyncio.sleep(APART_SECONDS)

    def _sample(self, prompts: list[list[int]], temperature: float) -> list[TokenOutput]:
        seeds = [[1_000_003 * self.rank + self.drawn + i] for i in range(len(prompts))]
        self.drawn += len(prompts)
        options = SampleConfig(max_new_tokens=self.max_new_tokens, temperature=temperature)
        tokens = [np.array(prompt, dtype=np.int32) for prompt in prompts]
        with torch.no_grad():
            sampled = sample(self.policy, tokens, seeds, options)
        return [
            TokenOutput(
                token_ids=response.tokens.tolist(),
                log_probs=response.logprobs.tolist(),
                stop_reason="completed",
                extra_fields={"global_steps": self.version},
            )
            for (response,) in sampled
        ]

    async def load(self, weights: dict[str, torch.Tensor], version: int | None) -> list[str]:
        missing = self.policy.model.load_state_dict(weights, strict=False).missing_keys
        self.version = version
        self.late_answers -= len(self.late)
        for answer, output in self.late:
            answer.set_result(output)
        self.late = []
        return list(missing)

    async def set_global_steps(self, version: int) -> None:
        self.version = version

    async def _nothing(self, *_: Any, **__: Any) -> None: ...

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    abort_all_requests = resume_generation = _nothing


def _name(rank: int) -> str:
    return f"verl_cpu_server_{rank}"


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        rank = self.replica_rank
        actor = ray.remote(num_cpus=0, max_concurrency=1000)(Server)
        server = actor.options(name=_name(rank)).remote(
            self.model_config.path,
            self.config.response_length,
            rank,
            (self.config.engine_kwargs.get("native") or {}).get("late_answers", 0),
        )
        self.servers = [server]
        self._server_handle, self._server_address = server, f"cpu:{rank}"


class Weights(BaseRollout):
    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ["RANK"])

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        state = {name: tensor.detach().cpu().float().clone() for name, tensor in weights}
        if self.rank % self.config.tensor_model_parallel_size:
            return  # one rank of a replica sends; all take part in gathering
        replica = self.rank // self.config.tensor_model_parallel_size
        missing = await ray.get_actor(_name(replica)).load.remote(state, global_steps)
        if missing not in ([], ["lm_head.weight"]):  # the unembedding may be tied
            raise RuntimeError(f"weights were not sent: {missing}")
