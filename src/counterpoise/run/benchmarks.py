"""Benchmarks that a run evaluates beside its held-out problems: curves over training.

    evaluate.benchmarks = ["aime24=8", "math500"]   evaluate.data = "data"

They are evaluated when the held-out problems are, under the same settings, with responses of at
most `sample.max_new_tokens` tokens to prompts in the run's template, one response in one turn. A
line of benchmarks.jsonl holds what `poise eval` finds for the checkpoint of that iteration, given
the same options (--template auto, --max-tokens, --seed, --temperature, --top-p, --limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.config.evaluation_settings import parse_benchmarks
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.run.heldout import HeldoutSuccess, describe_evaluation_size, summarize_rewards
from counterpoise.sample.collect import SamplerBinding, draw_in_batches
from counterpoise.task.benchmarks import (
    Benchmark,
    benchmark_seeds,
    default_rows,
    find_benchmark,
    load_problems,
)
from counterpoise.types import Ints, Prompt
from counterpoise.verify.extra_rewards import verifier_needs
from counterpoise.verify.scores import ScoringContext, Verifier, score_responses
from counterpoise.verify.time_limited_verifier import count_lost_as_wrong

DATA_OPTION = "evaluate.data"


@dataclass(frozen=True, slots=True, eq=False)
class RunBenchmark:
    """The problems of a benchmark, encoded for the run's policy."""

    benchmark: Benchmark
    samples: int
    problems: Sequence[Prompt]
    prompt_tokens: Sequence[Ints]  # by problem


@dataclass(frozen=True, slots=True)
class BenchmarkSuccess:
    """How a policy did on one benchmark under one sampling setting."""

    success: HeldoutSuccess
    truncated_share: float  # of responses

    def to_record(self) -> dict[str, Any]:
        return {**self.success.to_record(), "truncated_share": self.truncated_share}


def load_run_benchmarks(policy: Policy, config: RunConfig) -> list[RunBenchmark]:
    """The benchmarks of evaluate.benchmarks, in that order."""
    options = config.evaluate
    data = Path(options.data) if options.data else None
    needed_columns, answers_required = verifier_needs(config.verify.name)
    benchmarks = []
    for name, samples in parse_benchmarks(options.benchmarks).items():
        benchmark = find_benchmark(name, data, DATA_OPTION)
        problems = load_problems(
            benchmark,
            data,
            needed_columns=needed_columns,
            answers_required=answers_required,
            data_option=DATA_OPTION,
            field_remedy="rename the column of it to '{role}'",
        )[: options.limit or None]
        prompt_tokens = [policy.encode(prompt) for prompt in problems]
        check_positions(policy, name, prompt_tokens, config.sample)
        benchmarks.append(
            RunBenchmark(benchmark, samples or benchmark.samples, problems, prompt_tokens)
        )
    return benchmarks


def check_positions(
    policy: Policy, name: str, prompt_tokens: Sequence[Ints], sample: SampleConfig
) -> None:
    """Raise an error if the model has too few positions for a benchmark's prompt and a response."""
    longest, positions = max(map(len, prompt_tokens)), policy.decoder.max_positions
    if longest + sample.max_new_tokens > positions:
        raise PoiseError(
            f"evaluate.benchmarks: {longest:,} tokens of the longest prompt of {name} and "
            f"sample.max_new_tokens={sample.max_new_tokens:,} exceed the {positions:,} positions "
            "of the model: lower sample.max_new_tokens, or leave the benchmark out"
        )


def evaluate_benchmark(
    sampler: SamplerBinding,
    run_benchmark: RunBenchmark,
    config: SampleConfig,
    verifier: Verifier,
    seed: int,
) -> BenchmarkSuccess:
    """Sample and judge the problems of a benchmark, in the blocks and by the seeds of eval."""
    name, samples = run_benchmark.benchmark.name, run_benchmark.samples
    problems, prompt_tokens = run_benchmark.problems, run_benchmark.prompt_tokens
    seeds_PG = [benchmark_seeds(seed, name, prompt, samples) for prompt in problems]
    block_size = max(1, default_rows(sampler.policy.device) // samples)
    fitted_size = FittedSize(min(block_size, len(problems)), describe=describe_evaluation_size)
    if sampler.prompts_per_draw:
        fitted_size.notify = sampler.prompts_per_draw.notify
    responses_PG = draw_in_batches(
        lambda batch: sampler.sample(sampler.policy, prompt_tokens[batch], seeds_PG[batch], config),
        len(problems),
        fitted_size,
    )
    responses = [response for group in responses_PG for response in group]
    scores = score_responses(
        verifier,
        [response.text for response in responses],
        [prompt for prompt in problems for _ in range(samples)],
        ScoringContext([response.tokens for response in responses], data_source=name),
    )
    rewards_PG = np.array(count_lost_as_wrong(scores)).reshape(len(problems), samples)
    if not scores.graded:
        # As in poise eval, a sample without a reward is wrong if its problem has one elsewhere.
        is_scored_P = ~np.isnan(rewards_PG).all(axis=1, keepdims=True)
        rewards_PG = np.where(np.isnan(rewards_PG) & is_scored_P, 0.0, rewards_PG)
    truncated_share = float(np.mean([not response.finished for response in responses]))
    return BenchmarkSuccess(summarize_rewards(rewards_PG, graded=scores.graded), truncated_share)


def find_benchmark_lines(
    lines: Sequence[dict[str, Any]], iteration: int
) -> set[tuple[str, float, float]]:
    """(benchmark, temperature, top-p) of the lines of benchmarks.jsonl about an iteration."""
    return {
        (line["benchmark"], line["temperature"], line["top_p"])
        for line in lines
        if line["iteration"] == iteration
    }
