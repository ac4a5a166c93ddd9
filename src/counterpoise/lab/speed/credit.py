r"""Measure what every token weighting and every step rule adds to an iteration.

    python -m counterpoise.lab.speed.credit                              # embedded model, 16 x 8
    python -m counterpoise.lab.speed.credit --model shape:smollm2-135m   # on a GPU: 64 x 8 x 128
    python -m counterpoise.lab.speed.credit --methods oar_g grail:which=both --repeats 5

An iteration is sampling, credit and composing, old log-probabilities, and the update in four steps,
once without the monitor and once with it, as runs have it by default. All methods get the same
rollouts, and the weights do not change (the learning rate is 0), so the rows do not differ between
methods.

    adds      (credit, composing and old log-probabilities with the method - the same without it)
              / an iteration without it; for a step rule, the difference of the updates
    passes    what it adds / one forward pass of the rows with signal

Old log-probabilities are included because a method that has already scored the rows saves that
pass. Seconds are the median over turns, in each of which all methods run one after the other:
processor time on a CPU, which other processes hardly disturb, and wall time on a GPU, including
everything that was queued.

A model with random weights (`shape:NAME`) never writes a box, so one is planted at the end of every
response, where it costs most to evaluate, and right and wrong alternate. Its responses all have
the full length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise import loop
from counterpoise.batch.compose import compose
from counterpoise.config import (
    BatchConfig,
    CreditConfig,
    ModelConfig,
    MonitorConfig,
    RunConfig,
    SampleConfig,
    UpdateConfig,
)
from counterpoise.credit.answer_spans import locate_answer
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import synchronize
from counterpoise.lab.speed.machine_sizes import describe_machine
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable, make_console, print_table
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.pieces import split_into_pieces
from counterpoise.model.scoring import score_logprobs
from counterpoise.run.state import RunState, new_state
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.task.word_problems import make_problem
from counterpoise.types import BatchPlan, Group, Prompt, Response, Row
from counterpoise.update.reference import copy_weights
from counterpoise.update.rules.bind import reads_initial_weights
from counterpoise.variants import STEP_RULES, TOKEN_WEIGHTS, VERIFIERS

SHARE_LIMITS = {"oar_g": 30.0, "grail": 30.0, "grail:which=both": 30.0, "shear": 30.0}  # percent
PASSES_LIMITS = {"oar_p_approximate": 8.0}
EXTRA_METHODS = ("grail:which=both", "oar_g:compare=answer_joint", "shear:width=16,stride=4")
# Distinct tokens of a made-up batch: about as many as real text has, as each is looked up once.
TOKEN_KINDS = 1000
# serl needs episodes, crpo needs anchors (sample.anchors), aligned needs held-out answers.
SKIPPED_METHODS = ("uniform", "off", "serl", "crpo", "aligned")


@dataclass(frozen=True, slots=True)
class CreditMethod:
    """A method and its settings, such as `grail:which=both`, as credit options."""

    name: str
    options: CreditConfig

    @classmethod
    def read(cls, text: str) -> CreditMethod:
        name, _, settings = text.partition(":")
        setting_list = [setting for setting in settings.split(",") if setting]
        if name in STEP_RULES:
            return cls(text, CreditConfig(rule=name, rule_settings=setting_list))
        if name not in TOKEN_WEIGHTS:
            raise unknown_name("method", name, [*TOKEN_WEIGHTS, *STEP_RULES])
        return cls(text, CreditConfig(weights=name, settings=setting_list))

    @property
    def is_rule(self) -> bool:
        return self.options.rule != "off"


@dataclass(slots=True)
class StageTimes:
    """Seconds of every turn, by stage or by method."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def median_difference(self, name: str, other: str) -> float:
        """Median of the differences, turn by turn."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(seconds - other_seconds for seconds, other_seconds in pairs)


# -- rollouts ------------------------------------------------------------------------------------


def has_random_weights(config: RunConfig) -> bool:
    return config.model.name.startswith("shape:")


def load_measured_policy(config: RunConfig) -> Policy:
    return (
        workload.load_endless_policy(config.model.name)
        if has_random_weights(config)
        else load_policy(config.model)
    )


def draw_rollouts(
    state: RunState, config: RunConfig, turn_number: int
) -> tuple[list[Prompt], list[list[Response]]]:
    policy, (P, G) = state.policy, (config.sample.prompts, config.sample.group_size)
    prompts = [make_problem("train", turn_number * P + p, (3,)) for p in range(P)]
    seeds_PG = [[seed_for(0, "sample", turn_number, p * G + g) for g in range(G)] for p in range(P)]
    tokens = [policy.encode(prompt) for prompt in prompts]
    return prompts, sample(policy, tokens, seeds_PG, config.sample)


def make_groups(
    state: RunState,
    config: RunConfig,
    prompts: Sequence[Prompt],
    responses_PG: Sequence[Sequence[Response]],
    turn_number: int,
) -> list[Group]:
    flat_responses = [response for responses in responses_PG for response in responses]
    if has_random_weights(config):
        responses_PG = [
            [plant_box(state.policy, response) for response in responses]
            for responses in responses_PG
        ]
        rewards = workload.alternating_rewards(len(flat_responses))
    else:
        verifier = VERIFIERS.load("math")(5.0, 1)
        G = config.sample.group_size
        answers = [prompt.answer for prompt in prompts for _ in range(G)]
        rewards = verifier.score([response.text for response in flat_responses], answers).rewards
        verifier.close()
    encoded = [(prompt, state.policy.encode(prompt)) for prompt in prompts]
    return build_groups(encoded, responses_PG, rewards, turn_number)


def plant_box(policy: Policy, response: Response) -> Response:
    r"""The response with \boxed{12} at its end, and no more distinct tokens than real text has."""
    box = np.array(policy.tokenizer.encode(" \\boxed{12}", add_special_tokens=False), np.int32)
    tokens = np.concatenate((TOKEN_KINDS + response.tokens[: -len(box)] % TOKEN_KINDS, box))
    return replace(response, tokens=tokens.astype(np.int32), text=policy.decode_rows([tokens])[0])


def share_with_answer(policy: Policy, rows: Sequence[Row]) -> float:
    """The share of rows that contain an answer."""
    pieces = split_into_pieces(policy, [row.content.response_tokens for row in rows])
    return sum(locate_answer(piece) is not None for piece in pieces) / max(1, len(rows))


# -- measuring -----------------------------------------------------------------------------------


def time_task(task: Callable[[], object], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    synchronize(device)
    start_time = clock()
    task()
    synchronize(device)
    return clock() - start_time


def assign_credit(
    state: RunState, config: RunConfig, groups: Sequence[Group]
) -> tuple[list[Row], BatchPlan]:
    """What an iteration does between the verifier and the update."""
    reader = loop.make_policy_reader(state, config)
    rows = [row for group in loop.assign_credit(groups, config, reader) for row in group]
    plan = compose(config.batch.composer, rows, config.batch.steps, 0)
    return loop.with_old_logprobs(state, rows, plan, config, reader.scores), plan


def measure_turn(
    state: RunState,
    config: RunConfig,
    methods: Sequence[CreditMethod],
    turn_number: int,
    say: Callable[[str], None],
) -> tuple[StageTimes, list[Row]]:
    """The seconds of every stage and method in one turn, and the rows of the turn."""
    device, times = state.policy.device, StageTimes()
    state.iteration = turn_number
    results: list[Any] = []
    times.add(
        "sample",
        time_task(lambda: results.append(draw_rollouts(state, config, turn_number)), device),
    )
    prompts, responses = results.pop()
    groups = make_groups(state, config, prompts, responses, turn_number)
    times.add(
        "uniform", time_task(lambda: results.append(assign_credit(state, config, groups)), device)
    )
    rows, plan = results.pop()
    rows_with_signal = [row for row in rows if row.sign]
    read_passes, temperature = state.passes.read, config.sample.temperature

    def forward() -> object:
        return score_logprobs(
            state.policy, rows_with_signal, temperature, state.micro_batch, read_passes
        )

    times.add("forward", time_task(forward, device))
    times.add("update", time_task(lambda: loop.update(state, rows, plan, config), device))
    monitored_config = replace(config, monitor=MonitorConfig())
    monitor = loop.make_monitor(state, rows, plan, monitored_config)
    seconds = time_task(lambda: loop.update(state, rows, plan, config, monitor), device)
    times.add("update, monitored", seconds)
    for method in methods:
        say(f"turn {turn_number}: {method.name}")
        method_config = replace(config, credit=method.options)
        if method.is_rule:
            state.initial_weights = (
                copy_weights(state.policy) if reads_initial_weights(method.options) else None
            )
            task: Callable[[], object] = partial(loop.update, state, rows, plan, method_config)
        else:
            task = partial(assign_credit, state, method_config, groups)
        times.add(method.name, time_task(task, device))
    return times, rows


def measure_methods(
    config: RunConfig, methods: Sequence[CreditMethod], repeats: int, say: Callable[[str], None]
) -> tuple[StageTimes, dict[str, Any]]:
    say(f"loading {config.model.name}")
    state = new_state(load_measured_policy(config), config)
    warm_up = 2 if state.policy.device.type == "cuda" else 0  # kernels compile, graphs are captured
    all_times = StageTimes()
    rows: list[Row] = []
    for turn in range(warm_up + repeats):
        times, rows = measure_turn(state, config, methods, turn + 1, say)
        if turn >= warm_up:
            for name, (seconds,) in times.seconds.items():
                all_times.add(name, seconds)
    rows_with_signal = [row for row in rows if row.sign]
    prompt_lengths = {row.group: len(row.content.prompt_tokens) for row in rows_with_signal}
    facts = {
        "rows with signal": len(rows_with_signal),
        "tokens": sum(row.num_tokens for row in rows_with_signal),
        "prompt tokens": sum(prompt_lengths.values()),
        "boxed": share_with_answer(state.policy, rows_with_signal),
        "dtype": str(state.policy.decoder.dtype).removeprefix("torch."),
    }
    return all_times, facts


def cost_table(
    times: StageTimes, facts: dict[str, Any], config: RunConfig, methods: Sequence[CreditMethod]
) -> MeasurementTable:
    iteration = times["sample"] + times["uniform"] + times["update"]
    stages = {"sample": times["sample"], "credit, compose and score": times["uniform"],
              "update": times["update"]}  # fmt: skip
    monitor_seconds = times.median_difference("update, monitored", "update")
    rows, limit_checks, data = [], [], {}
    for method in methods:
        added_seconds = times.median_difference(
            method.name, "update" if method.is_rule else "uniform"
        )
        share, passes = 100 * added_seconds / iteration, added_seconds / times["forward"]
        monitored_share = 100 * added_seconds / (iteration + monitor_seconds)
        kind = "rule" if method.is_rule else "weights"
        cells = (
            f"{added_seconds:.3f} s",
            f"{share:.0f} %",
            f"{monitored_share:.0f} %",
            f"{passes:.1f}",
        )
        rows.append([method.name, kind, *cells])
        data[method.name] = {
            "seconds": added_seconds,
            "share": share / 100,
            "share with the monitor": monitored_share / 100,
            "passes": passes,
        }
        if method.name in SHARE_LIMITS:
            limit_checks.append(
                LimitCheck(f"{method.name} adds", share, SHARE_LIMITS[method.name], "%")
            )
        if method.name in PASSES_LIMITS:
            limit_checks.append(
                LimitCheck(f"{method.name} passes", passes, PASSES_LIMITS[method.name])
            )
    stage_list = ", ".join(f"{name} {seconds:.3f}" for name, seconds in stages.items())
    size, steps = config.sample, config.batch.steps
    fact_line = ", ".join(
        f"{name} {value:.0%}" if name == "boxed" else f"{name} {value}"
        for name, value in facts.items()
    )
    return MeasurementTable(
        title=f"credit: {config.model.name}, {size.prompts} x {size.group_size} x "
        f"{size.max_new_tokens}, {steps} steps",
        columns=("method", "kind", "adds", "of an iteration", "with the monitor", "forward passes"),
        rows=rows,
        limit_checks=limit_checks,
        notes=[
            f"an iteration without: {iteration:.3f} s ({stage_list}); "
            f"the monitor: {monitor_seconds:.3f} s; a forward pass: {times['forward']:.3f} s",
            fact_line,
        ],
        data={
            "iteration": iteration, "stages": stages, "monitor": monitor_seconds, "methods": data,
            "facts": facts, "seconds": times.seconds,
        },
    )  # fmt: skip


def make_config(args: argparse.Namespace) -> RunConfig:
    large = args.model.startswith("shape:")
    prompts, length = args.prompts or (64 if large else 16), args.length or (128 if large else 112)
    return RunConfig(
        model=ModelConfig(name=args.model),
        sample=SampleConfig(prompts=prompts, group_size=args.group, max_new_tokens=length),
        batch=BatchConfig(composer="grouped", steps=args.steps),
        update=UpdateConfig(lr=0.0),
        monitor=MonitorConfig(every=0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--methods", nargs="*", default=[], help="NAME or NAME:setting=value,...")
    parser.add_argument("--prompts", type=int, help="default: 16, or 64 for a shape")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--length", type=int, help="new tokens; default: 112, or 128 for a shape")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("out/credit.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console = make_console()
    all_methods = [name for name in (*TOKEN_WEIGHTS, *STEP_RULES) if name not in SKIPPED_METHODS]

    def say(text: str) -> None:
        console.print(text, style="dim", highlight=False, markup=False)

    try:
        methods = [
            CreditMethod.read(text) for text in args.methods or [*all_methods, *EXTRA_METHODS]
        ]
        config = make_config(args)
        times, facts = measure_methods(config, methods, args.repeats, say)
    except PoiseError as fault:
        sys.exit(f"credit: {fault}")
    measurement = cost_table(times, facts, config, methods)
    print_table(measurement, console)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": describe_machine(), **measurement.as_json()}
    args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    console.print(f"\n{args.json}", highlight=False, markup=False)


if __name__ == "__main__":
    main()
