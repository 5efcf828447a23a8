"""Runs of random topologies on both runtimes, and what has to be alike; as a command, with new seeds for some time."""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

from acker.cli.environment import spark_session
from acker.local import read_state
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.testing import Scheduler
from tests.spark.topologies.both import FOLDER, read_notes
from tests.spark.topologies.random_topologies import COLUMNS, root_of, topology_of
from tests.torture.output import say

# So many topologies share a job.
TOGETHER = 40


def end_locally(topology, folder, conf, seed):
    """Run in this process, on a clock that nobody waits for; return the notes, the states, and the report."""
    folder.mkdir()
    state = folder / ".state"
    with Scheduler.of(topology, {**conf, FOLDER: str(folder)}, seed=seed, state=state) as scheduler:
        report = scheduler.drain(steps_max=10_000_000)
    states = read_state(state) if state.exists() else {}
    return read_notes(folder), states, report


def end_on_spark(topology, spark, folder, conf):
    """Run on Spark; return the same."""
    folder.mkdir()
    runtime = SparkRuntime(topology, {**conf, FOLDER: str(folder)}, spark)
    try:
        runtime.watch_for("drained")
        runtime.start()
        runtime.start_batches()
        runtime.run_until("drained")
        states = read_state(runtime.snapshot_state())
    finally:
        runtime.stop()
        runtime.release()
    return read_notes(folder), states, runtime.report()


def outcomes(notes):
    """Return what the spouts were told."""
    return Counter({key: count for key, count in notes.items() if key[2] in {"acked", "failed", "dead"}})


def received(notes):
    """Return what each component processed."""
    return Counter((key[0], *key[3:]) for key in notes.elements() if key[2] == "got")


def check_reasons(notes):
    """Check that each failed tree gives the reason of a fault that was injected into it."""
    injected = {(key[3], key[4]) for key in notes if key[2] == "injected"}
    told = [key for key in notes if key[2] == "reason"]
    for _, _, _, tup_id, kind, component, text in told:
        if kind == "FAILED":
            assert (tup_id, text) in injected, (tup_id, text)
            assert component is not None and f"{component} " in text
        else:
            assert kind == "TIMED_OUT"
    assert told


def check_states(notes, ours, theirs):
    """Check that the state on Spark has the effects of acked and untracked trees, once; locally, of each attempt.

    An unanchored tuple belongs to no tree: it counts once at least if the one that it was made from was acked, and for
    each attempt at most.
    """
    acked = {key[3] for key in notes if key[2] == "acked"}
    fails = Counter(key[3] for key in notes.elements() if key[2] == "failed")
    alone = {key[3] for key in notes if key[2] == "alone"}
    assert theirs.keys() == ours.keys()
    checked = 0
    for name in ours:
        here, there = (sum((Counter(state) for state in states[name]), Counter()) for states in (ours, theirs))
        expected = Counter()
        for path, count in here.items():
            root, once = root_of(path), 0
            if root in acked or not fails[root]:
                attempts = fails[root] + 1
                assert count % attempts == 0
                once = count // attempts
            is_alone = not alone.isdisjoint(itertools.accumulate(path.split("."), "{}.{}".format))
            expected[path] = min(max(there[path], once), count) if is_alone else once
        check_same(+expected, +there, name)
        checked += len(+expected)
    return checked


def check_same(ours, theirs, what="outcomes"):
    """Compare two mappings; the error has what differs."""
    different = {key: (ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys()}
    different = {key: both for key, both in different.items() if both[0] != both[1]}
    assert not different, f"{what}, here and on Spark: {different}"


def figures(report):
    """Return the counts of the bolts and spouts."""
    return {
        name: (row.acked, row.failed, row.timed_out, row.transferred, row.emitted_total, row.dead_letters)
        for name, row in report.stats.components().items()
        if row.kind != "acker"
    }


def check_alike(spark, folder, seeds, *, stateful, pending=None, columns=COLUMNS):
    """Run the topologies of some seeds on both runtimes, and compare; return how many tuples of spouts ended."""
    topology = topology_of(seeds, stateful=stateful, columns=columns)
    conf = {"topology.max.spout.pending": pending, "topology.message.timeout.secs": 30}
    ours, our_states, our_report = end_locally(topology, folder / "local", conf, seed=seeds[0])
    theirs, their_states, their_report = end_on_spark(topology, spark, folder / "spark", conf)
    check_same(outcomes(ours), outcomes(theirs))
    check_reasons(ours)
    check_reasons(theirs)
    if stateful:
        assert check_states(ours, our_states, their_states) > 0
    else:
        check_same(received(ours), received(theirs))
        check_same(figures(our_report), figures(their_report))
    assert len(outcomes(ours)) > len(seeds)
    return sum(outcomes(ours).values())


def main(arguments=None):
    """Run the program: a difference raises, and names components, whose numbers are seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.topologies.random_runs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0, help="run new seeds for this many seconds")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000, help="the first seed")
    parser.add_argument("--together", type=int, default=TOGETHER, help="run so many topologies as one")
    options = parser.parse_args(arguments)

    logging.disable(logging.CRITICAL)
    # What components raise on purpose would be pages, so it goes into a file.
    with (
        tempfile.NamedTemporaryFile() as log,
        spark_session("random topologies", "local[2]", driver_memory="1g", log=Path(log.name)) as spark,
    ):
        run_seeds(spark, options.seed, options.together, options.seconds)


def run_seeds(spark, seed, together, seconds):
    """Run new seeds for some time."""
    begin, ended, topologies = time.monotonic(), 0, 0
    for first in itertools.count(seed, together):
        seeds = range(first, first + together)
        with tempfile.TemporaryDirectory() as folder:
            pending = (None, 3)[(first // together) % 5 == 0]
            ended += check_alike(spark, Path(folder), seeds, stateful=bool(first // together % 2), pending=pending)
        topologies += len(seeds)
        say(f"seeds to {seeds.stop}: {topologies} topologies ended alike, {ended} outcomes")
        if time.monotonic() - begin >= seconds:
            break


if __name__ == "__main__":
    main()
