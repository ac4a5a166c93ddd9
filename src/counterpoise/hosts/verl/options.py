"""Read and check the section `poise` of verl's config, before Ray starts.

`config` is verl's: nested mappings (an OmegaConf DictConfig, or plain dictionaries in tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.config.check_variants import EngineWords, composer_fault, credit_fault
from counterpoise.credit.assign import UNIFORM, parse_settings
from counterpoise.errors import PoiseError, check_choice, unknown_name
from counterpoise.hosts.verl.weight_methods import REFUSED_WEIGHTS, balance_fault, reads_states
from counterpoise.plugins import display_name
from counterpoise.variants import (
    ADVANTAGES,
    BALANCE_UNITS,
    COMPOSERS,
    COMPOSERS_THAT_READ_SIGNS,
    ONE_SIDED_ADVANTAGES,
    TOKEN_WEIGHTS,
    TRAJECTORY_WEIGHTS,
    WHOLE_GROUP_COMPOSERS,
)

SECTION = "poise"
ESTIMATOR_PREFIX = "poise_"  # begins the names of our estimators
VERL_ORDER = "verl"  # a composer: keep verl's own order and only describe it
SAMPLER_MODULE = "pkg://counterpoise.hosts.verl.sampler"
SAMPLER_CLASSES = {  # of RB, by trainer.v1.trainer_mode
    "sync": "RewardBalancedReplayBuffer",
    "colocate_async": "AsyncRewardBalancedReplayBuffer",
}
# Values of loss_agg_mode in which all tokens of a step have the same coefficient.
EQUAL_TOKEN_AVERAGES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
WORDS = EngineWords(
    composer="+poise.composer={}",
    token_weights="+poise.credit_weights={}",
    credit=f"algorithm.adv_estimator={ESTIMATOR_PREFIX}{{}}",
    no_balance="+poise.tau=0",
    one_step="set actor_rollout_ref.actor.ppo_mini_batch_size to data.train_batch_size",
    two_steps="lower actor_rollout_ref.actor.ppo_mini_batch_size to half of data.train_batch_size",
    trainer="verl",
)
VerlConfig = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VerlAdapterOptions:
    """The options `+poise.*` of verl's command line.

    Example:
        +poise.composer=grouped +poise.tau=0.25
    """

    composer: str = "grouped"  # which rollouts share an optimizer step; 'grouped' is QB
    credit_weights: str = "uniform"  # method that weights tokens within a response
    credit_settings: tuple[str, ...] = ()  # of that method, each "name=value"
    trajectory: str = "off"  # DFPO's weights of whole rollouts, with the loss `gpg`
    tau: float = 0.0  # RB: update only on batches with min(N+, N-) >= tau |B|; 0 is off
    unit: str = "rollout"  # RB: 'rollout' drops surplus inside groups, 'group' chooses whole ones
    max_age: int = 4  # RB: sampling rounds that a rollout may wait
    max_refills: int = 8  # RB: further rounds before an update; then the run stops
    monitor_every: int = 0  # updates between measurements of displacement and coupling; 0 is off
    monitor_tokens: int = 16384  # tokens of an update whose coupling is measured; 0 is all
    run_folder: str = ""  # where plans, rollouts and tokens of every update go; "" is nowhere
    seed: int = 0  # of the composer

    @property
    def weighs_tokens(self) -> bool:
        return self.credit_weights != UNIFORM


def read_options(config: VerlConfig) -> VerlAdapterOptions | None:
    """Our options; None where the section is missing."""
    section = config.get(SECTION)
    if section is None:
        return None
    types: dict[str, Any] = {
        field.name: type(field.default) for field in fields(VerlAdapterOptions)
    }
    values: dict[str, Any] = {}
    for name, value in section.items():
        if name not in types:
            raise unknown_name("option of +poise", str(name), types)
        values[name] = value
        # YAML reads `1` as an int, which is a fine value for a float option.
        if type(value) is int and types[name] is float:
            values[name] = float(value)
        if types[name] is tuple and not isinstance(value, str | int | float):
            values[name] = tuple(str(setting) for setting in value)
        if type(values[name]) is not types[name]:
            kind = "list" if types[name] is tuple else types[name].__name__
            raise PoiseError(f"+poise.{name}={value} is not of type {kind}")
    return VerlAdapterOptions(**values)


def uses_adapter(config: VerlConfig) -> bool:
    """Whether the config uses any of our options or estimators."""
    return config.get(SECTION) is not None or credit_name(config) is not None


def credit_name(config: VerlConfig) -> str | None:
    """Our advantage that the config chooses, without `poise_`; None for verl's own estimators."""
    name = str(select(config, "algorithm.adv_estimator"))
    return name.removeprefix(ESTIMATOR_PREFIX) if name.startswith(ESTIMATOR_PREFIX) else None


