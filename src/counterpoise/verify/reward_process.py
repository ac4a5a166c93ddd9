"""Run the user's reward functions in a process of their own, with a time limit.

    the owner                                      counterpoise.verify.reward_worker
                                                 <-  {"ready": true}   once, when it has started
    {"name", "responses", "prompts",             ->
     "prompt_of_response", "token_ids",
     "trainer_state", "data_source"}
                                                 <-  {"done": 1}   after each response, if scored
                                                     one by one
                                                 <-  {"rewards", "graded", ...} or {"error"}

The limit is for one call of the user's function: for each response if they are scored one by one,
else for all.
All functions of a run share one process, which lives as long as the run: what they keep between
calls, a cache or a loaded model, stays. A function that exceeds the limit loses its process, and
with it that state and the processes that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.verify.scores import ScoringContext, TrainerState
from counterpoise.verify.worker_process import (
    START_ATTEMPTS,
    START_LIMIT_SECONDS,
    start_worker,
    stop_worker,
)

WORKER_MODULE = "counterpoise.verify.reward_worker"
CHUNK_BYTES = 1 << 16


class CallFailedError(Exception):
    """A call that did not return.

    `kind` is timeout or crash; `scored` is how many responses were finished before it.
    """

    def __init__(self, kind: str, scored: int) -> None:
        super().__init__(kind)
        self.kind, self.scored = kind, scored


class RewardProcess:
    """The worker process as its owner sees it; it starts with the first request."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def exchange(self, request: str) -> dict[str, Any]:
        """The reply to a request; raises CallFailedError, and the process is gone then."""
        process = self._ensure_started()
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it died: no reply will come
                process.stdin.write(request.encode() + b"\n")
                process.stdin.flush()
            scored = 0
            while True:
                try:
                    reply = self._read_reply(self.limit_seconds)
                except CallFailedError as failure:
                    raise CallFailedError(failure.kind, scored) from None
                if "done" not in reply:
                    return reply
                scored += reply["done"]
        except BaseException:
            # A late reply would be taken for that of the next request.
            self.close()
            raise

    def close(self) -> None:
        """End the process; the next request starts a new one."""
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            stop_worker(process)

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        for _ in range(START_ATTEMPTS):
            self.close()
            self._process = start_worker(WORKER_MODULE)
            weakref.finalize(self, stop_worker, self._process)
            with contextlib.suppress(CallFailedError):
                self._read_reply(START_LIMIT_SECONDS)
                return self._process
        self.close()
        raise PoiseError(
            "the process for your reward functions does not start: "
            f"`python -m {WORKER_MODULE}` shows why; "
            "verify.reward_timeout_seconds=0 calls them in the main process, without a limit"
        )

    def _read_reply(self, limit_seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + limit_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise CallFailedError("timeout", 0)
                chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
                if not chunk:
                    raise CallFailedError("crash", 0)
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply


@cache
def shared_process(limit_seconds: float) -> RewardProcess:
    """The one process of all reward functions of a run."""
    return RewardProcess(limit_seconds)


def encode_request(
    name: str, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
) -> str | None:
    """A request as JSON; None if something in it cannot be sent to another process."""
    if not isinstance(context.trainer_state, TrainerState | None):
        return None  # TRL's own object, which a function may read any attribute of
    distinct_prompts = {id(prompt): prompt for prompt in prompts}
    prompt_indices = {key: prompt_index for prompt_index, key in enumerate(distinct_prompts)}
    state = context.trainer_state
    request = {
        "name": name,
        "responses": list(responses),
        "prompts": [_prompt_record(prompt) for prompt in distinct_prompts.values()],
        "prompt_of_response": [prompt_indices[id(prompt)] for prompt in prompts],
        "token_ids": (
            None
            if context.token_ids is None
            else [[int(token) for token in tokens] for tokens in context.token_ids]
        ),
        "trainer_state": None if state is None else [state.global_step, state.max_steps],
        "data_source": context.data_source,
    }
    try:
        return json.dumps(request)
    except (TypeError, ValueError, RecursionError):
        return None


def _prompt_record(prompt: Prompt) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "problem": prompt.problem,
        "answer": prompt.answer,
        "solution": prompt.solution,
        "generic": prompt.generic,
        "columns": dict(prompt.columns),
        "messages": [dict(message) for message in prompt.messages],
    }
