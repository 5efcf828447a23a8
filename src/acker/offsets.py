"""Offsets that are safe to commit, for sources that read a log, such as Kafka.

A consumer of a log commits one number for each partition, and after a restart it reads on from there. Messages finish
in any order, so the number must not pass a message that is still open: nobody would read it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from acker._engine.completions import Completions
from acker._engine.protocol import Outcome, check_integer
from acker.errors import ArgumentValueError, SnapshotError

OFFSET_BITS: Final = 48
OFFSET_MAX: Final = 2**OFFSET_BITS - 1
PARTITION_MAX: Final = 2**16 - 1

_SNAPSHOT_VERSION: Final = 1
# Runs below the oldest open offset are dropped when there are this many, or twice as many as the last time left.
_RUNS_KEPT_LEAST: Final = 64
_UNKNOWN: Final = object()

Int64s = NDArray[np.int64]
Number = TypeVar("Number", int, Int64s)


@overload
def pack(partition: int, offset: int) -> int: ...
@overload
def pack(partition: Int64s | int, offset: Int64s) -> Int64s: ...
def pack(partition: Int64s | int, offset: Int64s | int) -> Int64s | int:
    """Return the message id of an offset: the partition in the upper 16 bits of an int64, the offset in the lower 48.

    Parameters
    ----------
    partition : int or (n,) array of integers
        0 to 65,535. From 32,768 on the message id is negative: it is an int64, and they are its highest bit.
    offset : int or (n,) array of integers
        0 to 2**48 - 1: at a million messages a second, enough for nine years in one partition.

    Returns
    -------
    int or (n,) int64 array

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        Out of range, or no integer; the text names the argument, and in an array the first bad item.

    Examples
    --------
    >>> from acker.offsets import pack, unpack
    >>> pack(3, 1042)
    844424930133010
    >>> unpack(pack(3, 1042)), unpack(pack(65_535, 0))
    ((3, 1042), (65535, 0))
    """
    if not (isinstance(partition, np.ndarray) or isinstance(offset, np.ndarray)):
        code = check_integer("partition", partition, 0, PARTITION_MAX) << OFFSET_BITS
        code |= check_integer("offset", offset, 0, OFFSET_MAX)
        return code - 2**64 if code >= 2**63 else code
    partitions, offsets = _column("partition", partition, PARTITION_MAX), _column("offset", offset, OFFSET_MAX)
    return np.asarray(partitions << OFFSET_BITS | offsets)


def _column(name: str, values: Int64s | int, most: int) -> Int64s:
    """Return an array of integers as int64, all of them from 0 to `most`."""
    column = np.asarray(values)
    if column.dtype.kind not in "iu":
        raise ArgumentValueError(f"{name}: expected integers from 0 to {most}, got an array of {column.dtype}")
    bad = np.flatnonzero((column < 0) | (column > most))
    if bad.size:
        raise ArgumentValueError(
            f"{name}: expected integers from 0 to {most}, got {column.flat[bad[0]]} at index {bad[0]}"
        )
    return column.astype(np.int64)


@overload
def unpack(message_id: int) -> tuple[int, int]: ...
@overload
def unpack(message_id: Int64s) -> tuple[Int64s, Int64s]: ...
def unpack(message_id: Int64s | int) -> tuple[Int64s | int, Int64s | int]:
    """Return the partition and the offset that `pack` made a message id of. Every int64 is one.

    Parameters
    ----------
    message_id : int or (n,) int64 array

    Returns
    -------
    partition, offset : int or (n,) int64 array
    """
    return (message_id >> OFFSET_BITS) & PARTITION_MAX, message_id & OFFSET_MAX


@dataclass
class OffsetStats:
    """Counts since creation; always ``emitted == acked + dead_lettered + revoked + len(tracker)``.

    Attributes
    ----------
    emitted : int
        Messages that entered, each offset of an assignment once.
    reread : int
        Messages that were read again while they were known: open ones after a seek, or done ones.
    acked, dead_lettered : int
        Messages that became done by one or the other.
    failed : int
        Failures of open messages; each stays open, since it will be replayed.
    duplicates : int
        Outcomes of messages that were done already; ignored.
    late : int
        Outcomes of messages whose partition was revoked since; ignored.
    revoked : int
        Messages that were open when their partition was revoked.
    """

    emitted: int = 0
    reread: int = 0
    acked: int = 0
    dead_lettered: int = 0
    failed: int = 0
    duplicates: int = 0
    late: int = 0
    revoked: int = 0


class _Log:
    """One assignment of a partition: which offsets were emitted, and which of them are open.

    Offsets come in ascending order, so the emitted ones are a list of runs that only grows at its end; a new run begins
    behind a hole of the log. Done messages need no memory: they are those that were emitted and are not open.
    """

    __slots__ = ("committed", "ends", "grows_at", "low", "next", "open", "prune_at", "start", "starts")

    def __init__(self, position: int | None) -> None:
        self.start = position  # where this assignment began to read; None: not known yet
        self.next = position  # one more than the highest offset that was emitted
        self.committed = position  # the offset of the last commit
        self.open: dict[int, None] = {}
        self.low = 0  # no open offset is below
        self.starts: list[int] = []
        self.ends: list[int] = []  # exclusive; the last one lags behind while `grows_at` is not -1, see `end_run`
        self.grows_at = -1  # the offset that the last run grows by, which is `next`; -1: it is written down
        self.prune_at = _RUNS_KEPT_LEAST

    @property
    def committable(self) -> int | None:
        """The lowest open offset, or the next one to read."""
        return self.lowest() if self.open else self.next

    def lowest(self) -> int | None:
        """Return the lowest open offset, None if there is none.

        It is the first key of the dict, but a dict walks over every removed key in front to find that one. So the
        search goes on where the last one ended, through the runs: it passes each offset once.
        """
        low, is_open = self.low, self.open
        if low in is_open:
            return low
        if not is_open:
            return None
        self.end_run()
        for run in range(max(bisect_right(self.starts, low) - 1, 0), len(self.starts)):
            for offset in range(max(low, self.starts[run]), self.ends[run]):
                if offset in is_open:
                    self.low = offset
                    return offset
        return next(iter(is_open))  # an exception came between opening the offset and its run

    def append(self, offset: int) -> None:
        """Open an offset above all others."""
        self.end_run()
        if self.next is None:
            self.start = self.next = self.committed = offset
        if self.ends and self.ends[-1] == offset:
            self.ends[-1] = offset + 1
        else:
            if len(self.ends) >= self.prune_at:
                self.prune()
            self.starts.append(offset)
            self.ends.append(offset + 1)
        self.open[offset] = None
        self.next = self.grows_at = offset + 1

    def end_run(self) -> None:
        """Write down where the last run ends by now."""
        if self.grows_at >= 0:
            self.ends[-1] = self.grows_at
            self.grows_at = -1

    def prune(self) -> None:
        """Drop the runs below every open offset: below it, holes count as emitted."""
        self.end_run()
        floor = self.committable
        if floor is not None:
            below = bisect_right(self.ends, floor)
            del self.starts[:below], self.ends[:below]
        self.prune_at = max(_RUNS_KEPT_LEAST, 2 * len(self.ends))

    def is_done(self, offset: int) -> bool:
        """Return whether an offset that is not open was emitted."""
        start, floor, after = self.start, self.committable, self.next
        if start is None or floor is None or after is None or not start <= offset < after:
            return False
        if offset < floor:
            return True
        return self._is_in_a_run(offset)

    def _is_in_a_run(self, offset: int) -> bool:
        self.end_run()
        run = bisect_right(self.starts, offset) - 1
        return run >= 0 and offset < self.ends[run]

    def to_json(self) -> dict[str, Any]:
        """Return the part of a snapshot that is about this partition."""
        self.prune()
        runs = [list(run) for run in zip(self.starts, self.ends, strict=True)]
        return {
            "start": self.start,
            "next": self.next,
            "committed": self.committed,
            "open": list(self.open),
            "runs": runs,
        }

    @classmethod
    def from_json(cls, partition: str, own: Mapping[str, Any]) -> _Log:
        """Return the log of a partition from its part of a snapshot; SnapshotError if it contradicts itself."""
        log = cls(None)
        edges = [check_integer("runs", edge, 0, OFFSET_MAX + 1) for run in own["runs"] for edge in run]
        if own["next"] is not None:
            log.next = check_integer("next", own["next"], 0, OFFSET_MAX + 1)
            log.start = check_integer("start", own["start"], 0, min([log.next, *edges]))
            if edges or own["committed"] is not None:  # without a message, `read_up_to` gives no commit
                log.committed = check_integer("committed", own["committed"], 0, OFFSET_MAX + 1)
        log.starts, log.ends = edges[::2], edges[1::2]
        is_ascending = all(low < high for low, high in pairwise(edges)) and all(len(run) == 2 for run in own["runs"])
        if not is_ascending or (edges and (log.next is None or edges[-1] > log.next)):
            raise SnapshotError(f"partition {partition}: its runs of offsets are not ascending pairs up to {log.next}")
        last = -1
        for value in own["open"]:
            offset = check_integer("open", value, last + 1, OFFSET_MAX)
            if not log._is_in_a_run(offset):
                raise SnapshotError(f"partition {partition}: offset {offset} is open and in none of its runs")
            log.open[offset] = None
            last = offset
        log.prune()
        return log


class _Partitions:
    """The logs of the assigned partitions, how far the revoked ones had come, and what was counted of all."""

    __slots__ = ("acked_more", "logs", "revoked", "stats")

    def __init__(self) -> None:
        # `acked` stays 0 here: an acked message is one that is no longer open for no other reason. So the two can not
        # contradict each other, wherever an exception of a signal handler comes in between.
        self.stats = OffsetStats()
        self.acked_more = 0  # what a snapshot counted beyond that
        self.logs: dict[int, _Log] = {}
        # The offset below which messages were emitted before the partition was revoked: outcomes of them may be late.
        self.revoked: dict[int, int] = {}

    def acked(self) -> int:
        """Return how many messages were acked."""
        stats = self.stats
        still_open = sum(len(log.open) for log in self.logs.values())
        return stats.emitted - stats.dead_lettered - stats.revoked - still_open + self.acked_more

    def stats_now(self) -> OffsetStats:
        """Return a copy of the counts."""
        return replace(self.stats, acked=self.acked())

    def revoke(self, partition: int) -> _Log | None:
        """Remove a partition and return its log, if it is assigned."""
        log = self.logs.pop(partition, None)
        if log is not None and log.next is not None:
            self.revoked[partition] = max(log.next, self.revoked.get(partition, 0))
        return log

    def begin(self, partition: int) -> _Log:
        """Return the log of a partition that is assigned by its first message."""
        if partition in self.revoked:
            raise ArgumentValueError(f"partition {partition} was revoked; assign it before messages of it are emitted")
        partition = check_integer("partition", partition, 0, PARTITION_MAX)
        log = self.logs[partition] = _Log(None)
        return log

    def emit(self, log: _Log, partition: int, offset: int) -> bool:
        """Open a message that enters; see `OffsetTracker.emitted`."""
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            offset = check_integer("offset", offset, 0, OFFSET_MAX)
        if log.next is None or offset >= log.next:
            log.append(offset)
            self.stats.emitted += 1
            return True
        is_open = offset in log.open
        if not (is_open or log.is_done(offset)):
            below = (
                f"the lowest one is {log.start}" if offset < (log.start or 0) else f"{log.next - 1} was emitted already"
            )
            raise ArgumentValueError(
                f"partition {partition}, offset {offset}: offsets of a partition are emitted in ascending order, and "
                f"{below}; after a seek to an older offset, assign the partition anew"
            )
        self.stats.reread += 1
        return is_open

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Note what was committed; see `OffsetTracker.committed`."""
        logs = self.logs
        commits = [
            (partition, logs[partition], check_integer("offset", offset, 0, OFFSET_MAX + 1))
            for partition, offset in offsets.items()
            if partition in logs
        ]
        for partition, log, offset in commits:
            if log.committable is not None and offset > log.committable:
                raise ArgumentValueError(
                    f"partition {partition}, offset {offset}: only {log.committable} may be committed, "
                    "the next one to read"
                )
        for _, log, offset in commits:
            log.committed = offset

    def open(self, partition: int) -> Mapping[int, None]:
        """Return the open offsets of a partition; none where it is not assigned."""
        return self.logs[partition].open if partition in self.logs else {}

    def is_done(self, partition: int, offset: int) -> bool:
        """Tell a done message (True) from one of an assignment that ended (False).

        Raises
        ------
        ArgumentValueError
            It is neither: it was never emitted.
        """
        partition = check_integer("partition", partition, 0, PARTITION_MAX)
        offset = check_integer("offset", offset, 0, OFFSET_MAX)
        log = self.logs.get(partition)
        if log is not None and log.is_done(offset):
            return True
        if offset < self.revoked.get(partition, 0):
            return False
        why = "it was never emitted" if log is not None else "the partition was never assigned"
        raise ArgumentValueError(f"partition {partition}, offset {offset}: {why}")

    def _check_rows(self, places: Mapping[int, Int64s], offset: Int64s, row: Int64s) -> None:
        """Refuse the first row about a message that was never emitted; `places` are those of each partition."""
        refused: list[tuple[int, str]] = []
        for partition, of_partition in places.items():
            is_open = self.open(partition)
            for place, value in zip(of_partition.tolist(), offset[of_partition].tolist(), strict=True):
                if value not in is_open:
                    try:
                        self.is_done(partition, value)
                    except ArgumentValueError as error:
                        refused.append((int(row[place]), str(error)))
                        break
        if refused:
            number, why = min(refused)
            raise ArgumentValueError(f"row {number}: {why}")

    def settle(self, partition: int, offset: int) -> bool:
        """Close an open message; return whether it was open."""
        log = self.logs.get(partition)
        if log is None or offset not in log.open:
            self.ignore(partition, offset)
            return False
        del log.open[offset]
        return True

    def ignore(self, partition: int, offset: int) -> None:
        """Count the outcome of a message that is not open."""
        if self.is_done(partition, offset):
            self.stats.duplicates += 1
        else:
            self.stats.late += 1

    def apply(self, completions: Completions, task_id: int | None) -> int:
        """Apply the rows of one task, or of all; see `OffsetTracker.apply`."""
        is_wanted = completions.outcome != Outcome.PENDING
        if task_id is not None:
            is_wanted &= completions.task_id == task_id
        row = np.flatnonzero(is_wanted)
        partition, offset = unpack(completions.message_id[row])
        is_acked = completions.outcome[row] == Outcome.ACKED
        places = {value: np.flatnonzero(partition == value) for value in np.unique(partition).tolist()}
        self._check_rows(places, offset, row)
        before = self.acked()
        for value, of_partition in places.items():
            self._apply(value, offset[of_partition].tolist(), is_acked[of_partition].tolist())
        return self.acked() - before

    def _apply(self, partition: int, offsets: list[int], is_acked: list[bool]) -> None:
        failed = 0
        log = self.logs.get(partition)
        for offset, ok in zip(offsets, is_acked, strict=True):
            if log is None or offset not in log.open:
                self.ignore(partition, offset)
            elif ok:
                del log.open[offset]
            else:
                failed += 1
        self.stats.failed += failed

    def to_json(self) -> dict[str, Any]:
        """Return what a snapshot holds."""
        return {
            "partitions": {str(partition): log.to_json() for partition, log in sorted(self.logs.items())},
            "revoked": {str(partition): offset for partition, offset in sorted(self.revoked.items())},
            "stats": asdict(self.stats_now()),
        }

    @classmethod
    def from_json(cls, snapshot: Mapping[str, Any]) -> _Partitions:
        """Return the partitions of a snapshot."""
        made = cls()
        for partition, own in snapshot["partitions"].items():
            made.logs[check_integer("partition", int(partition), 0, PARTITION_MAX)] = _Log.from_json(partition, own)
        for partition, offset in snapshot["revoked"].items():
            end = check_integer("revoked", offset, 0, OFFSET_MAX + 1)
            made.revoked[check_integer("partition", int(partition), 0, PARTITION_MAX)] = end
        names = [each.name for each in fields(OffsetStats)]
        made.stats = OffsetStats(**{name: check_integer(name, snapshot["stats"][name], 0, 2**63) for name in names})
        counted, made.stats.acked = made.stats.acked, 0
        made.acked_more = counted - made.acked()
        return made


