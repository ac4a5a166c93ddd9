"""Write a made-up run of any size, as the store writes one, to measure readers of run folders.

    python -m counterpoise.lab.speed.made_up_run FOLDER --size 1000x1024x300
    python -m counterpoise.lab.speed.made_up_run FOLDER --size 5x1024x300 --every 1.0

The second form appends iterations to a run that is there, a second apart, as training does. Every
iteration is printed as "ITERATION SECONDS": the time at which its metrics had been written. Texts
and log-probabilities are drawn from a pool of 4,096 made-up responses, so that 300 million tokens
take minutes; every response also has a serial number, and one in a hundred the word NEEDLE.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.store.folder import RunFolder
from counterpoise.store.schema import step_file_name
from counterpoise.terminal import echo

DEFAULT_RUN_SIZE = "100x102x300"  # a hundredth of the size for which the limits are set
POOL = 4096  # responses
VOCABULARY = 8192
GROUP_SIZE = 8
STEPS = 4
PROMPTS = 2000  # in the made-up data set
NEEDLE = "kaleidoscope"
NEEDLE_EVERY = 100
SYLLABLES = ("ba", "co", "du", "fe", "gi", "ho", "ka", "lu", "me", "no", "pi", "ra", "so", "ti")


@dataclass(frozen=True, slots=True)
class RunSize:
    """Iterations, rollouts of each, and mean tokens of a response.

    Example:
        RunSize.parse("1000x1024x300").rollouts == 1024
    """

    iterations: int
    rollouts: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> RunSize:
        numbers = text.lower().replace(" ", "").replace(",", "").split("x")
        is_size = len(numbers) == 3 and all(number.isdecimal() for number in numbers)
        if not is_size or int(numbers[0]) < 1 or int(numbers[1]) < GROUP_SIZE:
            raise PoiseError(
                f"--run-size {text}: write iterations x rollouts x tokens, such as "
                f"{DEFAULT_RUN_SIZE}, with at least {GROUP_SIZE} rollouts"
            )
        return cls(*map(int, numbers))

    def __str__(self) -> str:
        return f"{self.iterations:,} x {self.rollouts:,} x {self.tokens:,}"


@dataclass(frozen=True, slots=True, eq=False)
class ResponsePool:
    """Responses as arrays, and as the pieces of their JSON lines."""

    tokens: list[np.ndarray]
    texts: list[str]
    token_lists: list[str]
    logprob_lists: list[str]


def make_vocabulary() -> list[str]:
    rng = np.random.default_rng(1)
    return [
        " " + "".join(rng.choice(SYLLABLES, size=rng.integers(1, 4))) for _ in range(VOCABULARY)
    ]


def make_pool(vocabulary: list[str], mean_tokens: int) -> ResponsePool:
    rng = np.random.default_rng(2)
    number_texts = [f"{value:.6f}" for value in -rng.exponential(0.4, size=VOCABULARY)]
    tokens, texts, token_lists, logprob_lists = [], [], [], []
    for _ in range(POOL):
        length = int(rng.integers(mean_tokens // 2, mean_tokens + mean_tokens // 2 + 1))
        # A few words are frequent, as in real text.
        ids = (VOCABULARY * rng.random(length) ** 3).astype(np.int32)
        id_list = ids.tolist()
        tokens.append(ids)
        texts.append("".join([vocabulary[token] for token in id_list]))
        token_lists.append(", ".join(map(str, id_list)))
        number_indices = rng.integers(VOCABULARY, size=length).tolist()
        logprob_lists.append(", ".join([number_texts[index] for index in number_indices]))
    return ResponsePool(tokens, texts, token_lists, logprob_lists)


def write_made_up_run(
    path: Path,
    size: RunSize,
    every: float = 0.0,
    on_commit: Callable[[int, float], None] | None = None,
) -> None:
    """Write `size.iterations` iterations; append them to the run if there is one.

    `on_commit` gets each iteration and the time (time.time()) at which its metrics were written.
    """
    vocabulary = make_vocabulary()
    if (path / "config.toml").is_file():
        folder = RunFolder(path)
        first_number = max(folder.step_files("rollouts"), default=0) + 1
    else:
        config = config_from_tables(
            {
                "loop": {"iterations": size.iterations},
                "sample": {"prompts": size.rollouts // GROUP_SIZE, "group_size": GROUP_SIZE},
                "batch": {"steps": STEPS},
            }
        )
        folder, first_number = RunFolder.create(path, config), 1
        folder.write_vocabulary(vocabulary)
    pool = make_pool(vocabulary, size.tokens)
    for iteration in range(first_number, first_number + size.iterations):
        started = time.perf_counter()
        write_made_up_iteration(folder, iteration, size, pool)
        if on_commit is not None:
            on_commit(iteration, time.time())
        time.sleep(max(0.0, every - (time.perf_counter() - started)))


def write_made_up_iteration(
    folder: RunFolder, iteration: int, size: RunSize, pool: ResponsePool
) -> None:
    """Rollouts, tokens, plan, drops and the line of metrics, in the store's order."""
    rng = np.random.default_rng([3, iteration])
    groups = size.rollouts // GROUP_SIZE
    numbers = rng.choice(max(PROMPTS, groups), size=groups, replace=False)
    prompt_ids = [f"made_up/train/{number}" for number in numbers]
    text_indices = rng.integers(POOL, size=groups * GROUP_SIZE)
    rewards = (rng.random(groups * GROUP_SIZE) < rng.beta(1, 1, groups).repeat(GROUP_SIZE)) * 1.0
    _write_rollouts(folder, iteration, prompt_ids, text_indices, rewards, pool)
    rewards_PG = rewards.reshape(groups, GROUP_SIZE)
    advantages_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    has_signal_P = rewards_PG.std(axis=1) > 0
    rows = np.flatnonzero(has_signal_P.repeat(GROUP_SIZE))
    lengths = np.array([len(pool.tokens[pool_index]) for pool_index in text_indices])
    advantages = advantages_PG.reshape(-1)
    _write_tokens(folder, iteration, rows, text_indices, advantages, pool, rng)
    keys = [f"{iteration}:{prompt_id}" for prompt_id in prompt_ids]
    folder.append("plans", _plan(iteration, rows, keys, advantages, lengths))
    folder.append(
        "drops",
        {
            "iteration": iteration,
            "no_signal": {
                keys[group]: list(range(GROUP_SIZE)) for group in np.flatnonzero(~has_signal_P)
            },
        },
    )
    folder.append("metrics", _metrics(iteration, rewards, lengths, len(rows), rng))


