"""Plan an evaluation: all its result files, and the prompts needed to fill them.

Everything that can fail early fails here, before a model is loaded: a missing benchmark, an answer
that the verifier cannot use, a template that the tokenizer does not have, a context that is too
short. The response length is what every model has room for after the benchmark's longest prompt (at
most 8,192), so that it is equal for all; if the folder already holds results of the benchmark, it
is theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.lab.evaluate import PAPER, models
from counterpoise.lab.evaluate.models import ModelSource
from counterpoise.lab.evaluate.result_files import ResultFile, ResultHeader, read_headers
from counterpoise.model import templates
from counterpoise.model.load import choose_device, choose_dtype
from counterpoise.task import benchmarks
from counterpoise.task.benchmarks import Benchmark
from counterpoise.types import Ints, Prompt
from counterpoise.variants import SAMPLERS, VERIFIERS
from counterpoise.verify.check_problems import check_problems
from counterpoise.verify.extra_rewards import verifier_needs

MAX_NEW_TOKENS = 8192  # the paper's response length, where the context has room for it


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `poise eval`; None means the benchmark's or the machine's default."""

    models: Sequence[str]
    out: Path
    benchmarks: Sequence[str] = PAPER
    data: Path | None = None  # None: download from the hub
    settings: Sequence[EvaluationSetting] = (EvaluationSetting(0.6, 0.95),)
    samples: Mapping[str, int] = field(default_factory=dict)  # by benchmark; "" for the others
    template: str | None = None
    max_new_tokens: int | None = None
    limit: int | None = None  # use only the first problems of each benchmark
    fields: Mapping[str, str] = field(default_factory=dict)  # role -> the file's name for it
    seed: int = 0
    rows: int | None = None
    sampler: str = "native"  # of variants.SAMPLERS
    device: str = "auto"
    dtype: str = "auto"
    verifier: str = "math"  # of variants.VERIFIERS, or FILE.py:FUNCTION
    verify_seconds: float = 5.0
    reward_timeout_seconds: float = 600.0  # for a call of a function; 0: no limit
    verify_workers: int = 2


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkProblems:
    """The problems of a benchmark and their digest."""

    benchmark: Benchmark
    problems: Sequence[Prompt]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompts:
    """The prompts of a benchmark, encoded for one model."""

    template: str
    prompt_tokens: list[Ints]  # by problem
    end_tokens: tuple[int, ...]  # added by the template


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationJob:
    """One result file and the prompts needed to fill it."""

    source: ModelSource
    result_file: ResultFile
    problems: Sequence[Prompt]
    prompt_tokens: Sequence[Ints]  # by problem
    added_end_tokens: tuple[int, ...]  # added by the template

    @property
    def missing(self) -> list[Prompt]:
        return [prompt for prompt in self.problems if prompt.id not in self.result_file.judged]


def plan_jobs(options: EvaluationOptions) -> list[EvaluationJob]:
    """All jobs in the order they are run: by model, then setting, then benchmark."""
    check_names(options)
    problem_sets = read_problems(options)
    sources = models.resolve_models(options.models)
    tokenizers_and_contexts = {source: models.tokenizer_and_context(source) for source in sources}
    prompts = {
        (source, problem_set): encode_prompts(
            problem_set, source, tokenizers_and_contexts[source][0], options
        )
        for source in sources
        for problem_set in problem_sets
    }
    # One limit per benchmark, so that all models may write equally long responses.
    stored_limits = read_stored_limits(options.out, {source.label for source in sources})
    max_new_tokens = {
        problem_set: choose_max_new_tokens(
            problem_set.benchmark.name,
            options,
            [
                (source, tokenizers_and_contexts[source][1], prompts[source, problem_set])
                for source in sources
            ],
            stored_limits.get(problem_set.benchmark.name, set()),
        )
        for problem_set in problem_sets
    }
    jobs = []
    for source in sources:
        for setting in options.settings:
            for problem_set in problem_sets:
                encoded = prompts[source, problem_set]
                header = make_header(
                    problem_set, source, setting, encoded, max_new_tokens[problem_set], options
                )
                result_file = ResultFile(options.out, header)
                jobs.append(
                    EvaluationJob(
                        source,
                        result_file,
                        problem_set.problems,
                        encoded.prompt_tokens,
                        encoded.end_tokens,
                    )
                )
    return jobs


def check_names(options: EvaluationOptions) -> None:
    if not options.benchmarks:
        raise PoiseError("--bench names no benchmark: give at least one, as in --bench math500")
    for name in options.samples:
        if name and name not in options.benchmarks:
            raise unknown_name("benchmark in --samples", name, options.benchmarks)
    for role in options.fields:
        if role not in benchmarks.ROLES:
            raise unknown_name("field in --fields", role, benchmarks.ROLES)
    if options.fields and options.data is None:
        raise PoiseError("--fields names fields of the files in --data: give --data too")
    if options.sampler not in SAMPLERS:
        raise unknown_name("sampler", options.sampler, SAMPLERS)
    VERIFIERS.load(options.verifier)  # fails for an unknown name or a missing function
    if options.verifier == "verifiers":
        raise PoiseError(
            "--verifier verifiers scores tasks of that package, and a benchmark has none: choose "
            "another --verifier"
        )
    for name, value, choices in (
        ("--device", options.device, ("auto", "cpu", "cuda")),
        ("--dtype", options.dtype, ("auto", "float32", "bfloat16")),
    ):
        if value not in choices:
            raise PoiseError(f"{name} {value}: give {', '.join(choices[:-1])} or {choices[-1]}")


