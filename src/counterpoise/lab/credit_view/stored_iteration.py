"""The stored rollouts of one iteration, and the policy weights closest to those that sampled them.

Iteration N was sampled by the weights after N - 1 iterations: the initial model or a checkpoint.
Where no checkpoint of N - 1 was kept, the nearest one is taken, and `measure.py` reports how far
its log-probabilities are from the sampler's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.config.load import config_from_tables
from counterpoise.credit.assign import assign_advantages
from counterpoise.credit.reward_mixtures import configured_mixture
from counterpoise.errors import PoiseError, format_ranges
from counterpoise.lab.replay.options import stored_tables
from counterpoise.model.load import Policy, load_policy
from counterpoise.store import checkpoint
from counterpoise.store.folder import CONFIG, REPLAY, RunFolder, is_imported
from counterpoise.store.replays import read_replay
from counterpoise.store.resume import load_stored_config
from counterpoise.store.rollout_files import check_vocabulary, read_groups_and_advantages
from counterpoise.types import Group, Row

# `prompt_tokens` are required only if a policy is needed.
REQUIRED_FIELDS = ("group", "prompt_id", "reward", "response_tokens")
STORED_ADVANTAGE = "as stored"


@dataclass(frozen=True, slots=True)
class PolicyWeights:
    """Where policy weights are stored, and how long they were trained.

    Example:
        PolicyWeights(30, Path("out/demo/checkpoints/iteration_00030"))
    """

    after_iterations: int | None  # None: unknown
    folder: Path | None  # a checkpoint; None: the model itself
    origin: str = "model given by --model"  # where `after_iterations` is None

    def describe(self, iteration: int) -> str:
        if self.after_iterations is None:
            return self.origin
        description = (
            f"weights after iteration {self.after_iterations}"
            if self.after_iterations
            else "weights before training"
        )
        if self.after_iterations == iteration - 1:
            return f"{description}, which sampled them"
        return f"{description}, the nearest that were kept"


@dataclass(frozen=True, slots=True, eq=False)
class StoredIteration:
    """One iteration with its advantages."""

    path: Path
    iteration: int
    config: RunConfig  # of an imported run: the defaults, at its sampling temperature
    groups: list[Group]
    rows: list[Row]  # with an advantage other than 0
    weights: PolicyWeights | None  # None: no model is known
    model: ModelConfig
    advantage: str  # the name of the estimator, or STORED_ADVANTAGE

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def load_policy(self) -> Policy:
        """Load the policy with `weights`, which must not be None."""
        if any(
            not len(rollout.prompt_tokens) for group in self.groups for rollout in group.rollouts
        ):
            raise PoiseError(
                f"{self.path} has no prompt_tokens: the model's input is unknown, so choose "
                "weights that need no policy"
            )
        policy = load_policy(self.model)
        if self.weights and self.weights.folder:
            checkpoint.load_checkpoint_weights(policy.model, policy.name, self.weights.folder)
        # A model with another tokenizer would read other text, or fail in the embedding.
        check_vocabulary(self.groups, len(policy.decoder.unembedding))
        return policy


def read_stored_iteration(
    path: Path, iteration: int | None = None, model: str | None = None
) -> StoredIteration:
    """Read one iteration with signal: by default the last one whose sampling weights were kept.

    If none were kept, the last iteration with signal is read.
    """
    config, available_weights = _read_options_and_weights(path)
    if model:
        available_weights = {None: PolicyWeights(None, None)}
    files = RunFolder(path).step_files("rollouts")
    if not files:
        raise PoiseError(f"{path} stored no rollouts: train with --set store.rollouts=true")
    if iteration is not None and iteration not in files:
        stored_ranges = format_ranges(sorted(files))
        raise PoiseError(
            f"{path} has no rollouts of iteration {iteration}, only of {stored_ranges}"
        )
    # Iterations whose sampling weights were kept come first; later ones before earlier ones.
    candidates = sorted(files, key=lambda i: (i - 1 in available_weights, i), reverse=True)
    for candidate in candidates if iteration is None else [iteration]:
        # Another trainer's own advantages, where its lines have them.
        groups, line_advantages = read_groups_and_advantages(files[candidate], REQUIRED_FIELDS)
        groups = [replace(group, iteration=candidate) for group in groups]
        credited = assign_advantages(
            groups,
            config.credit.name,
            configured_mixture(config),
            mask_truncated=config.update.mask_truncated,
        )
        rows = [row for group in credited for row in group]
        has_own_advantages = all(row.name in line_advantages for row in rows)
        if has_own_advantages:
            rows = [replace(row, advantage=line_advantages[row.name]) for row in rows]
        rows = [row for row in rows if row.sign]
        if rows:
            # The device that the run was trained on need not exist on this machine.
            model_config = replace(config.model, name=model or config.model.name, device="auto")
            # The KL in the rewards needs the policy, which is loaded only if a weighting needs it.
            penalty_note = " without the KL in the rewards" if config.update.kl_in_reward else ""
            return StoredIteration(
                path,
                candidate,
                config,
                groups,
                rows,
                _nearest(available_weights, candidate),
                model_config,
                STORED_ADVANTAGE if has_own_advantages else config.credit.name + penalty_note,
            )
    if iteration is None:
        raise PoiseError(f"{path} has no rollout with signal: the rewards of every group are equal")
    raise PoiseError(
        f"iteration {iteration} of {path} has no rollout with signal: the rewards of every group "
        "are equal; choose another --iteration"
    )


def _read_options_and_weights(path: Path) -> tuple[RunConfig, dict[int | None, PolicyWeights]]:
    """The run's options, and its stored weights by the number of iterations they were trained."""
    if is_imported(path):
        sample = stored_tables(path).get("sample", {})
        known = {name: sample[name] for name in ("temperature",) if sample.get(name) is not None}
        return config_from_tables({"sample": known}, where=str(path)), {}
    folder = RunFolder.open(path)
    config = load_stored_config(path / CONFIG)
    if (path / REPLAY).is_file():
        replayed_checkpoint = read_replay(path).get("checkpoint")
        weights_folder = Path(replayed_checkpoint) if replayed_checkpoint else None
        return config, {None: PolicyWeights(None, weights_folder, "replayed model")}
    available_weights: dict[int | None, PolicyWeights] = {0: PolicyWeights(0, None)}
    for checkpoint_folder in checkpoint.list_checkpoints(folder.checkpoints):
        iterations_trained = checkpoint.iteration_of(checkpoint_folder)
        available_weights[iterations_trained] = PolicyWeights(iterations_trained, checkpoint_folder)
    return config, available_weights


def _nearest(
    available_weights: dict[int | None, PolicyWeights], iteration: int
) -> PolicyWeights | None:
    if None in available_weights or not available_weights:
        return available_weights.get(None)
    # The nearest in iterations; if two are equally near, the earlier one.
    return min(
        available_weights.values(),
        key=lambda weights: (
            abs((weights.after_iterations or 0) - iteration + 1),
            weights.after_iterations,
        ),
    )
