"""The state of one task as a log of files: what the next file has, and which files it makes needless.

Each micro-batch that changes the state adds a file with what it changed. Two rules keep the files few and the log
short, and both cost in proportion to what the micro-batch changed, never to what the state holds. Small files are
merged into the next one when they have less than twice its keys. And once most of the log is out of date, each file
has, for each key that changed, two of those that were not written for the longest time; so the oldest files come to
have nothing that counts, and go. The content of a file follows from the log alone, whatever worker writes it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acker.topology.state import KeyValueState, StateChanges

_ABSENT: Final = object()

# A file with this number of keys or bytes is not merged any more.
MERGED_KEYS: Final = 8_192
MERGED_BYTES: Final = 1 << 22
# Old keys are written again once the log has this many times the keys of the state.
_LOG_MAX: Final = 2
# Number of old keys that are written again for each key that changed, so the log grows by less than 1.5 times the
# state.
_AGAIN: Final = 2
# A worker that had the state at most this many micro-batches ago reads only the files since then.
_HEADS: Final = 32


class StateFile(NamedTuple):
    """A file of the log.

    Attributes
    ----------
    name : str
        Its path below the directory of states.
    keys : int
        How many keys it sets or removes.
    size : int
        In bytes.
    """

    name: str
    keys: int
    size: int


@dataclass(frozen=True)
class StateChain:
    """The files that together are the state of one task, the oldest first.

    Attributes
    ----------
    files : tuple of StateFile
    heads : tuple of str
        The names of the last files that were written, the oldest first, also of those that were merged since. A state
        that has all up to one of them lacks only the files behind it.
    """

    files: tuple[StateFile, ...] = ()
    heads: tuple[str, ...] = ()

    def since(self, earlier: StateChain) -> tuple[StateFile, ...] | None:
        """Return the files that a state lacks that has all of an earlier chain; None: all of them."""
        head = earlier.heads[-1] if earlier.heads else None
        if head not in self.heads:
            return None
        later = set(self.heads[self.heads.index(head) + 1 :])
        return tuple(file for file in self.files if file.name in later)


class _FileOfKey(dict[Any, str]):
    """A dict that the garbage collector knows at any time, so that `gc.freeze` takes it out of its work.

    A plain one comes back to it with the first key that is a tuple, and is looked through once more each time.
    """


class StateLog:
    """Where in the log of one task the keys are.

    Attributes
    ----------
    chain : StateChain
        The known state.
    """

    def __init__(self) -> None:
        self.chain = StateChain()
        # Key -> the file that had it last, of keys that were removed too; in the order in which they were written.
        self._file_of = _FileOfKey()

    def note(self, name: str, changes: StateChanges) -> None:
        """Take note of the keys of a file behind all others."""
        for keys in changes:
            if self._file_of:
                for key in keys:
                    self._file_of.pop(key, None)
            self._file_of.update(dict.fromkeys(keys, name))

    def next_changes(self, changed: Collection[Any], state: KeyValueState) -> tuple[StateChanges, StateChain]:
        """Return what the next file has, and the chain without it and without the files that it makes needless.

        The keys are in no file then until `append` is called.
        """
        keys = dict.fromkeys(changed)
        for key in keys:
            self._file_of.pop(key, None)
        files = list(self.chain.files)
        is_long = sum(file.keys for file in files) + len(keys) > _LOG_MAX * len(state)
        keys.update(dict.fromkeys(self._take_oldest(_AGAIN * len(keys) if is_long else 0, state)))
        while files and files[-1].keys < 2 * len(keys) and _is_small(files[-1]):
            keys.update(dict.fromkeys(self._take_last(files.pop().name)))
        first = next(iter(self._file_of.values()), None)
        needless = 0
        while needless < len(files) and files[needless].name != first:
            needless += 1
        heads = self.chain.heads
        if needless == len(files):
            # The next file is the whole state, and does not tell what was removed.
            heads = ()
        elif needless and files[needless - 1].name in heads:
            # Keys that were removed in the files that go are nowhere any more.
            heads = heads[heads.index(files[needless - 1].name) :]
        chain = StateChain(tuple(files[needless:]), heads)
        found = {key: state.peek(key, _ABSENT) for key in keys}
        values = {key: value for key, value in found.items() if value is not _ABSENT}
        return StateChanges(values, found.keys() - values.keys() if chain.files else set()), chain

    def append(self, before: StateChain, file: StateFile, changes: StateChanges) -> None:
        """Take note of a file that was written with what `next_changes` has returned."""
        for keys in changes:
            self._file_of.update(dict.fromkeys(keys, file.name))
        self.chain = StateChain((*before.files, file), (*before.heads, file.name)[-_HEADS:])

    def _take_oldest(self, count: int, state: KeyValueState) -> list[Any]:
        """Return some keys of the state that were not written for the longest time; they are in no file any more.

        Keys before them that were removed go too: no file before theirs has anything that counts.
        """
        oldest: list[Any] = []
        taken: list[Any] = []
        for key in self._file_of:
            if key in state:
                if len(taken) == count:
                    break
                taken.append(key)
            oldest.append(key)
        for key in oldest:
            del self._file_of[key]
        return taken

    def _take_last(self, name: str) -> list[Any]:
        """Return the keys that the last file had last; they are in no file any more."""
        taken = []
        while self._file_of and next(reversed(self._file_of.values())) == name:
            taken.append(self._file_of.popitem()[0])
        return taken


def _is_small(file: StateFile) -> bool:
    return file.keys < MERGED_KEYS and file.size < MERGED_BYTES
