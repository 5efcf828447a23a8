"""Advice for consumers whose messages time out because too many are open."""

from __future__ import annotations

from acker.observe.durations import format_duration


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

    def look(self, now: float, acked: int, pending: int, timed_out: int) -> str | None:
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
        """
        if self._since is None:
            self._since = now
        self._timed_out += timed_out
        seconds, done = now - self._since, acked - self._acked
        if seconds < self._timeout_secs:
            return None
        ended, self._timed_out = self._timed_out, 0
        self._since, self._acked = now, acked
        needed_secs = pending * seconds / done if done else float("inf")
        if not ended or needed_secs <= self._timeout_secs:
            self._next_at = 1
            return None
        # At the first time, and whenever the number has doubled.
        if ended < self._next_at:
            return None
        self._next_at = 2 * ended
        rate = done / seconds
        fitting = max(1, int(rate * self._timeout_secs / 2))
        takes = "nothing is acked" if not done else f"each takes {format_duration(1000 * needed_secs)} at that rate"
        return (
            f"{ended:,} messages timed out in {format_duration(1000 * seconds)}: {pending:,} are in this process,"
            f" {rate:.3g} are acked a second, so {takes}, and timeout_secs is {self._timeout_secs:g}. Choose"
            f" an open_max of at most {fitting:,}, or a longer timeout"
        )