def updates_per_global_step(config: VerlConfig) -> int:
    """Batches that verl trains on between two transfers of weights to the sampler."""
    return int(select(config, f"trainer.v1.{trainer_mode(config)}.parameter_sync_step", 1))


def optimizer_steps(config: VerlConfig) -> int:
    """Optimizer steps of one batch."""
    # Prompts of one batch.
    prompts = select(config, "data.train_batch_size") // updates_per_global_step(config)
    return int(prompts // select(config, "actor_rollout_ref.actor.ppo_mini_batch_size"))


def trainer_mode(config: VerlConfig) -> str:
    """sync, colocate_async or separate_async."""
    return str(select(config, "trainer.v1.trainer_mode", "sync"))


def keeps_old_scores(config: VerlConfig, options: VerlAdapterOptions) -> bool:
    """Whether rollouts that wait keep the scores of the weights that sampled them (RB).

    In verl's asynchronous mode a rollout may be the work of several weights, so there, as in verl
    without RB, the weights before an update score all its rows.
    """
    is_sync = trainer_mode(config) == "sync"
    return options.tau > 0 and is_sync and not bypasses_scoring(config)


def rollouts_per_batch(config: VerlConfig) -> int:
    """Rollouts of one batch."""
    return int(
        select(config, "data.train_batch_size") * select(config, "actor_rollout_ref.rollout.n")
    )


def bypasses_scoring(config: VerlConfig) -> bool:
    """Whether the sampler's log-probabilities serve as the old ones, without a scoring pass."""
    return bool(select(config, "algorithm.rollout_correction.bypass_mode", False))


def coupling_fault(config: VerlConfig) -> str:
    """Why a monitored update cannot be decomposed into pushes; "" if it can.

    Displacements are measured all the same.
    """
    coefficient = select(config, "actor_rollout_ref.actor.entropy_coeff", 0)
    if coefficient and not head_fault(config):
        return (
            f"actor_rollout_ref.actor.entropy_coeff={coefficient} pushes tokens too, which the "
            "measurement does not see"
        )
    return head_fault(config)


def head_fault(config: VerlConfig) -> str:
    """Why the workers cannot see hidden states and the output layer; "" if they can."""
    if select(config, "actor_rollout_ref.model.use_fused_kernels", False):
        return "actor_rollout_ref.model.use_fused_kernels=True hides the output layer"
    return _parallel_fault(config)


def _parallel_fault(config: VerlConfig) -> str:
    """Why a rank does not see whole responses; "" if it does."""
    actor = "actor_rollout_ref.actor"
    strategy = select(config, f"{actor}.strategy", "fsdp")
    if strategy not in ("fsdp", "fsdp2"):
        return f"{actor}.strategy={strategy} is not FSDP"
    for path in (
        f"{actor}.ulysses_sequence_parallel_size",
        f"{actor}.fsdp_config.ulysses_sequence_parallel_size",
    ):
        if select(config, path, 1) > 1:
            return f"{path} above 1 splits a response over ranks"
    return ""


def check_config(config: VerlConfig) -> VerlAdapterOptions | None:
    """Our options; raises with one line that says what to change."""
    name = credit_name(config)
    if name is not None and name not in ADVANTAGES:
        raise unknown_name(
            "adv_estimator",
            ESTIMATOR_PREFIX + name,
            [ESTIMATOR_PREFIX + advantage for advantage in ADVANTAGES],
        )
    options = read_options(config)
    if options is None:
        return None
    check_choice("composer", options.composer, (*COMPOSERS, VERL_ORDER))
    check_choice("balance unit", options.unit, BALANCE_UNITS)
    check_choice("trajectory weight", options.trajectory, TRAJECTORY_WEIGHTS)
    # Each returns what is wrong as one line, or "".
    checks: list[Callable[[VerlConfig, VerlAdapterOptions], str]] = [
        _trainer_fault,
        _size_fault,
        _weights_fault,
        _trajectory_fault,
    ]
    if options.tau:
        checks += [_balance_fault, _reward_fault]
    for find_fault in checks:
        if fault := find_fault(config, options):
            raise PoiseError(fault)
    if options.tau:  # raises if its own limits are violated
        RewardBalancedBuffer(
            tau=options.tau,
            target=rollouts_per_batch(config),
            unit=options.unit,
            max_age=options.max_age,
        )
    return options


def select(config: VerlConfig, path: str, default: Any = None) -> Any:
    """config.a.b.c, or the default where any of them is missing or null.

    Example:
        >>> select({"a": {"b": 1}}, "a.b"), select({"a": None}, "a.b", 2)
        (1, 2)
    """
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if value is not None else None
    return default if value is None else value


def _trainer_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
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
    if options.monitor_every and bypasses_scoring(config):
        return (
            "algorithm.rollout_correction.bypass_mode=True leaves no log-probabilities to compare "
            "with: set it to False, or +poise.monitor_every=0"
        )
    if options.monitor_every and updates_per_global_step(config) > 1:
        return (
            "+poise.monitor_every compares with the weights before an update, and verl scores all "
            f"{updates_per_global_step(config)} updates of a global step by the weights of the "
            f"first: set trainer.v1.{trainer_mode(config)}.parameter_sync_step=1, or "
            "+poise.monitor_every=0"
        )
    if options.composer in COMPOSERS_THAT_READ_SIGNS and credit_name(config) is None:
        return (
            f"+poise.composer={options.composer} reads the advantages of a poise_* estimator: "
            "set algorithm.adv_estimator=poise_grpo"
        )
    if options.composer in COMPOSERS_THAT_READ_SIGNS and select(
        config, "algorithm.use_kl_in_reward", False
    ):
        return (
            f"algorithm.use_kl_in_reward=True changes rewards after +poise.composer="
            f"{options.composer} has seen them: set it to False, or +poise.composer=grouped"
        )
    return ""


def _size_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
    prompts = select(config, "data.train_batch_size")
    mini_batch = select(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    if prompts < mini_batch or prompts % mini_batch:
        return (
            f"data.train_batch_size={prompts} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}: choose a mini-batch size "
            "that divides the batch size"
        )
    if fault := composer_fault(options.composer, optimizer_steps(config), WORDS):
        return fault
    if select(config, "actor_rollout_ref.rollout.n", 1) < 2:
        return "actor_rollout_ref.rollout.n=1 makes groups of one rollout: set it to 2 or more"
    if options.run_folder and select(config, "actor_rollout_ref.actor.ppo_epochs", 1) > 1:
        return (
            "+poise.run_folder records one update of each rollout, and ppo_epochs makes several: "
            "set actor_rollout_ref.actor.ppo_epochs=1"
        )
    counts = (options.max_age, options.max_refills, options.monitor_every, options.monitor_tokens)
    if min(counts) < 0:
        return "+poise.max_age, max_refills, monitor_every and monitor_tokens cannot be negative"
    return ""


def _weights_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
    method = options.credit_weights
    weigh_tokens = TOKEN_WEIGHTS.load(method)
    parse_settings(method, weigh_tokens, options.credit_settings, "+poise.credit_settings")
    if not options.weighs_tokens:
        return ""
    shown = f"+poise.credit_weights={display_name(method)}"
    if method in REFUSED_WEIGHTS:
        return f"{shown} does not run inside verl: {REFUSED_WEIGHTS[method]}; choose another"
    credit = credit_name(config)
    if credit is None:
        return f"{shown} weights our advantages: set algorithm.adv_estimator=poise_grpo"
    if fault := credit_fault(credit, method, is_balanced=False, words=WORDS):
        return fault
    correction = "algorithm.rollout_correction"
    if bypasses_scoring(config):
        return f"{shown} reads a scoring pass: set {correction}.bypass_mode=False"
    if select(config, f"{correction}.rollout_rs"):
        return f"{shown} weights every token, rejected ones too: leave {correction}.rollout_rs out"
    if reads_states(method) and (fault := head_fault(config)):
        return f"{shown} reads hidden states: {fault}"
    if keeps_old_scores(config, options) and (fault := balance_fault(method)):
        return f"{shown}: {fault}; set +poise.tau=0"
    return ""


def _trajectory_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
    if options.trajectory == "off":
        return ""
    shown, actor = f"+poise.trajectory={options.trajectory}", "actor_rollout_ref.actor"
    if select(config, f"{actor}.policy_loss.loss_mode", "vanilla") != "gpg":
        return f"{shown} needs a loss without a clip: set {actor}.policy_loss.loss_mode=gpg"
    if select(config, f"{actor}.loss_agg_mode", "token-mean") not in EQUAL_TOKEN_AVERAGES:
        return (
            f"{shown} needs one denominator for all rollouts: set {actor}.loss_agg_mode=token-mean"
        )
    credit = credit_name(config)
    if credit is None:
        return f"{shown} reads our advantages: set algorithm.adv_estimator=poise_grpo"
    if fault := _parallel_fault(config):
        return f"{shown} scores whole responses on every rank: {fault}"
    if options.trajectory != "min_replace":
        return ""
    if options.composer not in WHOLE_GROUP_COMPOSERS and optimizer_steps(config) > 1:
        return f"{shown} needs whole groups: set +poise.composer=grouped"
    if credit in ONE_SIDED_ADVANTAGES:
        return (
            f"{shown} needs advantages that sum to 0 in a group, and those of poise_{credit} do "
            "not: set +poise.trajectory=orthogonal"
        )
    return ""


def _balance_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
    mode = trainer_mode(config)
    if mode not in SAMPLER_CLASSES:
        return (
            f"+poise.tau is for trainer.v1.trainer_mode={' and '.join(SAMPLER_CLASSES)}, not "
            f"{mode}: set +poise.tau=0"
        )
    if (updates := updates_per_global_step(config)) > 1:
        return (
            f"+poise.tau takes one batch for each global step, and trainer.v1.{mode}."
            f"parameter_sync_step={updates} makes several updates of it: set it to 1, or "
            "+poise.tau=0"
        )
    credit = credit_name(config)
    if credit is None:
        return (
            "+poise.tau balances by the advantages of a poise_* estimator: "
            "set algorithm.adv_estimator=poise_grpo"
        )
    if fault := credit_fault(credit, options.credit_weights, is_balanced=True, words=WORDS):
        return fault
    custom = [select(config, f"trainer.v1.sampler.custom_sampler.{k}") for k in ("path", "name")]
    if any(custom) and custom != [SAMPLER_MODULE, SAMPLER_CLASSES[mode]]:
        return "+poise.tau brings its own sampler: leave trainer.v1.sampler.custom_sampler out"
    # These are features of the sampler that ours replaces: they would silently do nothing.
    for path in (
        "algorithm.filter_groups.enable",
        "trainer.v1.sampler.sync_refill_failed_groups",
        "skip.rollout_tq.enable",
    ):
        if select(config, path, False):
            return f"{path}=True belongs to verl's own sampler: set it to False, or +poise.tau=0"
    return ""


def _reward_fault(config: VerlConfig, options: VerlAdapterOptions) -> str:
    if select(config, "algorithm.use_kl_in_reward", False):
        return (
            "algorithm.use_kl_in_reward=True changes rewards after RB has seen them: "
            "set it to False, or +poise.tau=0"
        )
    reward_model = select(config, "reward.reward_model", {})
    if reward_model.get("enable") and not reward_model.get("enable_resource_pool"):
        return (
            "a colocated reward model scores after RB has chosen: "
            "set reward.reward_model.enable_resource_pool=True, or +poise.tau=0"
        )
    return ""
