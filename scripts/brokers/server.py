"""What all servers have in common: a folder, ports that stay, and a life of starts, stops, kills and pauses."""

import abc
import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from brokers.errors import StartError
from brokers.processes import LOOK_SECONDS, Program

START_SECONDS = 400.0  # on a machine that does much else; a server that fails ends before
STOP_SECONDS = 60.0
# Below the ports that systems give to connections, so that no connection takes one before the server does.
PORTS = range(20_000, 32_000)


class Origin(Protocol):
    """Where a server comes from."""

    def find_or_bring(self, environ: Mapping[str, str], root: Path | None = None) -> Path:
        """Return the folder below which the server's files lie; `root` is the only one to look at and to write to.

        Raises
        ------
        UnavailableError
            It is not here, and was not downloaded; the text says why.
        """


class Server(abc.ABC):
    """A server, with its ports and its data, which outlive its process.

    Parameters
    ----------
    root
        The folder below which its programs lie.
    folder
        Its own folder: data, settings, log.
    port
        The port for its clients; None takes a free one, as for its other ports.
    """

    origin: ClassVar[Origin]
    ports_count: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, root: Path, folder: Path, port: int | None = None) -> None:
        self.root, self.folder = root, folder
        self.log = folder / "log"
        self.ports = free_ports(self.ports_count)
        if port is not None:
            if not is_free(port):
                raise StartError(f"port {port} is in use")
            self.ports[0] = port
        self.environ = dict(os.environ)
        self.user: int | None = None
        self.paused = False
        self._program: Program | None = None
        self._beside: list[Program] = []

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """What clients connect to, credentials included."""

    @abc.abstractmethod
    def command(self) -> list[Path | str]:
        """Return the command that starts it."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether it serves clients."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Write its settings and its first data."""

    def facts(self) -> dict[str, object]:
        """Return what its users may want to know beside its URL."""
        return {}

    def start(self) -> None:
        """Start it, with the data that it left when it last ran, and wait until it serves clients."""
        if self._program is not None:
            raise StartError("it runs already")
        self._program = Program(self.command(), self.environ, self.log, user=self.user)
        try:
            self.wait_for(self._program, self.answers)
        except BaseException:  # also a Ctrl-C: one that has not started does not know how to stop
            self.kill_now()
            raise

    def stop(self) -> None:
        """Ask it to end in good order, and wait until it has."""
        program = self._ends()
        in_time = program.stop(self.stop_signal, STOP_SECONDS)
        program.kill()  # what it left behind
        if not in_time:
            raise StartError(f"it did not stop in {STOP_SECONDS:.0f} s, and wrote:\n{self._last_words()}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.kill_now()

    def kill_now(self) -> None:
        """End it by SIGKILL, whatever it does."""
        self._ends().kill()

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing answers."""
        self._running().pause()
        self.paused = True

    def resume(self) -> None:
        """Continue after a pause."""
        self._running().resume()
        self.paused = False

    def close(self) -> None:
        """Stop whatever still runs."""
        with contextlib.suppress(StartError):
            self.stop()
        for program in self._beside:
            program.stop(signal.SIGTERM, STOP_SECONDS)
            program.kill()

    def run_beside(self, command: list[Path | str]) -> Program:
        """Start a program that the server needs, which runs until `close`."""
        program = Program(command, self.environ, self.log, user=self.user)
        self._beside.append(program)
        return program

    def run_first(self, command: list[Path | str]) -> None:
        """Run a program to its end."""
        program = Program(command, self.environ, self.log, user=self.user)
        try:
            self.wait_for(program, lambda: program.ended() == 0)
        finally:
            program.kill()

    def wait_for(self, program: Program, done: Callable[[], bool]) -> None:
        """Wait until a program has done something.

        Raises
        ------
        StartError
            It ended, or it took too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not done():
            code = program.ended()
            if code is not None or time.monotonic() > deadline:
                what = "did not answer in time" if code is None else f"ended with {code}"
                raise StartError(f"{type(self).__name__} {what}, and wrote:\n{self._last_words()}")
            time.sleep(LOOK_SECONDS)

    def _ends(self) -> Program:
        program, self._program, self.paused = self._running(), None, False
        return program

    def _running(self) -> Program:
        if self._program is None:
            raise StartError("it does not run")
        return self._program

    def _last_words(self) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise StartError(f"no {count} ports are free in {PORTS}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of this machine."""
    with socket.socket() as probe:
        # As servers do; else a port would count as used for a minute after a connection to it was closed.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def exchange(port: int, request: bytes, answer_size: int, *, until: bytes = b"") -> bytes:
    """Send bytes to a port of this machine, and return the answer: so many bytes, or up to and with `until`.

    It is shorter where nobody answers, or says no more.
    """
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(request)
        while len(answer) < answer_size and not (until and answer.endswith(until)):
            more = client.recv(answer_size - len(answer))
            if not more:
                break
            answer += more
    return answer
