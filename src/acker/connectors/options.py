"""The options for the messages of a source, checked once."""

from __future__ import annotations

import math
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from acker.connectors.publisher import Publisher
from acker.errors import ArgumentTypeError, ArgumentValueError, Reject
from acker.observe.backoff import backoff_error

# The value of dead_letters= that leaves dead letters to the broker.
BROKER: Final = "broker"
# By default. Restarts and lost connections count as deliveries. RabbitMQ 4 drops a message after 20 of them.
_MORE_DELIVERIES: Final = 10
# The fewest deliveries of a suspect that are made alone, where the limits leave room for so many.
_ALONE_MIN: Final = 5
_PLENTY_SHARE: Final = 8
_PLENTY_MIN: Final = 16

ErrorTypes = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How messages are treated; see `acker.connectors.Consumer`.

    Attributes
    ----------
    open_max : int
    attempts_max, deliveries_max : int or None
    backoff_secs, backoff_secs_max : float
    dead_letters : Publisher, "broker" or None
    drain_secs : float
    """

    open_max: int = 1000
    attempts_max: int | None = None
    backoff_secs: float = 1.0
    backoff_secs_max: float = 60.0
    dead_letters: Publisher | str | None = None
    drain_secs: float = 30.0
    deliveries_max: int | None = None

    def __post_init__(self) -> None:
        check_whole("open_max", self.open_max)
        if self.attempts_max is not None:
            check_whole("attempts_max", self.attempts_max)
            if self.dead_letters is None:
                raise ArgumentValueError(
                    f"attempts_max: after {self.attempts_max} attempts a message has to go somewhere; set dead_letters="
                    " to a publisher, such as DeadLetterFile('dead-letters.jsonl'), or to 'broker'"
                )
        if self.deliveries_max is not None:
            check_whole("deliveries_max", self.deliveries_max)
            if self.dead_letters is None:
                raise ArgumentValueError(f"deliveries_max: {self.deliveries_max} needs dead_letters=, a place to go to")
        check_secs("backoff_secs", self.backoff_secs)
        check_secs("backoff_secs_max", self.backoff_secs_max)
        if error := backoff_error(self.backoff_secs, self.backoff_secs_max):
            raise ArgumentValueError(error)
        check_secs("drain_secs", self.drain_secs)
        if not (self.dead_letters is None or self.dead_letters == BROKER or isinstance(self.dead_letters, Publisher)):
            # Without the value, which may be a URL with a password.
            found = type(self.dead_letters).__name__
            fix = "; for a file write DeadLetterFile(path) of acker.connectors" if found == "str" else ""
            raise ArgumentTypeError(
                "dead_letters: expected a Publisher, such as DeadLetterFile(path), 'broker' or None, got a"
                f" {'text' if fix else found}{fix}"
            )

    @property
    def delivered_max(self) -> int | None:
        """The most deliveries of a message by the broker."""
        if self.deliveries_max is not None or self.attempts_max is None:
            return self.deliveries_max
        return self.attempts_max + _MORE_DELIVERIES

    @property
    def deliveries_error(self) -> str | None:
        """Why two limits contradict each other where each delivery counts as an attempt; None if they do not."""
        if self.deliveries_max is None or self.attempts_max is None or self.deliveries_max >= self.attempts_max:
            return None
        return (
            f"deliveries_max is {self.deliveries_max} and attempts_max is {self.attempts_max}, but this broker counts"
            f" each delivery as an attempt, so attempt {self.deliveries_max + 1} would never begin; raise"
            " deliveries_max, or lower attempts_max"
        )

    @property
    def suspect_from(self) -> float:
        """From which delivery on a message may be what ended its processes: above half of the most, not the first.

        Where failures count as deliveries, up to `attempts_max` of them are no sign of that. But the last few are, in
        any case: suspects that are in a process when one of them ends it lose a delivery each.
        """
        most = self.delivered_max
        if most is None:
            return math.inf
        return max(2, most // 2 + 1, min((self.attempts_max or 0) + 1, most - _ALONE_MIN + 1))

    @property
    def plenty(self) -> float:
        """How many messages must be ready before nobody waits for the I/O thread; infinite where few may be open."""
        plenty = self.open_max // _PLENTY_SHARE
        return plenty if plenty >= _PLENTY_MIN else math.inf

    @property
    def publisher(self) -> Publisher | None:
        """The publisher of dead letters, if they do not stay with the broker."""
        return self.dead_letters if isinstance(self.dead_letters, Publisher) else None


@dataclass(frozen=True, slots=True)
class FinalErrors:
    """The exceptions that are final: after one, no further attempt is made.

    Attributes
    ----------
    retry_on : type of exception or tuple of them, optional
        All others are final.
    final_on : type of exception or tuple of them
        Final, also where `retry_on` names a class above.
    """

    retry_on: ErrorTypes | None = None
    final_on: ErrorTypes = ()

    def check(self, dead_letters: object) -> None:
        """Check the types, and that a message which fails for good has a place to go to."""
        for name, given in (("retry_on", self.retry_on), ("final_on", self.final_on)):
            kinds = given if isinstance(given, tuple) else () if given is None else (given,)
            wrong: list[object] = [kind for kind in kinds if not _is_exception_type(kind)]
            if wrong:
                raise ArgumentTypeError(f"{name}: expected types of exceptions, got {wrong[0]!r}")
            if kinds and dead_letters is None:
                raise ArgumentValueError(f"{name}: what fails for good has to go somewhere; set dead_letters=")

    def has(self, error: BaseException) -> bool:
        """Return whether an exception is final."""
        if not isinstance(error, Exception):
            return False  # the end of the program is no message's fault
        if isinstance(error, (Reject, self.final_on)):
            return True
        # What was cancelled says nothing of the message.
        return self.retry_on is not None and not isinstance(error, (CancelledError, self.retry_on))


def _is_exception_type(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def check_whole(name: str, value: Any) -> None:
    """Check that an option is an int of at least 1."""
    if type(value) is not int:
        raise ArgumentTypeError(f"{name}: expected an int, got {value!r}")
    if value < 1:
        raise ArgumentValueError(f"{name}: expected at least 1, got {value}")


def check_secs(name: str, value: Any, *, above_zero: bool = False) -> None:
    """Check that an option is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"{name}: expected a number of seconds, got {value!r}")
    if not (value > 0 if above_zero else value >= 0) or not math.isfinite(value):
        raise ArgumentValueError(f"{name}: expected {'more than' if above_zero else 'at least'} 0 seconds, got {value}")
