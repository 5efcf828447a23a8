"""The search for the rows of a batch for which a function of a user raises."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import numpy as np

# The number of rows that are tried alone before a function counts as raising for every row.
_ALONE_MAX: Final = 32
# How much of a text about a whole batch every row gets.
_SHARED_CHARS_MAX: Final = 500

# What is no fault of a row. Panics of native libraries, such as those of polars, are one, and no `Exception`.
ENDS_TASK: Final = (KeyboardInterrupt, SystemExit, MemoryError)

Result = TypeVar("Result")


class RowFault(NamedTuple):
    """An error of a batch function: its text, the exception, and the file and line that raised it."""

    reason: str
    error: BaseException
    origin: tuple[str, int]

    def is_like(self, other: object) -> bool:
        """Return whether this is the same error; texts may differ, since many name a row."""
        return isinstance(other, RowFault) and type(self.error) is type(other.error) and self.origin == other.origin


def fault_of(error: BaseException, reason: str) -> RowFault:
    """Return the fault of an exception that is being handled."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return RowFault(reason, error, (frame.f_code.co_filename, line))


def find_bad_rows(
    attempt: Callable[[int, int], Result | RowFault], rows: int, *, divide: bool
) -> tuple[list[tuple[int, int, Result]], dict[int, RowFault]]:
    """Call a function for a batch. If it raises and `divide` is true, call it for parts until the bad rows are found.

    Parameters
    ----------
    attempt : callable
        (first row, row behind the last one) -> the result for these rows, or the fault.
    rows : int
        Number of rows of the batch.
    divide : bool
        False: every row of a batch for which the function raises is bad.

    Returns
    -------
    list of (first row, row behind the last one, result)
        Those of the good rows, in the order of the rows.
    dict
        The fault of each bad row.

    Notes
    -----
    It tries the first half, its first half, and so on, until one does not raise or one row is left; then each second
    half, as a batch of its own. This finds b bad rows among n with about 2 b log2(n / b) calls.

    A function that always raises would be called twice for each row. So if all first halves raise the same error,
    `_ALONE_MAX` rows from all over the batch are tried alone; if those raise it too, all rows fail with the error of
    the batch. A good row can thus fail with the others, but only where nearly all are bad: if every second row is bad,
    this happens to one batch in 2**33.
    """
    good: list[tuple[int, int, Result]] = []
    bad: dict[int, RowFault] = {}
    _search(attempt, 0, rows, divide, good, bad)
    return good, bad


def _search(
    attempt: Callable[[int, int], Result | RowFault],
    begin: int,
    end: int,
    divide: bool,
    good: list[tuple[int, int, Result]],
    bad: dict[int, RowFault],
) -> None:
    whole = attempt(begin, end)
    if not isinstance(whole, RowFault):
        good.append((begin, end, whole))
        return
    if end - begin == 1 or not divide:
        bad.update(dict.fromkeys(range(begin, end), whole))
        return
    ends = [end]
    part: Result | RowFault = whole
    are_alike = True
    while isinstance(part, RowFault) and ends[-1] - begin > 1:
        ends.append(begin + (ends[-1] - begin) // 2)
        part = attempt(begin, ends[-1])
        are_alike = are_alike and whole.is_like(part)
    if are_alike:
        faults = _faults_if_all_fail(attempt, begin, end, whole)
        if faults is not None:
            bad.update(faults)
            return
    if isinstance(part, RowFault):
        bad[begin] = part
    else:
        good.append((begin, ends[-1], part))
    for end_of_part, start in zip(ends[-2::-1], ends[:0:-1], strict=True):
        _search(attempt, start, end_of_part, True, good, bad)


def _faults_if_all_fail(
    attempt: Callable[[int, int], Result | RowFault], begin: int, end: int, whole: RowFault
) -> dict[int, RowFault] | None:
    """Try some rows alone; if the function raises the same error for all of them, return a fault for every row."""
    rows = end - begin
    if rows <= 2 * _ALONE_MAX:  # Dividing it to the end costs little.
        return None
    alone: dict[int, RowFault] = {}
    # At random, as bad rows may be regular; seeded, as what is computed twice must come out the same.
    for row in np.random.default_rng(rows).choice(rows, _ALONE_MAX, replace=False).tolist():
        found = attempt(begin + row, begin + row + 1)
        if not isinstance(found, RowFault) or not whole.is_like(found):
            return None
        alone[begin + row] = found
    if {fault.reason for fault in alone.values()} != {whole.reason}:  # It names a row, or the number of rows.
        whole = whole._replace(reason=f"{whole.reason[:_SHARED_CHARS_MAX]} (raised for the batch of {rows} rows)")
    return dict.fromkeys(range(begin, end), whole) | alone
