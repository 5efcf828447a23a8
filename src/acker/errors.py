"""The exception tree: one root, and each child is also the builtin exception that a caller would expect."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acker._engine.completions import Completions


class AckerError(Exception):
    """Root of every exception that this package raises on purpose."""


class ArgumentTypeError(AckerError, TypeError):
    """An argument is of the wrong type; nothing was applied."""


class ArgumentValueError(AckerError, ValueError):
    """An argument is of the right type and out of its range; nothing was applied."""


class ColumnTypeError(ArgumentTypeError):
    """A column holds something other than integers; the text names the column, and the row where one is to blame."""


class ColumnValueError(ArgumentValueError):
    """A column has a wrong shape or a value out of range; the text names the column, and the row if one is to blame."""


class SnapshotError(AckerError, ValueError):
    """Bytes that are not an undamaged snapshot of a version that this release reads."""


class TopologyError(AckerError, ValueError):
    """A topology is defined wrongly; the text names the component, the stream and what mends it."""


class ConfError(TopologyError):
    """An option of a topology is unknown, or its value of a wrong type or out of its range."""


class TupleStateError(AckerError, RuntimeError):
    """A tuple was acked or failed twice, belongs to another bolt, or anchors an emission after it was settled."""


class BusyError(AckerError, RuntimeError):
    """Another thread is inside this acker; nothing was applied."""

    def __init__(
        self, message: str = "another thread is inside this Acker; one Acker is used from one thread at a time"
    ) -> None:
        super().__init__(message)


class ForkedError(BusyError):
    """A thread of the parent process was inside when this process was forked; it is not here, so it never leaves.

    What it was at may be half done, so nobody is let in any more.

    Attributes
    ----------
    holder : int
        The id of the process whose thread was inside.
    """

    def __init__(self, what: str, holder: int) -> None:
        super().__init__(
            f"this {what} was held by a thread of process {holder} when process {os.getpid()} was forked from it: the"
            " copy here may be half-written and can never be used; restore a snapshot here, make a new one after the"
            " fork, or fork while no thread is inside"
        )
        self.holder = holder


class UnusableError(AckerError, RuntimeError):
    """Memory ran out where all that could be foreseen was there, and some shards have applied a batch and others not.

    The acker refuses everything from then on but to tell its counts. Restore it from a snapshot.
    """

    def __init__(
        self, message: str = "memory ran out in the middle of a batch; restore this ShardedAcker from a snapshot"
    ) -> None:
        super().__init__(message)


class RuntimeStateError(AckerError, RuntimeError):
    """A runtime was asked for what its state does not allow, such as a second start."""


class SessionError(AckerError, RuntimeError):
    """A Spark session, or the Python of its workers, cannot run what was asked for; the text says what to change."""


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
