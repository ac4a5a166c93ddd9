"""Do objectives that keep a group's pulls exchangeable drift less, and train better?

A pull is -dL/dlogp of a token, A_i w_i in the paper's terms. The paper: intra-group objectives must
keep gradients exchangeable, sum_i A_i w_i = 0 on a token that all rollouts of a group share, so
that tokens without credit cancel. Ratios of whole sequences (GSPO) and clipping (GRPO) break that,
which is paid for in updates of such tokens (learning tax), in drift between equally right answers,
in entropy and in the end in success. T1 (min_replace) and T2 (orthogonal) repair it.

Six objectives, from the same weights, on the same prompts, with AdamW:

    grpo, gspo (at its own clip), unclipped, reinforce, t1, t2

    fresh   every iteration samples from the current policy
    stale   all rollouts are of the starting policy, so iteration k trains on rollouts that are
            k - 1 iterations old: four and five in the last two

at two learning rates: the trainer's, and `collapse` times that, at which GRPO loses what it learned
(chosen by a pilot of GRPO alone). A chain is one short training run: an objective, fresh or stale
rollouts (the column `cell`), a rate and a seed. Of each iteration, before and after its four steps:

    tax        the learning tax (microscope/learning_tax.py) over the mean KL at all other tokens
    drift      the drift between right answers (same file) over the mean change |D| of log pi of
               all rollouts
    residual   |sum_i A_i w_i| / sum_i |A_i| w_i on the prefix that all rollouts of a group share,
               by the pulls that the gradient used

Both denominators take out how far an objective moves at all: GSPO's clip stops most updates on
stale rollouts, and an objective that moves nothing pays no tax. The plain numbers are stored too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.batch.compose import compose
from counterpoise.errors import PoiseError
from counterpoise.lab.studies.dfpo.draw import draw
from counterpoise.lab.studies.dfpo.judge import RULE, judge
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.learning_tax import log_distributions, solution_drift, tax_tokens
from counterpoise.microscope.prefixes import measure_shared_prefixes, trie_nodes
from counterpoise.model.load import Policy
from counterpoise.run.encode_prompts import encode_prompts
from counterpoise.run.observer import RunObserver
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.choose_prompts import EncodedPrompt, pick_prompts
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.seeds import seed_for
from counterpoise.statistics.finding import Record, Records
from counterpoise.types import Ints, Row, StepResult, rows_by_group
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step
from counterpoise.verify.scores import score_responses

ARMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"surrogate": "grpo"},
    "gspo": {"surrogate": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
    "unclipped": {"surrogate": "unclipped"},
    "reinforce": {"surrogate": "reinforce"},
    "t1": {"surrogate": "reinforce", "trajectory": "min_replace"},
    "t2": {"surrogate": "reinforce", "trajectory": "orthogonal"},
}
SIZES: Mapping[str, Any] = {
    "prompts": 8,
    "iterations": 6,
    "arms": list(ARMS),
    "collapse": 3.0,
    "heldout": 64,
    "samples": 2,
    "scored": [3, 6],
    "minutes": 0,  # 0: no limit
}
Doubles = NDArray[np.float64]
STEPS = 4  # optimizer steps of an iteration, on whole groups
EVALUATION = 1_000_000  # the "iteration" whose seeds all evaluations share
CHUNK_TOKENS = 2048


def measure(lab: Lab) -> Records:
    """Stale rollouts for every seed, since they decide, then fresh ones.

    With a time limit, `minutes`, a seed that would not finish in time is not begun.
    """
    sizes, records = lab.sizes, list[Record]()
    if max(sizes["scored"]) > sizes["iterations"]:
        raise PoiseError(
            f"--size scored: iteration {max(sizes['scored'])} is scored, and a chain has only "
            f"{sizes['iterations']}: raise --size iterations, or score earlier ones"
        )
    benches = [SeedBench(lab, seed) for seed in range(sizes["seeds"])]
    started, slowest = time.monotonic(), {"stale": 0.0, "fresh": 0.0}
    for job_index, (cell, seed) in enumerate((c, s) for c in slowest for s in range(len(benches))):
        began_at = time.monotonic()
        if sizes["minutes"] and began_at - started + slowest[cell] > 60 * sizes["minutes"]:
            continue
        for rate, arm in ((r, a) for r in ("stable", "collapsing") for a in sizes["arms"]):
            name = f"{arm}, {cell}, {rate}, seed {seed}"
            lab.progress(name, job_index / (2 * len(benches)))
            options = _options(lab, arm, rate)
            chain = partial(benches[seed].run_chain, stale=cell == "stale", options=options)
            identity = {"arm": arm, "cell": cell, "rate": rate, "seed": seed}
            records += [{**identity, **record} for record in lab.measure_part(name, chain)]
        slowest[cell] = max(slowest[cell], time.monotonic() - began_at)
    return records


def _options(lab: Lab, arm: str, rate: str) -> Mapping[str, Any]:
    factor = lab.sizes["collapse"] if rate == "collapsing" else 1.0
    return {"warmup_steps": 0, "kl": 0.0, "lr": factor * lab.config.update.lr, **ARMS[arm]}


class SeedBench:
    """One seed: its prompts, its stale rollouts and its start, which all objectives share."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.config = replace(
            lab.config,
            loop=replace(lab.config.loop, seed=seed_for(lab.seed, "dfpo", seed) % (1 << 31)),
            sample=replace(lab.config.sample, prompts=lab.sizes["prompts"]),
        )
        self.iterations = range(1, lab.sizes["iterations"] + 1)
        problems = lab.task.heldout[: lab.sizes["heldout"]]
        # encode_prompts demands sample.prompts problems or more, which is meant for training.
        one_prompt = replace(lab.config, sample=replace(lab.config.sample, prompts=1))
        self.heldout = encode_prompts(lab.policy, problems, one_prompt, RunObserver())

    @cached_property
    def stale_rows(self) -> dict[int, list[Row]]:
        return {k: self.sample_rows(k) for k in self.iterations}

    @cached_property
    def start_score(self) -> Record:
        return self.evaluate()

    def run_chain(self, *, stale: bool, options: Mapping[str, Any]) -> list[Record]:
        """Train some iterations from the loaded weights, which are restored afterwards."""
        policy, config = self.lab.policy, self.config
        update = replace(config.update, **options)
        settings = StepSettings(
            update,
            temperature=config.sample.temperature,
            max_new_tokens=config.sample.max_new_tokens,
        )
        # The start's score and the stale rollouts are cached properties that need the loaded
        # weights, so they are read before the first update.
        records = [{"panel": "score", "iteration": 0, **self.start_score}]
        batches = self.stale_rows if stale else {}
        with self.lab.unchanged():
            optimizer = Optimizer(policy.model, update)
            for k in self.iterations:
                rows = batches[k] if stale else self.sample_rows(k)
                # A policy that has collapsed may leave fewer groups with both signs than steps.
                if len({row.group for row in rows}) >= STEPS:
                    iteration = train_iteration(policy, optimizer, rows, settings)
                    records.append({"panel": "iteration", "iteration": k, **iteration})
                if k in self.lab.sizes["scored"]:
                    records.append({"panel": "score", "iteration": k, **self.evaluate()})
        return records

    def sample_rows(self, iteration: int) -> list[Row]:
        """Rows with signal of the iteration's prompts, by the current weights."""
        prompts = pick_prompts(self.lab.encoded_prompts, self.config, iteration)
        binding = SamplerBinding(self.lab.policy)
        responses_PG = draw_responses(binding, prompts, self.config, iteration)
        rewards = _score(self.lab, prompts, responses_PG)
        return self.lab.credit_rows(build_groups(prompts, responses_PG, rewards, iteration))

    def evaluate(self) -> Record:
        """Held-out success, and entropy as the mean -log p of what the policy samples."""
        sample = replace(self.config.sample, group_size=self.lab.sizes["samples"])
        config = replace(self.config, sample=sample)
        binding = SamplerBinding(self.lab.policy)
        responses_PG = draw_responses(binding, self.heldout, config, EVALUATION)
        rewards = _score(self.lab, self.heldout, responses_PG)
        logprobs = [response.logprobs for responses in responses_PG for response in responses]
        return {
            "success": float(np.mean(rewards)),
            "entropy": float(-np.concatenate(logprobs).mean()),
            "length": float(np.mean([len(tokens) for tokens in logprobs])),
        }


