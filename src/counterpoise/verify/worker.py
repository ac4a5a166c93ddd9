r"""A worker process that compares answers: JSON lines in, JSON lines out.

    python -m counterpoise.verify.worker counterpoise.verify.math.equivalence:equivalent 5.0
    -> {"ready": true}
    <- ["\\sqrt{12}", "2\\sqrt{3}"]
    -> true

It shares nothing with its parent, uses no pickle and imports no torch. It ends when its input
does, so it never outlives its parent. If the parent is killed while a comparison hangs, SIGALRM
ends it: with the default action the kernel kills the process without running Python.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys

MEMORY_LIMIT_BYTES = 4 << 30
WAITING_FACTOR = 4  # as in worker_pool.py, which this light process does not import
# Compared once before the worker reports that it is ready: building the parser tables takes a
# second and must not count against the time limit of the first real pair.
WARM_UP_PAIR = ("\\sqrt{12}", "2\\sqrt{3}")


def main(compare_name: str, timeout_seconds: float) -> None:
    """Answer requests until the input ends."""
    # Replies get their own descriptor and stdout is redirected to stderr, so that what a library
    # prints is never taken for a reply.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The parent decides what an interrupt means: it may want this comparison to finish first.
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if sys.platform == "linux":  # other systems ignore the limit or refuse to set it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    module, _, function = compare_name.partition(":")
    try:
        compare = getattr(importlib.import_module(module), function)
    except ImportError as error:
        print(json.dumps({"failed": str(error)}), file=replies, flush=True)
        return
    compare(*WARM_UP_PAIR)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        # The parent enforces the real limit; this alarm only fires when the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * WAITING_FACTOR * timeout_seconds + 1)
        equal = bool(compare(answer, gold))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(equal), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
