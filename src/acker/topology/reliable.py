"""ReliableSpout: replays what failed, later and later, and hands over what fails too often."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from acker.errors import AckerError
from acker.topology.components import Spout
from acker.topology.reasons import Reason, ReasonKind
from acker.topology.tuples import row_of

# These say nothing about the tuple: who was open when a topology restarted is not to blame for it.
_NOT_COUNTED: Final = frozenset({ReasonKind.RESTART, ReasonKind.SHUTDOWN})


@dataclass(slots=True)
class Entry:
    """What a ledger knows of one tuple: how to emit it, which attempt is or was open, when the next one is due."""

    values: Sequence[Any]
    stream: str | None
    direct_task: int | None
    attempt: int = 1
    due_ms: int | None = None  # None: open
    counted: bool = True  # whether the next emission is a further attempt

    @property
    def fails(self) -> int:
        """How many failures were counted."""
        return self.attempt - 1 + (self.due_ms is not None and self.counted)


class Ledger:
    """The tuples of a reliable spout that are open or wait for their replay, by their ids.

    It outlives the spout: a runtime hands it to the instance that a restart makes.
    """

    def __init__(self) -> None:
        self.entries: dict[Hashable, Entry] = {}
        # (due_ms, sequence number, tup_id). A row counts while the entry is still due then: acks leave theirs behind.
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self.entries)

    def record(
        self, tup_id: Hashable, values: Sequence[Any], stream: str | None, direct_task: int | None
    ) -> Entry | None:
        """Note an emission. Of a tuple that waits for its replay, this is the replay; return what was known of it."""
        before = self.entries.get(tup_id)
        entry = Entry(values, stream, direct_task)
        if before is not None:
            entry.attempt = before.attempt + (before.due_ms is not None and before.counted)
        self.entries[tup_id] = entry
        return before

    def restore(self, tup_id: Hashable, before: Entry | None) -> None:
        """Take back an emission that was refused."""
        if before is None:
            del self.entries[tup_id]
        else:
            self.entries[tup_id] = before

    def schedule(self, tup_id: Hashable, due_ms: int, *, counted: bool) -> None:
        """Note that a tuple is to be emitted again at due_ms."""
        entry = self.entries[tup_id]
        entry.due_ms, entry.counted = due_ms, counted
        heapq.heappush(self._heap, (due_ms, next(self._sequence), tup_id))

    def schedule_lost(self, open_ids: Collection[Hashable], due_ms: int) -> None:
        """Schedule what is open here and, as the runtime knows, nowhere else."""
        for tup_id, entry in self.entries.items():
            if entry.due_ms is None and tup_id not in open_ids:
                self.schedule(tup_id, due_ms, counted=False)

    def forget(self, tup_id: Hashable) -> Entry | None:
        """Drop a tuple, and return what was known of it."""
        return self.entries.pop(tup_id, None)

    def next_due_ms(self) -> int | None:
        """Return when the next replay is due; None: nothing waits."""
        heap = self._heap
        while heap:
            due_ms, _, tup_id = heap[0]
            entry = self.entries.get(tup_id)
            if entry is not None and entry.due_ms == due_ms:
                return due_ms
            heapq.heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> Hashable | None:
        """Return a tuple that is due, open again from now on; None: none is."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        tup_id = heapq.heappop(self._heap)[2]
        entry = self.entries[tup_id]
        entry.attempt += entry.counted
        entry.due_ms = None
        return tup_id


