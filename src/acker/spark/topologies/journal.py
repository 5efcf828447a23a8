"""The journal of a topology on Spark: what a micro-batch processes, written before it runs, and how it ended."""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import re
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs

from acker._files.paths import Place, locate
from acker.errors import CheckpointError, TopologyError
from acker.observe.reasons import Reason
from acker.spark.checksums import seal, unseal
from acker.spark.topologies.bolt_state import make_folder, write_file
from acker.spark.topologies.event_times import BoltTimes
from acker.spark.topologies.lease import LEASE_SECS, Lease
from acker.spark.topologies.stage_rows import StageRow
from acker.spark.topologies.state_log import StateChain
from acker.spark.topologies.tuple_blocks import is_pickled_by_value, values_by_root
from acker.topology.anchors import Int64s
from acker.topology.arrow_columns import take

# Number of micro-batches that are kept. The last one is needed; the others help to see what happened.
_KEPT: Final = 3
# In front of the content, which a release with other classes could not unpickle.
_FORMAT: Final = 3
_HEADER: Final = struct.Struct("<8sI")
_MAGIC: Final = b"ACKERJNL"
_LEASES: Final = "leases"
# A lease and a micro-batch, of which -1 stands for the time before the first one; and its commits after the first.
_NAME: Final = re.compile(r"(\d+)-(-?\d+)(?:\.(\d+))?")
# A file that `write_file` has not moved to its name.
_UNFINISHED: Final = re.compile(r"\..*\.tmp")

# Of a bolt with state: source and stream -> grouping; and its windows, in words.
Shape = tuple[Mapping[tuple[str, str], str], str | None]

# A spout task and a tuple id.
TupleKey = tuple[int, Hashable]

logger = logging.getLogger("acker.spark")


@dataclass(frozen=True)
class JournalEntry:
    """A tuple of a spout that runs on the driver, or a row of a DataFrame that failed.

    Attributes
    ----------
    task : int
        The spout task.
    tup_id : hashable
    values : tuple
    stream : str or None
    direct_task : int or None
    attempt : int
        From 1.
    reason : Reason or None
        Why this attempt failed, if it did and the spout may not know yet.
    due : float or None
        When the next attempt is due, in seconds since the epoch.
    wait_secs : float
        How long that was when the entry was written. The clock may be set back later, so that `due` is far away.
    """

    task: int
    tup_id: Hashable
    values: tuple[Any, ...]
    stream: str | None = None
    direct_task: int | None = None
    attempt: int = 1
    reason: Reason | None = None
    due: float | None = None
    wait_secs: float = math.inf

    @property
    def key(self) -> TupleKey:
        """The task and the id."""
        return self.task, self.tup_id


