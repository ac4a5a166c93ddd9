"""Starting: one clear line for what cannot be, and a server that ends with its process."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from report.synthetic import write_run

from counterpoise.cli import serve as command
from counterpoise.errors import PoiseError
from counterpoise.serve import start


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "counterpoise.serve.start", None)
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[serve\]'"):
        command.serve([tmp_path])


def test_a_port_that_was_asked_for_is_not_replaced():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PoiseError, match="choose another --port"):
            start.listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1"])
def test_a_host_of_another_machine_is_no_matter_of_the_port(host: str):
    with pytest.raises(PoiseError, match=f"{host} is no address of this machine.*--host"):
        start.listen(host, None)


def test_without_a_port_the_next_free_one_is_taken(monkeypatch: pytest.MonkeyPatch):
    with start.listen("127.0.0.1", 0) as taken:
        monkeypatch.setattr(start, "DEFAULT_PORT", taken.getsockname()[1])
        with start.listen("127.0.0.1", None) as other:
            assert other.getsockname()[1] != taken.getsockname()[1]


def test_folders_and_their_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert start.check_folders([]) == [Path()]
    (tmp_path / "out").mkdir()
    assert start.check_folders([]) == [Path("out")]
    (tmp_path / "file").touch()
    with pytest.raises(PoiseError, match="is a file"):
        start.check_folders([Path("file")])


def test_the_cache_is_the_users_and_never_in_a_run(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert start.default_cache() == tmp_path / "cache" / "counterpoise"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert start.default_cache() == Path.home() / ".cache" / "counterpoise"
    run = write_run(tmp_path / "run", 1)
    for served in (run, tmp_path):
        with pytest.raises(PoiseError, match=f"lies in the run folder {run}: choose another"):
            start.serve(start.ServeOptions([served], cache=run / "index"), print)
    assert not (run / "index").exists()
    assert start.enclosing_run(tmp_path / "cache", [tmp_path]) is None
    (tmp_path / "file").touch()
    with pytest.raises(PoiseError, match="choose another --cache"):
        start.serve(start.ServeOptions([run], cache=tmp_path / "file" / "x"), print)


def test_hosts_of_this_machine_are_known():
    assert [start.is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [start.is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example")] == [False] * 3


def test_the_printed_address_is_one_that_is_listened_on(monkeypatch: pytest.MonkeyPatch):
    hosts = ("127.0.0.1", "127.0.0.5", "localhost", "::1", "10.0.0.1", "fd00::2")
    assert [start.server_names(host) for host in hosts] == [
        ["127.0.0.1"], ["127.0.0.5"], ["127.0.0.1"], ["[::1]"], ["10.0.0.1"], ["[fd00::2]"],
    ]  # fmt: skip
    entries = [(0, 0, 0, "", (address, 0)) for address in ("fd00::2", "127.0.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: entries)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(start, "outgoing_addresses", list)
    assert start.server_names("::") == ["10.0.0.1", "127.0.1.1", "[fd00::2]", "box"]


def test_a_host_name_of_the_loopback_does_not_hide_the_address_in_the_network(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(start, "outgoing_addresses", lambda: ["10.0.0.1"])
    assert start.server_names("0.0.0.0") == ["10.0.0.1", "127.0.1.1", "box"]


def test_an_address_in_the_network_is_one_of_this_machine():
    for address in start.outgoing_addresses():  # none without a network
        with start.listen(address, 0) as listener:
            assert listener.getsockname()[0] == address


@pytest.mark.slow
def test_a_real_server_answers_and_stops(tmp_path: Path):
    write_run(tmp_path / "runs" / "one", 2)
    arguments = ["serve", str(tmp_path / "runs"), "--port", "0", "--cache", str(tmp_path / "c")]
    process = subprocess.Popen(
        [sys.executable, "-m", "counterpoise.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    )
    address = process.stdout.readline().strip()
    host, _, token = address.removeprefix("http://").partition("/?token=")
    assert len(token) >= 32
    connection = http.client.HTTPConnection(host, timeout=600)
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
        connection.request("GET", "/runs/one/rollouts", headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    process.terminate()
    assert process.wait(timeout=600) is not None
