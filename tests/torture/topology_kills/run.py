"""Runs of the driver, one after the other, over the same files and the same checkpoint."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acker.spark.hadoop import place_of
from tests.torture.kills import processes
from tests.torture.kills.run import environment_of
from tests.torture.topology_kills.account import CHECKPOINT, Account, AccountError, check
from tests.torture.topology_kills.words import LINES

if TYPE_CHECKING:
    from tests.torture.stores import Store

# For slow machines: on an idle one of two cores a driver is at its end within half a minute.
SECONDS_MAX: Final = 900


class Program:
    """The word count over some lines, in a new folder.

    Parameters
    ----------
    folder : Path
    lines : sequence of str
    master : str
    topology : str
        The name of a class in `TOPOLOGIES`.
    store : Store, optional
        For the checkpoint, which is in the folder otherwise.
    """

    def __init__(
        self,
        folder: Path,
        lines: Sequence[str],
        master: str,
        topology: str = "WordCount",
        *,
        store: Store | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        (folder / LINES).write_text("\n".join(lines))
        self._checkpoint = place_of(folder / CHECKPOINT) if store is None else store.place(CHECKPOINT)
        self._folder, self._arguments = folder, (str(folder), master, topology, str(self._checkpoint))
        self._environment = environment_of(folder)
        if store is not None:
            self._environment |= store.spark_conf(folder / "conf")

    @contextlib.contextmanager
    def start(self, *death: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a driver, which sends itself a signal at a point and a number, if given; at the end it is gone."""
        command = [sys.executable, "-m", "tests.torture.topology_kills.driver", *self._arguments, *death]
        with self.log.open("ab") as log:
            driver = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            yield driver
        finally:
            driver.kill()
            driver.wait()
            for process in processes.in_session(driver.pid):
                processes.kill(process)

    @property
    def log(self) -> Path:
        """What the drivers say."""
        return self._folder / "log"

    def last_words(self) -> str:
        """Return the end of the log."""
        return self.log.read_bytes()[-4000:].decode(errors="replace")

    def wait(self, driver: subprocess.Popen[bytes], seconds: float) -> int:
        """Wait for the end of a driver, and return its exit code."""
        try:
            return driver.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AccountError(f"it did not end in {seconds:.0f} s\n{self.last_words()}") from None

    def dies(self, point: str, number: int, *, seconds: float = SECONDS_MAX) -> None:
        """Run a driver that dies at a point."""
        with self.start(point, str(number), "SIGKILL") as driver:
            code = self.wait(driver, seconds)
        if code != -signal.SIGKILL:
            raise AccountError(f"it ended with {code}, not at {point!r}\n{self.last_words()}")

    def ends(self, *, seconds: float = SECONDS_MAX) -> Account:
        """Run a driver to the end, and check the account."""
        with self.start() as driver:
            code = self.wait(driver, seconds)
        if code:
            raise AccountError(f"it ended with {code}\n{self.last_words()}")
        return self.check()

    def check(self) -> Account:
        """Check the account of a run that has ended."""
        return check(self._folder, self._checkpoint)
