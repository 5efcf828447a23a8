"""The state of bolts on Spark: for each task a chain of files, one more for each micro-batch that changed it.

The driver commits the names of the files together with the micro-batch, so a Spark task that runs again, and a
micro-batch that is computed again, leave files that nobody reads. No file is ever written again, so whatever happens to
the next one, the chain of the last commit is whole.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import reprlib
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from pyarrow import fs

from acker._engine import storage
from acker._files.paths import Place, locate
from acker.errors import CheckpointError, TopologyError
from acker.spark.checksums import seal, unseal
from acker.spark.folders import make_directory, write_elsewhere
from acker.spark.topologies.state_log import StateChain, StateFile, StateLog
from acker.spark.topologies.tuple_blocks import dumps, why_not_pickled
from acker.topology.state import KeyValueState, StateChanges

# For how long a state is kept that no micro-batch uses, since its run has ended or another worker does its task.
_KEPT_SECS: Final = 300.0

# States of this size in keys, and larger ones, are hidden from the garbage collector.
_FROZEN_KEYS: Final = 10_000
# It looks at them after so many changes for each key, and after twice as many each time that it has found nothing.
_PATIENCE: Final = 0.5
_PATIENCE_MAX: Final = 64
# The generation of the collector that holds all others.
_ALL: Final = 2


class KeptStates:
    """The states that this worker read or wrote last, by directory and task: workers live for many micro-batches.

    Workers outlive runs, too. So what a run leaves here goes when a micro-batch of another one ends some minutes later;
    Spark ends workers that nobody uses.
    """

    _states: ClassVar[dict[tuple[str, int], tuple[StateLog, KeyValueState, float]]] = {}
    # How many keys have changed since the garbage collector has looked at the states, and how many of each may change.
    _unseen: ClassVar[int] = 0
    _patience: ClassVar[float] = _PATIENCE
    # The files of the micro-batch that has ended last, if what it has changed is to be frozen once it is gone.
    _ended: ClassVar[weakref.ref[StateFiles] | None] = None

    @classmethod
    def take(cls, root: str, task: int) -> tuple[StateLog, KeyValueState]:
        """Return what was kept for a task, or an empty state; it is not kept any more."""
        log, state, _ = cls._states.pop((root, task), (StateLog(), KeyValueState(), 0.0))
        return log, state

    @classmethod
    def keep(cls, root: str, task: int, log: StateLog, state: KeyValueState, now: float | None = None) -> None:
        """Keep a state; drop those of other directories that nobody has used for five minutes."""
        now = time.monotonic() if now is None else now
        idle = [key for key, (_, _, used) in cls._states.items() if key[0] != root and now - used > _KEPT_SECS]
        for key in idle:
            cls._unseen += len(cls._states.pop(key)[1])
        cls._states[root, task] = log, state, now

    @classmethod
    def spare_collector(cls, files: StateFiles, changed: int) -> None:
        """Keep the states from the garbage collector, at the end of a micro-batch that has changed so many keys.

        Spark's workers collect all garbage after each task, which takes 0.3 s with a million tuples in windows. What
        outlives that collection is frozen: nothing of the micro-batch but its states and bolts is left then. A frozen
        object is freed as any other, unless it is in a cycle. So now and then the collector looks at all of them: often
        if it finds something, and else ever more rarely.
        """
        cls._unseen += changed
        keys = sum(len(state) for _, state, _ in cls._states.values())
        if cls._unseen >= max(_FROZEN_KEYS, cls._patience * keys):
            gc.collect()  # What this micro-batch leaves is in no state.
            gc.unfreeze()
            has_cycles = gc.collect() >= cls._unseen / 2
            cls._patience = _PATIENCE if has_cycles else min(2 * cls._patience, _PATIENCE_MAX)
            cls._unseen = 0
            if keys >= _FROZEN_KEYS:
                gc.freeze()
        elif keys >= _FROZEN_KEYS:
            cls._ended = weakref.ref(files)
            if cls._freeze not in gc.callbacks:
                gc.callbacks.append(cls._freeze)

    @classmethod
    def _freeze(cls, phase: str, info: Mapping[str, int]) -> None:
        """Freeze what has outlived a collection after a micro-batch; a function of `gc.callbacks`."""
        if phase == "stop" and info["generation"] == _ALL and cls._ended is not None and cls._ended() is None:
            cls._ended = None
            gc.freeze()

    @classmethod
    def clear(cls) -> None:
        """Drop all of them, as if the worker were new."""
        cls._states.clear()
        cls._unseen, cls._patience, cls._ended = 0, _PATIENCE, None

    @classmethod
    def roots(cls) -> set[str]:
        """Return the directories of the states that are kept."""
        return {root for root, _ in cls._states}


def read_file(root: str | Place, name: str) -> StateChanges:
    """Return what a file of a chain has.

    Raises
    ------
    CheckpointError
        The file is damaged.
    """
    filesystem, base = locate(root)
    with filesystem.open_input_stream(f"{base}/{name}") as stream:
        content = stream.read()
    try:
        pickled = unseal(content, name)
    except (EOFError, ValueError) as error:  # It was whole when its micro-batch was committed.
        raise CheckpointError(
            f"{base}/{name}: damaged: {error}; put the file back from a copy, or begin with a new checkpoint"
        ) from error
    return StateChanges(*pickle.loads(pickled))


def read_files(root: str | Place, files: Iterable[StateFile]) -> dict[Any, Any]:
    """Return the state that some files are, the oldest first; see `read_file` for the error."""
    state = KeyValueState(records=False)
    for file in files:
        state.follow(read_file(root, file.name))
    return state.snapshot()


class StateFiles:
    """Reads and writes the state of the tasks of one stage in one partition.

    Parameters
    ----------
    root : str or Place
        The directory.
    chains : mapping of int to StateChain
    batch : int
    component_of : callable
        Task -> the name of its component, for errors.

    Attributes
    ----------
    spent_ns : int
        The time that reading and writing have taken.
    """

    def __init__(
        self, root: str | Place, chains: Mapping[int, StateChain], batch: int, component_of: Callable[[int], str] = str
    ) -> None:
        self._root = root
        self._component_of = component_of
        self._chains = chains
        self._batch = batch
        self._states: dict[int, tuple[StateLog, KeyValueState]] = {}
        self._changed = 0
        self.spent_ns = 0

    def new_state(self, task: int) -> KeyValueState:
        """Return the state of a task, for the instance of its bolt that this micro-batch uses."""
        with self._counting_time():
            self._states[task] = self._read(task, self._chains.get(task, StateChain()))
        return self._states[task][1]

    @contextlib.contextmanager
    def _counting_time(self) -> Iterator[None]:
        begin = time.monotonic_ns()
        yield
        self.spent_ns += time.monotonic_ns() - begin

    def _read(self, task: int, chain: StateChain) -> tuple[StateLog, KeyValueState]:
        """Return the state; of a chain whose beginning this worker knows, only the files behind it are read.

        Raises
        ------
        CheckpointError
            A file is missing or damaged.
        """
        log, state = KeptStates.take(str(self._root), task)
        if log.chain != chain:
            files = chain.since(log.chain)
            if files is None:
                log, state, files = StateLog(), KeyValueState(), chain.files
                self._changed += sum(file.keys for file in files)
            for file in files:
                try:
                    changes = read_file(self._root, file.name)
                except FileNotFoundError as error:
                    raise CheckpointError(
                        f"component {self._component_of(task)!r}, task {task}: a file of its state is missing: {error};"
                        " put the file back from a copy, or begin with a new checkpoint"
                    ) from error
                state.follow(changes)
                log.note(file.name, changes)
            log.chain = chain
        return log, state

    def write(self) -> dict[int, StateChain]:
        """Write what changed; return the new chains by task.

        Raises
        ------
        TopologyError
            A key or a value cannot be pickled.
        CheckpointError
            A file cannot be written.
        """
        with self._counting_time():
            return self._write_changes()

    def _write_changes(self) -> dict[int, StateChain]:
        written: dict[int, StateChain] = {}
        for task, (log, state) in self._states.items():
            values, removed = state.take_changes()
            self._changed += len(values) + len(removed)
            if values or removed:
                changes, before = log.next_changes([*values, *removed], state)
                content = self._pickle(task, changes)
                name = _write(self._root, task, self._batch, content)
                log.append(before, StateFile(name, sum(map(len, changes)), len(content)), changes)
                written[task] = log.chain
            # If the micro-batch is computed again, its chain is another one, and this is not used.
            KeptStates.keep(str(self._root), task, log, state)
        KeptStates.spare_collector(self, self._changed)
        return written

    def _pickle(self, task: int, changes: StateChanges) -> bytes:
        try:
            return dumps(tuple(changes))
        except Exception as error:
            key = next((key for key, value in changes.values.items() if why_not_pickled((key, value))), None)
            raise TopologyError(
                f"component {self._component_of(task)!r}, task {task}: the state cannot be pickled: key"
                f" {reprlib.repr(key)}: {error}; keep values that can be pickled, and make the others in init_state"
            ) from error


def write_states(root: str | Place, states: Mapping[int, Mapping[Any, Any]]) -> dict[int, StateChain]:
    """Write whole states, by task, before the first micro-batch; return their chains."""
    chains = {}
    for task, values in states.items():
        if values:
            content = dumps((dict(values), set()))
            name = _write(root, task, "begin", content)
            chains[task] = StateChain((StateFile(name, len(values), len(content)),), (name,))
    return chains


def _write(root: str | Place, task: int, batch: int | str, content: bytes) -> str:
    # A name of its own for each attempt: Spark may run two attempts of a task at once, and a commit names one of them.
    filesystem, base = locate(root)
    name = f"{task}/{batch}-{uuid.uuid4().hex[:12]}"
    make_folder(filesystem, f"{base}/{task}")
    write_file(filesystem, f"{base}/{name}", seal(content, name))
    return name


def make_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Make a folder of a checkpoint, if it is missing; see `write_file` for the error."""
    with telling(path):
        make_directory(filesystem, path)


