"""Benchmarks that a run evaluates beside its held-out problems: curves over training.

    evaluate.benchmarks = ["aime24=8", "math500"]   evaluate.data = "data"

They are evaluated when the held-out problems are, under the same settings, with responses of at
most `sample.max_new_tokens` tokens to prompts in the run's template, one response in one turn. A
line of benchmarks.jsonl holds what `poise eval` finds for the checkpoint of that iteration, given
the same options (--template auto, --max-tokens, --seed, --temperature, --top-p, --limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.config.evaluation_settings import parse_benchmarks
from counterpoise.errors import PoiseError, format_count
from counterpoise.model.load import Policy
from counterpoise.run.heldout import HeldoutSuccess, fit_evaluation_size, summarize_rewards
from counterpoise.sample.collect import SamplerBinding, draw_in_batches
from counterpoise.task.benchmarks import (
    Benchmark,
    benchmark_seeds,
    default_rows,
    find_benchmark,
    load_problems,
)
from counterpoise.types import Ints, Prompt
from counterpoise.verify.check_problems import check_problems
from counterpoise.verify.extra_rewards import verifier_needs
from counterpoise.verify.scores import ScoringContext, Verifier, score_responses
from counterpoise.verify.time_limited_verifier import count_lost_as_wrong

DATA_OPTION = "evaluate.data"


@dataclass(frozen=True, slots=True, eq=False)
class RunBenchmark:
    """The problems of a benchmark, and their prompts encoded for the run's policy."""

    benchmark: Benchmark
    samples: int
    problems: Sequence[Prompt]
    prompt_tokens: Sequence[Ints] = ()  # by problem; none before `encode_benchmarks`


@dataclass(frozen=True, slots=True)
class BenchmarkSuccess:
    """How a policy did on one benchmark under one sampling setting."""

    success: HeldoutSuccess
    truncated_share: float  # of responses

    def to_record(self) -> dict[str, Any]:
        return {**self.success.to_record(), "truncated_share": self.truncated_share}


def load_run_benchmarks(config: RunConfig) -> list[RunBenchmark]:
    """The benchmarks of evaluate.benchmarks, in that order, without their tokens."""
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
            field_remedy="rename the column that holds it to '{role}'",
        )[: options.limit or None]
        check_problems(config.verify.name, problems)
        benchmarks.append(RunBenchmark(benchmark, samples or benchmark.samples, problems))
    return benchmarks


def describe_run_benchmarks(config: RunConfig) -> tuple[str, str]:
    """(the benchmarks of a run in a few words, what of them was not checked), for a dry run.

    Those of the hub are not downloaded: only their names are checked.
    """
    options = config.evaluate
    if not options.data:
        names = parse_benchmarks(options.benchmarks)
        for name in names:
            find_benchmark(name, None, DATA_OPTION)
        return "", "the benchmarks of the hub" if names else ""
    counts = [
        f"{run_benchmark.benchmark.name}, {format_count(len(run_benchmark.problems), 'problem')} "
        f"x {run_benchmark.samples}"
        for run_benchmark in load_run_benchmarks(config)
    ]
    return "; ".join(counts), ""


def encode_benchmarks(
    policy: Policy, benchmarks: Sequence[RunBenchmark], sample: SampleConfig
) -> list[RunBenchmark]:
    """The benchmarks with the tokens of their prompts."""
    encoded = []
    for run_benchmark in benchmarks:
        prompt_tokens = policy.encode_all(run_benchmark.problems)
        check_positions(policy, run_benchmark.benchmark.name, prompt_tokens, sample)
        encoded.append(replace(run_benchmark, prompt_tokens=prompt_tokens))
    return encoded


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
    """Sample and judge its problems, as many at once and with the same seeds as `poise eval`."""
    name, samples = run_benchmark.benchmark.name, run_benchmark.samples
    problems, prompt_tokens = run_benchmark.problems, run_benchmark.prompt_tokens
    seeds_PG = [benchmark_seeds(seed, name, prompt, samples) for prompt in problems]
    block_size = max(1, default_rows(sampler.policy.device) // samples)
    responses_PG = draw_in_batches(
        lambda batch: sampler.sample(sampler.policy, prompt_tokens[batch], seeds_PG[batch], config),
        len(problems),
        fit_evaluation_size(sampler, min(block_size, len(problems))),
    )
    responses = [response for group in responses_PG for response in group]
    scores = score_responses(
        verifier,
        [response.text for response in responses],
        [prompt for prompt in problems for _ in range(samples)],
        ScoringContext([response.tokens for response in responses], data_source=name),
    )
    rewards_PG = np.array(count_lost_as_wrong(scores)).reshape(len(problems), samples)
    if np.isnan(rewards_PG).all():
        raise PoiseError(
            f"the reward function returned None for every response to the benchmark {name}: check "
            "the columns it reads, or leave the benchmark out of evaluate.benchmarks"
        )
    if not scores.graded:
        # As in poise eval, a sample without a reward is wrong if another sample of its problem
        # has one.
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
