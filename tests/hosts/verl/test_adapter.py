"""Real verl runs of the embedded model on the CPU: Ray, TransferQueue, FSDP2 over gloo, two ranks.

Stock verl, QB and RB run once, one after the other, and are looked at from inside the workers: what
every optimizer step was given. Most of the time is Ray's start-up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts.verl.run_on_cpu import needs_verl, run_on_cpu

from counterpoise.credit.array_view import weights
from counterpoise.hosts.verl import host
from counterpoise.hosts.verl.options import VerlAdapterOptions, check_config

ROOT = Path(__file__).parents[3]
PROMPTS, GROUP, STEPS, RANKS = 8, 4, 4, 2  # as in verl_cpu_run.py
TAU = 0.4
FOUR = "actor_rollout_ref.rollout.n=4"
GRPO, OURS = (f"algorithm.adv_estimator={name}" for name in ("grpo", "poise_grpo"))
RB = [
    OURS,
    f"+poise.tau={TAU}",
    "+poise.max_age=3",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",  # needs fillers
    "+poise.credit_weights=negative_filter",  # by log-probabilities
    "+poise.run_folder=rb_record",
    "trainer.default_local_dir=rb_checkpoints",
]
RUNS: dict[str, tuple[int, list[str]]] = {  # how many rollouts of four are right; options
    "stock": (2, []),
    "qb": (
        2,
        [OURS, "+poise.composer=grouped", "+poise.monitor_every=1", "+poise.run_folder=record"],
    ),
    "rb": (1, [*RB, "trainer.total_training_steps=2", "trainer.save_freq=2"]),
    "rb_resumed": (1, [*RB, "trainer.total_training_steps=3", "trainer.resume_mode=auto"]),
    "rb_async": (
        1,
        [
            OURS,
            f"+poise.tau={TAU}",
            "trainer.v1.trainer_mode=colocate_async",
            "trainer.v1.colocate_async.num_warmup_batches=2",
            "trainer.total_training_steps=3",
            "+actor_rollout_ref.rollout.engine_kwargs.native.late_answers=8",
            "+poise.run_folder=rb_async_record",
        ],
    ),
}


@dataclass(frozen=True)
class Run:
    updates: list[list[list[dict[str, Any]]]]  # update -> optimizer step -> rows of all ranks
    metrics: list[dict[str, float]]  # verl's tracking, a line an update
    record: Path  # of +poise.run_folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for steps in self.updates for step in steps for row in step]


def read(folder: Path) -> Run:
    """What the workers noted; rows that train nothing are left out."""
    lines = [
        [json.loads(line) for line in (folder / f"rank_{r}.jsonl").read_text().splitlines()]
        for r in range(RANKS)
    ]
    steps = [
        [row for line in together for row in line["rows"] if not row["uid"].startswith("pad")]
        for together in zip(*lines, strict=True)
    ]
    tracked = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [steps[i : i + STEPS] for i in range(0, len(steps), STEPS)]
    return Run(updates, [line["data"] for line in tracked], folder.parent / "record")


def cut(run: Run) -> tuple[int, int]:
    """Groups with rollouts in more than one optimizer step, and groups."""
    homes = defaultdict(set)
    for u, steps in enumerate(run.updates):
        for s, step in enumerate(steps):
            for row in step:
                homes[row["uid"]].add((u, s))
    return sum(len(home) > 1 for home in homes.values()), len(homes)


def largest_sum(run: Run) -> float:
    """max |sum of a group's advantages| over the optimizer steps."""
    sums: dict[tuple[int, int, str], float] = defaultdict(float)
    for u, steps in enumerate(run.updates):
        for s, step in enumerate(steps):
            for row in step:
                sums[u, s, row["uid"]] += row["advantage"]
    return max(map(abs, sums.values()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    out = tmp_path_factory.mktemp("verl")
    run_on_cpu(out, RUNS)
    runs = {name: read(out / name) for name in RUNS}
    # A run that was resumed after its second update is tested like one that was not.
    before, after = runs["rb"], runs.pop("rb_resumed")
    runs["rb"] = Run(before.updates + after.updates, before.metrics + after.metrics, before.record)
    return runs


# -- without a run ------------------------------------------------------------------------------


@needs_verl
def test_what_we_rest_on_is_as_we_know_it() -> None:
    assert host.find_changes() == []


@needs_verl
@pytest.mark.slow
def test_the_entry_point_puts_our_trainers_in_place(tmp_path: Path) -> None:
    code = """
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
print([get_trainer_cls(m).__mro__[1].__name__ for m in ("sync", "colocate_async")])
print(get_adv_estimator_fn("poise_rloo").__name__)
"""
    process = python(tmp_path, "-c", code)
    assert process.stdout.splitlines()[-2:] == [
        "['PlannedTrainer', 'PlannedTrainer']",
        "poise_rloo",
    ], process.stderr


@needs_verl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["+poise.composer=groupd"], "counterpoise: unknown composer 'groupd': did you mean"),
        (
            ["+poise.tau=0.25", GRPO, FOUR],
            "counterpoise: +poise.tau balances by the advantages of a poise_*",
        ),
        (["+poise.seed=0", GRPO, "trainer.use_v1=False"], "counterpoise: +poise is for verl's V1"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    process = python(tmp_path, "-m", "verl.trainer.main_ppo", *options)
    assert process.returncode == 2
    assert process.stderr.strip().splitlines()[-1].startswith(said)


@needs_verl
@pytest.mark.slow
def test_an_unknown_verl_stops_only_those_who_ask_for_us(tmp_path: Path) -> None:
    """verl swallows what a plug-in raises; a stock run with our options ignored must not follow."""
    code = """
import runpy, sys
from counterpoise.hosts.verl import host
host.SUPPORTED_VERSION = "0.9.2"
sys.argv = ["main_ppo", *sys.argv[1:]]
runpy.run_module("verl.trainer.main_ppo", run_name="__main__")
"""
    process = python(tmp_path, "-c", code, "+poise.composer=grouped", GRPO, FOUR)
    assert process.returncode == 2
    said = "counterpoise: verl 0.9.1 is not supported, only 0.9.2: pip install 'counterpoise[verl]'"
    assert process.stderr.strip().splitlines()[-1] == said
    stock = python(tmp_path, "-c", code, "trainer.n_gpus_per_node=0", GRPO)
    assert "counterpoise" not in stock.stderr.splitlines()[-1]


@needs_verl
@pytest.mark.slow
def test_the_example_is_a_command_verl_takes() -> None:
    yaml = pytest.importorskip("yaml")
    script = ROOT / "examples" / "verl_dropin.sh"
    env = {**os.environ, "PYTHON": sys.executable, "VERL_USE_EXTERNAL_PLUGINS": "none"}
    process = subprocess.run(
        [str(script), "--cfg", "job"], env=env, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    config = yaml.safe_load(process.stdout[process.stdout.index("actor_rollout_ref:") :])
    assert check_config(config) == VerlAdapterOptions(composer="grouped", tau=0.25, unit="rollout")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


# -- real runs ----------------------------------------------------------------------------------


@needs_verl
@pytest.mark.slow
def test_stock_verl_cuts_groups(runs: dict[str, Run]) -> None:
    number, groups = cut(runs["stock"])
    assert groups == 2 * PROMPTS
    # The cut follows the lengths of what was sampled, which differ from run to run: 14 and 8 of 16
    # groups were seen.
    assert number >= groups / 4
    assert largest_sum(runs["stock"]) > 0.5
    assert not any(name.startswith("poise/") for line in runs["stock"].metrics for name in line)


@needs_verl
@pytest.mark.slow
def test_qb_keeps_every_group_in_one_step_of_all_ranks(runs: dict[str, Run]) -> None:
    run = runs["qb"]
    assert cut(run) == (0, 2 * PROMPTS)
    assert largest_sum(run) < 1e-5
    assert max(abs(row["advantage"]) for row in run.rows) > 0.4
    assert set(Counter(row["uid"] for row in run.rows).values()) == {GROUP}
    assert [len(steps) for steps in run.updates] == [STEPS, STEPS]
    for line, steps in zip(run.metrics, run.updates, strict=True):
        rows = [row for step in steps for row in step]
        positive = sum(row["advantage"] > 0 for row in rows)
        signal_rows = sum(row["advantage"] != 0 for row in rows)
        assert line["poise/split_groups"] == 0
        assert line["poise/rows"] == len(rows) == PROMPTS * GROUP
        assert line["poise/groups"] == PROMPTS
        assert line["poise/max_abs_group_advantage_sum"] < 1e-5
        assert line["poise/positive_share"] == pytest.approx(positive / signal_rows)


@needs_verl
@pytest.mark.slow
def test_the_monitor_sees_what_moved(runs: dict[str, Run]) -> None:
    for line, steps in zip(runs["qb"].metrics, runs["qb"].updates, strict=True):
        rows = [row for step in steps for row in step]
        tokens = {
            "positive": sum(row["tokens"] for row in rows if row["advantage"] > 0),
            "negative": sum(row["tokens"] for row in rows if row["advantage"] < 0),
        }
        for sign in tokens:
            shares = [line[f"poise/{name}_{sign}"] for name in ("boosted", "suppressed", "stable")]
            assert sum(shares) == pytest.approx(1.0)
            assert line[f"poise/moved_{sign}"] > 1e-4  # the weights did change
        against = (
            line["poise/suppressed_positive"] * tokens["positive"]
            + line["poise/boosted_negative"] * tokens["negative"]
        )
        assert line["poise/flipped"] == pytest.approx(against / sum(tokens.values()), abs=1e-6)
    assert not any("poise/flipped" in line for line in runs["rb"].metrics)  # not asked for


@needs_verl
@pytest.mark.slow
def test_rb_updates_on_balanced_batches_of_whole_groups(runs: dict[str, Run]) -> None:
    run = runs["rb"]
    assert len(run.updates) == 3
    for steps in run.updates:
        rows = [row for step in steps for row in step]
        positive = sum(row["advantage"] > 0 for row in rows)
        negative = sum(row["advantage"] < 0 for row in rows)
        assert positive + negative == len(rows) == PROMPTS * GROUP  # no row without signal
        assert min(positive, negative) >= TAU * len(rows)
    assert cut(run)[0] == 0
    assert largest_sum(run) < 1e-5  # groups that lost rows were re-centred


@needs_verl
@pytest.mark.slow
def test_rb_defers_as_it_should_and_accounts_for_every_rollout(runs: dict[str, Run]) -> None:
    """A round has 7 groups of one right and three wrong rollouts and one without signal. A batch of
    32 needs 13 positive rows, so 13 groups: every update waits for a second round, and of its
    52 rollouts 20 are surplus."""
    for update, line in enumerate(runs["rb"].metrics, 1):
        assert line["poise/refills"] == 1
        assert line["poise/rarer_sign"] == 13 / 32
        counts = {name: line[f"poise/rollouts_{name}"] for name in (
            "added", "emitted", "dropped_surplus", "dropped_aged", "without_signal", "waiting",
        )}  # fmt: skip
        assert counts == {
            "added": 64 * update, "emitted": 32 * update, "dropped_surplus": 20 * update,
            "dropped_aged": 0, "without_signal": 8 * update, "waiting": 4 * update,
        }  # fmt: skip
        assert counts["added"] == sum(counts.values()) - counts["added"]
        assert line["poise/rounds_waited"] == (1 if update == 1 else 2)
        assert (
            line["poise/fillers"] == RANKS * 6 * STEPS - 32
        )  # passes of 3 rows: 6 a rank and step


@needs_verl
@pytest.mark.slow
def test_rows_that_waited_keep_the_policy_that_sampled_them(runs: dict[str, Run]) -> None:
    """The server had the trainer's weights, so its log-probabilities are the old ones: also for
    the groups that waited through an update, which moved tokens by more than a hundred times as
    much (`moved_*` of a run with the same learning rate)."""
    assert max(row["old_gap"] for row in runs["rb"].rows) < 1e-4
    assert min(line["poise/moved_positive"] for line in runs["qb"].metrics) > 1e-2


@needs_verl
@pytest.mark.slow
def test_rb_weighs_tokens_by_the_policy_that_sampled_them(runs: dict[str, Run]) -> None:
    """Rows that waited included: the old log-probabilities are the sampler's (see above)."""
    for steps in runs["rb"].updates:
        rows = [row for step in steps for row in step]
        weights_R = weights(
            "negative_filter",
            advantages=[row["advantage"] for row in rows],
            tokens=[row["ids"] for row in rows],
            logprobs=[row["old_logprobs"] for row in rows],
        )
        for row, weights_T in zip(rows, weights_R, strict=True):
            assert row["advantages"] == pytest.approx(row["advantage"] * weights_T, abs=1e-6)
        assert 0 < np.concatenate(weights_R).mean() < 0.6


@needs_verl
@pytest.mark.slow
def test_rb_takes_a_balanced_batch_while_prompts_are_running(runs: dict[str, Run]) -> None:
    """Before the first update 24 prompts are submitted, 21 of them with signal. Eight answers come
    only after it, so at least one group and at most eight are missing: a batch needs 13 groups (see
    above), and 13 are there."""
    run = runs["rb_async"]
    assert len(run.updates) == 3
    assert cut(run)[0] == 0
    assert largest_sum(run) < 1e-5
    for steps, line in zip(run.updates, run.metrics, strict=True):
        signs = [row["advantage"] > 0 for step in steps for row in step]
        assert (len(signs), sum(signs)) == (PROMPTS * GROUP, 13)
        assert line["poise/rarer_sign"] == 13 / 32
        counts = {name: line[f"poise/rollouts_{name}"] for name in (
            "emitted", "dropped_surplus", "dropped_aged", "without_signal", "waiting",
        )}  # fmt: skip
        assert line["poise/rollouts_added"] == sum(counts.values())
    first, *_ = run.metrics
    assert first["poise/rollouts_added"] < 24 * GROUP
    assert first["poise/refills"] == 0
    # Three batches take 39 groups; 35 of the 24 + 2 x 8 prompts have signal: one more round.
    assert sum(line["poise/refills"] for line in run.metrics) >= 1


def test_the_page_names_every_option() -> None:
    text = (ROOT / "docs" / "guide" / "verl.md").read_text()
    assert all(f"`+poise.{field.name}=" in text for field in fields(VerlAdapterOptions))


# -- +poise.run_folder --------------------------------------------------------------------------


@needs_verl
@pytest.mark.slow
def test_the_record_is_what_the_workers_got(runs: dict[str, Run]) -> None:
    """The rows of every optimizer step, in metrics, plans, rollouts and tokens."""
    import pyarrow.parquet as pq

    from counterpoise.lab.choose_page import write_report

    run = runs["qb"]
    folder = run.record
    plans, metrics = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("plans.jsonl", "metrics.jsonl")
    )
    assert [plan["iteration"] for plan in plans] == [1, 2]
    for plan, steps, record in zip(plans, run.updates, metrics, strict=True):
        assert plan["rule"] == "grouped"
        for rows, noted in zip(plan["steps"], steps, strict=True):
            recorded = sorted(
                (plan["groups"][plan["group"][i]].split(":")[1], plan["tokens"][i],
                 round(plan["advantage"][i], 5))
                for i in rows
            )  # fmt: skip
            assert recorded == sorted(
                (row["uid"].split("_")[0], row["tokens"], round(row["advantage"], 5))
                for row in noted
            )
        assert record["flipped"] == pytest.approx(
            run.metrics[record["iteration"] - 1]["poise/flipped"]
        )
        assert record["grad_norm"] > 0
        table = pq.read_table(folder / f"tokens/step_{plan['iteration']:05d}.parquet").to_pandas()
        assert len(table) == sum(
            tokens
            for tokens, advantage in zip(plan["tokens"], plan["advantage"], strict=True)
            if advantage
        )
        against = (table["displacement"] * table["advantage"] < 0) & (
            np.abs(table["displacement"]) > 1e-6
        )
        assert against.mean() == pytest.approx(record["flipped"], abs=1e-6)
    assert "NaN" not in (folder / "metrics.jsonl").read_text()
    page = write_report(folder, folder / "page.html").read_text(encoding="utf-8")
    for name in ("mosaic", "tokens", "plans", "rollouts"):
        assert f'id="{name}"' in page, name


@needs_verl
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rb", "rb_async"])
def test_the_record_of_rb_has_all_that_was_sampled(runs: dict[str, Run], name: str) -> None:
    """Of 32 rollouts in a round 7 are right: the balanced batches have 13 of 32."""
    from counterpoise.lab.choose_page import write_report

    run = runs[name]
    folder = run.record.parent / f"{name}_record"
    plans, metrics = (
        [json.loads(line) for line in (folder / file).read_text().splitlines()]
        for file in ("plans.jsonl", "metrics.jsonl")
    )
    assert [plan["iteration"] for plan in plans] == [1, 2, 3]
    sampled = 0
    for plan, record, line in zip(plans, metrics, run.metrics, strict=True):
        sampled += record["rollouts"]
        assert sampled == line["poise/rollouts_added"]
        for count in ("dropped_surplus", "dropped_aged"):
            assert record[count] == line[f"poise/rollouts_{count}"]
        waiting = record["buffer_positive"] + record["buffer_negative"]
        assert waiting == line["poise/rollouts_waiting"]
        if name == "rb":
            assert record["success"] == 14 / 64
            assert record["sampling_rounds"] == 2
        for i, born in enumerate(plan["born"]):
            rollouts = (folder / f"rollouts/step_{born:05d}.jsonl").read_text().splitlines()
            group = plan["groups"][plan["group"][i]]
            members = [r for r in map(json.loads, rollouts) if r["group"] == group]
            rollout = members[plan["index"][i]]
            assert (rollout["reward"] > 0) == (plan["advantage"][i] > 0)
            assert len(rollout["response_tokens"]) == plan["tokens"][i]
    assert any(born < plan["iteration"] for plan in plans for born in plan["born"])
    dropped = [json.loads(line) for line in (folder / "drops.jsonl").read_text().splitlines()]
    surplus = sum(len(rows) for line in dropped for rows in line.get("surplus", {}).values())
    assert surplus == metrics[-1]["dropped_surplus"]
    page = write_report(folder, folder / "page.html").read_text(encoding="utf-8")
    assert 'id="buffer"' in page
