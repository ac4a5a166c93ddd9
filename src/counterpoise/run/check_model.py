"""What a run should know of its model once it is loaded, before anything is written."""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.config import RunConfig
from counterpoise.config.check_options import limits_passes
from counterpoise.model.load import Policy, require_fast_path

# They run the layers of the fast path one by one; sample/vllm.py checks for itself.
FAST_PATH_WEIGHTS = ("oar_p", "oar_p_approximate")


def check_model(policy: Policy, config: RunConfig, notify: Callable[[str], None]) -> None:
    """Say how the model runs; raise an error if an option needs the fast path and it is not on it.

    Without this, such an option would end the run only after the first rollouts.
    """
    for notice in policy.notices:
        notify(notice)
    if config.credit.weights in FAST_PATH_WEIGHTS:
        require_fast_path(policy, f"credit.weights={config.credit.weights}")
    if limits_passes(config):
        notify("credit.weights=oar_p with passes above 0 is now called oar_p_approximate")
