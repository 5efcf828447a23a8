"""The exceptions of acker: one base class, and subclasses that also derive from the matching builtin exceptions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acker._engine.completions import Completions


class AckerError(Exception):
    """Root of every exception that this package raises on purpose."""


class ArgumentTypeError(AckerError, TypeError):
    """An argument has the wrong type; nothing was applied."""


class ArgumentValueError(AckerError, ValueError):
    """An argument has the right type and a value that is not allowed; nothing was applied."""


class ColumnTypeError(ArgumentTypeError):
    """A column holds something other than integers; the text names the column, and the row if one is to blame."""


class ColumnValueError(ArgumentValueError):
    """A column has a wrong shape or a value out of range; the text names the column, and the row if one is to blame."""


class SnapshotError(AckerError, ValueError):
    """The bytes are damaged, no snapshot at all, or of a version that this release cannot read."""


class CheckpointError(AckerError, ValueError):
    """The state of an acker in a Spark checkpoint is damaged, or belongs to another query. Nothing was changed."""


class TopologyError(AckerError, ValueError):
    """A topology is defined wrongly; the text names the component, the stream and the remedy."""


class ConfError(TopologyError):
    """An option of a topology is unknown, or its value has a wrong type or is out of range."""


class TupleStateError(AckerError, RuntimeError):
    """A tuple was acked or failed twice, belongs to another bolt, or was used as an anchor after it was settled."""


class BusyError(AckerError, RuntimeError):
    """Another thread is using this acker; nothing was applied."""

    def __init__(
        self, message: str = "another thread is inside this Acker; one Acker is used from one thread at a time"
    ) -> None:
        super().__init__(message)


class ForkedError(BusyError):
    """The process was forked while its parent used the object, so the copy here refuses every call.

    A thread that was inside an acker does not exist here and never finishes; a connection to a broker is the parent's.

    Parameters
    ----------
    what : str
        A name for the object.
    holder : int
    mend : str
        The advice to the user.

    Attributes
    ----------
    holder : int
        The id of the process that uses the object.
    """

    def __init__(
        self,
        what: str,
        holder: int,
        mend: str = "restore a snapshot here, make a new one after the fork, or fork while no thread is inside",
    ) -> None:
        super().__init__(
            f"this {what} was held by a thread of process {holder} when process {os.getpid()} was forked from it: the"
            f" copy here may be half-written and can never be used; {mend}"
        )
        self.holder = holder


class UnusableError(AckerError, RuntimeError):
    """Memory ran out in the middle of a batch: some shards have applied it and others have not.

    From then on the acker answers nothing but its counts. Restore it from a snapshot.
    """

    def __init__(
        self, message: str = "memory ran out in the middle of a batch; restore this ShardedAcker from a snapshot"
    ) -> None:
        super().__init__(message)


class RuntimeStateError(AckerError, RuntimeError):
    """A runtime cannot do this in its present state, such as start a second time."""


class SchedulerError(AckerError, RuntimeError):
    """A test's scheduler ran out of steps, or of work, before the condition held. The text names the seed."""


class SessionError(AckerError, RuntimeError):
    """A Spark session, or the Python of its workers, cannot run this job; the text says what to change."""


class StrictError(AckerError, RuntimeError):
    """A row failed in a bolt with ``strict=True``; the text names the bolt and says what the row raised."""


class SourceError(AckerError, RuntimeError):
    """A broker refuses what a connector asks, and would refuse it again: an unknown queue, or wrong credentials."""


class ConnectionLostError(AckerError, ConnectionError):
    """A broker cannot be reached, or a connection to it was lost; a later attempt may succeed."""


class PageError(AckerError, OSError):
    """The live page cannot listen on its address; the text says why, and what to do. Nothing was started."""


class PublishError(AckerError, RuntimeError):
    """A broker has not confirmed a message; the text says why. The message may have been written nevertheless."""


class Reject(AckerError, ValueError):  # noqa: N818 - what a handler says, and no fault of the program
    """Raised by the work for a message of a consumer: no further attempt can succeed, so it becomes a dead letter."""


class TokenError(AckerError, ValueError):
    """A token that came with a job from another process is damaged, or has a version that this release cannot read."""


class JobsError(AckerError, RuntimeError):
    """A tree of jobs in other processes has failed, or its jobs took too long; the text says which one and why."""


class UnattributedError(AckerError, RuntimeError):
    """A thread sends a job, and nothing says for which message; the job was not sent. The text says what to do."""


class AckerMemoryError(AckerError, MemoryError):
    """Memory ran out inside a batch; the acker stays valid.

    Attributes
    ----------
    rows_applied : int
        How many leading rows of the batch took effect. The rest had none and may be sent again.
    completions : Completions
        The trees that those rows finished. They are reported here and nowhere else.
    """

    def __init__(self, message: str, rows_applied: int, completions: Completions) -> None:
        super().__init__(message)
        self.rows_applied = rows_applied
        self.completions = completions


def exception_text(error: BaseException) -> str:
    """Return an exception's type and its text, also where a class of a user cannot say its text."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def text_of(value: object) -> str:
    """Return the text of an object, also where a class of a user cannot say it."""
    try:
        return str(value)
    except Exception as broken:  # noqa: BLE001  A user's __str__ may raise anything.
        return f"(no text: its __str__ raised {type(broken).__name__})"
