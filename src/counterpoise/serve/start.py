"""Start the server: check the folders, take a port, print the address, serve until Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from counterpoise.errors import PoiseError, first_line
from counterpoise.serve.access import LOOPBACK, AccessGate
from counterpoise.serve.app import make_app
from counterpoise.serve.discover import is_run_folder
from counterpoise.serve.index.process import IndexProcess
from counterpoise.serve.library import RunLibrary

DEFAULT_PORT = 8642
PORTS_TO_TRY = 20
EVERY_INTERFACE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `poise serve`."""

    folders: Sequence[Path]
    host: str = "127.0.0.1"
    port: int | None = None  # None: DEFAULT_PORT or the next that is free
    with_token: bool = True
    cache: Path | None = None


def serve(options: ServeOptions, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` gets the address to open."""
    folders = check_folders(options.folders)
    is_local = is_loopback(options.host)
    if not is_local and not options.with_token:
        raise PoiseError(
            f"--host {options.host} lets other machines in, so it needs the token: "
            "leave out --no-token"
        )
    cache = options.cache or default_cache()
    if run_folder := enclosing_run(cache, folders):
        raise PoiseError(f"{cache} lies in the run folder {run_folder}: choose another --cache")
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as fault:
        raise PoiseError(
            f"{cache} cannot be written: {fault.strerror}; choose another --cache"
        ) from fault
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24) if options.with_token else None
    library = RunLibrary(folders, cache, IndexProcess(cache))
    names = server_names(options.host)
    gate = AccessGate(make_app(library), [*names, *LOOPBACK], port, token)
    announce(f"http://{names[0]}:{port}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        gate,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        library.close()
        listener.close()


def check_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders to serve; without any, `out` if there is one, else the current folder."""
    chosen = list(folders) or [Path("out") if Path("out").is_dir() else Path()]
    for folder in chosen:
        if not folder.is_dir():
            problem = "is a file" if folder.exists() else "does not exist"
            raise PoiseError(f"{folder} {problem}: name a run folder, or a folder of runs")
    return chosen


def enclosing_run(path: Path, folders: Sequence[Path]) -> Path | None:
    """The run folder, among the served ones or below them, that a path lies in; None if none."""
    roots = [folder.resolve() for folder in folders]
    for folder in (path.resolve(), *path.resolve().parents):
        is_served = any(folder.is_relative_to(root) for root in roots)
        if not is_served or not folder.is_dir():
            continue
        if is_run_folder({child.name for child in folder.iterdir()}):
            return folder
    return None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_names(host: str) -> list[str]:
    """Host names in addresses that reach a server listening on `host`, the best to print first.

    Example:
        >>> server_names("::1"), server_names("localhost")
        (['[::1]'], ['127.0.0.1'])
    """
    if host == "localhost":  # `listen` takes the IPv4 one
        return ["127.0.0.1"]
    if host in EVERY_INTERFACE:
        names = [*own_addresses(with_ipv6=":" in host), socket.gethostname()]
    else:
        names = [host]
    return [f"[{name}]" if ":" in name else name for name in names]


def own_addresses(*, with_ipv6: bool) -> list[str]:
    """Addresses of this machine: IPv4 before IPv6, and of each the loopback addresses last."""
    family = socket.AF_UNSPEC if with_ipv6 else socket.AF_INET
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, family)
    except OSError:
        entries = []
    # The host name may stand for a loopback address only, as on Debian (127.0.1.1).
    addresses = {str(entry[4][0]) for entry in entries} | set(outgoing_addresses())
    return sorted(addresses, key=lambda address: (":" in address, is_loopback(address), address))


def outgoing_addresses() -> list[str]:
    """The IPv4 address that connections to other machines come from; none without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # chooses a route and sends nothing
            return [probe.getsockname()[0]]
        except OSError:
            return []


def default_cache() -> Path:
    """The user's cache folder, as the XDG rules name it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "counterpoise"


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; a port that was asked for is not replaced by another."""
    ports = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for candidate in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
        except OSError as fault:
            listener.close()
            if isinstance(fault, socket.gaierror) or fault.errno == errno.EADDRNOTAVAIL:
                raise PoiseError(
                    f"{host} is no address of this machine: {fault.strerror}; choose another --host"
                ) from fault
            reason = fault.strerror or first_line(fault)
            continue
        listener.listen(128)
        return listener
    tried = f"{host}:{ports[0]}" + (f" to {ports[-1]}" if len(ports) > 1 else "")
    raise PoiseError(f"{tried} cannot be used: {reason}; choose another --port")
