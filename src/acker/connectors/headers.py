"""Values of headers, for brokers whose headers are texts or JSON; the names of those that a dead letter has."""

from __future__ import annotations

import re
from typing import Any, Final

# The headers of a dead letter beside those of its message.
REASON: Final = "acker-reason"  # why the last attempt failed
ATTEMPTS: Final = "acker-attempts"  # how many were made
KEY: Final = "acker-key"  # the name of the message for people
SOURCE: Final = "acker-source"  # the name of the source that it came from
TIME: Final = "acker-time"  # when it was written, in UTC
TO: Final = "acker-to"  # the queue, topic or table that it came from, as `Outgoing.to`
TO_KEY: Final = "acker-to-key"  # the broker's own key of the message, as `Outgoing.key`
PROPERTIES: Final = "acker-properties"  # as `Outgoing.properties`, in JSON
LETTER_HEADERS: Final = frozenset((REASON, ATTEMPTS, KEY, SOURCE, TIME, TO, TO_KEY, PROPERTIES))
# The token of a message that is a job of a tree elsewhere.
TOKEN: Final = "acker"
# RabbitMQ adds these to what it delivers. In a message that is published again they would count as its past.
_ADDED: Final = re.compile(r"x-(delivery-count|acquired-count|death|(first|last)-death-(exchange|queue|reason))")


def is_own_header(name: str) -> bool:
    """Return whether a header of a dead letter belongs to its message: neither acker nor a broker has added it.

    Nor is it the token of a tree, which has failed with the message.
    """
    return name != TOKEN and name not in LETTER_HEADERS and not _ADDED.fullmatch(name)


def header_text(content: Any) -> str:
    """Return a value as text: truth values as in JSON, None as an empty text, bytes that are no UTF-8 escaped."""
    if content is None:
        return ""
    if isinstance(content, bool):
        return "true" if content else "false"
    return content.decode(errors="backslashreplace") if isinstance(content, bytes) else str(content)


def header_json(content: Any) -> Any:
    """Return a value for JSON: numbers, truth values and None stay such, everything else becomes a text."""
    return content if content is None or isinstance(content, int | float) else header_text(content)
