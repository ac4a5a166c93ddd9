"""Time one decoding step of the GPU sampler, with separate and with fused products.

A step is one replay of its CUDA graph: embedding, all layers, unembedding and draw. Rows stand at
`--context` tokens, half of them a prompt that eight rows share. Keys and values are random: zeros
would draw less power. Forms and tiles (`sample/product_tile.py`) take turns. On a CPU every form is
the separate one.

    python -m counterpoise.lab.speed.decode_step --model shape:smollm2-135m --rows 512 --context 128
    python -m counterpoise.lab.speed.decode_step --tiles 64,64,64,4,4 128,64,64,4,3
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from counterpoise.errors import PoiseError
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import time_in_turns
from counterpoise.model.load import Policy, require_fast_path
from counterpoise.sample import decode_layers, product_tile
from counterpoise.sample.decode_graphs import DecodeGraphs, DrawSettings
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.kv_slots import SlotCapacity
from counterpoise.terminal import echo

try:
    from triton.errors import TritonError
except ImportError:  # on a CPU no tile is tried
    TILE_FAULTS: tuple[type[Exception], ...] = (RuntimeError, PoiseError)
else:  # a tile may need more shared memory or registers than the device has
    TILE_FAULTS = (RuntimeError, PoiseError, TritonError)
FORM, TILE = decode_layers.VARIABLE, product_tile.VARIABLE
STEPS = 32  # of one timing; rows move on with every step
GROUP_SIZE = 8
SETTINGS = DrawSettings(1.0, 1.0, 0, end_tokens=(-1,))  # no row ends


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Environment variables within a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def forms_to_time(tiles: Sequence[str]) -> dict[str, dict[str, str]]:
    """Name -> environment variables of each form of a step."""
    forms = {form: {FORM: form, TILE: ""} for form in decode_layers.FORMS}
    for tile in tiles:
        forms[f"fused {tile}"] = {FORM: "fused", TILE: tile}
    return forms


def prepare_rows(policy: Policy, rows: int, context: int, steps: int) -> DecodeGraphs:
    """Rows that stand at `context` tokens and have room for so many steps, the first one made."""
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    prompt_length, prompts = context // 2, -(-rows // GROUP_SIZE)
    new_tokens = context - prompt_length + steps + 2  # so that no row reaches its limit
    graphs = DecodeGraphs(decoder, SlotCapacity(rows, new_tokens, prompts * prompt_length))
    slots = graphs.slots
    caches = (
        slots.prefix_keys, slots.prefix_values, slots.response_keys, slots.response_values,
    )  # fmt: skip
    for memory in (tensor for cache in caches for tensor in cache):
        memory.normal_()
    forks = [Fork(row // GROUP_SIZE, prompt_length, row, new_tokens) for row in range(rows)]
    starts = [row // GROUP_SIZE * prompt_length for row in range(rows)]
    slots.start_rows(range(rows), forks, starts, first_place=0)
    slots.positions[:rows] += context - prompt_length
    decode_steps(graphs, policy, rows, 1)  # captured on a GPU
    return graphs


def decode_steps(graphs: DecodeGraphs, policy: Policy, rows: int, steps: int) -> None:
    """Decode so many tokens of every row."""
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    for _ in range(steps):
        graphs.step(decoder, rows, SETTINGS)


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Print a line for each form, and return the seconds of a step by form."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--rows", type=int, nargs="+", default=[8])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiles", nargs="*", default=[])
    options = parser.parse_args(arguments)
    policy = workload.load_endless_policy(options.model)
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    steps = 1 + STEPS * (options.repeats + 1)  # to capture, to warm up, and the repeats
    decoder.reserve(options.context + steps + 2)
    seconds: dict[str, float] = {}
    for rows in options.rows:
        works: dict[str, Callable[[], object]] = {}
        for form, variables in forms_to_time(options.tiles).items():
            with environment(**variables):
                try:
                    if (form_used := decode_layers.choose_form(decoder)) != variables[FORM]:
                        echo(f"{rows} rows, {form}: the {form_used} form, all that runs here")
                    graphs = prepare_rows(policy, rows, options.context, steps)
                    works[form] = partial(decode_steps, graphs, policy, rows, STEPS)
                except TILE_FAULTS as fault:
                    echo(f"{rows} rows, {form}: {str(fault).splitlines()[0]}")
        timings = time_in_turns(works, policy.device, options.repeats)
        for form, timing in timings.items():
            seconds[f"{form}, {rows} rows"] = timing.median / STEPS
            echo(
                f"{rows} rows, {form}: {1e3 * timing.median / STEPS:.3f} ms a step, spread "
                f"{100 * timing.spread:.0f} %"
            )
    return seconds


if __name__ == "__main__":
    main()
