"""The server of the live page, on a thread of its own (`pip install 'acker[ui]'`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
import threading
from typing import Any, Final

import uvicorn

from acker.errors import PageError
from acker.ui.app import PageApp
from acker.ui.options import LivePage
from acker.ui.source import LiveSource

# How long the end waits for browsers to take the last reading.
_GOODBYE_SECS: Final = 2
_BACKLOG: Final = 128

logger = logging.getLogger("acker.ui")


class LiveServer:
    """Serves the live page of a source, from its start until `close`.

    Parameters
    ----------
    source : LiveSource
    page : LivePage

    Attributes
    ----------
    host, port : str, int
        The address on which it listens.
    token : str
        Needed for actions.

    Raises
    ------
    PageError
        The port is in use, or the host is no address of this machine.
    """

    def __init__(self, source: LiveSource, page: LivePage) -> None:
        self.token = secrets.token_urlsafe(18)
        self._name = source.name
        self._socket = _listen(page)
        self.host, self.port = page.host, self._socket.getsockname()[1]
        self._ready = threading.Event()
        self._closing = threading.Lock()
        self._app = PageApp(source, page, self.token, self._on_ready)
        config = uvicorn.Config(
            self._app.asgi,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GOODBYE_SECS,
        )
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=f"{source.name}.ui", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _on_ready(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()

    def _work(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:
            logger.exception("%s: the live page has ended; what it shows runs on", self._name)
        finally:
            self._socket.close()
            self._ready.set()

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{_url_host(self.host)}:{self.port}/"

    @property
    def url_with_token(self) -> str:
        """The page with the token in the fragment, which browsers send to nobody."""
        return f"{self.url}#token={self.token}"

    def recorded(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the last reading and the history, once it is closed."""
        return self._app.feed.latest, self._app.feed.history()

    def announce(self) -> None:
        """Print the URL with the token. Not to the log, which others may read."""
        sys.stderr.write(f"live page of {self._name}: {self.url_with_token}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Let browsers have the last reading, and stop. May be called again."""
        with self._closing:
            if self._loop is None or not self._thread.is_alive():
                return
            try:
                asyncio.run_coroutine_threadsafe(self._app.feed.finish(), self._loop).result(_GOODBYE_SECS)
            except Exception:
                logger.exception("%s: the live page could not show the end", self._name)
            self._server.should_exit = True
            self._thread.join(3 * _GOODBYE_SECS)


def _url_host(host: str) -> str:
    if host in {"0.0.0.0", "::"}:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(page: LivePage) -> socket.socket:
    where = f"{_url_host(page.host)}:{page.port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(page.host, page.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PageError(f"ui: {page.host} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PageError(f"ui: {where}: {error.strerror}: take another port, or 0 for a free one") from error
    return listener