class OffsetTracker:
    """Computes the highest offset of each partition that may be committed.

    .. important:: `committable` follows Kafka's convention: it is the offset of the **next message to read**, one more
       than the last one that is done. Hand it to ``commit`` as it is. `done_through` is one less, for sources that
       want the last message that is done.

    A message is done when it was acked or dead-lettered. A failed one stays open: it will be replayed under the same
    offset. Offsets between two emitted ones that never were are holes of the log; nothing waits for them.

    Memory is proportional to the open messages and to the holes above the lowest of them. A million done messages
    that wait for one below them cost nothing.

    A partition is known from `assign` on, or from its first `emitted`. Use one tracker for each topic, from one thread
    at a time: a spout calls it in `next_tuple`, `ack` and `fail`, which never run at once.

    Examples
    --------
    >>> from acker.offsets import OffsetTracker
    >>> tracker = OffsetTracker()
    >>> for offset in (10, 11, 13):     # the log has no message 12
    ...     _ = tracker.emitted(0, offset)
    >>> tracker.acked(0, 11)
    >>> tracker.acked(0, 13)
    >>> tracker.committable(0)          # 10 is open
    10
    >>> tracker.acked(0, 10)
    >>> tracker.committable()
    {0: 14}
    >>> tracker.committed({0: 14})
    >>> tracker.committable()
    {}
    """

    def __init__(self) -> None:
        self._use(_Partitions())

    def _use(self, partitions: _Partitions) -> None:
        self._partitions = partitions
        self._logs, self._stats = partitions.logs, partitions.stats  # what each message needs, close at hand

    # Calls of the source.

    def assign(self, partition: int, position: int | None = None) -> None:
        """Begin with a partition, or begin anew: after a rebalance, and after a seek to an older offset.

        Parameters
        ----------
        partition : int
            0 to 65,535. If it is assigned already it is revoked first.
        position : int, optional
            The offset that will be read next, where it is known; else the first one emitted.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            No integer, or out of range.
        """
        partition = check_integer("partition", partition, 0, PARTITION_MAX)
        if position is not None:
            position = check_integer("position", position, 0, OFFSET_MAX)
        self.revoke(partition)
        self._partitions.logs[partition] = _Log(position)

    def revoke(self, partition: int) -> int | None:
        """Forget a partition that went to another consumer. Later outcomes of it are counted as late and ignored.

        Returns
        -------
        int or None
            The offset to commit for it, for the last time; None when nothing is known of it.
        """
        log = self._partitions.revoke(partition)
        if log is None:
            return None
        self._partitions.stats.revoked += len(log.open)
        return log.committable

    def emitted(self, partition: int, offset: int) -> bool:
        """Open a message that enters.

        Parameters
        ----------
        partition, offset : int
            Offsets of a partition ascend, but for messages that are read again.

        Returns
        -------
        bool
            Whether the message is open. False: it is done already and was read again, after a restart from an older
            commit; it need not be processed.

        Raises
        ------
        ArgumentValueError
            The partition was revoked, or the offset is lower than others of the partition and was not emitted before.
        ArgumentTypeError
            No integers.
        """
        log = self._logs.get(partition)
        if log is not None and type(offset) is int and offset == log.grows_at and offset <= OFFSET_MAX:
            # The next one of the last run, as nearly all are: what `append` does, without a call.
            log.open[offset] = None
            log.next = log.grows_at = offset + 1
            self._stats.emitted += 1
            return True
        return self._partitions.emit(self._partitions.begin(partition) if log is None else log, partition, offset)

    def emitted_run(self, partition: int, first: int, end: int) -> None:
        """Open messages whose offsets follow each other, from `first` to before `end`; raises as `emitted`."""
        log = self._logs.get(partition)
        if log is not None and first == log.grows_at and end <= OFFSET_MAX:
            # As in `emitted`, for all of them at once.
            log.open.update(dict.fromkeys(range(first, end)))
            log.next = log.grows_at = end
            self._stats.emitted += end - first
            return
        for offset in range(first, end):
            self.emitted(partition, offset)

    def read_up_to(self, partition: int, offset: int) -> None:
        """Note that nothing but markers of transactions and compacted messages lies below this offset.

        Once all messages are done, it is `committable`. Without this call tools would show a lag until the next message
        comes. Where the partition is not assigned, or more of it was read, nothing changes.
        """
        offset = check_integer("offset", offset, 0, OFFSET_MAX + 1)
        log = self._partitions.logs.get(partition)
        if log is not None and offset > (log.next or -1):
            log.end_run()
            log.start = offset if log.next is None else log.start
            log.next = offset

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Note what was committed to the log, in the convention of `committable`.

        Parameters
        ----------
        offsets : mapping of partition to offset
            The last call counts. Partitions that were revoked since are ignored.

        Raises
        ------
        ArgumentValueError
            More than may be committed: messages would be lost. Nothing was noted.
        """
        self._partitions.commit(offsets)

    # Outcomes of the messages.

    def acked(self, partition: int, offset: int) -> None:
        """Count a message as done.

        Raises
        ------
        ArgumentValueError
            It was never emitted; the text names partition and offset.
        """
        try:
            del self._logs[partition].open[offset]
        except KeyError:
            pass
        else:
            return
        self._partitions.ignore(partition, offset)

    def acked_all(self, partition: int, offsets: Iterable[int]) -> None:
        """Count messages of a partition as done; raises as `acked`, at the first one that was never emitted."""
        log = self._logs.get(partition)
        for offset in offsets:
            if log is None or log.open.pop(offset, _UNKNOWN) is _UNKNOWN:
                self._partitions.ignore(partition, offset)

    def dead_lettered(self, partition: int, offset: int) -> None:
        """Count a message that was given up as done; raises as `acked`."""
        if self._partitions.settle(partition, offset):
            self._partitions.stats.dead_lettered += 1

    def failed(self, partition: int, offset: int) -> None:
        """Count a failure of a message, which stays open because it will be replayed; raises as `acked`."""
        if offset in self._partitions.open(partition):
            self._partitions.stats.failed += 1
        else:
            self._partitions.ignore(partition, offset)

    def apply(self, completions: Completions, task_id: int | None = None) -> int:
        """Apply what an acker reports, where each message id is the `pack` of a partition and an offset.

        Equals the rows one by one: ACKED as `acked`, FAILED, TIMED_OUT and REJECTED as `failed`; PENDING is ignored.

        Parameters
        ----------
        completions : Completions
        task_id : int, optional
            Look at the rows of this spout task only.

        Returns
        -------
        int
            How many messages became done.

        Raises
        ------
        ArgumentValueError
            A message was never emitted; the text names row, partition and offset. Nothing was applied.
        """
        return self._partitions.apply(completions, task_id)

    # Questions.

    @overload
    def committable(self, partition: int) -> int | None: ...
    @overload
    def committable(self) -> dict[int, int]: ...
    def committable(self, partition: int | None = None) -> int | dict[int, int] | None:
        """Return the offset that may be committed: the **next one to read**, as Kafka wants it.

        Parameters
        ----------
        partition : int, optional
            Left out: all partitions that moved since their last `committed`.

        Returns
        -------
        int, None or dict of partition to offset
            None where the partition is not assigned, or nothing was read of it and no position is known.
        """
        if partition is not None:
            log = self._partitions.logs.get(partition)
            return None if log is None else log.committable
        offers = {partition: (log.committable, log.committed) for partition, log in self._partitions.logs.items()}
        return {
            partition: offset
            for partition, (offset, committed) in offers.items()
            if offset is not None and offset != committed
        }

    def done_through(self, partition: int) -> int | None:
        """Return one less than `committable`: this offset and all below are done. None where no offset is done."""
        following = self.committable(partition)
        return following - 1 if following else None

    @property
    def partitions(self) -> tuple[int, ...]:
        """The assigned partitions, in ascending order."""
        return tuple(sorted(self._partitions.logs))

    def open(self, partition: int | None = None) -> int:
        """Return how many messages are open, of one partition or of all."""
        if partition is None:
            return sum(len(log.open) for log in self._partitions.logs.values())
        return len(self._partitions.open(partition))

    def done_above(self, partition: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of done messages and holes above the lowest open one: each is its first offset and its end."""
        log = self._partitions.logs.get(partition)
        edges = [] if log is None or log.next is None else [*log.open, log.next]
        yield from ((low + 1, high) for low, high in pairwise(edges) if low + 1 < high)

    def __len__(self) -> int:
        return self.open()

    def oldest(self, partition: int) -> int | None:
        """Return the lowest open offset, the one that holds the others up; None when none is open."""
        log = self._logs.get(partition)
        return None if log is None else log.lowest()

    def lag(self, partition: int) -> int:
        """Return how many offsets, holes included, a restart would read again."""
        log = self._partitions.logs.get(partition)
        return 0 if log is None else (log.next or 0) - (log.committable or 0)

    def stats(self) -> OffsetStats:
        """Return the counts of now."""
        return self._partitions.stats_now()

    # Snapshots.

    def snapshot(self) -> dict[str, Any]:
        """Return everything as a dict that JSON can hold, to be kept beside the commit.

        A tracker that is restored from it knows the messages that were done above the committed offset: when they are
        read again, `emitted` says that they need not be processed.
        """
        return {"version": _SNAPSHOT_VERSION, **self._partitions.to_json()}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> OffsetTracker:
        """Return a tracker in the state of a snapshot.

        Raises
        ------
        SnapshotError
            Not a snapshot of an `OffsetTracker`, or one that contradicts itself; the text says where.
        """
        try:
            if snapshot["version"] != _SNAPSHOT_VERSION:
                raise SnapshotError(f"version {snapshot['version']!r} of an offset snapshot; this release reads 1")
            tracker = cls()
            tracker._use(_Partitions.from_json(snapshot))
        except SnapshotError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"no snapshot of an OffsetTracker: {type(error).__name__}: {error}") from error
        return tracker
