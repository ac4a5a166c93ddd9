"""TRL's own reward functions, unchanged, as verifiers of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.model.load import load_policy
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import new_state
from counterpoise.store.folder import RunFolder
from counterpoise.task import word_problems
from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.reward_signatures import describe_reward
from counterpoise.verify.scores import ScoringContext, TrainerState, score_responses

pytest.importorskip("trl")


def test_accuracy_reward_runs_unchanged() -> None:
    name = "trl.rewards:accuracy_reward"
    assert describe_reward(name).endswith(
        "accuracy_reward: TRL's signature, called once for each batch"
    )
    prompts = [
        Prompt("1", "?", "x", columns={"solution": r"\frac{1}{3}"}),
        Prompt("2", "?", "x", columns={"solution": r"\frac{1}{3}"}),
        Prompt("3", "?", "12", solution="3 * 4 = 12\nThe answer is \\boxed{12}."),
        Prompt("4", "?", "12", columns={"solution": ""}),
    ]
    responses = [r"\boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}", r"\boxed{12}", r"\boxed{12}"]
    scores = score_responses(VERIFIERS.load(name)(5.0, 2), responses, prompts)
    assert scores.rewards[:3] == [1.0, 0.0, 1.0]
    assert math.isnan(scores.rewards[3])  # nothing to parse in its solution: None
    assert [len(logged) for logged in scores.logged] == [3] * 4
    assert not scores.graded


def test_accuracy_reward_trains_on_chat_messages(tmp_path: Path) -> None:
    """With a system prompt, without ids and answers; LoRA, a KL and a cosine besides."""
    problems = word_problems.load(levels=[1], slips=0.0, size=12, heldout=0, seed=0).train
    chats = [
        {
            "prompt": [
                {"role": "system", "content": "The answer is a number."},
                {"role": "user", "content": problem.problem},
            ],
            "solution": f"\\boxed{{{problem.answer}}}",
        }
        for problem in problems
    ]
    data = tmp_path / "chat.jsonl"
    data.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    sets = [
        f"task.path={data}", "task.name=files", "task.heldout=1", "model.device=cpu",
        "model.lora_rank=4", "update.kl=0.01", "update.schedule=cosine",
        "loop.iterations=1", "sample.prompts=4", "sample.group_size=4", "sample.max_new_tokens=64",
        "balance.tau=0", "batch.steps=1", "evaluate.prompts=0",
        "verify.name=trl.rewards:accuracy_reward",
    ]  # fmt: skip
    run = train(load_config("demo", sets), tmp_path / "run")
    (line,) = run.read("metrics")
    assert line["steps"] == 1
    rollouts = run.read_rollouts(1)
    assert {rollout["logged"]["solution"] for rollout in rollouts} <= {
        chat["solution"] for chat in chats
    }
    rewards = [rollout["reward"] for rollout in rollouts]
    assert set(rewards) == {0.0, 1.0}
    assert line["reward"] == pytest.approx(sum(rewards) / 16)


def test_a_reward_reads_the_progress_of_a_resumed_run(tmp_path: Path) -> None:
    """TRL counts from 0 again there; the run's own steps are what a curriculum needs."""
    from counterpoise.hosts.trl.run_recorder import RecordedRun
    from counterpoise.hosts.trl.run_trainer import VerifierReward

    path = tmp_path / "mine.py"
    path.write_text(
        "def score(completions, trainer_state, completion_ids, **kwargs):\n"
        "    progress = trainer_state.global_step / trainer_state.max_steps\n"
        "    return [progress + len(ids) for ids in completion_ids]\n"
    )
    config = load_config("demo", ["loop.iterations=8", "batch.steps=2", "balance.tau=0"])
    verifier, policy = VERIFIERS.load(f"{path}:score")(5.0, 2), load_policy(config.model)
    train_set = [(Prompt("p7", "?", "4"), policy.encode("?"))]
    run = RecordedRun(config, train_set, [], verifier, RunFolder(tmp_path), RunObserver())
    state = new_state(policy, config)
    state.iteration = 6
    reward = VerifierReward(run, state)
    rewards = reward([[5, 6], [7]], ["p7", "p7"], trainer_state=TrainerState(0, 4))
    assert rewards == [6 / 8 + 2, 6 / 8 + 1]


def test_a_format_reward() -> None:
    name = "trl.rewards:think_format_reward"
    verifier = VERIFIERS.load(name)(5.0, 2)
    texts = ["<think>\nso\n</think>\n4", "4"]
    assert score_responses(verifier, texts, [Prompt("1", "?", "4")] * 2).rewards == [1.0, 0.0]


def test_a_penalty_that_a_function_of_trl_makes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from trl.rewards import get_soft_overlong_punishment\n"
        "overlong = get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=4)\n"
    )
    context = ScoringContext(token_ids=[[1] * 5, [1] * 8, [1] * 12])
    verifier = VERIFIERS.load(f"{path}:overlong")(5.0, 2)
    scores = score_responses(verifier, ["a"] * 3, [Prompt("1", "?", "4")] * 3, context)
    assert scores.rewards == [0.0, -0.5, -1.0]
    assert scores.graded
