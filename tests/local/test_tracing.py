"""Traces of sampled trees, on a manual clock."""

from __future__ import annotations

import doctest
import sys
import threading

import pytest

from acker.local import tracing
from acker.local.tracing import (
    OPEN_EDGES_MAX,
    SETTLED_EDGES_MAX,
    EdgeTraces,
    HeldTuple,
    SettledTuple,
    format_duration,
)


class Clock:
    ns = 0

    def now_ns(self) -> int:
        return self.ns

    def advance(self, secs: float) -> None:
        self.ns += round(secs * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def traces(clock) -> EdgeTraces:
    return EdgeTraces(clock)


def test_who_holds_what_and_for_how_long(traces, clock) -> None:
    traces.record_emit(7, 10, "split", 2, "lines")
    clock.advance(0.5)
    traces.record_emit(7, 11, "count", 4, "split")
    traces.record_emit(7, 12, "count", 5, "split")
    traces.record_ack(7, 10)
    clock.advance(1)
    traces.record_emit(7, 13, "count", 5, "split")
    traces.record_fail(7, 11)
    clock.advance(28.5)
    assert traces.held_tuples(7) == [
        HeldTuple("count", 5, 12, 29_500, "split"),
        HeldTuple("count", 5, 13, 28_500, "split"),
    ]
    assert traces.settled_tuples(7) == [
        SettledTuple("split", 2, 10, 500, "lines", failed=False),
        SettledTuple("count", 4, 11, 1_000, "split", failed=True),
    ]
    assert traces.describe(7) == (
        "tree 7, begun 30.0 s ago: count[5] holds 2 tuples of split, the first for 29.5 s; 2 other tuples were settled"
    )


def test_the_example_of_the_docstring_runs() -> None:
    result = doctest.testmod(tracing)
    assert result.attempted > 0 and result.failed == 0


def test_a_tree_that_nobody_holds_is_said_to_miss_a_message(traces, clock) -> None:
    traces.record_emit(7, 10, "split", 2, "lines")
    traces.record_ack(7, 10)
    text = "tree 7, begun 0 ms ago: no task holds a tuple of it, so a message to the acker is missing or late; "
    assert traces.describe(7) == text + "1 other tuple was settled"
    assert traces.held_tuples(7) == []


def test_an_unknown_tree_and_an_unknown_tuple(traces) -> None:
    assert (
        traces.held_tuples(1) == [] and traces.settled_tuples(1) == [] and traces.describe(1) == "tree 1 was not traced"
    )
    traces.record_ack(1, 2)
    traces.record_fail(1, 2)
    traces.forget(1)
    traces.record_emit(1, 3, "split", 2, "lines")
    traces.record_ack(1, 2)
    assert [held.tuple_id for held in traces.held_tuples(1)] == [3]


def test_what_is_emitted_after_the_end_does_not_begin_the_tree_anew(traces) -> None:
    traces.record_emit(7, 10, "split", 2, "lines")
    traces.forget(7)
    traces.record_emit(7, 11, "count", 4, "split")
    assert len(traces) == 0 and traces.held_tuples(7) == []


def test_the_oldest_tree_makes_room(clock) -> None:
    traces = EdgeTraces(clock, limit=3)
    for root in range(100):
        traces.record_emit(root, 1, "split", 2, "lines")
    assert len(traces) == 3 and [root for root in range(100) if traces.held_tuples(root)] == [97, 98, 99]
    for root in range(100):
        traces.forget(root)
    traces.record_emit(1, 1, "split", 2, "lines")
    assert len(traces) == 1, "what ended long ago is not remembered for ever"
    with pytest.raises(ValueError, match="limit: expected"):
        EdgeTraces(clock, limit=0)


def test_a_tree_of_any_size_takes_bounded_room(traces) -> None:
    for tuple_id in range(OPEN_EDGES_MAX + 5):
        traces.record_emit(7, tuple_id, "split", 2, "lines")
    assert len(traces.held_tuples(7)) == OPEN_EDGES_MAX
    assert "split[2] holds 1,000 tuples of lines, the first for 0 ms; 5 tuples more were not traced" in traces.describe(
        7
    )
    for tuple_id in range(OPEN_EDGES_MAX):
        traces.record_ack(7, tuple_id)
    assert len(traces.settled_tuples(7)) == SETTLED_EDGES_MAX
    assert traces.describe(7).endswith("5 tuples more were not traced; 1,000 other tuples were settled")


def test_a_text_names_a_few_tasks_only(traces, clock) -> None:
    for task in range(20):
        clock.advance(1)
        traces.record_emit(7, task, "split", task, "lines")
    text = traces.describe(7)
    assert "split[0] holds 1 tuple of lines, for 19.0 s; split[1]" in text and "split[8]" not in text
    assert text.endswith("12 more tasks hold tuples of it")


def test_threads_may_share_it(traces) -> None:
    def work(task: int) -> None:
        for root in range(500):
            traces.record_emit(root, task, "split", task, "lines")
            traces.describe(root)
            traces.record_ack(root, task)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(task,)) for task in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(traces) == 500
    assert all(not traces.held_tuples(root) and len(traces.settled_tuples(root)) == 4 for root in range(500))


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1_250, "1.2 s"), (119_900, "119.9 s"), (303_000, "5 min 3 s")]
)
def test_times_are_readable(ms, text) -> None:
    assert format_duration(ms) == text
