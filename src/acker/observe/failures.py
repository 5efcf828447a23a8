"""The last failures of trees and the last dead letters, and their reasons in groups, for whoever looks at a runtime."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acker.observe.reasons import Reason, ReasonKind

# How many of each are kept: the last ones.
FAILURES_MAX: Final = 200
DEAD_LETTERS_MAX: Final = 1_000
# Of how many reasons the numbers are known.
_GROUPS_MAX: Final = 200
_DIGITS: Final = re.compile(r"\d+")


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


class ReasonGroup(NamedTuple):
    """Failures, or dead letters, with one reason: the same exception at the same line.

    Attributes
    ----------
    times : int
    example : Failure or DeadLetter
        The newest.
    """

    times: int
    example: Failure | DeadLetter

    def __str__(self) -> str:
        return reason_words(self.example.reason)


class ReasonGroups:
    """Counts failures or dead letters by their reasons. Any thread may add, and any thread may read."""

    def __init__(self, ended: Iterable[Failure | DeadLetter] = ()) -> None:
        self._by_key: dict[Any, ReasonGroup] = {}
        self._adding = threading.Lock()
        for each in ended:
            self.add(each)

    def add(self, ended: Failure | DeadLetter) -> None:
        """Count one; the reason that did not come for longest is forgotten where there are too many."""
        key = _key_of(ended.reason)
        with self._adding:
            before = self._by_key.pop(key, None)
            self._by_key[key] = ReasonGroup(1 if before is None else before.times + 1, ended)
            if len(self._by_key) > _GROUPS_MAX:
                del self._by_key[next(iter(self._by_key))]

    def most_frequent(self) -> list[ReasonGroup]:
        """Return the groups, the largest first."""
        return sorted(self._by_key.copy().values(), key=lambda group: -group.times)


def _key_of(reason: Reason) -> tuple[object, ...]:
    """Return the parts of a reason that tell one fault from another.

    Texts often have ids in them. So of an exception its type and its line count, and numbers do not.
    """
    why = _DIGITS.sub("", (reason.exception or "").split(":")[0])
    return reason.kind, reason.component, why, reason.line


def reason_words(reason: Reason) -> str:
    """Return a reason for a sentence: where, why, and the line of user code, without task and attempt."""
    why = shortened(" ".join((reason.exception or "").split()), 200).rstrip(".")
    line = "" if reason.line is None else f", {reason.line}"
    where = "" if reason.component is None else f"in {reason.component}"
    if not why:
        return f"{reason.kind.value}{where and ' '}{where}{line}"
    if not where and reason.kind is ReasonKind.TIMED_OUT:
        where = reason.kind.value
    return f"{where}{where and ': '}{why}{line}"


class FailureLog:
    """The last failures and dead letters. Any thread may add, and any thread may read.

    Attributes
    ----------
    reasons, letter_reasons : ReasonGroups
        Of all failures, and of all dead letters, since the start.
    last_letter_ms : int or None
        When the last dead letter came, also if it has been replayed since. Since 1970, UTC.
    """

    def __init__(self) -> None:
        self.reasons = ReasonGroups()
        self.letter_reasons = ReasonGroups()
        self._failures: deque[Failure] = deque(maxlen=FAILURES_MAX)
        self._dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)
        self._numbers = itertools.count(1)
        self.last_letter_ms: int | None = None

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
        self.reasons.add(row)

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
        self.letter_reasons.add(row)
        self.last_letter_ms = row.at_ms

    def failures(self) -> list[Failure]:
        """Return the failures, newest first."""
        return list(reversed(self._failures.copy()))

    def failures_since(self, at_ms: int) -> list[Failure]:
        """Return the failures since a time in milliseconds since 1970, newest first."""
        return list(itertools.takewhile(lambda failure: failure.at_ms >= at_ms, self.failures()))

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, newest first."""
        return list(reversed(self._dead_letters.copy()))

    def why(self) -> str | None:
        """Return the most frequent reason of dead letters, or else of failures, in words; None without any."""
        groups = self.letter_reasons.most_frequent() or self.reasons.most_frequent()
        return str(groups[0]) if groups else None

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