def train_iteration(
    policy: Policy, optimizer: Optimizer, rows: Sequence[Row], settings: StepSettings
) -> Record:
    """Four steps on whole groups, and what they did to the iteration's tokens."""
    before, old_head = take_snapshot(policy, rows), policy.decoder.unembedding.detach().clone()
    plan = compose("grouped", rows, STEPS, seed=0)
    step_rows = [[rows[i] for i in step] for step in plan.steps]
    results = [take_step(policy, optimizer, members, settings) for members in step_rows]
    after = take_snapshot(policy, rows)
    kl_N = divergences(after, policy.decoder.unembedding.detach(), before, old_head)
    return {**movement(rows, before, after, kl_N), **residuals(step_rows, results)}


def _score(lab: Lab, prompts: Sequence[EncodedPrompt], responses_PG: Any) -> list[float]:
    texts = [response.text for responses in responses_PG for response in responses]
    problems = [
        prompt
        for (prompt, _), responses in zip(prompts, responses_PG, strict=True)
        for _ in responses
    ]
    return score_responses(lab.verifier, texts, problems).rewards


def movement(
    rows: Sequence[Row], before: Snapshot, after: Snapshot, divergences_N: Doubles
) -> Record:
    """Learning tax and drift of one iteration, plain and relative to how far it moved."""
    node_N = trie_nodes(rows)
    taxed_tokens = tax_tokens(rows, node_N, limit=len(node_N))
    is_elsewhere_N = ~np.isin(node_N, node_N[taxed_tokens])
    lengths = [row.num_tokens for row in rows]
    delta_R = [
        delta_T.cpu().numpy() for delta_T in (after.logprobs - before.logprobs).split(lengths)
    ]
    drift = solution_drift(rows, delta_R)
    tax = _mean(divergences_N[taxed_tokens])
    elsewhere = _mean(divergences_N[is_elsewhere_N])
    plain_drift = drift.total / drift.terms if drift.terms else math.nan
    moved = float(np.mean([abs(delta_T.sum()) for delta_T in delta_R]))
    return {
        "plain_tax": tax,
        "tax": tax / elsewhere if elsewhere else math.nan,
        "plain_drift": plain_drift,
        "drift": plain_drift / moved if moved else math.nan,
        "moved": moved,
        "shared": float(1 - is_elsewhere_N.mean()),
    }


