"""The process of the user's reward functions; reward_process.py describes what it reads and writes.

It imports no torch unless a function does. What functions print goes to stderr. It ends when its
owner does, even while a function hangs: a thread waits for the end of the input.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterpoise import plugins
from counterpoise.errors import PoiseError
from counterpoise.store.plain_values import to_plain_value
from counterpoise.types import Message, Prompt
from counterpoise.verify.plugin_reward import bind_verifier
from counterpoise.verify.scores import ScoringContext, TrainerState
from counterpoise.verify.worker_process import open_replies


def main() -> None:
    """Answer requests until the input ends."""
    replies = open_replies()

    def send(reply: Mapping[str, Any]) -> None:
        print(json.dumps(reply), file=replies, flush=True)

    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    send({"ready": True})
    while True:
        request = json.loads(requests.get())
        try:
            send(_score(request, send))
        except PoiseError as fault:
            send({"error": str(fault)})


def _read_requests(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the owner has ended


def _score(request: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    function = plugins.load_plugin(request["name"])

    def call_each(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        if function.is_async:  # all at once, so there is no progress to report
            return function.call_each(calls)
        results = []
        for call in calls:
            results.append(function.call(**call))
            send({"done": 1})
        return results

    verifier = bind_verifier(request["name"], call_each)()
    prompts = [_make_prompt(record) for record in request["prompts"]]
    state = request["trainer_state"]
    context = ScoringContext(
        request["token_ids"],
        None if state is None else TrainerState(*state),
        request["data_source"],
    )
    scores = verifier.score_in_context(
        request["responses"],
        [prompts[prompt_index] for prompt_index in request["prompt_of_response"]],
        context,
    )
    return {
        "rewards": scores.rewards,
        "graded": scores.graded,
        "logged": [
            {name: to_plain_value(value) for name, value in logged.items()}
            for logged in scores.logged
        ],
        "logged_metrics": scores.logged_metrics,
    }


def _make_prompt(record: Mapping[str, Any]) -> Prompt:
    messages = tuple(Message(**message) for message in record["messages"])
    return Prompt(**{**record, "messages": messages})


if __name__ == "__main__":
    main()
