"""Advice where trees or messages time out because the timeout is shorter than the work, or too many are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from acker.observe.durations import format_duration, format_rate

_OPTIONS = {
    "message": ("an", "open_max", "timeout_secs"),
    "tree": ("a", "topology.max.spout.pending", "topology.message.timeout.secs"),
}


class TooShort(NamedTuple):
    """A timeout that is shorter than the work, with the numbers that show it.

    Attributes
    ----------
    timed_out : int
        In the last `secs`.
    secs : float
    timeout_secs : float
    pending : int
    acked : int
        In the last `secs`.
    noun : str
        "message" or "tree".
    where : str or None
        The component whose calls alone take longer than the timeout.
    call_ms : float or None
        How long such a call takes.
    some_wait : bool
        Whether some of the pending ones wait for their turn. Where each is worked on, fewer of them would be no faster.
    """

    timed_out: int
    secs: float
    timeout_secs: float
    pending: int
    acked: int
    noun: str = "message"
    where: str | None = None
    call_ms: float | None = None
    some_wait: bool = True

    def __str__(self) -> str:
        some = f"1 {self.noun}" if self.timed_out == 1 else f"{self.timed_out:,} {self.noun}s"
        told = f"{some} timed out in {format_duration(1000 * self.secs)}"
        article, pending_option, timeout_option = _OPTIONS[self.noun]
        is_set = f"and {timeout_option} is {self.timeout_secs:g}"
        if self.call_ms is not None:
            calls = "calls" if self.where is None else f"the calls of {self.where}"
            return f"{told}: {calls} take {format_duration(self.call_ms)}, {is_set}. Choose a longer timeout"
        if not self.acked:
            # Without a rate it is not known how many would fit, and one that hangs is not one too many.
            fewer = "" if self.pending <= 1 else f"a smaller {pending_option} or "
            why = "Find what they wait for; if it is only slow, choose"
            return f"{told} and none was acked, {is_set}. {why} {fewer}a longer timeout"
        rate = self.acked / self.secs
        fitting = max(1, int(rate * self.timeout_secs / 2))
        open_now = "1 is" if self.pending == 1 else f"{self.pending:,} are"
        takes = f"each takes {format_duration(1000 * self.pending / rate)} at that rate"
        return (
            f"{told}: {open_now} pending, {format_rate(rate)} are acked a second, so {takes}, {is_set}."
            f" Choose {article} {pending_option} of at most {fitting:,}, or a longer timeout"
        )

    @property
    def is_true(self) -> bool:
        """Whether something timed out, and what is open needs longer than the timeout at the present rate."""
        if not self.timed_out:
            return False
        if self.call_ms is not None and self.call_ms > 1000 * self.timeout_secs:
            return True
        if self.acked and not self.some_wait:
            return False
        return self.pending * self.secs > self.acked * self.timeout_secs


class TimeoutAdvice:
    """Notices that messages time out faster than the open ones can be done, and says so with numbers.

    Then most work is for messages that are tried again already, and nothing may ever be acked.

    Parameters
    ----------
    timeout_secs : float
    """

    def __init__(self, timeout_secs: float) -> None:
        self._timeout_secs = timeout_secs
        self._since: float | None = None
        self._acked = 0
        self._timed_out = 0
        self._next_at = 1

    def look(
        self, now: float, acked: int, pending: int, timed_out: int, some_wait: Callable[[], bool] = lambda: True
    ) -> str | None:
        """Take the figures of one rotation; return a warning, or None.

        Parameters
        ----------
        now : float
            Seconds of a monotonic clock.
        acked : int
            Messages acked since the start.
        pending : int
            Messages in this process now.
        timed_out : int
            Messages that this rotation ended.
        some_wait : callable
            Returns what `TooShort.some_wait` says, if that matters.
        """
        if self._since is None:
            self._since = now
        self._timed_out += timed_out
        seconds, done = now - self._since, acked - self._acked
        if seconds < self._timeout_secs:
            return None
        found = TooShort(self._timed_out, seconds, self._timeout_secs, pending, done)
        self._timed_out, self._since, self._acked = 0, now, acked
        if not (found.is_true and found._replace(some_wait=some_wait()).is_true):
            self._next_at = 1
            return None
        # At the first time, and whenever the number has doubled.
        if found.timed_out < self._next_at:
            return None
        self._next_at = 2 * found.timed_out
        return str(found)
