"""A cache of native tables between micro-batches, from which any Python worker of the executor can take them.

Spark chooses the worker of a shard anew in each micro-batch, so a table that belonged to one worker would be missed
every other time. A table therefore lies in memory that has a file descriptor but no name (Linux, memfd). A small file,
the shard's address file, holds the process, its descriptor and the table's token: another worker opens the memory
through ``/proc``. It takes a table only if it has just read the same token from Spark's state, and if it was the one
that could rename the address file, which only one worker can. The memory is freed with the last process that holds it.

Each such table costs its process a descriptor, and tables use at most half of those that the system allows. Further
tables, and all tables on other systems, stay in the worker that made them.

No worker is told that a query has ended. So a thread closes tables that no micro-batch has taken for `UNUSED_S`; a
query that comes back later builds its table again. The thread also gives the system back what the process has freed:
after a large micro-batch the allocators of C and of Arrow would keep it.
"""

from __future__ import annotations

import ctypes
import errno
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

# Longer than most micro-batches take. Spark ends an idle worker after a minute, with all its tables.
UNUSED_S: Final = 300.0

_NO_TOKEN: Final = bytes(TOKEN_BYTES)
_NO_NUMBER: Final = -1
# Tables that each call of `take` checks for whether other processes have them now.
_CHECKS: Final = 2


class SharedMemory:
    """Memory that other processes of this user can open; `number` is its file descriptor in this one."""

    def __init__(self, size_bytes: int) -> None:
        self.number = os.memfd_create("acker", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.number, size_bytes)
            self.view = _mapped(self.number, size_bytes)
        except BaseException:
            os.close(self.number)
            raise

    @classmethod
    def open(cls, process: int, number: int) -> SharedMemory:
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
        """Unmap it and close its descriptor."""
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


class _Address(NamedTuple):
    """Where a shard's table is: its token, the process that holds it, and its descriptor there."""

    token: str
    process: int
    number: int  # _NO_NUMBER if no other process can open it


class _CachedTable(NamedTuple):
    """A table in the cache, and when it was put there."""

    table: OpenTrees
    since_s: float


