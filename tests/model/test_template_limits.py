"""Chat templates that never end, eat memory or are stopped by the sandbox: one line, and soon."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from counterpoise.errors import PoiseError
from counterpoise.model import template_limits
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.model.templates import encode_prompt, encode_reply, resolve_template

# 10^15 rounds: jinja2's sandbox allows each of these ranges.
LOOPS = "{% for i in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3
GENERATION = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)


def test_a_template_that_never_ends_is_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "CPU_SECONDS", 1)
    for template in (
        LOOPS,
        GENERATION + LOOPS,
        "{% if messages | length > 2 %}" + LOOPS + "{% endif %}",
    ):
        tokenizer.chat_template = template
        with pytest.raises(PoiseError, match=r"of model 'm' takes more than 1 s .*template=boxed"):
            resolve_template("auto", tokenizer, "m")
    assert resolve_template("boxed", tokenizer, "m") == "boxed"  # the remedy


def test_a_template_that_eats_memory_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ 'x' * 4000000000 }}"
    with pytest.raises(PoiseError, match="takes more than 1 GiB of memory"):
        resolve_template("chat", tokenizer, "m")


def test_a_worker_that_fails_is_not_a_template_that_eats_memory(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.chat_template = "{{ messages[0].content }} of its own"
    monkeypatch.setattr(template_limits.sys, "executable", "/bin/false")
    with pytest.raises(PoiseError, match=r"of model 'm' cannot be tried \(exit code 1\)"):
        resolve_template("chat", tokenizer, "m")


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' .* is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' .* is unsafe"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_one_line(
    tokenizer: Any, template: str, fault: str
) -> None:
    tokenizer.chat_template = template
    name = resolve_template("auto", tokenizer, "m")
    line = f"^the model's chat template cannot be rendered: .*{fault}.*; set model.template=boxed$"
    with pytest.raises(PoiseError, match=line):
        encode_prompt(name, tokenizer, "1 + 1 = ?")
    with pytest.raises(PoiseError, match=line):
        encode_reply(name, tokenizer, "wrong", ())


def test_several_templates_without_a_default_are_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = {"rag": "{{ messages }}", "tool_use": "{{ messages }}"}
    with pytest.raises(PoiseError, match=r"model 'm': .*set model\.template=boxed"):
        resolve_template("auto", tokenizer, "m")


def test_what_transformers_gives_templates_is_known_to_the_check(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{{ messages | tojson(indent=2) }}" + GENERATION
        + "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}"
    )  # fmt: skip
    assert resolve_template("auto", tokenizer, "m") == "chat"
    assert encode_prompt("chat", tokenizer, "1 + 1 = ?")
