"""A disk that is full, for real: a file system of a few hundred kB, and a limit on files' sizes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from safetensors import SafetensorError

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.files import append_line, error_number, explain_write_errors
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder

# What `unshare -rm` and `mount -t tmpfs` do, in a process that need not start anew.
SMALL_DISK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
user, group = os.getuid(), os.getgid()
check(libc.unshare(0x10000000 | 0x00020000))  # CLONE_NEWUSER | CLONE_NEWNS
for name, content in (
    ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")
):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(content)
check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))  # MS_REC | MS_PRIVATE
folder = os.path.dirname(sys.argv[1])
check(libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=700k"))
os.chdir(folder)
"""
# Each part of a run is written again and again until the disk is full, then all is cleared away.
FILL = """
import json, shutil, sys, numpy as np
sys.path[:0] = [{tests!r}]
import tiny
from pathlib import Path
from counterpoise.config import LoopConfig, RunConfig
from counterpoise.errors import PoiseError
from counterpoise.run.state import new_state, save_state
from counterpoise.store.folder import RunFolder
from counterpoise.types import Group, TokenTrace
out = Path(sys.argv[1])
config = RunConfig(loop=LoopConfig(keep_checkpoints=99))
state = new_state(tiny.policy(), config)
groups = [Group("1:p", 1, tuple(row.content for row in tiny.rows(groups=1, size=60)))]
trace = TokenTrace({{"x": np.random.default_rng(0).random(20_000)}})
writes = {{
    "rollouts": lambda i: folder.write_rollouts(i, groups),
    "tokens": lambda i: folder.write_table("tokens", i, trace),
    "metrics": lambda i: folder.append("metrics", {{"iteration": i, "x": "y" * 30_000}}),
    "checkpoints": lambda i: save_state(folder, state, config),
}}
for kind, write in writes.items():
    folder = RunFolder.create(out, config)
    try:
        for i in range(1, 1000):
            state.iteration = i
            if i == 1:
                save_state(folder, state, config)
            else:
                write(i)
    except PoiseError as fault:
        files = [str(p.relative_to(out)) for p in out.rglob("*")]
        print(json.dumps([kind, str(fault), files]))
    shutil.rmtree(out)
"""


def on_a_small_disk(place: Path) -> list[str]:
    """FILL in a mount namespace of its own, where `place` is a disk of 700 kB."""
    script = SMALL_DISK + FILL.format(tests=str(Path(__file__).parents[1]))
    done = forked.run([sys.executable, "-c", script, str(place / "run")])
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def can_mount() -> bool:
    trial = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        bool(shutil.which("unshare")) and not subprocess.run(trial, capture_output=True).returncode
    )


@pytest.mark.skipif(not can_mount(), reason="needs leave to mount a small file system")
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    run, told = tmp_path / "run", [json.loads(line) for line in on_a_small_disk(tmp_path)]
    assert [kind for kind, _, _ in told] == ["rollouts", "tokens", "metrics", "checkpoints"]
    for kind, line, files in told:
        assert line.startswith(f"{run}/{kind}")
        assert "could not be written: No space left on device. Everything written before" in line
        assert line.endswith(
            f"free some space, then continue with poise train --resume --out {run}"
        )
        assert not any(name.endswith(".part") for name in files)
        assert "checkpoints/iteration_00001/manifest.json" in files


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
"""


def test_a_line_that_was_cut_short_is_taken_back(tmp_path: Path) -> None:
    """The system writes what still fits and refuses the rest."""
    script = LIMITED + (
        "from pathlib import Path\n"
        "from counterpoise.files import append_line\n"
        "for k in range(9):\n"
        "    append_line(Path(sys.argv[2]), str(k) * 300)\n"
    )
    path = tmp_path / "metrics.jsonl"
    done = forked.run([sys.executable, "-c", script, "1000", str(path)])
    assert "File too large" in done.stderr
    assert path.read_text() == "".join(str(k) * 300 + "\n" for k in range(3))
    append_line(path, "more")
    assert path.read_text().endswith("2\nmore\n")


def test_a_line_torn_by_a_kill_is_dropped_by_a_resumed_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RunConfig())
    folder.append("metrics", {"iteration": 1})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"schema": 1, "iter')  # the machine stopped here
    folder.rewind(1)
    folder.append("metrics", {"iteration": 2})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2]


SETS = [
    "loop.iterations=4", "loop.checkpoint_every=2", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=0", "sample.prompts=2", "sample.group_size=4",
    "sample.max_new_tokens=24", "balance.tau=0", "batch.steps=2", "evaluate.prompts=0",
    "verify.name='exact'", "loop.threads=1",
]  # fmt: skip


def poise(*arguments: str, largest: int) -> subprocess.CompletedProcess[str]:
    """The command itself, unable to write files of more than `largest` bytes."""
    script = LIMITED + (
        "from counterpoise import cli\nsys.argv = ['poise', *sys.argv[2:]]\ncli.main()\n"
    )
    return forked.run([sys.executable, "-c", script, str(largest), *arguments])


@pytest.mark.slow
def test_a_run_that_could_not_save_goes_on_when_it_can(tmp_path: Path) -> None:
    """The checkpoint of iteration 2 is whole, that of 4 does not fit; then there is room again."""
    from counterpoise.loop import train

    def weights(out: Path) -> bytes:
        return (
            checkpoint.list_checkpoints(out / "checkpoints")[-1] / "model.safetensors"
        ).read_bytes()

    train(load_config("demo", SETS), tmp_path / "whole")
    out = tmp_path / "cut"
    train(load_config("demo", [*SETS, "loop.iterations=2"]), out)
    again = ["train", "--resume", "--out", str(out), "--set", "loop.iterations=4"]
    done = poise(*again, largest=500_000)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"poise: {out}/checkpoints/iteration_00004 could not be written: File")
    assert [p.name for p in checkpoint.list_checkpoints(out / "checkpoints")][
        -1
    ] == "iteration_00002"
    assert not list(out.rglob("*.part"))
    train(load_config("demo", SETS), out, resume=True)
    assert weights(out) == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (OSError(errno.ENOSPC, "x"), errno.ENOSPC),
        (SafetensorError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (SafetensorError("IoError(Os { code: 28, kind: StorageFull })"), errno.ENOSPC),
        (SafetensorError("invalid header"), None),
    ],
)
def test_the_systems_number_of_a_fault(fault: Exception, number: int | None) -> None:
    assert error_number(fault) == number


def test_what_is_not_the_disks_fault_goes_through(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError), explain_write_errors(tmp_path / "a", tmp_path):
        raise SafetensorError("invalid header")
    with (
        pytest.raises(PoiseError, match=r"could not be written: Permission denied.*fix that"),
        explain_write_errors(tmp_path / "a", tmp_path),
    ):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    with (
        pytest.raises(PoiseError, match=r"fix that, then run poise credit again$"),
        explain_write_errors(tmp_path / "a", tmp_path, "run poise credit again"),
    ):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    # tokenizers has no type of its own for a full disk
    with (
        pytest.raises(PoiseError, match=r"could not be written: No space left.*free some space"),
        explain_write_errors(tmp_path / "a", tmp_path),
    ):
        raise Exception("No space left on device (os error 28)")
    with (
        pytest.raises(RuntimeError, match="os error 28"),
        explain_write_errors(tmp_path / "a", tmp_path),
    ):
        raise RuntimeError("not of the disk (os error 28)")
