"""The `read_state` function: what the bolts of a topology hold in their state, for programs beside the topology."""

from __future__ import annotations

import os
from typing import Any, Final

from pyarrow import fs

from acker._files.paths import Place
from acker.errors import CheckpointError
from acker.spark.hadoop import place_of
from acker.spark.topologies.bolt_state import read_files
from acker.spark.topologies.journal import Journal
from acker.spark.topologies.state_log import StateChain

# A topology that runs meanwhile removes files that it has replaced; then the next commit is read.
_ATTEMPTS_MAX: Final = 10


def read_state(checkpoint: str | os.PathLike[str]) -> dict[str, list[dict[Any, Any]]]:
    """Return the state in a checkpoint: component -> the state of each of its tasks, as the last micro-batch left it.

    Parameters
    ----------
    checkpoint : path or URI
        The directory that `run` was given. The topology may run meanwhile. The state is a pickle: read no checkpoint of
        a stranger.

    Raises
    ------
    CheckpointError
        The directory is no checkpoint, or no micro-batch was committed.
    """
    return read_state_at(place_of(checkpoint))


def read_state_at(root: Place) -> dict[str, list[dict[Any, Any]]]:
    """Return the state in a checkpoint that was found already: see `read_state`."""
    if root.filesystem.get_file_info(f"{root.path}/commits").type is not fs.FileType.Directory:
        raise CheckpointError(f"{root}: expected the checkpoint of a topology, and it has no directory commits")
    journal = Journal(root)
    for attempt in range(_ATTEMPTS_MAX):
        try:
            return _read(journal, root)
        except FileNotFoundError:
            if attempt == _ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("unreachable")


def _read(journal: Journal, root: Place) -> dict[str, list[dict[Any, Any]]]:
    last, commit = journal.last_commit()
    if last < 0:
        raise CheckpointError(f"{root}: no micro-batch of the topology was committed yet")
    states: dict[str, list[dict[Any, Any]]] = {}
    for name, tasks in commit.tasks.items():
        if not commit.chains.keys() & set(tasks):
            continue
        states[name] = []
        for task in tasks:
            states[name].append(read_files(root.below("state"), commit.chains.get(task, StateChain()).files))
    return states
