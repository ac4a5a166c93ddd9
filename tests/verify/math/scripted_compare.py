"""A comparison whose answer is its script. Runs in the worker in place of Math-Verify."""

import os
import time


def compare(answer: str, gold: str) -> bool:
    if answer.endswith("hang"):
        time.sleep(3600)
    while answer.endswith("spin"):
        pass
    if answer.endswith("die"):
        os._exit(3)
    if answer.endswith("raise"):
        raise RuntimeError(answer)
    if answer.endswith("print"):
        print("noise on the standard output")
    if answer.endswith("pid"):
        return str(os.getpid()) == gold
    if answer.endswith("modules"):
        import sys

        return gold in sys.modules
    return answer == gold
