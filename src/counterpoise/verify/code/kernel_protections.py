"""What the Linux kernel can refuse a process: namespaces, Landlock and seccomp, by ctypes.

    namespaces   a network without interfaces, process ids of its own, and an empty file tree in
                 memory (16 MiB) that holds nothing but Python's standard library, read-only. When
                 the first process of the namespace ends, the kernel kills all others in it
    landlock     no file outside the folder and the standard library; no TCP (kernel 6.7), no
                 signals and no abstract sockets to the outside (6.12)
    seccomp      a list of allowed system calls; all others fail with EPERM. No sockets, no new
                 processes or threads, no signals, no tracing, no change of limits or owners

`sandbox.py` tries which of them a system has: containers often refuse the first, old kernels lack
the second. None can be taken off again. Only the standard library is imported here, because this
runs in the process that is to be locked in.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

NAMESPACES, LANDLOCK, SECCOMP = "namespaces", "landlock", "seccomp"
FOLDER_BYTES = 16 << 20
STANDARD_LIBRARY = str(Path(os.__file__).parent)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x20, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION = 0x20080522
NOBODY = 65534
MAX_DESCRIPTORS = 64

# System calls that have the same number on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1
LANDLOCK_READ = 1 << 2 | 1 << 3  # read a file, list a folder
LANDLOCK_DEVICE_IOCTL = 1 << 15
# Bits of file rights that each version of Landlock knows: 13 in the first, then moving files
# between folders, truncation and ioctl on devices.
LANDLOCK_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
LANDLOCK_TCP, LANDLOCK_SCOPES = 0b11, 0b11

# architecture -> (its number in seccomp's data, the system calls that Python code needs)
ALLOWED_CALLS = {
    "x86_64": (
        0xC000003E,
        (
            *range(0, 7), *range(8, 22), 24, 25, 28, 32, 33, 35, 39, 60, 63, 72, 74, 77, 78, 79, 80,
            82, 83, 84, 87, 89, 96, 98, 99, 100, 102, 104, 107, 108, 110, 131, 158, 186, 201, 202,
            204, 217, 218, 219, 228, 229, 230, 231, 257, 258, 262, 263, 264, 267, 269, 273, 292,
            316, 318, 332, 334, 439,
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            17, 23, 24, 25, 29, 34, 35, 38, 46, 48, 49, 56, 57, *range(61, 69), 78, 79, 80, 82, 93,
            94, 96, 98, 99, 101, 113, 114, 115, 123, 124, 128, 132, 134, 135, 139, 153, 160, 165,
            169, *range(172, 180), 214, 215, 216, 222, 226, 233, 276, 278, 291, 293, 439,
        ),
    ),
}  # fmt: skip
X32_CALLS = 0x40000000  # x86_64 runs a second table of calls from this number on
LOAD_WORD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, FAIL_WITH_EPERM, KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x80000000

libc = ctypes.CDLL(None, use_errno=True)


def call(function: Callable[..., int], *arguments: object) -> int:
    """Call a function of the C library; an OSError if it fails."""
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def end_with_owner() -> None:
    """Have the kernel kill this process when the one that started it ends."""
    if sys.platform == "linux":
        call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def protect(folder: str, layers: Sequence[str]) -> None:
    """Lock the process into `folder` by `layers`; an error if one of them is not available.

    With namespaces this function forks: the rest of the caller runs in the child, and `folder`, now
    a file tree in memory, has become its root.
    """
    for layer, lock_in in LAYER_FUNCTIONS.items():
        if layer in layers:
            # After enter_namespaces `folder` is the root, so the later layers get `/`.
            lock_in("/" if NAMESPACES in layers and layer != NAMESPACES else folder)


def enter_namespaces(folder: str) -> None:
    """Go on as the first process of new namespaces, in an empty file tree.

    The calling process waits for that first process and exits with its code. If the calling process
    is killed, so is the first process, and with it all others.
    """
    _enter_tree(folder, os.getuid(), os.getgid())
    first_process = os.fork()
    if first_process:
        os.closerange(0, MAX_DESCRIPTORS)
        code = os.waitstatus_to_exitcode(os.waitpid(first_process, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    end_with_owner()
    # No capability is left, not even over the namespaces.
    call(libc.capset, struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))


def _enter_tree(folder: str, user: int, group: int) -> None:
    """Enter the namespaces; make `folder` a root that holds the standard library only."""
    call(
        libc.unshare,
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
    )
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={FOLDER_BYTES},nr_inodes=1024")
    library = folder + STANDARD_LIBRARY
    Path(library).mkdir(parents=True)
    _mount(STANDARD_LIBRARY, library, None, MS_BIND)
    _mount("none", library, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chroot(folder)
    os.chdir("/")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    call(libc.mount, *texts, ctypes.c_ulong(flags), data.encode())


def restrict_files(folder: str) -> None:
    """Landlock: `folder` may be used freely, the standard library read, nothing else opened."""
    version = call(libc.syscall, LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    file_rights = (1 << LANDLOCK_FILE_BITS[min(version, max(LANDLOCK_FILE_BITS))]) - 1
    rights = struct.pack("QQQ", file_rights, LANDLOCK_TCP, LANDLOCK_SCOPES)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call(libc.syscall, LANDLOCK_CREATE_RULESET, rights, ctypes.c_size_t(size), 0)
    for path, allowed in (
        (folder, file_rights & ~LANDLOCK_DEVICE_IOCTL),
        (STANDARD_LIBRARY, LANDLOCK_READ),
    ):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, descriptor)
        call(libc.syscall, LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        os.close(descriptor)
    call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(libc.syscall, LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def restrict_calls(folder: str) -> None:
    """Seccomp: the calls of ALLOWED_CALLS, and EPERM for all others."""
    machine = platform.machine()
    if machine not in ALLOWED_CALLS:
        raise PermissionError(f"no list of system calls for {machine}")
    architecture, numbers = ALLOWED_CALLS[machine]
    # The data begin with the call's number (at byte 0) and the architecture (at byte 4). Each
    # instruction is (operation, instructions to skip if the comparison holds, to skip if not,
    # operand).
    program = [
        (LOAD_WORD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD_WORD, 0, 0, 0),
        (JUMP_AT_LEAST, len(numbers), 0, X32_CALLS),
        *((JUMP_EQUAL, len(numbers) - index, 0, nr) for index, nr in enumerate(numbers)),
        (RETURN, 0, 0, FAIL_WITH_EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(libc.prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_program, 0, 0)


# In the order in which they have to be applied.
LAYER_FUNCTIONS = {
    NAMESPACES: enter_namespaces,
    LANDLOCK: restrict_files,
    SECCOMP: restrict_calls,
}
