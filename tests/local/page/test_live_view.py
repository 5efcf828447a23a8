"""What the live page is given of a topology: on a clock that the test turns, with one step at a time."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest

from acker.local import LocalRuntime
from acker.local.page.live_view import RuntimeView
from acker.observe.headline import RunningJob
from acker.observe.holders import Holder, SeenHolders
from acker.observe.readings import ROWS_MAX
from acker.testing import ManualClock, Scheduler
from acker.topology import BatchingBolt, Bolt, ReliableSpout, Spout, Topology
from acker.ui import LivePage
from acker.ui.source import ActionError

TIMEOUT_SECS = 60


class Lines(ReliableSpout):
    outputs = ["line"]
    attempts_max = 2
    backoff_secs = 1.0
    lines: list[str] = []

    def initialize(self, conf, context):
        self.rest = list(self.lines)

    def next_tuple(self):
        if self.rest:
            line = self.rest.pop(0)
            self.emit([line], tup_id=line)


class Check(Bolt):
    """Fails lines with "bad" in them, and looks at the page after it has failed a line with "look"."""

    outputs = ["line"]
    look: Callable[[], None] = lambda: None

    def process(self, tup):
        if "look" in tup.line:
            self.fail(tup, "seen enough")
            type(self).look()
            return
        if "bad" in tup.line:
            raise ValueError(f"cannot check {tup.line}")
        self.emit([tup.line])


class Bill(Bolt):
    """Keeps lines with "lost" in them for good."""

    auto_ack = False

    def process(self, tup):
        if "lost" not in tup.line:
            self.ack(tup)


BILL = f"test_live_view.py:{Bill.process.__code__.co_firstlineno} in Bill.process"
FORGOTTEN = (
    f"1 tree has been stuck at \N{LEFT DOUBLE QUOTATION MARK}bill\N{RIGHT DOUBLE QUOTATION MARK}, {BILL}, for 42 s,"
    " which neither acked nor failed it: is its ack forgotten?"
)
HELD = [{"component": "bill", "task": 3, "how": "held", "for_ms": None, "line": BILL}]


class Shop(Topology):
    lines = Lines.spec()
    check = Check.spec(inputs=[lines])
    bill = Bill.spec(inputs=[check])


class Watched:
    """A topology under a scheduler, and its view."""

    def __init__(self, monkeypatch, lines, *, values=False, **conf):
        monkeypatch.setattr(Lines, "lines", lines)
        self.clock = ManualClock()
        page = LivePage(port=0, values=values)
        conf = {"topology.message.timeout.secs": TIMEOUT_SECS, **conf}
        self.runtime = LocalRuntime(Shop, conf, clock=self.clock, seed=1, threads=False, ui=page)
        self.scheduler = Scheduler(self.runtime, self.clock)
        parts = self.runtime._parts
        self.source = RuntimeView(self.runtime, parts.failures, parts.sampler, values=values)

    def view(self):
        found = self.source.view()
        json.dumps(found, allow_nan=False)  # as it is sent
        return found

    def act(self, name, **arguments):
        did = self.source.actions[name](arguments)
        self.scheduler.settle()
        return did


@pytest.fixture
def watch(monkeypatch):
    made = []

    def start(lines, **options):
        watched = Watched(monkeypatch, lines, **options)
        made.append(watched.scheduler.__enter__())
        watched.scheduler.settle()
        return watched

    yield start
    for scheduler in made:
        scheduler.runtime.lifecycle.abort()
        scheduler.stop(0)


def test_the_numbers_are_those_of_stats(watch) -> None:
    watched = watch(["a", "b", "lost", "bad"])
    view, totals = watched.view(), watched.runtime.stats().totals
    assert view["totals"]["acked"] == totals.acked == 2
    assert view["totals"]["pending"] == totals.pending == 1
    assert view["totals"]["failed"] == totals.failed == 1
    nodes = {node["name"]: node for node in view["graph"]["nodes"]}
    assert list(nodes) == ["lines", "check", "bill"]
    assert nodes["check"]["executed"] == 4 and nodes["check"]["failed"] == 1
    assert [(edge["from"], edge["to"], edge["streams"]) for edge in view["graph"]["edges"]] == [
        ("lines", "check", ["default: shuffle"]),
        ("check", "bill", ["default: shuffle"]),
    ]
    assert watched.source.stats().to_json() == watched.runtime.stats().to_json()
    assert b"acker_messages_acked_total" in watched.source.metrics()


def test_rates_are_those_of_the_last_seconds(watch) -> None:
    watched = watch([])
    assert watched.view()["rates"]["acked"] is None, "one reading has no rate"
    spout = next(watched.runtime.lifecycle.executors.spout_tasks()).spout
    spout.rest += [str(number) for number in range(20)]
    watched.scheduler.advance(2)
    view = watched.view()
    assert view["rates"]["acked"] == 10
    assert {(edge["from"], edge["rate"]) for edge in view["graph"]["edges"]} == {("lines", 10), ("check", 10)}
    assert {chart["key"]: chart["series"][0]["value"] for chart in view["charts"]}["throughput"] == 10
    watched.scheduler.advance(30)
    assert watched.view()["charts"][0]["series"][0]["value"] == 0


def test_a_stuck_tree_is_found_and_its_holder_named(watch) -> None:
    watched = watch(["a", "lost order"])
    assert watched.view()["headline"]["tone"] != "bad"
    watched.scheduler.advance(42)
    view = watched.view()
    assert view["headline"] == {"tone": "bad", "text": FORGOTTEN}
    (row,) = view["open_trees"]["rows"]
    assert (row["id"], row["attempt"], row["age_ms"]) == ("lost order", 1, 42_000)
    assert row["holders"] == HELD
    assert view["open_trees"]["stuck"] == view["open_trees"]["total"] == 1


def test_a_bolt_that_has_failed_its_tuple_holds_nothing(watch, monkeypatch) -> None:
    watched = watch(["lost"])
    watched.scheduler.advance(42)
    seen = []
    monkeypatch.setattr(Check, "look", lambda: seen.append(watched.view()["headline"]["text"]))
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest.append("look")
    watched.scheduler.settle()
    assert seen == [f"{FORGOTTEN} 1 other is younger than 30 s."]


def test_a_forgotten_ack_stays_the_headline_while_its_tree_times_out_and_is_tried_again(watch) -> None:
    watched = watch(["a", "b", "lost"])
    heads = []
    for _ in range(3 * TIMEOUT_SECS):
        watched.scheduler.advance(1)
        heads.append(watched.view()["headline"]["text"])
    from_half = heads[TIMEOUT_SECS // 2 :]
    assert [text for text in from_half if BILL not in text or not text.endswith(" forgotten?")] == []
    assert any("1 tree timed out and 1 is stuck at " in text for text in from_half)


def test_a_tree_that_timed_out_names_who_held_it(watch) -> None:
    watched = watch(["lost"])
    watched.scheduler.advance(TIMEOUT_SECS / 2)
    assert watched.view()["open_trees"]["rows"][0]["holders"] == HELD
    watched.scheduler.advance(4 * TIMEOUT_SECS)
    view = watched.view()
    assert [(row["kind"], row["attempt"]) for row in view["failures"]["rows"]] == [("timed out", 2), ("timed out", 1)]
    assert [row["held_by"] for row in view["failures"]["rows"]] == [[], HELD], "of attempt 2 there was no reading"
    assert view["dead_letters"]["rows"][0]["held_by"] == []
    assert [each["held_by"] for each in watched.source.find("lost")] == [[], HELD, []]


def test_the_holders_of_few_trees_are_remembered() -> None:
    seen = SeenHolders()
    for root_id in range(2_000):
        seen.note(root_id, [Holder("bill", root_id, "held")])
    assert seen.of(0) == [] == seen.of(None)
    assert seen.of(1_999) == [Holder("bill", 1_999, "held")]


def test_holders_are_looked_for_once_a_tree_is_a_second_old(watch) -> None:
    watched = watch(["lost"])
    assert watched.view()["open_trees"]["rows"][0]["holders"] == []
    assert watched.source.find("lost")[0]["holders"] != [], "who searches wants to know"
    watched.scheduler.advance(1)
    assert watched.view()["open_trees"]["rows"][0]["holders"] != []


def test_a_traced_tree_shows_its_edges(watch) -> None:
    watched = watch(["lost"], **{"topology.trace.sample": 1})
    watched.scheduler.advance(5)
    (row,) = watched.view()["open_trees"]["rows"]
    assert row["edges"] == [{"from": "check", "to": "bill", "task": 3, "held_ms": 5_000}]
    assert [(each["component"], each["how"]) for each in row["holders"]] == [("bill", "held")]


def test_tuples_that_wait_in_a_queue_are_found_there(watch) -> None:
    watched = watch([])
    watched.scheduler.freeze("bill*")
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest += ["a", "b"]
    watched.scheduler.advance(31)
    view = watched.view()
    assert [row["holders"][0]["how"] for row in view["open_trees"]["rows"]] == ["queue", "queue"]
    assert view["headline"]["text"] == "2 trees are stuck; the oldest has been at “bill” for 31 s."
    watched.scheduler.thaw()
    watched.scheduler.settle()
    assert watched.view()["open_trees"]["rows"] == []


def test_an_outcome_that_its_spout_does_not_take_is_found_there(watch) -> None:
    watched = watch([])
    watched.scheduler.freeze("bill*")
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest.append("a")
    watched.scheduler.settle()
    watched.scheduler.freeze("lines*")
    watched.scheduler.thaw("bill*")
    watched.scheduler.advance(31)
    view = watched.view()
    (row,) = view["open_trees"]["rows"]
    assert row["holders"] == [{"component": "lines", "task": 1, "how": "outcome", "for_ms": None}]
    assert view["headline"]["text"] == "1 tree has been stuck at “lines” for 31 s."
    watched.scheduler.thaw()


def test_outcomes_behind_the_one_that_its_spout_is_busy_with_are_found_there(watch, monkeypatch) -> None:
    watched, seen = watch([]), []

    def ack(self, tup_id):
        seen.append([(row["id"], row["holders"]) for row in watched.view()["open_trees"]["rows"]])
        ReliableSpout.ack(self, tup_id)

    monkeypatch.setattr(Lines, "ack", ack)
    watched.scheduler.freeze("bill*")
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest += ["a", "b"]
    watched.scheduler.advance(31)
    watched.scheduler.thaw("bill*")
    watched.scheduler.settle()
    assert seen == [[("b", [{"component": "lines", "task": 1, "how": "outcome", "for_ms": 0}])], []]


@pytest.fixture
def hang(watch, monkeypatch):
    """A topology whose bolt `bill` is inside `process` on a thread of its own, while the scheduler steps the others."""
    inside, let_go = threading.Event(), threading.Event()

    def process(self, tup):
        if "hang" in tup.line:
            inside.set() or let_go.wait()  # one line, since the page names it
        self.ack(tup)

    monkeypatch.setattr(Bill, "process", process)
    watched = watch(["a", "b"], **{"topology.stats.sample.rate": 1.0})
    watched.scheduler.freeze("bill*")
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest.append("hang")
    watched.scheduler.settle()
    executor = watched.runtime.lifecycle.executors.bolts[1]
    executor.thread = threading.Thread(target=executor.step)
    executor.thread.start()
    inside.wait()
    watched.line = f"{process.__code__.co_firstlineno + 2} in {process.__qualname__}"
    yield watched
    let_go.set()
    executor.thread.join()
    watched.scheduler.thaw()


def test_a_spout_that_hangs_when_it_hears_of_its_last_tree_is_not_idle(watch, monkeypatch) -> None:
    inside, let_go = threading.Event(), threading.Event()

    def ack(self, tup_id) -> None:
        inside.set() or let_go.wait()

    watched = watch([])
    (executor,) = watched.runtime.lifecycle.executors.spouts
    executor.tasks[0].spout.rest.append("last")
    monkeypatch.setattr(Lines, "ack", ack)
    executor.step()  # it emits
    watched.scheduler.freeze("lines*")
    watched.scheduler.settle()
    executor.thread = threading.Thread(target=executor.step)  # it hears of the end
    executor.thread.start()
    try:
        assert inside.wait(60)
        watched.scheduler.advance(TIMEOUT_SECS)
        view = watched.view()
    finally:
        let_go.set()
        executor.thread.join()
        watched.scheduler.thaw()
    assert view["totals"]["pending"] == 0
    assert view["headline"]["text"].startswith("lines[1] hangs: it has been in one call of ack() at test_live_view.py:")


def test_a_call_that_hangs_is_named_with_its_line_also_when_its_tree_has_timed_out(hang) -> None:
    where = f"at test_live_view.py:{hang.line}"
    assert hang.view()["headline"]["tone"] != "bad"
    hang.scheduler.advance(6)
    view = hang.view()
    assert view["headline"] == {
        "tone": "bad",
        "text": f"bill[3] hangs: it has been in one call with a tuple of check (message hang) {where} for 6 s.",
    }
    (holder,) = view["open_trees"]["rows"][0]["holders"]
    assert (holder["how"], holder["for_ms"], f"at {holder['line']}") == ("process", 6_000, where)
    hang.scheduler.advance(4 * TIMEOUT_SECS)
    view = hang.view()
    assert view["totals"]["timed_out"] == 2 and not view["open_trees"]["rows"]
    assert view["headline"] == {
        "tone": "bad",
        "text": f"bill[3] hangs: it has been in one call with a tuple of check (message hang) {where} for 4 min 6 s.",
    }


def test_a_reading_takes_the_stacks_of_all_threads_once(hang, monkeypatch) -> None:
    hang.scheduler.advance(6)
    taken, frames_now, reader = [], sys._current_frames, threading.get_ident()

    def current_frames():
        frames = frames_now()
        if threading.get_ident() == reader:  # the server of the page takes readings too
            taken.append(frames)
        return frames

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    view = hang.view()
    (holder,) = view["open_trees"]["rows"][0]["holders"]
    (call,) = view["calls"]
    assert holder["line"] == call["line"] and len(taken) == 1


def test_a_stall_names_the_line_of_the_call(hang) -> None:
    hang.scheduler.advance(2 * TIMEOUT_SECS)
    stalls = hang.runtime.lifecycle.stalls
    inside = "bill[3] has been in process() with a tuple of check for 75.0 s"
    assert stalls and f"{inside}, at {__file__}:{hang.line};" in stalls[0]


def test_a_bolt_whose_calls_are_always_long_does_not_hang(watch, monkeypatch) -> None:
    watched, seen = watch([], **{"topology.stats.sample.rate": 1.0}), []

    def process(self, tup):
        watched.clock.advance(20)
        seen.append(watched.view()["headline"]["tone"])
        self.ack(tup)

    monkeypatch.setattr(Bill, "process", process)
    for line in "abc":
        next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest.append(line)
        watched.scheduler.settle()
    assert len(seen) == 3 and "bad" not in seen


class Batches(BatchingBolt):
    during: Callable[[], None] = lambda: None

    def process_batch(self, key, tups):
        type(self).during()


class Batched(Topology):
    lines = Lines.spec()
    batches = Batches.spec(inputs=[lines], config={"topology.tick.tuple.freq.secs": 1})


def test_a_batch_that_takes_longer_than_to_gather_it_does_not_hang(monkeypatch) -> None:
    clock, seen = ManualClock(), []
    monkeypatch.setattr(Lines, "lines", ["a", "b"])
    conf = {"topology.message.timeout.secs": TIMEOUT_SECS, "topology.stats.sample.rate": 1.0}
    runtime = LocalRuntime(Batched, conf, clock=clock, seed=1, threads=False, ui=0)
    source = RuntimeView(runtime, runtime._parts.failures, None, values=False)

    def during() -> None:
        for seconds in (20, 11):
            clock.advance(seconds)
            seen.append(source.view()["headline"]["text"])

    monkeypatch.setattr(Batches, "during", during)
    with Scheduler(runtime, clock) as scheduler:
        scheduler.settle()
        scheduler.advance(1)
        runtime.lifecycle.abort()
        scheduler.stop(0)
    assert seen[:2] == [
        "Running: 2 trees pending, none was acked in the last seconds.",
        "batches[2] hangs: it has been in one call with a tuple of lines (message a) for 31 s.",
    ]


def test_the_headline_tells_how_much_fails_and_why_most_of_it_does(watch) -> None:
    watched = watch(["a", "bad 1", "bad 2", "look"])
    line = f"cannot check bad 2, test_live_view.py:{Check.process.__code__.co_firstlineno + 6} in Check.process"
    assert watched.view()["headline"] == {
        "tone": "bad",
        "text": f"Failing: 3 of 4 trees in the last seconds, 2 of them: in check: ValueError: {line}.",
    }


def test_a_run_that_has_stopped_tells_its_dead_letters(watch) -> None:
    watched = watch(["bad 1", "a"])
    watched.scheduler.advance(5)
    assert " 1 dead letter so far." in watched.view()["headline"]["text"]
    watched.scheduler.stop()
    headline = watched.view()["headline"]
    assert headline["tone"] == "fair"
    assert headline["text"].startswith(
        "Stopped and drained. 2 failed, 1 dead letter; most often in check: ValueError: cannot check bad 1, test_live"
    )


def test_the_component_that_keeps_all_that_may_be_pending_is_named(watch) -> None:
    watched = watch(["lost 1", "lost 2", "lost 3"], **{"topology.max.spout.pending": 2})
    tones = [watched.view()["headline"]["tone"] for _ in range(2)]
    assert tones == ["good", "good"], "it has not been so for long"
    assert watched.view()["headline"] == {
        "tone": "fair",
        "text": "At its limit: 2 of 2 trees are pending. bill has 2 of the tuples, and waits. For a batch or a window,"
        " raise topology.max.spout.pending.",
    }


def test_the_slowest_component_is_named_where_as_much_is_pending_as_may_be(watch, monkeypatch) -> None:
    seen = []
    options = {"topology.max.spout.pending": 3, "topology.stats.sample.rate": 1.0}
    watched = watch([], **options)

    def process(self, tup):
        watched.clock.advance(1)
        seen.append(watched.view()["headline"])
        self.ack(tup)

    monkeypatch.setattr(Bill, "process", process)
    next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest += [str(number) for number in range(12)]
    watched.scheduler.settle()
    texts = [each["text"] for each in seen if each["text"].startswith("At its limit")]
    assert texts and all(
        text.startswith("At its limit: 3 of 3 trees are pending; “bill” is the slowest") for text in texts
    )
    assert texts[-1].endswith("Give it more tasks, or make its calls shorter.")


def test_a_bolt_whose_calls_take_longer_than_the_timeout_is_named(watch, monkeypatch) -> None:
    watched, seen = watch([], **{"topology.stats.sample.rate": 1.0}), []

    def process(self, tup):
        watched.clock.advance(2 * TIMEOUT_SECS)  # An ack would come too late.

    monkeypatch.setattr(Bill, "process", process)
    rest = next(watched.runtime.lifecycle.executors.spout_tasks()).spout.rest
    for number in range(4):
        rest.append(str(number))
        watched.scheduler.settle()
        watched.scheduler.advance(1)
        seen.append(watched.view()["headline"])
    assert seen[-1]["tone"] == "bad"
    assert "timed out in" in seen[-1]["text"] and ": the calls of bill take 2 min" in seen[-1]["text"]


def test_bolts_whose_micro_batch_runs_are_busy_or_not_known_and_not_idle(hang, monkeypatch) -> None:
    job = RunningJob("micro-batch 0", 2_000)
    monkeypatch.setattr(hang.runtime, "find_job", lambda now_ns: job)
    hang.scheduler.advance(6)
    busy = {node["name"]: node["busy"] for node in hang.view()["graph"]["nodes"]}
    assert (busy["check"], busy["bill"]) == (None, 1.0)
    job = job._replace(for_ms=5)
    assert [node["busy"] for node in hang.view()["graph"]["nodes"] if node["name"] == "check"] == [0.0]


def test_a_source_that_cannot_be_reached_is_the_headline(watch, monkeypatch) -> None:
    watched = watch(["lost"])
    away = property(lambda self: ("orders", time.monotonic() - 3, "ConnectionLostError: refused"))
    monkeypatch.setattr(Lines, "_away", away)
    assert re.fullmatch(
        r"orders cannot be reached for \d+ s, and is tried again: ConnectionLostError: refused\.",
        watched.view()["headline"]["text"],
    )


def test_failures_come_newest_first_with_their_reason(watch) -> None:
    watched = watch(["bad 1", "bad 2"])
    rows = watched.view()["failures"]["rows"]
    assert [row["id"] for row in rows] == ["bad 2", "bad 1"]
    newest = {name: rows[0][name] for name in ("kind", "component", "task", "why", "attempt", "spout")}
    assert newest == {
        "kind": "failed",
        "component": "check",
        "task": 2,
        "why": "ValueError: cannot check bad 2",
        "attempt": 1,
        "spout": "lines",
    }
    assert rows[0]["number"] > rows[1]["number"]


def test_failures_are_counted_by_their_kinds(watch) -> None:
    watched = watch(["bad 1", "bad 2", "look 1"])
    failures = watched.view()["failures"]
    assert failures["counted"] == 3
    line = f"test_live_view.py:{Check.process.__code__.co_firstlineno + 6} in Check.process"
    told = [(each["count"], each["why"], each["line"], each["id"]) for each in failures["reasons"]]
    assert told[0] == (2, "ValueError: cannot check bad 2", line, "bad 2")
    assert told[1][:2] == (1, "seen enough") and told[1][3] == "look 1"


def test_lists_are_bounded(watch) -> None:
    watched = watch([f"lost {number}" for number in range(10_000)], **{"topology.max.spout.pending": 20_000})
    trees = watched.view()["open_trees"]
    assert (trees["total"], len(trees["rows"])) == (10_000, ROWS_MAX)
    assert trees["rows"][0]["id"] == "lost 0"
    watched.scheduler.advance(TIMEOUT_SECS / 2)
    assert watched.view()["open_trees"]["stuck"] == 10_000


def test_a_message_is_found_by_its_id(watch) -> None:
    watched = watch(["lost", "bad", "a"])
    (row,) = watched.source.find("lost")
    assert (row["what"], row["holders"][0]["component"]) == ("open", "bill")
    assert watched.source.find(row["root_id"])[0]["id"] == "lost"
    found = watched.source.find("bad")
    assert [each["what"] for each in found] == ["open", "failure"]
    assert found[0]["waits"] and found[0]["attempt"] == 2
    assert found[0]["due_at_ms"] > found[1]["at_ms"]
    assert watched.source.find("a") == [], "it is acked"
    watched.scheduler.advance(10)
    assert [each["what"] for each in watched.source.find("bad")] == ["failure", "failure", "dead letter"]


def test_dead_letters_are_listed_and_replayed(watch, monkeypatch) -> None:
    watched = watch(["bad 1", "bad 2"])
    watched.scheduler.advance(10)
    letters = watched.view()["dead_letters"]
    assert (letters["total"], letters["held"]) == (2, 2)
    assert [(row["id"], row["attempt"]) for row in letters["rows"]] == [("bad 2", 2), ("bad 1", 2)]
    assert all("values" not in row for row in letters["rows"]), "they may be secret"
    monkeypatch.setattr(Check, "process", lambda self, tup: self.emit([tup.line]))
    assert watched.act("replay", number=letters["rows"][1]["number"]) == "replayed bad 1"
    assert [row["id"] for row in watched.view()["dead_letters"]["rows"]] == ["bad 2"]
    assert watched.runtime.stats().totals.acked == 1
    assert watched.act("replay", all=True) == "replayed bad 2"
    assert watched.runtime.stats().totals.acked == 2
    with pytest.raises(ActionError, match="no such dead letter"):
        watched.act("replay", number=letters["rows"][1]["number"])


def test_a_dead_letter_that_is_replayed_begins_with_its_first_attempt(watch) -> None:
    watched = watch(["bad"])
    watched.scheduler.advance(10)
    watched.act("replay", all=True)
    watched.scheduler.advance(10)
    view = watched.view()
    assert [row["attempt"] for row in view["failures"]["rows"]] == [2, 1, 2, 1]
    assert [row["attempt"] for row in view["dead_letters"]["rows"]] == [2]
    (task,) = watched.runtime.lifecycle.executors.spout_tasks()
    assert task.collector._fails == {}, "a spout with many dead letters would fill it"


def test_values_are_shown_if_asked_for(watch) -> None:
    watched = watch(["bad"], values=True)
    watched.scheduler.advance(10)
    assert watched.view()["dead_letters"]["rows"][0]["values"] == "'bad'"


def test_a_dead_letter_stays_until_its_spout_has_it(watch, monkeypatch) -> None:
    watched = watch(["bad"])
    watched.scheduler.advance(10)
    monkeypatch.setattr(Check, "process", lambda self, tup: self.emit([tup.line]))
    watched.scheduler.freeze("lines*")
    for _ in range(2):  # it is replayed once nevertheless
        assert watched.act("replay", all=True) == "replayed bad"
        assert [row["id"] for row in watched.view()["dead_letters"]["rows"]] == ["bad"]
    watched.scheduler.thaw()
    watched.scheduler.settle()
    assert not watched.view()["dead_letters"]["rows"] and watched.runtime.stats().totals.acked == 1


def test_no_dead_letter_is_replayed_while_the_topology_restarts_or_stops(watch, monkeypatch) -> None:
    def crash(self) -> None:
        raise ConnectionError("away")

    watched = watch(["bad"])
    watched.scheduler.advance(10)
    monkeypatch.setattr(Lines, "next_tuple", crash)
    watched.scheduler.settle()
    assert watched.view()["state"] == "restarting" and watched.runtime.report().restart_pending
    with pytest.raises(ActionError, match="the topology is restarting: dead letters are replayed while it runs"):
        watched.act("replay", all=True)
    assert [row["id"] for row in watched.view()["dead_letters"]["rows"]] == ["bad"]


def test_a_replay_is_refused_while_its_id_is_in_use(watch, caplog) -> None:
    watched = watch(["bad"])
    watched.scheduler.advance(10)
    spout = next(watched.runtime.lifecycle.executors.spout_tasks()).spout
    spout.rest.append("bad")
    watched.scheduler.freeze("check*")
    watched.scheduler.settle()
    watched.act("replay", all=True)
    assert "'bad' is not replayed: a tuple of this id is open" in caplog.text


def test_a_tree_is_failed_by_hand(watch) -> None:
    watched = watch(["lost"])
    (row,) = watched.view()["open_trees"]["rows"]
    assert watched.act("fail", root_id=row["root_id"]) == "failed the tree of lost"
    (failure,) = watched.view()["failures"]["rows"]
    assert (failure["id"], failure["why"]) == ("lost", "failed by hand, from the live page")
    with pytest.raises(ActionError, match="not open any more"):
        watched.act("fail", root_id=row["root_id"])
    with pytest.raises(ActionError, match="expected"):
        watched.act("fail", root_id=17)


def test_pause_and_resume(watch) -> None:
    watched = watch([])
    assert watched.act("pause") == "paused the spouts"
    spout = next(watched.runtime.lifecycle.executors.spout_tasks()).spout
    spout.rest.append("a")
    watched.scheduler.advance(1)
    view = watched.view()
    assert view["paused"] and view["headline"]["text"].startswith("Paused")
    assert spout.rest == ["a"]
    watched.act("resume")
    watched.scheduler.advance(1)
    view = watched.view()
    assert spout.rest == [] and not view["paused"]
    assert [each["text"] for each in view["events"]] == ["running", "paused"]


def test_the_log_level_is_set(watch) -> None:
    watched, logger = watch([]), logging.getLogger("acker")
    before = logger.level
    try:
        watched.act("log-level", level="ERROR")
        assert watched.view()["log_level"] == "ERROR"
        with pytest.raises(ActionError, match="DEBUG"):
            watched.act("log-level", level="LOUD")
    finally:
        logger.setLevel(before)


def test_the_end_is_shown(monkeypatch) -> None:
    watched = Watched(monkeypatch, ["a"])
    assert watched.view()["headline"]["text"].startswith("Starting")
    with watched.scheduler:
        watched.scheduler.settle()
    view = watched.view()
    assert (view["state"], view["actions"]) == ("stopped", [])
    assert view["headline"] == {"tone": "good", "text": "Stopped and drained."}
    with pytest.raises(ActionError, match="does not run"):
        watched.source.actions["fail"]({"root_id": "1"})


def test_without_the_option_nothing_is_recorded() -> None:
    runtime = LocalRuntime(Shop, threads=False)
    assert runtime.page is None and runtime._parts.failures is None


class Endless(Spout):
    outputs = ["n"]

    def initialize(self, conf, context):
        self.n = 0

    def next_tuple(self):
        self.n += 1
        self.emit([self.n], tup_id=self.n)


class Slow(Bolt):
    def process(self, tup):
        pass


class Stream(Topology):
    endless = Endless.spec()
    slow = Slow.spec(inputs=[endless], config={"topology.executor.receive.buffer.size": 100})


def test_the_component_with_the_full_queue_is_the_bottleneck() -> None:
    clock = ManualClock()
    runtime = LocalRuntime(Stream, {"topology.max.spout.pending": 500}, clock=clock, threads=False, ui=0)
    scheduler = Scheduler(runtime, clock)
    source = RuntimeView(runtime, runtime._parts.failures, None, values=False)
    scheduler.run(lambda: runtime.state == "running")
    scheduler.freeze("slow*")
    scheduler.settle()
    (endless, slow) = source.view()["graph"]["nodes"]
    assert slow["queue"] >= slow["queue_capacity"] == 100
    assert (endless["bottleneck"], slow["bottleneck"]) == (False, True)
    scheduler.thaw()
    runtime.lifecycle.abort()
    scheduler.stop(0)
