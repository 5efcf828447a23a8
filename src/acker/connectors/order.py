"""When a message may be handed out: in the order of its key, and at the pace that `rate_max` allows."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Hashable
from typing import Final

from acker.connectors.attempts import Attempt, Lane
from acker.connectors.options import check_whole
from acker.connectors.source import Delivery, Source
from acker.connectors.unrun import name_of
from acker.errors import ArgumentTypeError, ArgumentValueError

logger: Final = logging.getLogger("acker.connectors")

KeyOf = Callable[[Delivery], Hashable]

# What may be handed out at once: as much as comes in this time. It is also the longest wait until somebody looks again
# whether a thread is free.
PACE_SECS: Final = 0.02
_OF_BROKER: Final = "broker"
_NAMED_MAX: Final = 20


class KeyOrder:
    """Lets at most so many messages of each key be worked on at a time. Used on the I/O thread alone.

    Parameters
    ----------
    key_of : callable
        Returns the key of a delivery; None for a message that waits for no other.
    most : int
    told_as : str
        Source and option, for a warning.

    Attributes
    ----------
    waiting : int
        How many messages wait for others of their keys.
    """

    def __init__(self, key_of: KeyOf, most: int, told_as: str = "key") -> None:
        self._key_of = key_of
        self._most = most
        self._told_as = told_as
        self._is_known = False  # that messages have such keys, or that none has
        self._lanes: dict[Hashable, Lane] = {}
        self.waiting = 0

    def enter(self, attempt: Attempt) -> bool:
        """Return whether an attempt may go on; otherwise `leave` returns it when its turn comes.

        Raises
        ------
        Exception
            Whatever the function of the user raises.
        """
        lane = attempt.lane
        if lane is None:
            key = self._key_of(attempt.delivery)
            if key is None:
                if not self._is_known:
                    self._warn(attempt.delivery)
                return True
            self._is_known = True
            lane = Lane(key)
        # That of the attempt may have been removed meanwhile, and another one be there.
        lane = attempt.lane = self._lanes.setdefault(lane.key, lane)
        if attempt.delivery in lane.active:  # another attempt at it
            return True
        if len(lane.active) < self._most:
            lane.active.add(attempt.delivery)
            return True
        lane.waiting.append(attempt)
        self.waiting += 1
        return False

    def _warn(self, delivery: Delivery) -> None:
        """Say once that no message so far has a key: the name may be wrong, and then there is no order."""
        self._is_known = True
        names = ", ".join(sorted(map(repr, delivery.headers))[:_NAMED_MAX])
        text = "%s: the first message has no such key, so it waits for no other; it has these headers: %s"
        logger.warning(text, self._told_as, names or "none")

    def leave(self, attempt: Attempt) -> Attempt | None:
        """Note that a message is over; return the attempt that may go on in its place."""
        lane = attempt.lane
        if lane is None:
            return None
        lane.active.discard(attempt.delivery)
        while lane.waiting and len(lane.active) < self._most:
            following = lane.waiting.popleft()
            self.waiting -= 1
            if following.state == "queued":  # and did not go back to the broker
                lane.active.add(following.delivery)
                return following
        if not (lane.active or lane.waiting):
            self._lanes.pop(lane.key, None)
        return None


class Pace:
    """So many messages a second, evenly.

    What nobody took in time is not made up for later, beyond `PACE_SECS`.

    Parameters
    ----------
    rate_max : float
    """

    def __init__(self, rate_max: float) -> None:
        self._interval_secs = 1.0 / rate_max
        self._next_at: float | None = None  # not before the first message
        # The most messages that may wait for a free thread.
        self._ready_max = max(1, math.floor(rate_max * PACE_SECS))

    def allows(self, now: float, ready: int) -> bool:
        """Return whether one more message may be handed out now, while so many wait for a free thread; count it."""
        next_at = now if self._next_at is None else self._next_at
        if now < next_at or ready >= self._ready_max:
            return False
        self._next_at = max(next_at, now - PACE_SECS) + self._interval_secs
        return True

    def wait_secs(self, now: float) -> float:
        """Return after which time to ask again, if a message waits; never 0, as it may wait for a free thread."""
        return PACE_SECS if self._next_at is None or self._next_at <= now else self._next_at - now


def order_of(source: Source, key: KeyOf | str | None, open_max_per_key: int | None) -> KeyOrder | None:
    """Return the order that the options of a consumer ask for, if they do.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    """
    if open_max_per_key is not None:
        check_whole("open_max_per_key", open_max_per_key)
    if not (key is None or isinstance(key, str) or callable(key)):
        raise ArgumentTypeError(f"key: expected the name of a header, a function of the delivery or None, got {key!r}")
    if inspect.iscoroutinefunction(key):
        raise ArgumentTypeError("key: expected a function that returns the key; a coroutine is another one each time")
    has_keys = type(source).order_key is not Source.order_key
    if key == _OF_BROKER and not has_keys:
        raise ArgumentValueError(
            f"key: {source.name} gives messages no key of its own; give the name of a header, or a function"
        )
    if open_max_per_key is None:
        return None
    if callable(key):
        return KeyOrder(key, open_max_per_key, f"{source.name}: key={name_of(key)}")
    if key is None or key == _OF_BROKER:
        return KeyOrder(source.order_key, open_max_per_key, f"{source.name}: key={_OF_BROKER!r}")
    name = key
    return KeyOrder(lambda delivery: delivery.headers.get(name), open_max_per_key, f"{source.name}: key={name!r}")


def pace_of(rate_max: float) -> Pace:
    """Return the pace that an option asks for.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    """
    if isinstance(rate_max, bool) or not isinstance(rate_max, int | float):
        raise ArgumentTypeError(f"rate_max: expected messages a second, got {rate_max!r}")
    if not (rate_max > 0 and math.isfinite(rate_max)):
        raise ArgumentValueError(f"rate_max: expected more than 0 messages a second, got {rate_max}")
    return Pace(float(rate_max))
