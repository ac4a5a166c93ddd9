"""Make the verifier that `verify.name` names: a built-in one, or the user's function."""

from __future__ import annotations

from counterpoise import plugins
from counterpoise.config import VerifyConfig
from counterpoise.variants import VERIFIERS
from counterpoise.verify.plugin_reward import bind_verifier
from counterpoise.verify.reward_process import shared_process
from counterpoise.verify.scores import Verifier
from counterpoise.verify.time_limited_verifier import IN_A_RUN, LimitWording, TimeLimitedVerifier


def make_verifier(options: VerifyConfig, wording: LimitWording = IN_A_RUN) -> Verifier:
    """The verifier of a run, with its limits."""
    if plugins.is_plugin(options.name):
        return make_plugin_verifier(options.name, options, wording)
    verifier: Verifier = VERIFIERS.load(options.name)(options.timeout_seconds, options.workers)
    return verifier


def make_plugin_verifier(
    name: str, options: VerifyConfig, wording: LimitWording = IN_A_RUN
) -> Verifier:
    """A reward function of the user's, in a process of its own unless the options say otherwise."""
    verifier = bind_verifier(name)()
    if not options.reward_timeout_seconds:
        return verifier
    process = shared_process(options.reward_timeout_seconds)
    return TimeLimitedVerifier(name, verifier, process, wording)
