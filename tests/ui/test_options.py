"""The short forms of the options of a page."""

from __future__ import annotations

import pytest

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.ui import LivePage
from acker.ui.options import PORT, live_page_of


@pytest.mark.parametrize(
    ("ui", "host", "port"),
    [
        (True, "127.0.0.1", PORT),
        (8000, "127.0.0.1", 8000),
        (0, "127.0.0.1", 0),
        ("8000", "127.0.0.1", 8000),
        (":8000", "127.0.0.1", 8000),
        ("0.0.0.0:8000", "0.0.0.0", 8000),
        ("machine.example", "machine.example", PORT),
        ("[::1]:8000", "::1", 8000),
        ("[::1]", "::1", PORT),
        (LivePage(port=1), "127.0.0.1", 1),
    ],
    ids=str,
)
def test_the_address_is_read(ui, host, port) -> None:
    page = live_page_of(ui)
    assert (page.host, page.port, page.values) == (host, port, False)


@pytest.mark.parametrize("ui", [None, False])
def test_there_is_none_unless_asked_for(ui) -> None:
    assert live_page_of(ui) is None


@pytest.mark.parametrize("ui", ["", "a:b", "1:2:3", "host:99999999", 70_000, "[::1", -1])
def test_what_is_no_address_is_refused(ui) -> None:
    with pytest.raises(ArgumentValueError, match="ui: "):
        live_page_of(ui)


def test_other_types_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="'HOST:PORT' or a LivePage"):
        live_page_of(["127.0.0.1"])
    with pytest.raises(ArgumentValueError, match="interval_secs"):
        LivePage(interval_secs=0)
    with pytest.raises(ArgumentValueError, match="host"):
        LivePage(host="")


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)]
)
def test_only_loopback_is_private(host, loopback) -> None:
    assert LivePage(host=host).is_loopback is loopback
