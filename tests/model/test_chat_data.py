"""Chat data reaches the model with its system prompt and turns, in every engine and template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from counterpoise.config.load import load_config
from counterpoise.credit.hints import hinted_prompts
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.run import prompt_table
from counterpoise.loop import train
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy, save_policy
from counterpoise.model.templates import (
    BOXED_REQUEST,
    check_chat_data,
    describe_template_omission,
    encode_prompt,
    prompt_text,
)
from counterpoise.run.encode_prompts import encode_prompts
from counterpoise.run.estimate import describe_task
from counterpoise.run.first_prompt import shorten_middle
from counterpoise.run.observer import RunObserver
from counterpoise.store.rollout_files import read_groups
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.types import Message, Prompt, Rollout, Row

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}<|end|>{% else %}"
    "<|{{ message['role'] }}|>{% endif %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TALK = Prompt(
    "1",
    "user: Ana has 3 pens.\n\nassistant: So?\n\nuser: How many?",
    "3",
    messages=(
        Message("system", "The pens are in the bag."),
        Message("user", "Ana has 3 pens."),
        Message("assistant", "So?"),
        Message("user", "How many?"),
    ),
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The embedded tokenizer with a template that has a place for a system prompt."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def bare() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    tokenizer.chat_template = None
    return tokenizer


def decode(tokenizer: Any, name: str, prompt: Prompt) -> str:
    return str(tokenizer.decode(encode_prompt(name, tokenizer, prompt)))


def test_the_system_prompt_and_all_turns_reach_the_tokens(tokenizer: Any) -> None:
    tokens = encode_prompt("chat", tokenizer, TALK)
    assert tokens[0] == tokenizer.convert_tokens_to_ids("<|end|>")
    rendered = (
        "<|end|>The pens are in the bag.<|user|>Ana has 3 pens.<|assistant|>So?<|end|>"
        "<|user|>How many?<|assistant|>"
    )
    assert tokens == tokenizer.encode(rendered, add_special_tokens=False)
    # A problem without messages is asked as it always was.
    assert (
        decode(tokenizer, "chat", Prompt("1", "How many?", "3")) == "<|user|>How many?<|assistant|>"
    )
    asked = decode(tokenizer, "chat-boxed", TALK)
    assert asked.endswith(f"<|user|>How many?\n{BOXED_REQUEST}<|assistant|>")
    assert asked.count(BOXED_REQUEST) == 1


def test_a_begun_response_is_continued(tokenizer: Any) -> None:
    begun = replace(TALK, messages=(*TALK.messages, Message("assistant", "The answer")))
    assert decode(tokenizer, "chat", begun).endswith("<|user|>How many?<|assistant|>The answer")
    assert decode(tokenizer, "chat-boxed", begun).endswith(
        f"{BOXED_REQUEST}<|assistant|>The answer"
    )
    assert prompt_text("boxed", begun).endswith("in \\boxed{}.\nThe answer")


def test_plain_templates_join_the_messages() -> None:
    before = "The pens are in the bag.\nAna has 3 pens.\nSo?\n"
    request = "Reason step by step and put the final answer in \\boxed{}.\n"
    assert prompt_text("boxed", TALK) == f"{before}How many?\n{request}"
    alone = Prompt("1", "How {role}?", "3", messages=(Message("user", "How {role}?"),))
    plain = replace(alone, messages=())
    for name in ("boxed", "qwen-math"):
        assert (
            prompt_text(name, alone) == prompt_text(name, plain) == prompt_text(name, plain.problem)
        )
    turns = [("system", "The pens are in the bag."), ("user", "Ana has 3 pens."),
             ("assistant", "So?"), ("user", "How many?")]  # fmt: skip
    chat_ml = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert prompt_text("qwen-math", TALK) == f"{chat_ml}<|im_start|>assistant\n"
    # Without a system prompt of the data, the template's own comes first.
    unguided = replace(TALK, messages=TALK.messages[1:])
    head = f"<|im_start|>system\n{BOXED_REQUEST}<|im_end|>\n<|im_start|>user\nAna has 3 pens."
    assert prompt_text("qwen-math", unguided).startswith(head)


def test_a_tokenizer_without_a_chat_template(bare: Any, tokenizer: Any) -> None:
    with pytest.raises(PoiseError) as fault:
        check_chat_data("auto", bare, "mine", [Prompt("0", "plain", "1"), TALK])
    assert str(fault.value) == (
        "the prompts are chat messages, and model 'mine' has no chat template: choose a chat "
        "model, or set model.template=boxed, which joins the messages to plain text"
    )
    check_chat_data("boxed", bare, "mine", [TALK])
    check_chat_data("auto", bare, "mine", [replace(TALK, messages=())])
    check_chat_data("auto", tokenizer, "mine", [TALK])


def test_a_template_that_drops_the_system_prompt_is_named(tokenizer: Any) -> None:
    embedded = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    warning = describe_template_omission("chat", embedded, "mine", [TALK])
    assert warning.startswith("WARNING: the chat template of model 'mine' leaves out the system")
    assert describe_template_omission("chat", tokenizer, "mine", [TALK]) == ""
    assert describe_template_omission("boxed", embedded, "mine", [TALK]) == ""


def test_hints_go_to_the_last_message_of_the_user(tokenizer: Any) -> None:
    policy = replace(load_policy(load_config("demo").model), tokenizer=tokenizer)
    tokens = np.array([1], np.int32)
    rollout = Rollout(TALK.id, TALK.problem, TALK.answer, "", 0.0, tokens, tokens,
                      np.zeros(1, np.float32), messages=TALK.messages)  # fmt: skip
    row = Row("1:1", 0.0, 1, rollout=rollout)
    (hinted,) = hinted_prompts(policy, [row])
    shown = tokenizer.decode(hinted)
    assert shown.startswith("<|end|>The pens are in the bag.<|user|>Ana has 3 pens.")
    assert shown.endswith("<|user|>How many?\nThe answer is 3.<|assistant|>")
    # A row that waits in a checkpoint keeps its conversation.
    assert rows_from_tensors(*rows_to_tensors([row]))[0].content.messages == TALK.messages


def test_verl_gets_the_conversation() -> None:
    config = load_config("demo", ["model.template=chat"])
    (row,) = prompt_table([TALK], config).to_pylist()
    assert row["prompt"] == [dict(message) for message in TALK.messages]
    (plain,) = prompt_table([TALK], load_config("demo", ["model.template=boxed"])).to_pylist()
    assert plain["prompt"] == [{"role": "user", "content": prompt_text("boxed", TALK)}]
    begun = replace(TALK, messages=(*TALK.messages, Message("assistant", "The")))
    with pytest.raises(PoiseError, match="problem '1' ends with the start of a response"):
        prompt_table([begun], config)


# -- a run on chat data ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_options(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> list[str]:
    """Options of a small run: a chat model of one's own, and a file of conversations."""
    folder = tmp_path_factory.mktemp("chat")
    policy = load_policy(load_config("demo").model)
    save_policy(replace(policy, tokenizer=tokenizer), folder / "model")
    records = [
        {"prompt": [{"role": "system", "content": "The pens are in the bag."},
                    {"role": "user", "content": f"Ana has {k} pens. How many?"}],
         "reward_model": {"ground_truth": k}}
        for k in range(12)
    ]  # fmt: skip
    records[5]["prompt"][1]["content"] *= 40
    (folder / "data.json").write_text(json.dumps(records))
    return [
        "task.name=files", f"task.path={folder}/data.json", "task.heldout=2",
        f"model.name={folder}/model", "model.device=cpu", "loop.iterations=2", "sample.prompts=2",
        "sample.group_size=2", "sample.max_new_tokens=4", "sample.max_prompt_tokens=60",
        "batch.steps=1", "balance.tau=0", "evaluate.prompts=2", "evaluate.samples=1",
    ]  # fmt: skip


