"""Two drivers and one checkpoint: the second one is refused, and one that stood still for too long commits nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from acker.errors import CheckpointError
from acker.local import Hook
from acker.spark import read_state, run
from acker.spark.topologies.journal import Journal
from acker.spark.topologies.lease import LeaseOwner
from acker.topology import Grouping, Spout, StatefulBolt, Topology
from tests.torture.kills import LOCAL
from tests.torture.topology_kills import Program, check
from tests.torture.topology_kills.words import HOLD

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


class Numbers(Spout):
    """Three numbers, and then nothing until it is stopped; its source hears of each driver that opens it."""

    outputs = ("number",)
    opened = []

    def initialize(self, conf, context):
        self.opened.append(self)
        self.left = [1, 2, 3]

    def next_tuple(self):
        if self.left:
            self.emit([self.left[-1]], tup_id=self.left.pop())


class Finite(Numbers):
    def next_tuple(self):
        super().next_tuple()
        if not self.left:
            self.finish()


class Count(StatefulBolt):
    def process(self, tup):
        self.state[tup.number] = self.state.get(tup.number, 0) + 1


def counted(spout):
    numbers = spout.spec()
    count = Count.spec(inputs={numbers: Grouping.fields("number")}, par=2)
    return type("Counted", (Topology,), {"numbers": numbers, "count": count})


def counts_in(checkpoint):
    return {number: count for state in read_state(checkpoint)["count"] for number, count in state.items()}


def test_a_run_beside_another_one_is_refused_before_it_begins_and_told_by_whom(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(Numbers, "opened", [])
    options = {"spark": spark, "checkpoint": str(tmp_path), "until": "drained", "trigger": "0 seconds"}
    other = Journal(str(tmp_path), lease_secs=10)
    other.claim()
    with pytest.raises(CheckpointError, match=rf"another run uses this checkpoint: process {os.getpid()} on .* stop"):
        run(counted(Finite), **options)
    assert not Numbers.opened
    other.check()
    other.release()
    assert run(counted(Finite), **options).outcome == "drained"
    # What a run is refused for, and how it ends, leaves no lease behind.
    with pytest.raises(CheckpointError, match="par is 1 now"):
        run(type("Other", (Topology,), {"numbers": Finite.spec(), "count": Count.spec(inputs=["numbers"])}), **options)
    assert run(counted(Finite), **options).outcome == "drained"
    assert counts_in(tmp_path) == {1: 2, 2: 2, 3: 2}


class Acked(Hook):
    """Waits for three acks."""

    def __init__(self):
        self.all = threading.Semaphore(0)

    def spout_ack(self, component, task, tup_id, complete_ms):
        self.all.release()


@pytest.mark.usefixtures("quiet")
def test_a_run_that_has_lost_its_lease_ends_without_any_tuple_and_names_the_new_owner(spark, tmp_path):
    acked = Acked()
    options = {"spark": spark, "checkpoint": str(tmp_path), "until": None, "hooks": [acked], "trigger": "0 seconds"}
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(run, counted(Numbers), **options)
        for _ in range(3):
            assert acked.all.acquire(timeout=300)
        owner = LeaseOwner.loads((tmp_path / "leases" / "1").read_bytes())
        (tmp_path / "leases" / "2").write_bytes(replace(owner, id="5", host="another-machine", pid=4242).dumps())
        with pytest.raises(
            CheckpointError, match=r"lost the checkpoint .*: process 4242 on another-machine, which beg"
        ):
            ends.result(300)
    assert counts_in(tmp_path) == {1: 1, 2: 1, 3: 1}


# ---- real drivers ----------------------------------------------------------------------------------------------------

LINES = [f"the {word} fox" for word in ("quick", "brown", "lazy")] * 30


@pytest.mark.soak
def test_of_two_drivers_that_begin_at_once_one_is_refused_and_the_other_counts_each_line_once(tmp_path):
    program = Program(tmp_path / "run", LINES, LOCAL)
    hold = tmp_path / "run" / HOLD
    hold.touch()
    with program.start() as first, program.start() as second:
        deadline = time.monotonic() + 300
        while first.poll() is None and second.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        hold.unlink()  # not before, or one could have ended when the other one begins
        codes = {driver.pid: driver.wait(300) for driver in (first, second)}
    assert sorted(code != 0 for code in codes.values()) == [False, True], program.last_words()
    (winner,) = (pid for pid, code in codes.items() if not code)
    assert f"another run uses this checkpoint: process {winner} on " in program.log.read_text()
    account = check(tmp_path / "run")
    assert (account.acked, account.told_again) == (len(LINES), 0)


@pytest.mark.minutes(2)
@pytest.mark.slow
def test_a_driver_that_stood_still_for_longer_than_its_lease_commits_nothing_more(tmp_path):
    """The fifth write is the commit of the second micro-batch: the driver has just found that it has the lease."""
    program = Program(tmp_path / "run", LINES, LOCAL)
    with program.start("before a write", "5", "SIGSTOP") as first:
        wait_until_stopped(first)
        account = program.ends()
        before = {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoint").glob("state/*/*")}
        first.send_signal(signal.SIGCONT)
        assert first.wait(300) not in {0, None}
    told = program.log.read_text()
    assert "waiting 10 s for its lease to end" in told and "this run has lost the checkpoint to another one" in told
    assert account.acked == len(LINES)
    assert check(tmp_path / "run")._replace(told_again=account.told_again) == account
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoint").glob("state/*/*")} == before


def wait_until_stopped(driver):
    with contextlib.suppress(ChildProcessError):
        while driver.poll() is None:
            _, status = os.waitpid(driver.pid, os.WNOHANG | os.WUNTRACED)
            if os.WIFSTOPPED(status):
                return
            time.sleep(0.1)
    raise AssertionError("the driver ended")
