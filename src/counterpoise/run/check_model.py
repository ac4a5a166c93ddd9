"""Check a run against its model, once that is loaded and before anything is written."""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.config import RunConfig
from counterpoise.config.check_options import uses_old_oar_p_name
from counterpoise.model.load import Policy, require_fast_path

# Token weights that call the layers of the fast path one by one. (sample/vllm.py needs the fast
# path too, and checks that itself.)
FAST_PATH_WEIGHTS = ("oar_p", "oar_p_approximate")


def check_model(policy: Policy, config: RunConfig, notify: Callable[[str], None]) -> None:
    """Pass on the model's notices; raise an error unless options that need the fast path have it.

    Without this, such an option would end the run only after the first rollouts.
    """
    for notice in policy.notices:
        notify(notice)
    if config.credit.weights in FAST_PATH_WEIGHTS:
        require_fast_path(policy, f"credit.weights={config.credit.weights}")
    # This notice does not depend on the model; config/check_options.py can only raise errors.
    if uses_old_oar_p_name(config):
        notify(
            "credit.weights=oar_p with passes above 0 in credit.settings is now called "
            "oar_p_approximate, and runs as such: write credit.weights=oar_p_approximate in the "
            "run file"
        )
