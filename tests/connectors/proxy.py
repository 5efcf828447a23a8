"""A TCP proxy on loopback that can cut, stall and refuse connections, for tests of connectors."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Self

# Closing a socket with this sends a reset, as a dying host does, instead of an orderly end.
_RESET = struct.pack("ii", 1, 0)
_LOOK_SECS = 0.05


@contextlib.contextmanager
def port_without_server() -> Iterator[int]:
    """Give a port of 127.0.0.1 that refuses connections, and that no program can take meanwhile."""
    with socket.socket() as bound:  # which does not listen
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Proxy:
    """Forwards connections to a server, until it is told otherwise.

    Parameters
    ----------
    port : int
        The server's.
    host : str
        The server's.
    own_port : int
        The port to listen on; 0 is any. A Kafka tells its clients which one it has to be.

    Attributes
    ----------
    port : int
        The proxy's own port, on 127.0.0.1.
    accepted : int
        How many connections were accepted and forwarded.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", own_port: int = 0) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", own_port))
        self._listener.settimeout(_LOOK_SECS)
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_refusing = False
        self._is_closed = False
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def cut(self) -> int:
        """Reset all connections; return how many. New ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
            for pair in pairs:
                for end in pair:
                    _reset(end)
        return len(pairs)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Let no byte pass within this context, in either direction. Connections stay."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Reset all connections, and each new one at once, within this context."""
        with self._lock:
            self._is_refusing = True
        self.cut()
        try:
            yield
        finally:
            with self._lock:
                self._is_refusing = False

    def close(self) -> None:
        """End all connections and threads."""
        self._is_closed = True
        self._flows.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                _reset(client)
                client.close()
                continue
            with self._lock:
                pair = (client, server)
                if not self._is_refusing and not self._is_closed:
                    self._pairs.add(pair)
                    self.accepted += 1
                    thread = threading.Thread(target=self._forward, args=pair, name="proxied", daemon=True)
                    self._threads.append(thread)
                    thread.start()
                    continue
            for end in pair:
                _reset(end)
                end.close()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        try:
            for end in other:
                end.settimeout(10)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                ready, _, _ = select.select(list(other), [], [], _LOOK_SECS)
                for end in ready:
                    data = end.recv(2**16)
                    self._flows.wait()
                    if not data:
                        return
                    other[end].sendall(data)
        except (OSError, ValueError):  # cut, or one side has gone
            pass
        finally:
            with self._lock:
                self._pairs.discard((client, server))
                for end in other:
                    end.close()


def _reset(end: socket.socket) -> None:
    """Reset a connection. Its descriptor is open until `close`, on nothing.

    Else a new connection could get its number, and the thread that is about to read from the old one would read its
    first bytes.
    """
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    # Wakes the thread that reads it; closing alone does not.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, end.fileno(), inheritable=False)
    os.close(nothing)