@dataclass(frozen=True, eq=False)
class JournalRows:
    """Rows of a batch that a spout on the driver has emitted: what a `JournalEntry` is of a tuple.

    A plan has them as they are, and another run reads them as entries.

    Attributes
    ----------
    task : int
        The spout task.
    root_ids : (n,) int64
    tup_ids : pyarrow.Array
    stream : str or None
    direct_task : int or None
    attempt : int
    """

    task: int
    root_ids: Int64s
    tup_ids: pa.Array[Any]
    stream: str | None
    direct_task: int | None
    attempt: int

    def tuple_keys(self, root_ids: Int64s | None = None) -> list[TupleKey]:
        """Return the task and the id of each row; of those alone whose trees are among `root_ids`, if given."""
        tup_ids = self.tup_ids
        if root_ids is not None:
            tup_ids = take(tup_ids, np.flatnonzero(np.isin(self.root_ids, root_ids)))
        return [(self.task, tup_id) for tup_id in tup_ids.to_pylist()]

    def entries(self, values: Mapping[int, tuple[Any, ...]]) -> dict[int, JournalEntry]:
        """Return root id -> entry of the rows whose values are given by root id."""
        if not values:
            return {}
        rows = zip(self.root_ids.tolist(), self.tup_ids.to_pylist(), strict=True)
        where = self.stream, self.direct_task, self.attempt
        return {root: JournalEntry(self.task, tup_id, values[root], *where) for root, tup_id in rows if root in values}


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a micro-batch: all that it processes, apart from the rows of DataFrames.

    Attributes
    ----------
    rows : sequence of StageRow
    tracks : mapping of int to int
        Root id -> ack val of the trees in `rows`.
    entries : mapping of int to JournalEntry
        Root id -> the tuple whose tree it is.
    ticks : frozenset of str
    borrowed : frozenset of int
        Root ids of trees whose source keeps them until they are acked. After a crash it delivers them again, so they
        are left out of a micro-batch that is done again.
    left_out : frozenset of int
        Those that are left out.
    layout : mapping of str to (int, tuple of int)
        Component -> its stage and its tasks: what `rows` are addressed to.
    partitions : int
        How many partitions the rows are for.
    time_ns : int
        When the micro-batch began, in nanoseconds since 1970: the time of day that its bolts see.
    spouts : mapping of int to int
        Root id -> the spout task whose tree it is, if a bolt has event time.
    ended : mapping of str to int
        Bolt with event time -> the end of the last window that may end, in milliseconds.
    split : bool
        In the journal: whether the values of `entries` are in `rows` alone.
    batches : sequence of JournalRows
        What `entries` is, of rows of batches.
    """

    rows: Sequence[StageRow] = ()
    tracks: Mapping[int, int] = field(default_factory=dict)
    entries: Mapping[int, JournalEntry] = field(default_factory=dict)
    ticks: frozenset[str] = frozenset()
    borrowed: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()
    layout: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    partitions: int = 1
    time_ns: int = 0
    spouts: Mapping[int, int] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    split: bool = False
    batches: Sequence[JournalRows] = ()

    def recovered(self) -> BatchPlan:
        """Return the plan as it is done again after a crash."""
        tracks = {root_id: ack_val for root_id, ack_val in self.tracks.items() if root_id not in self.borrowed}
        return replace(self, tracks=tracks, left_out=self.borrowed)

    def keys(self) -> list[TupleKey]:
        """Return the task and the id of each tuple that is in the journal."""
        keys = [entry.key for entry in self.entries.values()]
        return keys + [key for rows in self.batches for key in rows.tuple_keys()]

    def keys_of(self, root_ids: Sequence[int]) -> list[TupleKey]:
        """Return the same of the tuples of some trees."""
        keys = [entry.key for root in root_ids if (entry := self.entries.get(root)) is not None]
        wanted = np.array(root_ids, np.int64)
        return keys + [key for rows in self.batches for key in rows.tuple_keys(wanted)]


@dataclass(frozen=True)
class BatchCommit:
    """How a micro-batch ended.

    Attributes
    ----------
    chains : mapping of int to StateChain
        The state of all tasks.
    entries : sequence of JournalEntry
        Tuples that failed and were neither acked since nor made dead letters: with a reason if the spout must hear it.
    acked : sequence of (int, hashable)
        Task and id of the tuples that were acked, and whose spout may not know yet.
    tasks : mapping of str to tuple of int
        Component -> its tasks.
    shapes : mapping of str to Shape
        Bolt with state -> what its state was made by.
    times : BoltTimes
        The event times that the sources of bolts have reached.
    ended : mapping of str to int
        As in the plan.
    """

    chains: Mapping[int, StateChain] = field(default_factory=dict)
    entries: Sequence[JournalEntry] = ()
    acked: Sequence[TupleKey] = ()
    tasks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    times: BoltTimes = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)


def _without_values(plan: BatchPlan) -> BatchPlan:
    """Leave the values out of the entries, since the rows have them; but not if these hold classes by value."""
    if any(is_pickled_by_value(row.block) for row in plan.rows):
        return plan
    return replace(plan, entries={root: replace(entry, values=()) for root, entry in plan.entries.items()}, split=True)


def _with_values(plan: BatchPlan) -> BatchPlan:
    """Give the entries their values again, and make entries of the rows of batches."""
    if not plan.split and not plan.batches:
        return plan
    values: dict[int, tuple[Any, ...]] = {}
    for row in plan.rows:
        for root, of_root in values_by_root(row.block).items():
            values.setdefault(root, of_root)
    entries = dict(plan.entries)
    if plan.split:
        entries = {root: replace(entry, values=values[root]) for root, entry in entries.items()}
    for rows in plan.batches:
        entries |= rows.entries(values)
    return replace(plan, entries=entries, batches=(), split=False)


class _Version(NamedTuple):
    """A file of the journal: of a lease and a micro-batch, whose commit may have been written again."""

    epoch: int
    batch: int
    again: int = 0

    def __str__(self) -> str:
        name = f"{self.epoch}-{self.batch}"
        return f"{name}.{self.again}" if self.again else name


class Journal:
    """Reads and writes the journal below a checkpoint.

    A run begins by copying the files that it continues from into files of its lease. From then on only those of the
    last lease count. So it does not matter when the writes of an earlier run arrive.

    Parameters
    ----------
    root : str or Place
        A directory: its path or URI, or where it lies.
    lease_secs : float
        After so long without a renewal another run may take the checkpoint over.

    Raises
    ------
    CheckpointError
        The directory holds the journal of another release.
    """

    def __init__(self, root: str | Place, *, lease_secs: float = LEASE_SECS) -> None:
        self.root = str(root)
        self._filesystem, self._base = locate(root)
        for name in ("plans", "commits"):
            make_folder(self._filesystem, f"{self._base}/{name}")
        self._lease = Lease(self._filesystem, f"{self._base}/{_LEASES}", self.root, secs=lease_secs)

    def claim(self) -> None:
        """Take the journal for this run, and keep it until it is released.

        Raises
        ------
        CheckpointError
            Another run has it.
        """
        self._lease.acquire()
        try:
            self._remove_unfinished()
            self._adopt()
        except BaseException:
            self.release()
            raise
        self._lease.keep()

    def release(self) -> None:
        """Leave the journal to the next run."""
        self._lease.release()

    def check(self) -> None:
        """Check that this run still has the journal.

        Raises
        ------
        CheckpointError
            Another run has taken it over.
        """
        self._lease.check()

    @property
    def lost(self) -> CheckpointError | None:
        """Why this run has no longer the journal, once it is known; it is looked for every few seconds."""
        return self._lease.lost

    def _remove_unfinished(self) -> None:
        """Remove what runs have begun to write that were killed: no run but this one writes here any more."""
        for name in ("plans", "commits", _LEASES):
            for each in self._filesystem.get_file_info(self._files(name)):
                if _UNFINISHED.fullmatch(each.base_name):
                    with contextlib.suppress(FileNotFoundError):
                        self._filesystem.delete_file(each.path)

    def _adopt(self) -> None:
        """Copy the last commit, and before it the plans: what the last lease has is whole if it has a commit."""
        version, commit = self._last_commit()
        for plan, content in self._plans().items():
            self._write_plan(plan._replace(epoch=self._lease.epoch), content)
        self._write("commits", _Version(self._lease.epoch, version.batch), commit)

    def last_commit(self) -> tuple[int, BatchCommit]:
        """Return the number of the last micro-batch that was committed, and how it ended; -1 before the first."""
        version, commit = self._last_commit()
        return version.batch, commit

    def _last_commit(self) -> tuple[_Version, BatchCommit]:
        for version in reversed(self._versions("commits")):
            commit = self._read("commits", version)
            if commit is not None:
                return version, commit
        return _Version(0, -1), BatchCommit()

    def plans(self) -> dict[int, BatchPlan]:
        """Return what micro-batches process, of the last ones."""
        return {version.batch: plan for version, plan in self._plans().items()}

    def _plans(self) -> dict[_Version, BatchPlan]:
        committed = self._last_commit()[0]
        plans = {}
        for version in self._versions("plans"):
            if version.epoch != committed.epoch:
                continue
            try:
                plan = self._read("plans", version)
            except FileNotFoundError:
                if version.batch > committed.batch:
                    raise  # a store that lists it and does not show it: without the plan its tuples would be lost
                continue  # the run before this one may be removing old ones
            if plan is not None:
                plans[version] = _with_values(plan)
        return plans

    def write_plan(self, batch: int, plan: BatchPlan) -> None:
        """Write and sync what a micro-batch processes."""
        self._write_plan(_Version(self._lease.epoch, batch), plan)

    def _write_plan(self, version: _Version, plan: BatchPlan) -> None:
        self._write("plans", version, _without_values(plan))

    def commit(self, batch: int, commit: BatchCommit) -> None:
        """Write and sync how a micro-batch ended, and remove what nobody needs any more.

        A second commit of a micro-batch has a name of its own, so that the first one remains until it is whole.
        """
        epoch = self._lease.epoch
        before = self._versions("commits")
        again = max((each.again for each in before if each[:2] == (epoch, batch)), default=-1)
        newest = _Version(epoch, batch, 1 + again)
        self._write("commits", newest, commit)
        for name in ("plans", "commits"):
            for version in self._versions(name):
                is_replaced = name == "commits" and version[:2] == newest[:2] and version < newest
                # Not what a later run has written, should this one have stood still since.
                if version.epoch < epoch or (
                    version.epoch == epoch and (version.batch <= batch - _KEPT or is_replaced)
                ):
                    self._filesystem.delete_file(f"{self._base}/{name}/{version}")

    def _versions(self, name: str) -> list[_Version]:
        """Return the files, the oldest first."""
        found = self._filesystem.get_file_info(self._files(name))
        named = (_NAME.fullmatch(each.base_name) for each in found)
        return sorted(
            _Version(int(match[1]), int(match[2]), int(match[3] or 0)) for match in named if match is not None
        )

    def _files(self, name: str) -> fs.FileSelector:
        # In an object store there is no folder without a file.
        return fs.FileSelector(f"{self._base}/{name}", allow_not_found=True)

    def _read(self, name: str, version: _Version) -> Any:
        """Return what a file holds; None if a crash, where files are not written at once, has left a part of it."""
        path = f"{self._base}/{name}/{version}"
        with self._filesystem.open_input_stream(path) as stream:
            content = stream.read()
        try:
            data = unseal(content, f"{name}/{version}")
        except EOFError as error:
            logger.warning("%s: a part of the file is missing, so it does not count: %s", path, error)
            return None
        except ValueError as error:
            raise CheckpointError(
                f"{self.root}/{name}/{version} is damaged ({error}); put it back from a copy, or begin with a new"
                " checkpoint"
            ) from error
        magic, number = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0)
        if (magic, number) != (_MAGIC, _FORMAT):
            found = f"format {number}" if magic == _MAGIC else "an older one"
            raise CheckpointError(
                f"{self.root}/{name}/{version}: expected format {_FORMAT} of the journal, got {found}; drain the"
                " topology with the release of acker that wrote it, or begin with a new checkpoint"
            )
        return pickle.loads(memoryview(data)[_HEADER.size :])

    def _write(self, name: str, version: _Version, content: Any) -> None:
        self._lease.check()
        try:
            pickled = pickle.dumps(content, 5)
        except Exception as error:
            raise TopologyError(
                f"{self.root}: the tuples of micro-batch {version.batch} cannot be pickled for the journal ({error});"
                " let spouts emit values and ids whose classes a later run can import, or set journaled = False in a"
                " spout whose source delivers again what was not acked"
            ) from error
        data = seal(_HEADER.pack(_MAGIC, _FORMAT) + pickled, f"{name}/{version}")
        write_file(self._filesystem, f"{self._base}/{name}/{version}", data)
        # A run that takes the checkpoint over after this has read the file; one that did so before may not have.
        self._lease.check()


class MemoryJournal:
    """The journal of a batch job, which begins anew after a crash."""

    def __init__(self) -> None:
        self._commit: tuple[int, BatchCommit] = (-1, BatchCommit())

    def last_commit(self) -> tuple[int, BatchCommit]:
        """Return the last micro-batch that was committed, as `Journal.last_commit`."""
        return self._commit

    def plans(self) -> dict[int, BatchPlan]:
        """Return nothing: nothing is left of an earlier run."""
        return {}

    lost: ClassVar[None] = None

    def claim(self) -> None:
        """Do nothing: no other run has this journal."""

    def release(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def write_plan(self, batch: int, plan: BatchPlan) -> None:
        """Do nothing."""

    def commit(self, batch: int, commit: BatchCommit) -> None:
        """Keep how a micro-batch ended."""
        self._commit = batch, commit
