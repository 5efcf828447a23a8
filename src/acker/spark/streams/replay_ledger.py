"""The ledger of replays: the messages that failed and are not done yet. Here it is a few files of one folder.

    batch-000000012.parquet   what micro-batch 12 decided, one row for each message that it changed
    state-000000010.parquet   all messages that were held after micro-batch 10; older files count no more

A micro-batch without a decision has no file. The last row of a message counts, so the state is what remains of the rows
of all files, one after the other. Each file names the one before, so that a lost one is noticed, and has a checksum.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acker.errors import CheckpointError
from acker.spark.checksums import seal_parquet, unseal_parquet

if TYPE_CHECKING:
    import numpy.typing as npt

    from acker.spark.folders import Folder


class ReplayStep(IntEnum):
    """The last step of a message that failed. Only the first two are held."""

    WAIT = 0  # until `at_ms`, after attempt `attempt` failed
    REPLAY = 1  # attempt `attempt` is open since `at_ms`
    DEAD_LETTER = 2  # attempt `attempt` failed, and was the last
    RECOVERED = 3  # it was acked after all


# The columns of a decision that users see.
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("task_id", pa.int32()),
    pa.field("message_id", pa.int64()),
    pa.field("attempt", pa.int32()),
    pa.field("root_id", pa.int64()),
    pa.field("outcome", pa.int8()),
    pa.field("component", pa.string()),
    pa.field("reason", pa.string()),
]
REPLAY_SCHEMA: Final = pa.schema(_FIELDS)
# The types of message ids, by Spark's names.
ID_TYPES: Final[dict[str, pa.DataType]] = {"long": pa.int64(), "string": pa.string(), "binary": pa.binary()}


def replay_schema(ids: str) -> pa.Schema:
    """Return the columns that users see, with message ids of one of `ID_TYPES`."""
    return REPLAY_SCHEMA.set(1, pa.field("message_id", ID_TYPES[ids]))


def ledger_schema(ids: str) -> pa.Schema:
    """Return the columns of a ledger."""
    return pa.schema([*replay_schema(ids), pa.field("step", pa.int8()), pa.field("at_ms", pa.int64())])


LEDGER_SCHEMA: Final = ledger_schema("long")

VERSION: Final = "4"
_KEY: Final = b"acker.replays"
_NAME: Final = re.compile(r"(batch|state)-(\d{9,})\.parquet")
NONE: Final = -1

# The ledger is written anew once its files have more rows than this many times those held, plus some spare ones ...
_ROWS_PER_HELD: Final = 2
_ROWS_SPARE: Final = 4096
# ... or once there are more files than this.
_FILES_MAX: Final = 64

# How often in a row a query that runs may write the ledger anew while another process reads it.
ATTEMPTS: Final = 5


class ReplayCounts(NamedTuple):
    """Counts of messages since the ledger began; `waiting` and `open`, now.

    Always ``messages == recovered + dead_letters + waiting + open``.

    Attributes
    ----------
    messages : int
        Messages that failed, once each, however often they were replayed.
    failures : int
        Failed attempts of them.
    overdue : int
        Those among them that were replayed and of which no tree ended in time: maybe nobody read the replay.
    repeated : int
        Failures of messages that were waiting for their replay already; ignored.
    replayed : int
        Replays.
    recovered : int
        Messages that were acked after a failure.
    dead_letters : int
    waiting : int
        Messages that wait for their replay.
    open : int
        Messages that were replayed and have not ended since.
    """

    messages: int = 0
    failures: int = 0
    repeated: int = 0
    replayed: int = 0
    recovered: int = 0
    dead_letters: int = 0
    waiting: int = 0
    open: int = 0
    overdue: int = 0


class LedgerState(NamedTuple):
    """The ledger as it is.

    Attributes
    ----------
    held : Table
        Of `LEDGER_SCHEMA`, a row for each message that waits or whose replay is open.
    counts : ReplayCounts
    last : int
        The last micro-batch that decided something, -1 if none did.
    query : str
        The query that the ledger belongs to, "" if unknown.
    id : str
        Tells this ledger from all others: files of replays have it in their names. "" before the first decision.
    files : frozenset of str
        Of a folder.
    rows : int
        Rows in all files that count.
    note : str
        Of a store.
    decided : Table, optional
        What the last micro-batch decided, in a store.
    """

    held: pa.Table
    counts: ReplayCounts
    last: int
    query: str
    id: str = ""
    files: frozenset[str] = frozenset()
    rows: int = 0
    note: str = ""
    decided: pa.Table | None = None


class Note(NamedTuple):
    """What is kept beside the rows of a micro-batch."""

    counts: ReplayCounts
    previous: int
    query: str
    id: str
    failed: str
    last: int

    @classmethod
    def of(cls, note: Mapping[str, Any], where: str, ids: str) -> Note:
        """Return a note that was read; `where` is for errors."""
        if note["version"] != VERSION:
            raise CheckpointError(
                f"replays: {where}: expected format version {VERSION}, got {note['version']}; run the query with the"
                " release of acker that wrote it"
            )
        of_ids = note.get("ids", "long")
        if of_ids != ids:
            raise CheckpointError(
                f"replays: {where}: its message ids are of type {of_ids!r}, and Replays was made with"
                f" message_id={ids!r}: messages with other ids need a new ledger"
            )
        counts, last = ReplayCounts(**note["counts"]), note.get("last", NONE)
        return cls(counts, note["previous"], note["query"], note["id"], note.get("failed", ""), last)


class Decisions(NamedTuple):
    """The decisions of one micro-batch.

    Attributes
    ----------
    rows : Table
        Of `LEDGER_SCHEMA`, one row for each message that it changed.
    held : Table
        The messages that are held afterwards.
    counts : ReplayCounts
        The counts afterwards.
    """

    rows: pa.Table
    held: pa.Table
    counts: ReplayCounts


class ReplayLedger(ABC):
    """Reads and writes a ledger, wherever it is.

    Parameters
    ----------
    where : str
        For errors and logs.
    ids : str
        The type of message ids, of `ID_TYPES`.
    """

    def __init__(self, where: str, ids: str) -> None:
        self.where = where
        self._ids = ids
        self._schema = ledger_schema(ids)

    @abstractmethod
    def state(self) -> LedgerState:
        """Return the state, read anew if it is another one than before.

        Raises
        ------
        CheckpointError
            It is damaged.
        """

    @abstractmethod
    def record(self, state: LedgerState, batch_id: int, decisions: Decisions, query: str, failed: str) -> LedgerState:
        """Write what a micro-batch decided, whole or not at all.

        Returns
        -------
        LedgerState
            The state afterwards.
        """

    @abstractmethod
    def _decided(self, state: LedgerState, batch_id: int) -> tuple[pa.Table, str] | None:
        """Return what a micro-batch decided, and the fingerprint of what had failed; None if it is not kept."""

    def decisions_of(self, state: LedgerState, batch_id: int, query: str, failed: str) -> pa.Table | None:
        """Return what a micro-batch decided when it ran before, None if it did not run, or decided nothing.

        Parameters
        ----------
        state : LedgerState
        batch_id : int
        query : str
            "" if it is unknown: then the fingerprint tells a rerun from another job with the same numbers.
        failed : str
            The `fingerprint` of what did not end ACKED.

        Raises
        ------
        CheckpointError
            The ledger belongs to another query or job, or is ahead of this micro-batch, and so of the checkpoint.
        """
        if query and state.query and query != state.query:
            raise CheckpointError(
                f"replays: {self.where} belongs to the query {state.query}, and this is the query {query}: each"
                " checkpoint needs a ledger of its own, and a new checkpoint a new one"
            )
        decided = self._decided(state, batch_id)
        if decided is not None:
            rows, failed_then = decided
            if not query and failed_then != failed:
                raise CheckpointError(
                    f"replays: {self.where} has decided micro-batch {batch_id} of a run in which other messages"
                    " failed. A job that runs once more needs a new ledger, or numbers that go on: from"
                    f" {state.last + 1}"
                )
            return rows
        if batch_id <= state.last:
            raise CheckpointError(
                f"replays: {self.where} has decided micro-batch {state.last}, and the query runs micro-batch"
                f" {batch_id}: they belong to different checkpoints, or the checkpoint was set back. Begin with a new"
                " ledger where the checkpoint is new"
            )
        return None


class FolderLedger(ReplayLedger):
    """A ledger in the files of a folder."""

    def __init__(self, folder: Folder, ids: str = "long") -> None:
        super().__init__(folder.path, ids)
        self._folder = folder
        self._state: LedgerState | None = None
        self._has_written = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None, "_has_written": False}

    def state(self) -> LedgerState:
        """Return the state, read anew if the files are others than before."""
        for _ in range(ATTEMPTS):
            names = self._folder.names()
            if self._state is None or self._state.files != _files_of(names):
                try:
                    self._state = self._read(names)
                except FileNotFoundError:  # Written anew since it was listed.
                    continue
            return self._state
        raise CheckpointError(f"replays: {self.where} changes while it is read; only one query may use it")

    def _decided(self, state: LedgerState, batch_id: int) -> tuple[pa.Table, str] | None:
        name = _batch_name(batch_id)
        if name not in state.files:
            return None
        rows, note = self._read_file(name)
        return rows, note.failed

    def record(self, state: LedgerState, batch_id: int, decisions: Decisions, query: str, failed: str) -> LedgerState:
        """Write what a micro-batch decided; before that the ledger anew if it has grown too long."""
        if not self._has_written:  # What a process before this one had begun, which was killed.
            self._folder.remove_unfinished("batch-", "state-")
            self._has_written = True
        state = self._shorten(state)
        name = _batch_name(batch_id)
        id_ = state.id or secrets.token_hex(6)
        note = {"previous": state.last, "query": query or state.query, "failed": failed, "id": id_}
        self._write(name, decisions.rows, decisions.counts, note)
        self._state = LedgerState(
            held=decisions.held,
            counts=decisions.counts,
            last=batch_id,
            query=query or state.query,
            id=id_,
            files=state.files | {name},
            rows=state.rows + decisions.rows.num_rows,
        )
        return self._state

    def _shorten(self, state: LedgerState) -> LedgerState:
        """Write all that is held into one file and remove the others, if they have grown too long.

        The files are those of micro-batches that Spark has recorded as done, so none of them runs again.
        """
        held = state.held.num_rows
        if len(state.files) <= _FILES_MAX and state.rows <= _ROWS_PER_HELD * held + _ROWS_SPARE:
            return state
        name = _state_name(state.last)
        self._write(name, state.held, state.counts, {"previous": NONE, "query": state.query, "id": state.id})
        for old in sorted(self._folder.names() - {name}):
            if _NAME.fullmatch(old):
                self._folder.remove(old)
        return state._replace(files=frozenset({name}), rows=held)

    def _write(self, name: str, rows: pa.Table, counts: ReplayCounts, note: Mapping[str, Any]) -> None:
        note = {"version": VERSION, "ids": self._ids, "counts": counts._asdict(), **note}
        table = rows.replace_schema_metadata({_KEY: json.dumps(note).encode()})
        self._folder.write(name, seal_parquet(parquet_of(table), name))

    def _read(self, names: frozenset[str]) -> LedgerState:
        files = _files_of(names)
        numbers = {name: _number_of(name) for name in files}
        full = max((number for name, number in numbers.items() if name.startswith("state")), default=None)
        parts = [self._schema.empty_table()]
        last, query, id_, counts = NONE, "", "", ReplayCounts()
        if full is not None:
            table, note = self._read_file(_state_name(full))
            parts.append(table)
            last, query, id_, counts = full, note.query, note.id, note.counts
        for number in sorted(number for name, number in numbers.items() if name.startswith("batch")):
            if full is not None and number <= full:  # A crash came before its removal.
                continue
            table, note = self._read_file(_batch_name(number))
            if note.previous != last:
                raise CheckpointError(
                    f"replays: {self.where}/{_batch_name(number)}: the file of micro-batch {note.previous} is"
                    f" missing, which was before {number}; put it back, or begin with a new checkpoint and a new"
                    " ledger"
                )
            parts.append(table)
            last, query, id_, counts = number, note.query, note.id, note.counts
        return LedgerState(fold(parts), counts, last, query, id_, files, sum(part.num_rows for part in parts))

    def _read_file(self, name: str) -> tuple[pa.Table, Note]:
        data = self._folder.read(name)
        try:
            table = pq.read_table(pa.BufferReader(unseal_parquet(data, name)))
        except ValueError as error:
            raise CheckpointError(
                f"replays: {self.where}/{name} is damaged ({error}); begin with a new checkpoint and a new ledger"
            ) from error
        note = Note.of(json.loads(table.schema.metadata[_KEY]), f"{self.where}/{name}", self._ids)
        return table.replace_schema_metadata(None), note


def parquet_of(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    target = pa.BufferOutputStream()
    pq.write_table(table, target, write_page_checksum=True)
    return target.getvalue().to_pybytes()


def fold(tables: list[pa.Table]) -> pa.Table:
    """Return what is held after some tables of a ledger: the last row of each message, if it is to be held."""
    rows = pa.concat_tables(tables)
    group = number_keys(rows["task_id"].to_numpy(), rows["message_id"].to_numpy())
    last = rows.num_rows - 1 - np.unique(group[::-1], return_index=True)[1]
    held = rows["step"].to_numpy()[last] <= ReplayStep.REPLAY
    return rows.take(np.sort(last[held])).combine_chunks()


def number_keys(task_id: npt.NDArray[Any], message_id: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return a number from 0 up for each row, equal where task and message are."""
    if message_id.dtype == np.dtype(object) and len(message_id):
        message_id = pa.array(message_id).dictionary_encode().indices.to_numpy()
    group = np.zeros(len(task_id), np.int64)
    order = np.lexsort((task_id, message_id))
    task_id, message_id = task_id[order], message_id[order]
    group[order[1:]] = np.cumsum((task_id[1:] != task_id[:-1]) | (message_id[1:] != message_id[:-1]))
    return group


def _files_of(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if _NAME.fullmatch(name))


def _number_of(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _batch_name(batch_id: int) -> str:
    return f"batch-{batch_id:09d}.parquet"


def _state_name(batch_id: int) -> str:
    return f"state-{batch_id:09d}.parquet"
