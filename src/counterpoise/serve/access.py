"""Who may ask, and what a browser may do with the answers.

A page of another site can send requests to a server on this machine, and can even read the answers
if it makes its own name point here (DNS rebinding). So a request must name this server in `Host`,
must not come from another origin, must only read, and must carry the access token: in the cookie
that the first visit sets, or as `Authorization: Bearer`. The content security policy in every
answer lets a browser run only the server's own scripts, and exchange data with no other site.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
TOKEN = "token"
MOST_PARAMETERS = 200  # of one address
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class AccessGate:
    """An ASGI layer that refuses what must not be answered, and adds the headers to what is."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], port: int, token: str | None) -> None:
        """`hosts` are the names of this server; `token` None lets everybody on them in."""
        self.app = app
        # The case of a name means nothing: requests are compared in lower case too.
        names = {host.lower() for host in hosts}
        # A browser leaves the port out where it is the usual one.
        self.hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
        self.token = token
        self.cookie = f"poise_{port}"  # cookies of one host are shared by all its ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", PAGE_POLICY)
            await send(message)

        answer = self.refusal(scope) or self.admission(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that another site may have caused; None if it is all right."""
        headers = Headers(scope=scope)
        if headers.getlist("host") != [host := headers.get("host", "")] or (
            host.lower() not in self.hosts
        ):
            return PlainTextResponse(
                "refused: this server has no such host name; open the address that poise serve "
                "printed\n",
                421,
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return PlainTextResponse("refused: another origin\n", 403)
        # A link on another site may lead here; its scripts and images may not.
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("refused: another site\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("refused: only GET\n", 405, {"allow": "GET, HEAD"})
        return None

    def admission(self, scope: Scope) -> Response | None:
        """None for somebody with the token; else a redirect that sets the cookie, or a refusal."""
        query = scope["query_string"].decode("latin-1")
        try:
            parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
        except ValueError:
            return PlainTextResponse(f"refused: more than {MOST_PARAMETERS} parameters\n", 400)
        given = [value for name, value in parameters if name == TOKEN]
        others = [(name, value) for name, value in parameters if name != TOKEN]
        if given:
            scope["query_string"] = urlencode(others).encode("ascii")
        if self.token is None:
            return None
        headers = Headers(scope=scope)
        if self._is_right(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        if given and self._is_right(given[-1]):
            # A script that asks for JSON has no use for a cookie.
            if ("format", "json") in others:
                return None
            raw_path = scope.get("raw_path") or scope["path"].encode()
            address = "/" + raw_path.decode("latin-1").lstrip("/")
            response = RedirectResponse(address + (f"?{urlencode(others)}" if others else ""), 303)
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
            return response
        if self._is_right(self._cookie(headers)):
            return None
        return PlainTextResponse(
            "refused: open the address with ?token=... that poise serve printed\n", 401
        )

    def _is_right(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie(self, headers: Headers) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self.cookie].value if self.cookie in cookies else ""