class TableCache:
    """The tables that this process can take, and those that it holds for other ones. Threads may share it.

    Parameters
    ----------
    folder : Path, optional
        The folder of the address files. None: tables stay in this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # By shard; those that were not checked for longest come first.
        self._held: OrderedDict[str, _CachedTable] = OrderedDict()
        self._entered = threading.Lock()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def new(self) -> OpenTrees:
        """Return an empty table."""
        return OpenTrees(self._allocate)

    def _allocate(self, size_bytes: int) -> Memory:
        if self._folder is None or not self._may_share():
            return PrivateMemory(size_bytes)
        try:
            return SharedMemory(size_bytes)
        except OSError as error:
            # The rest of the process has taken more than its half.
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return PrivateMemory(size_bytes)

    def _may_share(self) -> bool:
        """Return whether one more descriptor leaves half of all to the rest of the process."""
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return most == resource.RLIM_INFINITY or 2 * _DESCRIPTORS * (len(self._held) + 2) <= most

    def take(self, key: str, token: bytes) -> OpenTrees | None:
        """Remove and return the table of a shard that has this token; None if there is none.

        A table of the shard with another token is closed, as it belongs to an older version of the state. The time that
        this takes does not depend on the number of tables.
        """
        with self._entered:
            table = self._pop(key)
            if self._folder is not None:
                table = self._claim(self._folder, key, table)
            self._close_taken()
        if table is None or table.token != token:
            if table is not None:
                table.close()
            return None
        # It belongs to no version of the state until it is put back.
        table.token = _NO_TOKEN
        return table

    def put(self, key: str, token: bytes, table: OpenTrees) -> None:
        """Put a table into the cache that now agrees with the state of this token."""
        table.token = token
        with self._entered:
            before = self._pop(key)
            if before is not None:
                before.close()
            self._held[key] = _CachedTable(table, time.monotonic())
            if self._folder is not None:
                mine = self._folder / f".{key}.{os.getpid()}"
                # Without an address file the table is built again: its changes are in the state already.
                with suppress(OSError):
                    mine.write_text("{} {} {}".format(*_address_of(table)), "ascii")
                    mine.replace(self._folder / key)

    def release(self, unused_s: float = UNUSED_S) -> None:
        """Close the tables that have been in the cache for at least this number of seconds."""
        with self._entered:
            before_s = time.monotonic() - unused_s
            for key in [key for key, held in self._held.items() if held.since_s <= before_s]:
                table = self._held.pop(key).table
                if self._folder is not None:
                    file = self._folder / key
                    # Another address leads to a table that another process has put there since.
                    if _read_address(file) == _address_of(table):
                        file.unlink(missing_ok=True)
                table.close()

    def _pop(self, key: str) -> OpenTrees | None:
        held = self._held.pop(key, None)
        return None if held is None else held.table

    def _claim(self, folder: Path, key: str, held: OpenTrees | None) -> OpenTrees | None:
        """Remove a shard's address file and return the table at that address; close the held one if it is another."""
        file = folder / key
        address = _read_address(file)
        if held is not None and address != _address_of(held):
            held.close()
            held = None
        # The other process closes its memory as soon as the address file is gone: so the memory is opened before.
        memory = None if held is not None else self._open(address)
        if not self._remove_address(file, address):
            if held is not None:
                held.close()
            if memory is not None:
                memory.close()
            return None
        if memory is None:
            return held
        try:
            return OpenTrees.attach(memory, self._allocate)
        except ValueError:
            memory.close()
            return None

    def _open(self, address: _Address | None) -> SharedMemory | None:
        """Open the memory at an address; None if it cannot be had."""
        # A private table cannot be opened, and a shared one only within the limit of descriptors.
        if address is None or address.number == _NO_NUMBER or not self._may_share():
            return None
        try:
            return SharedMemory.open(address.process, address.number)
        except (OSError, ValueError):  # Its process has ended, and another may have its number.
            return None

    def _remove_address(self, file: Path, address: _Address | None) -> bool:
        """Remove an address file; return whether this process did, and the file held this address."""
        mine = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            file.rename(mine)
            removed = _read_address(mine)
            mine.unlink()
        except OSError:
            return False
        return removed == address

    def _close_taken(self) -> None:
        """Close tables that other processes have taken. Two are checked each time, so that none stays for long."""
        if self._folder is None:
            return
        for key in list(islice(self._held, _CHECKS)):
            if _read_address(self._folder / key) == _address_of(self._held[key].table):
                self._held.move_to_end(key)
            else:
                self._held.pop(key).table.close()


def _address_of(table: OpenTrees) -> _Address:
    memory = table.memory
    return _Address(table.token.hex(), os.getpid(), memory.number if isinstance(memory, SharedMemory) else _NO_NUMBER)


def _read_address(path: Path) -> _Address | None:
    """Return the content of an address file; None if it is missing or was not written by this class."""
    try:
        token, process, number = path.read_text("ascii").split()
        return _Address(token, int(process), int(number))
    except (OSError, ValueError):
        return None


def folder_of_executor() -> Path | None:
    """Return a folder that all Python workers of this executor know and that is removed with it, or None."""
    if (
        not sys.platform.startswith("linux")
        or not hasattr(os, "memfd_create")
        or not os.access("/proc/self/fd", os.R_OK)
    ):
        return None
    # Spark sets it for its workers, and removes its content at its end.
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return Path(local) / f"acker-tables-{os.getuid()}"


_caches: dict[int, TableCache] = {}


def worker_cache() -> TableCache:
    """Return the cache of this worker process."""
    # By process: a forked worker must not use its parent's descriptors.
    process = os.getpid()
    if process not in _caches:
        _caches.clear()
        _caches[process] = TableCache(folder_of_executor())
        threading.Thread(
            target=_release_unused, args=(_caches[process],), name="acker table cache", daemon=True
        ).start()
    return _caches[process]


def _release_unused(cache: TableCache) -> None:
    while True:
        time.sleep(UNUSED_S / 4)
        cache.release()
        give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Give the system back what this process has freed, as far as its allocators can."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)


@contextmanager
def close_on_error(table: OpenTrees) -> Iterator[OpenTrees]:
    """Close the table if an error ends the block, as it then agrees with no state."""
    try:
        yield table
    except BaseException:
        table.close()
        raise
