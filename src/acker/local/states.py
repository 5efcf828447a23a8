"""The states of bolts in a local run: kept across restarts, and written to a file."""

from __future__ import annotations

import hashlib
import os
import pickle
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from acker._engine import storage
from acker.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    RuntimeStateError,
    SnapshotError,
    TopologyError,
    exception_text,
)
from acker.local.executors.bolt import BoltExecutor
from acker.topology.graph import Graph, Node
from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.suggestions import suggestion

_MAGIC: Final = b"acker.local states 1\n"
_DIGEST_BYTES: Final = 32

# How long the end of a run waits for the step of an executor.
_END_SECS: Final = 10


class StateKeeper:
    """The states of all tasks of stateful bolts, over the restarts of a run and in its file.

    Parameters
    ----------
    graph : Graph
    source : path, bytes or None
        A file that is read if it exists, and written at the end; or a snapshot.
    """

    def __init__(self, graph: Graph, source: str | os.PathLike[str] | bytes | None) -> None:
        self._graph = graph
        self._path = None if source is None or isinstance(source, bytes) else _check_path(source)
        self._where = "state" if self._path is None else f"state {str(self._path)!r}"
        self._states: dict[int, KeyValueState] = {}
        # How to read the state of a task that another process has.
        self.read_elsewhere: Callable[[int], Mapping[Any, Any]] | None = None
        if self._path is not None:
            source = self._path.read_bytes() if self._path.exists() else None
        if isinstance(source, bytes):
            self._restore(source)

    def new_state(self, task: int) -> KeyValueState:
        """Return the state for a new instance of a task, with what the one before has kept.

        A copy, so that a predecessor that is still inside user code does not write into this one's.
        """
        before = self._states.get(task)
        state = KeyValueState(None if before is None else before.snapshot(), records=False)
        self._states[task] = state
        return state

    def snapshot(self, executors: Sequence[BoltExecutor], timeout_secs: float) -> bytes:
        """Return the states as bytes, those of each executor from between two of its tuples.

        Raises
        ------
        TopologyError
            A key or a value cannot be pickled.
        RuntimeStateError
            An executor did not finish a tuple in time; or the bolts run elsewhere.
        """
        pickled: dict[int, bytes] = {}
        for executor in executors:
            gate = executor.state_gate
            if gate is None:
                continue
            # One that was abandoned stays inside a tuple, which has failed.
            if executor.abandoned:
                pickled.update(self._pickle_tasks(executor))
                continue
            if not gate.enter(executor.end_step, timeout_secs):
                raise RuntimeStateError(
                    f"no snapshot of the states: {executor.name} has been inside user code for {timeout_secs:g} s, and "
                    "a snapshot is taken between two tuples; give it more time by timeout_secs=, or find out what the "
                    "bolt waits for"
                )
            try:
                pickled.update(self._pickle_tasks(executor))
            finally:
                gate.leave()
        components = {}
        for node in self._stateful():
            for number in node.tasks:
                if number not in pickled:
                    pickled[number] = _pickle(node.name, number, self._read(node.name, number, bool(executors)))
            components[node.name] = [pickled[number] for number in node.tasks]
        return _encode(self._graph.name, components)

    def restored(self) -> dict[int, dict[Any, Any]]:
        """Return the states that the file or the snapshot had, by task."""
        return {task: state.snapshot() for task, state in self._states.items()}

    def _read(self, component: str, task: int, runs: bool) -> Mapping[Any, Any]:
        """Return a state that no executor has: nothing has run yet, or the task runs elsewhere."""
        if self.read_elsewhere is not None:
            return self.read_elsewhere(task)
        if runs:
            raise RuntimeStateError(
                f"no snapshot of the states: component {component!r} does not run in this process; its state is in "
                "the checkpoint"
            )
        return self._states.get(task, {})

    def save(self, executors: Sequence[BoltExecutor], path: str | os.PathLike[str] | None, timeout_secs: float) -> None:
        """Write a snapshot to a path, or to the file of this run; see `snapshot` for the errors."""
        target = self._path if path is None else _check_path(path)
        if target is None:
            raise ArgumentValueError("save_state: no file is known; name one here, or give the runtime state='FILE'")
        storage.write(target, [self.snapshot(executors, timeout_secs)])

    def save_at_end(self, executors: Sequence[BoltExecutor]) -> None:
        """Write the file of this run, if it has one, when all executors have ended or are about to."""
        if self._path is not None:
            self.save(executors, None, _END_SECS)

    def _pickle_tasks(self, executor: BoltExecutor) -> dict[int, bytes]:
        # The tasks' own, which a restart in the meantime does not replace.
        states = [(task.collector.component, task.collector.task, task.state) for task in executor.tasks]
        return {task: _pickle(component, task, state) for component, task, state in states if state is not None}

    def _stateful(self) -> list[Node]:
        return [node for node in self._graph.bolts if issubclass(node.component, StatefulBolt)]

    def _restore(self, data: bytes) -> None:
        kept = _decode(data, self._where)
        nodes = {node.name: node for node in self._stateful()}
        for name, states in kept.items():
            node = nodes.get(name)
            if node is None:
                raise TopologyError(
                    f"{self._where}: has a state of component {name!r}, and topology {self._graph.name} has no "
                    f"StatefulBolt of that name; {suggestion(name, nodes)}, or start with another file"
                )
            if len(states) != node.par:
                raise TopologyError(
                    f"{self._where}: component {name!r} had par={len(states)} and has par={node.par} now, so its "
                    f"keys would go to other tasks; write par={len(states)}, or start with another file"
                )
            for task, pickled in zip(node.tasks, states, strict=True):
                self._states[task] = KeyValueState(_unpickle(pickled, f"{self._where}: component {name!r}"))


