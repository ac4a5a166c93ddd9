"""Run a program and its checks in a locked process; `sandbox.py` starts it and reads its reply.

    the owner (sandbox.py)                               this process
    {"program", "checks", "folder", "layers",        ->
     "cpu_seconds", "memory_bytes"}
                                                     <-  [reply of each check]

Both messages are one line of JSON. A check is ["value", EXPRESSION] or ["run", STATEMENTS], and its
reply {"value": V}, {"ran": true} or {"error": "ValueError"}. Where checks.py can separate the
expected value from a check, only the rest is sent: the owner compares, so that a program can
neither read the value nor claim to be right. What the program prints is discarded. Before the
process is locked it runs only this file and kernel_protections.py, never the program.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from counterpoise.verify.code.kernel_protections import (
    MAX_DESCRIPTORS,
    end_with_owner,
    protect,
)

MAX_FILE_BYTES = 8 << 20
# Longer integers are sent in hexadecimal digits: Python refuses to read or write more than 4,300
# decimal digits, some 14,000 bits.
MAX_DECIMAL_BITS = 10_000


def main() -> None:
    """Lock the process, run the program, reply."""
    job = json.loads(sys.stdin.readline())
    reply_descriptor = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    end_with_owner()
    set_limits(job["cpu_seconds"], job["memory_bytes"])
    os.chdir(job["folder"])
    protect(job["folder"], job["layers"])
    replies = run_checks(job["program"], job["checks"])
    os.write(reply_descriptor, json.dumps(replies).encode() + b"\n")
    # Not sys.exit: threads, exit functions and finalizers of the program are not waited for.
    os._exit(0)


def set_limits(cpu_seconds: int, memory_bytes: int) -> None:
    """CPU time, memory, files; no core dump. They cannot be raised again."""
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    if sys.platform == "linux":  # other systems ignore the limit or refuse to set it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def run_checks(program: str, checks: list[list[str]]) -> list[dict[str, Any]]:
    """The replies of the checks, in order; all the same error if the program itself fails."""
    # A `if __name__ == "__main__"` block reads input or prints: it is not what is tested.
    names: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(program, "solution.py", "exec"), names)
    except BaseException as fault:
        return [{"error": type(fault).__name__} for _ in checks]
    return [run_check(kind, text, names) for kind, text in checks]


def run_check(kind: str, text: str, names: dict[str, Any]) -> dict[str, Any]:
    try:
        if kind == "value":
            return {"value": to_plain(eval(compile(text, "tests.py", "eval"), names))}
        exec(compile(text, "tests.py", "exec"), names)
        return {"ran": True}
    except BaseException as fault:  # SystemExit too: ending early is not passing
        return {"error": type(fault).__name__}


def to_plain(value: Any) -> Any:
    """A value as JSON that keeps its type; an error for anything that is not plain data.

    Example:
        >>> to_plain({"a": (1, 2)})
        {'dict': [['a', {'tuple': [1, 2]}]]}
    """
    if isinstance(value, int) and value.bit_length() > MAX_DECIMAL_BITS:
        return {"int": hex(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    for kind in (list, tuple):
        if isinstance(value, kind):
            return {kind.__name__: [to_plain(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((to_plain(item) for item in value), key=json.dumps)}
    if isinstance(value, dict):
        pairs = [[to_plain(key), to_plain(item)] for key, item in value.items()]
        return {"dict": sorted(pairs, key=json.dumps)}
    raise TypeError(f"a {type(value).__name__} is not plain data")


if __name__ == "__main__":
    main()
