"""The section `poise` of verl's config. What cannot be honoured stops before Ray starts.

`config` is verl's: nested mappings (an OmegaConf DictConfig, or plain dictionaries in tests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.errors import PoiseError, unknown
from counterpoise.variants import ADVANTAGES, BALANCE_UNITS, COMPOSERS, COMPOSERS_THAT_READ_TOKENS

SECTION = "poise"
PREFIX = "poise_"  # of our estimators' names
OWN_ORDER = "verl"  # a composer: verl's own order, described
SAMPLER = ("pkg://counterpoise.adapters.verl.sampler", "RewardBalancedReplayBuffer")
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """
    Example:
        +poise.composer=grouped +poise.tau=0.25
    """

    composer: str = "grouped"  # which rollouts share an optimizer step; 'grouped' is QB
    tau: float = 0.0  # RB: update only on batches with min(N+, N-) >= tau |B|; 0 is off
    unit: str = "rollout"  # RB: 'rollout' drops surplus inside groups, 'group' chooses whole ones
    max_age: int = 4  # RB: sampling rounds a rollout may wait
    max_refills: int = 8  # RB: further rounds before an update; then the run stops
    monitor_every: int = 0  # updates between looks at where the tokens went; 0 is off
    seed: int = 0  # of the composer


def read(config: Config) -> Options | None:
    """Our options; None where nothing is asked for."""
    section = config.get(SECTION)
    if section is None:
        return None
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(Options)}
    given: dict[str, Any] = {}
    for name, value in section.items():
        if name not in kinds:
            raise unknown("option of +poise", str(name), kinds)
        given[name] = float(value) if type(value) is int and kinds[name] is float else value
        if type(given[name]) is not kinds[name]:
            raise PoiseError(f"+poise.{name}={value} is no {kinds[name].__name__}")
    return Options(**given)


def asked(config: Config) -> bool:
    """Whether anything of ours is used."""
    return config.get(SECTION) is not None or credit(config) is not None


def credit(config: Config) -> str | None:
    """Our credit that verl was told to use; None for one of verl's own."""
    name = str(select(config, "algorithm.adv_estimator"))
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def steps(config: Config) -> int:
    """Optimizer steps of one batch."""
    mode = select(config, "trainer.v1.trainer_mode", "sync")
    updates = select(config, f"trainer.v1.{mode}.parameter_sync_step", 1)
    prompts = select(config, "data.train_batch_size") // updates
    return int(prompts // select(config, "actor_rollout_ref.actor.ppo_mini_batch_size"))


def target(config: Config) -> int:
    """Rollouts of one batch."""
    return int(
        select(config, "data.train_batch_size") * select(config, "actor_rollout_ref.rollout.n")
    )


def bypassed(config: Config) -> bool:
    """Whether the sampler's log-probabilities are the old ones, and no scoring pass is made."""
    return bool(select(config, "algorithm.rollout_correction.bypass_mode", False))


def check(config: Config) -> Options | None:
    """Our options, or one line that says what to change."""
    name = credit(config)
    if name is not None and name not in ADVANTAGES:
        raise unknown("adv_estimator", PREFIX + name, [PREFIX + known for known in ADVANTAGES])
    options = read(config)
    if options is None:
        return None
    _known("composer", options.composer, (*COMPOSERS, OWN_ORDER))
    _known("balance unit", options.unit, BALANCE_UNITS)
    faults: list[Callable[[Config, Options], str]] = [_trainer, _sizes]
    if options.tau:
        faults += [_balance, _rewards]
    for fault in faults:
        if reason := fault(config, options):
            raise PoiseError(reason)
    if options.tau:  # the buffer has limits of its own
        RewardBalancedBuffer(
            tau=options.tau, target=target(config), unit=options.unit, max_age=options.max_age
        )
    return options


def select(config: Config, path: str, default: Any = None) -> Any:
    """config.a.b.c, or the default where any of them is missing or null.

    Example:
        >>> select({"a": {"b": 1}}, "a.b"), select({"a": None}, "a.b", 2)
        (1, 2)
    """
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if found is not None else None
    return default if found is None else found


def _trainer(config: Config, options: Options) -> str:
    if not select(config, "trainer.use_v1", True):
        return "+poise is for verl's V1 trainer: set trainer.use_v1=True"
    if select(config, "critic.enable", False) or (
        select(config, "algorithm.adv_estimator") == "gae"
    ):
        return "+poise plans groups, and a critic has none: set algorithm.adv_estimator=poise_grpo"
    if select(config, "actor_rollout_ref.actor.shuffle", False):
        return (
            "actor_rollout_ref.actor.shuffle=True would undo the plan: set it to False, "
            "or choose +poise.composer=shuffled"
        )
    if options.monitor_every and bypassed(config):
        return (
            "algorithm.rollout_correction.bypass_mode=True leaves nothing to compare with: "
            "set it to False, or +poise.monitor_every=0"
        )
    if options.composer == "by_sign" and credit(config) is None:
        return "+poise.composer=by_sign needs our credit: set algorithm.adv_estimator=poise_grpo"
    return ""


def _sizes(config: Config, options: Options) -> str:
    prompts = select(config, "data.train_batch_size")
    mini = select(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    if prompts < mini or prompts % mini:
        return (
            f"data.train_batch_size={prompts} is no multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini}: choose one that divides it"
        )
    if options.composer in COMPOSERS_THAT_READ_TOKENS:
        return (
            f"+poise.composer={options.composer} compares tokens, and a plan has none: "
            "set +poise.composer=grouped"
        )
    if options.composer == "whole" and steps(config) > 1:
        return "+poise.composer=whole makes one step: set ppo_mini_batch_size=train_batch_size"
    if select(config, "actor_rollout_ref.rollout.n", 1) < 2:
        return "actor_rollout_ref.rollout.n=1 makes groups of one rollout: set it to 2 or more"
    if min(options.max_age, options.max_refills, options.monitor_every) < 0:
        return "+poise.max_age, max_refills and monitor_every cannot be negative"
    return ""


def _balance(config: Config, options: Options) -> str:
    mode = select(config, "trainer.v1.trainer_mode", "sync")
    if mode != "sync":
        return f"+poise.tau is for trainer.v1.trainer_mode=sync, not {mode}: set +poise.tau=0"
    if credit(config) is None:
        return "+poise.tau balances by our credit: set algorithm.adv_estimator=poise_grpo"
    if credit(config) == "positive_only":
        return "poise_positive_only has no negative rollouts to balance: set +poise.tau=0"
    named = [select(config, f"trainer.v1.sampler.custom_sampler.{k}") for k in ("path", "name")]
    if any(named) and tuple(named) != SAMPLER:
        return "+poise.tau is a sampler of its own: leave trainer.v1.sampler.custom_sampler out"
    for path in (
        "algorithm.filter_groups.enable",
        "trainer.v1.sampler.sync_refill_failed_groups",
        "skip.rollout_tq.enable",
    ):
        if select(config, path, False):
            return f"{path}=True belongs to verl's own sampler: set it to False, or +poise.tau=0"
    return ""


def _rewards(config: Config, options: Options) -> str:
    if select(config, "algorithm.use_kl_in_reward", False):
        return (
            "algorithm.use_kl_in_reward=True changes rewards after RB has seen them: "
            "set it to False, or +poise.tau=0"
        )
    model = select(config, "reward.reward_model", {})
    if model.get("enable") and not model.get("enable_resource_pool"):
        return (
            "a colocated reward model judges after RB has chosen: "
            "set reward.reward_model.enable_resource_pool=True, or +poise.tau=0"
        )
    return ""


def _known(kind: str, name: str, choices: Iterable[str]) -> None:
    if name not in (choices := tuple(choices)):
        raise unknown(kind, name, choices)
