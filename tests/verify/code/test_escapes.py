"""Attempts to leave the sandbox: each must fail, with every set of layers a system may have."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from counterpoise.verify.code import sandbox
from counterpoise.verify.code.sandbox import SandboxResult, available_layers, run_sandboxed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")

ALL = ("namespaces", "landlock", "seccomp")
CONTAINER = ("landlock", "seccomp")  # containers refuse namespaces
OLD_KERNEL = ("namespaces",)
EACH_SET = pytest.mark.parametrize("layers", [ALL, CONTAINER, OLD_KERNEL], ids="+".join)


def attempt(program: str, layers: tuple[str, ...], cpu_seconds: float = 2.0) -> SandboxResult:
    """Run a program that defines `escape`, and call it."""
    require(layers)
    return run_sandboxed(program, [("value", "escape()")], cpu_seconds, layers)


def require(layers: tuple[str, ...]) -> None:
    if missing := set(layers) - set(available_layers()):
        pytest.skip(f"this system has no {missing.pop()}")


def error_of(result: SandboxResult) -> str:
    assert result.outcome == "ran", result
    return result.replies[0]["error"]


@EACH_SET
def test_files_outside_are_neither_read_nor_written(tmp_path: Path, layers: tuple[str, ...]):
    secret, target = tmp_path / "secret", tmp_path / "planted"
    secret.write_text("42")
    statements = [
        *(
            f"open({str(path)!r}).read()"
            for path in (secret, "/etc/passwd", "/proc/self/environ", f"/proc/{os.getpid()}/maps")
        ),
        f"open({str(target)!r}, 'w').write('x')",
        f"os.rename({str(secret)!r}, {str(target)!r})",
        f"os.symlink({str(secret)!r}, 'link'); open('link').read()",
        f"os.truncate({str(secret)!r}, 0)",
        f"os.chmod({str(secret)!r}, 0)",
        f"os.remove({str(secret)!r})",
    ]
    require(layers)
    result = run_sandboxed("import os", [("run", text) for text in statements], 2.0, layers)
    refusals = {"PermissionError", "FileNotFoundError"}
    assert len(result.replies) == len(statements)
    assert {reply.get("error", str(reply)) for reply in result.replies} <= refusals
    assert secret.read_text() == "42"
    assert secret.stat().st_mode & 0o777 == 0o644
    assert not target.exists()


@EACH_SET
def test_the_standard_library_is_there_and_read_only(layers: tuple[str, ...]):
    result = attempt(
        "import collections, heapq, re, statistics\n"
        "def escape(): return statistics.mean(heapq.nlargest(2, [1, 3, 2]))",
        layers,
    )
    assert result.replies == [{"value": 2.5}]
    planting = "import os\ndef escape(): open(os.path.dirname(os.__file__) + '/evil.py', 'w')"
    assert error_of(attempt(planting, layers)) in ("PermissionError", "OSError")


@EACH_SET
def test_its_folder_can_be_used_within_limits_and_is_removed(
    layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writing = "def escape():\n  open('a', 'w').write('x' * {})\n  return len(open('a').read())"
    assert attempt(writing.format(1000), layers).replies == [{"value": 1000}]
    # Beyond the largest size of a file the kernel sends SIGXFSZ, which Python turns into OSError.
    assert error_of(attempt(writing.format(30 << 20), layers)) == "OSError"
    assert list(tmp_path.iterdir()) == []


@EACH_SET
def test_no_environment_variable_reaches_it(
    monkeypatch: pytest.MonkeyPatch, layers: tuple[str, ...]
):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    result = attempt("import os\ndef escape(): return sorted(os.environ)", layers)
    assert "SECRET_TOKEN" not in result.replies[0]["value"]["list"]


@EACH_SET
def test_the_network_is_out_of_reach(layers: tuple[str, ...]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        port = server.getsockname()[1]
        connecting = (
            f"import socket\ndef escape(): socket.create_connection(('127.0.0.1', {port}), 1)\n"
        )
        assert error_of(attempt(connecting, layers)) in ("PermissionError", "OSError")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("layers", [ALL, CONTAINER], ids="+".join)
@pytest.mark.parametrize(
    "statement",
    [
        "os.fork()",
        "os.posix_spawn('/bin/sh', ['sh'], {})",
        "os.execv('/bin/sh', ['sh'])",
        "os.setsid()",
        "os.kill(os.getppid(), 15)",
        "os.kill(-1, 15)",
        "os.killpg(0, 9)",
        "resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "os.setpriority(os.PRIO_PROCESS, 0, 5)",
        "threading.Thread(target=print).start()",
        "socket.socket()",
    ],
)
def test_system_calls_are_refused(statement: str, layers: tuple[str, ...]):
    program = f"import os, resource, socket, threading\ndef escape():\n  {statement}"
    assert error_of(attempt(program, layers)) in (
        "PermissionError", "OSError", "ValueError", "RuntimeError",
    )  # fmt: skip


@EACH_SET
def test_a_signal_does_not_reach_the_owner(layers: tuple[str, ...]):
    received: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        attempt(
            f"import os\ndef escape():\n  os.kill({os.getpid()}, {int(signal.SIGUSR1)})", layers
        )
        attempt(f"import os\ndef escape():\n  os.kill(os.getppid(), {signal.SIGUSR1:d})", layers)
        time.sleep(0.05)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert not received


BOMB = """
import ctypes, os, time
def escape():
    while True:
        try:
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, b"poise-bomb-X", 0, 0, 0)
        except OSError:
            return "refused"
