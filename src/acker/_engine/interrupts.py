"""Results that a signal's handler must not take with it: rows that were applied, and the trees that they finished.

Python calls handlers between two calls of the native core. So long batches are applied in slices, and an exception that
a handler raises tells what was done before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from acker._engine.completions import Completions
from acker._engine.native import core
from acker.errors import AckerError, AckerMemoryError


def slices(rows: int, columns: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the columns in slices of at most `core.SLICE_ROWS` rows, and no rows as one slice."""
    step: int = core.SLICE_ROWS
    if rows <= step:
        yield columns
        return
    for first in range(0, rows, step):
        yield [None if column is None else column[first : first + step] for column in columns]


def tell_applied(error: BaseException, rows: int, completions: Completions | None = None) -> None:
    """Give an exception the attributes of `AckerMemoryError`, and a note that names them."""
    extended: Any = error
    extended.rows_applied = rows
    text = f"acker: {rows:,} leading rows of the batch were applied before this exception, which has `rows_applied`"
    if completions is not None:
        extended.completions = completions
        text += f" and the {len(completions):,} trees that they finished as `completions`"
    error.add_note(text)


def tell_ingested(error: BaseException, call: core.LastCall, parts: Sequence[Completions] = ()) -> None:
    """Attach what was applied to the exception that ends `ingest`.

    Parameters
    ----------
    error : BaseException
    call : LastCall
        The last one of the core.
    parts : sequence of Completions
        What the slices before the exception returned.
    """
    returned, rows = list(parts), len(parts) * core.SLICE_ROWS
    if isinstance(error, AckerMemoryError):
        if returned:
            tell_applied(error, rows + error.rows_applied, Completions.concat([*returned, error.completions]))
        return
    # The core raises errors of acker alone. Others may come from a handler, after a slice and before its result.
    last = None if isinstance(error, AckerError) else call.take()
    if last is not None and (not returned or returned[-1] is not last[1]):
        rows += last[0]
        returned.append(last[1])
    elif last is not None:
        rows += last[0] - core.SLICE_ROWS  # the last slice may be shorter
    if returned:
        tell_applied(error, rows, Completions.concat(returned))


def tell_rotated(error: BaseException, call: core.LastCall) -> None:
    """Give the exception that ends `rotate` the trees that timed out, as `completions`."""
    last = call.take()
    if last is None:
        return
    extended: Any = error
    extended.completions = last[1]
    error.add_note(
        f"acker: the rotation was done before this exception, which has the {len(last[1]):,} trees that timed out as"
        " `completions`"
    )
