"""One connection to NATS on an event loop of its own thread, for replies and for connectors. The client is nats-py."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from acker.errors import AckerError, ConnectionLostError, SourceError
from acker.observe.secret_texts import Secrets

ANSWER_SECS: Final = 5.0
# Between looks whether the connection lives, while an answer is awaited.
LOOK_SECS: Final = 0.1

_log = logging.getLogger("acker.remote")

T = TypeVar("T")


class NATSLink:
    """One connection, on an event loop of its own thread, so that heartbeats go on whatever the callers do.

    The client does not connect again by itself: it would send old requests and acks without a word. One thread opens
    it; any thread may run something on it, and gets a ConnectionLostError if it is closed meanwhile.

    Parameters
    ----------
    name : str
        Whose connection it is, for errors and logs.
    servers : str or list of str
    options : mapping
        More options of ``nats.connect``.
    """

    def __init__(self, name: str, servers: str | list[str], options: Mapping[str, Any]) -> None:
        self._name = name
        self._servers = servers
        # Each server of the list is tried twice; then the consumer waits, and lets the source try again.
        once = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": LOOK_SECS}
        self._options = {"connect_timeout": ANSWER_SECS, "ping_interval": 20, **options, **once}
        self._secrets = Secrets(options.get(option) for option in ("password", "token", "nkeys_seed_str"))
        # Held while something is put on the loop, or while the loop goes: so what was put there ends with it.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._on_change: Callable[[], object] = bool
        self._refusal: str | None = None
        self._noted = ""
        # A request had no answer. The client takes a late answer for that to another request.
        self._is_broken = False
        self.client: Any = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that works, as far as one knows."""
        return self.client is not None and self.client.is_connected and not self._is_broken

    def open(self, on_change: Callable[[], object] = bool) -> None:
        """Close what is open, and connect; `on_change` is called when something happens to the connection.

        Raises
        ------
        SourceError, ConnectionLostError
            As `Source.open` does.
        """
        self.close()
        self._on_change, self._refusal, self._is_broken = on_change, None, False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note_context)
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"acker {self._name}", daemon=True)
        self._thread.start()
        try:
            self.client = self.run(self._connect(), 4 * ANSWER_SECS)
        except AckerError:
            self.close()
            raise

    async def _connect(self) -> Any:
        client = Client()
        try:
            await client.connect(
                self._servers, error_cb=self._note, disconnected_cb=self._tell, closed_cb=self._tell, **self._options
            )
        except BaseException:
            with contextlib.suppress(Exception):  # as where no connection had begun; why is in the first error
                await client.close()
            raise
        return client

    async def _note(self, error: Exception) -> None:
        """Note an error that belongs to no call. Those of permissions are told to the next one."""
        text = self.text_of(error)
        if "permissions violation" in text.lower():
            self._refusal = text
        self._noted = text
        _log.debug("%s: %s", self._name, text)
        self._on_change()

    async def _tell(self) -> None:
        self._on_change()

    def _note_context(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note what the client's own tasks have raised, such as an error while it closes a broken connection."""
        error = context.get("exception")
        _log.debug("%s: %s", self._name, context["message"] if error is None else self.text_of(error))
        self._on_change()

    def check(self) -> None:
        """Raise what has happened to the connection."""
        if self._refusal is not None:
            raise SourceError(f"{self._name}: {self._refusal}")
        if not self.is_open:
            raise ConnectionLostError(f"{self._name}: the connection is lost")

    def run(self, work: Coroutine[Any, Any, T], timeout_secs: float = 2 * ANSWER_SECS, *, watch: bool = True) -> T:
        """Run a coroutine on the loop, and return its result; watch the connection meanwhile."""
        with self._lock:
            if self._loop is None:
                work.close()
                raise ConnectionLostError(f"{self._name}: not connected")
            future = asyncio.run_coroutine_threadsafe(self._run_while_connected(work) if watch else work, self._loop)
        try:
            return future.result(timeout_secs)
        except AckerError:
            raise
        except TimeoutError as error:
            future.cancel()
            self._is_broken = True
            # NATS does not answer what it forbids.
            why = f"; {self._refusal}" if self._refusal else ""
            raise ConnectionLostError(f"{self._name}: no answer in time{why}") from error
        except concurrent.futures.CancelledError as error:
            raise ConnectionLostError(f"{self._name}: the connection was closed meanwhile") from error
        except Exception as error:
            raise self._translated(error) from error

    async def flush(self, timeout_secs: float) -> None:
        """Wait until the server has read all that was published: an ack has no answer, but a ping has.

        Two pings, since the client's first one overtakes what it has not written yet.
        """
        for _ in range(2):
            await self.client.flush(timeout_secs)

    async def _run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine until the connection is lost. The client lets some requests wait for their timeout then."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=LOOK_SECS))[0]:
            if self.client is not None and self.client.is_closed:
                task.cancel()
                raise ConnectionLostError(f"{self._name}: the connection is lost")
        return task.result()

    def close(self) -> None:
        """Disconnect, if there is a connection."""
        loop, thread, client = self._loop, self._thread, self.client
        if loop is None or thread is None:
            return
        if client is not None and not client.is_closed:
            try:
                self.run(client.close(), ANSWER_SECS, watch=False)
            except AckerError as error:
                _log.debug("%s: %s", self._name, error)
        with self._lock:
            self._loop = self._thread = self.client = None
            ending = asyncio.run_coroutine_threadsafe(_cancel_tasks(), loop)
        concurrent.futures.wait([ending], ANSWER_SECS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def text_of(self, error: BaseException) -> str:
        """Return an error as a text without secrets."""
        return self._secrets.hide(re.sub(r"//[^/@\s]*@", "//", f"{error}" or type(error).__name__))

    def _translated(self, error: Exception) -> AckerError:
        """Return what a consumer makes of an error of nats-py."""
        text = f"{self._name}: {self.text_of(error)}"
        lower = text.lower()
        if "authorization" in lower or "authentication" in lower or "permissions violation" in lower:
            return SourceError(f"{self._name}: NATS refuses the credentials: {self.text_of(error)}")
        if isinstance(error, nats.js.errors.NotFoundError | nats.js.errors.BadRequestError | ValueError | TypeError):
            return SourceError(text)
        if isinstance(error, nats.errors.NoServersError):  # which does not say why
            text = f"{text}: {self._noted}"
        return ConnectionLostError(text)


async def _cancel_tasks() -> None:
    """Let what the client has left behind end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
