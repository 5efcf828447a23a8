"""Replays and dead letters of streams without a topology: what failed is sent again after a while, or given up."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from acker._engine.protocol import INT32_MAX, check_integer
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.observe.backoff import backoff_error
from acker.spark.folders import Folder
from acker.spark.streams.replay_ledger import (
    ID_TYPES,
    REPLAY_SCHEMA,
    FolderLedger,
    ReplayCounts,
    ReplayLedger,
    ReplayStep,
    parquet_of,
    replay_schema,
)
from acker.spark.streams.replay_rules import ReasonsFunction, ReplayRules, decide, fingerprint, name_reasons, reason_of
from acker.spark.streams.replay_stores import ReplayStore, StoredLedger

if TYPE_CHECKING:
    from acker._engine.completions import Completions

ReplayFunction: TypeAlias = "Callable[[pa.Table, int], object]"

_DDL: Final = "task_id int, message_id {}, attempt int, root_id long, outcome byte, component string, reason string"

_log: Final = logging.getLogger("acker.spark")


class Replays:
    """Sends messages that failed again after a back-off, and gives them up after some attempts.

    Give it to `for_each_completion`. It acts on each tree that did not end ACKED. The first failure of a message is
    that of attempt 1; later attempts are those that this object began. Messages are told apart by task id and message
    id, so these two must stay the same from attempt to attempt (trees without a message id are all message 0). Each
    attempt is a new tree: give the column `attempt` to `spout`, or make the root id of it.

    Parameters
    ----------
    ledger : path or ReplayStore
        Where the messages are that failed and are not done. A path is a folder: local, or a URI of a filesystem that
        pyarrow knows; put it beside the checkpoint, not into it. Tables are `SqlReplayStore`, `TableReplayStore`, and
        what you write as a `ReplayStore`. A ledger belongs to one checkpoint.
    replay : callable or path
        Called as ``replay(messages, batch_id)`` with an Arrow table of `Replays.schema` that has at least one row:
        `attempt` is the attempt that begins, 2 or more, and `root_id`, `outcome`, `component` and `reason` say how the
        one before ended. A path is a folder: a Parquet file with these columns appears in it for each micro-batch,
        exactly once, for a stream to read.
    dead_letter : callable or path
        The same for messages that are given up; here `attempt` is the last one.
    attempts_max : int >= 1
        After this many failed attempts a message is given up.
    backoff_secs, backoff_secs_max : float >= 0
        The wait after the first failed attempt, which doubles with each one, and the longest wait. A wait that is over
        ends with the next micro-batch. 0: replay with the micro-batch in which the message failed.
    open_secs_max : float > 0
        An attempt that was replayed, and of which no tree has ended after this number of seconds, counts as failed:
        maybe nobody read it. Longer than the timeout of trees and the lag of the query together.
    message_id : {"long", "string", "binary"}
        The type of message ids; "long" for integers of any width.
    reasons : callable, optional
        Called with `acker.Completions` that did not end ACKED; returns a text for each. By default what a bolt of the
        pipeline has raised, and the outcome in words where none did. 1,000 characters are kept.
    clock : callable, optional
        Returns the seconds since 1970; for tests.

    Attributes
    ----------
    ddl : str
        The columns of the files, for ``spark.readStream.schema(...)``; of the class, with ids of type long.
    schema : pyarrow.Schema
        The columns of the tables, likewise.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A wrong argument.

    Notes
    -----
    The decisions of a micro-batch are written into the ledger before `replay` or `dead_letter` is called. A micro-batch
    that runs again finds them there, so it calls the functions again with the same batch id and the same rows, whatever
    the time is. A function that stores the batch id with its effect acts exactly once, as one for `for_each_completion`
    does. A message that is acked while it waits is not replayed.

    Calls happen within micro-batches. A query whose trees expire by the clock has one at each trigger; one that takes
    event times has none without new data.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> replays = aspark.Replays(
    ...     "/data/orders/ledger", replay="/data/orders/again", dead_letter="/data/orders/dead", attempts_max=5
    ... )                                                                                               # doctest: +SKIP
    >>> writer = done.writeStream.foreachBatch(aspark.for_each_completion(replays=replays))             # doctest: +SKIP
    >>> again = spark.readStream.schema(aspark.Replays.ddl).parquet("/data/orders/again")               # doctest: +SKIP
    """

    ddl: str = _DDL.format("long")
    schema: pa.Schema = REPLAY_SCHEMA

    def __init__(
        self,
        ledger: str | os.PathLike[str] | ReplayStore,
        *,
        replay: ReplayFunction | str | os.PathLike[str],
        dead_letter: ReplayFunction | str | os.PathLike[str],
        attempts_max: int = 4,
        backoff_secs: float = 1.0,
        backoff_secs_max: float = 60.0,
        open_secs_max: float = 3600.0,
        message_id: str = "long",
        reasons: ReasonsFunction | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules = ReplayRules(
            check_integer("attempts_max", attempts_max, 1, INT32_MAX),
            _check_secs("backoff_secs", backoff_secs),
            _check_secs("backoff_secs_max", backoff_secs_max),
            _check_secs("open_secs_max", open_secs_max),
        )
        if error := backoff_error(self._rules.backoff_secs, self._rules.backoff_secs_max):
            raise ArgumentValueError(error)
        for name, function in (("reasons", reasons), ("clock", clock)):
            if function is not None and not callable(function):
                raise ArgumentTypeError(f"{name}: expected a function, got {type(function).__name__}")
        if not isinstance(ledger, (str, os.PathLike, ReplayStore)):
            raise ArgumentTypeError(
                "ledger: expected the path of a folder, or a ReplayStore with open, note, rows and save, got"
                f" {type(ledger).__name__}"
            )
        if message_id not in ID_TYPES:
            raise ArgumentValueError(
                f"message_id: expected one of {', '.join(map(repr, ID_TYPES))}, got {message_id!r}"
            )
        self._ids = message_id
        self.ddl, self.schema = _DDL.format(message_id), replay_schema(message_id)
        self._ledger: ReplayLedger = (
            StoredLedger(ledger, message_id)
            if isinstance(ledger, ReplayStore)
            else FolderLedger(Folder("ledger", ledger), message_id)
        )
        self._replay = _outlet("replay", replay)
        self._dead_letter = _outlet("dead_letter", dead_letter)
        self._reasons = reasons or name_reasons
        self._clock = clock

    def counts(self) -> ReplayCounts:
        """Return the counts, read from the ledger: any process may ask, also while the query runs.

        Raises
        ------
        CheckpointError
            The ledger is damaged.
        """
        return self._ledger.state().counts

    def held(self) -> pa.Table:
        """Return the messages that failed and are not done, with the columns of `schema` and `due`.

        `attempt` is the attempt that failed last, or the one that is open. `due` is the time of the next attempt, null
        where one is open.

        Raises
        ------
        CheckpointError
            The ledger is damaged.
        """
        held = self._ledger.state().held
        is_open = held["step"].to_numpy() != ReplayStep.WAIT
        due = pa.array(held["at_ms"].to_numpy(), mask=is_open).cast(pa.timestamp("ms", "UTC"))
        return held.select(REPLAY_SCHEMA.names).append_column("due", due)

    def settle(self, done: Completions, batch_id: int, query: str = "") -> None:
        """Replay and give up what is to be by now; `for_each_completion` calls this for each micro-batch.

        Parameters
        ----------
        done : Completions
        batch_id : int
            Larger than before, or the last one again.
        query : str
            The id of the query, if it is known: another query than that of the ledger is refused.

        Raises
        ------
        CheckpointError
            The ledger is damaged, or belongs to another checkpoint.
        """
        self._check_ids(done)
        state = self._ledger.state()
        failed = fingerprint(done)
        rows = self._ledger.decisions_of(state, batch_id, query, failed)
        if rows is None:
            decisions = decide(state, done, self._rules, round(1000 * self._clock()), self._reasons)
            if decisions.counts != state.counts:
                before, state = state, self._ledger.record(state, batch_id, decisions, query, failed)
                self._report_overdue(batch_id, state.counts.overdue - before.counts.overdue)
            rows = decisions.rows
            self._report(batch_id, rows, decisions.counts)
        elif rows.num_rows:
            _log.info("replays of %s: micro-batch %d runs again, as it was decided", self._ledger.where, batch_id)
        step = rows["step"].to_numpy()
        for wanted, act in ((ReplayStep.DEAD_LETTER, self._dead_letter), (ReplayStep.REPLAY, self._replay)):
            messages = rows.filter(pa.array(step == wanted)).select(REPLAY_SCHEMA.names)
            if messages.num_rows:
                act(messages, batch_id, state.id)

    def _check_ids(self, done: Completions) -> None:
        found = "long"
        if len(done) and done.message_id.dtype == np.dtype(object):
            found = "binary" if isinstance(done.message_id[0], bytes) else "string"
        if len(done) and found != self._ids:
            raise ArgumentTypeError(
                f"message_id: Replays was made for message ids of type {self._ids}, and the completions have"
                f" {found} ones: give Replays(..., message_id={found!r})"
            )

    def _report_overdue(self, batch_id: int, overdue: int) -> None:
        if overdue:
            _log.warning(
                "replays of %s: micro-batch %d: %d messages were replayed, and no tree of them ended within %g s, which"
                " counts as a failure: see whether what is replayed is read",
                *(self._ledger.where, batch_id, overdue, self._rules.open_secs_max),
            )

    def _report(self, batch_id: int, rows: pa.Table, counts: ReplayCounts) -> None:
        """Log what a micro-batch decided, if it decided something."""
        if not rows.num_rows:
            return
        step = rows["step"].to_numpy()
        waits, replayed, dead, recovered = np.bincount(step, minlength=len(ReplayStep)).tolist()
        _log.info(
            "replays of %s: micro-batch %d: %d begin to wait, %d replayed, %d recovered, %d dead letters; now %d wait"
            " and %d are open",
            *(self._ledger.where, batch_id, waits, replayed, recovered, dead, counts.waiting, counts.open),
        )
        if dead:
            one = rows.filter(pa.array(step == ReplayStep.DEAD_LETTER)).slice(0, 1).to_pylist()[0]
            _log.warning(
                "replays of %s: micro-batch %d: messages that are given up: %d, one of them message %r of task %d: %s",
                *(self._ledger.where, batch_id, dead, one["message_id"], one["task_id"], reason_of(one)),
            )


class ReplayFiles:
    """Writes one Parquet file for each micro-batch of a ledger; a file that is there already stays as it is.

    Several queries may share the folder: the name of a file says of which ledger it is.

    Parameters
    ----------
    folder : Folder
        Made now, since a stream that reads it wants it to exist.
    name : str
        The first part of the names of files.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._cleaned = ""
        folder.make()

    def __call__(self, messages: pa.Table, batch_id: int, ledger_id: str) -> None:
        """Write the file of a micro-batch."""
        own = f"{self._name}-{ledger_id}-"
        if self._cleaned != own:  # Other ledgers' files may be being written at this moment.
            self._folder.remove_unfinished(own)
            self._cleaned = own
        name = f"{own}{batch_id:09d}.parquet"
        if not self._folder.has(name):
            self._folder.write(name, parquet_of(messages))


def _outlet(name: str, target: Any) -> Callable[[pa.Table, int, str], object]:
    if callable(target):
        return lambda messages, batch_id, _: target(messages, batch_id)
    if isinstance(target, (str, os.PathLike)):
        return ReplayFiles(Folder(name, target), name)
    raise ArgumentTypeError(
        f"{name}: expected a function of (messages, batch_id) or the path of a folder, got {type(target).__name__}"
    )


def _check_secs(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentTypeError(f"{name}: expected a number of seconds, got {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ArgumentValueError(f"{name}: expected a number of seconds from 0 on, got {value}")
    return float(value)
