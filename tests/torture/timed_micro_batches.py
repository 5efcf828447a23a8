"""The rules for micro-batches of messages with event times in plain Python, one root at a time.

The oracle of `OpenTrees` with cohorts: *Event time* of docs/streaming-reference.md, with its limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from acker._engine.codes import UNTRACKED, UNTRACKED_FAILED, UNTRACKED_RESET
from acker._engine.combiner import Cohorts
from acker._engine.open_trees import TreeCounts
from acker._engine.protocol import Outcome
from tests.torture.micro_batches import FAILED, RESET, TRACKED, Gathered, Row


@dataclass(eq=False)
class TimedEntry:
    """What is held of a root: a tree, or messages of one cohort that wait for their TRACK."""

    start_ms: int
    since_ms: int
    value: int = 0
    task_id: int = UNTRACKED
    message_id: int = 0


class TimedMicroBatches:
    """One shard whose trees expire by event time.

    Parameters
    ----------
    cohorts : Cohorts
    high_water : int, optional
    every_message_refreshes : bool
        The rule of protocol "storm-0.9".
    """

    def __init__(self, cohorts: Cohorts, *, high_water: int | None, every_message_refreshes: bool) -> None:
        self.counts = dict.fromkeys(TreeCounts._fields, 0)
        self._entries: dict[int, list[TimedEntry]] = {}
        self._cohorts = cohorts
        self._high_water = high_water
        self._every_message_refreshes = every_message_refreshes
        # Of one call.
        self._done: list[Row] = []
        self._begun: list[TimedEntry] = []
        self._made: list[TimedEntry] = []

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    @property
    def open(self) -> int:
        """How many entries have a TRACK."""
        return sum(entry.task_id >= 0 for entries in self._entries.values() for entry in entries)

    def held(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield root id, value, message id, start, since and task id of each entry."""
        for root, entries in self._entries.items():
            for each in entries:
                yield root, each.value, each.message_id, each.start_ms, each.since_ms, each.task_id

    def merge(self, root: int, said: Iterable[tuple[int, Gathered]]) -> list[Row]:
        """Apply what a micro-batch says of one root, in the order of event times; return completions."""
        self._done, self._begun, self._made = [], [], []
        for event_ms, what in said:
            self._apply(root, event_ms, what)
        while self._refuse_one(root):
            pass
        return self._done

    def expire(self, before_ms: int, now_ms: int) -> list[Row]:
        """Remove the entries that last got time before a moment; return completions."""
        self._done = []
        for root, entries in list(self._entries.items()):
            for entry in [each for each in entries if each.since_ms < before_ms]:
                if entry.task_id >= 0:
                    self._report(root, entry, Outcome.TIMED_OUT, now_ms)
                else:
                    is_reset = entry.task_id == UNTRACKED_RESET and entry.value == 0
                    self.counts["unknown" if is_reset else "orphans"] += 1
                self._forget(root, entry)
        return self._done

    def _apply(self, root: int, event_ms: int, what: Gathered) -> None:
        tracked, failed = bool(what.flags & TRACKED), bool(what.flags & FAILED)
        refreshes = bool(what.flags & RESET or (self._every_message_refreshes and what.value))
        self.counts["resets"] += bool(what.flags & RESET)
        entries = self._entries.setdefault(root, [])
        trees = [each for each in entries if each.task_id >= 0 and self._takes(each, event_ms)]
        if trees:
            self.counts["duplicates"] += tracked
            if what.value or failed or refreshes:
                tree = min(trees, key=lambda each: each.start_ms)
                tree.value ^= what.value
                if refreshes:
                    tree.since_ms = max(tree.since_ms, event_ms)
                self._settle(root, tree, failed, event_ms)
            return
        cohort = self._cohort_of(event_ms)
        same = (each for each in entries if each.task_id < 0 and self._cohort_of(each.start_ms) == cohort)
        waiting = next(same, None)
        if waiting is None:
            waiting = TimedEntry(event_ms, event_ms)
            entries.append(waiting)
            self._made.append(waiting)
        failed = failed or waiting.task_id == UNTRACKED_FAILED
        waiting.value ^= what.value
        if tracked:
            waiting.value ^= what.track.value
            waiting.task_id, waiting.message_id = what.track.task_id, what.track.message_id
            self._begin(root, waiting, failed, event_ms, is_empty=what.track.value == 0)
        elif failed:
            waiting.task_id = UNTRACKED_FAILED
        elif refreshes:
            waiting.task_id = UNTRACKED_RESET

    def _begin(self, root: int, tree: TimedEntry, failed: bool, event_ms: int, *, is_empty: bool) -> None:
        self._begun.append(tree)
        self.counts["tracked"] += 1
        # What came before the TRACK is taken first, so that the tree is judged by all of it.
        while (earlier := self._next_waiting(root, tree)) is not None and earlier.start_ms <= tree.start_ms:
            failed = self._take(root, tree, earlier) or failed
        self.counts["empty"] += not failed and tree.value == 0 and is_empty
        self._settle(root, tree, failed, event_ms)

    def _settle(self, root: int, tree: TimedEntry, failed: bool, event_ms: int) -> None:
        """End a tree, or add the entries that wait for it, cohort by cohort, until it ends."""
        while tree.value != 0 and not failed:
            waiting = self._next_waiting(root, tree)
            if waiting is None:
                return
            event_ms = max(event_ms, waiting.start_ms)
            failed = self._take(root, tree, waiting)
        self._report(root, tree, Outcome.FAILED if tree.value else Outcome.ACKED, event_ms)
        self._forget(root, tree)

    def _next_waiting(self, root: int, tree: TimedEntry) -> TimedEntry | None:
        waiting = [each for each in self._entries[root] if each.task_id < 0 and self._takes(tree, each.start_ms)]
        return min(waiting, key=lambda each: each.start_ms, default=None)

    def _take(self, root: int, tree: TimedEntry, waiting: TimedEntry) -> bool:
        """Add a waiting entry to its tree; return whether the tree fails by it."""
        tree.value ^= waiting.value
        if waiting.task_id == UNTRACKED_RESET or self._every_message_refreshes:
            tree.since_ms = max(tree.since_ms, waiting.start_ms)
        self._forget(root, waiting)
        return waiting.task_id == UNTRACKED_FAILED

    def _refuse_one(self, root: int) -> bool:
        """Remove the latest new entry that is beyond a limit; return whether there was one."""
        for entry in sorted(self._entries.get(root, ()), key=lambda each: -each.start_ms):
            if entry in self._begun and self._is_beyond(self.open - 1, 2):
                self.counts["tracked"] -= 1
                self._report(root, entry, Outcome.REJECTED, entry.start_ms)
            elif entry in self._made and entry not in self._begun and self._is_beyond(len(self) - 1, 4):
                self.counts["dropped"] += 1
            else:
                continue
            self._forget(root, entry)
            return True
        return False

    def _report(self, root: int, entry: TimedEntry, outcome: Outcome, now_ms: int) -> None:
        self.counts[outcome.name.lower()] += 1
        self._done.append((root, entry.message_id, entry.task_id, int(outcome), max(0, now_ms - entry.start_ms)))

    def _forget(self, root: int, entry: TimedEntry) -> None:
        self._entries[root].remove(entry)

    def _cohort_of(self, ms: int) -> int:
        return ms * (self._cohorts.buckets - 1) // self._cohorts.timeout_ms if self._cohorts.timeout_ms else 0

    def _takes(self, tree: TimedEntry, event_ms: int) -> bool:
        """Return whether a message of some time belongs to a tree."""
        last, first = self._cohort_of(tree.since_ms), self._cohort_of(tree.start_ms)
        return first - self._cohorts.buckets < self._cohort_of(event_ms) < last + self._cohorts.buckets

    def _is_beyond(self, held: int, times: int) -> bool:
        return self._high_water is not None and held > times * self._high_water
