"""Checks of options that are valid alone but not together, made before anything is written."""

from __future__ import annotations

from counterpoise.config import RunConfig
from counterpoise.config.check_variants import (
    EngineWords,
    composer_fault,
    credit_fault,
    group_fault,
)
from counterpoise.config.evaluation_settings import parse_benchmarks, parse_settings
from counterpoise.errors import PoiseError, format_count, unknown_name
from counterpoise.plugins import display_name, is_plugin
from counterpoise.variants import (
    FIXED_STEP_COMPOSERS,
    ONE_SIDED_ADVANTAGES,
    STAGE_CHECKS,
    TRACKERS,
    WHOLE_GROUP_COMPOSERS,
)

LARGEST_FLOAT32 = 3.4e38
EXACT_MASKING_TOKENS = 512  # longest response whose tokens credit.weights=oar_p masks one by one
WORDS = EngineWords(
    composer="batch.composer={}",
    token_weights="credit.weights={}",
    credit="credit.name={}",
    no_balance="balance.tau=0",
    one_step="set batch.steps=1",
    two_steps="raise batch.steps to 2",
    fewer_steps="lower batch.steps",
    prompts="sample.prompts",
    balance_target="balance.target",
)


def check_config(config: RunConfig) -> RunConfig:
    """Return the configuration unchanged, or raise the first reason why it cannot run."""
    parse_settings(config.evaluate.settings, config.sample)
    parse_benchmarks(config.evaluate.benchmarks)
    for check in (
        _check_levels,
        _check_steps,
        _check_credit,
        _check_probes,
        _check_groups,
        _check_rewards,
        _check_balance,
        _check_learning_rates,
        _check_clip,
        _check_penalties,
        _check_importance,
        _check_trajectory,
        _check_rule,
        _check_environment,
        _check_vllm,
        _check_scratch_model,
        _check_trackers,
    ):
        if reason := check(config):
            raise PoiseError(reason)
    return config


def _check_levels(config: RunConfig) -> str:
    unknown_levels = [level for level in config.task.levels if level not in (1, 2, 3, 4)]
    return f"task.levels: {unknown_levels[0]} is not a level (1 to 4)" if unknown_levels else ""


def _check_steps(config: RunConfig) -> str:
    """A plan needs rows for every step; composers of whole or half groups need groups."""
    composer, steps, prompts = config.batch.composer, config.batch.steps, config.sample.prompts
    G, tau, target = config.sample.group_size, config.balance.tau, config.balance_target
    num_rows = target if tau else prompts * G
    if fault := composer_fault(composer, steps, WORDS):
        return fault
    if (config.batch.rows_per_step or config.batch.drop_silent) and (
        composer in FIXED_STEP_COMPOSERS
    ):
        option_name = "rows_per_step" if config.batch.rows_per_step else "drop_silent"
        return (
            f"batch.{option_name} changes the number of steps, which batch.composer={composer} "
            "needs as it is: choose another composer"
        )
    if config.batch.rows_per_step:
        return ""  # it replaces batch.steps, and makes no more steps than the rows can fill
    if num_rows < steps:
        row_count = format_count(num_rows, "row")
        return f"{row_count} cannot fill {steps} steps: lower batch.steps or raise sample.prompts"
    return group_fault(composer, steps, prompts, G, target if tau else 0, WORDS)


def _check_probes(config: RunConfig) -> str:
    options = config.monitor
    if not options.takes_gradients:
        return ""
    if not options.follows_probes:
        return (
            f"monitor.probe_through={options.probe_through} is about held-out answers: set "
            "monitor.probe=64, or answers in monitor.probe_file"
        )
    if not options.probe_every:
        return (
            f"monitor.probe_through={options.probe_through} takes a backward pass for every "
            "trained row and every answer: set monitor.probe_every to say how often"
        )
    return ""