def _mean(values: Doubles) -> float:
    return float(values.mean()) if len(values) else math.nan


@torch.no_grad()
def divergences(new: Snapshot, new_head: Tensor, old: Snapshot, old_head: Tensor) -> Doubles:
    """KL(new || old) of every token's distribution, [N]."""
    kl_N = []
    for start in range(0, len(new), CHUNK_TOKENS):
        chunk = slice(start, start + CHUNK_TOKENS)
        log_p = log_distributions(new.hidden[chunk], new_head, new.softcap).double()
        log_q = log_distributions(old.hidden[chunk], old_head, old.softcap).double()
        kl_N.append((log_p.exp() * (log_p - log_q)).sum(dim=-1))
    return torch.cat(kl_N).cpu().numpy()


def residuals(step_rows: Sequence[Sequence[Row]], results: Sequence[StepResult]) -> Record:
    """The exchangeability residual of an iteration's steps, and what was clipped."""
    net = gross = all_net = all_gross = 0.0
    for rows, result in zip(step_rows, results, strict=True):
        used_rows = [rows[i] for i in result.rows]
        shared = measure_shared_prefixes(used_rows, result.pulls)
        all_net, all_gross = all_net + shared.net_pull, all_gross + shared.gross_pull
        for members in rows_by_group(used_rows).values():
            length = common_prefix([used_rows[i].content.response_tokens for i in members])
            pulls_GT = np.array([result.pulls[i][:length] for i in members], dtype=np.float64)
            net += float(np.abs(pulls_GT.sum(axis=0)).sum())
            gross += float(np.abs(pulls_GT).sum())
    return {
        "residual": net / gross if gross else math.nan,
        "residual_all": all_net / all_gross if all_gross else math.nan,
        "clipped": float(np.mean([result.clipped_share for result in results])),
        "skipped": sum(bool(result.skipped) for result in results),
    }


def common_prefix(sequences: Sequence[Ints]) -> int:
    """The number of tokens that all sequences begin with.

    Example:
        >>> common_prefix([np.array([4, 7, 2]), np.array([4, 7]), np.array([4, 7, 9])])
        2
    """
    length = min(len(sequence) for sequence in sequences)
    stacked = np.stack([sequence[:length] for sequence in sequences])
    is_common = (stacked == stacked[0]).all(axis=0)
    return int(np.argmin(is_common)) if not is_common.all() else length


STUDY = Study(
    name="dfpo",
    title="Exchangeable objectives drift less",
    shows="arXiv:2604.13088",
    claim="Intra-group objectives whose pulls on shared tokens do not cancel (GRPO's clip, GSPO's "
    "ratio) pay a learning tax, drift between right answers, lose entropy and train worse; "
    "restoring the cancellation (T1, T2) repairs that.",
    rule=RULE,
    budgets={
        "quick": {**SIZES, "seeds": 2},
        "full": {**SIZES, "seeds": 8},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
