"""What really was done: a line of each execution that came to its end, and of each attempt of a message."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Final

_ATTEMPT: Final = "attempt"


def new_name() -> str:
    """Return a name for a job, which no other one has."""
    return uuid.uuid4().hex


class Notes:
    """The lines of this process.

    Parameters
    ----------
    folder : str or Path
        That of the run, for all processes.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._file = -1
        self._process = 0

    def executed(self, job: str, made: list[str]) -> None:
        """Note that an execution of a job has come to its end, and which jobs it has made."""
        self._write(f"{job} {' '.join(made)}\n")

    def begun(self, number: int, root: str) -> None:
        """Note that an attempt of a message begins with a job."""
        self._write(f"{_ATTEMPT} {number} {root}\n")

    def broken(self, text: str) -> None:
        """Note that a promise is broken."""
        with (self._folder / f"broken-{os.getpid()}").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def close(self) -> None:
        """Close the file of this process."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._process = -1, 0

    def _write(self, line: str) -> None:
        # One call of the system, so no kill leaves half a line; and a file for each process, also after a fork.
        if self._process != os.getpid():
            self._process = os.getpid()
            self._file = os.open(self._folder / f"lines-{self._process}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, line.encode())


class Truth:
    """The lines of all processes. One thread at a time may use it.

    Parameters
    ----------
    folder : str or Path

    Attributes
    ----------
    lines : int
        How many executions have come to their end.
    attempts : dict of int to list of str
        The jobs with which the attempts of each message begin.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._offsets: dict[Path, int] = defaultdict(int)
        # The jobs that each execution made, by job.
        self._executions: dict[str, list[list[str]]] = defaultdict(list)
        self._complete: set[str] = set()
        self.lines = 0
        self.attempts: dict[int, list[str]] = defaultdict(list)

    def read(self) -> None:
        """Read what was written since the last call."""
        for path in self._folder.glob("lines-*"):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                text = file.read()
            whole = text.rpartition(b"\n")[0]
            if whole:
                self._offsets[path] += len(whole) + 1
                for line in whole.decode().split("\n"):
                    self._take(line.split())

    def _take(self, words: list[str]) -> None:
        if words[0] == _ATTEMPT:
            self.attempts[int(words[1])].append(words[2])
        else:
            self.lines += 1
            self._executions[words[0]].append(words[1:])

    def is_complete(self, job: str) -> bool:
        """Return whether one execution of a job is complete, with all that it led to."""
        if job in self._complete:
            return True
        done = any(all(map(self.is_complete, made)) for made in self._executions.get(job, ()))
        if done:
            self._complete.add(job)
        return done

    def is_done(self, number: int) -> bool:
        """Return whether one attempt of a message is complete."""
        return any(map(self.is_complete, self.attempts.get(number, ())))

    def broken(self) -> list[str]:
        """Return what was noted as broken."""
        return [line for path in self._folder.glob("broken-*") for line in path.read_text().splitlines()]
