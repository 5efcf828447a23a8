"""The columns of finished trees that a call returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker._engine import schemas
from acker._engine.codes import Outcome
from acker._engine.notebook import html_table
from acker._engine.schemas import COMPLETION_DTYPES

# How many rows a notebook shows.
_ROWS_SHOWN: Final = 10

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    Int8Column = npt.NDArray[np.int8]
    Int32Column = npt.NDArray[np.int32]
    Int64Column = npt.NDArray[np.int64]


class Completions:
    """The trees that a call finished, one row each, as NumPy columns that own their memory.

    Attributes
    ----------
    root_id : (m,) int64
    message_id : (m,) int64
        The spout's own id, 0 where the TRACK came without one.
    task_id : (m,) int32
        The spout task that owns the tree.
    outcome : (m,) int8
        An `Outcome`.
    elapsed_ms : (m,) int64
        From the entry's first message to the call that reports it; 0 when REJECTED or when the clock was set back.

    Notes
    -----
    Two are equal when all their rows are, in the same order. Results without rows may share their empty arrays.
    """

    __slots__ = ("elapsed_ms", "message_id", "outcome", "root_id", "task_id")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        root_id: Int64Column,
        message_id: Int64Column,
        task_id: Int32Column,
        outcome: Int8Column,
        elapsed_ms: Int64Column,
    ) -> None:
        self.root_id = root_id
        self.message_id = message_id
        self.task_id = task_id
        self.outcome = outcome
        self.elapsed_ms = elapsed_ms

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, int, int, int]]) -> Completions:
        """Return the rows (root id, message id, task id, outcome, elapsed ms) as columns."""
        if not rows:
            return cls.empty()
        columns = zip(zip(*rows, strict=True), COMPLETION_DTYPES.values(), strict=True)
        return cls(*(np.array(column, dtype) for column, dtype in columns))

    @classmethod
    def empty(cls) -> Completions:
        """Return no rows."""
        return cls(*(np.empty(0, dtype) for dtype in COMPLETION_DTYPES.values()))

    @classmethod
    def concat(cls, parts: Iterable[Completions]) -> Completions:
        """Return the rows of all parts, one part after the other."""
        pieces = list(parts)
        if not pieces:
            return cls.empty()
        return cls(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in COMPLETION_DTYPES))

    def at(self, rows: npt.NDArray[Any]) -> Completions:
        """Return these rows, or those where a mask is true."""
        return Completions(*(column[rows] for column in self.columns()))

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the columns, in the order of `COMPLETION_SCHEMA`."""
        return [getattr(self, name) for name in COMPLETION_DTYPES]

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """Return the rows (root id, message id, task id, outcome, elapsed ms) as Python integers."""
        return list(zip(*(column.tolist() for column in self.columns()), strict=True))

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as a record batch of `COMPLETION_SCHEMA`, which borrows these arrays. Imports pyarrow."""
        import pyarrow as pa

        schema: pa.Schema = schemas.COMPLETION_SCHEMA
        return pa.RecordBatch.from_arrays([pa.array(getattr(self, name)) for name in COMPLETION_DTYPES], schema=schema)

    def __len__(self) -> int:
        return len(self.root_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completions):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in COMPLETION_DTYPES)

    def _repr_html_(self) -> str:
        """Return the number of rows by outcome, and the first rows, as a table for notebooks."""
        counts = zip(Outcome, np.bincount(self.outcome, minlength=len(Outcome)).tolist(), strict=False)
        outcomes = ", ".join(f"{count:,} {outcome.name}" for outcome, count in counts if count)
        caption = f"Completions: {len(self):,}" + (f" ({outcomes})" if outcomes else "")
        if len(self) > _ROWS_SHOWN:
            caption += f"; the first {_ROWS_SHOWN}"
        first = Completions(*(getattr(self, name)[:_ROWS_SHOWN] for name in COMPLETION_DTYPES))
        # Ids are names, and so have no separators.
        rows = [
            [str(root_id), str(message_id), str(task_id), Outcome(outcome).name, elapsed_ms]
            for root_id, message_id, task_id, outcome, elapsed_ms in first.rows()
        ]
        return html_table(caption, [*COMPLETION_DTYPES], rows)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={np.array2string(getattr(self, name), threshold=6)}" for name in COMPLETION_DTYPES)
        return f"Completions({shown})"
