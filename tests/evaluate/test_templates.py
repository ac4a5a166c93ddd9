"""Templates: the very text, the tokens that end it, and tokenizers that cannot write one."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
from transformers import AutoTokenizer

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.evaluate.templates import TEMPLATES, encode, end_tokens, resolve
from counterpoise.policy.load import EMBEDDED, load_policy

PROBLEM = "What is 2 + {x} when x = 3? Put it in \\boxed{}."


@pytest.fixture(scope="module")
def embedded() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED)


@pytest.fixture(scope="module")
def chat_ml() -> Any:
    """The embedded tokenizer, taught the two marks of ChatML."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


@pytest.mark.parametrize("name", ["chat", "boxed"])
def test_they_ask_as_training_does(name: str) -> None:
    policy = load_policy(ModelConfig(device="cpu", template=name))
    problem = "Ana has 3 pens and buys 4. How many pens are there in the end?"
    assert encode(name, policy.tokenizer, problem).tolist() == policy.encode(problem).tolist()


def test_auto_is_what_a_tokenizer_has(embedded: Any) -> None:
    assert resolve("auto", embedded, "embedded") == "chat"
    assert resolve("auto", tiny.Words(), "tiny") == "boxed"


def test_the_text_of_each(embedded: Any, chat_ml: Any) -> None:
    boxed = embedded.decode(encode("boxed", embedded, PROBLEM))
    assert boxed == (PROBLEM + "\nReason step by step and put the final answer in \\boxed{}.\n")
    assert chat_ml.decode(encode("qwen-math", chat_ml, PROBLEM)) == (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within "
        "\\boxed{}.<|im_end|>\n<|im_start|>user\n" + PROBLEM + "<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    asked = embedded.decode(encode("chat-boxed", embedded, PROBLEM))
    assert PROBLEM + "\nPlease reason step by step" in asked
    assert set(TEMPLATES) == {"qwen-math", "chat", "chat-boxed", "boxed"}


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
        resolve(name, embedded, "m")


def test_no_chat_template() -> None:
    with pytest.raises(PoiseError, match="no chat template: give --template boxed"):
        resolve("chat", tiny.Words(), "m")
