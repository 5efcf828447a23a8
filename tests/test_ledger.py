"""The ledger against a model that says the rules in Python, and against the acker that takes messages one by one."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from acker import Acker, Kind, Outcome
from acker.combiner import Combiner, Partials
from acker.ledger import Counts, Entries, Ledger, PrivateMemory

TRACKED, FAILED, RESET = 1, 2, 4
COLUMNS = ("i8", "i8", "u1", "i8", "i4", "i8")


def partials(rows):
    """Return partials of (root id, value, flags, track value, task id, message id) rows."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return Partials(*(np.array(column, dtype) for column, dtype in zip(columns, COLUMNS, strict=True)))


def rows_of(done):
    """Return completions as sorted tuples."""
    columns = (done.root_id, done.message_id, done.task_id, done.outcome, done.elapsed_ms)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@dataclass
class Entry:
    """What the model holds of a root."""

    start: int
    since: int
    value: int = 0
    task_id: int | None = None
    message_id: int = 0
    failed: bool = False


class Model:
    """The rules of docs/protocol.md for sets of messages, one root at a time."""

    def __init__(self, high_water=None, every_message_refreshes=False):
        self.entries = {}
        self.counts = dict.fromkeys(Counts._fields, 0)
        self.high_water = high_water
        self.every_message_refreshes = every_message_refreshes

    def count(self, name):
        self.counts[name] += 1

    def open(self):
        return sum(entry.task_id is not None for entry in self.entries.values())

    def full(self, held, times):
        return self.high_water is not None and held > times * self.high_water

    def merge(self, rows, now):
        done = []
        for root, value, flags, track_value, task_id, message_id in rows:
            done += self.merge_root(root, value, flags, (track_value, task_id, message_id), now)
        return sorted(done)

    def merge_root(self, root, value, flags, track, now):
        tracked, failed = bool(flags & TRACKED), bool(flags & FAILED)
        entry = self.entries.get(root)
        if entry is None and flags == RESET and value == 0:
            self.count("unknown")
            return []
        if flags & RESET:
            self.count("resets")
            if entry:
                entry.since = now
        if entry is None and tracked and value == track[0]:
            self.count("tracked")
            self.count("acked")
            return [(root, track[2], track[1], Outcome.ACKED, 0)]
        others = not tracked or failed or value != 0
        if entry is None and others and self.full(len(self.entries), 4):
            self.count("dropped")
            others = failed = False
            value = 0
        if entry is None and others:
            entry = self.entries[root] = Entry(now, now)
        if entry is not None:
            entry.value ^= value
            entry.failed |= failed
            if failed or (self.every_message_refreshes and value):
                entry.since = now
        done = self.take_track(root, track, now) if tracked else []
        return done + self.settle(root, now)

    def take_track(self, root, track, now):
        value, task_id, message_id = track
        entry = self.entries.get(root)
        if entry is not None and entry.task_id is not None:
            self.count("duplicates")
            return []
        if self.full(self.open(), 2):
            self.count("rejected")
            return [(root, message_id, task_id, Outcome.REJECTED, 0)]
        self.count("tracked")
        entry = self.entries.setdefault(root, Entry(now, now))
        entry.value ^= value
        entry.task_id, entry.message_id = task_id, message_id
        if self.every_message_refreshes:
            entry.since = now
        return []

    def settle(self, root, now):
        entry = self.entries.get(root)
        if entry is None or entry.task_id is None or (entry.value != 0 and not entry.failed):
            return []
        del self.entries[root]
        outcome = Outcome.FAILED if entry.value else Outcome.ACKED
        self.count("failed" if entry.value else "acked")
        return [(root, entry.message_id, entry.task_id, outcome, now - entry.start)]

    def expire(self, before, now):
        done = []
        for root, entry in list(self.entries.items()):
            if entry.since >= before:
                continue
            del self.entries[root]
            if entry.task_id is None:
                self.count("orphans")
            else:
                self.count("timed_out")
                done.append((root, entry.message_id, entry.task_id, Outcome.TIMED_OUT, now - entry.start))
        return sorted(done)


class Log:
    """What a log would keep: chunks of entries and of roots that are gone."""

    def __init__(self):
        self.chunks = {}
        self.next = 1

    def write(self, ledger, changed, gone):
        self.chunks[self.next] = (ledger.take(changed, self.next), gone.copy())
        self.next += 1

    def clean(self, ledger):
        """Drop the oldest chunk, and write what only it showed once more."""
        number = min(self.chunks)
        entries, _ = self.chunks.pop(number)
        self.write(ledger, ledger.still_in(entries.root_id, number), np.empty(0, np.int64))

    def read(self, before):
        ledger = Ledger(seed=9)
        for number, (entries, gone) in sorted(self.chunks.items()):
            ledger.erase(gone)
            ledger.put(entries, number)
        ledger.expire(before, before)
        return ledger


def random_batch(rng, roots):
    chosen = rng.sample(range(-roots, roots), rng.randrange(min(60, roots)))
    return [
        (root, rng.randrange(4), rng.choice((0, 0, 1, 1, 2, 3, 4, 5, 7)), rng.randrange(4), rng.randrange(3), root + 5)
        for root in chosen
    ]


