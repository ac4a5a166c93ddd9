"""Run the measurements of `poise bench`, print their tables, and write one JSON file."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.files import atomic_write, cannot_write
from counterpoise.hosts.trl.vllm_engine import check_vllm
from counterpoise.lab.speed.clock import Deadline, release
from counterpoise.lab.speed.floors import measure_rates
from counterpoise.lab.speed.growth import select_points
from counterpoise.lab.speed.machine_sizes import (
    SMALL_MODEL,
    SpeedSetup,
    cpu_plan,
    describe_machine,
    gpu_plan,
)
from counterpoise.lab.speed.made_up_run import DEFAULT_RUN_SIZE, RunSize
from counterpoise.lab.speed.tables import MeasurementTable, print_table
from counterpoise.lab.speed.trl_peer import NOT_INSTALLED, trl_installed
from counterpoise.model.load import choose_device, choose_dtype, silence_libraries
from counterpoise.sample.vllm_host import import_vllm
from counterpoise.variants import SPEED_MEASUREMENTS

# Engines to compare with on request: vLLM takes minutes to start.
PEERS = ("trl", "trl-vllm", "vllm")
RECORD_FIELDS = {"machine", "rates", "parts"}  # of the JSON file
DEFAULT_PARTS = ("peer", "sampler", "update", "agreement", "monitor")
# Seconds a part takes on one H200, and on two CPU cores with the embedded model.
EXPECTED_SECONDS = {
    "peer": (125, 60),
    "sampler": (40, 40),
    "update": (42, 15),
    "agreement": (2, 10),
    "monitor": (25, 60),
    "probes": (150, 180),
    "growth": (240, 60),
    "lora": (300, 60),
    "families": (60, 120),
    "serve": (30, 30),  # and SERVE_SECONDS_PER_TOKEN
}
# Of the made-up run: writing and indexing it.
SERVE_SECONDS_PER_TOKEN = 0.5e-6


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `poise bench`."""

    parts: Sequence[str] = DEFAULT_PARTS
    model: str = ""  # empty: the default of the machine
    minutes: float | None = None
    out: Path | None = None  # the JSON file
    profile: str = ""  # a part whose kernels are listed instead
    sets: Sequence[str] = ()  # options of [update]: update.capture=true
    growth: Sequence[str] = ()  # axes or points of growth: size, length=2048; none: all
    run_size: str = DEFAULT_RUN_SIZE  # of serve: iterations x rollouts x tokens
    peers: Sequence[str] = ()  # of PEERS; none: TRL where it is installed


def estimate_seconds(options: BenchOptions, on_gpu: bool) -> float:
    seconds = sum(EXPECTED_SECONDS[name][0 if on_gpu else 1] for name in options.parts)
    if "serve" not in options.parts:
        return seconds
    size = RunSize.parse(options.run_size)
    return seconds + SERVE_SECONDS_PER_TOKEN * size.iterations * size.rollouts * size.tokens


def run(options: BenchOptions, console: Console) -> dict[str, Any]:
    """Run all parts; returns what was measured, as written to `options.out`."""
    for name in options.parts:
        if name not in SPEED_MEASUREMENTS:
            raise unknown_name("part", name, SPEED_MEASUREMENTS)
    check_peers(options.peers)
    RunSize.parse(options.run_size)  # raises if it is not three numbers
    if options.out:
        check_writable(options.out)
        # A profile leaves the file of the results as it is.
        if not options.profile:
            check_replaceable(options.out)
    setup = make_setup(options, console)
    # Raises an error for an unknown point before anything is measured.
    select_points(setup.plan, options.growth)
    if options.profile:
        from counterpoise.lab.speed.profile import profile_kernels

        trace = find_unused_trace(options.out) if options.out else None
        console.print(profile_kernels(options.profile, setup, trace), markup=False, highlight=False)
        if trace:
            console.print(f"trace {trace}", markup=False, highlight=False, soft_wrap=True)
        return {}
    expected_seconds = estimate_seconds(options, setup.cuda)
    qualifier = "at most" if options.growth else "about"
    console.print(
        f"{', '.join(options.parts)}: {qualifier} {expected_seconds / 60:.1f} minutes",
        highlight=False,
    )
    machine = describe_machine()
    console.print(
        f"host: 20 million additions in Python take {machine['python_loop_seconds']:.2f} s",
        highlight=False,
    )
    results: dict[str, Any] = {
        "machine": machine,
        "rates": setup.rates.data(),
        "parts": {},
    }
    tables, failed = [], []
    for name in options.parts:
        try:
            table = run_part(name, setup)
        except Exception as fault:  # the other parts are still measured
            console.print_exception()
            failed.append(name)
            table = MeasurementTable(title=name, columns=(), rows=(), notes=[f"failed: {fault}"])
        tables.append(table)
        results["parts"][name] = table.as_json()
        if options.out:  # after every part, so that a later crash loses nothing
            with atomic_write(options.out) as temporary:
                temporary.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for table in tables:
        print_table(table, console)
    if options.out:
        console.print(f"\n{options.out}", highlight=False, markup=False)
    if failed:
        raise PoiseError(f"{', '.join(failed)} failed: see the traceback above the tables")
    return results


