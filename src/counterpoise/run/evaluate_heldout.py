"""Evaluate a run on its held-out problems and its benchmarks when an evaluation is due."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import parse_settings
from counterpoise.run.benchmarks import evaluate_benchmark, find_benchmark_lines
from counterpoise.run.heldout import evaluate_policy
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState, bind_sampler
from counterpoise.store.folder import RunFolder
from counterpoise.types import Prompt
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Verifier


def evaluation_due(state: RunState, heldout: Sequence[Prompt], config: RunConfig) -> bool:
    """Whether there is something to evaluate on and an evaluation follows this iteration."""
    options, iteration = config.evaluate, state.iteration
    is_regular = bool(options.every) and iteration % options.every == 0
    has_problems = len(heldout[: options.prompts]) > 0 or len(state.benchmarks) > 0
    return has_problems and (is_regular or iteration in (0, config.loop.iterations))


def evaluate(
    state: RunState,
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    folder: RunFolder,
    observer: RunObserver,
) -> None:
    """Success before training, after it, and every `evaluate.every` iterations.

    Every setting samples with the same seeds. A resumed run skips what is already evaluated.
    """
    if not evaluation_due(state, heldout, config):
        return
    if prompts := heldout[: config.evaluate.prompts]:
        _evaluate_heldout(state, prompts, config, verifier, folder, observer)
    if state.benchmarks:
        _evaluate_benchmarks(state, config, verifier, folder, observer)


def _evaluate_heldout(
    state: RunState,
    prompts: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    folder: RunFolder,
    observer: RunObserver,
) -> None:
    options, iteration, seed = config.evaluate, state.iteration, config.loop.seed
    existing_lines = [line for line in folder.read("evaluations") if line["iteration"] == iteration]
    for setting in parse_settings(options.settings, config.sample)[len(existing_lines) :]:
        start = time.perf_counter()
        observer.on_evaluation_start(len(prompts), options.samples)
        sample_config = setting.apply_to(config.sample)
        success = evaluate_policy(
            bind_sampler(state),
            prompts,
            options.samples,
            sample_config,
            verifier,
            seed,
            training_context(config, iteration),
        )
        folder.append(
            "evaluations",
            {
                "iteration": iteration,
                **asdict(setting),
                **success.to_record(),
                "evaluate_seconds": time.perf_counter() - start,
            },
        )
        observer.on_evaluation(iteration, success, setting)


def _evaluate_benchmarks(
    state: RunState,
    config: RunConfig,
    verifier: Verifier,
    folder: RunFolder,
    observer: RunObserver,
) -> None:
    """A line of benchmarks.jsonl for each benchmark and setting."""
    iteration = state.iteration
    existing_lines = find_benchmark_lines(folder.read("benchmarks"), iteration)
    for setting in parse_settings(config.evaluate.settings, config.sample):
        for run_benchmark in state.benchmarks:
            benchmark = run_benchmark.benchmark
            if (benchmark.name, setting.temperature, setting.top_p) in existing_lines:
                continue
            start = time.perf_counter()
            observer.on_evaluation_start(
                len(run_benchmark.problems), run_benchmark.samples, benchmark.title
            )
            result = evaluate_benchmark(
                bind_sampler(state),
                run_benchmark,
                setting.apply_to(config.sample),
                verifier,
                config.loop.seed,
            )
            folder.append(
                "benchmarks",
                {
                    "iteration": iteration,
                    "benchmark": benchmark.name,
                    "title": benchmark.title,
                    **asdict(setting),
                    **result.to_record(),
                    "evaluate_seconds": time.perf_counter() - start,
                },
            )
            observer.on_evaluation(iteration, result.success, setting, benchmark.title)
