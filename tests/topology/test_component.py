"""Spouts and bolts: streamparse's names, calls of the collector, batches."""

import inspect
import json
import logging
import sys

import numpy as np
import pytest

from acker.errors import AckerError
from acker.observe.reasons import reason_text
from acker.topology import BatchingBolt, Bolt, Reason, ReasonKind, Spout, TicklessBatchingBolt
from acker.topology.component import Component


class Words(Spout):
    outputs = ["word"]


class Echo(Bolt):
    outputs = ["word"]

    def process(self, tup):
        self.emit([tup.word])


class Batches(BatchingBolt):
    outputs = ["key", "count"]

    def group_key(self, tup):
        return tup.word[0]

    def process_batch(self, key, tups):
        self.emit([key, len(tups)])
        if key == "x":
            raise ValueError("no x here")
        tups.clear()  # the list is the user's


# --- both -------------------------------------------------------------------------------------------------------------


def test_binding_sets_what_streamparse_sets(task):
    bolt = Echo()
    conf = {"topology.debug": True, "topology.name": "other"}
    task.bind(bolt, conf)
    assert (bolt.task_id, bolt.component_name, bolt.topology_name, bolt.debug) == (3, "it", "T", True)
    assert bolt.storm_conf is conf and bolt.context["task->component"] == {"3": "it"}
    assert bolt.logger.name == "acker.topology.it"
    assert bolt.pid > 0


@pytest.mark.parametrize(
    ("level", "number"),
    [(None, logging.INFO), ("debug", logging.DEBUG), ("trace", logging.DEBUG), ("warn", logging.WARNING),
     ("warning", logging.WARNING), ("error", logging.ERROR), ("critical", logging.CRITICAL), ("odd", logging.INFO)],
)  # fmt: skip
def test_log_is_the_components_logger(task, caplog, level, number):
    bolt = Echo()
    task.bind(bolt)
    with caplog.at_level(logging.DEBUG, logger="acker.topology.it"):
        bolt.log("100% of it", level)
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("acker.topology.it", number, "100% of it")
    ]


@pytest.mark.parametrize(("values", "total"), [([np.int64(3), True], "4"), ([np.float32(0.5), 1], "1.5")])
def test_a_metric_of_numpy_becomes_a_number_that_a_report_can_write(task, values, total):
    bolt = Echo()
    collector = task.bind(bolt)
    for value in values:
        bolt.report_metric("seen", value)
    assert json.dumps(collector.counts["seen"]) == total


@pytest.mark.parametrize(
    ("value", "text"),
    [("1", "'seen': expected a number, got '1'"), (None, "got None"), (float("nan"), "a finite number, got nan")],
)
def test_a_metric_that_is_no_number_is_refused(task, value, text):
    bolt = Echo()
    collector = task.bind(bolt)
    with pytest.raises(AckerError, match=text):
        bolt.report_metric("seen", value)
    assert not collector.counts


def test_report_metric_counts(task):
    bolt = Echo()
    collector = task.bind(bolt)
    bolt.report_metric("seen")
    bolt.report_metric("seen", 4)
    assert collector.counts == {"seen": 5}


def test_raise_exception_logs_it_with_the_tuple(task, caplog):
    bolt = Echo()
    task.bind(bolt)
    bolt.raise_exception(ValueError("odd"), task.tup_of("a"))
    bolt.raise_exception(ValueError("odd"))
    first, second = caplog.records
    assert "ValueError raised while processing Tuple(('a',)" in first.getMessage()
    assert second.getMessage() == "ValueError raised"
    assert first.exc_info[1].args == ("odd",)


def test_heartbeats_and_ticks_are_told_apart(task):
    assert Bolt.is_tick(task.tick()) and not Bolt.is_tick(task.tup_of("a"))
    assert not Component.is_heartbeat(task.tick())


@pytest.mark.parametrize(
    ("component", "method", "call"),
    [
        (Words, "next_tuple", lambda c: c.next_tuple()),
        (Bolt, "process", lambda c: c.process(None)),
        (BatchingBolt, "process_batch", lambda c: c.process_batch(None, [])),
    ],
)
def test_what_has_to_be_overridden_says_so(component, method, call):
    with pytest.raises(NotImplementedError, match=rf"{component.__name__} has no {method}\(\)"):
        call(component())


def test_streamparses_positions_of_spec_hold():
    assert list(inspect.signature(Bolt.spec).parameters)[:4] == ["name", "inputs", "par", "config"]
    assert list(inspect.signature(Spout.spec).parameters)[:3] == ["name", "par", "config"]


# --- spouts -----------------------------------------------------------------------------------------------------------


def test_a_spout_emits_through_its_collector(task):
    spout = Words()
    collector = task.bind(spout)
    assert spout.emit(["a"]) is None
    assert spout.emit(("b",), tup_id=1, stream="s", direct_task=4, need_task_ids=True) == [7]
    assert collector.emitted == [(["a"], None, None, None), (("b",), 1, "s", 4)]


def test_a_spout_says_when_it_is_finished(task):
    spout = Words()
    task.bind(spout)
    assert not spout.finished
    spout.finish()
    assert spout.finished
    for call in (spout.activate, spout.deactivate, spout.close):
        call()
    spout.ack(1)
    spout.fail(1)


# --- bolts ------------------------------------------------------------------------------------------------------------


