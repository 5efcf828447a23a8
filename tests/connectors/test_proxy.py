"""The proxy of the tests of connectors."""

from __future__ import annotations

import socket
import threading

import pytest

from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.proxy import Proxy, port_without_server

LONG = 60.0


@pytest.fixture
def echo():
    """The port of a server that returns what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(end):
        with end:
            try:
                while data := end.recv(1000):
                    end.sendall(data)
            except OSError:
                pass

    def accept():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(end,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LONG)


def connect(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=LONG)


def asked(end, data=b"hello"):
    end.sendall(data)
    return end.recv(1000)


def is_lost(end):
    try:
        return asked(end) == b""
    except OSError:
        return True


def is_refused(proxy):
    """Return whether a connection cannot be made, or is lost at once: which of the two is a matter of time."""
    try:
        with connect(proxy) as end:
            return is_lost(end)
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways(echo):
    with Proxy(echo) as proxy, connect(proxy) as one, connect(proxy) as two:
        assert (asked(one, b"one"), asked(two, b"two")) == (b"one", b"two")
        assert proxy.accepted == 2


def test_a_cut_connection_is_lost_and_a_new_one_works(echo):
    with Proxy(echo) as proxy, connect(proxy) as one:
        asked(one)
        assert proxy.cut() == 1
        assert is_lost(one)
        with connect(proxy) as two:
            assert asked(two) == b"hello"


def test_a_stalled_connection_stays(echo):
    with Proxy(echo) as proxy, connect(proxy) as end:
        asked(end)
        with proxy.stalled():
            end.sendall(b"later")
            end.settimeout(0.05)
            with pytest.raises(TimeoutError):
                end.recv(1000)
        end.settimeout(LONG)
        assert end.recv(1000) == b"later"


def test_refused_connections_are_lost_at_once(echo):
    with Proxy(echo) as proxy, connect(proxy) as one:
        asked(one)
        with proxy.refusing():
            assert is_lost(one) and is_refused(proxy)
        with connect(proxy) as three:
            assert asked(three) == b"hello"


def test_a_client_that_leaves_is_noticed(echo):
    with Proxy(echo) as proxy:
        with connect(proxy) as end:
            asked(end)
        wait_until(lambda: not proxy._pairs, "the proxy lets go of its connection to the server", LONG)
        assert proxy.accepted == 1 and proxy.cut() == 0


def test_a_server_that_is_gone_ends_the_connection():
    with port_without_server() as port, Proxy(port) as proxy:
        assert is_refused(proxy)