def _check_credit(config: RunConfig) -> str:
    # Plugins are checked when a run begins: a stored run must be readable without their files.
    if config.credit.settings and not is_plugin(config.credit.weights):
        STAGE_CHECKS.load("credit.settings")(config)
    is_balanced = config.balance.tau > 0 and config.balance.sign != "reward"
    if fault := credit_fault(config.credit.name, config.credit.weights, is_balanced, WORDS):
        return fault
    if config.credit.weights == "crpo" and not config.sample.anchors:
        return "credit.weights=crpo compares responses with generic ones: set sample.anchors=1"
    if config.steers_by_probes and not config.monitor.follows_probes:
        is_credit = config.credit.weights == "aligned"
        return (
            f"{'credit.weights' if is_credit else 'sample.choose'}=aligned reads held-out answers: "
            "set monitor.probe=64, or answers in monitor.probe_file"
        )
    if (
        config.credit.weights == "oar_p"
        and config.sample.max_new_tokens > EXACT_MASKING_TOKENS
        and not any(_setting_name(setting) == "passes" for setting in config.credit.settings)
    ):
        return (
            f"credit.weights=oar_p masks every token alone, {config.sample.max_new_tokens // 2} "
            'passes for a full response: choose oar_p_approximate, or credit.settings=["passes=0"]'
        )
    kl_in_reward, extra_rewards = config.update.kl_in_reward, _extra_reward_names(config)
    if config.credit.name == "maxrl" and (kl_in_reward or "overlong" in extra_rewards):
        penalty = "update.kl_in=reward" if kl_in_reward else "overlong of verify.also"
        return (
            f"credit.name=maxrl needs rewards of 0 or above, and {penalty} lowers them below: "
            "choose another credit.name"
        )
    return ""


def uses_old_oar_p_name(config: RunConfig) -> bool:
    """Whether credit.weights=oar_p means what release 0.2.0 calls so, now oar_p_approximate."""
    limits = [
        setting.partition("=")[2].strip()
        for setting in config.credit.settings
        if _setting_name(setting) == "passes"
    ]
    return config.credit.weights == "oar_p" and any(float(limit) > 0 for limit in limits)


