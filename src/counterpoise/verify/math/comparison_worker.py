r"""A worker process that compares answers: JSON lines in, JSON lines out.

    python -m counterpoise.verify.math.comparison_worker \
        counterpoise.verify.math.equivalence:equivalent 5.0

    the owner                               the worker
                                        <-  {"ready": true}   once, when it has started
    ["\\sqrt{12}", "2\\sqrt{3}"]        ->
                                        <-  true

It shares nothing with its owner (comparison_pool.py), uses no pickle and imports no torch. It ends
when its input does, so it never outlives its owner. If the owner is killed while a comparison
hangs, SIGALRM ends it: with the default action the kernel kills the process without running Python.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys

from counterpoise.verify.worker_process import WALL_SECONDS_PER_CPU_SECOND, open_replies

MEMORY_LIMIT_BYTES = 4 << 30
# Compared once before the worker reports that it is ready: building the parser tables takes a
# second and must not count against the time limit of the first real pair.
WARM_UP_PAIR = ("\\sqrt{12}", "2\\sqrt{3}")


def main(compare_name: str, timeout_seconds: float) -> None:
    """Answer requests until the input ends."""
    replies = open_replies()
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
        given, reference = json.loads(line)
        # The owner enforces the real limit; this alarm only fires when the owner is gone.
        alarm_seconds = 2 * WALL_SECONDS_PER_CPU_SECOND * timeout_seconds + 1
        signal.setitimer(signal.ITIMER_REAL, alarm_seconds)
        equal = bool(compare(given, reference))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(equal), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