class StateSnapshots(ABC):
    """The methods of a runtime that take and write snapshots of its states."""

    _states: StateKeeper

    @abstractmethod
    def _bolts(self) -> Sequence[BoltExecutor]:
        """Return the executors of bolts; none before the start."""

    def snapshot_state(self, timeout_secs: float = 60) -> bytes:
        """Return the states of all stateful bolts, for ``state=`` of another runtime. Any thread may call it.

        The state of a task is taken between two of its tuples, while other tasks go on. So it has all that was acked
        before the call, and of later tuples what they had done until then. Before a start, it is what was restored.

        Parameters
        ----------
        timeout_secs : float
            How long to wait for an executor to finish its tuple.

        Raises
        ------
        TopologyError
            A key or a value cannot be pickled.
        RuntimeStateError
            An executor did not finish its tuple in time.
        """
        return self._states.snapshot(self._bolts(), timeout_secs)

    def save_state(self, path: str | os.PathLike[str] | None = None, timeout_secs: float = 60) -> None:
        """Write what `snapshot_state` returns to a file, which is replaced atomically; by default that of this run."""
        self._states.save(self._bolts(), path, timeout_secs)


def _check_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"state: expected a path, or the bytes of snapshot_state, got {type(path).__name__}")
    found = Path(path)
    if found.is_dir() or not found.absolute().parent.is_dir():
        raise ArgumentValueError(f"state: no file can be at {str(found)!r}: it is a folder, or its folder is missing")
    return found


def make_snapshot(topology: str, states: Mapping[str, Sequence[Mapping[Any, Any]]]) -> bytes:
    """Return a snapshot with these states: component -> the state of each of its tasks."""
    pickled = {name: [_pickle(name, index, each) for index, each in enumerate(tasks)] for name, tasks in states.items()}
    return _encode(topology, pickled)


def read_state(source: str | os.PathLike[str] | bytes) -> dict[str, list[dict[Any, Any]]]:
    """Return what a file of states or a snapshot holds: component -> the state of each of its tasks.

    Parameters
    ----------
    source : path or bytes
        The file of ``run(..., state=...)``, or what `LocalRuntime.snapshot_state` returned. It is a pickle: open no
        file of a stranger.

    Raises
    ------
    SnapshotError
        It is damaged or no snapshot, or a class of a value does not exist any more.
    """
    data = source if isinstance(source, bytes) else _check_path(source).read_bytes()
    where = "state" if isinstance(source, bytes) else f"state {os.fspath(source)!r}"
    return {
        name: [_unpickle(each, f"{where}: component {name!r}") for each in states]
        for name, states in _decode(data, where).items()
    }


def _encode(topology: str, components: Mapping[str, Sequence[bytes]]) -> bytes:
    body = pickle.dumps({"topology": topology, "components": components})
    return b"".join((_MAGIC, hashlib.sha256(body).digest(), body))


def _decode(data: bytes, where: str) -> dict[str, list[bytes]]:
    """Return the pickled states by component; refuse damaged bytes before anything is unpickled."""
    begin = len(_MAGIC) + _DIGEST_BYTES
    if not data.startswith(_MAGIC):
        raise SnapshotError(f"{where}: expected to begin with {_MAGIC!r}, got {data[: len(_MAGIC)]!r}")
    body = data[begin:]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise SnapshotError(f"{where}: damaged or cut short: the checksum does not fit the bytes")
    components: dict[str, list[bytes]] = pickle.loads(body)["components"]
    return components


def _pickle(component: str, task: int, state: Mapping[Any, Any]) -> bytes:
    values = state.snapshot() if isinstance(state, KeyValueState) else dict(state)
    try:
        return pickle.dumps(values)
    except Exception as error:
        key = next((key for key, value in values.items() if not _can_pickle((key, value))), None)
        raise TopologyError(
            f"component {component!r}, task {task}: the state cannot be pickled: key {reprlib.repr(key)}: {error}; "
            "keep values that can be pickled, and make the others in init_state"
        ) from error


def _can_pickle(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  Whatever it raises.
        return False
    return True


def _unpickle(pickled: bytes, where: str) -> dict[Any, Any]:
    try:
        values: dict[Any, Any] = pickle.loads(pickled)
    except Exception as error:
        raise SnapshotError(
            f"{where}: a class or a value in it cannot be made again: {exception_text(error)}; define the "
            "classes where they were defined when the state was kept"
        ) from error
    return values