class ReliableSpout(Spout):
    """A spout that emits what failed again, and after too many attempts hands it to `dead_letter`.

    A tuple that fails waits `backoff_secs`, the next time twice as long, and so on up to `backoff_secs_max`. Each
    emission is an attempt; when attempt ``max_fails + 1`` fails, the tuple is a dead letter. It is never acked in
    silence. Failures by RESTART and SHUTDOWN are replayed too, and do not count.

    A tuple emitted without tup_id is untracked. Whoever overrides `ack` or `fail` calls that of this class.

    Attributes
    ----------
    max_fails : int
        How many replays a tuple gets.
    backoff_secs : float
        Seconds between the first failure and its replay.
    backoff_secs_max : float
        The longest such wait.
    """

    max_fails: int = 3
    backoff_secs: float = 1.0
    backoff_secs_max: float = 60.0

    _SET_BY_INIT: ClassVar[tuple[str, ...]] = ("_ledger",)

    def __init__(self) -> None:
        super().__init__()
        self._ledger = Ledger()

    @property
    def finished(self) -> bool:
        """Whether no further tuple will come, nor a replay."""
        return self._finished and not self._ledger.entries

    @property
    def unacked_tuples(self) -> dict[Hashable, tuple[Sequence[Any], str | None, int | None, bool]]:
        """What is open or waits, as in pystorm: tup_id -> (values, stream, direct_task, False). A copy."""
        entries = self._ledger.entries.copy().items()  # Another thread may emit meanwhile.
        return {tup_id: (entry.values, entry.stream, entry.direct_task, False) for tup_id, entry in entries}

    @property
    def failed_tuples(self) -> dict[Hashable, int]:
        """How often each of these failed, where it did, as in pystorm. A copy."""
        fails = {tup_id: entry.fails for tup_id, entry in self._ledger.entries.copy().items()}
        return {tup_id: count for tup_id, count in fails.items() if count}

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple; with a tup_id, remember it until it is acked. See `Spout.emit`."""
        if tup_id is None:
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        # The spout may go on changing its list, and a replay is what was emitted. What is no row is refused below.
        values = row_of(tup)
        try:
            # Before the emission: the outcome may come before that returns.
            before = self._ledger.record(tup_id, () if values is None else values, stream, direct_task)
        except TypeError:  # it has no hash, as emit will say
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        try:
            return super().emit(tup if values is None else values, tup_id, stream, direct_task, need_task_ids)
        except AckerError:  # nothing was emitted; what a hook raises comes later
            self._ledger.restore(tup_id, before)
            raise

    def ack(self, tup_id: Any) -> Any:
        """Forget a tuple."""
        if self._ledger.forget(tup_id) is None:
            self.logger.warning("ack of a tuple that is not open: %r", tup_id)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> Any:
        """Schedule the replay of a tuple, or give it up.

        Parameters
        ----------
        tup_id : hashable
        reason : Reason, optional
            Its attempt is set to the ledger's count.
        """
        entry = self._ledger.entries.get(tup_id)
        if entry is None or entry.due_ms is not None:
            self.logger.warning("fail of a tuple that is not open: %r", tup_id)
            return
        if reason is None:
            reason = Reason(ReasonKind.FAILED)
        if reason.attempt != entry.attempt:
            reason = dataclasses.replace(reason, attempt=entry.attempt)
        counted = reason.kind not in _NOT_COUNTED
        if counted and entry.attempt > self.max_fails:
            self._ledger.forget(tup_id)
            self.dead_letter(tup_id, entry.values, reason)
            return
        # min() in the exponent, since 2.0**1024 overflows.
        secs = min(self.backoff_secs * 2.0 ** min(entry.attempt - 1, 64), self.backoff_secs_max)
        self._ledger.schedule(tup_id, self._collector.now_ms() + round(secs * 1000), counted=counted)

    def dead_letter(self, tup_id: Any, values: Sequence[Any], reason: Reason) -> None:
        """Take a tuple that failed too often. Logs it at ERROR and counts it; override to keep it somewhere.

        Parameters
        ----------
        tup_id : hashable
        values : sequence
            As emitted.
        reason : Reason
            Of the last failure.
        """
        self._collector.count("dead_letters")
        self.logger.error("gave up tuple %r after %d attempts: %s; values %r", tup_id, reason.attempt, reason, values)

    def _attempt(self, tup_id: Hashable) -> int:
        """Return which attempt of a tuple is open, 1 if unknown: for a runtime that makes the reason of a failure."""
        entry = self._ledger.entries.get(tup_id)
        return 1 if entry is None else entry.attempt

    def _replay_due(self, now_ms: int, limit: int | None = None) -> int:
        """Emit the tuples whose wait is over, at most `limit` of them; return how many."""
        replayed = 0
        while replayed != limit:
            tup_id = self._ledger.pop_due(now_ms)
            if tup_id is None:
                break
            entry = self._ledger.entries[tup_id]
            self._collector.emit(entry.values, tup_id, entry.stream, entry.direct_task, False)
            replayed += 1
        return replayed

    @property
    def _next_due_ms(self) -> int | None:
        """When the next replay is due; None: nothing waits."""
        return self._ledger.next_due_ms()
