"""Turns: the parts of a runtime that may step now, and the times when the others may step again."""

from __future__ import annotations

from fnmatch import fnmatchcase

from acker.errors import SchedulerError
from acker.local import LocalRuntime
from acker.local.executors.base import Executor
from acker.local.executors.spout import SpoutExecutor
from acker.local.lifecycle import Lifecycle

Part = Executor | Lifecycle


def _poll_ns(part: Part) -> int | None:
    """Return when a spout that had nothing to emit is to be asked again."""
    return part.idle_until if isinstance(part, SpoutExecutor) else None


def _fits(name: str, pattern: str) -> bool:
    # Names have brackets, which mean something in patterns. The lifecycle is the kit's own: "li*" does not mean it.
    return name == pattern or (name != Lifecycle.name and fnmatchcase(name, pattern))


class Turns:
    """The parts of a runtime without threads: who rests, who is frozen, who is slow.

    Parameters
    ----------
    runtime : LocalRuntime
        Made with ``threads=False``.
    """

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        # A part that had nothing to do -> until when it rests unless its signal is set, as a thread would; None: for
        # ever.
        self._resting: dict[str, int | None] = {}
        self._frozen: set[str] = set()
        self._slow_ns: dict[str, int] = {}
        self._asleep_until_ns: dict[str, int] = {}

    def ready(self, now_ns: int) -> list[Part]:
        """Return the parts that may step and were signalled since they had nothing to do."""
        resting = self._resting
        able = [part for part in self._runtime.steppables if part.name not in resting or part.signal.is_set()]
        if self._frozen or self._asleep_until_ns:
            asleep = {name for name, until_ns in self._asleep_until_ns.items() if until_ns > now_ns}
            able = [part for part in able if part.name not in self._frozen and part.name not in asleep]
        return able

    def rest(self, part: Part) -> None:
        """Let a part that had nothing to do rest until its deadline or its signal."""
        self._resting[part.name] = part.deadline_ns()

    def record_work(self, part: Part, now_ns: int) -> None:
        """Note that a part did something; one that is slow sleeps for a while."""
        self._resting.pop(part.name, None)
        if part.name in self._slow_ns:
            self._asleep_until_ns[part.name] = now_ns + self._slow_ns[part.name]

    def wake_all(self) -> None:
        """Let every part step again: the test may have fed a spout, which sets no signal."""
        self._resting.clear()

    def wake_due(self, now_ns: int) -> None:
        """Wake the parts whose deadline has come."""
        for part in self._runtime.steppables:
            until_ns = self._resting.get(part.name)
            if _poll_ns(part) is not None or (until_ns is not None and until_ns <= now_ns):
                self._resting.pop(part.name, None)

    def dues(self, now_ns: int) -> tuple[list[int], list[int]]:
        """Return when parts have something to do, and when idle spouts are asked again."""
        due_ns: list[int] = []
        polls_ns: list[int] = []
        for part in self._runtime.steppables:
            if part.name in self._frozen:
                continue
            asleep_until_ns = self._asleep_until_ns.get(part.name, 0)
            deadline_ns = part.deadline_ns() if part is self._runtime.lifecycle else self._resting.get(part.name)
            poll_ns = _poll_ns(part)
            if asleep_until_ns > now_ns:
                due_ns.append(asleep_until_ns)
            elif deadline_ns is not None and deadline_ns > now_ns:  # else it waits for something else: room in a queue
                due_ns.append(deadline_ns)
            elif poll_ns is not None:
                polls_ns.append(poll_ns)
        return due_ns, polls_ns

    def freeze(self, pattern: str) -> list[str]:
        """Take no more steps of the parts that fit a pattern; return their names."""
        names = self._names(pattern)
        self._frozen.update(names)
        return names

    def thaw(self, pattern: str) -> None:
        """Take steps again of the frozen parts that fit a pattern."""
        self._frozen = {name for name in self._frozen if pattern != "*" and not _fits(name, pattern)}

    def slow_down(self, pattern: str, ns: int) -> list[str]:
        """Let the parts that fit a pattern sleep after each step; return their names."""
        names = self._names(pattern)
        self._slow_ns.update(dict.fromkeys(names, ns))
        return names

    def _names(self, pattern: str) -> list[str]:
        names = [part.name for part in self._runtime.steppables]
        found = [name for name in names if _fits(name, pattern)]
        if not found:
            new = self._runtime.state == "new"
            early = "the topology does not run yet, and its parts exist after settle(); " if new else ""
            raise SchedulerError(f"no part is called {pattern!r}; {early}the parts are {', '.join(names)}")
        return found