def check_peers(peers: Sequence[str]) -> None:
    """Raise an error for a peer that is unknown or cannot run here."""
    device = choose_device("auto")
    for peer in peers:
        if peer not in PEERS:
            raise unknown_name("peer", peer, PEERS)
    if "trl" in peers and not trl_installed():
        raise PoiseError(f"--peers trl, but TRL is {NOT_INSTALLED}")
    if "trl-vllm" in peers:
        check_vllm("--peers trl-vllm", device.type, without="leave trl-vllm out of --peers")
    if "vllm" in peers:
        import_vllm("--peers vllm", device.type)


def check_writable(out: Path) -> None:
    """Raise an error if `out` cannot be written; an existing file is not changed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        is_new = not out.exists()
        if not (is_new or out.is_file() or out.is_dir()):
            raise FileExistsError(errno.EEXIST, "it is a device or a pipe, not a file", str(out))
        with out.open("a", encoding="utf-8"):
            pass
        if is_new:
            out.unlink()
    except OSError as fault:
        raise cannot_write(out, fault, "; choose another --json") from fault


def check_replaceable(out: Path) -> None:
    """Refuse to replace a file that has content and is not an earlier result of this command."""
    if not out.is_file() or not out.stat().st_size:
        return
    try:
        record = json.loads(out.read_bytes())
    except (ValueError, RecursionError):
        record = None
    if not (isinstance(record, dict) and record.keys() >= RECORD_FIELDS):
        raise PoiseError(
            f"{out} exists and is not a result of poise bench: choose another --json, or remove it "
            "first"
        )


def find_unused_trace(out: Path) -> Path:
    """The file for the trace of a profile; those of earlier profiles are kept.

    Example:
        out/bench.json -> out/bench.trace.json, then out/bench-2.trace.json
    """
    trace, number = out.with_suffix(".trace.json"), 1
    while trace.exists() or trace.is_symlink():
        number += 1
        trace = out.with_name(f"{out.stem}-{number}.trace.json")
    return trace


def run_part(name: str, setup: SpeedSetup) -> MeasurementTable:
    """Run one part, or return an empty table that says why it was skipped."""
    if setup.deadline.passed:
        note = f"skipped: {setup.deadline.minutes:g} minutes are over"
        return MeasurementTable(title=name, columns=(), rows=(), notes=[note])
    start_time = time.perf_counter()
    table: MeasurementTable = SPEED_MEASUREMENTS.load(name)(setup)
    release(setup.device)
    return replace(table, seconds=time.perf_counter() - start_time)


def parse_update_options(sets: Sequence[str]) -> dict[str, Any]:
    """["update.capture=true"] -> {"capture": True}, checked."""
    config = config_from_tables({}, sets)
    option_paths = [text.partition("=")[0].strip().split(".") for text in sets]
    for section, name in option_paths:
        if section != "update":
            raise PoiseError(
                f"--set {section}.{name}: `poise bench` takes options of [update] only"
            )
    return {name: getattr(config.update, name) for _, name in option_paths}


def make_setup(options: BenchOptions, console: Console) -> SpeedSetup:
    """Measure the rates of the device, and choose the sizes that fit it."""
    silence_libraries()
    device = choose_device("auto")
    cuda = device.type == "cuda"
    rates = measure_rates(device, choose_dtype("auto", device))
    release(device)
    device_name = (
        torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    )
    console.print(
        f"{device_name}: copy {rates.copy / 1e9:,.0f} GB/s, "
        f"{rates.dtype} products {rates.matrix / 1e12:.3g} TFLOP/s",
        highlight=False,
    )
    return SpeedSetup(
        device=device,
        rates=rates,
        plan=gpu_plan(options.model or SMALL_MODEL)
        if cuda
        else cpu_plan(options.model or "embedded"),
        deadline=Deadline(options.minutes),
        update_options=parse_update_options(options.sets),
        log=lambda text: console.print(text, style="dim", highlight=False, markup=False),
        growth_points=options.growth,
        run_size=options.run_size,
        peers=options.peers,
    )
