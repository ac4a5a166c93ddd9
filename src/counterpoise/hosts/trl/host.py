"""What the adapter rests on: TRL's version, and the private methods it overrides or calls.

TRL promises nothing about names that begin with an underscore. They are listed here with the
parameters they had, in one place, so that a change is one clear line and not a wrong gradient.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from counterpoise.errors import PoiseError

SERIES = "1.16"
BY_TEXT = ("rlsd", "serl")  # token weights by answers or an environment's words; TRL keeps tokens
REMEDY = f"pip install 'trl=={SERIES}.*'"


@dataclass(frozen=True, slots=True)
class Private:
    """A method of `trl.GRPOTrainer` that TRL may change without notice.

    Example:
        Private("_compute_loss", ("self", "model", "inputs"), overridden=True)
    """

    name: str
    parameters: tuple[str, ...]  # as inspect.signature names them; the first ones, if `open_ended`
    overridden: bool  # False: only called
    open_ended: bool = False  # further parameters are TRL's affair


PRIVATE = (
    Private("_prepare_inputs", ("self", "generation_batch"), overridden=True),
    Private(
        "_calculate_rewards",
        ("self", "inputs", "prompts", "completions", "completion_ids_list"),
        overridden=True,
    ),
    Private("_compute_loss", ("self", "model", "inputs"), overridden=True),
    Private("_save_checkpoint", ("self", "model", "trial"), overridden=True),
    Private("_load_optimizer_and_scheduler", ("self", "checkpoint"), overridden=True),
    Private("_generate_and_score_completions", ("self", "inputs"), overridden=False),
    Private(
        "_get_per_token_logps_and_entropies",
        ("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        overridden=False,
        open_ended=True,
    ),
)


def require() -> None:
    """Raise unless the TRL that is installed is one the adapter was tested with."""
    found = installed()
    if found is None:
        raise PoiseError(f"TRL is not installed: {REMEDY}")
    if not supported(found):
        raise PoiseError(f"TRL {found} is not supported, only {SERIES}.x: {REMEDY}")
    from trl import GRPOTrainer

    if faults := changed(GRPOTrainer):
        raise PoiseError(f"TRL {found} is not the {SERIES} we know: {faults[0]}; {REMEDY}")


def installed() -> str | None:
    try:
        return version("trl")
    except PackageNotFoundError:
        return None


def supported(found: str) -> bool:
    """
    Example:
        >>> supported("1.16.0"), supported("1.17.0"), supported("0.16.1")
        (True, False, False)
    """
    return found.split(".")[:2] == SERIES.split(".")


def changed(trainer: type[Any]) -> list[str]:
    """What of `PRIVATE` is no longer as it was, a line each; `poise doctor` can show them."""
    faults = []
    for private in PRIVATE:
        method = getattr(trainer, private.name, None)
        if method is None:
            faults.append(f"GRPOTrainer.{private.name} is gone")
            continue
        names = tuple(inspect.signature(method).parameters)
        if private.open_ended:
            names = names[: len(private.parameters)]
        if names != private.parameters:
            faults.append(f"GRPOTrainer.{private.name} takes ({', '.join(names)})")
    return faults