def _write_rollouts(
    folder: RunFolder,
    iteration: int,
    prompt_ids: list[str],
    text_indices: np.ndarray,
    rewards: np.ndarray,
    pool: ResponsePool,
) -> None:
    lines = []
    for row, pool_index in enumerate(text_indices.tolist()):
        prompt_id = prompt_ids[row // GROUP_SIZE]
        serial = iteration * len(text_indices) + row
        word = f" {NEEDLE}" if serial % NEEDLE_EVERY == 0 else ""
        lines.append(
            f'{{"schema": 1, "group": "{iteration}:{prompt_id}", "prompt_id": "{prompt_id}", '
            f'"prompt": "Question {prompt_id}:{pool.texts[row // GROUP_SIZE][:200]}?", '
            f'"response": "Serial {serial}.{pool.texts[pool_index]}{word}", "answer": "{serial}", '
            f'"reward": {rewards[row]}, "finished": {"true" if row % 50 else "false"}, '
            f'"prompt_tokens": [{pool.token_lists[row // GROUP_SIZE][:200].rpartition(",")[0]}], '
            f'"response_tokens": [{pool.token_lists[pool_index]}], '
            f'"sampled_logprobs": [{pool.logprob_lists[pool_index]}]}}\n'
        )
    with folder.atomic_write(step_file_name("rollouts", iteration), durable=False) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def _write_tokens(
    folder: RunFolder,
    iteration: int,
    rows: np.ndarray,
    text_indices: np.ndarray,
    advantages: np.ndarray,
    pool: ResponsePool,
    rng: np.random.Generator,
) -> None:
    tokens = [pool.tokens[text_indices[row]] for row in rows]
    lengths = np.array([len(ids) for ids in tokens])
    count = int(lengths.sum())
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    plan_rows = np.arange(len(rows), dtype=np.int32)
    noise = rng.standard_normal(count, dtype=np.float32)
    columns: dict[str, Any] = {
        "step": (plan_rows % STEPS).repeat(lengths),
        "row": plan_rows.repeat(lengths),
        "position": positions,
        "token": np.concatenate(tokens),
        "advantage": advantages[rows].astype(np.float32).repeat(lengths),
        "old_logprob": -np.abs(noise),
        "logprob": -np.abs(np.roll(noise, 1)),
        "entropy": np.abs(np.roll(noise, 2)),
        "pull": np.roll(noise, 3),
        "displacement": np.roll(noise, 4) * np.float32(0.01),
    }
    path = folder.path / step_file_name("tokens", iteration)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path, durable=False) as temporary:
        pq.write_table(pa.table(columns), temporary, use_dictionary=False, write_statistics=False)


def _plan(
    iteration: int,
    rows: np.ndarray,
    keys: list[str],
    advantages: np.ndarray,
    lengths: np.ndarray,
) -> dict[str, Any]:
    numbers = np.arange(len(rows))
    group_of_row = (rows // GROUP_SIZE).tolist()
    used_groups = list(dict.fromkeys(group_of_row))
    index_of_group = {group: index for index, group in enumerate(used_groups)}
    return {
        "iteration": iteration,
        "rule": "shuffled",
        "steps": [numbers[numbers % STEPS == step].tolist() for step in range(STEPS)],
        "group": [index_of_group[group] for group in group_of_row],
        "groups": [keys[group] for group in used_groups],
        "index": (rows % GROUP_SIZE).tolist(),
        "advantage": np.round(advantages[rows], 6).tolist(),
        "tokens": lengths[rows].tolist(),
        "born": [iteration] * len(rows),
        "describe": {"rows": len(rows), "groups": len(used_groups)},
    }


def _metrics(
    iteration: int, rewards: np.ndarray, lengths: np.ndarray, batch_rows: int, rng: Any
) -> dict[str, Any]:
    names = ("loss", "grad_norm", "entropy", "old_logprob", "mean_ratio", "token_imbalance")
    return {
        "iteration": iteration,
        "success": float(rewards.mean()),
        "reward": float(rewards.mean()),
        "rollouts": len(rewards),
        "rollout_tokens": int(lengths.sum()),
        "response_length": float(lengths.mean()),
        "verifier_timeouts": 0,
        "batch_rows": batch_rows,
        "rows_without_signal": len(rewards) - batch_rows,
        "steps": STEPS,
        "skipped_steps": 0,
        **{name: float(abs(rng.normal())) for name in names},
        "sample_seconds": 1.0,
        "update_seconds": 2.0,
        "iteration_seconds": 3.0,
        "tokens_per_second": float(lengths.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default=DEFAULT_RUN_SIZE, help="iterations x rollouts x tokens")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between iterations")
    options = parser.parse_args()
    write_made_up_run(
        options.folder,
        RunSize.parse(options.size),
        options.every,
        on_commit=lambda iteration, seconds: echo(f"{iteration} {seconds:.6f}"),
    )


if __name__ == "__main__":
    main()
