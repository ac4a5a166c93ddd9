"""What the adapter rests on: verl's version, and what of verl it overrides, calls or reads.

verl promises nothing about names that begin with an underscore, and little about the others. They
are listed here with the parameters they had, in one place, so that a change is one clear line and
not a wrong gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from counterpoise.errors import PoiseError

VERSION = "0.9.1"
REMEDY = "pip install 'counterpoise[verl]'"
TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
OF_RAY = "_ray_trace_ctx"  # a parameter Ray adds to the methods of its actors
WORKER = "verl.single_controller.base:Worker"  # its methods are bound to the worker group


@dataclass(frozen=True, slots=True)
class Private:
    """A function or method of verl's that may change without notice.

    Example:
        Private(TRAINER, "_compute_advantage", ("self", "batch", "metrics"), overridden=True)
    """

    owner: str  # module:class, or module:
    name: str
    parameters: tuple[str, ...]  # as inspect.signature names them
    overridden: bool = False  # False: only called


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that a class of verl's sets in its constructor, and we read.

    Example:
        Attribute(BUFFER, "pending_keys")
    """

    owner: str
    name: str


PRIVATE = (
    Private(TRAINER, "__init__", ("self", "config"), overridden=True),
    Private(
        TRAINER,
        "_balance_batch",
        ("self", "batch", "metrics", "logging_prefix", "keep_minibatch"),
        overridden=True,
    ),
    Private(TRAINER, "_compute_old_log_prob", ("self", "batch", "metrics"), overridden=True),
    Private(TRAINER, "_compute_advantage", ("self", "batch", "metrics"), overridden=True),
    Private(TRAINER, "_update_actor", ("self", "batch", "metrics"), overridden=True),
    Private(BUFFER, "sample", ("self", "global_steps", "partition_id", "batch_size"), True),
    Private(BUFFER, "_sync_metadata_from_transfer_queue", ("self",)),
    Private(BUFFER, "_wait_for_next_poll", ("self", "partition_id", "last_debug_time")),
    Private(WORKER, "_query_dispatch_info", ("self", "mesh_name")),
    Private(
        "verl.trainer.ppo.padding_utils:",
        "upsample_batch_to_divisible_size",
        ("batch", "batch_multiple", "eos_token_id"),
    ),
    Private("verl.utils.seqlen_balancing:", "calculate_workload", ("seqlen_list",)),
    Private(
        "verl.utils.seqlen_balancing:",
        "log_seqlen_unbalance",
        ("seqlen_list", "partitions", "prefix"),
    ),
    Private("verl.workers.utils.padding:", "response_from_nested", ("tensor", "response_mask")),
    Private("verl.trainer.ppo.core_algos:", "register_adv_est", ("name_or_enum",)),
    Private(
        "verl.utils.config:",
        "validate_config",
        ("config", "use_reference_policy", "use_critic"),
    ),
)

ATTRIBUTES = (
    Attribute(BUFFER, "partitions"),
    Attribute(BUFFER, "pending_keys"),
    Attribute(BUFFER, "running_keys"),
    Attribute(BUFFER, "finished_keys"),
    Attribute(BUFFER, "failure_keys"),
    Attribute(BUFFER, "sampler_kwargs"),
    Attribute(BUFFER, "refill_fn"),
    Attribute(TRAINER, "replay_buffer"),
)


def require_version() -> None:
    """Raise unless verl is there, in the version the adapter was tested with. Imports nothing."""
    found = installed()
    if found is None:
        raise PoiseError(f"verl is not installed: {REMEDY}")
    if not supported(found):
        raise PoiseError(f"verl {found} is not supported, only {VERSION}: {REMEDY}")


def require() -> None:
    """Raise unless that verl is also as we know it."""
    require_version()
    try:
        import_module("transfer_queue")
    except ImportError as fault:
        raise PoiseError(f"verl's V1 trainer needs TransferQueue: {REMEDY}") from fault
    if faults := changed():
        raise PoiseError(f"verl is not the {VERSION} we know: {faults[0]}; {REMEDY}")


def installed() -> str | None:
    try:
        return version("verl")
    except PackageNotFoundError:
        return None


def supported(found: str) -> bool:
    """
    Example:
        >>> supported("0.9.1"), supported("0.9.2"), supported("0.8.0")
        (True, False, False)
    """
    return found.split("+")[0] == VERSION


def find(owner: str) -> Any:
    """The module or class that `module:class` names; None where there is none.

    Example:
        >>> find("collections:OrderedDict").__name__, find("collections:Gone")
        ('OrderedDict', None)
    """
    module, _, name = owner.partition(":")
    try:
        loaded = import_module(module)
    except ImportError:
        return None
    return getattr(loaded, name, None) if name else loaded


def changed(find: Callable[[str], Any] = find) -> list[str]:
    """What of the above is no longer as it was, a line each; `poise doctor` shows them."""
    faults = []
    for private in PRIVATE:
        label = f"{private.owner.partition(':')[2] or private.owner[:-1]}.{private.name}"
        method = getattr(find(private.owner), private.name, None)
        if method is None:
            faults.append(f"{label} is gone")
            continue
        names = tuple(n for n in inspect.signature(method).parameters if n != OF_RAY)
        if names != private.parameters:
            faults.append(f"{label} takes ({', '.join(names)})")
    for attribute in ATTRIBUTES:
        owner = find(attribute.owner)
        constructor = inspect.getsource(owner.__init__) if owner is not None else ""
        if f"self.{attribute.name}" not in constructor:
            faults.append(f"{attribute.owner.partition(':')[2]}.{attribute.name} is gone")
    return faults