@pytest.mark.parametrize("high_water", [None, 0, 10])
@pytest.mark.parametrize("every_message_refreshes", [False, True], ids=["storm", "storm-0.9"])
@pytest.mark.parametrize("seed", range(6))
def test_it_does_what_the_model_does_and_the_log_gives_it_back(seed, every_message_refreshes, high_water):
    rng = random.Random(seed)
    model = Model(high_water, every_message_refreshes)
    ledger, log = Ledger(seed=seed), Log()
    counts, horizon = Counts(), 0
    for now in range(0, 1200, 10):
        rows = random_batch(rng, 300)
        rows = [row if row[2] & TRACKED else (*row[:3], 0, 0, 0) for row in rows]
        merged = ledger.merge(
            partials(rows), time_ms=now, high_water=high_water, every_message_refreshes=every_message_refreshes
        )
        assert rows_of(merged.completions) == model.merge(rows, now)
        counts = counts.plus(merged.counts)
        log.write(ledger, merged.changed, merged.gone)
        if rng.random() < 0.3:
            horizon = max(horizon, now - rng.randrange(50))
            expired = ledger.expire(horizon, now)
            assert rows_of(expired.completions) == model.expire(horizon, now)
            assert expired.oldest_ms == min((entry.start for entry in model.entries.values()), default=now)
            counts = counts.plus(expired.counts)
        if rng.random() < 0.7:
            log.clean(ledger)
        if rng.random() < 0.2:
            ledger = log.read(horizon)
        ledger.check_invariants()
        assert (len(ledger), ledger.open) == (len(model.entries), model.open())
        assert counts._asdict() == model.counts
    assert counts.acked > 100
    assert all(root in ledger for root in model.entries)
    assert 10**9 not in ledger


@pytest.mark.parametrize("protocol", ["storm", "storm-0.9"])
def test_one_message_a_micro_batch_is_the_acker_of_one_message_after_the_other(protocol):
    rng = random.Random(protocol)
    ledger, acker = Ledger(), Acker(protocol=protocol, buckets=2)
    refreshes = protocol == "storm-0.9"
    counts = Counts()
    for step in range(4000):
        now = step * 10
        root, value = rng.randrange(60), rng.randrange(1, 4)
        kind = rng.choice(list(Kind))
        combiner = Combiner(resets=True)
        combiner.add([kind], [root], [value], [1], [7])
        merged = ledger.merge(combiner.partials()[0], time_ms=now, every_message_refreshes=refreshes)
        assert rows_of(merged.completions) == rows_of(acker.ingest([kind], [root], [value], [1], [7], now_ms=now))
        counts = counts.plus(merged.counts)
        if step % 50 == 49:  # Two buckets: what was placed before the last rotation but one goes.
            expired = ledger.expire(now - 490, now)
            assert rows_of(expired.completions) == rows_of(acker.rotate(now_ms=now))
            counts = counts.plus(expired.counts)
    stats = acker.stats()
    assert {name: getattr(stats, name) for name in Counts._fields} == counts._asdict()
    assert (len(ledger), ledger.open) == (stats.pending, stats.open)
    assert counts.orphans > 100


def test_a_table_grows_shrinks_never_and_keeps_everything():
    ledger = Ledger()
    roots = np.random.default_rng(1).permutation(np.arange(50_000, dtype=np.int64))
    for number, part in enumerate(np.array_split(roots, 20)):
        zeros = np.zeros(len(part), np.int64)
        ledger.put(Entries(part, part, zeros, zeros, zeros + number, np.full(len(part), 1, np.int32)), 1)
        ledger.check_invariants()
    assert len(ledger) == ledger.open == 50_000
    grown = ledger.nbytes
    expired = ledger.expire(10, 10)
    assert len(ledger) == 25_000
    assert len(expired.completions) == 25_000
    ledger.erase(roots)
    ledger.check_invariants()
    assert (len(ledger), ledger.nbytes) == (0, grown)


def test_memory_can_be_handed_on():
    handed = PrivateMemory(10)
    with pytest.raises(ValueError, match="no table"):
        Ledger.attach(handed)
    ledger = Ledger()
    ledger.merge(partials([(7, 1, 0, 0, 0, 0)]), time_ms=5)
    ledger.token = bytes(range(16))
    again = Ledger.attach(ledger.memory)
    assert 7 in again
    assert again.token == bytes(range(16))
    assert len(again) == 1


def test_no_memory_leaves_it_as_it_was():
    def refuse(size_bytes):
        if size_bytes > 1_000_000:
            raise MemoryError
        return PrivateMemory(size_bytes)

    ledger = Ledger(refuse)
    ledger.merge(partials([(7, 1, 0, 0, 0, 0)]), time_ms=5)
    with pytest.raises(MemoryError):
        ledger.merge(partials([(root, 1, 0, 0, 0, 0) for root in range(50_000)]), time_ms=6)
    ledger.check_invariants()
    assert len(ledger) == 1
