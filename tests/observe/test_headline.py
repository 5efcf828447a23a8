"""The sentence at the top of the live page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acker.observe.calls import Busy, Line, UserCall
from acker.observe.durations import format_latency
from acker.observe.failures import Failure, FailureLog, ReasonGroup
from acker.observe.headline import Away, GivenUp, LastBatch, Limit, RunningJob, Situation, headline, stuck_ms
from acker.observe.holders import Forgotten, Holder, HungBefore, SeenHolders
from acker.observe.latencies import LatencyRecorder
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.timeout_advice import TooShort

COUNT = Holder("count", 4, "process", 42_000)
HANGS = UserCall("packer_0", "orders/3", 90_000, "timed out", (Line("/src/pay.py", 31, "charge"),))
JOB = RunningJob("micro-batch 3", 42_000, 1_200.0, "a task is in charge[2]")
QUOTED = "\N{LEFT DOUBLE QUOTATION MARK}count\N{RIGHT DOUBLE QUOTATION MARK}"
MAYBE = Holder("count", 4, "maybe")
MINE = Holder("your code", None, "held", text="took it, and has 1 open part", line="shop.py:12 in work")
HELD = Holder("count", 4, "held", line="count.py:9 in Count.process")


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
            "2 calls hang; packer_0 has been in one call with orders/3 at pay.py:31 in charge for 90 s.",
        ),
        (
            Situation("running", hung=[replace(HANGS, stack=())]),
            "bad",
            "packer_0 hangs: it has been in one call with orders/3 for 90 s.",
        ),
        (
            Situation("running", hung=[replace(HANGS, who="charge[2]", what="a tuple of a (message 7)")], job=JOB),
            "bad",
            "charge[2] hangs: it has been in one call with a tuple of a (message 7) at pay.py:31 in charge for 90 s.",
        ),
        (
            Situation("running", pending=9, job=JOB, stuck=9, oldest_ms=42_000),
            "fair",
            "Micro-batch 3 has run for 42 s, and usually takes 1.2 s: a task is in charge[2].",
        ),
        (
            Situation("running", job=RunningJob("micro-batch 0", 11_000)),
            "fair",
            "Micro-batch 0 has run for 11 s.",
        ),
        (
            # Trees wait for their micro-batch, however long it always takes.
            Situation("running", pending=9, job=JOB._replace(usual_ms=40_000.0), stuck=9, oldest_ms=42_000),
            "good",
            "Running: 9 trees pending, none was acked in the last seconds.",
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
        (
            Situation("running", stuck=1, oldest_ms=42_000, noun="message", holders=[MINE]),
            "bad",
            (
                "1 message has been stuck at “your code”, shop.py:12 in work, for 42 s, and no call works on it:"
                " is its ack forgotten?"
            ),
        ),
        (
            Situation("running", stuck=5, stuck_from_ms=15_000, oldest_ms=42_000, younger=3, holders=[HELD]),
            "bad",
            (
                "5 trees are stuck; the oldest has been at “count”, count.py:9 in Count.process, for 42 s, which"
                " neither acked nor failed it: is its ack forgotten? 3 others are younger than 15 s."
            ),
        ),
        (
            Situation(
                "running", stuck=1, oldest_ms=42_000, holders=[replace(HELD, how="maybe", task=n) for n in (4, 5)]
            ),
            "bad",
            (
                "1 tree has been stuck at “count”, count.py:9 in Count.process, for 42 s, which neither acked nor"
                " failed it: is its ack forgotten?"
            ),
        ),
        (
            # As a batch, which keeps tuples by design.
            Situation("running", stuck=1, oldest_ms=42_000, holders=[replace(HELD, line=None)]),
            "bad",
            "1 tree has been stuck at “count” for 42 s, which neither acked nor failed it.",
        ),
        (Situation("restarting", error="ValueError: no"), "bad", "Restarting after ValueError: no."),
        (Situation("draining", pending=2), "fair", "Stopping: 2 trees may still end."),
        (Situation("stopped", error="ValueError: no"), "bad", "Stopped with an error: ValueError: no."),
        (Situation("stopped"), "idle", "Stopped."),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 5 else "",
)
def test_the_most_important_thing_is_told(situation, tone, text) -> None:
    assert headline(situation) == {"tone": tone, "text": text}


PAY = "in pay: LookupError: no sofa is left, pay.py:31 in Pay.process"


def group(times: int, kind: ReasonKind = ReasonKind.FAILED, **why: str) -> ReasonGroup:
    reason = Reason(kind, **{"component": "pay", "exception": "LookupError: no sofa is left.", **why}, task=3)
    return ReasonGroup(times, Failure(1, 0, "lines", 1, "a", reason, 5))


LOST = group(3, line="pay.py:31 in Pay.process")


def told(**facts) -> tuple[str, str]:
    found = headline(Situation("running", **{"pending": 3, "acked_a_second": 1.0, **facts}))
    return found["tone"], found["text"]


def test_a_source_that_cannot_be_reached_is_told_first() -> None:
    away = Away("orders", 12_345, "ConnectionLostError: refused.")
    text = "orders cannot be reached for 12 s, and is tried again: ConnectionLostError: refused."
    assert told(away=away, hung=[HANGS], stuck=1, oldest_ms=9_000) == ("bad", text)


def test_failures_are_told_with_their_rate_and_the_most_frequent_reason() -> None:
    some = told(failed=4, acked=8, failed_a_second=0.4, why=LOST)
    assert some == ("fair", f"Failing: 4 of 12 trees in the last seconds, 0.4 a second, 3 of them: {PAY}.")
    most = told(failed=3, acked=1, why=LOST, letters=GivenUp(2))
    assert most == ("bad", f"Failing: 3 of 4 trees in the last seconds: {PAY}. 2 dead letters so far.")
    assert told(failed=1, acked=1)[1] == "Failing: 1 of 2 trees in the last seconds."


def test_the_age_of_the_last_dead_letter_is_known_once_it_was_replayed(monkeypatch):
    log = FailureLog()
    log.record_dead_letter("orders", 1, "id", (1,), Reason(ReasonKind.FAILED, exception="no sofa"))
    (letter,) = log.dead_letters()
    assert log.forget(letter) and not log.dead_letters()
    later_ns = (letter.at_ms + 300_000) * 1_000_000
    monkeypatch.setattr("acker.observe.headline.time.time_ns", lambda: later_ns)
    assert GivenUp.of(1, log).ago_ms == 300_000


def test_dead_letters_are_told_with_the_most_frequent_reason_while_they_are_news() -> None:
    letters = GivenUp(12, 61_000, LOST)
    assert told(letters=letters) == ("fair", f"12 dead letters, 3 of them: {PAY}; the last one 61.0 s ago.")
    assert told(letters=GivenUp(1, 5, group(1, component=None)))[1].startswith("1 dead letter: LookupError: no sofa")
    assert told(letters=letters._replace(ago_ms=601_000))[0] == "good"


@pytest.mark.parametrize(
    ("limit", "noun", "text"),
    [
        (
            Limit(128, 128, "pay", 0.987, 126, 250.0),
            "tree",
            (
                "128 of 128 trees are pending; \N{LEFT DOUBLE QUOTATION MARK}pay\N{RIGHT DOUBLE QUOTATION MARK} is the"
                " slowest, busy 99 % of its time with calls of 250 ms; 126 tuples wait. Give it more tasks, or make"
                " its calls shorter."
            ),
        ),
        (
            Limit(120, 128),
            "tree",
            (
                "120 of 128 trees are pending. No component is busy: if trees wait for a batch or a window, raise"
                " topology.max.spout.pending."
            ),
        ),
        (Limit(128, 128, mend="Do this"), "tree", "128 of 128 trees are pending. Do this."),
        (
            Limit(8, 1_000, threads=8, waiting=120),
            "message",
            "all 8 threads of the pool are busy; 120 parts wait. Give the pool more threads, or start another process.",
        ),
        (
            Limit(8, 1_000, threads=8, waiting=120, call_ms=51.2, line="pay.py:31 in charge"),
            "message",
            (
                "all 8 threads of the pool are busy; most calls take 51.2 ms, at pay.py:31 in charge; 120 parts wait."
                " Give the pool more threads, or start another process."
            ),
        ),
        (
            Limit(1_000, 1_000, waiting=990),
            "message",
            (
                "1,000 of 1,000 messages are pending; 990 messages wait. Work on more messages at a time, in threads or"
                " coroutines, or start another process."
            ),
        ),
    ],
)
def test_what_is_at_its_limit_is_told_with_what_to_do(limit: Limit, noun: str, text: str) -> None:
    assert told(limit=limit, noun=noun) == ("fair", f"At its limit: {text}")


def test_a_limit_that_forgotten_acks_have_filled_is_told_with_the_line_and_not_to_be_raised() -> None:
    facts = {"limit": Limit(8, 8), "oldest_ms": 6_000, "holders": [HELD]}
    stands = f"the oldest has been at {QUOTED}, count.py:9 in Count.process, for 6 s"
    assert told(**facts, acked_a_second=0.0)[1] == (
        f"At its limit: 8 of 8 trees are pending; {stands}, which neither acked nor failed it: is its ack forgotten?"
    )
    assert "is its ack forgotten?" not in told(**facts)[1], "others are acked meanwhile"
    assert "topology.max.spout.pending" in told(**{**facts, "holders": [COUNT]}, acked_a_second=0.0)[1]


def test_a_timeout_that_is_shorter_than_the_work_is_told_with_its_numbers() -> None:
    rate = TooShort(20, 10.0, 5.0, 60, 40, "tree")
    assert told(too_short=rate, stuck=1, oldest_ms=9_000) == (
        "bad",
        (
            "20 trees timed out in 10.0 s: 60 are pending, 4 are acked a second, so each takes 15.0 s at that rate,"
            " and topology.message.timeout.secs is 5. Choose a topology.max.spout.pending of at most 10, or"
            " a longer timeout."
        ),
    )
    calls = rate._replace(timed_out=1, where="pay", call_ms=7_000.0)
    assert told(too_short=calls)[1] == (
        "1 tree timed out in 10.0 s: the calls of pay take 7.0 s, and topology.message.timeout.secs is 5. Choose a"
        " longer timeout."
    )
    assert told(too_short=rate._replace(pending=1))[0] == "good"  # the rate suffices


def test_reasons_of_the_last_failures_do_not_pass_for_those_of_all() -> None:
    many = {"failed": 6_120, "failed_a_second": 4_100.4, "looked_at": 200}
    some = "Failing: 6,120 of 6,120 trees in the last seconds, 4,100 a second"
    assert told(**many, why=LOST._replace(times=200))[1] == f"{some}: {PAY}."
    assert told(**many, why=LOST._replace(times=150))[1] == f"{some}, 150 of the last 200: {PAY}."


def test_what_has_stopped_says_so_and_then_what_went_wrong() -> None:
    ended = Situation("stopped", lost=5, why=LOST)
    assert headline(ended) == {"tone": "fair", "text": f"Stopped. 5 trees were not acked, 3 of them: {PAY}."}
    given_up = ended._replace(letters=GivenUp(925, 5_000_000, LOST))
    assert headline(given_up)["text"] == f"Stopped. 925 dead letters, 3 of them: {PAY}."
    assert headline(ended._replace(error="ValueError: no"))["text"].startswith(
        "Stopped with an error: ValueError: no. 5"
    )
    assert headline(ended._replace(lost=0)) == {"tone": "idle", "text": "Stopped."}


def test_what_hangs_is_told_before_all_that_follows_from_it() -> None:
    facts = {"too_short": TooShort(20, 10.0, 5.0, 60, 40), "limit": Limit(3, 3), "failed": 4, "letters": GivenUp(2)}
    assert told(hung=[HANGS], stuck=4, oldest_ms=9_000, **facts)[1].startswith("packer_0 hangs")
    # Also when its message has timed out, and so the headline stays one.
    busy = Busy(8, 6, 6, 8, 8)
    assert told(hung=[HANGS], busy=busy)[1] == (
        f"packer_0 hangs: it has been in one call with orders/3 at pay.py:31 in charge for 90 s. {busy}."
    )


def ended(
    root_id: int, kind: ReasonKind = ReasonKind.TIMED_OUT, component: str | None = None, **why: str | None
) -> Failure:
    return Failure(root_id, 0, "lines", 1, "a", Reason(kind, component, **why), 5, root_id)


def test_an_ack_that_is_forgotten_stays_the_headline_while_trees_time_out_and_are_tried_again() -> None:
    seen = SeenHolders()
    for root_id in (1, 2):
        seen.note(root_id, [HELD])
    seen.note(3, [COUNT])
    # That tree 4 was nowhere known says nothing.
    facts = {"forgotten": Forgotten.of([ended(2), ended(1), ended(3), ended(4)], seen), "failed": 3}
    facts["too_short"] = TooShort(3, 10.0, 4.0, 8, 1, "tree")
    at = f"at {QUOTED}, count.py:9 in Count.process, which neither acked nor failed them: are their acks forgotten?"
    assert told(**facts) == ("bad", f"2 trees timed out {at}")
    young = " 2 others are younger than 2 s."
    stuck = {"stuck": 1, "stuck_from_ms": 2_000, "younger": 2, "oldest_ms": 3_000, "holders": [HELD]}
    assert told(**facts, **stuck) == ("bad", f"2 trees timed out and 1 is stuck {at}{young}")
    # Calls whose messages timed out hang, and forget nothing.
    assert told(**{**facts, "too_short": None}, busy=Busy(8, 6, 6, 8, 8))[1].startswith("8 of 8 threads are busy")


def test_calls_that_hung_until_their_messages_timed_out_stay_the_headline() -> None:
    seen = SeenHolders()
    call = Holder("packer_0", None, "process", 60_000, line="pay.py:31 in charge")
    for root_id in (1, 2):
        seen.note(root_id, [call])
    seen.note(3, [replace(call, for_ms=100)])  # it had only begun
    seen.note(4, [HELD])

    def hung_before(*root_ids: int) -> HungBefore | None:
        return HungBefore.of(map(ended, root_ids), seen, lambda for_ms: for_ms > 30_000)

    facts = {"hung_before": hung_before(2, 1, 3), "failed": 3, "stuck": 1, "oldest_ms": 40_000}
    was = "packer_0 was in one call with a at pay.py:31 in charge for 60 s, until that timed out."
    assert told(**facts) == ("bad", f"2 calls hung; {was}")
    once = {**facts, "hung_before": hung_before(1), "acked": 5}
    assert told(**once) == ("fair", was.replace("packer_0 was", "packer_0 hung: it was"))
    assert told(**facts, hung=[HANGS])[1].startswith("packer_0 hangs: it has been in one call")
    assert hung_before(1, 3) is hung_before(3) is hung_before(4) is hung_before() is None
    assert HungBefore.of([ended(1, ReasonKind.FAILED)], seen, lambda _: True) is None


def test_trees_that_time_out_elsewhere_are_not_told_to_be_forgotten() -> None:
    seen = SeenHolders()
    seen.note(1, [HELD])
    seen.note(2, [MAYBE, Holder("split", 1, "maybe")])
    assert Forgotten.of([ended(1), ended(2)], seen) is None
    assert Forgotten.of([ended(1), ended(3, ReasonKind.FAILED, "pay")], seen) is None
    assert Forgotten.of([], seen) is None


def test_what_a_micro_batch_leaves_open_is_told_with_the_bolt_that_forgot_it() -> None:
    why = {"exception": "open at the end of its micro-batch", "line": HELD.line}
    found = Forgotten.of([ended(1, component="count", **why)], SeenHolders())
    text = (
        f"1 tree was open at the end of a micro-batch at {QUOTED}, count.py:9 in Count.process, which neither acked nor"
        " failed it: is its ack forgotten?"
    )
    assert told(forgotten=found, failed=1, job=JOB, stuck=3, oldest_ms=9_000) == ("bad", text)


def test_a_tree_is_stuck_after_half_of_the_timeout_unless_trees_always_take_long() -> None:
    recorder = LatencyRecorder()
    assert stuck_ms(30_000, recorder.snapshot()) == 15_000
    recorder.record(20_000_000_000)
    assert stuck_ms(30_000, recorder.snapshot()) > 30_000


def test_latencies_have_units() -> None:
    assert [format_latency(ms) for ms in (0.01234, 12.0, 1_500)] == ["0.0123 ms", "12 ms", "1.5 s"]
