r"""A process that compares answers: JSON lines in, JSON lines out, nothing shared, no pickle.

    python -m counterpoise.verify.worker counterpoise.verify.math.equivalence:equivalent 5.0
    -> {"ready": true}
    <- ["\\sqrt{12}", "2\\sqrt{3}"]
    -> true

It ends when its input does, so it dies with its parent. If the parent is killed while a comparison
hangs, the alarm ends it: the signal is left to the kernel, which needs no help from a busy
interpreter. Imports no torch.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys

MEMORY_LIMIT_BYTES = 4 << 30
WARM_UP_PAIR = ("\\sqrt{12}", "2\\sqrt{3}")  # builds parser tables, outside anyone's time limit


def main(compare_name: str, timeout_seconds: float) -> None:
    """Answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not look like a reply
    for stop in (signal.SIGINT, signal.SIGTERM):  # the parent's to handle: it may finish first
        signal.signal(stop, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if sys.platform == "linux":  # elsewhere the limit is not enforced, or not allowed
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
        signal.setitimer(signal.ITIMER_REAL, 2 * timeout_seconds + 1)
        equal = bool(compare(answer, gold))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(equal), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
