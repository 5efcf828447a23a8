"""The options of the live page, and the short forms in which users write them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from acker.errors import ArgumentTypeError, ArgumentValueError

PORT: Final = 8790

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]*):)?(?P<port>\d+)|(?P<alone>[^:\[\]]+|\[[^\]]+\])")


@dataclass(frozen=True, kw_only=True)
class LivePage:
    """Options of the live page.

    Attributes
    ----------
    host : str
        The address to listen on. By default this machine alone, since there is no login: whoever reaches the page can
        read it. Actions also need the token.
    port : int
        0: a free one.
    values : bool
        Whether the values of dead letters are shown. They may be secret.
    interval_secs : float
        The time between two readings. They come less often where reading takes long: it takes at most a fiftieth of
        the time.
    serve : bool
        False, for topologies alone: there is no page to visit, and no server; what it would show is kept for the frozen
        page of a report.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    values: bool = False
    interval_secs: float = 1.0
    serve: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ArgumentValueError(f"ui: expected port 0 to 65535, got {self.port!r}")
        if not self.host:
            raise ArgumentValueError("ui: host: expected an address such as 127.0.0.1, got ''")
        if not self.interval_secs > 0:
            raise ArgumentValueError(f"ui: interval_secs: expected more than 0, got {self.interval_secs!r}")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


# The values that users may give as `ui`.
PageChoice = LivePage | bool | int | str | None


def live_page_of(ui: PageChoice) -> LivePage | None:
    """Return the options of a page; None if none is wanted.

    Parameters
    ----------
    ui : LivePage, bool, int, str or None
        True: the default address. An int: its port. A str: "HOST:PORT", "HOST" or "PORT".

    Raises
    ------
    ArgumentTypeError, ArgumentValueError

    Examples
    --------
    >>> live_page_of("0.0.0.0:8000").host, live_page_of("[::1]:0").host, live_page_of(True).port
    ('0.0.0.0', '::1', 8790)
    """
    if ui is None or ui is False:
        return None
    if isinstance(ui, LivePage):
        return ui
    if ui is True:
        return LivePage()
    if isinstance(ui, int):
        return LivePage(port=ui)
    if not isinstance(ui, str):
        raise ArgumentTypeError(f"ui: expected True, a port, 'HOST:PORT' or a LivePage, got {ui!r}")
    parts = _ADDRESS.fullmatch(ui)
    if parts is None:
        raise ArgumentValueError(f"ui: expected HOST:PORT, HOST or PORT, got {ui!r}")
    host = (parts["host"] or parts["alone"] or LivePage.host).strip("[]")
    return LivePage(host=host, port=PORT if parts["port"] is None else int(parts["port"]))
