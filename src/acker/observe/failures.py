"""The last failures of trees, and the last dead letters, for whoever looks at a running topology."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acker.observe.reasons import Reason

# How many of each are kept: the last ones.
FAILURES_MAX: Final = 200
DEAD_LETTERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A tree that was not acked.

    Attributes
    ----------
    number : int
        Counts up from 1.
    at_ms : int
        Since 1970, UTC.
    component, task : str, int
        The spout.
    tup_id : hashable
    reason : Reason
    elapsed_ms : int
        Since it was emitted.
    root_id : int or None
    """

    number: int
    at_ms: int
    component: str
    task: int
    tup_id: Hashable
    reason: Reason
    elapsed_ms: int
    root_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeadLetter:
    """A message that was given up.

    Attributes
    ----------
    number : int
        Counts up, together with the failures.
    at_ms : int
        Since 1970, UTC.
    component, task : str, int
        The spout.
    tup_id : hashable
    values : Any
        The values of the tuple, or the body of the message.
    reason : Reason
        Of the last failure.
    root_id : int or None
        Of the last attempt.
    entry : Any
        With it, its spout can emit the tuple again; None if no spout can.
    """

    number: int
    at_ms: int
    component: str
    task: int
    tup_id: Hashable
    values: Any
    reason: Reason
    root_id: int | None = None
    entry: Any = None

    @property
    def can_replay(self) -> bool:
        """Whether its spout can emit it again."""
        return self.entry is not None


class FailureLog:
    """The last failures and dead letters. Any thread may add, and any thread may read."""

    def __init__(self) -> None:
        self._failures: deque[Failure] = deque(maxlen=FAILURES_MAX)
        self._dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)
        self._numbers = itertools.count(1)

    def record(
        self,
        component: str,
        task: int,
        tup_id: Hashable,
        reason: Reason,
        elapsed_ms: int,
        root_id: int | None = None,
    ) -> None:
        """Add a failure."""
        row = Failure(next(self._numbers), _now_ms(), component, task, tup_id, reason, elapsed_ms, root_id)
        self._failures.append(row)

    def record_dead_letter(
        self, component: str, task: int, tup_id: Hashable, values: Any, reason: Reason, entry: Any = None
    ) -> None:
        """Add a dead letter; see `DeadLetter`."""
        # Its last failure has just been recorded, by the same thread.
        mine = (each for each in self.failures() if each.tup_id == tup_id and each.task == task)
        last = next(mine, None)
        root_id = None if last is None else last.root_id
        row = DeadLetter(next(self._numbers), _now_ms(), component, task, tup_id, values, reason, root_id, entry)
        self._dead_letters.append(row)

    def failures(self) -> list[Failure]:
        """Return the failures, newest first."""
        return list(reversed(self._failures.copy()))

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, newest first."""
        return list(reversed(self._dead_letters.copy()))

    def forget(self, letter: DeadLetter) -> bool:
        """Remove a dead letter; return whether it was there, so that only one of several callers replays it."""
        try:
            self._dead_letters.remove(letter)
        except ValueError:
            return False
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def shown_id(tup_id: Hashable) -> str:
    """Return a tuple id as the live page shows it, and as it is searched for."""
    return shortened(str(tup_id))


def is_named(tup_id: Hashable, text: str) -> bool:
    """Return whether a text is the id of a message, as the user wrote it or as the page shows it."""
    return tup_id == text or shown_id(tup_id) == text or str(tup_id) == text or repr(tup_id) == text


def shown_values(values: Any) -> str:
    """Return values as text of limited length."""
    is_row = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    return shortened(", ".join(map(repr, values)) if is_row else repr(values))


def shortened(text: str, most: int = 300) -> str:
    """Return a text of at most `most` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
