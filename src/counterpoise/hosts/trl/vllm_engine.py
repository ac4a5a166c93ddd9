"""TRL's vLLM in the trainer's own process (`vllm_mode="colocate"`).

TRL starts vLLM from the folder that `model.name_or_path` names and sends it the trainer's weights
before it generates. Our models may have no such folder (a GGUF file, weights just restored), so one
is written for the start.

The log-probabilities that TRL gets from vLLM are those after the temperature and after a top-p or
top-k cut. Ours are always of the full distribution, so with a cut they are not comparable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import host
from counterpoise.hosts.trl.padding import SAMPLER_LOGPROBS, VLLM_CORRECTION
from counterpoise.model.load import Policy, save_policy
from counterpoise.model.memory_share import memory_share
from counterpoise.sample import vllm_host
from counterpoise.types import Floats, Row
from counterpoise.update.importance import bound_weights
from counterpoise.variants import IMPORTANCE_WEIGHTS

VLLM_SERIES = "0.26"  # TRL 1.16 asks for 0.22 to 0.31, of which we support one
# TRL lets vLLM start a request for every rollout at once, and vLLM refuses more than these.
MOST_ROLLOUTS = 4096
INSTALL_REMEDY = (
    f"pip install 'vllm=={VLLM_SERIES}.*' (torch {vllm_host.SUPPORTED_SERIES[VLLM_SERIES].torch})"
)
RUN_WITHOUT_VLLM = "set sample.engine=native"


def check_vllm(needed_by: str, device: str, without: str = RUN_WITHOUT_VLLM) -> None:
    """Raise an error if TRL cannot sample with vLLM on this type of device.

    It names the remedy: what to install, or `without`, how to do without vLLM.
    """
    check_vllm_version(needed_by, device, without)
    vllm_host.import_vllm(needed_by, device)


def check_vllm_version(needed_by: str, device: str, without: str = RUN_WITHOUT_VLLM) -> None:
    """The same without importing anything."""
    if host.installed_version() is None:
        raise PoiseError(f"{needed_by}, but TRL is not installed: {host.INSTALL_REMEDY}")
    if device != "cuda":
        raise PoiseError(
            f"{needed_by} needs a GPU, because TRL {host.SUPPORTED_SERIES} takes no vLLM that runs "
            f"on a CPU: {without}"
        )
    vllm_version = vllm_host.installed_version()
    if vllm_version is None:
        raise PoiseError(f"{needed_by}, but vLLM is not installed: {INSTALL_REMEDY}, or {without}")
    if not vllm_version.startswith(f"{VLLM_SERIES}."):
        raise PoiseError(
            f"{needed_by}: inside TRL {host.SUPPORTED_SERIES}, vLLM {VLLM_SERIES} was tested, and "
            f"this is {vllm_version}: {INSTALL_REMEDY}, or {without}"
        )


def vllm_arguments(engine_memory: float, max_model_length: int) -> dict[str, Any]:
    """The arguments of GRPOConfig that make it sample with vLLM in the trainer's process."""
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": engine_memory * memory_share(),
        "vllm_max_model_length": max_model_length,
    }


def sampler_arguments(
    config: RunConfig, max_model_length: int, end_tokens: Sequence[int]
) -> dict[str, Any]:
    """The arguments of GRPOConfig for a run that samples with vLLM; none for transformers.

    TRL stops transformers at `end_tokens` by itself.
    """
    if config.sample.engine == "native":
        return {}
    update = config.update
    arguments = vllm_arguments(config.sample.engine_memory, max_model_length)
    if end_tokens:
        arguments["generation_kwargs"] = {"stop_token_ids": list(end_tokens)}
    # TRL's own default corrects.
    arguments["vllm_importance_sampling_correction"] = update.importance != "off"
    if update.importance != "off":
        arguments["vllm_importance_sampling_mode"] = f"{update.importance}_{update.importance_mode}"
        arguments["vllm_importance_sampling_clip_max"] = update.importance_cap
    return arguments


def cuts_the_distribution(top_p: float, top_k: int) -> bool:
    """Whether top-p or top-k leaves tokens out."""
    return top_p < 1 or top_k > 0


@contextmanager
def saved_model(policy: Policy, dtype: torch.dtype | None = None) -> Iterator[None]:
    """A folder with the model, under the name by which TRL's vLLM finds it.

    vLLM runs in `dtype`, or else in that of the weights; for float32 it chooses a half precision.
    """
    model: Any = policy.model
    previous_name = model.name_or_path
    with tempfile.TemporaryDirectory(prefix="poise-trl-vllm-") as folder:
        save_policy(policy, Path(folder) / "model", dtype)
        model.name_or_path = str(Path(folder) / "model")
        try:
            yield
        finally:
            model.name_or_path = previous_name


@contextmanager
def starting_engine(policy: Policy) -> Iterator[None]:
    """TRL may make its trainer here, and its vLLM with it: any fault becomes one line."""
    with (
        saved_model(policy, torch.bfloat16),
        vllm_host.explain_start_faults("TRL cannot start with vLLM"),
    ):
        yield


def vllm_token_fields(row: Row, config: RunConfig) -> dict[str, Floats]:
    """What TRL attaches to a rollout that vLLM sampled, for a row that comes from a checkpoint."""
    if config.sample.engine != "vllm":
        return {}
    sampled_T, update = row.content.sampled_logprobs, config.update
    fields = {SAMPLER_LOGPROBS: sampled_T}
    if update.importance != "off":
        # As in TRL, a token whose probability vLLM did not report is not corrected.
        log_ratio_T = torch.from_numpy(row.old_logprobs - sampled_T).nan_to_num(nan=0.0)
        ratio_T = IMPORTANCE_WEIGHTS.load(update.importance)(
            log_ratio_T, torch.zeros(len(sampled_T), dtype=torch.long), 1
        )
        correction_T = bound_weights(ratio_T, update.importance_cap, update.importance_mode)
        # One number for a whole response has no token axis.
        by_sequence = update.importance == "sequence"
        fields[VLLM_CORRECTION] = (correction_T[:1] if by_sequence else correction_T).numpy()
    return fields


def close_engine(trainer: Any) -> None:
    """Free the memory of the trainer's vLLM; a process can hold only one engine."""
    from vllm.distributed import cleanup_dist_env_and_memory

    trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
    del trainer.vllm_generation.llm
    cleanup_dist_env_and_memory()
