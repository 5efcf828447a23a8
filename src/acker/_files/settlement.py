"""The settlement of files without Spark: threads read them and combine their messages, then settle shard by shard.

Each thread has a combiner of its own, which it empties into a store, split by shard, as soon as the table is larger
than a cache. In the end the messages of each root meet in its shard. A shard of more trees than fit is settled in two
halves, these again, and so on.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from acker._engine.combiner import SHARDS_MAX, Combiner, in_shard
from acker._engine.protocol import divide_up
from acker._files.columns import columns_of
from acker._files.reader import deal, read_units
from acker._files.spill import PartialStore
from acker.errors import ForkedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from acker._engine.completions import Completions
    from acker._files.reader import Unit

# What a root takes at worst, in a table, beside it while the table grows, and on its way into the store or a result.
_ROOT_BYTES: Final = 128
# A table of so many roots is about as large as a cache.
_CACHED_ROOTS: Final = 250_000
# Of equal work for each thread, so that none waits long for the others.
_SHARDS_A_THREAD: Final = 4
# So that the table of a shard is about as large as a cache, too.
_SHARD_MESSAGES: Final = 125_000
# Less would cut the work into too many pieces.
_ROOTS_LEAST: Final = 4096
# So many shards are not divided again: the rule of shards has 32 bits.
_SPLIT_MAX: Final = 2**30


class Resources(NamedTuple):
    """What a settlement may use.

    Attributes
    ----------
    threads : int
    memory_bytes : int
        One half is for the store, the other for the tables of all threads.
    spill_folder : str or None
    """

    threads: int
    memory_bytes: int
    spill_folder: str | None

    @property
    def roots_max(self) -> int:
        """How many roots the table of one thread may hold."""
        return max(self.memory_bytes // 2 // self.threads // _ROOT_BYTES, _ROOTS_LEAST)


class _Units:
    """Units that threads take, each from the front of its own run; one that has none left, from the end of another."""

    def __init__(self, units: list[Unit], threads: int) -> None:
        self._lock = threading.Lock()
        self._runs = [deque(run) for run in deal(units, threads)]

    def taken_by(self, thread: int) -> Iterator[Unit]:
        """Yield units until there are none."""
        while True:
            with self._lock:
                own = self._runs[thread] if thread < len(self._runs) else None
                if own:
                    unit = own.popleft()
                else:
                    longest = max(self._runs, key=len)
                    if not longest:
                        return
                    unit = longest.pop()
            yield unit


def settle_units(units: list[Unit], resources: Resources, *, include_pending: bool) -> Iterator[Completions]:
    """Settle the messages of units as one set, and yield the completions in parts, in no particular order.

    Raises
    ------
    ArgumentValueError, ColumnValueError, OSError
        See `read_units` and `columns_of`; a temporary file that cannot be written.
    AckerMemoryError
        No memory for a table.
    """
    settlement = _Settlement(units, resources, include_pending=include_pending)
    # Threads that live as long as the iterator. They stop at the next batch, whatever ends it. A pool that is
    # interrupted while it starts a thread does not know it, so each of them says itself that it is there.
    begun: list[threading.Thread] = []
    pool = ThreadPoolExecutor(
        resources.threads, "acker-files", initializer=lambda: begun.append(threading.current_thread())
    )
    try:
        yield from settlement.run(pool)
    finally:
        settlement.stop()
        pool.shutdown(cancel_futures=True)
        for thread in begun:
            thread.join()
        settlement.close()


class _Settlement:
    """The state that the threads of one settlement share."""

    def __init__(self, units: list[Unit], resources: Resources, *, include_pending: bool) -> None:
        self._units = units
        self._threads = resources.threads
        self._roots_max = resources.roots_max
        self._include_pending = include_pending
        self._process = os.getpid()
        messages = sum(unit.messages for unit in units)
        least = max(_SHARDS_A_THREAD * self._threads, messages // _SHARD_MESSAGES)
        self._shards = min(max(least, divide_up(messages, self._roots_max)), SHARDS_MAX)
        self._store = PartialStore(resources.memory_bytes // 2, resources.spill_folder)
        self._is_stored = False
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make the threads end."""
        self._stopped.set()

    def close(self) -> None:
        """Remove the temporary file; no thread runs any more."""
        self._store.close()

    def run(self, pool: ThreadPoolExecutor) -> Iterator[Completions]:
        """Combine and settle."""
        combiners = self._combine(pool)
        if len(combiners) == 1 and not self._is_stored:
            yield combiners[0].settle(self._include_pending)
            return
        list(pool.map(self._keep, combiners))
        del combiners
        yield from self._settle_shards(pool)

    def _combine(self, pool: ThreadPoolExecutor) -> list[Combiner]:
        """Combine all units; return the combiners with what is not in the store."""
        units = _Units(self._units, self._threads)
        futures = [pool.submit(self._combine_some, units.taken_by(thread)) for thread in range(self._threads)]
        combiners = [combiner for future in futures if (combiner := future.result()) is not None]
        return combiners or [Combiner()]

    def _combine_some(self, units: Iterator[Unit]) -> Combiner | None:
        """Combine the units of a thread; None where there were none, or another thread has failed."""
        combiner = None
        try:
            for batch, locate in read_units(units):
                if self._stopped.is_set():
                    return None
                if combiner is not None and len(combiner) > min(_CACHED_ROOTS, self._roots_max):
                    self._keep(combiner)
                    combiner = None
                if combiner is None:
                    combiner = Combiner()
                combiner.add_unchecked(columns_of(batch, locate))
        except BaseException:
            self.stop()
            raise
        return combiner

    def _keep(self, combiner: Combiner) -> None:
        self._is_stored = True
        self._store.add(combiner.partials(self._shards))

    def _settle_shards(self, pool: ThreadPoolExecutor) -> Iterator[Completions]:
        todo = deque((self._shards, shard) for shard in range(self._shards))
        running: deque[tuple[int, int, Future[Completions | None]]] = deque()
        while todo or running:
            while todo and len(running) < self._threads:
                shards, shard = todo.popleft()
                running.append((shards, shard, pool.submit(self._settle_shard, shards, shard)))
            if os.getpid() != self._process:
                raise ForkedError("iterator of completions", self._process)
            shards, shard, future = running.popleft()
            done = future.result()
            if done is None:
                todo.extendleft([(2 * shards, 2 * shard + 1), (2 * shards, 2 * shard)])
            elif len(done):
                yield done

    def _settle_shard(self, shards: int, shard: int) -> Completions | None:
        """Settle a shard; None if it has too many roots, or nobody waits for it any more."""
        combiner = Combiner()
        for piece in self._store.pieces(shard * self._shards // shards):
            mine = piece if shards == self._shards else piece.at(in_shard(piece.root_id, shards, shard))
            combiner.merge(mine)
            is_too_large = len(combiner) > self._roots_max and shards < _SPLIT_MAX
            if self._stopped.is_set() or is_too_large:
                return None
        return combiner.settle(self._include_pending)
