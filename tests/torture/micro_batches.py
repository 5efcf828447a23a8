"""The rules for streams of sets of messages in plain Python, one root at a time.

The oracle of `OpenTrees` and of streams on Spark: *Combined messages* of the protocol, set after set. The result of a
stream with event times does not depend on its sets; `settle_by_event_time` computes it from all messages at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from acker._engine.open_trees import TreeCounts
from acker._engine.protocol import Kind, Outcome
from tests.oracles import track_rank

TRACKED, FAILED, RESET = 1, 2, 4

# root id, message id, task id, outcome, elapsed ms
Row = tuple[int, int, int, int, int]


class Message(NamedTuple):
    """One message; the last two are read of TRACKs only."""

    kind: int
    root_id: int
    value: int = 0
    task_id: int = 0
    message_id: int = 0


class Track(NamedTuple):
    """What a TRACK says."""

    value: int
    task_id: int
    message_id: int


NO_TRACK = Track(0, 0, 0)


@dataclass
class Gathered:
    """All that a set says of one root: xor of OKs and ANCHORs, flags, and the TRACK of least rank."""

    value: int = 0
    flags: int = 0
    track: Track = NO_TRACK
    duplicates: int = 0

    def add(self, message: Message) -> None:
        """Take one message."""
        if message.kind == Kind.TRACK:
            track = Track(*message[2:])
            self.duplicates += self.flags & TRACKED
            known = self.track if self.flags & TRACKED else track
            self.track = min(known, track, key=lambda each: track_rank(*each))
            self.flags |= TRACKED
        elif message.kind == Kind.FAIL:
            self.flags |= FAILED
        elif message.kind == Kind.RESET_TIMEOUT:
            self.flags |= RESET
        else:
            self.value ^= message.value


@dataclass
class Entry:
    """What is held of a root."""

    start_ms: int
    since_ms: int
    value: int = 0
    track: Track | None = None
    failed: bool = False


class MicroBatches:
    """One shard.

    Parameters
    ----------
    timeout_ms : Fraction or int, optional
    buckets : int
    high_water : int, optional
    every_message_refreshes : bool
        The rule of protocol "storm-0.9".
    """

    def __init__(
        self,
        *,
        timeout_ms: Fraction | int | None = None,
        buckets: int = 3,
        high_water: int | None = None,
        every_message_refreshes: bool = False,
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self.counts = dict.fromkeys(TreeCounts._fields, 0)
        self._timeout_ms = timeout_ms
        self._buckets = buckets
        self._high_water = high_water
        self._every_message_refreshes = every_message_refreshes

    @property
    def open(self) -> int:
        """How many entries have a TRACK."""
        return sum(entry.track is not None for entry in self.entries.values())

    def update(self, messages: Iterable[Message], time_ms: int) -> list[Row]:
        """Settle one micro-batch, and let what is due time out; return completions in any order."""
        gathered: dict[int, Gathered] = {}
        for message in messages:
            gathered.setdefault(message.root_id, Gathered()).add(message)
        done = []
        for root, what in sorted(gathered.items(), key=lambda item: item[0]):
            self.counts["duplicates"] += what.duplicates
            done += self.merge(root, what, time_ms)
        return done + self._rotate(time_ms)

    def merge(self, root: int, what: Gathered, time_ms: int) -> list[Row]:
        """Apply what a set says of one root."""
        entry = self.entries.get(root)
        tracked, failed, value = bool(what.flags & TRACKED), bool(what.flags & FAILED), what.value
        if entry is None and what.flags == RESET and value == 0:
            self.counts["unknown"] += 1
            return []
        if what.flags & RESET:
            self.counts["resets"] += 1
            if entry is not None:
                entry.since_ms = time_ms
        if entry is None and tracked and value == what.track.value:
            # Finished within the set, so nothing has to be held.
            self.counts["tracked"] += 1
            self.counts["acked"] += 1
            self.counts["empty"] += not failed and value == 0
            return [(root, what.track.message_id, what.track.task_id, Outcome.ACKED, 0)]
        others = not tracked or failed or value != 0
        if entry is None and others and self._is_beyond(len(self.entries), 4):
            self.counts["dropped"] += 1
            others, failed, value = False, False, 0
        if entry is None and others:
            entry = self.entries[root] = Entry(time_ms, time_ms)
        if entry is not None:
            entry.value ^= value
            entry.failed |= failed
            if failed or (self._every_message_refreshes and value):
                entry.since_ms = time_ms
        done = self._take_track(root, what.track, time_ms) if tracked else []
        return done + self._settle(root, time_ms)

    def _take_track(self, root: int, track: Track, time_ms: int) -> list[Row]:
        entry = self.entries.get(root)
        if entry is not None and entry.track is not None:
            self.counts["duplicates"] += 1
            return []
        if self._is_beyond(self.open, 2):
            self.counts["rejected"] += 1
            return [(root, track.message_id, track.task_id, Outcome.REJECTED, 0)]
        self.counts["tracked"] += 1
        entry = self.entries.setdefault(root, Entry(time_ms, time_ms))
        entry.value ^= track.value
        entry.track = track
        if self._every_message_refreshes:
            entry.since_ms = time_ms
        return []

    def _settle(self, root: int, time_ms: int) -> list[Row]:
        entry = self.entries.get(root)
        if entry is None or entry.track is None or (entry.value != 0 and not entry.failed):
            return []
        outcome = Outcome.FAILED if entry.value else Outcome.ACKED
        self.counts["failed" if entry.value else "acked"] += 1
        return [self._end(root, outcome, time_ms)]

    def _end(self, root: int, outcome: Outcome, time_ms: int) -> Row:
        entry = self.entries.pop(root)
        assert entry.track is not None
        return root, entry.track.message_id, entry.track.task_id, outcome, max(0, time_ms - entry.start_ms)

    def _rotate(self, time_ms: int) -> list[Row]:
        """Let go of the entries of cohorts that are `buckets` rotations old."""
        if self._timeout_ms is None:
            return []
        apart = Fraction(self._timeout_ms) / (self._buckets - 1)
        due = [
            root for root, entry in self.entries.items() if time_ms // apart - entry.since_ms // apart >= self._buckets
        ]
        return self._expire(due, time_ms)

    def expire(self, before_ms: int, time_ms: int) -> list[Row]:
        """Let go of the entries placed before a moment."""
        return self._expire([root for root, entry in self.entries.items() if entry.since_ms < before_ms], time_ms)

    def _expire(self, roots: list[int], time_ms: int) -> list[Row]:
        done = []
        for root in roots:
            if self.entries[root].track is None:
                self.counts["orphans"] += 1
                del self.entries[root]
            else:
                self.counts["timed_out"] += 1
                done.append(self._end(root, Outcome.TIMED_OUT, time_ms))
        return done

    def _is_beyond(self, held: int, times: int) -> bool:
        return self._high_water is not None and held > times * self._high_water


@dataclass
class TimedTree:
    """A tree by event time: the cohorts of its TRACK and of what last gave it new time."""

    root_id: int
    track: Track
    begun: int
    since: int
    value: int
    failed: bool


def settle_by_event_time(
    messages: Iterable[tuple[Message, int]],
    *,
    timeout_ms: int,
    buckets: int,
    watermark_ms: int,
    every_message_refreshes: bool = False,
) -> list[tuple[int, int, Outcome]]:
    """Return (root id, message id, outcome) of the trees that are over when the watermark has come that far.

    The rules of *Event time* in docs/streaming-reference.md, for a whole stream that is sorted first.

    Parameters
    ----------
    messages : iterable of (Message, event time in ms)
    timeout_ms, buckets, every_message_refreshes
        As for a stream.
    watermark_ms : int
    """

    def cohort_of(ms: int) -> int:
        return ms * (buckets - 1) // timeout_ms

    said: dict[int, dict[int, Gathered]] = {}
    for message, event_ms in messages:
        said.setdefault(message.root_id, {}).setdefault(cohort_of(event_ms), Gathered()).add(message)
    done = []
    for root, cohorts in said.items():
        trees: list[TimedTree] = []
        waiting: dict[int, Gathered] = {}
        for cohort, what in sorted(cohorts.items(), key=lambda item: item[0]):
            tree = next((tree for tree in trees if tree.begun - buckets < cohort < tree.since + buckets), None)
            if tree is None and not what.flags & TRACKED:
                waiting[cohort] = what
                continue
            if tree is None:
                tree = TimedTree(root, what.track, cohort, cohort, what.track.value, False)
                trees.append(tree)
                for early in [early for early in waiting if early > cohort - buckets]:
                    earlier = waiting.pop(early)
                    tree.value ^= earlier.value
                    tree.failed |= bool(earlier.flags & FAILED)
            tree.value ^= what.value
            tree.failed |= bool(what.flags & FAILED)
            if what.flags & RESET or (every_message_refreshes and what.value):
                tree.since = cohort
            if tree.value == 0 or tree.failed:
                outcome = Outcome.FAILED if tree.value else Outcome.ACKED
                done.append((root, tree.track.message_id, outcome))
                trees.remove(tree)
        over = cohort_of(watermark_ms) - buckets
        done += [(root, tree.track.message_id, Outcome.TIMED_OUT) for tree in trees if tree.since <= over]
    return done
