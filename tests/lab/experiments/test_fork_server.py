"""Runs that a fork server starts: real processes, with the numbers of a fresh interpreter."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import torch
from small_run import SETS, small_model

from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.experiments import fork_server
from counterpoise.lab.experiments.fork_server import ForkServer, _json_line
from counterpoise.store.folder import RunFolder

HANG_SECONDS = 300.0
OPTIONS = (
    *SETS, "loop.iterations=2", "evaluate.prompts=0", "monitor.every=0", "store.report=false",
    "balance.tau=0",
)  # fmt: skip
# A reward that says in which process it is called, and then waits for a signal if it is to.
FACTS = """
import json, os, sys, time
from pathlib import Path

NAMES = ("POISE_TEST", "POISE_MEMORY_SHARE", "PYTORCH_NVML_BASED_CUDA_CHECK")

def is_pipe(name):
    return os.path.realpath("/proc/self/fd/" + name).rpartition("/")[2].startswith("pipe:")

def score(completion, answer):
    here = Path(__file__).parent
    facts = {name: os.environ.get(name) for name in NAMES}
    facts |= {"session": os.getsid(0) == os.getpid(), "command": sys.argv[1:3]}
    facts |= {"open": [name for name in os.listdir("/proc/self/fd") if is_pipe(name)]}
    (here / "new").write_text(json.dumps(facts))
    (here / "new").rename(here / "facts.json")
    while (here / "wait").exists():
        time.sleep(0.01)
    return 1.0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fresh interpreter, as users' is, in which a library prints when it is imported."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(
        "print('an accelerator was found', flush=True)\nprint('not flushed')\n"
    )
    environment = {"OMP_NUM_THREADS": "1", "POISE_TEST": "inherited", "PYTHONPATH": str(site)}
    with ForkServer(environment) as server:
        yield server


def small_run(folder: Path, name: str = "run") -> list[str]:
    """Arguments of a run that takes a fraction of a second."""
    options = (*OPTIONS, *small_model(folder))
    return ["train", "demo", "--out", str(folder / name), *(f"--set={word}" for word in options)]


