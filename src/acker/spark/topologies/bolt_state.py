"""The state of bolts on Spark: for each task a chain of files, one more for each micro-batch that changed it.

A file has the keys that its micro-batch changed. The driver commits the names of the files together with the
micro-batch, so a Spark task that runs again, and a micro-batch that is computed again, leave files that nobody reads.
"""

from __future__ import annotations

import contextlib
import pickle
import reprlib
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pyarrow import fs

from acker._engine import storage
from acker.errors import CheckpointError, TopologyError
from acker.spark.paths import locate
from acker.spark.topologies.tuple_blocks import dumps, why_not_pickled
from acker.topology.state import KeyValueState

# A chain of so many files is replaced by one.
_CHAIN_MAX: Final = 10
# For how long a state is kept that no micro-batch uses, since its run has ended or another worker does its task.
_KEPT_SECS: Final = 300.0
_OBJECT_STORES: Final = frozenset({"abfs", "gcs", "s3"})
# What unpickling raises if the end is missing.
CUT_SHORT: Final = (EOFError, pickle.UnpicklingError)


@dataclass(frozen=True)
class StateChain:
    """The files that together are the state of one task, the oldest first.

    Attributes
    ----------
    files : tuple of str
        Names below the directory of states.
    """

    files: tuple[str, ...] = ()


class KeptStates:
    """The states that this worker read or wrote last, by place and task: workers live for many micro-batches.

    Workers outlive runs, too. So what a run leaves here goes when a micro-batch of another one ends some minutes later;
    Spark ends workers that nobody uses.
    """

    _states: ClassVar[dict[tuple[str, int], tuple[StateChain, KeyValueState, float]]] = {}

    @classmethod
    def take(cls, root: str, task: int) -> tuple[StateChain, KeyValueState]:
        """Return what was kept for a task, or an empty state; it is not kept any more."""
        chain, state, _ = cls._states.pop((root, task), (StateChain(), KeyValueState(), 0.0))
        return chain, state

    @classmethod
    def keep(cls, root: str, task: int, chain: StateChain, state: KeyValueState, now: float | None = None) -> None:
        """Keep a state; drop those of other places that nobody has used for five minutes."""
        now = time.monotonic() if now is None else now
        idle = [key for key, (_, _, used) in cls._states.items() if key[0] != root and now - used > _KEPT_SECS]
        for key in idle:
            del cls._states[key]
        cls._states[root, task] = chain, state, now

    @classmethod
    def clear(cls) -> None:
        """Drop all of them."""
        cls._states.clear()

    @classmethod
    def roots(cls) -> set[str]:
        """Return the places of the states that are kept."""
        return {root for root, _ in cls._states}


def read_files(root: str, names: Iterable[str], values: dict[Any, Any]) -> None:
    """Apply what some files of a chain have changed to a state, the oldest first.

    Raises
    ------
    CheckpointError
        A file is damaged.
    """
    filesystem, base = locate(root)
    for name in names:
        with filesystem.open_input_stream(f"{base}/{name}") as stream:
            content = stream.read()
        try:
            changed, removed = pickle.loads(content)
        except CUT_SHORT as fault:  # It was whole when its micro-batch was committed.
            raise CheckpointError(f"{base}/{name}: damaged: {fault}; begin with a new checkpoint") from fault
        values.update(changed)
        for key in removed:
            values.pop(key, None)