class Heard(RunObserver):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def notify(self, message: str) -> None:
        self.lines.append(message)


def test_a_dry_run_shows_the_first_prompt_as_the_model_reads_it(run_options: list[str]) -> None:
    lines = describe_task(load_config("demo", run_options))
    assert lines[0].startswith("task           data: 9 problems to train on; 2 held out")
    assert lines[1:3] == [
        "columns        reading prompts from 'prompt' (chat), answers from "
        "'reward_model.ground_truth', ids from row numbers",
        "left out       1 longer than sample.max_prompt_tokens=60",
    ]
    prompt = "<|end|>The pens are in the bag.<|user|>Ana has 0 pens. How many?<|assistant|>"
    tokenizer = AutoTokenizer.from_pretrained(load_config("demo", run_options).model.name)
    count = len(tokenizer.encode(prompt, add_special_tokens=False))
    assert lines[3:] == [
        f"first prompt   {count} tokens, as the model reads it:",
        f"  | {prompt}",
        "not checked    the model's weights",
    ]
    with pytest.raises(PoiseError, match=r"1 prompts are longer than .*, and 9 are left, too few"):
        describe_task(load_config("demo", [*run_options, "sample.prompts=10"]))


def test_long_prompts_are_shortened_in_the_middle() -> None:
    assert shorten_middle("abcdefghij", 10) == "abcdefghij"
    assert shorten_middle("abcdefghij", 6) == "abc [... 4 characters ...] hij"


def test_a_run_trains_on_chat_data_and_resumes(run_options: list[str], tmp_path: Path) -> None:
    config, heard = load_config("demo", run_options), Heard()
    folder = train(config, tmp_path / "run", observer=heard)
    assert heard.lines[0].startswith("data: reading prompts from 'prompt' (chat), answers from")
    assert "1 of 10 prompts are longer than sample.max_prompt_tokens=60: left out" in heard.lines
    tokenizer = AutoTokenizer.from_pretrained(config.model.name)
    for rollout in (r for group in read_groups(folder.path) for r in group.rollouts):
        assert rollout.messages[0] == Message("system", "The pens are in the bag.")
        assert rollout.prompt_tokens.tolist() == encode_prompt("chat", tokenizer, rollout.problem)
    longer = load_config("demo", [*run_options, "loop.iterations=3"])
    train(longer, tmp_path / "run", resume=True)
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2, 3]


def test_a_run_on_a_model_without_a_chat_template(bare: Any) -> None:
    policy = replace(load_policy(load_config("demo").model), tokenizer=bare, template="boxed")
    with pytest.raises(PoiseError, match=r"has no chat template: .*model\.template=boxed"):
        encode_prompts(policy, [TALK] * 16, load_config("demo"), Heard())
    config = load_config("demo", ["model.template=boxed"])
    (_, tokens), *_ = encode_prompts(policy, [TALK] * 16, config, Heard())
    assert tokens.tolist() == bare.encode(prompt_text("boxed", TALK))
