"""What an evaluation will do: every file of results, and the prompts it takes to fill it.

All that can be refused is refused here, before a model is loaded: a benchmark that is not there, a
template the tokenizer cannot write, a context too short. New tokens are as many as every model has
room for after a benchmark's longest prompt (8,192 at most), so that models are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.config.evaluation_settings import Setting
from counterpoise.errors import PoiseError, unknown
from counterpoise.lab.evaluate import PAPER, benchmarks, models
from counterpoise.lab.evaluate.benchmarks import Benchmark
from counterpoise.lab.evaluate.models import ModelSource
from counterpoise.lab.evaluate.result_files import ResultFile, ResultHeader
from counterpoise.model import templates
from counterpoise.model.load import choose_device, choose_dtype
from counterpoise.plugins import is_own
from counterpoise.types import Ints, Prompt
from counterpoise.variants import SAMPLERS, VERIFIERS
from counterpoise.verify.plugin_reward import wanted

ROWS_CPU, ROWS_CUDA = 256, 1024  # responses drawn together
MAX_NEW_TOKENS = (
    8192  # new tokens, where the context has room for them: the paper's response length
)


@dataclass(frozen=True)
class EvaluationOptions:
    """What `poise eval` takes; None is a benchmark's own, or the machine's."""

    models: Sequence[str]
    out: Path
    benchmarks: Sequence[str] = PAPER
    data: Path | None = None  # None: the hub
    settings: Sequence[Setting] = (Setting(0.6, 0.95),)
    samples: Mapping[str, int] = field(default_factory=dict)  # by benchmark; "" for the others
    template: str | None = None
    max_new_tokens: int | None = None
    limit: int | None = None  # problems of each benchmark, from its first
    fields: Mapping[str, str] = field(default_factory=dict)  # role -> the file's name for it
    seed: int = 0
    rows: int | None = None
    sampler: str = "native"  # of sample.SAMPLERS
    device: str = "auto"
    dtype: str = "auto"
    verifier: str = "math"  # of verify.VERIFIERS, or FILE.py:FUNCTION
    verify_seconds: float = 5.0
    verify_workers: int = 2


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkProblems:
    """The problems of a benchmark, and a digest that changes with any of them."""

    benchmark: Benchmark
    problems: Sequence[Prompt]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompts:
    """The problems of a benchmark as one model reads them."""

    template: str
    prompt_tokens: list[Ints]  # a prompt each
    end_tokens: tuple[int, ...]  # end tokens that the template brings


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationJob:
    """One file of results, and what it takes to fill it."""

    source: ModelSource
    result_file: ResultFile
    problems: Sequence[Prompt]
    prompt_tokens: Sequence[Ints]  # of the prompts
    added_end_tokens: tuple[int, ...]  # that the template brings

    @property
    def missing(self) -> list[Prompt]:
        return [prompt for prompt in self.problems if prompt.id not in self.result_file.judged]


def plan_jobs(options: EvaluationOptions) -> list[EvaluationJob]:
    """In the order it is done: model by model, then setting, then benchmark."""
    check_names(options)
    asked = read_problems(options)
    found = models.resolve_models(options.models)
    known = {source: models.tokenizer_and_context(source) for source in found}
    prompts = {
        (source, one): encode_prompts(one, source, known[source][0], options)
        for source in found
        for one in asked
    }
    rooms = {
        one: choose_max_new_tokens(
            one.benchmark.name, options, [(s, known[s][1], prompts[s, one]) for s in found]
        )
        for one in asked
    }
    works = []
    for source in found:
        for setting in options.settings:
            for one in asked:
                said = prompts[source, one]
                header = make_header(one, source, setting, said, rooms[one], options)
                cell = ResultFile(options.out, header)
                works.append(
                    EvaluationJob(source, cell, one.problems, said.prompt_tokens, said.end_tokens)
                )
    return works


def check_names(options: EvaluationOptions) -> None:
    if not options.benchmarks:
        raise PoiseError("--bench names no benchmark: give one, as --bench math500")
    for name in options.samples:
        if name and name not in options.benchmarks:
            raise unknown("benchmark in --samples", name, options.benchmarks)
    for role in options.fields:
        if role not in benchmarks.ROLES:
            raise unknown("field in --fields", role, benchmarks.ROLES)
    if options.sampler not in SAMPLERS:
        raise unknown("sampler", options.sampler, SAMPLERS)
    VERIFIERS.load(options.verifier)  # an unknown name, or a function that is not there
    for name, given, choices in (
        ("--device", options.device, ("auto", "cpu", "cuda")),
        ("--dtype", options.dtype, ("auto", "float32", "bfloat16")),
    ):
        if given not in choices:
            raise PoiseError(f"{name} {given}: give {', '.join(choices[:-1])} or {choices[-1]}")


def read_problems(options: EvaluationOptions) -> list[BenchmarkProblems]:
    """Of every benchmark, in the order asked for."""
    found = [benchmarks.find_benchmark(name, options.data) for name in options.benchmarks]
    if twice := {one.name for one in found if found.count(one) > 1}:
        raise PoiseError(f"benchmark '{min(twice)}' is named twice")
    asked = []
    keep = wanted(options.verifier).columns if is_own(options.verifier) else ()
    for one in found:
        prompts = benchmarks.load_problems(one, options.data, options.fields, keep)[: options.limit]
        asked.append(BenchmarkProblems(one, prompts, benchmarks.digest_problems(prompts)))
    return asked


def encode_prompts(
    one: BenchmarkProblems, source: ModelSource, tokenizer: Any, options: EvaluationOptions
) -> EncodedPrompts:
    """The problems as one model reads them."""
    name = options.template or one.benchmark.template
    name = source.template if name == templates.AUTO else name
    template = templates.resolve(name, tokenizer, source.name, remedy="give --template ")
    encoded = (templates.encode(template, tokenizer, prompt.problem) for prompt in one.problems)
    return EncodedPrompts(
        template,
        [np.array(ids, dtype=np.int32) for ids in encoded],
        templates.end_tokens(template, tokenizer, ()),
    )


def choose_max_new_tokens(
    name: str, options: EvaluationOptions, put_to: Sequence[tuple[ModelSource, int, EncodedPrompts]]
) -> int:
    """New tokens that every model has room for after the longest prompt of the benchmark."""
    rooms = []
    for source, context, said in put_to:
        longest = max(map(len, said.prompt_tokens))
        room = context - longest
        if room < 1:
            raise PoiseError(
                f"{name}: its longest prompt has {longest:,} tokens with template "
                f"'{said.template}', and the context of '{source.name}' is {context:,}: leave the "
                "benchmark out, or choose a shorter --template"
            )
        if options.max_new_tokens and options.max_new_tokens > room:
            raise PoiseError(
                f"{name}: {longest:,} tokens of its longest prompt and --max-tokens "
                f"{options.max_new_tokens:,} exceed the context of '{source.name}', {context:,}: "
                f"--max-tokens {room} is the most"
            )
        rooms.append(room)
    return options.max_new_tokens or min(MAX_NEW_TOKENS, *rooms)


def make_header(
    one: BenchmarkProblems,
    source: ModelSource,
    setting: Setting,
    said: EncodedPrompts,
    room: int,
    options: EvaluationOptions,
) -> ResultHeader:
    benchmark, samples = one.benchmark, options.samples
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    return ResultHeader(
        model=source.label,
        name=source.name,
        weights=source.digest,
        benchmark=benchmark.name,
        title=benchmark.title,
        problems=len(said.prompt_tokens),
        problems_digest=one.digest,
        temperature=setting.temperature,
        top_p=setting.top_p,
        samples=samples.get(benchmark.name, samples.get("", benchmark.samples)),
        template=said.template,
        max_new_tokens=room,
        sampler=options.sampler,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        rows=options.rows or (ROWS_CUDA if device.type == "cuda" else ROWS_CPU),
        seed=options.seed,
        verifier=options.verifier,
    )
