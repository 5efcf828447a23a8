"""The guard of the live page: which hosts may be asked for, which requests may act, and the headers of each answer."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acker.ui.options import LivePage

TOKEN_HEADER: Final = "x-acker-token"

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """Wraps an application: refuses what a page of somebody else could send.

    A name that leads to this machine today may have belonged to another one when a browser loaded a page from it (DNS
    rebinding), so `Host` has to be an address, localhost, or a name that the page was told.

    Parameters
    ----------
    app : ASGIApp
    page : LivePage
    token : str
        The header `x-acker-token` of each POST has to hold it.
    """

    def __init__(self, app: ASGIApp, page: LivePage, token: str) -> None:
        self._app = app
        self._token = token
        self._names = {"localhost", page.host.lower()}
        if not page.is_loopback:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> JSONResponse | None:
        headers = request.headers
        host = headers.get("host", "")
        if not self._is_known(host):
            text = f"this page is not for the host {host!r}: open it by its address, or start it with that name"
            return refuse(421, text)
        if request.method in {"GET", "HEAD"}:
            return None
        if not is_same_origin(headers, host):
            return refuse(403, "the request comes from a page of another origin")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return refuse(403, f"the header {TOKEN_HEADER} has to hold the token that was printed at the start")
        return None

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


def is_same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Return whether a request comes from a page of this host, or from no browser."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def refuse(status: int, text: str) -> JSONResponse:
    """Return an answer that says in one sentence why there is no other one."""
    return JSONResponse({"error": text}, status)
