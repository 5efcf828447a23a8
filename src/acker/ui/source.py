"""The interface between the live page and whatever it shows: a topology, a consumer, streaming queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from acker.errors import AckerError

# An action takes the object that was posted, and returns one sentence: what it did.
Action = Callable[[Mapping[str, Any]], str]


class ActionError(AckerError, ValueError):
    """An action of the live page could not be carried out; the text says why."""


class LiveSource(Protocol):
    """The thing that a live page shows.

    Attributes
    ----------
    name : str
    actions : mapping of str to Action
    """

    name: str

    @property
    def actions(self) -> Mapping[str, Action]:
        """The actions by name."""

    def view(self) -> dict[str, Any]:
        """Return what the page shows now, as values for JSON. Only one thread calls this."""

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return what is known of messages whose id is this text. Any thread may call it."""

    def stats(self) -> Any:
        """Return the figures, which have `to_json`. Any thread may call it."""

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format. Any thread may call it."""
