"""What newcomers bring in their first ten minutes trains, or is refused in one line with a remedy.

Chat messages with a system prompt, without id and answer; reward functions written for TRL and
verl; a GPT-2 and a Gemma model; LoRA, a KL and a cosine schedule. Every run is the command, in this
process. TRL's own `accuracy_reward` is in hosts/trl/test_trl_rewards.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.torch import load_file

from counterpoise.cli import main
from counterpoise.lab.speed.families import make_policy
from counterpoise.model.load import save_policy
from counterpoise.store.folder import RunFolder

# Templates as published: GPT-2 has none, Gemma 2's refuses a system prompt, Gemma 3's puts it
# before the first message of the user.
GEMMA_TURNS = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GEMMA2_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + GEMMA_TURNS
)
GEMMA3_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{{ first }} {% endif %}" + GEMMA_TURNS
)
REWARDS = '''
def accuracy_reward(
    completions: list[list[dict[str, str]]], solution: list[str], log_extra=None, **kwargs
) -> list[float | None]:
    """The signature of TRL's accuracy_reward."""
    contents = [completion[0]["content"] for completion in completions]
    if log_extra:
        log_extra("solution", list(solution))
    return [float(gold in text) for text, gold in zip(contents, solution, strict=True)]


def digits_reward(completions, **kwargs):
    """TRL's signature; asks for no answer, and prompts are messages."""
    return [float(any(map(str.isdigit, completion[0]["content"]))) for completion in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """The signature of verl's custom_reward_function."""
    assert data_source == "openai/gsm8k" and extra_info["split"] == "train"
    return float(ground_truth in solution_str)
'''
SMALL = [
    "model.device=cpu", "loop.iterations=2", "task.name=files", "task.heldout=2",
    "sample.prompts=4", "sample.group_size=4", "sample.max_new_tokens=8", "balance.tau=0",
    "batch.steps=1", "evaluate.prompts=2", "evaluate.samples=1", "loop.checkpoint_every=2",
    "store.report=false",
]  # fmt: skip
GOLD = "e"
CHAT_DATA = ["task.path=chat.jsonl", "verify.name=mine.py:digits_reward"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a newcomer: three models, chat data, verl's parquet and reward functions."""
    folder = tmp_path_factory.mktemp("newcomer")
    templates = {"gpt2": None, "gemma2": GEMMA2_TEMPLATE, "gemma3_text": GEMMA3_TEMPLATE}
    for family, template in templates.items():
        policy = make_policy(family)
        policy.tokenizer.chat_template = template
        save_policy(policy, folder / family)
    chats = [
        {
            "messages": [
                {"role": "system", "content": "The answer is short."},
                {"role": "user", "content": f"Ana has {n} pens and {n} more. How many has she?"},
            ]
        }
        for n in range(12)
    ]
    write_lines(folder / "chat.jsonl", chats)
    # Random models write single letters often enough to be right sometimes.
    write_lines(folder / "solved.jsonl", [{**chat, "solution": GOLD} for chat in chats])
    verl_rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": chat["messages"][1:],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": GOLD},
            "extra_info": {"split": "train", "index": number},
        }
        for number, chat in enumerate(chats)
    ]
    parquet.write_table(pa.Table.from_pylist(verl_rows), folder / "train.parquet")
    (folder / "mine.py").write_text(REWARDS, encoding="utf-8")
    return folder


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def poise(world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run `poise train demo` in the newcomer's folder: (exit code, output, errors)."""

    def train(out: Path, *sets: str) -> tuple[int, str, str]:
        options = [argument for name in (*SMALL, *sets) for argument in ("--set", name)]
        monkeypatch.chdir(world)
        monkeypatch.setattr(sys, "argv", ["poise", "train", "demo", "--out", str(out), *options])
        exit_code = 0
        try:
            main()
        except SystemExit as stopped:
            exit_code = int(stopped.code or 0)
        shown = capfd.readouterr()
        return exit_code, shown.out, shown.err

    return train


WORKING: dict[str, tuple[list[str], list[str]]] = {  # options, and what the terminal says
    "chat messages on Gemma 3": (
        ["model.name=gemma3_text", *CHAT_DATA],
        [
            "reward mine.py:digits_reward: TRL's signature, called once for each batch",
            "chat: reading prompts from 'messages' (chat), no answers, ids from row numbers",
        ],
    ),
    "TRL's accuracy_reward": (
        ["model.name=gemma3_text", "task.path=solved.jsonl", "verify.name=mine.py:accuracy_reward"],
        ["reward mine.py:accuracy_reward: TRL's signature, called once for each batch"],
    ),
    "verl's compute_score": (
        ["model.name=gemma2", "task.path=train.parquet", "verify.name=mine.py:compute_score"],
        [
            "reward mine.py:compute_score: verl's compute_score, called once for each response",
            "gemma2: transformers' own forward pass (the general path), because ",
        ],
    ),
    "GPT-2, which has no chat template": (
        ["model.name=gpt2", "model.template=boxed", *CHAT_DATA],
        ["gpt2: transformers' own forward pass (the general path), because "],
    ),
    "LoRA, KL and cosine decay on GPT-2": (
        [
            "model.name=gpt2", "model.template=boxed", *CHAT_DATA, "model.lora_rank=4",
            "update.kl=0.01", "update.schedule=cosine", "update.lr=1e-3", "update.warmup_steps=0",
        ],
        ["LoRA: the output layer is frozen. The pushes on a token are a proxy, computed as "],
    ),
    "LoRA, KL and cosine decay on Gemma 3": (
        [
            "model.name=gemma3_text", *CHAT_DATA, "model.lora_rank=4",
            "update.kl=0.01", "update.schedule=cosine", "update.lr=1e-3", "update.warmup_steps=0",
        ],
        ["LoRA: the output layer is frozen. The pushes on a token are a proxy, computed as "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
def test_it_trains(name: str, poise: Any, tmp_path: Path) -> None:
    sets, expected_lines = WORKING[name]
    exit_code, shown, errors = poise(tmp_path / "run", *sets)
    assert (exit_code, errors) == (0, "")
    for expected in expected_lines:
        assert any(line.startswith(expected) for line in shown.splitlines()), expected
    assert "WARNING" not in shown
    run = RunFolder.open(tmp_path / "run")
    metrics = run.read("metrics")
    assert [(line["iteration"], line["rollouts"], line["steps"]) for line in metrics] == [
        (1, 16, 1), (2, 16, 1),
    ]  # fmt: skip
    assert all(np.isfinite(line["reward"]) and np.isfinite(line["loss"]) for line in metrics)
    assert len(run.read("evaluations")) == 2
    if "LoRA" not in name:
        assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
        return
    adapter = load_file(tmp_path / "run" / "model" / "adapter_model.safetensors")
    assert any(weight.any() for key, weight in adapter.items() if "lora_B" in key)
    assert metrics[0]["kl"] == 0  # the policy is its own reference before the first step
    assert metrics[1]["kl"] > 0
    # lr (1 + cos(pi k / 2)) / 2 at the steps k = 0 and 1 of two
    assert [line["lr"] for line in metrics] == pytest.approx([1e-3, 5e-4])


def test_a_system_prompt_reaches_the_model(poise: Any, tmp_path: Path) -> None:
    poise(tmp_path / "run", "model.name=gemma3_text", *CHAT_DATA, "loop.iterations=1")
    rollouts = RunFolder.open(tmp_path / "run").read_rollouts(1)
    policy = make_policy("gemma3_text")
    for rollout in rollouts:
        text = policy.tokenizer.decode(rollout["prompt_tokens"])
        assert text.replace(" ", "").startswith("Theanswerisshort.<|user|>Anahas")


REFUSED: dict[str, tuple[list[str], str]] = {  # options, and the line
    "no answers for the default verifier": (
        ["model.name=gemma3_text", "task.path=chat.jsonl"],
        "or verify.name to a reward that takes no answers",
    ),
    "no ground truth for compute_score": (
        ["model.name=gemma3_text", "task.path=chat.jsonl", "verify.name=mine.py:compute_score"],
        "mine.py:compute_score needs 'ground_truth', and no problem has ",
    ),
    "no solution for accuracy_reward": (
        ["model.name=gemma3_text", "task.path=chat.jsonl", "verify.name=mine.py:accuracy_reward"],
        "add the column, set task.answer_field, or give the parameter a default, as in solution=",
    ),
    "a template that refuses system prompts": (
        ["model.name=gemma2", *CHAT_DATA],
        "model.template=boxed",
    ),
    "messages for a model without a chat template": (
        ["model.name=gpt2", *CHAT_DATA],
        "model.template=boxed",
    ),
    "the fast path for GPT-2": (
        ["model.name=gpt2", "model.template=boxed", *CHAT_DATA, "model.path=fast"],
        "set model.path=auto",
    ),
    "LoRA on the output layer": (
        [
            "model.name=gpt2", "model.template=boxed", *CHAT_DATA, "model.lora_rank=4",
            "model.lora_targets=['lm_head']",
        ],
        "leave it out of model.lora_targets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_says_what_to_do(
    name: str, poise: Any, tmp_path: Path
) -> None:
    sets, remedy = REFUSED[name]
    exit_code, _, errors = poise(tmp_path / "run", *sets)
    assert exit_code == 2
    assert len(errors.splitlines()) == 1, errors
    assert remedy in errors
    assert not (tmp_path / "run").exists()