def write_file(filesystem: fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file whole or not at all, as far as the filesystem can; on a local disk it is synced.

    Where a crash may leave a part of a file, its reader has to notice.

    Raises
    ------
    CheckpointError
        It cannot be written.
    """
    with telling(path):
        if isinstance(filesystem, fs.LocalFileSystem):
            storage.write(path, [content])
            return
        write_elsewhere(filesystem, path, content)


@contextlib.contextmanager
def telling(path: str) -> Iterator[None]:
    """Let an error say what was written: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: the checkpoint cannot be written: {error}; make room there, or let this user write, and start"
            " again. All that was committed is as it was"
        ) from error


class StateCleaner:
    """Removes the files of state that no commit needs.

    Parameters
    ----------
    root : str or Place
        The directory. The files that it has now are known: to be removed unless the first commit that is asked for
        needs them. Those that another run writes from now on are not.
    """

    def __init__(self, root: str | Place) -> None:
        self._filesystem, self._base = locate(root)
        selector = fs.FileSelector(self._base, allow_not_found=True, recursive=True)
        found = [info.path for info in self._filesystem.get_file_info(selector) if info.is_file]
        # The files that evaluations since the last commit have written.
        self._new = {"/".join(path.rsplit("/", 2)[1:]) for path in found}
        self._needed: dict[int, StateChain] = {}

    def add(self, chains: Mapping[int, StateChain]) -> None:
        """Take note of the files that an evaluation has written, each the last one of a chain."""
        self._new.update(chain.heads[-1] for chain in chains.values())

    def remove_unused(self, chains: Mapping[int, StateChain]) -> None:
        """Remove all files but those of some chains."""
        before, self._needed = self._needed, dict(chains)
        for task, chain in chains.items():
            known = before.pop(task, None)
            if chain is not known:
                self._new.update(file.name for file in (known.files if known else ()))
                self._new.difference_update(file.name for file in chain.files)
        self._new.update(file.name for chain in before.values() for file in chain.files)
        for name in self._new:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(f"{self._base}/{name}")
        self._new = set()
