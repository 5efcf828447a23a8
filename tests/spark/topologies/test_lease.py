"""The lease of a checkpoint: one run has it, another one is refused or waits, and a damaged file costs a wait."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from pyarrow import fs

from acker._engine import storage
from acker.errors import CheckpointError
from acker.spark.topologies import lease as lease_module
from acker.spark.topologies.lease import Lease, LeaseOwner, ProcessId, has_died, this_process


class Elsewhere(fs.SubTreeFileSystem):
    """A filesystem that is not local."""


class Clock:
    """A clock that others turn while somebody sleeps."""

    def __init__(self, meanwhile=lambda now: None):
        self.now = 100.0
        self._meanwhile = meanwhile

    def __call__(self):
        return self.now

    def sleep(self, secs):
        self.now += secs
        self._meanwhile(self.now)


@pytest.fixture(params=["local", "elsewhere"])
def make_lease(request, tmp_path):
    """Makes leases of one checkpoint, on a local disk and where nothing can be made on condition that it is new."""
    filesystem, folder = fs.LocalFileSystem(), str(tmp_path / "leases")
    if request.param == "elsewhere":
        filesystem, folder = Elsewhere(str(tmp_path), filesystem), "leases"

    def make(clock=None):
        clock = clock or Clock()
        return Lease(filesystem, folder, "the checkpoint", secs=10, monotonic=clock, sleep=clock.sleep)

    return make


@pytest.fixture
def unknown(monkeypatch):
    """Nobody knows of a process whether it runs."""
    monkeypatch.setattr(lease_module, "this_process", lambda: None)


def the_file(tmp_path):
    (path,) = (tmp_path / "leases").iterdir()
    return path


def test_while_a_run_renews_its_lease_another_one_is_refused_and_told_who_it_is(make_lease):
    first = make_lease()
    assert first.acquire() == 1
    clock = Clock(lambda now: first.renew() if now > 101 else None)
    with pytest.raises(CheckpointError) as refused:
        make_lease(clock).acquire()
    told = str(refused.value)
    assert f"the checkpoint: another run uses this checkpoint: process {os.getpid()} on " in told
    assert "which began at 20" in told and "renewed its lease just now" in told and "stop it" in told
    assert clock.now < 102
    first.check()


@pytest.mark.usefixtures("unknown")
def test_a_run_that_does_not_renew_its_lease_loses_it_when_it_ends(make_lease, caplog):
    first, clock = make_lease(), Clock()
    first.acquire()
    first.renew()
    second = make_lease(clock)
    assert second.acquire() == 2
    assert 110 <= clock.now < 111
    assert f"process {os.getpid()} on " in caplog.text and "waiting 10 s for its lease to end" in caplog.text
    for act in (first.check, first.renew):
        with pytest.raises(CheckpointError, match=f"lost the checkpoint to another one.* process {os.getpid()} on "):
            act()
    first.release()
    second.check()


@pytest.mark.usefixtures("unknown")
def test_a_run_that_stands_still_after_its_look_does_not_take_a_lease_that_is_renewed_meanwhile(make_lease):
    first, clock = make_lease(), Clock()
    first.acquire()
    second = make_lease(clock)
    newest = second._newest

    def look():
        found = newest()
        if clock.now > 105:
            clock.now += 10
            first.renew()
        return found

    second._newest = look
    with pytest.raises(CheckpointError, match="another run uses this checkpoint"):
        second.acquire()
    first.check()


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_changes_nothing(make_lease, monkeypatch, hours):
    first = make_lease()
    first.acquire()
    now = time.time() + hours * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    first.renew()
    with pytest.raises(CheckpointError, match="another run uses this checkpoint"):
        make_lease(Clock(lambda now: first.renew())).acquire()
    clock = Clock()
    assert make_lease(clock).acquire() == 2
    assert 110 <= clock.now < 111


def test_a_run_that_gave_its_lease_back_costs_no_wait_and_writes_no_more(make_lease):
    first, clock = make_lease(), Clock()
    first.acquire()
    first.release()
    first.release()
    with pytest.raises(CheckpointError, match="has given the checkpoint back"):
        first.check()
    assert make_lease(clock).acquire() == 2
    assert clock.now == 100


@pytest.mark.usefixtures("unknown")
def test_a_run_that_ends_while_another_one_waits_lets_it_go_on_at_once(make_lease):
    first = make_lease()
    first.acquire()
    clock = Clock(lambda now: first.release())
    assert make_lease(clock).acquire() == 2
    assert clock.now < 101


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("content", [b"", b'{"id": "5', b"[1, 2]", b'{"id": "5"}', b"\xff\x00"])
def test_a_damaged_lease_costs_a_wait_and_names_nobody(make_lease, tmp_path, caplog, content):
    first, clock = make_lease(), Clock()
    first.acquire()
    the_file(tmp_path).write_bytes(content)
    first.check()  # it is still the first one's, and mended by its next renewal
    assert make_lease(clock).acquire() == 2
    assert 130 <= clock.now < 131
    assert "a run that its damaged lease does not name has the lease of this checkpoint" in caplog.text


def test_no_flipped_bit_and_no_torn_part_of_a_lease_passes_for_one():
    content = LeaseOwner("5f", "here", 123, 1.5, 30.0, ProcessId(123, 45, "boot", "pid:[1]")).dumps()
    assert LeaseOwner.loads(content) is not None
    assert not any(map(LeaseOwner.loads, (content[:size] for size in range(len(content)))))
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        assert LeaseOwner.loads(bytes(flipped)) is None, place


def test_a_flipped_digit_of_its_pid_lets_nobody_take_a_lease_without_a_wait(make_lease, tmp_path):
    """It would be the pid of a process that is dead for certain, while the owner lives."""
    first = make_lease()
    first.acquire()
    path = the_file(tmp_path)
    content = path.read_bytes()
    place = content.index(b"[%d, " % os.getpid()) + 1
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(CheckpointError, match="another run uses this checkpoint"):
        make_lease(Clock(lambda now: first.renew())).acquire()


def test_a_damaged_lease_is_mended_by_its_owner(make_lease, tmp_path):
    first = make_lease()
    first.acquire()
    the_file(tmp_path).write_bytes(b"{")
    with pytest.raises(CheckpointError, match=f"another run uses this checkpoint: process {os.getpid()} on "):
        make_lease(Clock(lambda now: first.renew())).acquire()


def test_a_lease_whose_file_is_gone_ends_its_run(make_lease, tmp_path):
    first = make_lease()
    first.acquire()
    the_file(tmp_path).unlink()
    with pytest.raises(CheckpointError, match=r"the lease of this run is gone.* somebody has removed"):
        first.check()
    second = make_lease()
    assert second.acquire() == 1  # in a checkpoint that was made anew
    with pytest.raises(CheckpointError, match=r"the lease of this run is gone|lost the checkpoint to another one"):
        first.renew()
    second.check()


@pytest.mark.usefixtures("unknown")
def test_of_runs_that_begin_at_once_one_gets_the_lease(make_lease):
    """Each of three runs begins while the one before it is about to make its file, and once more while it waits."""
    leases = [make_lease(Clock()) for _ in range(3)]
    ended = {}

    def run(place):
        if place == len(leases) or place in ended:
            return
        create = leases[place]._create

        def created(epoch):
            run(place + 1)
            return create(epoch)

        leases[place]._create = created
        try:
            ended[place] = leases[place].acquire()
        except CheckpointError as fault:
            ended[place] = str(fault)

    run(0)
    held = [place for place, lease in enumerate(leases) if is_held(lease)]
    assert len(ended) == 3 and len(held) == 1


def is_held(lease):
    try:
        lease.check()
    except CheckpointError:
        return False
    return True


def test_where_files_are_not_made_on_condition_of_two_at_once_none_thinks_that_it_has_the_lease(tmp_path):
    """Both have written before either looks: both give way, and one tries again first."""
    filesystem = Elsewhere(str(tmp_path), fs.LocalFileSystem())
    first, second = (Lease(filesystem, "leases", "it", secs=10, sleep=lambda secs: None) for _ in range(2))
    (tmp_path / "leases").mkdir()
    names, done = Lease._names, []

    def looked(lease):
        if lease is first and lease._name and not done:
            done.append(1)
            assert not second._create(1)
        return names(lease)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "_names", looked)
        assert not is_held(first) and first._create(1)  # the other one has given way already
    assert is_held(first) and not is_held(second)


def test_a_process_of_this_machine_that_was_killed_costs_no_wait(make_lease, tmp_path):
    program = "import json; from acker.spark.topologies.lease import this_process; print(json.dumps(this_process()))"
    died = ProcessId(*json.loads(subprocess.check_output([sys.executable, "-c", program])))
    assert has_died(died)
    first, clock = make_lease(), Clock()
    first.acquire()
    path = the_file(tmp_path)
    owner = LeaseOwner.loads(path.read_bytes())
    path.write_bytes(replace(owner, process=died).dumps())
    assert make_lease(clock).acquire() == 2
    assert clock.now == 100


def test_only_a_process_that_is_certainly_dead_counts_as_dead(monkeypatch):
    here = this_process()
    assert not has_died(here)
    assert has_died(here._replace(started=here.started - 1))  # its pid was given to another one
    died = here._replace(pid=2**22 + 1)
    assert has_died(died)
    assert not has_died(died._replace(boot="another machine, or its last start"))
    assert not has_died(died._replace(namespaces="another container"))
    monkeypatch.setattr(lease_module, "_started", lambda pid: None)  # hidden from other users
    assert not has_died(here._replace(started=1))


def test_a_child_that_nobody_has_waited_for_is_dead():
    program = "import json; from acker.spark.topologies.lease import this_process; print(json.dumps(this_process()))"
    with subprocess.Popen([sys.executable, "-c", program + "; input()"], stdin=-1, stdout=-1) as child:
        process = ProcessId(*json.loads(child.stdout.readline()))
        assert not has_died(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_died(process)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_a_run_does_not_begin_and_the_error_names_the_file(tmp_path, monkeypatch, code):
    lease = Lease(fs.LocalFileSystem(), str(tmp_path / "leases"), "it")

    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError, match=rf"leases/1: the checkpoint cannot be written: \[Errno {code}\]"):
        lease.acquire()
    assert not list((tmp_path / "leases").iterdir())


def test_a_full_disk_ends_no_lease(tmp_path, monkeypatch, caplog):
    lease = Lease(fs.LocalFileSystem(), str(tmp_path / "leases"), "it", secs=0.001)
    lease.acquire()
    told = []

    def write(target, pieces):
        told.append(1)
        if len(told) == 3:
            monkeypatch.undo()
            return storage.write(target, pieces)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lease_module.storage, "write", write)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease._stops, "wait", lambda secs: len(told) == 3)
        lease._keep()
    assert lease.lost is None and "it: the lease was not renewed: " in caplog.text
    lease.check()
    lease.release()
