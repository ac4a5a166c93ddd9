"""Requests that another site could cause are refused; answers forbid what a page must not do."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.synthetic import write_run
from serve.served import ORIGIN, PORT, serve
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from counterpoise.serve.access import AccessGate

TOKEN = "secret-token"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    write_run(folder / "one", iterations=1)
    with serve(folder, cache=folder / "cache", token=TOKEN) as client:
        yield client


BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "", "localhost"]
)
def test_another_host_name_is_refused(guarded, host):
    response = guarded.get("/", headers={**BEARER, "host": host})
    assert response.status_code == 421
    assert "open the address that poise serve printed" in response.text


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_names_of_this_machine_are_served(guarded, host):
    assert guarded.get("/", headers={**BEARER, "host": host}).status_code == 200


def test_a_name_with_capitals_is_this_server_too():
    gate = AccessGate(PlainTextResponse("answered"), ["Lab-PC"], PORT, None)
    for host in ("Lab-PC", "lab-pc"):  # as printed, and as a browser sends it
        client = TestClient(gate, base_url=f"http://{host}:{PORT}")
        assert client.get("/", headers={"host": f"{host}:{PORT}"}).text == "answered"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", ""])
def test_another_origin_is_refused(guarded, origin):
    response = guarded.get("/", headers={**BEARER, "origin": origin})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_the_own_origin_is_served_and_never_gets_cors_headers(guarded):
    response = guarded.get("/", headers={**BEARER, "origin": ORIGIN})
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_scripts_and_images_of_other_sites_are_refused_links_are_not(guarded):
    foreign = {**BEARER, "sec-fetch-site": "cross-site"}
    assert guarded.get("/", headers={**foreign, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert guarded.get("/", headers={**foreign, "sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_answered(guarded, method):
    assert guarded.request(method, "/", headers=BEARER).status_code == 405


@pytest.mark.parametrize("address", ["/", "/runs/one", "/events", "/assets/main.js", "/nowhere"])
def test_nothing_is_answered_without_the_token(guarded, address):
    guarded.cookies.clear()
    assert guarded.get(address).status_code == 401
    wrong = {"authorization": "Bearer wrong", "cookie": f"poise_{PORT}=wrong; x=\x7f"}
    assert guarded.get(address, headers=wrong).status_code == 401
    assert guarded.get(address, params={"token": "wrong"}).status_code == 401


def test_the_first_visit_sets_a_cookie_and_takes_the_token_out_of_the_address(guarded):
    guarded.cookies.clear()
    first = guarded.get(f"/runs/one/rollouts/1/a%2Fb/0?search=x&token={TOKEN}")
    assert first.status_code == 303
    assert first.headers["location"] == "/runs/one/rollouts/1/a%2Fb/0?search=x"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert guarded.get("/").status_code == 200  # the client keeps the cookie
    guarded.cookies.clear()
    assert guarded.get(f"/?format=json&token={TOKEN}").json()["runs"]


def test_the_redirect_stays_on_this_server(guarded):
    guarded.cookies.clear()
    response = guarded.get(f"//evil.example/x?token={TOKEN}")
    assert response.status_code == 303
    assert not response.headers["location"].startswith("//")


def test_every_answer_forbids_scripts_and_requests_of_others(guarded):
    for address, headers in (("/", BEARER), ("/nowhere", BEARER), ("/", {}), ("/events2", BEARER)):
        response = guarded.get(address, headers=headers)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


def test_an_address_with_too_many_parameters_is_refused(guarded):
    response = guarded.get("/?" + "&".join(f"p{k}=1" for k in range(300)))
    assert (response.status_code, response.text) == (400, "refused: more than 200 parameters\n")


def test_without_a_token_only_this_machine_is_served(tmp_path: Path):
    from counterpoise.errors import PoiseError
    from counterpoise.serve.start import ServeOptions
    from counterpoise.serve.start import serve as start

    options = ServeOptions([tmp_path], host="0.0.0.0", with_token=False, cache=tmp_path / "c")
    with pytest.raises(PoiseError, match="leave out --no-token"):
        start(options, print)
    with pytest.raises(PoiseError, match="does not exist"):
        start(ServeOptions([tmp_path / "none"]), print)
