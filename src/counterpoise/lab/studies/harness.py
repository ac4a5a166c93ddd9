"""The lab that studies share: the model, fixed batches of rollouts, updates that are undone.

Everything is a function of (model, seed, sizes), and is computed once for all studies of a command.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from counterpoise.lab.weights_digest import weights_digest
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.swapped_weights import restored_weights
from counterpoise.run.encode_prompts import encode_prompts
from counterpoise.run.observer import RunObserver
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.choose_prompts import EncodedPrompt, pick_prompts
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.sample.decode_graphs import release_graphs
from counterpoise.statistics.finding import Records
from counterpoise.store.rollout_files import check_vocabulary, read_groups
from counterpoise.task.load import load_run_task
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Group, Row, StepResult
from counterpoise.update.old_logprobs import score_missing
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepObserver, StepSettings, take_step
from counterpoise.verify.make_verifier import make_verifier
from counterpoise.verify.scores import Verifier, score_responses

GROUP_SIZE = 8  # rollouts per prompt, where a study samples them
PRETRAINED_LR = 1e-5  # AdamW on a pretrained model; the small embedded model uses the demo's rate
MICRO_TOKENS = 8192  # 12 GB of float32 activations for a 135 M parameter model


@contextmanager
def fast_sampling(device: torch.device) -> Iterator[None]:
    """Within it, a GPU multiplies float32 matrices in TF32, which is several times as fast.

    Only for drawing tokens. A draw may come out differently where two tokens are nearly equally
    likely, as between any two samplers. What is measured of the drawn tokens is computed outside,
    in full float32: an update changes weights by less than TF32 resolves. On a CPU nothing changes.
    """
    if device.type != "cuda":
        yield
        return
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


@dataclass
class Lab:
    """The model, data and updates that the studies of one command work with.

    Example:
        rows = lab.rows(prompts=16)                 # sampled, verified, credited and scored
        with lab.unchanged():                       # Algorithm 2: back to the checkpoint afterwards
            lab.update(rows, optimizer="sgd", lr=0.1)
            after = take_snapshot(lab.policy, rows)
    """

    model: str
    budget: str  # "quick" | "full"
    out: Path  # studies may keep runs and caches under it
    seed: int = 0
    # A folder to read batches from, instead of sampling them; see stored_rollouts.py.
    rollouts: Path | None = None
    options: Sequence[str] = ()  # options of the run, as --set takes them
    # Sizes that replace the budget's.
    size_overrides: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)  # sizes of the study that is running
    progress: Callable[[str, float], None] = lambda doing, share: None
    measure_part: Callable[[str, Callable[[], Records]], Records] = lambda name, measure: measure()
    _groups: dict[tuple[int, int], list[Group]] = field(default_factory=dict)
    _rows: dict[tuple[int, int], list[Row]] = field(default_factory=dict)

    @cached_property
    def config(self) -> RunConfig:
        """The demo's configuration with this model, for sampling and training in studies.

        Everything is float32: displacements of 1e-6 disappear in bfloat16's rounding. Studies of
        training runs use `config_with` instead, without the two limits below.
        """
        config = self.config_with()
        if config.sample.group_size != GROUP_SIZE:
            raise PoiseError(
                f"studies sample {GROUP_SIZE} rollouts per prompt: remove "
                f"sample.group_size={config.sample.group_size}"
            )
        if config.sample.temperature != 1:
            raise PoiseError(
                "studies measure at temperature 1: remove "
                f"sample.temperature={config.sample.temperature:g}"
            )
        return config

    def config_with(self, *options: str) -> RunConfig:
        """The demo's configuration with this model and further `options`, as --set takes them."""
        for option in self.options:
            if option.startswith("model.name="):
                raise PoiseError(f"--set {option}: name the model of a study with --model")
        overrides = [f"model.name={self.model}", f"loop.seed={self.seed}", "model.dtype=float32"]
        overrides.append(f"verify.workers={max(2, min(8, os.cpu_count() or 2))}")
        if self.model != "embedded":
            overrides += [f"update.lr={PRETRAINED_LR}", f"update.micro_tokens={MICRO_TOKENS}"]
        # Later options win: the user's come after these, a study's own come last.
        return load_config("demo", [*overrides, *self.options, *options])

    @cached_property
    def weights_digest(self) -> str:
        """A digest of the model's files; its name where there are none."""
        return weights_digest(self.model)

    @cached_property
    def source_settings(self) -> dict[str, Any]:
        """What every measurement depends on: stored records of other settings are not reused."""
        return {
            "model": self.model,
            "seed": self.seed,
            # The weights behind a path may change; those behind a name do not.
            **({"weights": self.weights_digest} if self.weights_digest != self.model else {}),
            **({"rollouts": str(self.rollouts)} if self.rollouts else {}),
            **({"set": list(self.options)} if self.options else {}),
        }

    @property
    def learning_rates(self) -> dict[str, float]:
        """Learning rates of single steps: the trainer's for AdamW, the paper's for SGD."""
        return {"adamw": self.config.update.lr, "sgd": 0.1}

    @cached_property
    def policy(self) -> Policy:
        return load_policy(self.config.model)

    @cached_property
    def task(self) -> TaskPrompts:
        return load_run_task(self.config)

    @cached_property
    def encoded_prompts(self) -> list[EncodedPrompt]:
        return encode_prompts(self.policy, self.task.train, self.config, RunObserver())

    @cached_property
    def verifier(self) -> Verifier:
        return make_verifier(self.config.verify)

    @cached_property
    def stored_groups(self) -> list[Group]:
        """All groups of the folder `rollouts`."""
        assert self.rollouts is not None, "stored groups need --rollouts"
        groups = read_groups(self.rollouts)
        check_vocabulary(groups, len(self.policy.decoder.unembedding))
        return groups

    def release_memory(self) -> None:
        """Release the GPU memory of the sampler and the allocator between two studies."""
        # A cached property is in __dict__ once it was read: do not load a model to release it.
        if "policy" in self.__dict__ and self.policy.device.type == "cuda":
            release_graphs(self.policy.decoder)
            gc.collect()
            torch.cuda.empty_cache()

    def close(self) -> None:
        if "verifier" in self.__dict__:
            self.verifier.close()

    # -- batches -------------------------------------------------------------------------------

    def groups(self, prompts: int, batch: int = 1) -> list[Group]:
        """Rollouts of the model as loaded.

        Batch b has the prompts from (b - 1) * `prompts` on. So batches of the same size have
        different prompts. Those of different sizes may share prompts; with different b, their
        rollouts differ.
        """
        if self.rollouts is not None:
            return select_batch(self.stored_groups, prompts, batch)
        batch_key = (prompts, batch)
        # Studies of one command share batches, so each is sampled and verified once.
        if batch_key not in self._groups:
            sample_config = replace(self.config.sample, prompts=prompts)
            config = replace(self.config, sample=sample_config)
            prompts_of_batch = pick_prompts(self.encoded_prompts, config, batch)
            with fast_sampling(self.policy.device):
                responses_PG = draw_responses(
                    SamplerBinding(self.policy), prompts_of_batch, config, batch
                )
            texts = [response.text for responses in responses_PG for response in responses]
            problems = [prompt for prompt, _ in prompts_of_batch for _ in range(GROUP_SIZE)]
            rewards = score_responses(self.verifier, texts, problems).rewards
            self._groups[batch_key] = build_groups(prompts_of_batch, responses_PG, rewards, batch)
        return self._groups[batch_key]

    def rows(self, prompts: int, batch: int = 1) -> list[Row]:
        """The rows of `groups` that have an advantage, with log-probabilities; computed once."""
        batch_key = (prompts, batch)
        if batch_key not in self._rows:
            self._rows[batch_key] = self.credit_rows(self.groups(prompts, batch))
        return list(self._rows[batch_key])

    def credit_rows(self, groups: Sequence[Group]) -> list[Row]:
        """Rows with signal, with GRPO advantages and the trainer's log-probabilities."""
        rows = [row for group in assign(groups, "grpo") for row in group if row.sign]
        temperature, options = self.config.sample.temperature, self.config.update
        return score_missing(self.policy, rows, temperature, options.micro_tokens)

    # -- updates -------------------------------------------------------------------------------

    def update(
        self, rows: Sequence[Row], observer: StepObserver | None = None, **changes: Any
    ) -> StepResult:
        """One optimizer step on all of `rows` with a fresh optimizer.

        Options are the demo's unless `changes` says otherwise. Studies compare single steps, so the
        learning rate does not warm up, and there is no reference policy to be near to.
        """
        options = replace(self.config.update, **{"warmup_steps": 0, "kl": 0.0, **changes})
        return take_step(
            self.policy,
            Optimizer(self.policy.model, options),
            rows,
            StepSettings(
                options,
                temperature=self.config.sample.temperature,
                max_new_tokens=self.config.sample.max_new_tokens,
            ),
            observer=observer,
        )

    def unchanged(self) -> AbstractContextManager[None]:
        """A context after which the weights are restored, whatever happened inside."""
        return restored_weights(self.policy.model)
