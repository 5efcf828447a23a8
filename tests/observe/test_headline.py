"""The sentence at the top of the live page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acker.observe.calls import Busy, Line, UserCall
from acker.observe.durations import format_latency
from acker.observe.headline import LastBatch, Situation, headline
from acker.observe.holders import Holder

COUNT = Holder("count", 4, "process", 42_000)
HANGS = UserCall("packer_0", "orders/3", 90_000, "timed out", (Line("/src/pay.py", 31, "charge"),))
QUOTED = "\N{LEFT DOUBLE QUOTATION MARK}count\N{RIGHT DOUBLE QUOTATION MARK}"
MAYBE = Holder("count", 4, "maybe")


@pytest.mark.parametrize(
    ("situation", "tone", "text"),
    [
        (Situation("new"), "idle", "Starting."),
        (Situation("running"), "idle", "Idle: nothing is pending, and nothing comes in."),
        (
            Situation("running", pending=3, acked_a_second=0.0),
            "good",
            "Running: 3 trees pending, none was acked in the last seconds.",
        ),
        (
            Situation("running", pending=3, acked_a_second=1234.5, p99_ms=12.345),
            "good",
            "All is well: 1,234 trees acked a second, 99 of 100 within 12.3 ms.",
        ),
        (Situation("running", idle="No query runs."), "idle", "No query runs."),
        (
            Situation("running", pending=1, oldest_ms=30_200, batch=LastBatch("orders", 1_200, 0)),
            "good",
            "The last micro-batch of orders acked 1,200. 1 tree is pending, the oldest for 30.2 s.",
        ),
        (
            Situation("running", pending=0, batch=LastBatch("orders", 5, 2)),
            "fair",
            "The last micro-batch of orders acked 5; 2 failed, timed out or were rejected. 0 trees are pending.",
        ),
        (Situation("running", paused=True, pending=1), "fair", "Paused: the spouts emit nothing; 1 tree pending."),
        (
            Situation("running", failed=1, reason="timed out (attempt 1)"),
            "fair",
            "1 tree was not acked in the last seconds: timed out (attempt 1).",
        ),
        (
            Situation("running", failed=2, reason="failed in count[4] (attempt 1)"),
            "fair",
            "2 trees were not acked in the last seconds; the last one: failed in count[4] (attempt 1).",
        ),
        (
            Situation("running", stuck=1, oldest_ms=42_321, holders=[COUNT]),
            "bad",
            "1 tree has been stuck at “count” for 42 s.",
        ),
        (
            Situation("running", stuck=1, oldest_ms=42_321, holders=[replace(COUNT, line="pay.py:31 in pay")]),
            "bad",
            f"1 tree has been stuck at {QUOTED}, pay.py:31 in pay, for 42 s.",
        ),
        (
            Situation("running", busy=Busy(8, 6, 6, 8, 8), longest=HANGS, stuck=2, oldest_ms=9_000),
            "bad",
            f"{Busy(8, 6, 6, 8, 8)}; the longest runs at pay.py:31 in charge for 90 s.",
        ),
        (
            Situation("running", hung=[HANGS, replace(HANGS, stack=())], stuck=2, oldest_ms=9_000),
            "bad",
            "2 tasks hang; packer_0 has been in one call at pay.py:31 in charge for 90 s.",
        ),
        (
            Situation("running", hung=[replace(HANGS, stack=())]),
            "bad",
            "packer_0 hangs: it has been in one call for 90 s.",
        ),
        (
            Situation("running", busy=Busy(1, 1, 0, 1, 8)),  # such a call may end at once
            "idle",
            "Idle: nothing is pending, and nothing comes in.",
        ),
        (
            Situation("running", stuck=1_000, oldest_ms=600_000, holders=[COUNT, Holder("split", 1, "queue")]),
            "bad",
            "1,000 trees are stuck; the oldest has been at “count”, “split” for 10 min 0 s.",
        ),
        (
            Situation("running", stuck=1, oldest_ms=42_000, holders=[MAYBE, Holder("split", 1, "maybe")]),
            "bad",
            "1 tree has been stuck, maybe at “count”, “split”, for 42 s.",
        ),
        (
            Situation("running", stuck=1, oldest_ms=42_000, holders=[MAYBE, Holder("count", 5, "maybe")]),
            "bad",
            "1 tree has been stuck at “count” for 42 s.",
        ),
        (
            Situation("running", stuck=1, oldest_ms=42_000),
            "bad",
            "1 tree has been stuck, held by no task that is known, for 42 s.",
        ),
        (
            Situation("running", stuck=2, oldest_ms=1_000, noun="message"),
            "bad",
            "2 messages are stuck; the oldest has been, held by no task that is known, for 1 s.",
        ),
        (Situation("restarting", error="ValueError: no"), "bad", "Restarting after ValueError: no."),
        (Situation("draining", pending=2), "fair", "Stopping: 2 trees may still end."),
        (Situation("stopped", error="ValueError: no"), "bad", "Stopped with an error: ValueError: no."),
        (Situation("stopped", outcome="elapsed"), "idle", "Finished: the time was up."),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 5 else "",
)
def test_the_most_important_thing_is_told(situation, tone, text) -> None:
    assert headline(situation) == {"tone": tone, "text": text}


def test_latencies_have_units() -> None:
    assert [format_latency(ms) for ms in (0.01234, 12.0, 1_500)] == ["0.0123 ms", "12 ms", "1.5 s"]
