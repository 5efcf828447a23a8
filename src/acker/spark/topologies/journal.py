"""The journal of a topology on Spark: what a micro-batch processes, written before it runs, and how it ended."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyarrow import fs

from acker.errors import CheckpointError, TopologyError
from acker.spark.paths import locate
from acker.spark.topologies.bolt_state import StateChain, write_file
from acker.spark.topologies.mailbox import Letter
from acker.topology.reasons import Reason

# So many micro-batches are kept. The last one is needed; the others help to see what happened.
_KEPT: Final = 3
_FORMAT: Final = 1
_OWNER: Final = "owner"

# A spout task and a tuple id.
TupleKey = tuple[int, Hashable]


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
    """

    task: int
    tup_id: Hashable
    values: tuple[Any, ...]
    stream: str | None = None
    direct_task: int | None = None
    attempt: int = 1
    reason: Reason | None = None
    due: float | None = None

    @property
    def key(self) -> TupleKey:
        """The task and the id."""
        return self.task, self.tup_id


@dataclass(frozen=True)
class BatchPlan:
    """What a micro-batch processes, apart from the rows of DataFrames.

    Attributes
    ----------
    letters : sequence of Letter
    tracks : mapping of int to int
        Root id -> ack val of the trees in `letters`.
    entries : mapping of int to JournalEntry
        Root id -> the tuple whose tree it is.
    ticks : frozenset of str
    borrowed : frozenset of int
        Root ids of trees whose source keeps them until they are acked. After a crash it delivers them again, so they
        are left out of a micro-batch that is done again.
    left_out : frozenset of int
        Those that are left out.
    layout : mapping of str to (int, tuple of int)
        Component -> its stage and its tasks: what `letters` are addressed to.
    places : int
        How many places the letters are for.
    time_ns : int
        When the micro-batch began, in nanoseconds since 1970: the time of day that its bolts see.
    """

    letters: Sequence[Letter] = ()
    tracks: Mapping[int, int] = field(default_factory=dict)
    entries: Mapping[int, JournalEntry] = field(default_factory=dict)
    ticks: frozenset[str] = frozenset()
    borrowed: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()
    layout: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    places: int = 1
    time_ns: int = 0

    def recovered(self) -> BatchPlan:
        """Return the plan as it is done again after a crash."""
        tracks = {root_id: ack_val for root_id, ack_val in self.tracks.items() if root_id not in self.borrowed}
        return replace(self, tracks=tracks, left_out=self.borrowed)


@dataclass(frozen=True)
class BatchCommit:
    """How a micro-batch ended.

    Attributes
    ----------
    chains : mapping of int to StateChain
        The state of all tasks.
    entries : sequence of JournalEntry
        What failed and was neither acked since nor made a dead letter: with a reason if the spout has to be told.
    acked : sequence of (int, hashable)
        Task and id of the tuples that were acked, and whose spout may not know yet.
    tasks : mapping of str to tuple of int
        Component -> its tasks.
    """

    chains: Mapping[int, StateChain] = field(default_factory=dict)
    entries: Sequence[JournalEntry] = ()
    acked: Sequence[TupleKey] = ()
    tasks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Journal:
    """Reads and writes the journal below a checkpoint.

    Parameters
    ----------
    root : str
        A directory, as a path or a URI.

    Raises
    ------
    CheckpointError
        The directory holds the journal of another release.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._filesystem, self._base = locate(root)
        for name in ("plans", "commits"):
            self._filesystem.create_dir(f"{self._base}/{name}", recursive=True)
        self._token = uuid.uuid4().hex.encode()

    def claim(self) -> None:
        """Take the journal over: whatever other run has it may write no more."""
        write_file(self._filesystem, f"{self._base}/{_OWNER}", self._token)

    def last_commit(self) -> tuple[int, BatchCommit]:
        """Return the number of the last micro-batch that was committed, and how it ended; -1 before the first."""
        numbers = self._numbers("commits")
        return (numbers[-1], self._read("commits", numbers[-1])) if numbers else (-1, BatchCommit())

    def plans(self) -> dict[int, BatchPlan]:
        """Return what micro-batches process, of the last ones."""
        return {number: self._read("plans", number) for number in self._numbers("plans")}

    def write_plan(self, batch: int, plan: BatchPlan) -> None:
        """Write and sync what a micro-batch processes."""
        self._write("plans", batch, plan)

    def commit(self, batch: int, commit: BatchCommit) -> None:
        """Write and sync how a micro-batch ended, and remove what nobody needs any more."""
        self._write("commits", batch, commit)
        for name in ("plans", "commits"):
            for number in self._numbers(name):
                if number <= batch - _KEPT:
                    self._filesystem.delete_file(f"{self._base}/{name}/{number}")

    def _numbers(self, name: str) -> list[int]:
        found = self._filesystem.get_file_info(fs.FileSelector(f"{self._base}/{name}"))
        return sorted(int(each.base_name) for each in found if each.base_name.isdecimal())

    def _read(self, name: str, batch: int) -> Any:
        with self._filesystem.open_input_stream(f"{self._base}/{name}/{batch}") as stream:
            version, content = pickle.loads(stream.read())
        if version != _FORMAT:
            raise CheckpointError(
                f"{self.root}/{name}/{batch}: expected format {_FORMAT}, got {version}; another release wrote it"
            )
        return content

    def _write(self, name: str, batch: int, content: Any) -> None:
        with self._filesystem.open_input_stream(f"{self._base}/{_OWNER}") as stream:
            if stream.read() != self._token:
                raise CheckpointError(
                    f"{self.root}: another run has taken this checkpoint over, so this one ends; let one run use it"
                )
        try:
            pickled = pickle.dumps((_FORMAT, content), 5)
        except Exception as fault:
            raise TopologyError(
                f"{self.root}: the tuples of micro-batch {batch} cannot be pickled for the journal ({fault}); let"
                " spouts emit values and ids whose classes a later run can import, or set journaled = False in a spout"
                " whose source delivers again what was not acked"
            ) from fault
        write_file(self._filesystem, f"{self._base}/{name}/{batch}", pickled)


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

    def claim(self) -> None:
        """Do nothing: no other run has this journal."""

    def write_plan(self, batch: int, plan: BatchPlan) -> None:
        """Do nothing."""

    def commit(self, batch: int, commit: BatchCommit) -> None:
        """Keep how a micro-batch ended."""
        self._commit = batch, commit