def waiting_run(server: ForkServer, folder: Path, *options: str) -> fork_server.ForkedRun:
    """A run that has come to its first reward and waits there while the file `wait` exists."""
    (folder / "mine.py").write_text(FACTS)
    (folder / "wait").touch()
    arguments = [*small_run(folder), *(f"--set={word}" for word in options)]
    run = server.start(arguments, {"POISE_MEMORY_SHARE": "0.25"}, folder / "run.log")
    deadline = time.monotonic() + HANG_SECONDS
    while not (folder / "facts.json").exists():
        assert run.poll() is None, (folder / "run.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return run


def numbers(folder: Path) -> list[dict[str, object]]:
    return [
        {name: value for name, value in line.items() if "second" not in name}
        for line in RunFolder.open(folder).read("metrics")
    ]


@pytest.mark.slow
def test_a_forked_run_computes_what_a_fresh_interpreter_computes(
    server: ForkServer, tmp_path: Path
) -> None:
    run = server.start(small_run(tmp_path, "forked"), {}, tmp_path / "forked.log")
    assert run.wait(HANG_SECONDS) == 0
    command = [sys.executable, "-m", "counterpoise.cli", *small_run(tmp_path, "fresh")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    fresh = subprocess.run(command, check=True, capture_output=True, env=environment, text=True)
    assert len(numbers(tmp_path / "forked")) == 2
    assert numbers(tmp_path / "forked") == numbers(tmp_path / "fresh")
    log_lines = (tmp_path / "forked.log").read_text().splitlines()
    assert log_lines[0] == fresh.stdout.splitlines()[0]
    assert len(log_lines) == len(fresh.stdout.splitlines())
    tasks = Path(f"/proc/{server._process.pid}/task")
    if tasks.is_dir():
        # A fork has only the thread that forks; pyarrow's allocator starts its own again.
        threads = [(task / "comm").read_text().strip() for task in tasks.iterdir()]
        assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1


@pytest.mark.slow
def test_a_run_has_its_own_session_and_environment(server: ForkServer, tmp_path: Path) -> None:
    run = waiting_run(server, tmp_path)
    (tmp_path / "wait").unlink()
    assert run.wait(HANG_SECONDS) == 0
    assert json.loads((tmp_path / "facts.json").read_text()) == {
        "POISE_TEST": "inherited", "POISE_MEMORY_SHARE": "0.25",
        fork_server.NVML_CHECK_VARIABLE: None, "session": True, "command": ["train", "demo"],
        "open": [],
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_fork_trains_on_a_gpu(server: ForkServer, tmp_path: Path) -> None:
    """Nothing that the server imports has looked for a GPU: no fresh interpreter was needed."""
    run = waiting_run(server, tmp_path, "model.device=cuda")
    assert fork_server.SERVER_MODULE in Path(f"/proc/{run.pid}/cmdline").read_text()
    (tmp_path / "wait").unlink()
    assert run.wait(HANG_SECONDS) == 0, (tmp_path / "run.log").read_text()
    assert len(numbers(tmp_path / "run")) == 2


@pytest.mark.slow
def test_runs_are_waited_for_and_killed(server: ForkServer, tmp_path: Path) -> None:
    run = waiting_run(server, tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.0)
    run.kill()
    assert run.wait(HANG_SECONDS) == -signal.SIGKILL
    run.terminate()  # it has ended: its number may be another process's by now
    missing = server.start(["train", "nowhere.toml"], {}, tmp_path / "missing.log")
    assert missing.wait(HANG_SECONDS) == 2
    assert "nowhere.toml" in (tmp_path / "missing.log").read_text()


@pytest.mark.slow
def test_ctrl_c_during_a_request_leaves_no_answer_for_the_next(
    server: ForkServer, tmp_path: Path
) -> None:
    missing = server.start(["train", "nowhere.toml"], {}, tmp_path / "missing.log")
    assert missing.wait(HANG_SECONDS) == 2
    run = server.start(["options"], {}, tmp_path / "options.log")
    stream = server._process.stdin
    assert stream is not None
    stream.write(_json_line({"id": -1, "start": ["train", "nowhere.toml"], "environment": {},
                             "log": str(tmp_path / "again.log")}))  # fmt: skip
    stream.flush()
    assert run.wait(HANG_SECONDS) == 0


@pytest.mark.slow
def test_the_exit_code_is_told_again(server: ForkServer, tmp_path: Path) -> None:
    """Ctrl-C may lose the first answer; asked again, the server died."""
    run = server.start(["train", "nowhere.toml"], {}, tmp_path / "a.log")
    assert run.wait(HANG_SECONDS) == 2
    assert [server.exit_code(run.pid) for _ in range(2)] == [2, 2]


@pytest.mark.slow
def test_a_signal_that_stops_runs_does_not_stop_the_server(
    server: ForkServer, tmp_path: Path
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        server._process.send_signal(number)
    run = waiting_run(server, tmp_path)
    run.terminate()
    (tmp_path / "wait").unlink()
    assert run.wait(HANG_SECONDS) == 130  # the run has heard it
    assert len(numbers(tmp_path / "run")) == 1


@pytest.mark.slow
def test_a_log_that_cannot_be_opened_is_named(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "missing" / "a.log"
    with pytest.raises(PoiseError) as fault:
        server.start(["options"], {}, log)
    assert str(fault.value) == f"no run can be started: {log}: No such file or directory"
    assert server.start(["options"], {}, tmp_path / "a.log").wait(HANG_SECONDS) == 0


class ProcessEndedError(Exception):
    """Stands for the end of the process by `os._exit`."""


def test_a_fork_that_fails_before_its_gate_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once went on as a second server, which took requests and knew none of the runs."""

    def refuse() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def end(code: int) -> None:
        raise ProcessEndedError(code)

    monkeypatch.setattr(os, "setsid", refuse)
    monkeypatch.setattr(os, "_exit", end)
    log = tmp_path / "a.log"
    with log.open("wb") as opened, pytest.raises(ProcessEndedError) as ended:
        fork_server.wait_at_gate(-1, opened.fileno(), server_descriptors=())
    assert ended.value.args == (fork_server.UNKNOWN_EXIT_CODE,)
    assert log.read_text() == ("poise: the run cannot start: [Errno 1] Operation not permitted\n")


def test_a_fork_that_the_system_refuses_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = len(list(Path("/dev/fd").iterdir()))
    fault = fork_server.fork_behind_gate({"log": str(tmp_path / "a.log")}, -1, set())
    assert isinstance(fault, BlockingIOError)
    assert len(list(Path("/dev/fd").iterdir())) == before


class InterruptedAfterSending:
    """The server's input; Ctrl-C comes when a request has been sent."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def flush(self) -> None:
        self.stream.flush()
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_run_whose_start_was_interrupted_is_ended_with_the_server(tmp_path: Path) -> None:
    with ForkServer({}) as server:
        stream = server._process.stdin
        assert stream is not None
        server._process.stdin = InterruptedAfterSending(stream)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            waiting_run(server, tmp_path)
        server._process.stdin = stream
        wait_for(lambda: (tmp_path / "facts.json").exists())
    (tmp_path / "wait").unlink()
    log = tmp_path / "run.log"
    wait_for(lambda: log.read_text().splitlines()[-1].startswith("poise: stopped"))
    assert len(numbers(tmp_path / "run")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_run_that_nobody_waits_for_any_more_is_not_started(tmp_path: Path) -> None:
    """The experiment is killed between its request and the answer."""
    with folder_lock(tmp_path) as lock:
        server = ForkServer({}, pass_fds=(lock,))
        server._process.send_signal(signal.SIGSTOP)
        stream = server._process.stdin
        assert stream is not None
        request = {"start": small_run(tmp_path), "environment": {}, "log": str(tmp_path / "a.log")}
        stream.write(_json_line({"id": 1, **request}))
        stream.close()
        server._answers.close()
    server._process.send_signal(signal.SIGCONT)
    server._process.wait(HANG_SECONDS)
    wait_for(lambda: is_unlocked(tmp_path))  # until the fork has ended
    assert (tmp_path / "a.log").read_text() == ""
    assert not (tmp_path / "run").exists()


def is_unlocked(folder: Path) -> bool:
    try:
        with folder_lock(folder):
            return True
    except PoiseError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_has_outlived_its_server_has_ended_though_nobody_collects_it() -> None:
    """Init adopts it, which may be this process, or one that leaves it a zombie."""
    ours = subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)
    assert fork_server.exit_code_of_orphan(ours.pid) is None
    assert ours.stdin is not None
    ours.stdin.close()
    os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)  # until it ends; it stays a zombie
    assert fork_server.exit_code_of_orphan(ours.pid) == 3
    ours.wait()
    assert fork_server.exit_code_of_orphan(ours.pid) == fork_server.UNKNOWN_EXIT_CODE

    with subprocess.Popen(
        ["sh", "-c", "sleep 0.01 & echo $!; exec sleep 60"], stdout=subprocess.PIPE, text=True
    ) as parent:  # never collects its child
        assert parent.stdout is not None
        zombie = int(parent.stdout.readline())
        wait_for(lambda: fork_server.exit_code_of_orphan(zombie) == fork_server.UNKNOWN_EXIT_CODE)
        os.kill(zombie, 0)  # it still has its number
        assert fork_server.exit_code_of_orphan(os.getppid()) is None
        parent.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_runs_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    with ForkServer({}) as server:
        run = waiting_run(server, tmp_path)
        server._process.kill()
        assert run.poll() is None
        (tmp_path / "wait").unlink()
        assert run.wait(HANG_SECONDS) == fork_server.UNKNOWN_EXIT_CODE
        assert len(numbers(tmp_path / "run")) == 2
        with pytest.raises(PoiseError, match=r"no run can be started: .* has ended: it was killed"):
            server.start(["options"], {}, tmp_path / "options.log")


def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "SERVER_MODULE", "counterpoise.nowhere")
    with (
        ForkServer({}) as server,
        pytest.raises(PoiseError, match=r"runs has ended: .*No module named counterpoise\.nowhere"),
    ):
        server.start(["options"], {}, tmp_path / "options.log")
