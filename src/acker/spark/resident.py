"""Native tables that stay in memory between micro-batches, where any Python worker of the executor can take them up.

Which worker gets a shard is Spark's choice, anew in each micro-batch, so a table that belonged to one worker would be
missed every other time. A table therefore lies in memory that has a file descriptor but no name (Linux, memfd): a
worker that knows which process holds it, and under which number, opens it through ``/proc``. A small file says that.
Its name is the shard's and the token's, so it is found by who has just read that token from Spark's state, and by
nobody else; who takes it renames it first, which only one can. The memory goes with the last process that holds it.

Elsewhere a table stays with the worker that made it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from acker.ledger import TOKEN_BYTES, Ledger, Memory, PrivateMemory

_NO_TOKEN: Final = bytes(TOKEN_BYTES)


class SharedMemory:
    """Memory that other processes of this user can open; `number` is its file descriptor here."""

    def __init__(self, size_bytes: int) -> None:
        self.number = os.memfd_create("acker", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.number, size_bytes)
            self.view = mmap.mmap(self.number, size_bytes)
        except BaseException:
            os.close(self.number)
            raise

    @classmethod
    def of(cls, process: int, number: int) -> SharedMemory:
        """Return the memory that another process holds.

        Raises
        ------
        OSError, ValueError   it holds none any more.
        """
        memory = cls.__new__(cls)
        memory.number = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory.view = mmap.mmap(memory.number, 0)
        except BaseException:
            os.close(memory.number)
            raise
        return memory

    def close(self) -> None:
        """Let go of it."""
        self.view.close()
        os.close(self.number)


class Residents:
    """The tables that this process can take up, and those that it holds for others.

    Parameters
    ----------
    folder : Path, optional
        Where the processes leave notes for each other. None: tables stay in this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[str, Ledger] = {}
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def new(self) -> Ledger:
        """Return an empty table."""
        return Ledger(self._allocate)

    def _allocate(self, size_bytes: int) -> Memory:
        return PrivateMemory(size_bytes) if self._folder is None else SharedMemory(size_bytes)

    def take(self, key: str, token: bytes) -> Ledger | None:
        """Return the table of a shard that fits a token, or None. Nobody can take it again before it is left.

        Whatever else is held of the shard is given up: it is of a version of the state that is no more.
        """
        name = _name(key, token)
        if self._folder is None:
            ledger = self._held.pop(name, None)
        else:
            for note in self._folder.glob(f"{key}.*"):
                if note.name != name:
                    note.unlink(missing_ok=True)
            ledger = self._claim(self._folder, name)
        for other in [held for held in self._held if self._is_stale(held, key)]:
            self._held.pop(other).close()
        if ledger is None or ledger.token != token:
            if ledger is not None:
                ledger.close()
            return None
        # From here on it is of no version, until it is left.
        ledger.token = _NO_TOKEN
        return ledger

    def leave(self, key: str, token: bytes, ledger: Ledger) -> None:
        """Leave a table that is now what the state with this token says."""
        name = _name(key, token)
        ledger.token = token
        self._held[name] = ledger
        if self._folder is not None and isinstance(ledger.memory, SharedMemory):
            note = self._folder / f".{name}.{os.getpid()}"
            # Where no note can be left the table is built again: what was done with it is in the state already.
            with suppress(OSError):
                note.write_text(f"{os.getpid()} {ledger.memory.number}", "ascii")
                note.replace(self._folder / name)

    def _claim(self, folder: Path, name: str) -> Ledger | None:
        mine = folder / f".{name}.{os.getpid()}"
        try:
            (folder / name).rename(mine)
        except OSError:
            return None
        process, number = mine.read_text("ascii").split()
        mine.unlink()
        held = self._held.pop(name, None)
        if held is not None:
            return held
        try:
            memory = SharedMemory.of(int(process), int(number))
        except (OSError, ValueError):  # Its process is gone, and another may have the number.
            return None
        try:
            return Ledger.attach(memory, self._allocate)
        except ValueError:
            memory.close()
            return None

    def _is_stale(self, name: str, key: str) -> bool:
        """Tell whether a table that is held here is of no use: of a shard's other version, or taken up by others."""
        return name.startswith(f"{key}.") or (self._folder is not None and not (self._folder / name).exists())


def _name(key: str, token: bytes) -> str:
    return f"{key}.{token.hex()}"


def folder_of_executor() -> Path | None:
    """Return a folder that all Python workers of this executor know and that goes with it, or None."""
    if (
        not sys.platform.startswith("linux")
        or not hasattr(os, "memfd_create")
        or not os.access("/proc/self/fd", os.R_OK)
    ):
        return None
    # Spark sets it for its workers, and removes what is in it at its end.
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return Path(local) / f"acker-resident-{os.getuid()}"


_residents: dict[int, Residents] = {}


def residents() -> Residents:
    """Return the tables of this worker process."""
    # By process: a forked worker must not take what its parent held for its own.
    process = os.getpid()
    if process not in _residents:
        _residents.clear()
        _residents[process] = Residents(folder_of_executor())
    return _residents[process]


@contextmanager
def borrowed(ledger: Ledger) -> Iterator[Ledger]:
    """Close a table that is not left to anybody in the end: an error on the way makes it worthless."""
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise
