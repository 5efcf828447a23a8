"""Servers for tests, each run by scripts/broker.py, which stops it when this process ends, however it ends."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/broker.py"
# Exit codes of the script.
IMPOSSIBLE = 3
NOT_BROUGHT = 4
STOP_SECONDS = 150.0  # longer than the script takes for a server that does not stop
ORDER_SECONDS = 600.0  # longer than it takes for one that does not start, on a machine that does much else
# How long a client waits for an answer on a machine that does much else; libraries have limits of five seconds.
PATIENCE_SECS = 300.0


class NoServerError(Exception):
    """A server did not start; the text says why."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code

    @property
    def is_skipped(self) -> bool:
        """Whether tests do without: this machine cannot have it, or it is none of CI, which gets what it can."""
        return self.code == IMPOSSIBLE or (self.code == NOT_BROUGHT and "CI" not in os.environ)


class Server:
    """A server that runs, and can be ended, paused and started again on the same ports with the data that it kept.

    Each method returns when the server has done so. What an order cannot do is an AssertionError.

    Attributes
    ----------
    url : str
        What clients connect to: a URL, or for Kafka bootstrap.servers.
    folder : Path
        Its data, its settings and its log.
    facts : dict
        What else the script told, such as `commands`, a folder for PATH.
    """

    def __init__(self, name: str, told: Path) -> None:
        self.name, self.told, self.state = name, told, "up"
        with told.open("wb") as log:
            # A session of its own, so that a signal to this process and its group does not end it uncleanly.
            self._process = subprocess.Popen(
                [sys.executable, SCRIPT, name],
                start_new_session=True,
                stderr=log,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            self._close_pipes()
            raise NoServerError(told.read_text(encoding="utf-8").strip(), code)
        self.facts: dict[str, Any] = json.loads(line)
        self.url: str = self.facts.pop("url")
        self.folder = Path(self.facts.pop("folder"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()  # which tells the script to stop the server
        code = self._process.wait(STOP_SECONDS)
        self._close_pipes()
        if kind is None:
            assert code == 0, self.told.read_text(encoding="utf-8")
            assert not self.folder.exists(), "it leaves its folder behind"

    @property
    def commands(self) -> Path:
        """A folder for PATH."""
        return Path(self.facts["commands"])

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Let it end in good order, as at a shutdown."""
        self._order("stop", "down")

    def kill(self) -> None:
        """End it by SIGKILL, with all of its processes."""
        self._order("kill", "down")

    def start(self) -> None:
        """Start it again."""
        self._order("start", "up")

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing answers."""
        self._order("pause", "paused")

    def resume(self) -> None:
        """Let it go on after a pause."""
        self._order("resume", "up")

    def restore(self) -> None:
        """Bring it back to what the next test expects."""
        if self.state == "paused":
            self.resume()
        if self.state == "down":
            self.start()

    def _order(self, order: str, state: str) -> None:
        self._orders.write(f"{order}\n")
        self._orders.flush()
        # It writes one line for each order, so none is in the buffer now.
        is_told = select.select([self._answers], [], [], ORDER_SECONDS)[0]
        assert is_told, f"broker.py {self.name}: no {order} in {ORDER_SECONDS:g} s: {self.told.read_text('utf-8')}"
        line = self._answers.readline()
        assert line, f"broker.py {self.name} ended: {self.told.read_text(encoding='utf-8')}"
        assert json.loads(line) == {"done": order}, f"{self.name}: {line}"
        self.state = state

    def _close_pipes(self) -> None:
        self._orders.close()
        self._answers.close()
