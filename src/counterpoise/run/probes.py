"""Choose the held-out answers that a run follows, its probes.

For some held-out problems (`probe_problems`) a run follows one right and one wrong response each,
as far as both were drawn. They come from the model itself and are verified, so that they are text
that the model may well write. They have a random stream of their own: a run with probes samples and
trains exactly as it would without. After `monitor.probe_refresh` iterations they are drawn again; a
problem that then has no right (or no wrong) response keeps its old one.

Problems, and with them their answers, are split into two halves, once for the run: `steer` may be
used to choose what is trained, `judge` only to say whether it helped. Where they do steer, probes
come from problems that evaluation leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope.probe_monitor import HALVES, ProbeAnswer
from counterpoise.model.load import Policy
from counterpoise.run.heldout import fit_evaluation_size
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.collect import SamplerBinding, draw_in_batches
from counterpoise.sample.episodes import sample_responses, score_episodes
from counterpoise.seeds import rng_for, seed_for
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.store.turns import messages_from_record
from counterpoise.task.read_files import Record, read_records
from counterpoise.types import Group, Ints, Prompt, Rollout, Row
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Verifier

SAMPLES = 4  # responses drawn for each problem in search of a right and a wrong one
# Tells the tensors of probes from those of waiting rows: a checkpoint stores both in `buffer`.
TENSOR_PREFIX = "probe_"
RIGHT, WRONG = 0, 1  # Row.index of the drawn answers to a problem


@dataclass(frozen=True, slots=True)
class ProbeCosts:
    """Costs of following one answer.

    The unit is what an iteration without probes spends on one rollout: sampling, scoring, training.
    """

    reading: float  # scoring it once; a measurement does so before and after the update
    pushes: float  # of the trained tokens on it, in one measurement
    drawing: float
    # Not a cost: the share of an iteration without probes that following all answers may add.
    share: float


# From measured seconds (`poise bench --parts probes`), rounded up. On a CPU, with 64 rollouts of 48
# tokens of the embedded model and 256 answers: 1.651 for an iteration without probes, 3.834 for two
# readings, 0.804 for the pushes, 3.724 to draw the answers. On an H200, with 512 rollouts of 384
# tokens of SmolLM2-135M's shape and 256 answers: 1.703, 0.207, 0.843 and 0.940; a later run was a
# little faster.
PROBE_COSTS = {
    "cpu": ProbeCosts(reading=0.29, pushes=0.13, drawing=0.57, share=0.15),
    "cuda": ProbeCosts(reading=0.12, pushes=0.99, drawing=1.10, share=0.10),
}


def probe_costs(device: torch.device) -> ProbeCosts:
    """The costs on a kind of device; those of a CPU where none were measured."""
    return PROBE_COSTS.get(device.type, PROBE_COSTS["cpu"])


def measurement_interval(
    device: torch.device, answers: int, rollouts: int, refresh: int = 0
) -> int:
    """Iterations from one measurement to the next, so that probes take at most `ProbeCosts.share`.

    A measurement reads the answers before and after an update; if every update is measured, one
    reading is both the end of a measurement and the beginning of the next. Answers are drawn every
    `refresh` iterations (0: never). Measurements get what drawing leaves of the share, but at least
    half of it. Answers are drawn only in iterations that measure, so probes keep to the share
    however many answers there are.

    Example:
        >>> cpu, gpu = torch.device("cpu"), torch.device("cuda")
        >>> [measurement_interval(cpu, answers, 128, 20) for answers in (32, 64, 220)]
        [1, 3, 13]
        >>> [measurement_interval(gpu, answers, 512, 20) for answers in (16, 256, 512)]
        [1, 9, 25]
    """
    costs = probe_costs(device)
    share = costs.share * rollouts / max(answers, 1)
    share = max(share / 2, share - (costs.drawing / refresh if refresh else 0.0))
    if share >= costs.reading + costs.pushes:
        return 1
    return math.ceil((2 * costs.reading + costs.pushes) / share)


@dataclass(frozen=True, slots=True, eq=False)
class ProbeSet:
    """The answers that are followed, and since when."""

    answers: tuple[ProbeAnswer, ...]
    from_file: bool = False  # `monitor.probe_file`: they are never drawn again
    since: int = 0  # the first iteration whose update they were measured in; 0: none yet

    def is_due(self, iteration: int, refresh: int) -> bool:
        """Whether the answers have to be drawn again in `iteration`.

        Answers that were not measured in any update yet are kept, however long reward balance
        holds the update back.
        """
        if not refresh or self.from_file or not self.since:
            return False
        return iteration - self.since >= refresh

    def to_record(self) -> dict[str, Any]:
        """A line of probes.jsonl, written by the first iteration that follows these answers."""
        return {"iteration": self.since, "answers": [_answer_record(a) for a in self.answers]}


def draw_probes(
    sampler: SamplerBinding,
    heldout: Sequence[Prompt],
    config: RunConfig,
    verifier: Verifier,
    iteration: int,
    earlier: ProbeSet | None = None,
) -> ProbeSet:
    """A right and a wrong response to each of `probe_problems`.

    Where none of that kind was drawn, the one of `earlier` stays, if there is one.
    """
    problems = probe_problems(heldout, config)
    seed = config.loop.seed
    seeds_PG = [
        [seed_for(seed, "probe", iteration, p * SAMPLES + g) for g in range(SAMPLES)]
        for p in range(len(problems))
    ]
    encoded = list(zip(problems, sampler.policy.encode_all(problems), strict=True))
    context = training_context(config, iteration - 1)  # it counts finished iterations
    responses_PG = draw_in_batches(
        lambda batch: sample_responses(
            sampler.policy,
            encoded[batch],
            seeds_PG[batch],
            config.sample,
            sampler.sample,
            sampler.episodes,
            context,
        ),
        len(problems),
        fit_evaluation_size(sampler, len(problems)),
    )
    responses = [response for responses_G in responses_PG for response in responses_G]
    prompts = [prompt for prompt in problems for _ in range(SAMPLES)]
    rewards = score_episodes(verifier, responses, prompts, context).rewards
    groups = build_groups(encoded, responses_PG, rewards, iteration)
    return choose_answers(groups, config.monitor.probe, seed, earlier)


def choose_answers(
    groups: Sequence[Group], most_answers: int, seed: int, earlier: ProbeSet | None = None
) -> ProbeSet:
    """A right and a wrong response of each group; where one is missing, the earlier answer."""
    rows = {answer.row.name: answer.row for answer in (earlier.answers if earlier else ())}
    for group in groups:
        # Reversed, so that the first response of each kind is the one that stays.
        for rollout in reversed(group.rollouts):
            if len(rollout.response_tokens) and not math.isnan(rollout.reward):
                kind = RIGHT if rollout.reward > 0 else WRONG
                row = _probe_row(rollout, kind, group.iteration)
                rows[row.name] = row
    problem_ids = [group.rollouts[0].prompt_id for group in groups]
    ordered_rows = [
        rows[problem_id, kind]
        for problem_id in problem_ids
        for kind in (RIGHT, WRONG)
        if (problem_id, kind) in rows
    ]
    return ProbeSet(_split_in_halves(ordered_rows[:most_answers], problem_ids, seed))


def probe_problems(heldout: Sequence[Prompt], config: RunConfig) -> Sequence[Prompt]:
    """The held-out problems whose answers are followed.

    In a run that they steer, these are problems that evaluation does not use.
    """
    num_skipped = config.evaluate.prompts if config.steers_by_probes else 0
    num_problems = math.ceil(config.monitor.probe / 2)  # two answers each
    return heldout[num_skipped : num_skipped + num_problems]


def load_probe_file(path: str, policy: Policy, config: RunConfig) -> ProbeSet:
    """The answers of `monitor.probe_file`; the first `monitor.probe` of them, 0 for all."""
    return read_answers(
        path, policy.tokenizer, policy.encode, config.monitor.probe, config.loop.seed
    )


def read_answers(
    path: str, tokenizer: Any, encode: Callable[[Prompt], Ints], most_answers: int, seed: int
) -> ProbeSet:
    """The first `most_answers` of a file, or all if that is 0; `encode` gives a prompt's tokens."""
    rows: list[Row] = []
    num_answers: dict[str, int] = {}
    for record in read_probe_records(path):
        rollout = _given_rollout(record, tokenizer, encode)
        index = num_answers.get(rollout.prompt_id, 0)
        num_answers[rollout.prompt_id] = index + 1
        rows.append(_probe_row(rollout, index, 0))
    rows = rows[: most_answers or None]
    problem_ids = list(dict.fromkeys(row.group for row in rows))
    return ProbeSet(_split_in_halves(rows, problem_ids, seed), from_file=True)