def _setting_name(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _extra_reward_names(config: RunConfig) -> list[str]:
    """The names in verify.also, without their weights."""
    return [extra_reward.partition("=")[0].strip() for extra_reward in config.verify.also]


def _check_groups(config: RunConfig) -> str:
    """Anchors and dynamic sampling restrict what may be done with a group."""
    sample, credit = config.sample, config.credit
    if sample.anchors and sample.anchors > sample.group_size - 2:
        return (
            f"sample.anchors={sample.anchors} leaves fewer than two of sample.group_size="
            f"{sample.group_size} responses for the problem: lower sample.anchors"
        )
    if sample.anchors and config.update.old_logprobs == "sampler":
        return (
            "sample.anchors: the sampler has no log-probabilities of anchors given the problem; "
            "set update.old_logprobs=trainer"
        )
    if sample.anchors and config.update.importance != "off":
        return "sample.anchors: an anchor has no importance weight; set update.importance=off"
    if sample.anchors and config.batch.composer == "coupled":
        return (
            "batch.composer=coupled needs the sampler's log-probabilities, which anchors lack: "
            "choose batch.composer=grouped"
        )
    if sample.anchors and config.task.environment != "none":
        return "sample.anchors: an environment cannot reply to an anchor; set task.environment=none"
    if sample.refills and credit.name == "w_reinforce":
        return (
            "credit.name=w_reinforce learns from groups without spread, which dynamic sampling "
            "drops: set sample.refills=0"
        )
    return ""


def _check_rewards(config: RunConfig) -> str:
    options = config.verify
    if options.also:
        STAGE_CHECKS.load("verify.also")(config)
    if options.overlong_tokens > config.sample.max_new_tokens:
        return (
            f"verify.overlong_tokens={options.overlong_tokens} is longer than a response: "
            f"choose at most sample.max_new_tokens={config.sample.max_new_tokens}"
        )
    if options.name == "verifiers" and config.evaluate.benchmarks:
        return (
            "verify.name=verifiers scores tasks of that package only: leave evaluate.benchmarks out"
        )
    if config.credit.mixture != "sum" and not options.also:
        return f"credit.mixture={config.credit.mixture} has one reward to combine: set verify.also"
    return ""


def _check_balance(config: RunConfig) -> str:
    """Reward balance must be able to fill a batch."""
    unit = config.balance.unit
    if not config.balance.tau:
        return ""
    STAGE_CHECKS.load("balance.target")(config)
    if config.balance.sign == "reward":
        return _check_balance_by_reward(config)
    if config.credit.name == "w_reinforce" and unit != "group":
        return (
            f"balance.unit={unit} makes trimmed groups sum to zero, which credit.name=w_reinforce "
            "must not: set balance.unit=group or balance.tau=0"
        )
    return ""


def _check_balance_by_reward(config: RunConfig) -> str:
    """Counted by reward, rows without signal wait and are trained like any others."""
    if config.batch.drop_silent:
        return (
            "balance.sign=reward keeps rows without signal, which batch.drop_silent leaves out: "
            "set one of them only"
        )
    if config.update.mask_truncated:
        return (
            "balance.sign=reward counts the answers of truncated responses, which "
            "update.mask_truncated leaves out: set one of them only"
        )
    return ""


def _check_learning_rates(config: RunConfig) -> str:
    """Reject learning rates that overflow float32."""
    # AdamW's first step multiplies by lr / (1 - 0.9).
    for option, lr in (("update.lr", config.update.lr), ("warmup.lr", config.warmup.lr)):
        if 10 * lr > LARGEST_FLOAT32:
            return f"{option}={lr:g}: an update of that size overflows float32: lower it"
    return ""


def _check_clip(config: RunConfig) -> str:
    """The dual clip bounds ratios that the ordinary clip lets pass, so it must lie above it."""
    options = config.update
    if options.surrogate == "drpo" and not (options.clip_low > 0 and options.clip_high > 0):
        return "update.surrogate=drpo divides by update.clip_low and clip_high: set both above 0"
    if not options.clip_dual:
        return ""
    if options.surrogate not in ("grpo", "gspo"):
        return (
            f"update.surrogate={options.surrogate} has no dual clip: set update.clip_dual=0, or "
            "update.surrogate=grpo"
        )
    if options.clip_dual <= 1 + options.clip_high:
        return (
            f"update.clip_dual={options.clip_dual:g} must be above 1 + update.clip_high="
            f"{1 + options.clip_high:g}: raise it, or set it to 0"
        )
    return ""


def _check_penalties(config: RunConfig) -> str:
    """A KL or an entropy bonus covers all rows, a rule's loss term only those with an advantage."""
    options, rule = config.update, config.credit.rule
    if options.kl_control != "fixed" and not options.kl_in_loss:
        return (
            f"update.kl_control={options.kl_control} moves the coefficient of a KL in the loss: "
            "set update.kl=0.01 and update.kl_in=loss"
        )
    if options.kl_control != "fixed" or options.kl_settings:
        STAGE_CHECKS.load("update.kl_settings")(config)
    if options.trains_all_rows and rule in ("kl_cov", "sdpg"):
        name = "kl" if options.kl_in_loss else "entropy_bonus"
        return f"credit.rule={rule} adds a term of its own to the loss: set update.{name}=0"
    return ""


def _check_importance(config: RunConfig) -> str:
    options = config.update
    if options.importance != "off" and options.old_logprobs == "sampler":
        return (
            "update.old_logprobs=sampler: the ratio corrects for the sampler already; "
            "set update.importance=off"
        )
    return ""


def _check_trajectory(config: RunConfig) -> str:
    """Trajectory weights cancel within a group only if the loss is linear in them."""
    options = config.update
    if options.trajectory == "off":
        return ""
    if options.surrogate != "reinforce":
        return f"update.trajectory={options.trajectory} needs update.surrogate=reinforce: no clip"
    if options.mask_truncated:
        return (
            f"update.trajectory={options.trajectory} needs whole groups, and masking takes "
            "truncated responses out of them: set update.mask_truncated=false"
        )
    if options.aggregate not in ("token_mean", "constant"):
        return (
            f"update.trajectory={options.trajectory} needs one denominator for all rollouts: "
            "set update.aggregate=token_mean or constant"
        )
    return _check_min_replace(config) if options.trajectory == "min_replace" else ""


def _check_min_replace(config: RunConfig) -> str:
    """One weight for a whole group cancels what it shares only if its advantages sum to 0."""
    makes_several_steps = config.batch.steps > 1 or config.batch.rows_per_step > 0
    cuts_groups = makes_several_steps and config.batch.composer not in WHOLE_GROUP_COMPOSERS
    if cuts_groups and not is_plugin(config.batch.composer):
        return (
            f"update.trajectory=min_replace needs whole groups, and {config.batch.composer} cuts "
            "them: set batch.composer=grouped, or update.trajectory=orthogonal"
        )
    balance = config.balance
    if balance.tau and balance.sign == "reward" and balance.unit != "group":
        return (
            "update.trajectory=min_replace needs advantages that sum to 0 in a group, and "
            "balance.sign=reward drops rows of groups: set balance.unit=group"
        )
    if config.credit.name in ONE_SIDED_ADVANTAGES:
        return (
            "update.trajectory=min_replace needs advantages that sum to 0 in a group, and those of "
            f"credit.name={config.credit.name} do not: set update.trajectory=orthogonal"
        )
    return ""


def _check_rule(config: RunConfig) -> str:
    """Some rules replace the clip, or contradict another option."""
    rule, update = config.credit.rule, config.update
    if (rule != "off" or config.credit.rule_settings) and not is_plugin(rule):
        STAGE_CHECKS.load("credit.rule")(config)
    if rule == "kl_cov" and update.surrogate != "unclipped":
        return "credit.rule=kl_cov replaces the clip: set update.surrogate=unclipped"
    if (rule == "clip_cov" or is_plugin(rule)) and update.trajectory != "off":
        return (
            f"credit.rule={display_name(rule)} excludes tokens, after which a group no longer "
            "cancels: set update.trajectory=off"
        )
    return ""


def _check_environment(config: RunConfig) -> str:
    """Some options need single responses, others need episodes."""
    weights, environment = config.credit.weights, config.task.environment
    if (environment == "textarena") != (config.task.name == "textarena"):
        return "textarena is both task and environment: set task.name and task.environment to it"
    if environment == "none":
        remedy = "needs the replies of an environment: set task.environment=tries"
        return f"credit.weights=serl {remedy}" if weights == "serl" else ""
    setting = f"task.environment={display_name(environment)}"
    if weights in ("grail", "oar_g", "oar_p", "oar_p_approximate"):
        return f"credit.weights={weights} needs single responses: unset {setting}"
    if config.sample.engine != "native":
        return f"{setting} needs sample.engine=native: other samplers are untested with episodes"
    if "overlong" in _extra_reward_names(config):
        return f"{setting}: sample.max_new_tokens cuts turns; leave overlong out of verify.also"
    return ""


def _check_vllm(config: RunConfig) -> str:
    """vLLM lacks some abilities of the native sampler."""
    sample = config.sample
    if sample.engine != "vllm":
        return ""
    if sample.temperature != 1 and (sample.top_p < 1 or sample.top_k):
        return (
            "sample.engine=vllm gives no log-probabilities of the full distribution at "
            f"temperature {sample.temperature:g} with top-p or top-k: set sample.top_p=1 and "
            "sample.top_k=0"
        )
    if sample.temperature < 0.01:
        return "sample.engine=vllm samples at 0.01 and above: raise sample.temperature"
    return ""


def _check_scratch_model(config: RunConfig) -> str:
    hidden, heads = config.warmup.hidden, config.warmup.heads
    if heads % 2:
        return f"warmup.heads must be even, not {heads}: two share a key/value head"
    if hidden % (2 * heads):
        return (
            f"warmup.hidden={hidden} cannot be split into {heads} heads of even width: "
            f"choose a multiple of {2 * heads}"
        )
    return ""


def _check_trackers(config: RunConfig) -> str:
    for tracker in config.track.to:
        if tracker not in TRACKERS:
            return f"track.to: {unknown_name('tracker', tracker, TRACKERS)}"
        if config.track.to.count(tracker) > 1:
            return f"track.to names {tracker} twice"
    return ""
