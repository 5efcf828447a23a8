"""A topology with state on a standalone cluster: a master and two workers, processes of their own on this machine."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.topologies.test_kills import lines_of
from tests.torture.kills import processes
from tests.torture.kills.run import environment_of
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import BAD, FLAKY, KILL_EXECUTOR, SOUR

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.slow]

LONG = 120.0  # no wait is for a time; one that comes to this is a failure


class Daemon:
    """A process of Spark's, whose log is read."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        environment = environment_of(self.folder) | {"SPARK_DAEMON_MEMORY": "256m"}
        command = [str(Path(environment["SPARK_HOME"], "bin", "spark-class")), *arguments]
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
            )

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Return where the log says something for so many times."""
        deadline = time.monotonic() + LONG
        while len(found := list(re.finditer(pattern, self.log.read_text()))) < count:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found[-1]

    def end(self) -> None:
        """End the process, and the executors that it has started."""
        for process in processes.in_session(self.process.pid):
            processes.kill(process)
        self.process.wait()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[Daemon]]]:
    """Run a master and two workers of one core and 512 MB; yield the master's address, and the workers."""
    with contextlib.ExitStack() as daemons:

        def start(name: str, *arguments: str) -> Daemon:
            daemon = Daemon(folder, name, *arguments)
            daemons.callback(daemon.end)
            return daemon

        here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = start("master", "org.apache.spark.deploy.master.Master", *here)
        address = master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        worker = ("org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "512m")
        workers = [
            start(name, *worker, "--work-dir", str(folder / f"work of {name}"), address) for name in ("one", "other")
        ]
        master.wait_for("Registering worker", 2)
        yield address, workers


def test_a_topology_with_state_counts_each_line_once_on_two_workers(tmp_path):
    special = {4: BAD, 9: f"{FLAKY}-1", 30: f"{KILL_EXECUTOR}-1", 47: SOUR}
    with cluster(tmp_path) as (address, workers):
        program = Program(tmp_path / "run", lines_of(80, special), address)
        program.dies("committed", 2)
        account = program.ends()
        for worker in workers:
            worker.wait_for("Asked to launch executor", 2)  # one for each driver
    assert (account.acked, account.dead) == (78, 2)