def read_probe_records(path: str) -> list[Record]:
    """The records of a probe file; the first one that holds no answer raises an error."""
    records = read_records(path)
    for record in records:
        values = record.values
        for field in ("prompt", "response"):
            if not isinstance(values.get(field), str) or not values[field].strip():
                raise PoiseError(f"{record.where}: a probe answer needs a text in '{field}'")
        reward = values.get("reward", 1.0)
        if isinstance(reward, bool) or not isinstance(reward, int | float) or math.isnan(reward):
            raise PoiseError(
                f"{record.where}: 'reward' must be a number, above 0 for a right answer"
            )
        try:
            messages_from_record(values)
        except (ValueError, TypeError):
            raise PoiseError(
                f"{record.where}: 'messages' must be a list of objects with role and content"
            ) from None
    return records


# -- checkpoints --------------------------------------------------------------------------------


def probes_to_tensors(probes: ProbeSet | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The probes as a record for JSON and tensors for safetensors, as `rows_to_tensors`."""
    if probes is None:
        return None, {}
    records, tensors = rows_to_tensors([answer.row for answer in probes.answers])
    record = {
        "given": probes.from_file,  # a name from older checkpoints
        "since": probes.since,
        "halves": [answer.half for answer in probes.answers],
        "rows": records,
    }
    return record, {f"{TENSOR_PREFIX}{name}": tensor for name, tensor in tensors.items()}


def probes_from_tensors(
    record: dict[str, Any] | None, tensors: Mapping[str, Tensor]
) -> ProbeSet | None:
    """The inverse of `probes_to_tensors`."""
    if record is None:
        return None
    own_tensors = {
        name.removeprefix(TENSOR_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(TENSOR_PREFIX)
    }
    rows = rows_from_tensors(record["rows"], own_tensors)
    answers = tuple(map(ProbeAnswer, rows, record["halves"]))
    return ProbeSet(answers, record["given"], record["since"])


# -- one answer ---------------------------------------------------------------------------------


def _split_in_halves(
    rows: Sequence[Row], problem_ids: Sequence[str], seed: int
) -> tuple[ProbeAnswer, ...]:
    """The answers with the half of their problem; a problem is in one half only."""
    order = rng_for(seed, "probe_halves").permutation(len(problem_ids))
    half_of_problem = {
        problem_ids[index]: HALVES[place % len(HALVES)] for place, index in enumerate(order)
    }
    return tuple(ProbeAnswer(row, half_of_problem[row.group]) for row in rows)


def _probe_row(rollout: Rollout, index: int, iteration: int) -> Row:
    """A row without an advantage: it pushes nothing."""
    return Row(
        rollout.prompt_id,
        advantage=0.0,
        num_tokens=len(rollout.response_tokens),
        index=index,
        born=iteration,
        rollout=rollout,
    )


def _given_rollout(record: Record, tokenizer: Any, encode: Callable[[Prompt], Ints]) -> Rollout:
    """A record of `read_probe_records`; lines of rollouts/ will do."""
    values = record.values
    prompt = Prompt(
        id=str(values.get("prompt_id", values["prompt"])),
        problem=values["prompt"],
        answer=str(values.get("answer", "")),
        messages=messages_from_record(values),
    )
    token_ids = tokenizer.encode(values["response"], add_special_tokens=False)
    finished = bool(values.get("finished", True))
    has_end_token = finished and tokenizer.eos_token_id is not None
    end_tokens = [tokenizer.eos_token_id] if has_end_token else []
    tokens = np.array([*token_ids, *end_tokens], dtype=np.int32)
    return Rollout(
        prompt_id=prompt.id,
        prompt=prompt.problem,
        answer=prompt.answer,
        response=values["response"],
        reward=float(values.get("reward", 1.0)),
        prompt_tokens=encode(prompt),
        response_tokens=tokens,
        # The answer was not sampled; nothing reads these.
        sampled_logprobs=np.zeros(len(tokens), dtype=np.float32),
        finished=finished,
        messages=prompt.messages,
    )


def _answer_record(answer: ProbeAnswer) -> dict[str, Any]:
    rollout = answer.row.content
    return {
        "problem_id": answer.problem,
        "problem": rollout.prompt,
        "answer": rollout.answer,  # the reference; the answer that is followed is `response`
        "response": rollout.response,
        "reward": rollout.reward,
        "half": answer.half,
        "drawn": answer.row.born,
        "response_tokens": rollout.response_tokens.tolist(),
    }
