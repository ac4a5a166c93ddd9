"""What studies share: the model, fixed batches of rollouts, updates that can be taken back.

Everything is a function of (model, seed, sizes), and is made once for all studies of a command.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.credit.assign import assign
from counterpoise.errors import PoiseError
from counterpoise.lab.studies.stored_rollouts import select_batch
from counterpoise.loop import encode
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.swapped_weights import unchanged
from counterpoise.run.watch import Watch
from counterpoise.sample.build_groups import gather
from counterpoise.sample.collect import Drawer, Encoded, draw, pick_prompts
from counterpoise.sample.decode_graphs import release
from counterpoise.statistics.finding import Records
from counterpoise.store.rollout_files import check_vocabulary, read_groups
from counterpoise.task.load import load_problems
from counterpoise.task.prompts import Task
from counterpoise.types import Group, Row, StepResult
from counterpoise.update.old_logprobs import scored
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import take_step
from counterpoise.variants import VERIFIERS
from counterpoise.verify.scores import Verifier, verified

GROUP_SIZE = 8  # rollouts of a prompt, where they are drawn
PRETRAINED_LR = (
    1e-5  # AdamW on a pretrained model; the embedded one is smaller and takes the demo's
)
MICRO_TOKENS = 8192  # 12 GB of a 135 M parameter model's activations in float32


@dataclass
class Lab:
    """A bench for one command.

    Example:
        rows = lab.rows(prompts=16)                 # sampled, verified, credited, scored
        with lab.unchanged():                       # Algorithm 2: back to the checkpoint afterwards
            lab.update(rows, optimizer="sgd", lr=0.1)
            after = snapshot(lab.policy, rows)
    """

    model: str
    budget: str  # "quick" | "full"
    out: Path  # studies may keep runs and caches under it
    seed: int = 0
    rollouts: Path | None = None  # batches are taken from here, not drawn; see stored_rollouts.py
    options: Sequence[str] = ()  # of the run, as --set takes them
    size_overrides: Mapping[str, Any] = field(default_factory=dict)  # sizes other than the budget's
    sizes: Mapping[str, Any] = field(default_factory=dict)  # of the study that is running
    progress: Callable[[str, float], None] = lambda doing, share: None
    measure_part: Callable[[str, Callable[[], Records]], Records] = lambda name, measure: measure()
    _groups: dict[tuple[int, int], list[Group]] = field(default_factory=dict)
    _rows: dict[tuple[int, int], list[Row]] = field(default_factory=dict)

    @cached_property
    def config(self) -> RunConfig:
        """The demo's run, with this model: what studies sample and train with.

        In float32 everywhere: displacements of 1e-6 drown in bfloat16's rounding. Studies of
        training runs take `config_with` and are free of these two limits.
        """
        made = self.config_with()
        if made.sample.group_size != GROUP_SIZE:
            raise PoiseError(
                f"a study draws {GROUP_SIZE} rollouts of a prompt, its rule says so: leave "
                f"sample.group_size={made.sample.group_size} out"
            )
        if made.sample.temperature != 1:
            raise PoiseError(
                "a study measures at temperature 1: leave "
                f"sample.temperature={made.sample.temperature:g} out"
            )
        return made

    def config_with(self, *options: str) -> RunConfig:
        """The same with `options` on top, as --set takes them."""
        changes = [f"model.name={self.model}", f"loop.seed={self.seed}", "model.dtype=float32"]
        changes.append(f"verify.workers={max(2, min(8, os.cpu_count() or 2))}")
        if self.model != "embedded":
            changes += [f"update.lr={PRETRAINED_LR}", f"update.micro_tokens={MICRO_TOKENS}"]
        return load_config("demo", [*changes, *self.options, *options])

    @property
    def learning_rates(self) -> dict[str, float]:
        """Learning rates of single steps by optimizer: the trainer's, and the paper's for SGD."""
        return {"adamw": self.config.update.lr, "sgd": 0.1}

    @cached_property
    def policy(self) -> Policy:
        return load_policy(self.config.model)

    @cached_property
    def task(self) -> Task:
        return load_problems(self.config)

    @cached_property
    def encoded_prompts(self) -> list[Encoded]:
        return encode(self.policy, self.task.train, self.config, Watch())

    @cached_property
    def verifier(self) -> Verifier:
        options = self.config.verify
        made: Verifier = VERIFIERS.load(options.name)(options.timeout_seconds, options.workers)
        return made

    @cached_property
    def stored_groups(self) -> list[Group]:
        """The groups of `rollouts`, all of them."""
        assert self.rollouts is not None, "only asked for where rollouts are given"
        groups = read_groups(self.rollouts)
        check_vocabulary(groups, len(self.policy.decoder.unembedding))
        return groups

    def release_memory(self) -> None:
        """Between two studies: what the sampler and the allocator hold is given back."""
        if "policy" in self.__dict__ and self.policy.device.type == "cuda":
            release(self.policy.decoder)
            gc.collect()
            torch.cuda.empty_cache()

    def close(self) -> None:
        if "verifier" in self.__dict__:
            self.verifier.close()

    # -- batches -------------------------------------------------------------------------------

    def groups(self, prompts: int, batch: int = 1) -> list[Group]:
        """Rollouts of the model as loaded; another `batch` has other prompts."""
        if self.rollouts is not None:
            return select_batch(self.stored_groups, prompts, batch)
        key = (prompts, batch)
        if key not in self._groups:
            sample = replace(self.config.sample, prompts=prompts)
            config = replace(self.config, sample=sample)
            chosen = pick_prompts(self.encoded_prompts, config, batch)
            responses_PG = draw(Drawer(self.policy), chosen, config, batch)
            texts = [r.text for responses in responses_PG for r in responses]
            asked = [prompt for prompt, _ in chosen for _ in range(GROUP_SIZE)]
            rewards = verified(self.verifier, texts, asked).rewards
            self._groups[key] = gather(chosen, responses_PG, rewards, batch)
        return self._groups[key]

    def rows(self, prompts: int, batch: int = 1) -> list[Row]:
        """The rows of `groups`, those without signal left out; scored once."""
        key = (prompts, batch)
        if key not in self._rows:
            self._rows[key] = self.credit_rows(self.groups(prompts, batch))
        return list(self._rows[key])

    def credit_rows(self, groups: Sequence[Group]) -> list[Row]:
        """Rows with advantages and the trainer's log-probabilities under the loaded model."""
        rows = [row for group in assign(groups, "grpo") for row in group if row.sign]
        temperature, options = self.config.sample.temperature, self.config.update
        return scored(self.policy, rows, temperature, options.micro_tokens)

    # -- updates -------------------------------------------------------------------------------

    def update(self, rows: Sequence[Row], **changes: Any) -> StepResult:
        """One optimizer step on all of `rows`, from a fresh optimizer; the demo's unless changed.

        Studies compare single steps, so the learning rate does not warm up.
        """
        options = replace(self.config.update, **{"warmup_steps": 0, **changes})
        return take_step(
            self.policy,
            Optimizer(self.policy.model, options),
            rows,
            options,
            temperature=self.config.sample.temperature,
            max_new_tokens=self.config.sample.max_new_tokens,
        )

    def unchanged(self) -> AbstractContextManager[None]:
        """Whatever happens inside, the weights are as they were afterwards."""
        return unchanged(self.policy.model)
