"""HTTP services: middleware that reports the requests that are jobs of trees, for any framework with ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from acker.errors import ArgumentTypeError
from acker.remote.jobs import Job, find_job, working_for
from acker.remote.replies import Replies

__all__ = ["AckerMiddleware"]

_HEADER: Final = b"acker-token"
_OK: Final = range(200, 300)

_Event = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Send = Callable[[_Event], Awaitable[None]]
_App = Callable[[_Event, _Receive, _Send], Awaitable[None]]


class AckerMiddleware:
    """ASGI middleware that reports requests with the header ``Acker-Token``, which are jobs of a tree.

    Within a request, `acker.remote.current` is its job. The request is done when the application has returned: the
    whole answer is sent, and background tasks have ended. With a status of 2xx it is reported as done, or as failed if
    something was raised behind the answer. Any other answer reports nothing, nor does one that is cut off: the client
    sees it, and repeats the request with the same token, or fails.

    Parameters
    ----------
    app : ASGI application
    replies : Replies
        To the same server as those of whoever waits.

    Examples
    --------
    >>> app.add_middleware(AckerMiddleware, replies=replies)   # doctest: +SKIP
    """

    def __init__(self, app: _App, replies: Replies) -> None:
        if not isinstance(replies, Replies):
            raise ArgumentTypeError(
                f"replies: expected Replies, such as RedisReplies(url), got {type(replies).__name__}"
            )
        self._app = app
        self._replies = replies

    async def __call__(self, scope: _Event, receive: _Receive, send: _Send) -> None:
        """Handle a request, as ASGI says."""
        job = self._job_of(scope)
        if job is None:
            await self._app(scope, receive, send)
        else:
            await self._handle(job, scope, receive, send)

    def _job_of(self, scope: _Event) -> Job | None:
        if scope["type"] != "http":
            return None
        # Of several, nobody knows which one is meant: together they are no token, and the log says so.
        tokens = [value for name, value in scope["headers"] if name.lower() == _HEADER]
        return find_job(b", ".join(tokens) if tokens else None, self._replies, f"{scope['method']} {scope['path']}")

    async def _handle(self, job: Job, scope: _Event, receive: _Receive, send: _Send) -> None:
        status, is_whole = 0, False

        async def watch(event: _Event) -> None:
            nonlocal status, is_whole
            status = event.get("status", status)
            await send(event)
            # Frameworks cancel an answer whose client is gone, and return as usual.
            is_whole = event["type"] != "http.response.start" and not event.get("more_body")

        try:
            with working_for(job):
                await self._app(scope, receive, watch)
        except Exception as error:
            if is_whole and status in _OK:
                await asyncio.to_thread(job.finish, error)
            raise
        else:
            if is_whole and status in _OK:
                await asyncio.to_thread(job.finish)
        finally:
            job.abandon()
