"""The rollouts of one iteration of a run, and the weights that drew them, as far as they are there.

Iteration N was drawn by the weights after N - 1 iterations: the model the run began with, or a
checkpoint. Where those of N - 1 were not kept the nearest are taken,
and how far off they are is measured (see `measure.py`), not assumed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.credit.assign import assign
from counterpoise.credit.reward_mixtures import mixture_of
from counterpoise.errors import PoiseError, ranges
from counterpoise.model.load import Policy, load_policy
from counterpoise.store import checkpoint
from counterpoise.store.folder import IMPORTED, RunFolder, is_imported
from counterpoise.store.rollout_files import check_vocabulary, read_groups
from counterpoise.types import Group, Row

REQUIRED_FIELDS = (
    "group",
    "prompt_id",
    "reward",
    "response_tokens",
)  # the prompt's only where it is read


@dataclass(frozen=True, slots=True)
class PolicyWeights:
    """Example: PolicyWeights(30, Path("out/demo/checkpoints/iteration_00030"))"""

    after_iterations: int | None  # iterations; None: a model that was named
    folder: Path | None  # a checkpoint; None: the model itself

    def describe(self, iteration: int) -> str:
        if self.after_iterations is None:
            return "model that was named"
        which = (
            f"weights after iteration {self.after_iterations}"
            if self.after_iterations
            else "weights before training"
        )
        if self.after_iterations == iteration - 1:
            return f"{which}, which drew them"
        return f"{which}, the nearest that are kept"


@dataclass(frozen=True, slots=True, eq=False)
class StoredIteration:
    """One iteration, credited."""

    path: Path
    iteration: int
    config: RunConfig  # of an imported run: the defaults
    groups: list[Group]
    rows: list[Row]  # with signal
    weights: PolicyWeights | None  # None: there is no model to read with
    model: ModelConfig

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def load_policy(self) -> Policy:
        """The policy that `weights` says; to be called where it is not None."""
        if any(not len(r.prompt_tokens) for group in self.groups for r in group.rollouts):
            raise PoiseError(
                f"{self.path} has no prompt_tokens: what the model saw is not known, so only "
                "weights that need no policy can be shown"
            )
        policy = load_policy(self.model)
        if self.weights and self.weights.folder:
            checkpoint.take_weights(policy.model, policy.name, self.weights.folder)
        check_vocabulary(self.groups, len(policy.decoder.unembedding))
        return policy


def read_stored_iteration(
    path: Path, iteration: int | None = None, model: str | None = None
) -> StoredIteration:
    """By default the last iteration with signal whose own weights are there, or just the last."""
    config, known = _described(path)
    if model:
        known = {None: PolicyWeights(None, None)}
    files = _files(path)
    if iteration is not None and iteration not in files:
        stored = ranges(sorted(files))
        raise PoiseError(f"{path} has no rollouts of iteration {iteration}, only of {stored}")
    order = sorted(files, key=lambda i: (i - 1 in known, i), reverse=True)
    for at in order if iteration is None else [iteration]:
        groups = [replace(group, iteration=at) for group in read_groups(files[at], REQUIRED_FIELDS)]
        credited = assign(groups, config.credit.name, mixture=mixture_of(config))
        rows = [row for group in credited for row in group if row.sign]
        if rows:
            named = replace(config.model, name=model or config.model.name, device="auto")
            return StoredIteration(path, at, config, groups, rows, _nearest(known, at), named)
    if iteration is None:
        raise PoiseError(f"{path} has no rollout with signal: rewards never differ in a group")
    raise PoiseError(
        f"iteration {iteration} of {path} has no rollout with signal: rewards do not differ in any "
        "group; choose another --iteration"
    )


def _described(path: Path) -> tuple[RunConfig, dict[int | None, PolicyWeights]]:
    """The run's options, and which weights are there, by the iterations behind them."""
    if is_imported(path):
        return RunConfig(), {}
    folder = RunFolder.open(path)
    config = folder.config()
    known: dict[int | None, PolicyWeights] = {0: PolicyWeights(0, None)}
    for kept in checkpoint.available(folder.checkpoints):
        after = int(kept.name.removeprefix(checkpoint.PREFIX))
        known[after] = PolicyWeights(after, kept)
    return config, known


def _files(path: Path) -> dict[int, Path]:
    found = {
        int(number): file
        for file in sorted((path / "rollouts").glob("step_*.jsonl"))
        if (number := file.stem.removeprefix("step_")).isdigit()
    }
    if not found:
        raise PoiseError(f"{path} stored no rollouts: train with --set store.rollouts=true")
    return found


def _nearest(known: dict[int | None, PolicyWeights], iteration: int) -> PolicyWeights | None:
    if None in known or not known:
        return known.get(None)
    return min(
        known.values(),
        key=lambda w: (abs((w.after_iterations or 0) - iteration + 1), w.after_iterations),
    )


def imported_tokenizer(path: Path) -> str | None:
    """The tokenizer that an imported run was told of."""
    try:
        known = json.loads((path / IMPORTED).read_text(encoding="utf-8"))
        return str(known["tokenizer"]) if known.get("tokenizer") else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
