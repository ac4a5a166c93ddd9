"""Start many runs without importing torch and transformers for each of them.

The imports take a process seven CPU seconds, a third of a short run on a GPU. Here one process, the
server, imports everything once and forks for every run. It never touches a GPU, and its only other
thread is one of pyarrow's allocator, which forks restart: a run computes the same numbers as in a
fresh interpreter.

    the experiment                    the server                    the runs
    ForkServer.start(...)     ->      fork                   ->     poise train ...
    ForkedRun.poll()          ->      waitpid

A request is a line of JSON on the server's standard input, its answer a line on the output:

    {"id": 1, "start": ["train", "demo"], "environment": {}, "log": "a.log"}    {"id": 1, "pid": 47}
    {"id": 2, "poll": 47}                                           {"id": 2, "exit_code": null}

The server ends when its input does. Runs that are still training then go on, as processes do when
the one that started them is killed.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError

SERVER_MODULE = "counterpoise.lab.experiments.fork_server"
RUN_MODULE = "counterpoise.cli"
# What a run imports on its way to the first iteration. Of the model families one will do: what it
# imports takes seconds, and what others import besides it does not.
PRELOADED_MODULES = (
    "counterpoise.loop",
    "counterpoise.cli.train_at_terminal",
    "transformers.models.qwen3.modeling_qwen3",
)
# Asking torch whether there is a GPU makes GPUs unusable in forks, unless it asks NVML.
NVML_CHECK_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
POLL_SECONDS = 0.05
UNKNOWN_EXIT_CODE = 1  # of a run that has outlived its server


# -- in the experiment -----------------------------------------------------------------------------


class ForkServer:
    """The server, as the experiment sees it.

    Example:
        with ForkServer({"OMP_NUM_THREADS": "1"}, pass_fds=(lock,)) as server:
            run = server.start(["train", "demo", "--out", "a"], {"POISE_MEMORY_SHARE": "0.5"}, log)
            run.wait()                              # 0
    """

    def __init__(self, environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """`environment` is added to that of this process, for the server and all its runs."""
        self._request_count = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", SERVER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment, NVML_CHECK_VARIABLE: "1"},
            start_new_session=True,  # Ctrl-C reaches only this process
            pass_fds=tuple(pass_fds),
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ForkedRun:
        """Start `poise ARGUMENTS` in a session of its own; `log` gets what it prints."""
        answer = self._request(
            {"start": list(arguments), "environment": dict(environment), "log": str(log)}
        )
        if answer is None or "pid" not in answer:
            raise PoiseError(f"no run can be started: {self._explain(answer)}")
        return ForkedRun(answer["pid"], self)

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a run, negative for a signal; None while it trains."""
        answer = self._request({"poll": pid})
        if answer is not None:
            exit_code: int | None = answer["exit_code"]
            return exit_code
        # The server was killed. Its runs go on, but nobody gets their exit codes any more.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return UNKNOWN_EXIT_CODE
        return None

    def close(self) -> None:
        """End the server, not its runs."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None if the server has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._request_count += 1
        try:
            self._process.stdin.write(_json_line({"id": self._request_count, **request}))
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            # Ctrl-C may have left the answer to an earlier request unread.
            if answer["id"] == self._request_count:
                return answer
        return None

    def _explain(self, answer: dict[str, Any] | None) -> str:
        if answer is not None:
            return str(answer["fault"])
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last_line = next((line for line in reversed(lines) if line.strip()), "it was killed")
        return f"the process that starts runs has ended: {last_line.strip()}"


@dataclass
class ForkedRun:
    """A run that the server has started, with the methods of `subprocess.Popen`."""

    pid: int
    server: ForkServer = field(repr=False)
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (exit_code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"run {self.pid}", timeout)
            time.sleep(POLL_SECONDS)
        return exit_code

    def terminate(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the run and what it has started, such as the processes of its verifier."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


# -- in the server ---------------------------------------------------------------------------------


def main() -> None:
    """Answer requests; in a fork, train the run that was asked for."""
    for module in PRELOADED_MODULES:
        # Whatever is missing here is missing in the runs too, where it is reported.
        with suppress(ImportError):
            import_module(module)
    gc.collect()
    gc.freeze()  # forks share these pages as long as their garbage collectors leave them alone
    request = serve_requests()
    if request is not None:
        train_run(request)


def serve_requests() -> dict[str, Any] | None:
    """Answer requests until there are no more; in a fork, return the request to start it."""
    requests = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    answers = open(1, "wb", buffering=0, closefd=False)  # noqa: SIM115
    while line := requests.readline():
        request = json.loads(line)
        answer: dict[str, Any]
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"exit_code": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            try:
                pid = os.fork()
            except OSError as fault:
                answer = {"fault": fault.strerror}
            else:
                if pid == 0:
                    return dict(request)
                answer = {"pid": pid}
        answers.write(_json_line({"id": request["id"], **answer}))
    return None


def train_run(request: dict[str, Any]) -> None:
    """Become `python -m counterpoise.cli ARGUMENTS`, which writes to the log."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, stream in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, stream)
    os.close(null)
    os.close(log)
    os.environ.pop(NVML_CHECK_VARIABLE, None)
    os.environ.update(request["environment"])

    import numpy
    import torch

    command = [sys.executable, "-m", RUN_MODULE, *request["start"]]
    if torch.cuda._is_in_bad_fork():  # some import has looked for a GPU after all
        os.execv(sys.executable, command)
    # After a fork torch makes its thread pool anew when it is first needed. Two threads that need
    # it at once, as when transformers loads a model, may find none.
    torch.set_num_threads(torch.get_num_threads())
    numpy.random.seed()  # plugins that use it would draw the same in every fork
    sys.orig_argv, sys.argv = command, command[2:]
    runpy.run_module(RUN_MODULE, run_name="__main__", alter_sys=True)


def _json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


if __name__ == "__main__":
    main()
