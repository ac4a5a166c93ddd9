"""Start many runs without importing torch and transformers for each of them.

The imports take a process seven CPU seconds, a third of a short run on a GPU. Here one process, the
server, imports everything once and forks for every run. It never touches a GPU, and its only other
thread is one of pyarrow's allocator, which forks restart: a run computes the same numbers as in a
fresh interpreter.

    the experiment                    the server                    the runs
    ForkServer.start(...)     ->      fork                   ->     poise train ...
    ForkedRun.poll()          ->      waitpid

A request is a line of JSON on the server's standard input, its answer a line on a pipe of its own,
since any library may print to standard output:

    {"id": 1, "start": ["train", "demo"], "environment": {}, "log": "a.log"}    {"id": 1, "pid": 47}
    {"id": 2, "poll": 47}                                           {"id": 2, "exit_code": null}

A fork waits until the answer with its pid has been written, so none trains that the experiment
cannot know of. The experiment ends its runs when it stops, and then the server. If the experiment
is killed, the server ends with its input, and runs go on, as processes do when the one that started
them is killed.
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
# They stop runs, not the server, also where a batch system sends them to every process.
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 0.05
UNKNOWN_EXIT_CODE = 1  # of a run whose exit code another process has collected


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
        self._running_pids: set[int] = set()  # of all forks that have not been seen to end
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115, closed in `close`
        answers, end_of_server = os.pipe()
        self._answers = os.fdopen(answers, "rb")  # closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", SERVER_MODULE, str(end_of_server)],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            env={**os.environ, **environment, NVML_CHECK_VARIABLE: "1"},
            start_new_session=True,  # Ctrl-C reaches only this process
            pass_fds=(*pass_fds, end_of_server),
        )
        os.close(end_of_server)

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
        exit_code: int | None
        exit_code = exit_code_of_orphan(pid) if answer is None else answer["exit_code"]
        if exit_code is not None:
            self._running_pids.discard(pid)
        return exit_code

    def close(self) -> None:
        """End the server, and tell runs that have not been seen to end to stop.

        Those are runs that `start` could not return because it was interrupted: whoever closes the
        server has waited for the others.
        """
        self._process.kill()
        for line in self._answers:
            self._read_answer(line)
        for pid in self._running_pids:
            if exit_code_of_orphan(pid) is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        self._process.communicate()
        self._answers.close()
        self._printed.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None if the server has ended."""
        assert self._process.stdin is not None
        self._request_count += 1
        try:
            self._process.stdin.write(_json_line({"id": self._request_count, **request}))
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        for line in self._answers:
            answer = self._read_answer(line)
            # Ctrl-C may have left the answer to an earlier request unread.
            if answer["id"] == self._request_count:
                return answer
        return None

    def _read_answer(self, line: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(line)
        if "pid" in answer:
            self._running_pids.add(answer["pid"])
        return answer

    def _explain(self, answer: dict[str, Any] | None) -> str:
        if answer is not None:
            return str(answer["fault"])
        reason = "it was killed"
        if self._process.wait() >= 0:
            self._printed.seek(0)
            lines = self._printed.read().decode(errors="replace").split("\n")
            reason = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"the process that starts runs has ended: {reason}"


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


def exit_code_of_orphan(pid: int) -> int | None:
    """The exit code of a run that has outlived its server; None while it trains.

    Init adopts such a run and collects its exit code. In a container this process may be init, or
    init may be a program that leaves the ended run a zombie for ever.
    """
    try:
        adopted_pid, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another process has adopted it
        pass
    else:
        return os.waitstatus_to_exitcode(status) if adopted_pid else None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # of another user: no run of ours any more
        return UNKNOWN_EXIT_CODE
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:  # a system without /proc, or it has just ended
        return None
    return UNKNOWN_EXIT_CODE if state == "Z" else None


# -- in the server ---------------------------------------------------------------------------------


def main(answers: int) -> None:
    """Import what runs need, and answer requests."""
    # Blocked, not ignored: a signal that stops a fork while it still starts is kept for it.
    signals_before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    for module in PRELOADED_MODULES:
        # Whatever is missing here is missing in the runs too, where it is reported.
        with suppress(ImportError):
            import_module(module)
    sys.stdout.flush()  # forks would print it again
    gc.collect()
    gc.freeze()  # forks share these pages as long as their garbage collectors leave them alone
    serve_requests(answers, signals_before)


def serve_requests(answers: int, run_signals: set[int | signal.Signals]) -> None:
    """Answer requests until there are no more. Runs are started with the signal mask given.

    A fork ends with an exception that passes through here: nothing below may catch those of a run.
    """
    requests = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    exit_codes: dict[int, int] = {}
    while line := requests.readline():
        request = json.loads(line)
        answer: dict[str, Any]
        gate = None
        if "poll" in request:
            answer = {"exit_code": poll_run(request["poll"], exit_codes)}
        else:
            forked = fork_behind_gate(request, answers, run_signals)
            if isinstance(forked, OSError):
                answer = {"fault": f"{forked.filename or 'fork'}: {forked.strerror}"}
            else:
                gate = forked
                exit_codes.pop(gate.pid, None)  # of an earlier run, whose pid this one has now
                answer = {"pid": gate.pid}
        try:
            os.write(answers, _json_line({"id": request["id"], **answer}))
        except BrokenPipeError:  # the experiment was killed, and nobody reads the answer
            return
        if gate is not None:
            gate.open()


def poll_run(pid: int, exit_codes: dict[int, int]) -> int | None:
    """The exit code of a run; `exit_codes` keeps it, since the system tells it only once."""
    if pid not in exit_codes:
        try:
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # where SIGCHLD is ignored, the system tells nobody
            exit_codes[pid] = UNKNOWN_EXIT_CODE
        else:
            if ended_pid:
                exit_codes[pid] = os.waitstatus_to_exitcode(status)
    return exit_codes.get(pid)


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a fork waits until the experiment knows its pid; it ends if the server ends before."""

    pid: int
    descriptor: int

    def open(self) -> None:
        with suppress(BrokenPipeError):  # it was killed meanwhile
            os.write(self.descriptor, b"\n")
        os.close(self.descriptor)


def fork_behind_gate(
    request: dict[str, Any], answers: int, run_signals: set[int | signal.Signals]
) -> Gate | OSError:
    """Fork; the fork trains the run that was asked for, and never returns.

    The error is that of a log that cannot be opened, or of the system that allows no fork.
    """
    descriptors = []
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        descriptors.append(log)
        fork_end, server_end = os.pipe()
        descriptors += [fork_end, server_end]
        pid = os.fork()
    except OSError as fault:
        for descriptor in descriptors:
            os.close(descriptor)
        return fault
    if pid == 0:
        wait_at_gate(fork_end, log, server_descriptors=(answers, server_end))
        signal.pthread_sigmask(signal.SIG_SETMASK, run_signals)
        train_run(request)
        sys.exit()
    os.close(log)
    os.close(fork_end)
    return Gate(pid, server_end)


def wait_at_gate(fork_end: int, log: int, server_descriptors: Sequence[int]) -> None:
    """Get a session and streams of its own, and wait. Ends the process if anything fails."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, stream in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, stream)
        # Only the server may hold these, so that their other ends notice when it ends.
        for descriptor in (null, log, *server_descriptors):
            os.close(descriptor)
        is_open = bool(os.read(fork_end, 1))
        os.close(fork_end)
    except BaseException as fault:  # it would go on as a second server
        with suppress(OSError):
            os.write(log, f"poise: the run cannot start: {fault}\n".encode())
        os._exit(UNKNOWN_EXIT_CODE)
    if not is_open:
        os._exit(UNKNOWN_EXIT_CODE)


def train_run(request: dict[str, Any]) -> None:
    """Become `python -m counterpoise.cli ARGUMENTS`."""
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
    main(answers=int(sys.argv[1]))