def read_problems(options: EvaluationOptions) -> list[BenchmarkProblems]:
    """The problems of every benchmark, in the order given."""
    chosen_benchmarks = [
        benchmarks.find_benchmark(name, options.data) for name in options.benchmarks
    ]
    if duplicates := {
        benchmark.name for benchmark in chosen_benchmarks if chosen_benchmarks.count(benchmark) > 1
    }:
        raise PoiseError(f"benchmark '{min(duplicates)}' is named twice")
    problem_sets = []
    needed_columns, answers_required = verifier_needs(options.verifier)
    for benchmark in chosen_benchmarks:
        prompts = benchmarks.load_problems(
            benchmark,
            options.data,
            options.fields,
            needed_columns,
            answers_required=answers_required,
        )[: options.limit]
        check_problems(options.verifier, prompts)
        digest = benchmarks.digest_problems(prompts, needed_columns)
        problem_sets.append(BenchmarkProblems(benchmark, prompts, digest))
    return problem_sets


def encode_prompts(
    problem_set: BenchmarkProblems, source: ModelSource, tokenizer: Any, options: EvaluationOptions
) -> EncodedPrompts:
    """Encode the problems of a benchmark for one model."""
    template_name = options.template or problem_set.benchmark.template
    # `auto` means the template that the model's own run trained with, if there is one.
    template_name = source.template if template_name == templates.AUTO else template_name
    option_prefix = templates.COMMAND_OPTION
    template = templates.resolve_template(template_name, tokenizer, source.name, option_prefix)
    templates.check_chat_data(
        template_name, tokenizer, source.name, problem_set.problems, option_prefix
    )
    encoded = templates.encode_prompts(template, tokenizer, problem_set.problems, option_prefix)
    return EncodedPrompts(
        template,
        [np.array(ids, dtype=np.int32) for ids in encoded],
        templates.end_tokens(template, tokenizer, ()),
    )


def choose_max_new_tokens(
    name: str,
    options: EvaluationOptions,
    encoded_prompts: Sequence[tuple[ModelSource, int, EncodedPrompts]],
    stored_limits: Collection[int] = (),
) -> int:
    """Response tokens that every model has room for after the benchmark's longest prompt.

    Where the folder holds results of the benchmark, their limit is taken.
    """
    free_tokens = []
    for source, context, encoded in encoded_prompts:
        longest = max(map(len, encoded.prompt_tokens))
        free = context - longest
        if free < 1:
            raise PoiseError(
                f"{name}: its longest prompt has {longest:,} tokens with template "
                f"'{encoded.template}', and the context of '{source.name}' is {context:,}: leave "
                "the benchmark out, or choose a shorter --template"
            )
        if options.max_new_tokens and options.max_new_tokens > free:
            raise PoiseError(
                f"{name}: {longest:,} tokens of its longest prompt and --max-tokens "
                f"{options.max_new_tokens:,} exceed the context of '{source.name}', {context:,}: "
                f"--max-tokens {free} is the most"
            )
        free_tokens.append(free)
    if options.max_new_tokens or not stored_limits:
        return options.max_new_tokens or min(MAX_NEW_TOKENS, *free_tokens)
    stored_limit = max(stored_limits)
    if len(stored_limits) > 1 or stored_limit > min(free_tokens):
        limits = " and ".join(f"{limit:,}" for limit in sorted(stored_limits))
        raise PoiseError(
            f"{name}: the results in {options.out} have responses of up to {limits} tokens, and "
            f"the models named have room for {min(free_tokens):,}: give --max-tokens, or another "
            "--out"
        )
    return stored_limit


def read_stored_limits(out: Path, labels: Collection[str]) -> dict[str, set[int]]:
    """max_new_tokens of stored results, by benchmark: of the models named, else of all models."""
    headers = read_headers(out)
    of_models = _limits_by_benchmark([header for header in headers if header.model in labels])
    return _limits_by_benchmark(headers) | of_models


def _limits_by_benchmark(headers: Sequence[ResultHeader]) -> dict[str, set[int]]:
    limits: dict[str, set[int]] = {}
    for header in headers:
        limits.setdefault(header.benchmark, set()).add(header.max_new_tokens)
    return limits


def make_header(
    problem_set: BenchmarkProblems,
    source: ModelSource,
    setting: EvaluationSetting,
    encoded: EncodedPrompts,
    max_new_tokens: int,
    options: EvaluationOptions,
) -> ResultHeader:
    benchmark, samples = problem_set.benchmark, options.samples
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    return ResultHeader(
        model=source.label,
        name=source.name,
        weights=source.digest,
        benchmark=benchmark.name,
        title=benchmark.title,
        problems=len(encoded.prompt_tokens),
        problems_digest=problem_set.digest,
        temperature=setting.temperature,
        top_p=setting.top_p,
        samples=samples.get(benchmark.name, samples.get("", benchmark.samples)),
        template=encoded.template,
        max_new_tokens=max_new_tokens,
        sampler=options.sampler,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        rows=options.rows or benchmarks.default_rows(device),
        seed=options.seed,
        verifier=options.verifier,
    )