class StateFiles:
    """Reads and writes the state of the tasks of one stage in one place.

    Parameters
    ----------
    root : str
        The directory.
    chains : mapping of int to StateChain
    batch : int
    component_of : callable
        Task -> the name of its component, for errors.
    """

    def __init__(
        self, root: str, chains: Mapping[int, StateChain], batch: int, component_of: Callable[[int], str] = str
    ) -> None:
        self._root = root
        self._component_of = component_of
        self._chains = chains
        self._batch = batch
        self._states: dict[int, tuple[StateChain, KeyValueState]] = {}

    def new_state(self, task: int) -> KeyValueState:
        """Return the state of a task, for the instance of its bolt that this micro-batch uses."""
        chain = self._chains.get(task, StateChain())
        state = self._read(task, chain)
        self._states[task] = chain, state
        return state

    def _read(self, task: int, chain: StateChain) -> KeyValueState:
        """Return the state; of a chain that this worker knows, only the files that are new are read."""
        known, state = KeptStates.take(self._root, task)
        if known == chain:
            return state
        begin = len(known.files)
        values = state.snapshot()
        if chain.files[:begin] != known.files:
            begin, values = 0, {}
        read_files(self._root, chain.files[begin:], values)
        return KeyValueState(values)

    def write(self) -> dict[int, StateChain]:
        """Write what changed; return the new chains by task.

        Raises
        ------
        TopologyError
            A key or a value cannot be pickled.
        """
        written: dict[int, StateChain] = {}
        for task, (chain, state) in self._states.items():
            changed, removed = state.take_changes()
            if changed or removed:
                whole = len(chain.files) >= _CHAIN_MAX
                content = self._pickle(task, *((state.snapshot(), ()) if whole else (changed, removed)))
                name = _write(self._root, task, self._batch, content)
                written[task] = StateChain((name,) if whole else (*chain.files, name))
            # If the micro-batch is computed again, its chain is another one, and this is not used.
            KeptStates.keep(self._root, task, written.get(task, chain), state)
        return written

    def _pickle(self, task: int, changed: Mapping[Any, Any], removed: Collection[Any]) -> bytes:
        try:
            return dumps((changed, removed))
        except Exception as fault:
            key = next((key for key, value in changed.items() if why_not_pickled((key, value))), None)
            raise TopologyError(
                f"component {self._component_of(task)!r}, task {task}: the state cannot be pickled: key"
                f" {reprlib.repr(key)}: {fault}; keep values that can be pickled, and make the others in init_state"
            ) from fault


def write_states(root: str, states: Mapping[int, Mapping[Any, Any]]) -> dict[int, StateChain]:
    """Write whole states, by task, before the first micro-batch; return their chains."""
    return {
        task: StateChain((_write(root, task, "begin", dumps((dict(values), ()))),))
        for task, values in states.items()
        if values
    }


def _write(root: str, task: int, batch: int | str, content: bytes) -> str:
    # A name of its own for each attempt: Spark may run two attempts of a task at once, and a commit names one of them.
    filesystem, base = locate(root)
    name = f"{task}/{batch}-{uuid.uuid4().hex[:12]}"
    make_folder(filesystem, f"{base}/{task}")
    write_file(filesystem, f"{base}/{name}", content)
    return name


def make_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Make a folder of a checkpoint, if it is missing; see `write_file` for the error."""
    with telling(path):
        filesystem.create_dir(path, recursive=True)


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
        # In an object store a file appears when it is closed; a move would be a copy.
        is_store = filesystem.type_name in _OBJECT_STORES
        folder, _, name = path.rpartition("/")
        target = path if is_store else f"{folder}/.{name}.tmp"
        with filesystem.open_output_stream(target) as stream:
            stream.write(content)
        if not is_store:
            filesystem.move(target, path)


@contextlib.contextmanager
def telling(path: str) -> Iterator[None]:
    """Let an error say what was written: that of a full disk names no file."""
    try:
        yield
    except OSError as fault:
        raise CheckpointError(
            f"{path}: the checkpoint cannot be written: {fault}; make room there, or let this user write, and start"
            " again. All that was committed is as it was"
        ) from fault


class StateCleaner:
    """Removes the files of state that no commit needs.

    Parameters
    ----------
    root : str
        The directory. The files that it has now are known: to be removed unless the first commit that is asked for
        needs them. Those that another run writes from now on are not.
    """

    def __init__(self, root: str) -> None:
        self._filesystem, self._base = locate(root)
        selector = fs.FileSelector(self._base, allow_not_found=True, recursive=True)
        found = [info.path for info in self._filesystem.get_file_info(selector) if info.is_file]
        self._known = {"/".join(path.rsplit("/", 2)[1:]) for path in found}

    def add(self, chains: Mapping[int, StateChain]) -> None:
        """Take note of files that an evaluation has written."""
        self._known.update(name for chain in chains.values() for name in chain.files)

    def remove_unused(self, chains: Mapping[int, StateChain]) -> None:
        """Remove all files but those of some chains."""
        needed = {name for chain in chains.values() for name in chain.files}
        for name in self._known - needed:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(f"{self._base}/{name}")
        self._known = needed
