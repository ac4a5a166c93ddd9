"""Reward functions as they were written for TRL, for verl, and for one sample at a time."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from counterpoise.config.load import config_from_tables
from counterpoise.credit.reward_mixtures import RewardMixture
from counterpoise.errors import PoiseError
from counterpoise.sample.build_groups import build_groups
from counterpoise.task.load import load_run_task
from counterpoise.types import ALL_COLUMNS, Prompt, Response
from counterpoise.variants import VERIFIERS
from counterpoise.verify.extra_rewards import score_extra_rewards
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.reward_signatures import describe_reward, reward_arguments
from counterpoise.verify.scores import Scores, ScoringContext, TrainerState, score_responses

# As in TRL's documentation: conversational completions, a column of solutions, None to skip.
ACCURACY = """
def accuracy_reward(
    completions: list[list[dict[str, str]]],
    solution: list[str],
    log_extra=None,
    **kwargs,
) -> list[float | None]:
    contents = [completion[0]["content"] for completion in completions]
    rewards = [
        None if gold == "?" else float(f"\\\\boxed{{{gold}}}" in content)
        for content, gold in zip(contents, solution, strict=True)
    ]
    if log_extra:
        log_extra("gold", list(solution))
    return rewards
"""
# verl's signature, with a dictionary as its DAPO recipe returns it.
COMPUTE_SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    correct = ground_truth in solution_str
    assert data_source == "openai/gsm8k", data_source
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": solution_str[-3:],
            "index": extra_info["index"]}
"""


def write(folder: Path, text: str, function: str = "score") -> str:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return f"{folder / 'mine.py'}:{function}"


def score(
    name: str, responses: list[str], prompts: list[Prompt], context: ScoringContext | None = None
) -> Scores:
    return score_responses(
        VERIFIERS.load(name)(5.0, 2), responses, prompts, context or ScoringContext()
    )


def test_an_accuracy_reward_of_trl_runs_unchanged(tmp_path: Path) -> None:
    name = write(tmp_path, ACCURACY, "accuracy_reward")
    prompts = [
        Prompt("1", "1 + 1?", "2", columns={"solution": "2"}),
        Prompt("2", "2 + 2?", "4", columns={"solution": "4"}),
        Prompt("3", "?", "5", columns={"solution": "?"}),
    ]
    scores = score(name, ["\\boxed{2}", "\\boxed{5}", "\\boxed{5}"], prompts)
    assert scores.rewards[:2] == [1.0, 0.0]
    assert math.isnan(scores.rewards[2])
    assert scores.logged == [{"gold": "2"}, {"gold": "4"}, {"gold": "?"}]
    assert not scores.graded
    assert describe_reward(name) == (
        "reward mine.py:accuracy_reward: TRL's signature, called once for each batch"
    )
    # Without a column of solutions: the worked solution of the task, or else its answer.
    bare = [Prompt("1", "?", "2", solution="2"), Prompt("2", "?", "4")]
    assert score(name, ["\\boxed{2}", "\\boxed{4}"], bare).rewards == [1.0, 1.0]


def test_trls_keywords_hold_what_trl_passes(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        "def score(prompts, completions, completion_ids, **kwargs):\n"
        "    log_metric, log_extra = kwargs.pop('log_metric'), kwargs.pop('log_extra')\n"
        "    log_metric('length', 3)\n"
        "    log_metric('length', 5)\n"
        "    log_extra('keywords', [sorted(kwargs)] * 2)\n"
        "    assert kwargs['level'] == ['easy', 'hard'] and kwargs['answer'] == [1, 2]\n"
        "    assert kwargs['trainer_state'].global_step == 4\n"
        "    return [0.25, 0.5]\n",
    )
    prompts = [
        Prompt("1", "P1", "A1", columns={"prompt": "raw", "answer": 1, "level": "easy"}),
        Prompt("2", "P2", "A2", columns={"prompt": "raw", "answer": 2, "level": "hard"}),
    ]
    scores = score(name, ["R1", "R2"], prompts, ScoringContext([[1, 2], [3]], TrainerState(4, 10)))
    assert scores.rewards == [0.25, 0.5]
    assert scores.graded
    assert scores.logged_metrics == {"length": (3.0, 5.0)}
    assert scores.logged == [{"keywords": ["answer", "level", "trainer_state"]}] * 2
    assert reward_arguments(name).columns == (ALL_COLUMNS,)


PASSED = {  # parameters -> what they hold, for a text and for a chat prompt
    "prompts, completions": ({"prompts": ["P"], "completions": ["R"]}, None),
    "completions, completion_ids": ({"completions": ["R"], "completion_ids": [[7, 8]]}, None),
    "completions, trainer_state": (
        {"completions": ["R"], "trainer_state": TrainerState(2, 8)},
        None,
    ),
    "completion_ids, **kw": (None, ["completion_ids", "completions", "prompts", "level"]),
    "**kw": (None, ["completion_ids", "completions", "prompts", "level", "log_extra"]),
}


