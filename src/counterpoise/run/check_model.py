"""Check a run against its model, once that is loaded and before anything is written."""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.config import RunConfig
from counterpoise.config.check_options import limits_passes
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
    # About an option alone: it stands here because config/check_options.py only raises errors.
    if limits_passes(config):
        notify(
            "credit.weights=oar_p with passes above 0 in credit.settings runs as "
            "oar_p_approximate, its new name: write that in the run file"
        )