"""
DAEMON = """
import ctypes, os, time
def escape():
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, b"poise-daem-X", 0, 0, 0)
                time.sleep(600)
            os._exit(0)
    return "left behind"
"""


def named_processes(name: str) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                pids.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return pids


@pytest.mark.parametrize("layers", [ALL, CONTAINER], ids="+".join)
def test_a_fork_bomb_does_not_start(layers: tuple[str, ...]):
    assert attempt(BOMB, layers).replies == [{"value": "refused"}]
    assert named_processes("poise-bomb-X") == []


@EACH_SET
def test_no_process_is_left_behind(layers: tuple[str, ...]):
    result = attempt(DAEMON, layers)
    if "seccomp" not in layers:
        assert result.replies == [{"value": "left behind"}]
    deadline = time.monotonic() + 60
    while named_processes("poise-daem-X") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert named_processes("poise-daem-X") == []


@EACH_SET
def test_memory_and_computing_end(layers: tuple[str, ...]):
    assert error_of(attempt("def escape(): return len(bytearray(4 << 30))", layers)) == (
        "MemoryError"
    )
    assert attempt("def escape():\n  while True: pass", layers, 1.0).outcome == "timeout"


def test_a_program_that_only_waits_ends_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "START_SECONDS", 0.5)
    monkeypatch.setattr(sandbox, "WALL_SECONDS_PER_CPU_SECOND", 0.5)
    assert attempt("import time\ndef escape(): time.sleep(600)", ALL, 1.0).outcome == "timeout"


@EACH_SET
def test_native_code_is_held_in_too(tmp_path: Path, layers: tuple[str, ...]):
    """ctypes reaches every call of the kernel, so the layers must not be Python's."""
    secret = tmp_path / "secret"
    secret.write_text("42")
    program = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "def escape():\n"
        f"  opened = libc.open({os.fsencode(secret)!r}, 2)\n"
        "  mounted = libc.mount(b'none', b'/', None, 0x44000, None)\n"
        "  entered = libc.unshare(0x10000000)\n"
        "  return [opened, mounted, entered]"
    )
    opened, mounted, entered = attempt(program, layers).replies[0]["value"]["list"]
    assert (opened, mounted) == (-1, -1)
    assert entered == -1 or "seccomp" not in layers


@EACH_SET
def test_a_flood_on_the_reply_pipe_is_cut(layers: tuple[str, ...]):
    program = (
        "import os\ndef escape():\n"
        "  for number in range(3, 64):\n"
        "    try:\n"
        "      for _ in range(64): os.write(number, b'[' * (1 << 20))\n"
        "    except OSError: pass\n"
    )
    assert attempt(program, layers).outcome == "crash"
