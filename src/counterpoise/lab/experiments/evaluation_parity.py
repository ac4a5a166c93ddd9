"""What decides held-out success besides the policy. Arms that differ in it cannot be compared.

    verify.name, timeout_seconds       which answers count (verify.also does not: it adds to the
                                       reward of training, and success stays what it was)
    evaluate                           how many problems and samples, how they are sampled, when
    task                               which problems are held out, and who answers (environment)

Where `evaluate.settings` says "training", an arm with another temperature is judged by it.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from counterpoise.config import RunConfig, TaskConfig
from counterpoise.config.evaluation_settings import settings_of
from counterpoise.errors import PoiseError
from counterpoise.plugins import content, is_own, shown

REWARD_OPTION = "verify.name"  # alone may name a function of the user's
REMEDIES = {
    REWARD_OPTION: "; to train with another reward as well, verify.also leaves success as it is",
    "evaluate.settings": '; written out, as in ["1/1"], they do not follow sample.temperature',
}


def evaluation_options(config: RunConfig) -> dict[str, object]:
    """Option -> its value, as far as it decides."""
    sampled = [s.of(config.sample) for s in settings_of(config.evaluate.settings, config.sample)]
    found: dict[str, object] = {
        REWARD_OPTION: config.verify.name,
        "verify.timeout_seconds": config.verify.timeout_seconds,
        **{f"evaluate.{name}": value for name, value in asdict(config.evaluate).items()},
        "evaluate.settings": [f"{s.temperature:g}/{s.top_p:g}" for s in sampled],
        "sample.top_k": [s.top_k for s in sampled],
    }
    return found | {f"task.{k}": v for k, v in asdict(_heldout(config.task)).items()}


def _heldout(task: TaskConfig) -> TaskConfig:
    """Without what only the training problems depend on."""
    plain = TaskConfig()
    kept = replace(task, slips=plain.slips, benchmarks=[], solution_field="", generic_field="")
    if task.name == "word_problems":
        kept = replace(kept, size=plain.size)
    if task.heldout_path:
        kept = replace(kept, path="")
    if task.heldout_split:
        kept = replace(kept, train_split="")
    return kept


def check_evaluated_alike(config: RunConfig, baseline: RunConfig, name: str) -> None:
    """`name`: of the baseline."""
    mine, theirs = evaluation_options(config), evaluation_options(baseline)
    for option, value in mine.items():
        if _content(option, value) != _content(option, theirs[option]):
            raise PoiseError(
                f"{option} is {_told(option, value)}, and "
                f"{_told(option, theirs[option])} for {name}: arms that are judged "
                f"differently cannot be compared{REMEDIES.get(option, '')}"
            )


def _content(option: str, value: object) -> object:
    return content(str(value)) if option == REWARD_OPTION else value


def _told(option: str, value: object) -> str:
    return shown(str(value)) if option == REWARD_OPTION and is_own(str(value)) else repr(value)
