"""Native tables that stay in memory between micro-batches, where any Python worker of the executor can take them up.

Which worker gets a shard is Spark's choice, anew in each micro-batch, so a table that belonged to one worker would be
missed every other time. A table therefore lies in memory that has a file descriptor but no name (Linux, memfd): a
worker that knows which process holds it, and under which number, opens it through ``/proc``. A small file, the shard's
note, says that, and which token the table has; so nobody takes up a table who has not just read that token from Spark's
state. Who takes it renames the note first, which only one can. The memory goes with the last process that holds it.

Each such table costs its process a descriptor, and tables never take more than half of those that the system allows.
A table beyond that, and every table on other systems, stays with the worker that made it.

Nobody tells a worker that a query has ended. So a table that no micro-batch took up for `UNUSED_S` is closed: by a
thread, since a worker that lives on may never run an acker again. A query that comes back later builds its table again.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from acker._engine.open_trees import TOKEN_BYTES, Memory, OpenTrees, PrivateMemory

# So long a table is kept for a micro-batch that may take it up. Longer than most micro-batches take; a worker that has
# nothing to do Spark ends after a minute, with all its tables.
UNUSED_S: Final = 300.0

_NO_TOKEN: Final = bytes(TOKEN_BYTES)
_NO_NUMBER: Final = -1
# Tables looked at in each call of `take`, to see whether others have them now.
_LOOKS: Final = 2


class SharedMemory:
    """Memory that other processes of this user can open; `number` is its file descriptor here."""

    def __init__(self, size_bytes: int) -> None:
        self.number = os.memfd_create("acker", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.number, size_bytes)
            self.view = _mapped(self.number, size_bytes)
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
            memory.view = _mapped(memory.number, 0)
        except BaseException:
            os.close(memory.number)
            raise
        return memory

    def close(self) -> None:
        """Let go of it."""
        self.view.close()
        os.close(self.number)


# Before Python 3.13 a mapping keeps a descriptor of its own.
if sys.version_info >= (3, 13):
    _DESCRIPTORS: Final = 1

    def _mapped(number: int, size_bytes: int) -> mmap.mmap:
        return mmap.mmap(number, size_bytes, trackfd=False)
else:
    _DESCRIPTORS: Final = 2

    def _mapped(number: int, size_bytes: int) -> mmap.mmap:
        return mmap.mmap(number, size_bytes)


class _Note(NamedTuple):
    """What is written down of a shard's table: its token, the process that holds it, and its descriptor there."""

    token: str
    process: int
    number: int  # _NO_NUMBER where nobody else can open it


class _Held(NamedTuple):
    """A table that was left, and when."""

    ledger: OpenTrees
    left_s: float


class Residents:
    """The tables that this process can take up, and those that it holds for others. Threads may share it.

    Parameters
    ----------
    folder : Path, optional
        Where the processes leave notes for each other. None: tables stay in this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # By shard; first those that were not looked at for longest.
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._entered = threading.Lock()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def new(self) -> OpenTrees:
        """Return an empty table."""
        return OpenTrees(self._allocate)

    def _allocate(self, size_bytes: int) -> Memory:
        if self._folder is None or not self._may_share():
            return PrivateMemory(size_bytes)
        return SharedMemory(size_bytes)

    def _may_share(self) -> bool:
        """Tell whether one more descriptor leaves half of all to the rest of the process."""
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return most == resource.RLIM_INFINITY or 2 * _DESCRIPTORS * (len(self._held) + 2) <= most

    def take(self, key: str, token: bytes) -> OpenTrees | None:
        """Return the table of a shard that fits a token, or None. Nobody can take it again before it is left.

        Whatever else is held of the shard is given up: it is of a version of the state that is no more. The time that
        this takes does not depend on how many tables there are.
        """
        with self._entered:
            ledger = self._pop(key)
            if self._folder is not None:
                ledger = self._claim(self._folder, key, ledger)
            self._let_go()
        if ledger is None or ledger.token != token:
            if ledger is not None:
                ledger.close()
            return None
        # From here on it is of no version, until it is left.
        ledger.token = _NO_TOKEN
        return ledger

    def leave(self, key: str, token: bytes, ledger: OpenTrees) -> None:
        """Leave a table that is now what the state with this token says."""
        ledger.token = token
        with self._entered:
            before = self._pop(key)
            if before is not None:
                before.close()
            self._held[key] = _Held(ledger, time.monotonic())
            if self._folder is not None:
                mine = self._folder / f".{key}.{os.getpid()}"
                # Where no note can be left the table is built again: what was done with it is in the state already.
                with suppress(OSError):
                    mine.write_text("{} {} {}".format(*_note_of(ledger)), "ascii")
                    mine.replace(self._folder / key)

    def release(self, unused_s: float = UNUSED_S) -> None:
        """Close the tables that were left at least so many seconds ago and that nobody has taken up since."""
        with self._entered:
            before_s = time.monotonic() - unused_s
            for key in [key for key, held in self._held.items() if held.left_s <= before_s]:
                ledger = self._held.pop(key).ledger
                if self._folder is not None:
                    note = self._folder / key
                    # Another note leads to a table that others have left since.
                    if _read_note(note) == _note_of(ledger):
                        note.unlink(missing_ok=True)
                ledger.close()

    def _pop(self, key: str) -> OpenTrees | None:
        held = self._held.pop(key, None)
        return None if held is None else held.ledger

    def _claim(self, folder: Path, key: str, held: OpenTrees | None) -> OpenTrees | None:
        """Take a shard's note away, and return the table that it leads to; close the held one if that is another."""
        mine = folder / f".{key}.{os.getpid()}"
        try:
            (folder / key).rename(mine)
            note = _read_note(mine)
            mine.unlink()
        except OSError:
            note = None
        if held is not None:
            if note == _note_of(held):
                return held
            held.close()
        # There is nothing to open where the table is private, or would be one descriptor too many.
        if note is None or note.number == _NO_NUMBER or not self._may_share():
            return None
        try:
            memory = SharedMemory.of(note.process, note.number)
        except (OSError, ValueError):  # Its process is gone, and another may have the number.
            return None
        try:
            return OpenTrees.attach(memory, self._allocate)
        except ValueError:
            memory.close()
            return None

    def _let_go(self) -> None:
        """Close tables that others have taken up. Two are looked at each time, so that none is forgotten for long."""
        if self._folder is None:
            return
        for key in list(islice(self._held, _LOOKS)):
            if _read_note(self._folder / key) == _note_of(self._held[key].ledger):
                self._held.move_to_end(key)
            else:
                self._held.pop(key).ledger.close()


def _note_of(ledger: OpenTrees) -> _Note:
    memory = ledger.memory
    return _Note(ledger.token.hex(), os.getpid(), memory.number if isinstance(memory, SharedMemory) else _NO_NUMBER)


def _read_note(path: Path) -> _Note | None:
    """Return what a note says; None where there is none, or one that nobody here wrote."""
    try:
        token, process, number = path.read_text("ascii").split()
        return _Note(token, int(process), int(number))
    except (OSError, ValueError):
        return None


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
        threading.Thread(target=_release, args=(_residents[process],), name="acker residents", daemon=True).start()
    return _residents[process]


def _release(tables: Residents) -> None:
    while True:
        time.sleep(UNUSED_S / 4)
        tables.release()


@contextmanager
def borrowed(ledger: OpenTrees) -> Iterator[OpenTrees]:
    """Close a table that is not left to anybody in the end: an error on the way makes it worthless."""
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise
