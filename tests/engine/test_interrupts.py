"""A signal's handler that raises takes nothing with it: what was applied before is in the exception."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest

from acker import Acker, Kind, ShardedAcker
from acker._engine import acker as native
from acker._engine import combiner as combining
from acker._engine.columns import check_columns
from acker._engine.combiner import Combiner
from acker._engine.completions import Completions
from acker._engine.native import core
from acker.errors import AckerMemoryError
from tests.native_testing import fail_allocations_after

SLICE = core.SLICE_ROWS
# In how many calls the handler has to raise after the batch was applied, and how many calls that may take.
WANTED, TRIES = 5, 500
ROWS = 100_000
# Seconds until a handler that has not run is a failure.
LONG = 60.0
# Of one wait: a signal that comes just before a wait begins does not end it.
SHORT = 0.01

ACKERS = pytest.mark.parametrize("make", [Acker, lambda: ShardedAcker(2)], ids=["Acker", "ShardedAcker"])


class HandlerError(Exception):
    """Raised by the handler."""


@pytest.fixture
def interrupted():
    """Return a function that makes a call while another thread sends a signal, whose handler raises.

    It returns the result and the exception: one, the other, or both where the handler ran after the call. The call has
    to be a Python function without arguments, and without `*` in its own calls: after a call with `*` of a method,
    CPython runs handlers before it assigns the result, which nobody gets then.
    """
    main = threading.get_ident()
    # Not an Event for all calls: a handler that raises within its `set` may leave its lock held, and what one call
    # sets late would be taken for the next one.
    calls: SimpleQueue[bool] = SimpleQueue()

    def handle(*_):
        raise HandlerError

    def send():
        while calls.get():
            signal.pthread_kill(main, signal.SIGUSR1)

    def make_call(function):
        result, never = None, threading.Event()
        try:
            calls.put(True)
            result = function()
            for _ in range(int(LONG / SHORT)):
                never.wait(SHORT)
            raise AssertionError("the handler did not run")
        except HandlerError as error:
            return result, error

    before = signal.signal(signal.SIGUSR1, handle)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(send)
        yield make_call
        calls.put(False)
    signal.signal(signal.SIGUSR1, before)


def whole_trees(rows=ROWS):
    """Return a batch of trees that are all finished: each TRACK with its OK behind it."""
    root_id = np.arange(rows) // 2
    kind = np.tile(np.array([Kind.TRACK, Kind.OK], np.int8), rows // 2)
    return kind, root_id, root_id + 1, np.zeros(rows, np.int32), root_id


@ACKERS
def test_an_interrupted_ingest_tells_what_it_finished(make, interrupted):
    acker, told, heard = make(), 0, 0
    kind, root_id, tuple_id, task_id, message_id = whole_trees()
    for _ in range(TRIES):
        result, error = interrupted(lambda: acker.ingest(kind, root_id, tuple_id, task_id, message_id))
        if result is None and hasattr(error, "completions"):
            assert error.rows_applied == ROWS
            assert "acker: 100,000 leading rows of the batch were applied" in error.__notes__[0]
            result = error.completions
            told += 1
        heard += 0 if result is None else len(result)
        assert heard == acker.stats().acked
        if told == WANTED:
            return
    raise AssertionError(f"{told} calls were interrupted after the batch")


@ACKERS
def test_an_interrupted_rotation_tells_what_timed_out(make, interrupted):
    acker, told, heard = make(), 0, 0
    root_id = np.arange(ROWS)
    for _ in range(TRIES):
        acker.ingest(Kind.TRACK, root_id, root_id + 1, np.zeros(ROWS, np.int32), root_id)
        acker.rotate()
        acker.rotate()
        result, error = interrupted(lambda: acker.rotate())  # noqa: PLW0108
        if result is None and hasattr(error, "completions"):
            assert "acker: the rotation was done" in error.__notes__[0]
            result = error.completions
            told += 1
        heard += 0 if result is None else len(result)
        if not len(acker):
            assert heard == acker.stats().timed_out
        else:
            assert result is None
            heard += len(acker.rotate())
        if told == WANTED:
            return
    raise AssertionError(f"{told} calls were interrupted after the rotation")


def test_an_interrupted_combiner_tells_how_many_rows_it_has(interrupted):
    combiner, told = Combiner(), 0
    columns = check_columns(*whole_trees())
    for turn in range(1, TRIES):
        result, error = interrupted(lambda: combiner.add_unchecked(columns) or "added")
        applied = ROWS if result else getattr(error, "rows_applied", 0)
        assert applied in (0, ROWS)
        told += result is None and applied == ROWS
        if applied == 0:
            combiner.add_unchecked(columns)
        assert combiner.messages == turn * ROWS
        if told == WANTED:
            return
    raise AssertionError(f"{told} calls were interrupted after the batch")


def raise_after(slices, ended):
    """Return `slices`, which sends this process a signal before the next slice once some have ended."""

    def interrupt(*arguments):
        for number, part in enumerate(slices(*arguments)):
            if number == ended:
                signal.raise_signal(signal.SIGUSR1)
            yield part

    return interrupt


@pytest.fixture
def handler():
    def handle(*_):
        raise HandlerError

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@ACKERS
def test_signals_are_heard_within_a_long_batch(make, handler, monkeypatch):
    rows = 3 * SLICE + 10
    columns = whole_trees(rows)
    acker = make()
    monkeypatch.setattr(native, "slices", raise_after(native.slices, 2))
    with pytest.raises(HandlerError) as caught:
        acker.ingest(*columns)
    monkeypatch.undo()
    assert caught.value.rows_applied == 2 * SLICE
    rest = acker.ingest(*(column[2 * SLICE :] for column in columns))
    every = Completions.concat([caught.value.completions, rest])
    assert sorted(every.message_id.tolist()) == list(range(rows // 2))


def test_signals_are_heard_while_a_combiner_adds_and_merges(handler, monkeypatch):
    rows = 2 * SLICE + 10
    source, target = Combiner(), Combiner()
    columns = whole_trees(rows)
    monkeypatch.setattr(combining, "slices", raise_after(combining.slices, 1))
    with pytest.raises(HandlerError) as caught:
        source.add(*columns)
    monkeypatch.undo()
    assert caught.value.rows_applied == source.messages == SLICE
    source.add(*(column[SLICE:] for column in columns))
    assert source.messages == rows
    (partials,) = source.partials()
    monkeypatch.setattr(combining, "slices", raise_after(combining.slices, 1))
    with pytest.raises(HandlerError) as caught:
        target.merge(partials)
    monkeypatch.undo()
    assert caught.value.rows_applied == len(target) == SLICE
    target.merge(partials.rows(SLICE, rows // 2))
    assert target.settle() == source.settle()


@pytest.mark.native_testing
def test_what_a_batch_without_memory_has_applied_counts_all_slices(scarce_memory):
    root_id, task_id = np.arange(2 * SLICE), np.zeros(2 * SLICE, np.int32)
    for allocations in range(40, 1_000, 5):
        acker = Acker()
        fail_allocations_after(allocations)
        with pytest.raises(AckerMemoryError) as caught:
            acker.ingest(Kind.TRACK, root_id, root_id + 1, task_id, root_id)
        fail_allocations_after(-1)
        applied = caught.value.rows_applied
        assert applied == acker.stats().tracked
        assert len(acker.ingest(Kind.OK, root_id[:applied], root_id[:applied] + 1)) == applied
        if applied > SLICE:
            assert f"acker: {applied:,} leading rows" in caught.value.__notes__[0]
            return
    raise AssertionError("memory never ran out in the second slice")
