"""Render a chat template under time and memory limits, in a process of its own.

`template_limits.py` starts it as a file, so that it imports jinja2 and nothing heavier. It reads
{"template", "conversations", "variables", "seconds", "bytes"} as JSON from stdin. It exits with 0
if every conversation was rendered, or if jinja2 refused one: the tokenizer renders the template
next and reports what is wrong. The system ends a process that exceeds a limit.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT_OF_MEMORY = 3  # an exit code, which template_limits.py knows


class GenerationBlocks(Extension):
    """{% generation %} marks what a model says; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads it from the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment() -> ImmutableSandboxedEnvironment:
    """The parts of the environment of transformers that a template's rendering time depends on."""

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def render_conversations(request: dict[str, Any]) -> None:
    template = make_environment().from_string(request["template"])
    for messages in request["conversations"]:
        template.render(messages=messages, add_generation_prompt=True, **request["variables"])


def main() -> int:
    request = json.load(sys.stdin)
    cpu_seconds, memory_bytes = request["seconds"], request["bytes"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        render_conversations(request)
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception:  # a template may raise anything; the tokenizer's own rendering reports it
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
