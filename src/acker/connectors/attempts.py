"""Attempts at messages, the states that each goes through, and how many ended how.

```text
              suspect ---+                      +--> done --------------------------------> ended
                         v                      |      ^                                      ^
  delivery --> ready --> open --> (its tree ends)      +-- dead <--+   (confirmed)            |
         |       ^ |                            |                  |                          |
         |       | v                            +--> failed -------+--> given up -------------+
         +--> queued, withheld                  |      |                                      |
                 ^                              |      +--> waiting --> the next attempt -----+
                 +------------------------------+ (not its fault: again, or back at the end)
```

A message that is a job of a tree elsewhere is "reporting" before it is done or given up, until its report is confirmed.
An attempt in any state ends at once when the broker takes its delivery back, or when it is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from acker._handles import Attempt

if TYPE_CHECKING:
    from acker.connectors.source import Delivery

__all__ = ["Attempt", "Lane", "MessageCounts", "State", "log_fields"]

State = Literal[
    "ready",
    "withheld",
    "suspect",
    "queued",
    "open",
    "failed",
    "waiting",
    "given up",
    "dead",
    "reporting",
    "done",
    "ended",
]


class Lane:
    """The messages of one key that are in this process.

    Attributes
    ----------
    key : Hashable
    active : set of Delivery
        Those that may be worked on: they wait for a thread, are open, or wait for another attempt or for the
        confirmation of their dead letter.
    waiting : deque of Attempt
        Those behind them, in the order in which they came.
    """

    __slots__ = ("active", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.active: set[Delivery] = set()
        self.waiting: deque[Attempt] = deque()


def log_fields(attempt: Attempt, source: str, reason: object = None) -> dict[str, Any]:
    """Return the `extra` of a log line about an attempt; the reason is that of its failure unless it is given."""
    found = attempt.reason if reason is None else reason
    return {
        "source": source,
        "key": attempt.delivery.key,
        "attempt": attempt.number,
        "reason": None if found is None else str(found),
    }


@dataclass(slots=True)
class MessageCounts:
    """How many messages ended how since the start. The I/O thread writes, any thread reads."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    retried: int = 0
    dead_letters: int = 0
    revoked: int = 0
    released: int = 0
    unacked: int = 0
    late: int = 0
