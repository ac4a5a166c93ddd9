"""`poise eval`: models x ways of sampling x benchmarks, a block of problems at a time.

    problems -> prompts -> responses -> rewards -> a line of results a problem

Problems are drawn in blocks of `rows / samples`, cut the same way every time. The seed of a sample
follows from the seed, the benchmark, the problem's id and the sample's number, not from the block,
the model or the temperature: models and settings are compared on the same draws. A block that was
cut short is drawn again whole and only what is missing is written, so the numbers are those of an
evaluation that was never stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.files import alone
from counterpoise.lab.evaluate import models
from counterpoise.lab.evaluate.models import ModelSource
from counterpoise.lab.evaluate.plan import (
    MAX_NEW_TOKENS,
    EvaluationJob,
    EvaluationOptions,
    plan_jobs,
)
from counterpoise.lab.evaluate.progress import EvaluationProgress
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultHeader, write_order
from counterpoise.lab.evaluate.summary import EvaluationSummary, write_summary
from counterpoise.model.fit_memory import explained
from counterpoise.model.load import Policy
from counterpoise.plugins import is_own, pinned
from counterpoise.sample.decode_graphs import release
from counterpoise.sample.sampler import Sampler
from counterpoise.seeds import seed_for
from counterpoise.store.folder import check_no_run
from counterpoise.types import Prompt, Response
from counterpoise.variants import SAMPLERS, VERIFIERS
from counterpoise.verify.math.boxed import boxed
from counterpoise.verify.scores import Verifier, verified

NO_MEMORY = "give a lower --rows or --max-tokens; what is written so far is kept"
ENGINE_MEMORY = 0.7  # of a GPU, where vLLM draws: nothing is trained beside it


def evaluate(
    options: EvaluationOptions, progress: EvaluationProgress | None = None
) -> EvaluationSummary:
    """A verifier of the user's is pinned: its content is in the header of every file."""
    progress = progress or EvaluationProgress()
    if is_own(options.verifier):
        options = replace(options, verifier=pinned(options.verifier, Path()))
    works = plan_jobs(options)
    prepare_folder(options.out)
    with alone(options.out):
        return fill_result_files(works, options, progress)


def fill_result_files(
    works: Sequence[EvaluationJob], options: EvaluationOptions, watch: EvaluationProgress
) -> EvaluationSummary:
    """What is missing of every file; then the summary of all."""
    for work in works:
        work.result_file.open()
    write_order(options.out, [work.result_file.header for work in works])
    total = sum(len(work.problems) * work.result_file.header.samples for work in works)
    missing = sum(len(work.missing) * work.result_file.header.samples for work in works)
    watch.started(total, total - missing)
    warn_about_short_responses(works, options, watch)
    make_verifier = VERIFIERS.load(options.verifier)
    verifier: Verifier = make_verifier(options.verify_seconds, options.verify_workers)
    try:
        for source, group in groupby(works, key=lambda work: work.source):
            if pending := [work for work in group if work.missing]:
                watch.loading(source.label)
                judge_model(source, pending, verifier, options, watch)
    finally:
        verifier.close()
        watch.finished()
    return write_summary(options.out)


def warn_about_short_responses(
    works: Sequence[EvaluationJob], options: EvaluationOptions, watch: EvaluationProgress
) -> None:
    """Fewer tokens than were meant are another measurement: that is said."""
    rooms = {
        work.result_file.header.benchmark: work.result_file.header.max_new_tokens for work in works
    }
    for name, room in rooms.items():
        if options.max_new_tokens is None and room < MAX_NEW_TOKENS:
            watch.say(f"{name}: responses are cut at {room:,} tokens, all that the context leaves")


def prepare_folder(out: Path) -> None:
    """A folder to write to that holds no run."""
    if out.exists() and not out.is_dir():
        raise PoiseError(f"{out} is a file; --out must name a folder")
    check_no_run(out, "its evaluation")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise PoiseError(f"{out} cannot be written: {fault.strerror}") from fault


def judge_model(
    source: ModelSource,
    works: Sequence[EvaluationJob],
    verifier: Verifier,
    options: EvaluationOptions,
    watch: EvaluationProgress,
) -> None:
    """Fill the files of one model; its memory is given back afterwards."""
    policy = models.load_model(source, options.device, options.dtype)
    sampler: Sampler = SAMPLERS.load(options.sampler)(policy, sampler_config(works, options))
    try:
        with explained(NO_MEMORY):
            for work in works:
                fill_result_file(work, policy, sampler, verifier, watch)
    finally:
        sampler.close()
        release(policy.decoder)
        del sampler, policy
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was never used


def sampler_config(works: Sequence[EvaluationJob], options: EvaluationOptions) -> RunConfig:
    """What a sampler must have room for, as the run it would be made for."""
    lengths = [max(map(len, work.prompt_tokens)) for work in works]
    room = max(
        length + work.result_file.header.max_new_tokens
        for length, work in zip(lengths, works, strict=True)
    )
    sample = SampleConfig(
        max_prompt_tokens=max(lengths),
        max_new_tokens=room - max(lengths),
        temperature=works[0].result_file.header.temperature,
        engine=options.sampler,
        engine_memory=ENGINE_MEMORY,
    )
    return RunConfig(sample=sample)


def fill_result_file(
    work: EvaluationJob,
    policy: Policy,
    sampler: Sampler,
    verifier: Verifier,
    watch: EvaluationProgress,
) -> None:
    header, done = work.result_file.header, work.result_file.judged
    config = replace(
        SampleConfig(),
        temperature=header.temperature,
        top_p=header.top_p,
        max_new_tokens=header.max_new_tokens,
    )
    ends = tuple(sorted({*policy.end_tokens, *work.added_end_tokens}))
    policy = replace(policy, end_tokens=ends)
    size = max(1, header.rows // header.samples)
    for start in range(0, len(work.problems), size):
        block = work.problems[start : start + size]
        if all(prompt.id in done for prompt in block):
            continue
        seeds = [seeds_for(header, prompt) for prompt in block]
        drawn = sampler(policy, work.prompt_tokens[start : start + size], seeds, config)
        left = [pair for pair in zip(block, drawn, strict=True) if pair[0].id not in done]
        texts = [response.text for _, responses in left for response in responses]
        asked = [prompt for prompt, responses in left for _ in responses]
        scores = verified(verifier, texts, asked)
        if scores.timeouts or scores.crashes:
            watch.say(
                f"{header.benchmark}: {scores.timeouts} answers took too long to verify and "
                f"{scores.crashes} crashed the verifier: they count as wrong"
            )
        rewards = iter(scores.rewards)
        for prompt, responses in left:
            work.result_file.write(
                make_judged_problem(prompt, responses, [next(rewards) for _ in responses])
            )
        tokens = sum(len(r.tokens) for _, responses in left for r in responses)
        watch.advanced(work.result_file, len(texts), tokens)


def seeds_for(header: ResultHeader, prompt: Prompt) -> list[int]:
    stage = f"eval/{header.benchmark}/{prompt.id}"
    return [seed_for(header.seed, stage, 0, g) for g in range(header.samples)]


def make_judged_problem(
    prompt: Prompt, responses: Sequence[Response], rewards: Sequence[float]
) -> JudgedProblem:
    return JudgedProblem(
        id=prompt.id,
        problem=prompt.problem,
        answer=prompt.answer,
        rewards=list(rewards),
        votes=[boxed(response.text) for response in responses],
        tokens=[len(response.tokens) for response in responses],
        finished=[response.finished for response in responses],
        responses=[response.text for response in responses],
    )
