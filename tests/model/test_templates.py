"""Templates: the very text, the tokens that end it, and tokenizers that cannot write one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import AutoTokenizer

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy, wrap_model
from counterpoise.model.templates import (
    TEMPLATES,
    encode_prompt,
    encode_prompts,
    encode_reply,
    end_tokens,
    resolve_template,
)

PROBLEM = "What is 2 + {x} when x = 3? Put it in \\boxed{}."
WORDS = "Ana has 3 pens and buys 4. How many pens are there in the end?"


@pytest.fixture(scope="module")
def embedded() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)


@pytest.fixture(scope="module")
def chat_ml() -> Any:
    """The embedded tokenizer, taught the two marks of ChatML."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


def test_chat_and_boxed_are_the_tokens_they_always_were(embedded: Any) -> None:
    """Written out: what runs with model.template=chat and boxed were trained on."""
    text = embedded.apply_chat_template(
        [{"role": "user", "content": WORDS}], tokenize=False, add_generation_prompt=True
    )
    assert encode_prompt("chat", embedded, WORDS) == embedded.encode(text, add_special_tokens=False)
    asked = f"{WORDS}\nReason step by step and put the final answer in \\boxed{{}}.\n"
    assert encode_prompt("boxed", embedded, WORDS) == embedded.encode(asked)
    for name in ("chat", "boxed"):
        singly = [encode_prompt(name, embedded, problem) for problem in (WORDS, "2 + 3")]
        assert encode_prompts(name, embedded, [WORDS, "2 + 3"]) == singly


@pytest.mark.parametrize("name", ["auto", "chat", "chat-boxed", "boxed"])
def test_a_policy_asks_by_its_run_file(embedded: Any, name: str) -> None:
    policy = load_policy(ModelConfig(device="cpu", template=name))
    assert policy.template == ("chat" if name == "auto" else name)
    assert policy.encode(WORDS).tolist() == encode_prompt(policy.template, embedded, WORDS)
    assert policy.end_tokens == load_policy(ModelConfig(device="cpu")).end_tokens


def test_a_policy_ends_where_its_template_ends(chat_ml: Any) -> None:
    policy = load_policy(ModelConfig(device="cpu"))
    policy.model.resize_token_embeddings(len(chat_ml))
    asked = wrap_model("m", policy.model, chat_ml, "qwen-math")
    (added,) = chat_ml.encode("<|im_end|>", add_special_tokens=False)
    assert asked.end_tokens == tuple(sorted({*policy.end_tokens, added}))
    assert asked.encode(WORDS).tolist() == encode_prompt("qwen-math", chat_ml, WORDS)
    with pytest.raises(PoiseError, match=r"<.im_start.>.*: set model\.template=chat$"):
        load_policy(ModelConfig(device="cpu", template="qwen-math"))


def test_run_files_know_the_same_names(tmp_path: Path) -> None:
    for name in ("auto", *TEMPLATES):
        assert load_config("demo", [f"model.template={name}"]).model.template == name
    with pytest.raises(PoiseError, match="unknown value 'chat-box': did you mean 'chat-boxed'"):
        load_config("demo", ["model.template=chat-box"])
    assert RunConfig().model.template == "auto"


def test_auto_is_what_a_tokenizer_has(embedded: Any) -> None:
    assert resolve_template("auto", embedded, "embedded") == "chat"
    assert resolve_template("auto", tiny.Words(), "tiny") == "boxed"


def test_the_text_of_each(embedded: Any, chat_ml: Any) -> None:
    boxed = embedded.decode(encode_prompt("boxed", embedded, PROBLEM))
    assert boxed == (PROBLEM + "\nReason step by step and put the final answer in \\boxed{}.\n")
    assert chat_ml.decode(encode_prompt("qwen-math", chat_ml, PROBLEM)) == (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within "
        "\\boxed{}.<|im_end|>\n<|im_start|>user\n" + PROBLEM + "<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    asked = embedded.decode(encode_prompt("chat-boxed", embedded, PROBLEM))
    assert PROBLEM + "\nPlease reason step by step" in asked
    assert set(TEMPLATES) == {"qwen-math", "chat", "chat-boxed", "boxed"}


def test_a_second_turn(embedded: Any, chat_ml: Any) -> None:
    ends = load_policy(ModelConfig(device="cpu")).end_tokens
    assert embedded.decode(encode_reply("boxed", embedded, "again", ends)) == "\nagain\n"
    assert chat_ml.decode(encode_reply("qwen-math", chat_ml, "again", ends)) == (
        "\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n"
    )
    plain = encode_reply("chat", embedded, "again", ends)
    assert encode_reply("chat-boxed", embedded, "again", ends) == plain  # a box is asked for once
    assert plain[0] not in ends


def test_a_template_may_end_responses(chat_ml: Any) -> None:
    (added,) = chat_ml.encode("<|im_end|>", add_special_tokens=False)
    assert end_tokens("qwen-math", chat_ml, (3,)) == tuple(sorted({3, added}))
    assert end_tokens("chat", chat_ml, (3,)) == (3,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "qwen-math",
            "needs the token <.im_start.>, which 'm' does not have: give --template chat",
        ),
        ("chatty", "unknown template 'chatty': did you mean 'chat'"),
    ],
)
def test_what_a_tokenizer_cannot_write(embedded: Any, name: str, message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        resolve_template(name, embedded, "m", "give --template ")


def test_no_chat_template() -> None:
    with pytest.raises(PoiseError, match=r"'m' has no chat template: set model\.template=boxed"):
        resolve_template("chat", tiny.Words(), "m")
