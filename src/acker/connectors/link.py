"""One connection of a broker's client: opened anew each time, closed once, and its secrets in no text."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from acker.errors import ConnectionLostError
from acker.observe.secret_texts import Secrets

Client = TypeVar("Client")


@dataclass(frozen=True, repr=False)
class ServerAddress:
    """Where a server is and how to connect to it, as the user said. Both may hold secrets, so its repr has neither."""

    server: Any
    options: Mapping[str, Any]


class Link(abc.ABC, Generic[Client]):
    """A connection that can be opened again, for a source or a publisher.

    Parameters
    ----------
    name : str
        Whose connection it is, for errors.
    secrets : iterable, optional
        They appear in no text that `hide` returns.
    """

    def __init__(self, name: str, secrets: Iterable[object] = ()) -> None:
        self.name = name
        self.hide = Secrets(secrets).hide
        self._client: Client | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """The client of this connection.

        Raises
        ------
        ConnectionLostError
            There is none now.
        """
        if self._client is None:
            raise ConnectionLostError(f"{self.name}: not connected")
        return self._client

    def open(self) -> None:
        """Close what is open, and connect.

        Raises
        ------
        SourceError, ConnectionLostError
            As `Source.open` does.
        """
        self.close()
        self._client = self.connect()

    def ensure_open(self) -> None:
        """Connect unless there is a connection; see `open`."""
        if not self.is_open:
            self.open()

    def close(self) -> None:
        """Disconnect, if there is a connection."""
        client, self._client = self._client, None
        if client is not None:
            self.disconnect(client)

    @abc.abstractmethod
    def connect(self) -> Client:
        """Return a new client that is connected; raise the errors of acker."""

    @abc.abstractmethod
    def disconnect(self, client: Client) -> None:
        """Close a client."""