def test_a_bolt_calls_its_collector(task):
    bolt, tup, error = Echo(), task.tup_of("a"), ValueError("odd")
    collector = task.bind(bolt)
    bolt.process(tup)
    assert bolt.emit(["b"], stream="s", anchors=[tup], direct_task=4, need_task_ids=True) == [7]
    bolt.reset_timeout(tup)
    bolt.ack(tup)
    bolt.fail(tup)
    bolt.fail(tup, error)
    assert collector.emitted == [(["a"], None, (), None), (["b"], "s", (tup,), 4)]
    assert collector.settled == [("reset_timeout", tup), ("ack", tup), ("fail", tup, None), ("fail", tup, error)]
    assert bolt.process_tick(task.tick()) is None


def test_flags_are_those_of_streamparse():
    for kind in (Bolt, BatchingBolt, TicklessBatchingBolt):
        assert (kind.auto_anchor, kind.auto_ack, kind.auto_fail) == (True, True, True)
    assert (Bolt._settles_itself, BatchingBolt._settles_itself) == (False, True)


def test_ticks_come_as_the_conf_says():
    assert Echo().tick_secs({"topology.tick.tuple.freq.secs": 0.5}) == 0.5
    assert Batches().tick_secs({"topology.tick.tuple.freq.secs": None}) is None
    assert TicklessBatchingBolt().tick_secs({"topology.tick.tuple.freq.secs": 9}) == 2

    class Fast(TicklessBatchingBolt):
        secs_between_batches = 0.5

    assert Fast().tick_secs({}) == 0.5


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_acked_as_a_whole_and_anchors_to_all_of_it(task):
    bolt = Batches()
    collector = task.bind(bolt)
    a1, b1, a2 = (task.tup_of(word) for word in ("a1", "b1", "a2"))
    for tup in (a1, b1, a2):
        bolt.process(tup)
    assert collector.settled == []
    tick = task.tick()
    collector.inputs = (tick,)
    bolt.process_tick(tick)
    assert collector.emitted == [(["a", 2], None, (a1, a2), None), (["b", 1], None, (b1,), None)]
    assert collector.settled == [("ack", a1), ("ack", a2), ("ack", b1)]
    assert collector.inputs == (tick,)
    bolt.process_tick(task.tick())
    assert len(collector.emitted) == 2  # empty batches are not processed


def test_an_exception_fails_its_batch_and_no_other(task, caplog):
    bolt = Batches()
    collector = task.bind(bolt)
    tups = [task.tup_of(word) for word in ("x1", "a1", "x2")]
    for tup in tups:
        bolt.process(tup)
    bolt.process_tick(task.tick())
    error = collector.settled[0][2]
    assert isinstance(error, ValueError) and error.args == ("no x here",)
    assert collector.settled == [("fail", tups[0], error), ("fail", tups[2], error), ("ack", tups[1])]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("acker.topology.it", logging.ERROR)
    assert record.getMessage() == "process_batch('x') raised; its 2 tuples fail"


def test_batches_last_as_many_ticks_as_they_say(task):
    class Slow(Batches):
        ticks_between_batches = 3

    bolt = Slow()
    collector = task.bind(bolt)
    bolt.process(task.tup_of("a"))
    ends = []
    for _ in range(7):
        bolt.process_tick(task.tick())
        ends.append(len(collector.emitted))
        bolt.process(task.tup_of("a"))
    assert ends == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("flag", ["auto_ack", "auto_fail"])
def test_without_the_flag_the_bolt_settles_itself(task, flag):
    bolt = Batches()
    setattr(bolt, flag, False)
    collector = task.bind(bolt)
    for word in ("a", "x"):
        bolt.process(task.tup_of(word))
    bolt.process_tick(task.tick())
    assert [kind for kind, *_ in collector.settled] == [{"auto_ack": "fail", "auto_fail": "ack"}[flag]]


def test_a_batch_may_be_all_there_is(task):
    class All(TicklessBatchingBolt):
        def process_batch(self, key, tups):
            self.emit([key, [tup.word for tup in tups]], anchors=[])

    bolt = All()
    collector = task.bind(bolt)
    for word in "ab":
        bolt.process(task.tup_of(word))
    bolt.process_tick(task.tick())
    assert collector.emitted == [([None, ["a", "b"]], None, (), None)]


# --- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason(ReasonKind.FAILED, "split", 3, "Odd:\n  line"), "failed in split[3]: Odd: line (attempt 1)"),
        (Reason(ReasonKind.FAILED, "split", attempt=2), "failed in split (attempt 2)"),
        (Reason(ReasonKind.FAILED, "split", exception=" \n"), "failed in split (attempt 1)"),
        (Reason(ReasonKind.TIMED_OUT), "timed out (attempt 1)"),
    ],
)
def test_a_reason_is_one_line(reason, text):
    assert str(reason) == text
    assert {kind.name for kind in ReasonKind} == {"FAILED", "TIMED_OUT", "REJECTED", "RESTART", "SHUTDOWN"}


class Mute:
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("late", "late"),
        (ValueError("no"), "ValueError: no"),
        (KeyError(), "KeyError"),
        (ValueError(" "), "ValueError"),
        ({"code": 5}, "{'code': 5}"),
        (0, "0"),
        (Mute(), "(no text: its __str__ raised ZeroDivisionError)"),
    ],
)
def test_a_reason_may_be_any_object(reason, text):
    assert reason_text(reason) == text


@pytest.mark.parametrize("reason", [None, "", "\t "])
def test_a_reason_without_words_says_so(reason):
    line = sys._getframe().f_lineno + 1
    assert reason_text(reason) == f"no reason was given to fail(), in {__file__}:{line}"
    assert reason_text(reason, "nothing was said") == "nothing was said"
