"""The web application of the live page: the page itself, its figures as JSON and as events, metrics, and actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from acker.ui.feed import Feed, to_json
from acker.ui.frozen import freeze
from acker.ui.guard import Guard, refuse
from acker.ui.options import LivePage
from acker.ui.source import ActionError, LiveSource

STATIC: Final = Path(__file__).parent / "static"
# A stream keeps a connection; browsers open one a page.
STREAMS_MAX: Final = 32
_BODY_MAX: Final = 64 * 1024

logger = logging.getLogger("acker.ui")


class PageApp:
    """The answers to requests.

    Parameters
    ----------
    source : LiveSource
    page : LivePage
    token : str
    on_ready : callable
        Called on the event loop once requests are answered.

    Attributes
    ----------
    feed : Feed
    """

    def __init__(self, source: LiveSource, page: LivePage, token: str, on_ready: Callable[[], None]) -> None:
        self.feed = Feed(source, page.interval_secs)
        self._source = source
        self._on_ready = on_ready
        self._streams = 0
        routes = [
            Route("/", self._index),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/frozen.html", self._frozen),
            Route("/api/view", self._view),
            Route("/api/history", self._history),
            Route("/api/stats", self._stats),
            Route("/api/find", self._find),
            Route("/api/events", self._events),
            Route("/api/actions/{name}", self._act, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
        ]
        handlers: Any = {HTTPException: _explain}
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        self.asgi = Guard(app, page, token)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        reader = asyncio.create_task(self.feed.run())
        self._on_ready()
        try:
            yield
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _index(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _frozen(self, _: Request) -> Response:
        if not self.feed.latest:
            await self.feed.read()
        page = await asyncio.to_thread(freeze, self.feed.latest, self.feed.history())
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self._source.name)
        headers = {"content-disposition": f'attachment; filename="{name}.html"'}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    async def _view(self, _: Request) -> Response:
        if not self.feed.latest:
            await self.feed.read()
        return _json(self.feed.latest)

    async def _history(self, _: Request) -> Response:
        return _json(self.feed.history())

    async def _stats(self, _: Request) -> Response:
        return _json((await asyncio.to_thread(self._source.stats)).to_json())

    async def _find(self, request: Request) -> Response:
        text = request.query_params.get("id", "").strip()
        if not text:
            return refuse(400, "say which message: /api/find?id=...")
        return _json({"id": text, "found": await asyncio.to_thread(self._source.find, text)})

    async def _events(self, _: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return refuse(503, f"{STREAMS_MAX} pages are open already: close one")
        return StreamingResponse(self._counted_events(), media_type="text/event-stream")

    async def _counted_events(self) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            async for event in self.feed.events():
                yield event
        finally:
            self._streams -= 1

    async def _act(self, request: Request) -> Response:
        name = request.path_params["name"]
        action = self._source.actions.get(name)
        if action is None:
            known = ", ".join(self._source.actions) or "none"
            return refuse(404, f"there is no action {name!r}; there are: {known}")
        try:
            arguments = await _object_of(request)
            did = await asyncio.to_thread(action, arguments)
        except ActionError as error:
            return refuse(409, str(error))
        logger.warning("%s: from the live page: %s", self._source.name, did)
        await self.feed.read()
        return _json({"did": did})

    async def _metrics(self, _: Request) -> Response:
        text = await asyncio.to_thread(self._source.metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, _: Request) -> Response:
        if not self.feed.latest:
            await self.feed.read()
        view = self.feed.latest
        state = view.get("state", "unknown")
        ends = state in {"stopped", "unknown"}
        return _json({"state": state, "headline": view.get("headline", {}).get("text")}, 503 if ends else 200)


async def _object_of(request: Request) -> dict[str, Any]:
    """Return the JSON object of a POST; without a body an empty one."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_MAX:
            raise ActionError(f"the body is longer than {_BODY_MAX:,} bytes")
    try:
        found = json.loads(body or b"{}")
    except ValueError as error:
        raise ActionError(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ActionError(f"expected a JSON object, got {type(found).__name__}")
    return found


def _json(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


async def _explain(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(error.status_code, error.detail)
