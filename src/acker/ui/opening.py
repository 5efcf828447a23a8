"""Opens the live page. The server is imported here alone, and only if somebody wants a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acker.errors import ArgumentValueError
from acker.ui.options import LivePage
from acker.ui.source import LiveSource

if TYPE_CHECKING:
    from acker.ui.server import LiveServer


def open_page(source: LiveSource, page: LivePage) -> LiveServer:
    """Serve the live page of a source, and print its URL.

    Raises
    ------
    PageError
        The address cannot be had.
    ModuleNotFoundError
        A package is missing; the text names the extra to install.
    ArgumentValueError
        The page is one that nobody serves.
    """
    if not page.serve:
        raise ArgumentValueError("ui: serve: expected True here: only topologies write reports; save the page instead")
    try:
        from acker.ui.server import LiveServer
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.startswith("acker"):
            raise
        text = f"ui: {missing.name} is not installed: pip install 'acker[ui]'"
        raise ModuleNotFoundError(text, name=missing.name) from None
    server = LiveServer(source, page)
    server.announce()
    return server
