"""Clusters on this machine: daemons of Spark and of Hadoop, each in a folder of its own."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.torture.kills import processes
from tests.torture.kills.run import environment_of

LONG = 1800.0  # no wait is for a time; one that comes to this is a failure
WORKER = "org.apache.spark.deploy.worker.Worker"
HERE = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

# Covers folders, and becomes the program.
_HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit; shift; done; shift; exec "$@"'


class Daemon:
    """A process that stays, whose log is read.

    Parameters
    ----------
    folder : Path
        Its own.
    command : sequence of str
    environment : mapping
    hidden : sequence of Path
        Folders that it does not see, where the system lets it have a view of its own.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str], hidden: Sequence[Path] = ()
    ) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*_hiding(hidden), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True,
            )  # fmt: skip

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Return where the log says something for so many times."""
        deadline = time.monotonic() + LONG
        while len(found := list(re.finditer(pattern, self.log.read_text()))) < count:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found[-1]

    def end(self) -> None:
        """End the process, and those that it has started."""
        for process in processes.in_session(self.process.pid):
            processes.kill(process)
        self.process.wait()


def _hiding(folders: Sequence[Path]) -> list[str]:
    """Return what a command begins with that is not to see some folders; nothing where the system does not let it."""
    if not folders or shutil.which("unshare") is None:
        return []
    for options in ("-m", "-Urm"):
        if subprocess.run(["unshare", options, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return ["unshare", options, "sh", "-c", _HIDE, "sh", *map(str, folders), "--"]
    return []


@contextlib.contextmanager
def standalone(
    folder: Path, names: Sequence[str], *, java: Mapping[str, str] | None = None, alone: bool = False
) -> Iterator[tuple[str, list[Daemon]]]:
    """Run a master and workers of one core and 512 MB; yield the master's address, and the workers.

    Parameters
    ----------
    folder : Path
    names : sequence of str
        Of the workers.
    java : mapping, optional
        Options of Java for each of them, which its executors have, too.
    alone : bool
        Let no worker see the others' folders, or that of the driver, which is called ``driver``; and give it no acker.
    """
    everyone = ("driver", "master", *names)

    def start(name: str, *arguments: str) -> Daemon:
        own = folder / name
        environment = environment_of(own) | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(own / "local")}
        environment["JAVA_TOOL_OPTIONS"] += f" {(java or {}).get(name, '')}"
        if alone:
            del environment["PYTHONPATH"]
        hidden = [folder / other for other in everyone if other != name] if alone and name in names else []
        program = str(Path(environment["SPARK_HOME"], "bin", "spark-class"))
        daemon = Daemon(own, [program, *arguments], environment, hidden)
        daemons.callback(daemon.end)
        return daemon

    with contextlib.ExitStack() as daemons:
        for name in everyone:
            (folder / name).mkdir()
        master = start("master", "org.apache.spark.deploy.master.Master", *HERE)
        address = master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        size = ("--cores", "1", "--memory", "512m")
        workers = [
            start(name, WORKER, *HERE, *size, "--work-dir", str(folder / name / "work"), address) for name in names
        ]
        master.wait_for("Registering worker", len(names))
        yield address, workers
