"""The TRL version and the private methods that the adapter relies on.

TRL promises nothing about names that begin with an underscore. They are listed here, in one place,
with the parameters they had, so that a change is reported as one clear line.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts import check_versions
from counterpoise.hosts.check_versions import HostMethod, find_changed_methods
from counterpoise.sample.vllm_host import UNNEEDED_PACKAGES

SUPPORTED_SERIES = "1.16"
INSTALL_REMEDY = f"pip install 'trl=={SUPPORTED_SERIES}.*'"
TRAINER = "trl:GRPOTrainer"
# Token weights that read held-out answers: they need `probe` or `probe_file`.
PROBE_READING_WEIGHTS = ("aligned",)

PRIVATE_METHODS = (
    HostMethod(TRAINER, "_prepare_inputs", ("self", "generation_batch"), overridden=True),
    HostMethod(
        TRAINER,
        "_calculate_rewards",
        ("self", "inputs", "prompts", "completions", "completion_ids_list"),
        overridden=True,
    ),
    HostMethod(TRAINER, "_compute_loss", ("self", "model", "inputs"), overridden=True),
    HostMethod(TRAINER, "_save_checkpoint", ("self", "model", "trial"), overridden=True),
    HostMethod(TRAINER, "_load_optimizer_and_scheduler", ("self", "checkpoint"), overridden=True),
    HostMethod(TRAINER, "_generate_and_score_completions", ("self", "inputs")),
    HostMethod(TRAINER, "_tokenize_prompts", ("self", "prompts")),
    HostMethod(
        TRAINER,
        "_get_per_token_logps_and_entropies",
        ("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        open_ended=True,
    ),
)


def check_version() -> str:
    """The installed version; raises an error unless the adapter was tested with it."""
    version = installed_version()
    if version is None:
        raise PoiseError(f"TRL is not installed: {INSTALL_REMEDY}")
    if not is_supported(version):
        raise PoiseError(
            f"TRL {version} is not supported, only {SUPPORTED_SERIES}.x: {INSTALL_REMEDY}"
        )
    return version


def require_trl() -> None:
    """Import TRL; raises an error unless it is one that the adapter was tested with."""
    version = check_version()
    try:
        from trl import GRPOTrainer
    # TRL imports vLLM where it is installed, and incompatible wheels raise errors of any type.
    except Exception as fault:
        raise PoiseError(
            f"TRL {version} cannot be imported ({first_line(fault)}): if vLLM is the cause, "
            f"pip uninstall -y {UNNEEDED_PACKAGES}, or vllm itself; else {INSTALL_REMEDY}"
        ) from fault

    if faults := find_changes(GRPOTrainer):
        raise PoiseError(
            f"TRL {version} differs from the {SUPPORTED_SERIES} we tested: {faults[0]}; "
            f"{INSTALL_REMEDY}"
        )


def installed_version() -> str | None:
    return check_versions.installed_version("trl")


def is_supported(version: str) -> bool:
    """
    Example:
        >>> is_supported("1.16.0"), is_supported("1.17.0"), is_supported("0.16.1")
        (True, False, False)
    """
    return version.split(".")[:2] == SUPPORTED_SERIES.split(".")


def find_changes(trainer: type[Any], names: Collection[str] = ()) -> list[str]:
    """A line for each of `PRIVATE_METHODS` that changed; `poise doctor` shows them.

    `names` limits the search, for a trainer that shares only some methods with GRPOTrainer.
    """
    methods = [method for method in PRIVATE_METHODS if not names or method.name in names]
    return find_changed_methods(methods, lambda owner: trainer)
