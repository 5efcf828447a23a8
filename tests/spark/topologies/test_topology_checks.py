"""What a topology cannot take to Spark's workers, and what has no effect there: both are told before a job starts."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

from acker.errors import TopologyError
from acker.spark import run
from acker.spark.topologies import topology_checks
from acker.spark.topologies.topology_checks import check_travels, idle_options
from acker.topology import Bolt, Grouping, Spout, Topology, auto_ack_bolt
from tests.spark.topologies.both import FOLDER, Numbers, note

LOCK = threading.Lock()


def topology_of(bolt, **options):
    """Return a topology with one bolt."""
    numbers = Numbers.spec()
    return type("Guarded", (Topology,), {"numbers": numbers, "count": bolt.spec(inputs=[numbers], **options)})


class End(Bolt):
    """Notes what it gets."""

    def process(self, tup):
        note(self, tup.n)


class ByName(End):
    """A worker imports it from here."""

    lock = LOCK


# Classes of a function, as those of a script or a notebook, travel with all they refer to.


def with_attribute(file):
    class Count(End):
        log = file

    return Count


def with_closure(file):
    class Count(End):
        def process(self, tup):
            super().process(tup)
            file.write(tup.n)

    return Count


def with_inherited(file):
    return type("More", (with_attribute(file),), {})


def with_nested(file):
    class Count(End):
        def process(self, tup):
            return sorted([tup], key=lambda _: file.write(tup.n))

    return Count


def with_function(file):
    return auto_ack_bolt(lambda args, tup, emit: file.write(tup.n), name="count")


@pytest.mark.parametrize(
    ("bolt", "text"),
    [
        (with_attribute, "the attribute 'log' of Count cannot be pickled"),
        (with_closure, r"Count\.process\(\) uses 'file', which cannot be pickled"),
        (with_inherited, "the attribute 'log' of Count cannot be pickled"),
        (with_nested, r"Count\.process\(\) uses 'file', which cannot be pickled"),
        (with_function, "cannot be pickled"),
    ],
)
def test_a_bolt_that_holds_an_open_file_is_refused(tmp_path, bolt, text):
    with (tmp_path / "log").open("w") as file:
        graph = topology_of(bolt(file)).graph()
        mend = r"make it in initialize\(\)"
        with pytest.raises(TopologyError, match=rf"Guarded, component 'count': .*{text}.* for reading: w\).*; {mend}"):
            check_travels(graph, {})


def test_a_class_of_a_module_is_found_there_by_the_worker():
    check_travels(topology_of(ByName).graph(), {})


def test_options_and_groupings_that_hold_a_lock_are_refused():
    lock = threading.Lock()
    with pytest.raises(
        TopologyError, match=r"component 'count': option 'user\.lock' cannot be pickled .*'_thread.lock'"
    ):
        check_travels(topology_of(ByName, config={"user.lock": lock}).graph(), {})
    with pytest.raises(TopologyError, match=r"Guarded, option 'user\.lock' cannot be .* by spec\(config=\) to a spout"):
        check_travels(topology_of(ByName).graph(), {"user.lock": lock})
    numbers = Numbers.spec()
    by_lock = Grouping.custom(lambda values, tasks: tasks[: lock.acquire()])
    body = {"numbers": numbers, "count": ByName.spec(inputs={numbers: by_lock})}
    with pytest.raises(TopologyError, match="the function of its grouping of 'numbers' cannot be pickled"):
        check_travels(type("Guarded", (Topology,), body).graph(), {})


@pytest.mark.spark
def test_nothing_starts_when_something_cannot_travel(spark, tmp_path):
    with pytest.raises(TopologyError, match=r"component 'count': the attribute 'lock' of Locked cannot be pickled"):
        run(
            topology_of(type("Locked", (End,), {"lock": threading.Lock()})),
            spark=spark,
            checkpoint=str(tmp_path / "c"),
        )
    assert not (tmp_path / "c").exists()


class Locks(Spout):
    """Emits a lock."""

    outputs = ["n", "lock"]

    def next_tuple(self):
        self.emit([1, threading.Lock()], tup_id=1)


@pytest.mark.spark
@pytest.mark.usefixtures("quiet")
def test_a_value_that_cannot_be_pickled_is_told_with_its_component_and_field(spark):
    class Emitting(Topology):
        locks = Locks.spec()
        end = End.spec(inputs=[locks])

    with pytest.raises(
        TopologyError, match="component 'locks': the field 'lock' of a tuple to the stream 'default' holds"
    ):
        run(Emitting, spark=spark)


class Options(Topology):
    """It sets what a single process heeds."""

    config = {"topology.message.timeout.secs": 30, "topology.tick.tuple.freq.secs": 600}
    numbers = Numbers.spec(config={"topology.max.restarts": 2}, executors=1, par=2)
    end = End.spec(inputs=[numbers], par=4, executors=2)


def test_options_without_effect_are_those_of_restarts_timeouts_and_threads():
    graph = Options.graph()
    assert idle_options(graph, graph.conf) == [
        "topology.message.timeout.secs",
        "topology.max.restarts of component 'numbers'",
        "executors= of component 'end'",
    ]


@pytest.mark.repository
def test_the_reference_has_the_same_options_without_effect():
    reference = (Path(__file__).parents[3] / "docs/topology-reference.md").read_text(encoding="utf-8")
    rows = [row for row in reference.splitlines() if "| no effect: " in row]
    assert sorted(re.findall(r"`(topology\.[\w.]+)`", "".join(rows))) == sorted(topology_checks._IDLE)


@pytest.mark.spark
def test_options_without_effect_are_logged(spark, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="acker.spark"):
        run(Options, {FOLDER: str(tmp_path), "topology.no.restart": True}, spark=spark)
    told = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert told == [
        "Options: topology.message.timeout.secs has no effect on Spark",
        "Options: topology.no.restart has no effect on Spark",
        "Options: topology.max.restarts of component 'numbers' has no effect on Spark",
        "Options: executors= of component 'end' has no effect on Spark",
    ]
