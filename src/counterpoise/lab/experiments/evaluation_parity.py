"""Check that all arms are evaluated in the same way: otherwise they cannot be compared.

    verify.name, timeout_seconds       which answers count (verify.also only changes the reward of
                                       training, not the success that is measured)
    evaluate                           how many problems and samples, how they are sampled, when
    task                               which problems are held out, and the environment
    sample.max_new_tokens, top_k       how long an answer may be, and what it is sampled from
    model.template                     how a problem becomes a prompt

If `evaluate.settings` contains "training", an arm with another temperature is evaluated at its own
temperature, and therefore refused.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from counterpoise.config import RunConfig, TaskConfig
from counterpoise.config.evaluation_settings import parse_settings
from counterpoise.errors import PoiseError
from counterpoise.plugins import display_name, is_plugin, name_without_location

REWARD_OPTION = "verify.name"  # the only one of these options that may name a plugin
REMEDIES = {
    REWARD_OPTION: "; to train with another reward as well, verify.also leaves success as it is",
    "evaluate.settings": '; "training" follows sample.temperature: write the settings out: ["1/1"]',
}


def evaluation_options(config: RunConfig) -> dict[str, object]:
    """Every option that influences held-out success -> its value."""
    sampling_options = [
        setting.apply_to(config.sample)
        for setting in parse_settings(config.evaluate.settings, config.sample)
    ]
    options: dict[str, object] = {
        REWARD_OPTION: config.verify.name,
        "verify.timeout_seconds": config.verify.timeout_seconds,
        **{
            f"evaluate.{option_name}": option_value
            for option_name, option_value in asdict(config.evaluate).items()
        },
        "evaluate.settings": [
            f"{setting.temperature:g}/{setting.top_p:g}" for setting in sampling_options
        ],
        "sample.top_k": [setting.top_k for setting in sampling_options],
        "sample.max_new_tokens": config.sample.max_new_tokens,
        "model.template": config.model.template,
    }
    return options | {
        f"task.{option_name}": option_value
        for option_name, option_value in asdict(_heldout_options(config.task)).items()
    }


def _heldout_options(task: TaskConfig) -> TaskConfig:
    """The task options with those reset that only change the training problems."""
    defaults = TaskConfig()
    heldout_task = replace(
        task, slips=defaults.slips, benchmarks=[], solution_field="", generic_field=""
    )
    # Held-out word problems do not depend on how many training problems there are.
    if task.name == "word_problems":
        heldout_task = replace(heldout_task, size=defaults.size)
    if task.heldout_path:
        heldout_task = replace(heldout_task, path="")
    if task.heldout_split:
        heldout_task = replace(heldout_task, train_split="")
    return heldout_task


def check_evaluated_alike(config: RunConfig, baseline: RunConfig, baseline_name: str) -> None:
    """Raise an error if an arm is evaluated differently from the baseline."""
    arm_options, baseline_options = evaluation_options(config), evaluation_options(baseline)
    for option, value in arm_options.items():
        if _comparable(option, value) != _comparable(option, baseline_options[option]):
            raise PoiseError(
                f"{option} is {_display_value(option, value)}, and "
                f"{_display_value(option, baseline_options[option])} for {baseline_name}: arms "
                f"that are evaluated differently cannot be compared{REMEDIES.get(option, '')}"
            )


def _comparable(option: str, value: object) -> object:
    return name_without_location(str(value)) if option == REWARD_OPTION else value


def _display_value(option: str, value: object) -> str:
    return (
        display_name(str(value))
        if option == REWARD_OPTION and is_plugin(str(value))
        else repr(value)
    )
