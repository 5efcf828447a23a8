"""HTTP clients: transports of httpx whose requests are jobs of the message that the code works for."""

from __future__ import annotations

from typing import Any, Final

from acker.remote.jobs import DETACHED, Part, current
from acker.remote.runs import sending

try:
    import httpx
except ImportError as error:
    raise ImportError("acker.remote.httpx needs httpx: pip install 'acker[httpx]'") from error

__all__ = ["AckerTransport", "AsyncAckerTransport"]

_HEADER: Final = "Acker-Token"
_PART: Final = "acker"
_ERRORS: Final = 400


class AckerTransport(httpx.BaseTransport):  # type: ignore[misc, unused-ignore]  # httpx may be missing
    """A transport that gives each request a token, if its code works for a message or another job.

    The tree of that part then waits for the service, which has `acker.remote.asgi.AckerMiddleware`, or reports itself.
    So use it for clients of such services alone. A request that raises, or is answered with a status of 4xx or 5xx,
    fails the tree. To repeat requests, let the transport below do it, or set the header yourself, once for all repeats:
    this leaves such a request alone.

    Parameters
    ----------
    transport : httpx.BaseTransport, optional
        What sends the requests.

    Examples
    --------
    >>> client = httpx.Client(transport=AckerTransport(httpx.HTTPTransport(retries=3)))   # doctest: +SKIP
    """

    def __init__(self, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with a token."""
        part, name = _add_token(request)
        with sending(part, name):
            response = self._transport.handle_request(request)
        _check(part, name, response)
        return response

    def close(self) -> None:
        """Close the transport below."""
        self._transport.close()


class AsyncAckerTransport(httpx.AsyncBaseTransport):  # type: ignore[misc, unused-ignore]  # as above
    """The same for ``httpx.AsyncClient``.

    Parameters
    ----------
    transport : httpx.AsyncBaseTransport, optional
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with a token."""
        part, name = _add_token(request)
        with sending(part, name):
            response = await self._transport.handle_async_request(request)
        _check(part, name, response)
        return response

    async def aclose(self) -> None:
        """Close the transport below."""
        await self._transport.aclose()


def _add_token(request: Any) -> tuple[Part | None, str]:
    """Give a request a token; return the part that waits for it, and its name."""
    name = f"{request.method} {request.url.host}{request.url.path}"
    part: Part | None = request.extensions.get(_PART)  # of a request that was sent to another URL
    if part is None and _HEADER not in request.headers:
        part = current()
        if part is DETACHED:
            part = None
        if part is not None:
            request.headers[_HEADER] = part.token(name)
            request.extensions = {**request.extensions, _PART: part}
    return part, name


def _check(part: Part | None, name: str, response: Any) -> None:
    if part is not None and response.status_code >= _ERRORS:
        part.not_sent(f"{name} was answered with {response.status_code}")
