"""Prompt memory: what settles a prompt, which prompts are chosen, and that a resumed run agrees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_run import small_config

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.report.panels import memory as memory_panel
from counterpoise.report.run_data import RunData
from counterpoise.sample.choose_prompts import (
    PromptRequest,
    aligned,
    choose_prompts,
    open_prompts,
    pick_prompts,
    pools,
    recent_mixed,
    skip_settled,
)
from counterpoise.sample.prompt_memory import PromptMemory
from counterpoise.store.check.check_run import check_run
from counterpoise.types import Group, Prompt, Rollout

EMPTY = np.empty(0, np.int32)


def group(prompt_id: str, iteration: int, rewards: list[float], anchors: int = 0) -> Group:
    rollouts = tuple(
        Rollout(
            prompt_id, "", "", "", reward, EMPTY, EMPTY, np.empty(0, np.float32),
            anchor=i >= len(rewards) - anchors,
        )
        for i, reward in enumerate(rewards)
    )  # fmt: skip
    return Group(f"{iteration}:{prompt_id}", iteration, rollouts)


def train_set(size: int) -> list[tuple[Prompt, np.ndarray]]:
    return [(Prompt(f"p{i}", "", ""), EMPTY) for i in range(size)]


def remember(memory: PromptMemory, iteration: int, **rewards: list[float]) -> None:
    memory.record([group(name, iteration, values) for name, values in rewards.items()], iteration)


def test_what_settles_a_prompt() -> None:
    memory = PromptMemory(num_visits=2, retry_after=5)
    remember(memory, 1, a=[1, 1], b=[0, 0], c=[1, 0], d=[1, 1], e=[0.5, 0.9])
    assert memory.settled_as("a", 2) == ""  # one group is not enough
    remember(memory, 3, a=[1, 1], b=[0, 0], c=[1, 1], d=[0, 0], e=[0.5, 0.9])
    kinds = [memory.settled_as(name, 4) for name in "abcdef"]
    assert kinds == ["solved", "unsolved", "", "", "", ""]
    assert memory.settled_as("a", 8) == "solved"
    assert memory.settled_as("a", 9) == ""  # open again after five iterations
    rates = [memory.success_rate(name) for name in "abcdef"]
    assert rates == [1.0, 0.0, 0.75, 0.5, 1.0, None]
    assert (memory.num_uniform(3), memory.num_uniform(2), memory.last_visit("f")) == (4, 0, 0)


def test_anchors_and_missing_rewards_do_not_count() -> None:
    memory = PromptMemory()
    recorded = memory.record([group("a", 1, [1, 0, float("nan"), 0], anchors=1)], 1)
    assert recorded == {"a": [1, 2, 1]}


def request(memory: PromptMemory, iteration: int, size: int = 12, P: int = 4) -> PromptRequest:
    return PromptRequest(train_set(size), memory, P, 0, iteration)


def test_without_anything_settled_the_epochs_are_the_usual_ones() -> None:
    config = load_config("demo", ["sample.prompts=4", "sample.choose=skip_settled"])
    prompts, memory = train_set(12), PromptMemory()
    for iteration in (1, 2, 3):
        choice = choose_prompts(prompts, config, iteration, memory)
        assert choice.prompts == pick_prompts(prompts, config, iteration)
        assert (choice.skipped_solved, choice.skipped_unsolved) == (0, 0)
    assert memory.next_position == 12


def test_settled_prompts_are_passed_over_and_come_back_when_nothing_else_is_left() -> None:
    memory = PromptMemory(num_visits=1)
    remember(memory, 1, **{f"p{i}": [1, 1] for i in range(3)}, p3=[0, 0])
    first, _ = skip_settled(request(memory, 2))
    assert not {0, 1, 2, 3} & set(first)
    second, skipped = skip_settled(request(memory, 2))
    assert set(first) | set(second) == set(range(4, 12))
    assert memory.next_position >= 8
    remember(memory, 2, **{f"p{i}": [1, 1] for i in range(4, 11)})
    last, skipped = skip_settled(request(memory, 3))
    # Only p11 is open; the others were sampled longest ago.
    assert last[0] == 11
    assert len(set(last)) == 4
    assert set(last[1:]) <= {0, 1, 2, 3}
    assert skipped["solved"] + skipped["unsolved"] == 8


def test_replacements_leave_settled_prompts_out() -> None:
    memory, prompts = PromptMemory(num_visits=1), train_set(3)
    assert open_prompts(prompts, memory, 1) is prompts
    remember(memory, 1, p0=[1, 1], p1=[1, 0])
    assert [prompt.id for prompt, _ in open_prompts(prompts, memory, 2)] == ["p1", "p2"]


def test_pools_draw_from_every_difficulty() -> None:
    memory = PromptMemory(num_visits=1)
    hard, medium, easy, solved = [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]
    for i, rewards in enumerate([hard] * 4 + [medium] * 4 + [easy] * 4 + [solved] * 4):
        remember(memory, 1, **{f"p{i}": rewards})
    chosen, skipped = pools(request(memory, 2, size=24, P=9))
    counts = np.histogram(chosen, [0, 4, 8, 12, 16, 24])[0].tolist()
    assert counts == [2, 2, 2, 0, 3]  # nine: the first pool, new prompts, gets one more
    assert skipped["solved"] == 4
    # A pool that is too small is filled from the others, settled prompts come last.
    few, skipped = pools(request(memory, 2, size=16, P=14))
    assert len(set(few)) == 14
    assert sum(index >= 12 for index in few) == 2
    assert skipped["solved"] == 2


def test_recent_mixed_replays_the_latest_prompts_with_spread() -> None:
    memory = PromptMemory()
    remember(memory, 1, p0=[1, 0], p1=[1, 0])
    remember(memory, 2, p2=[1, 0], p3=[1, 1], p4=[0, 0], p5=[0, 0])
    chosen, _ = recent_mixed(request(memory, 3))
    assert len(set(chosen)) == 4
    assert chosen[2] == 2  # half of four at most: the latest, then one of the first iteration
    assert chosen[3] in (0, 1)


@pytest.mark.parametrize("choice", ["skip_settled", "pools", "recent_mixed"])
def test_a_resumed_run_remembers_the_same(tmp_path: Path, choice: str) -> None:
    sets = (
        f"sample.choose={choice}", "sample.memory_visits=1", "loop.iterations=6",
        "loop.checkpoint_every=3", "evaluate.prompts=0", "balance.tau=0",
        "batch.steps=1", "sample.refills=1",
    )  # fmt: skip
    config = small_config(tmp_path, *sets)
    whole = train(config, tmp_path / "whole")
    half = tmp_path / "half"
    train(small_config(tmp_path, *sets, "loop.iterations=3"), half)
    train(config, half, resume=True)
    assert (whole.path / "memory.jsonl").read_text() == (half / "memory.jsonl").read_text()
    states = [
        json.loads((path / "checkpoints/iteration_00006/state.json").read_text())
        for path in (whole.path, half)
    ]
    assert states[0]["memory"] == states[1]["memory"]
    assert len(states[0]["memory"]["visits"]) > 3
    lines = whole.read("metrics")
    assert any(line["skipped_solved"] + line["skipped_unsolved"] for line in lines) or (
        choice == "recent_mixed"
    )
    assert [r.problem for r in check_run(half).findings] == []


def test_a_changed_memory_is_found(tmp_path: Path) -> None:
    config = small_config(
        tmp_path, "sample.choose=skip_settled", "evaluate.prompts=0", "loop.keep_checkpoints=1"
    )
    folder = train(config, tmp_path / "run")
    shown = memory_panel.panel(RunData.read(folder.path))
    assert shown is not None
    values = shown.body[0].chart.layer[0].data["values"]
    skipped = [line["skipped_solved"] for line in folder.read("metrics")]
    assert [area["top"] - area["floor"] for area in values] == skipped
    log = folder.path / "memory.jsonl"
    lines = log.read_text().splitlines()
    record = json.loads(lines[1])
    prompt_id = next(iter(record["prompts"]))
    record["prompts"][prompt_id][0] += 1
    log.write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    problems = [f"{finding.file} {finding.problem}" for finding in check_run(folder.path).findings]
    assert any(p.startswith("memory.jsonl line 2 is not what the run wrote") for p in problems)
    assert any(f"scored rollouts for {prompt_id}, rollouts/ has " in p for p in problems)
    assert any("has another prompt memory than memory.jsonl" in p for p in problems)


def test_aligned_repeats_the_prompts_that_helped_most() -> None:
    memory = PromptMemory(influence={"p1": 0.5, "p3": -2.0, "p4": 0.1, "p6": 0.9, "p7": 0.2})
    request = PromptRequest(train_set(8), memory, num_prompts=4, seed=0, iteration=9)
    chosen, _ = aligned(request)
    assert chosen[2:] == [6, 1]  # the strongest two of four
    assert len(set(chosen)) == 4
    first, _ = aligned(PromptRequest(train_set(8), PromptMemory(), 4, seed=0, iteration=1))
    without_memory, _ = skip_settled(PromptRequest(train_set(8), PromptMemory(), 4, 0, 1))
    assert first == without_memory  # no influence is known yet


def test_a_run_that_chooses_by_influence_resumes_and_checks(tmp_path: Path) -> None:
    sets = (
        "sample.choose=aligned", "monitor.probe=6", "task.heldout=4", "task.size=12",
        "evaluate.prompts=1",
    )  # fmt: skip
    whole = train(small_config(tmp_path, *sets), tmp_path / "whole")
    out = tmp_path / "resumed"
    for iterations in (2, 4):
        config = small_config(
            tmp_path, *sets, f"loop.iterations={iterations}", "loop.checkpoint_every=1"
        )
        resumed = train(config, out, resume=out.exists())
    lines = whole.read("memory")
    assert resumed.read("memory") == lines
    assert any(line.get("influence") for line in lines)
    assert check_run(whole.path).is_whole
    assert check_run(out).is_whole
    with pytest.raises(PoiseError, match=r"sample\.choose=aligned reads held-out answers"):
        load_config("demo", ["sample.choose=aligned"])