@pytest.mark.parametrize("taken", PASSED)
def test_trl_functions_get_what_they_name(taken: str, tmp_path: Path) -> None:
    held, keywords = PASSED[taken]
    check = (
        "assert locals() == HELD, locals()"
        if held
        else f"assert set({keywords}) <= {{**locals(), **kw}}.keys(), kw"
    )
    name = write(
        tmp_path,
        "from counterpoise.verify.scores import TrainerState\n"
        f"HELD = {held!r}\n"
        f"def score({taken}):\n    {check}\n    return [1.0]\n",
    )
    context = ScoringContext([[7, 8]], TrainerState(2, 8))
    prompt = Prompt("1", "P", "A", columns={"level": "easy", "completion": "old"})
    assert score(name, ["R"], [prompt], context).rewards == [1.0]


def test_chat_prompts_are_passed_as_messages(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        "def score(prompts, completions):\n"
        "    (prompt,) = prompts\n"
        "    assert [m['role'] + m['content'] for m in prompt] == ['systemS', 'userP']\n"
        "    assert completions == [[{'role': 'assistant', 'content': 'R'}]]\n"
        "    return [1.0]\n",
    )
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "P"}]
    prompt: Any = SimpleNamespace(
        id="1", problem="P", answer="A", solution="", columns={}, messages=chat
    )
    assert score(name, ["R"], [prompt]).rewards == [1.0]


def test_computing_a_score_as_verl_does(tmp_path: Path) -> None:
    name = write(tmp_path, COMPUTE_SCORE, "compute_score")
    prompts = [Prompt("7", "?", "12"), Prompt("8", "?", "x", columns={"ground_truth": "5"})]
    scores = score(name, ["is 12", "is 12"], prompts, ScoringContext(data_source="openai/gsm8k"))
    assert scores.rewards == [1.0, -1.0]
    assert scores.logged == [
        {"acc": True, "pred": " 12", "index": "7"},
        {"acc": False, "pred": " 12", "index": "8"},
    ]
    assert scores.graded
    assert describe_reward(name).endswith("verl's compute_score, called once for each response")
    # The columns of verl's own datasets.
    columns = {
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"index": 41},
    }
    scores = score(name, ["3"], [Prompt("9", "?", "x", columns=columns)])
    assert scores.rewards == [1.0]
    assert scores.logged == [{"acc": True, "pred": "3", "index": 41}]


def test_a_dictionary_without_a_score_is_one_line(tmp_path: Path) -> None:
    text = "def score(solution_str, ground_truth):\n    return {'reward': 1}\n"
    with pytest.raises(
        PoiseError, match=r"returned {'reward': 1}: a dictionary needs a number und"
    ):
        score(write(tmp_path, text), ["a"], [Prompt("1", "?", "4")])


SAMPLES = {
    "completion": "completion == 'R'",
    "completion, answer": "(completion, answer) == ('R', 'A')",
    "prompt, completion": "(prompt, completion) == ('P', 'R')",
    "completion, level": "level == 'easy'",
    "completion, level='none', size=3": "(level, size) == ('easy', 3)",
    "sample": "sample == dict(id='1', prompt='P', completion='R', answer='A', level='easy')",
    "response: str, answer: str": "(response, answer) == ('R', 'A')",
    "text: str, gold: str": "(text, gold) == ('R', 'A')",
    "completion, completion_ids=None": "completion_ids is None",
    "completion, messages": "messages == [{'role': 'user', 'content': 'P'}]",
}


@pytest.mark.parametrize("taken", SAMPLES)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_function_of_one_sample(taken: str, future: str, tmp_path: Path) -> None:
    name = write(
        tmp_path,
        f"{future}def score({taken}) -> float:\n    assert {SAMPLES[taken]}, locals()\n"
        "    return 0.5\n",
    )
    prompt = Prompt("1", "P", "A", columns={"level": "easy"})
    assert score(name, ["R", "R"], [prompt] * 2).rewards == [0.5, 0.5]
    assert describe_reward(name).endswith("a function of one sample, called once for each response")


def test_async_functions_of_both_kinds(tmp_path: Path) -> None:
    """Calls of a function of one sample overlap, and a running event loop does not matter."""
    name = write(
        tmp_path,
        "import asyncio\n"
        "running, most = 0, 0\n"
        "async def batch(completions, **kwargs):\n"
        "    await asyncio.sleep(0)\n"
        "    return [len(text) for text in completions]\n"
        "async def single(completion):\n"
        "    global running, most\n"
        "    running += 1\n"
        "    most = max(most, running)\n"
        "    await asyncio.sleep(0.001)\n"
        "    running -= 1\n"
        "    return most if completion else None\n"
        "async def broken(completion):\n"
        "    raise ValueError('no judge')\n",
        "batch",
    )
    prompts = [Prompt("1", "P", "A")] * 3
    assert score(name, ["a", "bb", ""], prompts).rewards == [1.0, 2.0, 0.0]
    single = name.replace(":batch", ":single")
    assert score(single, ["a", "b", "c"], prompts).rewards == [3.0, 3.0, 3.0]

    async def inside_a_loop() -> list[float]:
        return score(single, ["a"], prompts[:1]).rewards

    assert asyncio.run(inside_a_loop()) == [3.0]
    with pytest.raises(PoiseError, match=r"mine\.py:14: ValueError: no judge"):
        score(name.replace(":batch", ":broken"), ["a"], prompts[:1])


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    prompt = [Prompt("1", "P", "A")]
    for taken, said in {
        "completions, completion_ids": "needs completion_ids, and here only the texts",
        "completions, trainer_state": "needs trainer_state, which exists only while a run trains",
        "completion, tests": "needs the column 'tests', which is not available here",
    }.items():
        folder = tmp_path / taken.replace(", ", "-")
        folder.mkdir()
        name = write(folder, f"def score({taken}):\n    return 1.0\n")
        with pytest.raises(PoiseError, match=said):
            score(name, ["R"], prompt)


