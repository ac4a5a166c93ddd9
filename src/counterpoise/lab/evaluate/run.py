"""`poise eval`: evaluate models x sampling settings x benchmarks, a block of problems at a time.

    problems -> prompts -> responses -> rewards -> one line of results per problem

Problems are sampled in blocks of `rows / samples`, which are the same in every run. The seed of a
sample follows from the seed, the benchmark, the problem's id and the sample's number, not from the
block, the model or the temperature, so models and settings are compared on the same random numbers.
An interrupted block is sampled again completely and only its missing problems are written, so the
numbers equal those of an evaluation that was never stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch

from counterpoise.config import RunConfig, SampleConfig, VerifyConfig
from counterpoise.errors import PoiseError
from counterpoise.files import cannot_write, folder_lock
from counterpoise.lab.evaluate import models
from counterpoise.lab.evaluate.models import ModelSource
from counterpoise.lab.evaluate.plan import (
    MAX_NEW_TOKENS,
    EvaluationJob,
    EvaluationOptions,
    plan_jobs,
)
from counterpoise.lab.evaluate.progress import EvaluationProgress
from counterpoise.lab.evaluate.result_files import JudgedProblem, write_order
from counterpoise.lab.evaluate.summary import EvaluationSummary, write_summary
from counterpoise.model.fit_memory import explain_out_of_memory
from counterpoise.model.load import Policy
from counterpoise.plugins import is_plugin, pin_plugin
from counterpoise.sample.decode_graphs import release_graphs
from counterpoise.sample.sampler import Sampler
from counterpoise.store.folder import check_no_run
from counterpoise.task.benchmarks import benchmark_seeds
from counterpoise.types import Prompt, Response
from counterpoise.variants import SAMPLERS
from counterpoise.verify.code.sandbox import describe_protection
from counterpoise.verify.make_verifier import make_verifier
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.reward_signatures import describe_reward
from counterpoise.verify.scores import ScoringContext, Verifier, score_responses
from counterpoise.verify.time_limited_verifier import IN_AN_EVALUATION, count_lost_as_wrong

NO_MEMORY = "give a lower --rows or --max-tokens; results written so far are kept"
ENGINE_MEMORY = 0.7  # share of the GPU for vLLM, as nothing is trained at the same time


def evaluate(
    options: EvaluationOptions, progress: EvaluationProgress | None = None
) -> EvaluationSummary:
    """Run or continue the evaluation, and return the summary of all results."""
    progress = progress or EvaluationProgress()
    # A user's verifier is pinned by its content, which becomes part of every file's header.
    if is_plugin(options.verifier):
        options = replace(options, verifier=pin_plugin(options.verifier, Path()))
    jobs = plan_jobs(options)
    prepare_folder(options.out)
    with folder_lock(options.out):
        return fill_result_files(jobs, options, progress)


def fill_result_files(
    jobs: Sequence[EvaluationJob], options: EvaluationOptions, progress: EvaluationProgress
) -> EvaluationSummary:
    """Judge the missing problems of every result file, then write the summary."""
    for job in jobs:
        job.result_file.open()
    write_order(options.out, [job.result_file.header for job in jobs])
    total = sum(len(job.problems) * job.result_file.header.samples for job in jobs)
    missing = sum(len(job.missing) * job.result_file.header.samples for job in jobs)
    progress.start(total, total - missing)
    warn_about_short_responses(jobs, options, progress)
    if is_plugin(options.verifier):
        progress.warn(describe_reward(options.verifier))
    elif options.verifier == "code":
        progress.warn(describe_protection())
    limits = VerifyConfig(
        options.verifier,
        options.verify_seconds,
        options.reward_timeout_seconds,
        options.verify_workers,
    )
    verifier = make_verifier(limits, IN_AN_EVALUATION)
    try:
        # Jobs are ordered by model, so every model is loaded once.
        for source, source_jobs in groupby(jobs, key=lambda job: job.source):
            if pending := [job for job in source_jobs if job.missing]:
                progress.show_loading(source.label)
                judge_model(source, pending, verifier, options, progress)
    finally:
        verifier.close()
        progress.finish()
    return write_summary(options.out)


def warn_about_short_responses(
    jobs: Sequence[EvaluationJob], options: EvaluationOptions, progress: EvaluationProgress
) -> None:
    """Warn if the context is too short for full responses, which lowers the scores."""
    token_limits = {
        job.result_file.header.benchmark: job.result_file.header.max_new_tokens for job in jobs
    }
    for name, token_limit in token_limits.items():
        if options.max_new_tokens is None and token_limit < MAX_NEW_TOKENS:
            progress.warn(
                f"{name}: responses are cut at {token_limit:,} tokens: the context, or the "
                "results that the folder already holds, allow no more"
            )


def prepare_folder(out: Path) -> None:
    """Create the output folder; one that holds a run is an error."""
    if out.exists() and not out.is_dir():
        raise PoiseError(f"{out} is a file; --out must name a folder")
    check_no_run(out, "its evaluation")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise cannot_write(out, fault) from fault


def judge_model(
    source: ModelSource,
    jobs: Sequence[EvaluationJob],
    verifier: Verifier,
    options: EvaluationOptions,
    progress: EvaluationProgress,
) -> None:
    """Fill the result files of one model, then free its memory."""
    policy = models.load_model(source, options.device, options.dtype)
    sampler: Sampler = SAMPLERS.load(options.sampler)(policy, sampler_config(jobs, options))
    try:
        with explain_out_of_memory(NO_MEMORY):
            for job in jobs:
                fill_result_file(job, policy, sampler, verifier, progress)
    finally:
        sampler.close()
        release_graphs(policy.decoder)
        # Drop the references before emptying the cache, else the next model may not fit.
        del sampler, policy
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was never used


def sampler_config(jobs: Sequence[EvaluationJob], options: EvaluationOptions) -> RunConfig:
    """A configuration that makes the sampler reserve room for the longest prompt and response."""
    lengths = [max(map(len, job.prompt_tokens)) for job in jobs]
    total_tokens = max(
        length + job.result_file.header.max_new_tokens
        for length, job in zip(lengths, jobs, strict=True)
    )
    sample = SampleConfig(
        max_prompt_tokens=max(lengths),
        max_new_tokens=total_tokens - max(lengths),
        temperature=jobs[0].result_file.header.temperature,
        engine=options.sampler,
        engine_memory=ENGINE_MEMORY,
    )
    return RunConfig(sample=sample)


def fill_result_file(
    job: EvaluationJob,
    policy: Policy,
    sampler: Sampler,
    verifier: Verifier,
    progress: EvaluationProgress,
) -> None:
    header, judged = job.result_file.header, job.result_file.judged
    config = replace(
        SampleConfig(),
        temperature=header.temperature,
        top_p=header.top_p,
        max_new_tokens=header.max_new_tokens,
    )
    end_tokens = tuple(sorted({*policy.end_tokens, *job.added_end_tokens}))
    policy = replace(policy, end_tokens=end_tokens)
    # Blocks are cut by position, not by what is missing, so that a resumed evaluation samples
    # the same batches.
    block_size = max(1, header.rows // header.samples)
    for block_start in range(0, len(job.problems), block_size):
        block = job.problems[block_start : block_start + block_size]
        if all(prompt.id in judged for prompt in block):
            continue
        seeds = [
            benchmark_seeds(header.seed, header.benchmark, prompt, header.samples)
            for prompt in block
        ]
        block_responses = sampler(
            policy, job.prompt_tokens[block_start : block_start + block_size], seeds, config
        )
        # Problems that were judged before an interruption keep their first result.
        unjudged = [
            pair for pair in zip(block, block_responses, strict=True) if pair[0].id not in judged
        ]
        texts = [response.text for _, responses in unjudged for response in responses]
        prompts = [prompt for prompt, responses in unjudged for _ in responses]
        token_ids = [
            response.tokens.tolist() for _, responses in unjudged for response in responses
        ]
        context = ScoringContext(token_ids, data_source=header.benchmark)
        scores = score_responses(verifier, texts, prompts, context)
        if scores.timeouts or scores.crashes:
            progress.warn(
                f"{header.benchmark}: {scores.timeouts} answers took too long to verify and "
                f"{scores.crashes} crashed the verifier; they count as wrong"
            )
        rewards = iter(count_lost_as_wrong(scores))
        for prompt, responses in unjudged:
            job.result_file.write(
                make_judged_problem(prompt, responses, [next(rewards) for _ in responses])
            )
        num_tokens = sum(
            len(response.tokens) for _, responses in unjudged for response in responses
        )
        progress.advance(job.result_file, len(texts), num_tokens)


def make_judged_problem(
    prompt: Prompt, responses: Sequence[Response], rewards: Sequence[float]
) -> JudgedProblem:
    return JudgedProblem(
        id=prompt.id,
        problem=prompt.problem,
        answer=prompt.answer,
        rewards=list(rewards),
        votes=[extract_boxed(response.text) for response in responses],
        tokens=[len(response.tokens) for response in responses],
        finished=[response.finished for response in responses],
        responses=[response.text for response in responses],
    )
