"""The verl version, methods and attributes that the adapter relies on.

verl promises nothing about names that begin with an underscore, and little about the others. They
are listed here, in one place, with the parameters they had, so that a change is reported as one
clear line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts import check_versions
from counterpoise.hosts.check_versions import HostMethod, find_changed_methods, load_owner

SUPPORTED_VERSION = "0.9.1"
INSTALL_REMEDY = "pip install 'counterpoise[verl]'"
TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
REPLAY_BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
TRAINING_WORKER = "verl.workers.engine_workers:TrainingWorker"
RAY_PARAMETER = "_ray_trace_ctx"  # Ray adds this parameter to the methods of its actors
WORKER = "verl.single_controller.base:Worker"  # its methods are bound to the worker group


@dataclass(frozen=True, slots=True)
class VerlAttribute:
    """An attribute that one of verl's classes sets in its constructor, and that we read.

    Example:
        VerlAttribute(REPLAY_BUFFER, "pending_keys")
    """

    owner: str
    name: str


PRIVATE_METHODS = (
    HostMethod(TRAINER, "__init__", ("self", "config"), overridden=True),
    HostMethod(
        TRAINER,
        "_balance_batch",
        ("self", "batch", "metrics", "logging_prefix", "keep_minibatch"),
        overridden=True,
    ),
    HostMethod(TRAINER, "_compute_old_log_prob", ("self", "batch", "metrics"), overridden=True),
    HostMethod(TRAINER, "_compute_advantage", ("self", "batch", "metrics"), overridden=True),
    HostMethod(TRAINER, "_update_actor", ("self", "batch", "metrics"), overridden=True),
    HostMethod(TRAINER, "_save_checkpoint", ("self",), overridden=True),
    HostMethod(TRAINER, "_load_checkpoint", ("self",), overridden=True),
    HostMethod(
        REPLAY_BUFFER, "sample", ("self", "global_steps", "partition_id", "batch_size"), True
    ),
    HostMethod(REPLAY_BUFFER, "_sync_metadata_from_transfer_queue", ("self",)),
    HostMethod(REPLAY_BUFFER, "_wait_for_next_poll", ("self", "partition_id", "last_debug_time")),
    HostMethod(WORKER, "_query_dispatch_info", ("self", "mesh_name")),
    HostMethod(TRAINING_WORKER, "train_mini_batch", ("self", "data"), overridden=True),
    HostMethod(TRAINING_WORKER, "train_batch", ("self", "data"), overridden=True),
    HostMethod(TRAINING_WORKER, "infer_batch", ("self", "data"), overridden=True),
    HostMethod(
        "verl.workers.utils.losses:", "ppo_loss", ("config", "model_output", "data", "dp_group")
    ),
    HostMethod(
        "verl.trainer.ppo.padding_utils:",
        "upsample_batch_to_divisible_size",
        ("batch", "batch_multiple", "eos_token_id"),
    ),
    HostMethod("verl.utils.seqlen_balancing:", "calculate_workload", ("seqlen_list",)),
    HostMethod(
        "verl.utils.seqlen_balancing:",
        "log_seqlen_unbalance",
        ("seqlen_list", "partitions", "prefix"),
    ),
    HostMethod("verl.workers.utils.padding:", "response_from_nested", ("tensor", "response_mask")),
    HostMethod("verl.trainer.ppo.core_algos:", "register_adv_est", ("name_or_enum",)),
    HostMethod(
        "verl.utils.config:",
        "validate_config",
        ("config", "use_reference_policy", "use_critic"),
    ),
)

ATTRIBUTES = (
    VerlAttribute(REPLAY_BUFFER, "partitions"),
    VerlAttribute(REPLAY_BUFFER, "pending_keys"),
    VerlAttribute(REPLAY_BUFFER, "running_keys"),
    VerlAttribute(REPLAY_BUFFER, "finished_keys"),
    VerlAttribute(REPLAY_BUFFER, "failure_keys"),
    VerlAttribute(REPLAY_BUFFER, "prompt_global_steps"),
    VerlAttribute(REPLAY_BUFFER, "sampler_kwargs"),
    VerlAttribute(REPLAY_BUFFER, "trainer_mode"),
    VerlAttribute(REPLAY_BUFFER, "refill_fn"),
    VerlAttribute(TRAINER, "replay_buffer"),
    VerlAttribute(TRAINER, "local_trigger_step"),
)


def require_version() -> None:
    """Raise unless verl is installed in the tested version. Imports nothing."""
    version = installed_version()
    if version is None:
        raise PoiseError(f"verl is not installed: {INSTALL_REMEDY}")
    if not is_supported(version):
        raise PoiseError(
            f"verl {version} is not supported, only {SUPPORTED_VERSION}: {INSTALL_REMEDY}"
        )


def require_verl() -> None:
    """Raise unless verl has the tested version, TransferQueue, and everything the adapter uses."""
    require_version()
    try:
        import_module("transfer_queue")
    except ImportError as fault:
        raise PoiseError(f"verl's V1 trainer needs TransferQueue: {INSTALL_REMEDY}") from fault
    if faults := find_changes():
        raise PoiseError(
            f"verl differs from the {SUPPORTED_VERSION} we tested: {faults[0]}; {INSTALL_REMEDY}"
        )


def installed_version() -> str | None:
    return check_versions.installed_version("verl")


def is_supported(version: str) -> bool:
    """
    Example:
        >>> is_supported("0.9.1"), is_supported("0.9.2"), is_supported("0.8.0")
        (True, False, False)
    """
    return version.split("+")[0] == SUPPORTED_VERSION


def find_changes(load: Callable[[str], Any] = load_owner) -> list[str]:
    """A line for each method or attribute above that changed; `poise doctor` shows them."""
    faults = find_changed_methods(PRIVATE_METHODS, load, ignored_parameters=(RAY_PARAMETER,))
    for attribute in ATTRIBUTES:
        owner = load(attribute.owner)
        # Instances of verl's classes need a cluster, so the constructor's source is searched.
        constructor = inspect.getsource(owner.__init__) if owner is not None else ""
        if f"self.{attribute.name}" not in constructor:
            faults.append(f"{attribute.owner.partition(':')[2]}.{attribute.name} is gone")
    return faults
