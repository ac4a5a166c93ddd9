"""Synthetic workloads for both engines: prompts, rewards, rows and options.

Every number of tokens is fixed: end tokens are switched off, so that a response has exactly its
length. The reward alternates within each group, so that every row carries signal: an engine that
skips rows without signal gains nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from counterpoise.config import (
    BatchConfig,
    EvaluateConfig,
    ModelConfig,
    MonitorConfig,
    RunConfig,
    SampleConfig,
    UpdateConfig,
)
from counterpoise.model.load import Policy, load_policy
from counterpoise.seeds import seed_for
from counterpoise.task.word_problems import make_problem
from counterpoise.types import Ints, Prompt, Rollout, Row
from counterpoise.verify.scores import Scores

LEARNING_RATE = 1e-6
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 80, 100  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Workload:
    """The size of one iteration.

    Example:
        Workload("shape:smollm2-135m", prompts=64, group_size=8, length=128).rollouts == 512
    """

    model: str
    prompts: int
    group_size: int
    length: int  # new tokens of every response

    @property
    def rollouts(self) -> int:
        return self.prompts * self.group_size

    def __str__(self) -> str:
        return f"{self.prompts} x {self.group_size} x {self.length}"


def load_endless_policy(name: str, lora_rank: int = 0) -> Policy:
    """A policy whose responses never end early."""
    return replace(load_policy(ModelConfig(name=name, lora_rank=lora_rank)), end_tokens=(-1,))


def make_texts(tokenizer: Any, count: int) -> list[str]:
    """Word problems joined and cut to between MIN_PROMPT_TOKENS and MAX_PROMPT_TOKENS tokens."""
    texts, problem_number = [], 0
    for index in range(count):
        words: list[str] = []
        # Lengths are spread over the range; 3 less at the top, as a word may be several tokens.
        target_tokens = MIN_PROMPT_TOKENS + 7 * index % (MAX_PROMPT_TOKENS - MIN_PROMPT_TOKENS - 3)
        while len(tokenizer.encode(" ".join(words))) < target_tokens:
            words += make_problem("heldout", problem_number, (3,)).problem.split()
            problem_number += 1
        while len(tokenizer.encode(" ".join(words[:-1]))) >= target_tokens:
            words.pop()
        texts.append(" ".join(words))
    return texts


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[Ints]:
    return [np.array(tokenizer.encode(text), dtype=np.int32) for text in texts]


def make_train_set(tokenizer: Any, count: int) -> list[tuple[Prompt, Ints]]:
    texts = make_texts(tokenizer, count)
    pairs = zip(texts, encode_texts(tokenizer, texts), strict=True)
    return [
        (Prompt(f"bench/{index}", text, ""), tokens) for index, (text, tokens) in enumerate(pairs)
    ]


def make_seeds(prompts: int, copies: int, step: int = 0) -> list[list[int]]:
    return [
        [seed_for(0, "bench", step, prompt * copies + copy) for copy in range(copies)]
        for prompt in range(prompts)
    ]


def alternating_rewards(count: int) -> list[float]:
    """Rewards 1, 0, 1, ...: half of every group is right."""
    return [float(i % 2 == 0) for i in range(count)]


class AlternatingVerifier:
    """A verifier that takes no time: rewards alternate."""

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        return Scores(alternating_rewards(len(responses)))

    def close(self) -> None:
        pass


MONITOR_OFF = MonitorConfig(every=0)


def run_config(
    workload: Workload,
    *,
    steps: int = 1,
    old_logprobs: str = "trainer",
    monitor: MonitorConfig = MONITOR_OFF,
    lora_rank: int = 0,
    **update: Any,
) -> RunConfig:
    """Options of a run whose iterations have the size `workload` and `steps` optimizer steps."""
    return RunConfig(
        model=ModelConfig(name=workload.model, lora_rank=lora_rank),
        sample=SampleConfig(
            prompts=workload.prompts, group_size=workload.group_size, max_new_tokens=workload.length
        ),
        batch=BatchConfig(composer="grouped" if steps > 1 else "whole", steps=steps),
        update=UpdateConfig(lr=LEARNING_RATE, old_logprobs=old_logprobs, **update),
        evaluate=EvaluateConfig(prompts=0),
        monitor=monitor,
    )


def make_rows(
    vocabulary: int,
    groups: int,
    group_size: int,
    prompt_tokens: int,
    response_tokens: int,
    jitter: float = 0.1,
) -> list[Row]:
    """Rows of random tokens; lengths vary by `jitter`, and half the advantages are positive."""
    rng = np.random.default_rng(0)

    def tokens(typical_length: int) -> Ints:
        count = max(2, round(typical_length * (1 + jitter * rng.uniform(-1, 1))))
        return rng.integers(0, vocabulary, count).astype(np.int32)

    rows = []
    for group in range(groups):
        prompt = tokens(prompt_tokens)
        for index, reward in enumerate(alternating_rewards(group_size)):
            response = tokens(response_tokens)
            old_logprobs = np.full(len(response), -np.log(vocabulary), dtype=np.float32)
            rollout = Rollout(f"g{group}", "", "", "", reward, prompt, response, old_logprobs)
            rows.append(
                Row(f"g{group}", 2 * reward - 1, len(response), index=index, rollout=rollout)
            )
    return rows


def group_lengths(rows: Sequence[Row]) -> list[tuple[int, list[int]]]:
    """(prompt tokens, tokens of each response) of every group, as `update_cost` takes them."""
    groups: dict[str, tuple[int, list[int]]] = {}
    for row in rows:
        groups.setdefault(row.group, (len(row.content.prompt_tokens), []))[1].append(row.num_tokens)
    return list(groups.values())
