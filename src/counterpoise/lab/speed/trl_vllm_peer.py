"""TRL's GRPOTrainer with vLLM in its own process (colocate): `poise bench --peers trl-vllm`.

The same workload and settings as TRL with transformers (`lab/speed/trl_peer.py`), sampled by vLLM
in the form TRL runs it. TRL starts vLLM from a folder, so the model is saved to one first; before
every generation TRL sends it the new weights, and that counts as sampling.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.lab.speed.trl_peer import NOT_INSTALLED, trl_installed
from counterpoise.lab.speed.workload import MAX_PROMPT_TOKENS, Workload
from counterpoise.model.load import Policy, save_policy
from counterpoise.sample.vllm_host import import_vllm, installed_version

TRL_RANGE = (22, 31)  # minor versions of vLLM that TRL 1.16 takes, by its import_utils.py
MEMORY_SHARE = 0.3  # of the GPU, for vLLM's weights and cache; the default of sample.engine_memory


def check_installed(device: str) -> None:
    """Raise an error, with the remedy, if TRL cannot sample with vLLM here."""
    peer = "--peers trl-vllm"
    if not trl_installed():
        raise PoiseError(f"{peer}, but TRL is {NOT_INSTALLED}")
    if device != "cuda":
        raise PoiseError(
            f"{peer} needs a GPU, because TRL 1.16 takes no vLLM that runs on a CPU: "
            "choose --peers trl"
        )
    vllm_version = installed_version() or ""
    lowest, highest = TRL_RANGE
    if vllm_version and not lowest <= int(vllm_version.split(".")[1]) <= highest:
        raise PoiseError(
            f"{peer}, but TRL 1.16 takes vLLM 0.{lowest} to 0.{highest} and this is "
            f"{vllm_version}: pip install 'vllm==0.26.*' (torch 2.11)"
        )
    import_vllm(peer, device)


def vllm_settings(workload_size: Workload) -> dict[str, Any]:
    """Settings of GRPOConfig that replace those of the transformers backend."""
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": MEMORY_SHARE,
        "vllm_max_model_length": MAX_PROMPT_TOKENS + workload_size.length,
        # Every response has exactly its length, as on our side.
        "generation_kwargs": {"ignore_eos": True},
    }


@contextmanager
def saved_model(policy: Policy) -> Iterator[None]:
    """A folder with the model, under the name by which TRL's vLLM finds it."""
    model: Any = policy.model
    previous_name = model.name_or_path
    with tempfile.TemporaryDirectory(prefix="poise-trl-vllm-") as folder:
        save_policy(policy, Path(folder) / "model")
        model.name_or_path = str(Path(folder) / "model")
        try:
            yield
        finally:
            model.name_or_path = previous_name
