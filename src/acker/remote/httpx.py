"""HTTP clients: transports of httpx whose requests are jobs of the message that the code works for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
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


class AckerTransport(httpx.BaseTransport):  # type: ignore[misc, unused-ignore]  # httpx may be missing
    """A transport that gives each request a token, if its code works for a message or another job.

    The tree of that part then waits for the service, which has `acker.remote.asgi.AckerMiddleware`, or reports itself.
    So use it for clients of such services alone. A request that raises, also while its answer is read, fails the tree,
    and so does any answer but 2xx and a redirect. To repeat requests, let the transport below do it, or set the header
    yourself, once for all repeats: this leaves such a request alone.

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
        if part is not None:
            _check(part, name, response)
            response.stream = _Body(response.stream, part, name)
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
        if part is not None:
            _check(part, name, response)
            response.stream = _AsyncBody(response.stream, part, name)
        return response

    async def aclose(self) -> None:
        """Close the transport below."""
        await self._transport.aclose()


class _Body(httpx.SyncByteStream):  # type: ignore[misc, unused-ignore]  # as above
    """The body of an answer, which fails the tree if it cannot be read. Code that stops reading it changes nothing."""

    def __init__(self, stream: Any, part: Part, name: str) -> None:
        self._stream = stream
        self._part = part
        self._name = name

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._stream)
        while True:
            with sending(self._part, self._name):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def close(self) -> None:
        self._stream.close()


class _AsyncBody(httpx.AsyncByteStream):  # type: ignore[misc, unused-ignore]  # as above
    """The same for ``httpx.AsyncClient``."""

    def __init__(self, stream: Any, part: Part, name: str) -> None:
        self._stream = stream
        self._part = part
        self._name = name

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        while True:
            with sending(self._part, self._name):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


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


def _check(part: Part, name: str, response: Any) -> None:
    # Whether the client follows a redirect, nobody knows here.
    if not response.is_success and not response.has_redirect_location:
        part.not_sent(f"{name} was answered with {response.status_code}")