def test_a_reward_of_our_own_lists_may_not_be_none(tmp_path: Path) -> None:
    text = "def score(responses, answers):\n    return [None]\n"
    with pytest.raises(PoiseError, match="returned None for response 1 of 1"):
        score(write(tmp_path, text), ["a"], [Prompt("1", "?", "4")])


def test_the_function_may_say_that_it_is_graded(tmp_path: Path) -> None:
    name = write(tmp_path, "def score(completion):\n    return 1.0\nscore.graded = True\n")
    assert score(name, ["a"], [Prompt("1", "?", "4")]).graded


def test_the_state_of_a_run() -> None:
    config = config_from_tables(
        {
            "loop": {"iterations": 10},
            "batch": {"steps": 2},
            "task": {"name": "hub", "path": "a/b:c"},
        }
    )
    assert training_context(config, 3) == ScoringContext(None, TrainerState(6, 20), "a/b")


def test_columns_of_a_file_reach_keywords_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(
        '{"id": "1", "problem": "P", "answer": 4, "tests": [1, 2], "level": "easy"}\n'
    )
    name = write(tmp_path, "def score(completions, tests, **kwargs):\n    return [0.0]\n")
    tables: dict[str, dict[str, Any]] = {
        "task": {"name": "jsonl", "path": str(tmp_path / "data.jsonl"), "heldout": 0},
        "verify": {"name": name},
    }
    (prompt,) = load_run_task(config_from_tables(tables)).train
    assert prompt.columns["tests"] == [1, 2]
    assert prompt.columns["level"] == "easy"
    other = tmp_path / "other"
    other.mkdir()
    name = write(other, "def score(completion, marks):\n    return 0.0\n")
    tables["verify"] = {"name": name}
    with pytest.raises(PoiseError, match="unknown column 'marks'"):
        load_run_task(config_from_tables(tables))


# -- several rewards, some of which do not apply ----------------------------------------------


def response(text: str) -> Response:
    return Response(np.zeros(2, np.int32), np.zeros(2, np.float32), text, True)


def test_several_functions_with_weights_and_none(tmp_path: Path) -> None:
    """None adds nothing to the sum, as in TRL; without any reward the advantage is 0."""
    name = write(
        tmp_path,
        "def right(completions, answer, **kwargs):\n"
        "    pairs = zip(completions, answer)\n"
        "    return [None if text == '' else float(a in text) for text, a in pairs]\n"
        "def brief(completion, completion_ids):\n"
        "    return None if completion in ('', '4!') else -len(completion_ids)\n",
        "right",
    )
    also = [f"{tmp_path}/mine.py:brief=0.25"]
    config = config_from_tables({"verify": {"name": name, "also": also}})
    prompt, texts = Prompt("1", "?", "4"), ["4", "5", "4!", ""]
    responses = [response(text) for text in texts]
    context = training_context(config, 0, [r.tokens.tolist() for r in responses])
    extra = score_extra_rewards([prompt], [responses], config, context).rewards_PG
    rewards = score(name, texts, [prompt] * 4).rewards
    np.testing.assert_array_equal(rewards, [1.0, 0.0, 1.0, np.nan])
    brief = [each["mine.py:brief"] for each in extra[0]]
    np.testing.assert_array_equal(brief, [-2.0, -2.0, np.nan, np.nan])
    (group,) = build_groups([(prompt, np.zeros(1, np.int32))], [responses], rewards, 1, extra)
    mixture = RewardMixture("sum", {"mine.py:brief": 0.25})
    # Sums 0.5, -0.5, 1.0 around their mean 1/3; the last has none.
    expected = [1 / 6, -5 / 6, 2 / 3, 0.0]
    np.testing.assert_allclose(mixture.advantages(group, "dr_grpo"), expected, atol=1e-12)
    # Alone: 1, 0, 1 around 2/3.
    alone = RewardMixture().advantages(group, "dr_grpo")
    np.testing.assert_allclose(alone, [1 / 3, -2 / 3, 1 / 3, 0.0], atol=1e-12)
    decoupled = RewardMixture("decoupled", {"mine.py:brief": 1.0}).advantages(group, "dr_grpo")
    np.testing.assert_allclose(decoupled, [1 / 6, -1 / 3, 1 / 6, 0.0], atol=1e-12)
