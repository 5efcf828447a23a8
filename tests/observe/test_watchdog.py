"""The watchdog, on a manual clock."""

from __future__ import annotations

import pytest

from acker.observe.calls import Line, UserCall
from acker.observe.stats import RuntimeStats, TaskStats
from acker.observe.watchdog import StallWatchdog


def stats(acked: int, pending: int, *bolts: TaskStats) -> RuntimeStats:
    age = 45_200 if pending else None
    spout = TaskStats(component="lines", kind="spout", task=1, acked=acked, pending=pending, oldest_age_ms=age)
    return RuntimeStats(topology="WordCount", state="running", tasks=(spout, *bolts))


def bolt(task: int, **figures) -> TaskStats:
    return TaskStats(component="count", kind="bolt", task=task, queue_capacity=100, **figures)


def call(who: str, for_ms: int, *stack: Line) -> UserCall:
    return UserCall(who, None, for_ms, stack=stack)


@pytest.fixture
def watchdog() -> StallWatchdog:
    return StallWatchdog(1_000)


def test_says_who_once_the_stall_is_as_long_as_the_timeout(watchdog) -> None:
    still = stats(5, 128, bolt(2), bolt(3, queue=100), bolt(4, queue=7, pending=2, oldest_age_ms=1_500))
    assert watchdog.look(500, still) is None
    assert watchdog.look(1_499, still) is None
    assert watchdog.look(
        1_500, still, {4: call("count[4]", 990), 2: call("count[2]", 1_200, Line("/src/pay.py", 31, "charge"))}
    ) == (
        "nothing was acked for 1.0 s and 128 trees are pending (the oldest for 45.2 s): "
        "count[2] has been in process() for 1.2 s, at /src/pay.py:31 in charge; "
        "count[4] has been in process() for 990 ms; "
        "count[3] has 100 of 100 tuples in its queue; count[4] has 7 of 100 tuples in its queue; "
        "count[4] holds 2 that it neither acked nor failed, the oldest for 1.5 s"
    )


def test_says_it_again_each_time_the_stall_has_doubled(watchdog) -> None:
    said = [now for now in range(0, 9_000, 100) if watchdog.look(now, stats(5, 1))]
    assert said == [1_000, 2_000, 4_000, 8_000]


def test_an_ack_or_an_empty_topology_begin_anew(watchdog) -> None:
    watchdog.look(0, stats(5, 1))
    assert watchdog.look(1_000, stats(6, 1)) is None
    assert watchdog.look(1_999, stats(6, 1)) is None
    assert watchdog.look(2_000, stats(6, 0)) is None
    assert watchdog.look(2_999, stats(6, 1)) is None
    assert watchdog.look(3_000, stats(6, 1)) is not None


def test_failed_trees_are_no_progress(watchdog) -> None:
    watchdog.look(0, stats(5, 1))
    spout = TaskStats(component="lines", kind="spout", task=1, acked=5, failed=9, timed_out=7, pending=1)
    assert watchdog.look(1_000, RuntimeStats(topology="t", tasks=(spout,))) == (
        "nothing was acked for 1.0 s and 1 tree is pending: no task is busy, has a queue or holds a tuple"
    )


def test_a_queue_that_tasks_share_is_named_once(watchdog) -> None:
    still = stats(0, 1, *(bolt(task, queue=9, executor="count[2-4]") for task in (2, 3, 4)), bolt(5, queue=9))
    watchdog.look(0, still)
    assert watchdog.look(1_000, still).endswith(
        ": count[2] has 9 of 100 tuples in its queue; count[5] has 9 of 100 tuples in its queue"
    )


def test_a_spout_may_be_in_the_way_and_an_acker_has_a_queue(watchdog) -> None:
    still = stats(0, 3, TaskStats(component="__acker", kind="acker", task=9, queue=5, queue_capacity=50))
    watchdog.look(0, still)
    assert watchdog.look(2_000, still, {1: call("lines[1]", 1_900)}).endswith(
        ": lines[1] has been in next_tuple() for 1.9 s; __acker[9] has 5 of 50 tuples in its queue"
    )


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        StallWatchdog(0)
