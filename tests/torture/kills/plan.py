"""The plan of a run, drawn from a seed: messages, their files, and the kills."""

from __future__ import annotations

import enum
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.protocol import Kind
from acker._engine.schemas import MESSAGE_SCHEMA
from acker.testing.streams import Checksum, TreeStream

# Tasks are tried four times on both.
LOCAL: Final = "local[2,4]"
CLUSTER: Final = "local-cluster[2,1,1024]"

SHARDS: Final = 4
PARTITIONS: Final = 2

# About the number of points of a micro-batch: a few by task and by shard, two in the sink.
_POINTS_A_BATCH: Final = 20
_FILES_A_KILL: Final = 2
_PENDING: Final = 1_500
_OKS: Final = 3
_FILE_ROWS: Final = 3_000
# If trees expire, one in this many gets no further message.
_LOST_ONE_IN: Final = 8
_LATE_SECONDS_MAX: Final = 0.2


class Victim(enum.StrEnum):
    """The target of a kill: a Python worker; an executor's JVM; or the driver, its Python and its JVM."""

    WORKER = "worker"
    EXECUTOR = "executor"
    DRIVER = "driver"


class Kill(NamedTuple):
    """One kill.

    Attributes
    ----------
    victim : Victim
    points : int
        At which point it happens, counted from the kill before. Only the victim's own points count: those of Python
        workers for a worker or an executor, and all for the driver.
    late_s : float
        Delay after that point; 0: while the process that reached it waits there.
    point : str or None
        The name of the points that count; None: all.
    """

    victim: Victim
    points: int
    late_s: float = 0.0
    point: str | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes
    ----------
    seed : int
    master : str
    timeout_s : float or None
        Of the trees. None: nothing expires, and the run ends with the last file. Else it ends when nothing is held.
    kills : tuple of Kill
    files : int
        A file is a micro-batch.
    """

    seed: int
    master: str
    timeout_s: float | None
    kills: tuple[Kill, ...]
    files: int


def plan_of(
    seed: int, victims: Sequence[Victim], *, master: str, timeout_s: float | None = None, files: int | None = None
) -> Plan:
    """Return the run of a seed with these victims in random order, and with as many files as they need."""
    rng = random.Random(seed)
    kills = []
    for victim in rng.sample(victims, len(victims)):
        # A late worker may have nothing to do.
        late_s = 0.0 if victim is Victim.WORKER or rng.random() < 0.5 else rng.uniform(0, _LATE_SECONDS_MAX)
        kills.append(Kill(victim, rng.randint(1, 3 * _POINTS_A_BATCH // 2), late_s))
    return Plan(seed, master, timeout_s, tuple(kills), files or _FILES_A_KILL * len(kills) + 1)


class Expected(NamedTuple):
    """The expected output.

    Attributes
    ----------
    undisturbed : Completions
        Of one acker that is given all messages in order, and lets nothing expire.
    tracked : dict
        The (message id, task id) of each root that has a TRACK.
    checksum : Checksum
        Of the trees that the stream says are finished; of no use where some were lost.
    """

    undisturbed: Completions
    tracked: dict[int, tuple[int, int]]
    checksum: Checksum


def write_files(plan: Plan, folder: Path) -> Expected:
    """Write the messages of a run, and return the expected output."""
    folder.mkdir(parents=True)
    expires = plan.timeout_s is not None
    stream = TreeStream(_PENDING, _OKS, fail_share=0.02, reset_share=0.02, seed=plan.seed)
    acker = Acker(seed=plan.seed)
    done: list[Completions] = []
    tracked: dict[int, tuple[int, int]] = {}
    for number in range(plan.files):
        batches = [*(stream.prefill() if number == 0 else ()), stream.take(_FILE_ROWS)]
        rows = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
        if expires:
            # Lost trees get no message after their TRACK.
            stays = (rows[0] == Kind.TRACK) | ~is_lost(rows[1])
            rows = [column[stays] for column in rows]
        done.append(acker.ingest(*rows))
        kind, root_id, _, task_id, message_id = rows
        tracks = kind == Kind.TRACK
        ids = zip(message_id[tracks].tolist(), task_id[tracks].tolist(), strict=True)
        tracked |= zip(root_id[tracks].tolist(), ids, strict=True)
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table([pa.array(column) for column in rows], schema=MESSAGE_SCHEMA), path)
        # Spark takes files by age.
        os.utime(path, (10**9 + number, 10**9 + number))
    return Expected(Completions.concat(done), tracked, stream.expected)


def is_lost(root_id: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which trees get no further message, if trees expire."""
    return np.equal(root_id % _LOST_ONE_IN, 0)
