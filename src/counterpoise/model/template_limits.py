"""Try a model's chat template under time and memory limits before using it.

A chat template is a program that came with the model. transformers renders it in jinja2's sandbox,
which forbids what is unsafe and cuts a single `range` at 100,000, but not loops inside loops, nor
texts multiplied to gigabytes: such a template would hang or kill the run. So every template first
renders short conversations in a process with CPU_SECONDS of computing time and MEMORY_BYTES of
memory (`template_worker.py`; about 0.2 s once for each template). Problems have about the length of
these conversations, so a template that stays within the limits here also does so in the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError

CPU_SECONDS = 5
WALL_CLOCK_SECONDS = 60.0  # generous, because the machine may be busy
MEMORY_BYTES = 2**30
OUT_OF_MEMORY = 3  # the worker's exit code; its file is not imported here, it needs jinja2
PROBLEM = "How many pens does Ana have? " * 40
CONVERSATIONS = [
    [{"role": "user", "content": PROBLEM}],
    [{"role": "system", "content": PROBLEM}, {"role": "user", "content": PROBLEM}],
    [
        {"role": "user", "content": PROBLEM},
        {"role": "assistant", "content": PROBLEM},
        {"role": "user", "content": PROBLEM},
    ],
]


def check_template_finishes(tokenizer: Any, model: str, option_prefix: str) -> None:
    """Refuse a chat template that does not finish a short conversation within the limits.

    `option_prefix` begins the advice of the error: "set model.template=" or "give --template ".
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as fault:  # several templates, and none of them is the default
        raise PoiseError(f"model '{model}': {fault}; {option_prefix}boxed") from fault
    variables = {
        variable_name: str(token) for variable_name, token in tokenizer.special_tokens_map.items()
    }
    if limit_phrase := _exceeded_limit(template, json.dumps(variables, sort_keys=True)):
        raise PoiseError(
            f"the chat template of model '{model}' {limit_phrase}: {option_prefix}boxed, or "
            "repair the template"
        )


@cache
def _exceeded_limit(template: str, variables: str) -> str:
    """What is wrong with the template, as the end of a sentence; "" if it keeps the limits."""
    request = {
        "template": template,
        "conversations": CONVERSATIONS,
        "variables": json.loads(variables),
        "seconds": CPU_SECONDS,
        "bytes": MEMORY_BYTES,
    }
    worker_file = Path(__file__).with_name("template_worker.py")
    try:
        completed = subprocess.run(
            [sys.executable, "-P", str(worker_file)],  # -P: do not import from the worker's folder
            input=json.dumps(request).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=WALL_CLOCK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"takes more than {WALL_CLOCK_SECONDS:.0f} s for a short conversation"
    if completed.returncode == 0:
        return ""
    if completed.returncode < 0:  # by a signal: SIGXCPU or SIGKILL
        return f"takes more than {CPU_SECONDS} s of computing for a short conversation"
    if completed.returncode == OUT_OF_MEMORY:
        return f"takes more than {MEMORY_BYTES / 2**30:.0f} GiB of memory for a short conversation"
    # The last line of a traceback says what went wrong, such as a missing jinja2.
    error_lines = completed.stderr.decode(errors="replace").splitlines()
    reason = error_lines[-1] if error_lines else f"exit code {completed.returncode}"
    return f"cannot be tried ({reason})"
