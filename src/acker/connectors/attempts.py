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

from acker.connectors.source import Delivery
from acker.observe.reasons import Reason

if TYPE_CHECKING:
    from acker.remote.jobs import Job

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


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at one delivery. A retry of the same delivery is another attempt.

    Attributes
    ----------
    message_id : int
        The consumer's own number of this attempt, never used twice.
    delivery : Delivery
    number : int
        The attempt's number, from 1, as far as broker and consumer know.
    tries : int
        How many attempts count for `attempts_max`, this one included.
    since_ns : int
        When it was delivered, or was handed out, on the monotonic clock.
    state : str
        "ready": it waits to be handed out. "withheld": it is not handed out, while a rebalance may take it away, or
        since it goes back at the end. "queued": it waits behind another message of its key, or for the pace of
        `rate_max`. "suspect": it waits until nobody works on anything else. "open": somebody has it.
        "failed": the source is to be asked for a retry. "waiting": for a retry in this process. "given up": the source
        is to move it to the broker's own place for dead letters. "dead": its dead letter is not confirmed yet.
        "reporting": its report is not. "done": its ack is to be sent. "ended".
    reason : Reason or None
        Of its failure.
    retry_secs : float or None
        How long the next attempt waits, if whoever failed this one said so.
    went_back : bool
        Whether the attempt of this number was handed out before, and ended without a fault of the message.
    tree : MessageTree or None
        Set by a consumer, which gives it to user code.
    lane : Lane or None
        The messages of its key, where these are handed out in order.
    job : Job or None
        This execution of the job of a tree elsewhere that the message is, until its report is confirmed.
    """

    message_id: int
    delivery: Delivery
    number: int
    tries: int
    since_ns: int
    state: State = "ready"
    reason: Reason | None = None
    retry_secs: float | None = None
    went_back: bool = False
    tree: Any = None
    lane: Lane | None = None
    job: Job | None = None


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
